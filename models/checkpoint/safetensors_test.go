// Tests of the safetensors reader on files written by hand, by another
// library, and by nobody (hostile headers).

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
)

// raw is a safetensors file with any header and data.
func raw(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func open(t testing.TB, file []byte) (*Checkpoint, error) {
	t.Helper()
	return OpenReaderAt(bytes.NewReader(file), int64(len(file)))
}

func put(t testing.TB, path string, file []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, file, 0o666))
	return path
}

// nans is a destination in which an unwritten element shows.
func nans(n int) []float32 {
	s := make([]float32, n)
	for i := range s {
		s[i] = float32(math.NaN())
	}
	return s
}

func floats(t testing.TB, c *Checkpoint, name string) []float32 {
	t.Helper()
	tensor, ok := c.Lookup(name)
	require.True(t, ok, name)
	dst := nans(tensor.Len())
	require.NoError(t, tensor.Float32(dst))
	return dst
}

func TestReadByHand(t *testing.T) {
	data := []byte{0x80, 0x3F, 0x00, 0xC0, 0x40, 0x3F, 0x00, 0x00, 7, 0xFF, 0xFF, 0xFF, 0, 1}
	file := raw(`{"bf":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},`+
		`"i":{"shape":[],"data_offsets":[8,12],"dtype":"I32"},"__metadata__":{"format":"pt","a":"b"},`+
		`"none":{"dtype":"F64","shape":[3,0],"data_offsets":[12,12]},"flag":{"dtype":"BOOL","shape":[2],"data_offsets":[12,14]}} `, data)
	path := put(t, filepath.Join(t.TempDir(), "a.safetensors"), file)
	mapped, err := Open(path)
	require.NoError(t, err)
	defer mapped.Close()
	read, err := open(t, file)
	require.NoError(t, err)
	for _, c := range []*Checkpoint{mapped, read} {
		var names []string
		for _, x := range c.Tensors() {
			names = append(names, x.String())
		}
		require.Equal(t, []string{"bf BF16 [2 2]", "i I32 []", "none F64 [3 0]", "flag BOOL [2]"}, names)
		require.Equal(t, Metadata{"format": "pt", "a": "b"}, c.Metadata())
		require.Equal(t, "safetensors", c.Format())
		require.Equal(t, []float32{1, -2, 0.75, 0}, floats(t, c, "bf"))
		require.Equal(t, []float32{-249}, floats(t, c, "i"))
		require.Empty(t, floats(t, c, "none"))
		require.Equal(t, []float32{0, 1}, floats(t, c, "flag"))

		bf, _ := c.Lookup("bf")
		require.Equal(t, dtype.BFloat16, bf.DType())
		require.EqualValues(t, 8, bf.Bytes())
		require.Equal(t, 2, bf.Rows())
		require.Equal(t, 2, bf.RowLen())
		row := nans(2)
		require.NoError(t, bf.Float32Rows(row, 1, 1))
		require.Equal(t, []float32{0.75, 0}, row)
		b := make([]byte, 4)
		require.NoError(t, bf.RawRows(b, 0, 1))
		require.Equal(t, data[:4], b)
		codes := make([]dtype.BF16, 4)
		require.NoError(t, Read(bf, codes))
		require.Equal(t, []dtype.BF16{0x3F80, 0xC000, 0x3F40, 0}, codes)
		flag, _ := c.Lookup("flag")
		bools := make([]bool, 2)
		require.NoError(t, Read(flag, bools))
		require.Equal(t, []bool{false, true}, bools)
		var w bytes.Buffer
		n, err := bf.WriteTo(&w)
		require.NoError(t, err)
		require.EqualValues(t, 8, n)
		require.Equal(t, data[:8], w.Bytes())
	}
	bf, _ := mapped.Lookup("bf")
	require.Equal(t, path, bf.File())
	if view, ok := View[uint8](bf); ok {
		require.Equal(t, data[:8], view)
	} else {
		require.NotEqual(t, "linux", runtime.GOOS, "a file is mapped on Linux")
	}
}

