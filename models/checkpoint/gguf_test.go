// Tests of the GGUF reader: a file of another library, files by hand, and one
// fault in each header field.

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
)

// TestBlocksOfOtherLibrary decodes random blocks of each coding and compares
// the bits with those of the gguf package; make_blocks.py wrote both.
func TestBlocksOfOtherLibrary(t *testing.T) {
	c, err := Open("testdata/blocks.gguf")
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, "gguf", c.Format())
	seen := map[string]bool{}
	for _, x := range c.Tensors() {
		if strings.HasSuffix(x.Name(), ".f32") {
			continue
		}
		require.Equal(t, x.Name(), x.Type())
		want := floats(t, c, x.Name()+".f32")
		got := floats(t, c, x.Name())
		for i := range want {
			require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "%s[%d]: %v, want %v", x.Name(), i, got[i], want[i])
		}
		last := nans(x.RowLen())
		require.NoError(t, x.Float32Rows(last, x.Rows()-1, 1))
		require.Equal(t, want[x.Len()-x.RowLen():], last)
		seen[x.Type()] = true
		if x.Coding() == Plain {
			continue
		}
		elements, size := x.Coding().Block()
		require.Equal(t, int64(x.Len()/elements*size), x.Bytes())
		require.Equal(t, dtype.Invalid, x.DType())
		packed := make([]byte, x.Bytes())
		require.NoError(t, x.Raw(packed))
		again := nans(x.Len())
		require.NoError(t, x.Coding().Decode(again, packed))
		require.Equal(t, want, again)
		require.Error(t, x.Coding().Decode(again[1:], packed))
		require.Error(t, x.Coding().Decode(again, packed[1:]))
		require.Error(t, Read(x, make([]uint8, x.Len())))
	}
	for _, how := range ggufTypes {
		name := how.coding.String()
		if how.coding == Plain {
			name = how.dtype.Safetensors()
		}
		require.True(t, name == "F32" || seen[name], name)
	}
	require.Error(t, Plain.Decode(nil, nil))
	require.Error(t, Coding(200).Decode(nil, nil))
}

func TestGGUFValues(t *testing.T) {
	c, err := Open("testdata/blocks.gguf")
	require.NoError(t, err)
	defer c.Close()
	m := c.Metadata()
	for name, want := range map[string][2]any{
		"uint8": {uint8(200), []uint8{200, 200}}, "int8": {int8(-100), []int8{-100, -100}},
		"uint16": {uint16(60000), []uint16{60000, 60000}}, "int16": {int16(-30000), []int16{-30000, -30000}},
		"uint32": {uint32(4000000000), []uint32{4000000000, 4000000000}}, "int32": {int32(-2000000000), []int32{-2000000000, -2000000000}},
		"uint64": {uint64(1 << 63), []uint64{1 << 63, 1 << 63}}, "int64": {int64(-1 << 62), []int64{-1 << 62, -1 << 62}},
		"float32": {float32(0.15625), []float32{0.15625, 0.15625}}, "float64": {0.1, []float64{0.1, 0.1}},
		"bool": {true, []bool{true, false}}, "string": {"héllo", []string{"héllo", "héllo"}},
	} {
		require.Equal(t, want[0], m["one."+name])
		require.Equal(t, want[1], m["array."+name])
	}

	s, err := m.String("one.string")
	require.NoError(t, err)
	require.Equal(t, "héllo", s)
	ss, err := m.Strings("array.string")
	require.NoError(t, err)
	require.Len(t, ss, 2)
	b, err := m.Bool("one.bool")
	require.NoError(t, err)
	require.True(t, b)
	n, err := m.Int("one.int16")
	require.NoError(t, err)
	require.Equal(t, -30000, n)
	ints, err := m.Ints("array.uint16")
	require.NoError(t, err)
	require.Equal(t, []int{60000, 60000}, ints)
	f, err := m.Float("one.float32")
	require.NoError(t, err)
	require.Equal(t, 0.15625, f)
	f, err = m.Float("one.uint8")
	require.NoError(t, err)
	require.Equal(t, 200.0, f)
	fs, err := m.Floats("array.float32")
	require.NoError(t, err)
	require.Equal(t, []float64{0.15625, 0.15625}, fs)

	_, err = m.String("absent")
	require.EqualError(t, err, `metadata: no key "absent"`)
	_, err = m.String("one.bool")
	require.EqualError(t, err, `metadata: "one.bool" must be a string, it is a bool`)
	_, err = m.Int("one.float64")
	require.EqualError(t, err, `metadata: "one.float64" must be an integer that fits an int, it is 0.1 (float64)`)
	_, err = m.Int("one.uint64")
	require.EqualError(t, err, `metadata: "one.uint64" must be an integer that fits an int, it is 9223372036854775808 (uint64)`)
	_, err = m.Ints("array.uint64")
	require.EqualError(t, err, `metadata: "array.uint64" must be an array of integers that fit an int, it is a []uint64`)
	_, err = m.Float("one.string")
	require.EqualError(t, err, `metadata: "one.string" must be a number, it is a string`)
	_, err = m.Floats("array.int8")
	require.EqualError(t, err, `metadata: "array.int8" must be an array of floats, it is a []int8`)
}