// TestReadErrors: what a caller gets wrong is an error that says what it has.
func TestReadErrors(t *testing.T) {
	file := raw(`{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`, make([]byte, 24))
	path := put(t, filepath.Join(t.TempDir(), "w.safetensors"), file)
	c, err := Open(path)
	require.NoError(t, err)
	w, _ := c.Lookup("w")
	where := path + `: tensor "w" (F32 [2 3]): `
	require.EqualError(t, w.Float32(make([]float32, 5)), where+"2 rows need a destination of 6 elements, it has 5")
	require.EqualError(t, w.Float32Rows(make([]float32, 3), 2, 1), where+"1 rows from 2 on asked for, it has 2")
	require.EqualError(t, w.Float32Rows(nil, -1, 1), where+"1 rows from -1 on asked for, it has 2")
	require.EqualError(t, w.Float32Rows(nil, 1, math.MaxInt), where+fmt.Sprintf("%d rows from 1 on asked for, it has 2", math.MaxInt))
	require.EqualError(t, w.Raw(make([]byte, 23)), where+"2 rows need a destination of 24 bytes, it has 23")
	require.EqualError(t, Read(w, make([]dtype.BF16, 6)), where+"read as bfloat16")
	require.EqualError(t, Read(w, make([]float32, 7)), where+"the whole tensor needs a destination of 6 elements, it has 7")
	_, ok := View[dtype.BF16](w)
	require.False(t, ok)
	_, ok = View[uint8](nil)
	require.False(t, ok)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.ErrorIs(t, w.Float32(make([]float32, 6)), os.ErrClosed)
	_, ok = View[float32](w)
	require.False(t, ok)
}

// TestWideIntegers: what float32 holds is read, what it does not is refused.
func TestWideIntegers(t *testing.T) {
	exact := []int64{0, 1, -1, 127, -128, 1 << 24, -(1 << 24), 3 << 40, -1 << 63, 1 << 62}
	for _, kind := range []string{"I64", "U64", "I32", "U32"} {
		size := 8
		if kind[1:] == "32" {
			size = 4
		}
		for _, v := range append(exact, 1<<24+1, -(1<<24)-1, 1<<53+1, 1<<32-1, math.MaxInt64) {
			b := binary.LittleEndian.AppendUint64(nil, uint64(v))[:size]
			c, err := open(t, raw(fmt.Sprintf(`{"i":{"dtype":"%s","shape":[2],"data_offsets":[0,%d]}}`, kind, 2*size), append(make([]byte, size), b...)))
			require.NoError(t, err)
			want := map[string]float64{"I64": float64(v), "U64": float64(uint64(v)), "I32": float64(int32(v)), "U32": float64(uint32(v))}[kind]
			stored := map[string]uint64{"I64": uint64(max(v, -v)), "U64": uint64(v), "I32": uint64(max(int64(int32(v)), -int64(int32(v)))), "U32": uint64(uint32(v))}[kind]
			x, _ := c.Lookup("i")
			dst := nans(2)
			err = x.Float32(dst)
			if digits := strings.TrimRight(strconv.FormatUint(stored, 2), "0"); len(digits) > 24 {
				require.ErrorContains(t, err, "element 1 has no exact float32 value")
				require.ErrorContains(t, x.Float32Rows(dst[:1], 1, 1), "element 1 has no exact float32 value")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, []float32{0, float32(want)}, dst, "%s %d", kind, v)
		}
	}
}

// TestReadInPieces reads a tensor larger than the buffer of an unmapped file,
// off any alignment, whole and by rows.
func TestReadInPieces(t *testing.T) {
	const rows, cols = 1000, 1001
	values := make([]float32, rows*cols)
	b := []byte{0}
	for i := range values {
		values[i] = float32(i%4001) - 2000.5
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(values[i]))
	}
	file := raw(fmt.Sprintf(`{"o":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":{"dtype":"F32","shape":[%d,7,143],"data_offsets":[1,%d]}}`, rows, len(b)), b)
	mapped, err := Open(put(t, filepath.Join(t.TempDir(), "w.safetensors"), file))
	require.NoError(t, err)
	defer mapped.Close()
	read, err := open(t, file)
	require.NoError(t, err)
	for _, c := range []*Checkpoint{mapped, read} {
		require.Equal(t, values, floats(t, c, "w"))
		w, _ := c.Lookup("w")
		part := nans(400*cols + 1)
		require.NoError(t, w.Float32Rows(part[:400*cols], 599, 400))
		require.Equal(t, values[599*cols:999*cols], part[:400*cols])
		require.True(t, math.IsNaN(float64(part[400*cols])))
		same := nans(w.Len())
		require.NoError(t, Read(w, same))
		require.Equal(t, values, same)
		require.NoError(t, w.Float32Rows(nil, rows, 0))
	}
}

// TestTruncatedWhileOpen: a file that another process shortens fails a read,
// mapped or not.
func TestTruncatedWhileOpen(t *testing.T) {
	n := 1 << 20
	file := raw(fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, n, n), make([]byte, n))
	path := put(t, filepath.Join(t.TempDir(), "w.safetensors"), file)
	c, err := Open(path)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, os.Truncate(path, 4096))
	w, _ := c.Lookup("w")
	require.ErrorContains(t, w.Float32(make([]float32, n)), "shortened")

	short, err := OpenReaderAt(bytes.NewReader(file[:4096]), int64(len(file)))
	require.NoError(t, err)
	w, _ = short.Lookup("w")
	require.ErrorContains(t, w.Float32(make([]float32, n)), "unexpected EOF")
}

const f32x1 = `{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`