// builder writes GGUF by hand.
type builder struct{ bytes.Buffer }

func (b *builder) u32(v uint32) *builder { binary.Write(b, binary.LittleEndian, v); return b }
func (b *builder) u64(v uint64) *builder { binary.Write(b, binary.LittleEndian, v); return b }
func (b *builder) str(s string) *builder { b.u64(uint64(len(s))).WriteString(s); return b }

func begin(version uint32, tensors, keys uint64) *builder {
	b := &builder{}
	b.WriteString("GGUF")
	return b.u32(version).u64(tensors).u64(keys)
}

func (b *builder) tensor(name string, kind uint32, offset uint64, dims ...uint64) *builder {
	b.str(name).u32(uint32(len(dims)))
	for _, d := range dims {
		b.u64(d)
	}
	return b.u32(kind).u64(offset)
}

// data pads to the alignment and appends bytes.
func (b *builder) data(align int, p ...byte) []byte {
	for b.Len()%align != 0 {
		b.WriteByte(0)
	}
	b.Write(p)
	return b.Bytes()
}

func TestGGUFByHand(t *testing.T) {
	for _, version := range []uint32{2, 3} {
		b := begin(version, 3, 3).str("general.alignment").u32(ggufUint32).u32(8)
		b.str("nested").u32(ggufArray).u32(ggufArray).u64(2)
		b.u32(ggufInt8).u64(2).Write([]byte{1, 2})
		b.u32(ggufString).u64(0)
		b.str("empty").u32(ggufArray).u32(ggufFloat64).u64(0)
		b.tensor("b", 0, 16, 1).tensor("a", 0, 0, 3, 1).tensor("scalar", 24, 24)
		one := []byte{0, 0, 0x80, 0x3F}
		file := b.data(8, bytes.Join([][]byte{one, one, one, {0, 0, 0, 0}, one, {9, 9, 9, 9, 7}}, nil)...)
		dir := t.TempDir()
		put(t, filepath.Join(dir, "model.gguf"), file)
		c, err := Open(dir)
		require.NoError(t, err)
		require.Equal(t, []any{[]int8{1, 2}, []string{}}, c.Metadata()["nested"])
		require.Equal(t, []float64{}, c.Metadata()["empty"])
		require.Equal(t, []float32{1, 1, 1}, floats(t, c, "a"))
		a, _ := c.Lookup("a")
		require.Equal(t, []int{1, 3}, a.Shape())
		require.Equal(t, []float32{1}, floats(t, c, "b"))
		require.Equal(t, []float32{7}, floats(t, c, "scalar"))
		require.NoError(t, c.Close())

		put(t, filepath.Join(dir, "other.gguf"), file)
		_, err = Open(dir)
		require.ErrorContains(t, err, "model.gguf, other.gguf: name the file")
	}
}