// corrupt lists headers with one fault each and what is said about it.
var corrupt = []struct {
	name, header string
	data         int
	want         string
}{
	{"shape larger than its bytes", `{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}`, 4, `tensor "w": shape [1000 1000] of F32 needs 4000000 bytes, data_offsets [0, 4] hold 4`},
	{"shape smaller than its bytes", `{"w":{"dtype":"F32","shape":[],"data_offsets":[0,8]}}`, 8, `tensor "w": shape [] of F32 needs 4 bytes, data_offsets [0, 8] hold 8`},
	{"begin after end", `{"w":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}}`, 8, `tensor "w": data_offsets [8, 4] begin after they end`},
	{"overlap", `{"a":` + f32x1 + `,"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}}`, 6, `tensor "b": data_offsets [2, 6] overlap those of "a", which end at 4`},
	{"same bytes twice", `{"a":` + f32x1 + `,"b":` + f32x1 + `}`, 4, `tensor "b": data_offsets [0, 4] overlap those of "a", which end at 4`},
	{"hole", `{"a":` + f32x1 + `,"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}`, 12, `tensor "b": data_offsets [8, 12] leave a hole after 4`},
	{"hole at the start", `{"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8, `tensor "b": data_offsets [4, 8] leave a hole after 0`},
	{"bytes of no tensor", `{"a":` + f32x1 + `}`, 5, `the tensors end at byte 4 of the data, which has 5 (the rest belongs to none)`},
	{"truncated data", `{"a":` + f32x1 + `}`, 3, `tensor "a": data_offsets [0, 4] end after the data, which has 3 bytes (the file is truncated or the offset wrong)`},
	{"end past 2^63", `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}}`, 4, `tensor "a": data_offsets [0, 18446744073709551615] end after the data, which has 4 bytes (the file is truncated or the offset wrong)`},
	{"end past 2^64", `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551616]}}`, 4, `header: tensor "a": data_offsets: integers from 0 to 2^64-1 expected, got 18446744073709551616`},
	{"unknown dtype", `{"a":{"dtype":"F12","shape":[1],"data_offsets":[0,4]}}`, 4, `tensor "a": dtype "F12" is unknown`},
	{"shape product", `{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}`, 4, `tensor "a": the product of shape [4294967296 4294967296] and 4 bytes of F32 exceeds 2^63`},
	{"shape product that wraps to 4", `{"a":{"dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4]}}`, 4, `tensor "a": the product of shape [4611686018427387905] and 4 bytes of F32 exceeds 2^63`},
	{"dimension beside 0", `{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}`, 0, `tensor "a": dimension 1 of shape [0 18446744073709551615] exceeds the integers of this machine`},
	{"negative dimension", `{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4, `header: tensor "a": shape: integers from 0 to 2^64-1 expected, got -1`},
	{"fractional dimension", `{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}`, 4, `header: tensor "a": shape: integers from 0 to 2^64-1 expected, got 1.0`},
	{"string dimension", `{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}`, 4, `header: tensor "a": shape: integers expected, got 1`},
	{"shape no array", `{"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}}`, 4, `header: tensor "a": shape: JSON at byte 29: [ expected, got 1`},
	{"too many dimensions", `{"a":{"dtype":"F32","shape":[` + strings.Repeat("1,", 32) + `1],"data_offsets":[0,4]}}`, 4, `header: tensor "a": shape: at most 32 integers expected, got more`},
	{"one offset", `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}`, 4, `header: tensor "a": data_offsets: 2 integers expected, got 1`},
	{"three offsets", `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}`, 4, `header: tensor "a": data_offsets: at most 2 integers expected, got more`},
	{"dtype no string", `{"a":{"dtype":32,"shape":[1],"data_offsets":[0,4]}}`, 4, `header: tensor "a": dtype: JSON at byte 16: a string expected, got 32`},
	{"field missing", `{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4, `header: tensor "a": dtype, shape and data_offsets are required, one is missing`},
	{"field unknown", `{"a":{"dtype":"F32","shape":[1],"strides":[1],"data_offsets":[0,4]}}`, 4, `header: tensor "a": field "strides" is unknown`},
	{"field twice", `{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4, `header: tensor "a": duplicate key "dtype"`},
	{"duplicate key", `{"a":` + f32x1 + `,"a":` + f32x1 + `}`, 4, `header: duplicate key "a"`},
	{"duplicate key in another spelling", `{"a":` + f32x1 + `,"\u0061":` + f32x1 + `}`, 4, `header: duplicate key "a"`},
	{"metadata twice", `{"__metadata__":{},"__metadata__":{}}`, 0, `header: duplicate key "__metadata__"`},
	{"metadata of numbers", `{"__metadata__":{"a":1}}`, 0, `header: __metadata__: "a": JSON at byte 22: a string expected, got 1`},
	{"no object", `[]`, 0, `header: it must start with '{'`},
	{"empty", ``, 0, `header: it must start with '{'`},
	{"leading space", ` {}`, 0, `header: it must start with '{'`},
	{"text after the object", `{} {}`, 0, `header: JSON at byte 4: something follows the object`},
	{"not UTF-8", "{\"\xff\":" + f32x1 + "}", 4, `header: it is not UTF-8`},
	{"cut short", `{"a":{"dtype":"F32"`, 4, `header: tensor "a": JSON at byte 19: unexpected EOF`},
}

func TestC03_CorruptHeaders(t *testing.T) {
	for _, c := range corrupt {
		t.Run(c.name, func(t *testing.T) {
			_, err := open(t, raw(c.header, make([]byte, c.data)))
			require.EqualError(t, err, "safetensors: "+c.want)
			var fe *FormatError
			require.ErrorAs(t, err, &fe)
			path := put(t, filepath.Join(t.TempDir(), "x.safetensors"), raw(c.header, make([]byte, c.data)))
			_, err = Open(path)
			require.EqualError(t, err, path+": safetensors: "+c.want)
		})
	}
}

func TestC03_HeaderLength(t *testing.T) {
	length := func(n uint64, rest string) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), rest...)
	}
	for _, c := range []struct {
		file []byte
		want string
	}{
		{nil, "a file starts with the 8-byte length of its header, this one has 0 bytes"},
		{make([]byte, 7), "a file starts with the 8-byte length of its header, this one has 7 bytes"},
		{length(1<<63, "{}"), "a header has at most 100000000 bytes, the length field says 9223372036854775808"},
		{length(math.MaxUint64, "{}"), "a header has at most 100000000 bytes, the length field says 18446744073709551615"},
		{length(100_000_000, "{}"), "the header has 100000000 bytes, the file only 2 after the length field"},
		{length(3, "{}"), "the header has 3 bytes, the file only 2 after the length field"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := open(t, c.file)
		runtime.ReadMemStats(&after)
		require.EqualError(t, err, "safetensors: "+c.want)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	}
}

// TestC03_EveryTruncation cuts a sound file at every length.
func TestC03_EveryTruncation(t *testing.T) {
	file, err := os.ReadFile("testdata/types.safetensors")
	require.NoError(t, err)
	for n := range file {
		_, err := open(t, file[:n])
		require.Error(t, err, n)
	}
}

// TestOtherLibrary reads a file that the safetensors package of Python wrote,
// with each type; make_types.py wrote the values beside it.
func TestOtherLibrary(t *testing.T) {
	text, err := os.ReadFile("testdata/types.json")
	require.NoError(t, err)
	var want map[string]struct {
		DType string
		Shape []int
		Data  []float64
	}
	require.NoError(t, json.Unmarshal(text, &want))
	c, err := Open("testdata/types.safetensors")
	require.NoError(t, err)
	defer c.Close()
	require.Len(t, c.Tensors(), len(want))
	require.Equal(t, Metadata{"format": "pt"}, c.Metadata())
	for name, w := range want {
		x, ok := c.Lookup(name)
		require.True(t, ok, name)
		require.Equal(t, w.DType, x.Type())
		require.Equal(t, w.Shape, x.Shape())
		for i, v := range floats(t, c, name) {
			require.Equal(t, float32(w.Data[i]), v, "%s[%d]", name, i)
		}
	}
}

func TestHugeSparseFileOpensAtOnce(t *testing.T) {
	const size = 8 << 30
	path := filepath.Join(t.TempDir(), "huge.safetensors")
	header := raw(fmt.Sprintf(`{"w":{"dtype":"BF16","shape":[%d,4096],"data_offsets":[0,%d]}}`, size/8192, size), nil)
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = f.Write(header)
	require.NoError(t, err)
	if err := f.Truncate(int64(len(header)) + size); err != nil {
		t.Skipf("the file system refuses a sparse file of 8 GiB: %v", err)
	}
	_, err = f.WriteAt([]byte{0x80, 0x3F}, int64(len(header))+size-2)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	c, err := Open(path)
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	defer c.Close()
	require.Less(t, took, time.Second) // measured 0.1 ms
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
	w, _ := c.Lookup("w")
	row := nans(4096)
	require.NoError(t, w.Float32Rows(row, w.Rows()-1, 1))
	require.Equal(t, float32(1), row[4095])
	require.Zero(t, row[0])
}

// TestReadWhileClosing: readers get their values or os.ErrClosed, never a
// fault on unmapped memory.
func TestReadWhileClosing(t *testing.T) {
	for range 20 {
		c, err := Open("testdata/types.safetensors")
		require.NoError(t, err)
		errs := make(chan error)
		for range 8 {
			go func() {
				for {
					for _, x := range c.Tensors() {
						if err := x.Float32(make([]float32, x.Len())); err != nil {
							errs <- err
							return
						}
					}
				}
			}()
		}
		require.NoError(t, c.Close())
		for range 8 {
			require.ErrorIs(t, <-errs, os.ErrClosed)
		}
	}
}