func TestGGUFCorrupt(t *testing.T) {
	one := func(b *builder) []byte { return b.data(32, 0, 0, 0x80, 0x3F) }
	key := func(kind uint32) *builder { return begin(3, 0, 1).str("k").u32(kind) }
	alignment := func(v uint32) *builder {
		return begin(3, 0, 1).str("general.alignment").u32(ggufUint32).u32(v)
	}
	deep := key(ggufArray)
	for range 4 {
		deep.u32(ggufArray).u64(1)
	}
	deep.u32(ggufUint8).u64(0)
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"version 1", one(begin(1, 0, 0)), "version 1: versions 2 and 3 are read"},
		{"version 0", one(begin(0, 0, 0)), "version 0: versions 2 and 3 are read"},
		{"version 4", one(begin(4, 0, 0)), "version 4: versions 2 and 3 are read"},
		{"big-endian", one(begin(3<<24, 0, 0)), "the file is big-endian, only little-endian files are read"},
		{"cut", begin(3, 0, 0).Bytes()[:20], "the file ends at 20, 8 more bytes are needed at 16"},
		{"keys", one(begin(3, 0, 1<<40)), "1099511627776 keys announced, the 12 bytes left cannot hold so many"},
		{"tensors", one(begin(3, 1<<62, 0)), "4611686018427387904 tensors announced, the 12 bytes left cannot describe so many"},
		{"long key", one(begin(3, 0, 1).u64(1 << 63).u64(0)), `key 1 of 1 (""): a string of 9223372036854775808 bytes at 32 is longer than the file, which has 68`},
		{"key over the limit", one(begin(3, 0, 1).str(strings.Repeat("k", 65536)).u32(0)), `key 1 of 1 (""): a string of 65536 bytes at 32, at most 65535 are allowed`},
		{"empty key", one(begin(3, 0, 1).str("").u32(0)), `key 1 of 1 (""): the name is "": UTF-8 that is not empty is required`},
		{"key not UTF-8", one(begin(3, 0, 1).str("\xff").u32(0)), `key 1 of 1 ("\xff"): the name is "\xff": UTF-8 that is not empty is required`},
		{"duplicate key", one(begin(3, 0, 2).str("k").u32(ggufUint32).u32(1).str("k").u32(ggufUint32).u32(1)), `key 2 of 2 ("k"): "k": duplicate key`},
		{"value type", one(key(13)), `key 1 of 1 ("k"): value type 13 is unknown`},
		{"value cut", key(ggufFloat64).Bytes(), `key 1 of 1 ("k"): the file ends at 37, 8 more bytes are needed at 37`},
		{"bool", append(key(ggufBool).Bytes(), 2), `key 1 of 1 ("k"): a bool is 0 or 1, got 2`},
		{"long string", one(key(ggufString).u64(1 << 40)), `key 1 of 1 ("k"): a string of 1099511627776 bytes at 45 is longer than the file, which has 68`},
		{"array type", one(key(ggufArray).u32(13).u64(0)), `key 1 of 1 ("k"): array of value type 13, which is unknown`},
		{"long array", one(key(ggufArray).u32(ggufUint64).u64(1 << 61)), `key 1 of 1 ("k"): an array of 2305843009213693952 elements at 49 is longer than the file, which has 68 bytes`},
		{"long array of strings", one(key(ggufArray).u32(ggufString).u64(1000)), `key 1 of 1 ("k"): an array of 1000 elements at 49 is longer than the file, which has 68 bytes`},
		{"array of bools", append(key(ggufArray).u32(ggufBool).u64(1).Bytes(), 3), `key 1 of 1 ("k"): a bool is 0 or 1, got 3`},
		{"deep arrays", one(deep), `key 1 of 1 ("k"): arrays are nested more than 4 deep`},
		{"alignment 0", one(alignment(0)), "general.alignment is 0 (uint32): a uint32 power of two from 8 to 2^30 is required"},
		{"alignment 48", one(alignment(48)), "general.alignment is 48 (uint32): a uint32 power of two from 8 to 2^30 is required"},
		{"alignment 2^31", one(alignment(1 << 31)), "general.alignment is 2147483648 (uint32): a uint32 power of two from 8 to 2^30 is required"},
		{"alignment of another type", one(begin(3, 0, 1).str("general.alignment").u32(ggufUint64).u64(32)), "general.alignment is 32 (uint64): a uint32 power of two from 8 to 2^30 is required"},
		{"one of several files", one(begin(3, 0, 1).str("split.count").u32(ggufUint32).u32(2)), "split.count is 2: a model in one file is required, join the parts first"},
		{"tensor name", one(begin(3, 1, 0).u64(1 << 40).u64(0)), "description 1 of 1: a string of 1099511627776 bytes at 32 is longer than the file, which has 68"},
		{"tensor name not UTF-8", one(begin(3, 1, 0).tensor("\xff", 0, 0, 1)), `tensor "\xff": description 1 of 1: the name is not UTF-8`},
		{"rank", one(begin(3, 1, 0).tensor("w", 0, 0, 1, 1, 1, 1, 1)), `tensor "w": description 1 of 1: it has 5 dimensions, at most 4 are allowed`},
		{"rank 2^32-1", one(begin(3, 1, 0).str("w").u32(math.MaxUint32).u64(0)), `tensor "w": description 1 of 1: it has 4294967295 dimensions, at most 4 are allowed`},
		{"type", one(begin(3, 1, 0).tensor("w", 99, 0, 1)), `tensor "w": description 1 of 1: its type 99 is unknown`},
		{"removed type", one(begin(3, 1, 0).tensor("w", 4, 0, 1)), `tensor "w": description 1 of 1: its type 4 is unknown`},
		{"unsupported type", one(begin(3, 1, 0).tensor("w", 16, 0, 256)), `tensor "w": description 1 of 1: its type IQ2_XXS is not supported`},
		{"partial block", one(begin(3, 1, 0).tensor("w", 8, 0, 16, 2)), `tensor "w": description 1 of 1: rows of 16 elements are not whole blocks of 32 (Q8_0)`},
		{"scalar of blocks", one(begin(3, 1, 0).tensor("w", 8, 0)), `tensor "w": description 1 of 1: rows of 1 elements are not whole blocks of 32 (Q8_0)`},
		{"product", one(begin(3, 1, 0).tensor("w", 0, 0, 1<<32, 1<<32)), `tensor "w": description 1 of 1: the product of dimensions [4294967296 4294967296] exceeds 2^63 bytes of F32`},
		{"product of bytes", one(begin(3, 1, 0).tensor("w", 0, 0, 1<<62)), `tensor "w": description 1 of 1: the product of dimensions [4611686018427387904] exceeds 2^63 bytes of F32`},
		{"dimension beside 0", one(begin(3, 1, 0).tensor("w", 0, 0, 0, 1<<63)), `tensor "w": description 1 of 1: dimensions [0 9223372036854775808] exceed the integers of this machine`},
		{"offset 2^63", one(begin(3, 1, 0).tensor("w", 0, 1<<63, 1)), `tensor "w": description 1 of 1: offset 9223372036854775808 exceeds 2^63`},
		{"offset past the end", one(begin(3, 1, 0).tensor("w", 0, 1<<62, 1)), `tensor "w": [1] of F32 needs 4 bytes at offset 4611686018427387904, the data has 4 (the file is truncated or the offset wrong)`},
		{"truncated data", one(begin(3, 1, 0).tensor("w", 0, 0, 2)), `tensor "w": [2] of F32 needs 8 bytes at offset 0, the data has 4 (the file is truncated or the offset wrong)`},
		{"no data", begin(3, 1, 0).tensor("w", 0, 0, 1).Bytes(), `the data begins at 64, the file has 57 bytes`},
		{"unaligned", one(begin(3, 1, 0).tensor("w", 0, 4, 1)), `tensor "w": offset 4 is not a multiple of the alignment 32`},
		{"overlap", one(begin(3, 2, 0).tensor("a", 0, 0, 1).tensor("b", 0, 0, 1)), `tensor "b": offset 0 overlaps "a", which ends at 32 with its padding`},
		{"hole", begin(3, 2, 0).tensor("a", 0, 0, 1).tensor("b", 0, 64, 1).data(32, make([]byte, 68)...), `tensor "b": offset 64 leaves a hole after 32`},
		{"twice", begin(3, 2, 0).tensor("a", 0, 0, 1).tensor("a", 0, 32, 1).data(32, make([]byte, 36)...), `tensor "a": it is described twice`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := open(t, c.file)
			require.EqualError(t, err, "gguf: "+c.want)
			var fe *FormatError
			require.ErrorAs(t, err, &fe)
		})
	}
	file, err := os.ReadFile("testdata/blocks.gguf")
	require.NoError(t, err)
	for n := 0; n < len(file); n += 1 + n/500 {
		if _, err := open(t, file[:n]); err == nil {
			require.Fail(t, "a truncated file opens", "%d of %d bytes", n, len(file))
		}
	}
}

// TestGGUFReadFails: an error of the disk is reported as such.
func TestGGUFReadFails(t *testing.T) {
	file := begin(3, 0, 1<<20).data(32, make([]byte, 1<<25)...)
	_, err := OpenReaderAt(bytes.NewReader(file[:64]), int64(len(file)))
	require.ErrorContains(t, err, "unexpected EOF")
	var fe *FormatError
	require.NotErrorAs(t, err, &fe)
}

// TestLlamaPermutation permutes as the writer of GGUF does, which splits each
// head in halves and interleaves them, and undoes it.
func TestLlamaPermutation(t *testing.T) {
	for _, c := range [][3]int{{1, 2, 1}, {3, 8, 5}, {9, 64, 2}, {4, 6, 1}} {
		heads, dim, row := c[0], c[1], c[2]
		hf := make([]float32, heads*dim*row)
		for i := range hf {
			hf[i] = float32(i)
		}
		var written []float32 // reshape [heads, 2, dim/2, row], swap the middle axes
		for h := range heads {
			for i := range dim / 2 {
				for s := range 2 {
					at := ((h*2+s)*(dim/2) + i) * row
					written = append(written, hf[at:at+row]...)
				}
			}
		}
		got := nans(len(hf))
		require.NoError(t, UndoLlamaPermutation(got, written, heads, dim, row))
		require.Equal(t, hf, got)
	}
	require.NoError(t, UndoLlamaPermutation([]byte{}, nil, 1<<40, 1<<20, 0))
	for _, c := range []struct {
		n, heads, dim, row int
		want               string
	}{
		{4, 0, 2, 1, "got 0 heads of 2, rows of 1"},
		{3, 1, 3, 1, "got 1 heads of 3, rows of 1"},
		{4, 1, 4, -1, "got 1 heads of 4, rows of -1"},
		{5, 1, 4, 1, "1 heads of 4 rows of 1 elements, got source 5 and destination 5"},
		{0, 1 << 32, 1 << 32, 1, fmt.Sprintf("%d heads of %d rows of 1 elements", 1<<32, 1<<32)},
	} {
		require.ErrorContains(t, UndoLlamaPermutation(make([]int8, c.n), make([]int8, c.n), c.heads, c.dim, c.row), c.want)
	}
}
