// Tests of the writer: what is written, and what is left when writing fails.

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph/dtype"
)

func save(path string, opt SaveOptions, entries ...Entry) error {
	return Save(path, slices.Values(entries), opt)
}

// listing is the sorted content of a folder, name and bytes.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range list {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
		out[f.Name()] = string(b)
	}
	return out
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(listing(t, dir)))
}

// TestSaveBytes compares a small file with one written by hand.
func TestSaveBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, save(path, SaveOptions{Metadata: map[string]string{"step": "7"}},
		Values("b", []dtype.BF16{0x3F80, 0xC000}, 2),
		Values("a", []int8{-1}, 1, 1),
		Values("s", []float32{1}),
		Values("n", []uint16{}, 0, 4)))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	head := `{"__metadata__":{"format":"pt","step":"7"},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
		`"b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},"n":{"dtype":"U16","shape":[0,4],"data_offsets":[8,8]},` +
		`"a":{"dtype":"I8","shape":[1,1],"data_offsets":[8,9]}}`
	head += strings.Repeat(" ", (8-len(head)%8)%8)
	require.Equal(t, string(raw(head, []byte{0, 0, 0x80, 0x3F, 0x80, 0x3F, 0x00, 0xC0, 0xFF})), string(got))
	require.Zero(t, binary.LittleEndian.Uint64(got)%8)
}

func TestSaveEveryType(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	n := 100_000 // more than one piece of a conversion
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(float64(i))) * 100
	}
	var entries []Entry
	for _, d := range []dtype.DType{dtype.Float64, dtype.Float32, dtype.Float16, dtype.BFloat16, dtype.Float8E4M3, dtype.Float8E5M2} {
		entries = append(entries, Rounded(d.String(), d, x, 10, n/10))
	}
	entries = append(entries,
		Values("i64", []int64{1 << 40}, 1), Values("i32", []int32{-5}, 1), Values("i16", []int16{-300}, 1),
		Values("u64", []uint64{1 << 63}, 1), Values("u32", []uint32{1 << 31}, 1), Values("u8", []uint8{200}, 1), Values("bool", []bool{true, false}, 2))
	require.NoError(t, save(path, SaveOptions{}, entries...))
	c, err := Open(path)
	require.NoError(t, err)
	defer c.Close()
	round := map[string]func(float32) float32{
		"float64": func(x float32) float32 { return x }, "float32": func(x float32) float32 { return x },
		"float16":     func(x float32) float32 { return dtype.ToF16(x).Float32() },
		"bfloat16":    func(x float32) float32 { return dtype.ToBF16(x).Float32() },
		"float8_e4m3": func(x float32) float32 { return dtype.ToE4M3(x).Float32() },
		"float8_e5m2": func(x float32) float32 { return dtype.ToE5M2(x).Float32() },
	}
	for name, f := range round {
		got := floats(t, c, name)
		for i := range x {
			require.Equal(t, f(x[i]), got[i], name)
		}
	}
	for name, want := range map[string]float32{"i64": 1 << 40, "i32": -5, "i16": -300, "u64": 1 << 63, "u32": 1 << 31, "u8": 200, "bool": 1} {
		require.Equal(t, want, floats(t, c, name)[0], name)
	}
	for _, x := range c.Tensors() {
		if size := int64(x.DType().Size()); x.offset%size != 0 {
			require.Fail(t, "unaligned", "%v at %d", x, x.offset)
		}
	}

	// A copy of the opened tensors is the same file, bit for bit.
	again := filepath.Join(t.TempDir(), "y.safetensors")
	require.NoError(t, Save(again, func(yield func(Entry) bool) {
		for _, x := range c.Tensors() {
			if !yield(x.Entry()) {
				return
			}
		}
	}, SaveOptions{}))
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	got, err := os.ReadFile(again)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, got))
}

func layers(n int, value float32) []Entry {
	var out []Entry
	for i := range n {
		out = append(out, Values(fmt.Sprintf("layers.%d", i), []float32{value, float32(i)}, 2))
	}
	return out
}

func requireLayers(t *testing.T, dir string, n int, value float32) {
	t.Helper()
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	require.Len(t, c.Tensors(), n)
	for i := range n {
		require.Equal(t, []float32{value, float32(i)}, floats(t, c, fmt.Sprintf("layers.%d", i)))
	}
}

// TestSaveShards walks a folder through one file, shards, the same number of
// shards again, fewer, and back to one file.
func TestSaveShards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "folder")
	shards := func(stem string, n int) []string {
		out := []string{}
		for i := range n {
			out = append(out, fmt.Sprintf("%s-%05d-of-%05d.safetensors", stem, i+1, n))
		}
		out = append(out, indexName, "config.json")
		slices.Sort(out)
		return out
	}
	require.NoError(t, save(dir, SaveOptions{}, layers(6, 1)...))
	put(t, filepath.Join(dir, "config.json"), []byte("{}"))
	require.Equal(t, []string{"config.json", singleName}, names(t, dir))
	requireLayers(t, dir, 6, 1)
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 17}, layers(6, 2)...))
	require.Equal(t, shards("model", 3), names(t, dir))
	requireLayers(t, dir, 6, 2)
	require.Contains(t, listing(t, dir)[indexName], `"total_size": 48`)
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 16}, layers(6, 3)...))
	require.Equal(t, shards("model-2", 3), names(t, dir))
	requireLayers(t, dir, 6, 3)
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 16}, layers(6, 4)...))
	require.Equal(t, shards("model", 3), names(t, dir))
	requireLayers(t, dir, 6, 4)
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 1}, layers(2, 5)...)) // each tensor is too large
	require.Equal(t, shards("model", 2), names(t, dir))
	requireLayers(t, dir, 2, 5)
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 1 << 20}, layers(7, 6)...))
	require.Equal(t, []string{"config.json", singleName}, names(t, dir))
	requireLayers(t, dir, 7, 6)
	require.NoError(t, save(dir, SaveOptions{}))
	requireLayers(t, dir, 0, 0)
}

// TestSaveOverItself: the tensors may come from the mapped files that are
// replaced.
func TestSaveOverItself(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 16}, layers(6, 1)...))
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close()
	var entries []Entry
	for _, x := range c.Tensors() {
		entries = append(entries, x.Entry())
	}
	require.NoError(t, save(dir, SaveOptions{}, entries...))
	requireLayers(t, dir, 6, 1)
	require.Equal(t, []string{singleName}, names(t, dir))
}

func TestSaveErrors(t *testing.T) {
	ok := Values("ok", []float32{1}, 1)
	bad := errors.New("no data today")
	for _, c := range []struct {
		name    string
		entries []Entry
		want    string
	}{
		{"twice", []Entry{ok, ok}, `tensor "ok": given twice`},
		{"name", []Entry{Values("__metadata__", []float32{1}, 1)}, `tensor "__metadata__": the name must be UTF-8 and not __metadata__`},
		{"not UTF-8", []Entry{Values("\xff", []float32{1}, 1)}, `tensor "\xff": the name must be UTF-8 and not __metadata__`},
		{"dtype", []Entry{{Name: "w", Write: ok.Write}}, `tensor "w": a dtype and a Write function are required (dtype invalid)`},
		{"no data", []Entry{{Name: "w", DType: dtype.Int8}}, `tensor "w": a dtype and a Write function are required (dtype int8)`},
		{"negative", []Entry{Values("w", []float32{1}, -1)}, `tensor "w": shape [-1] has a negative dimension`},
		{"overflow", []Entry{Values("w", []float32{1}, 1<<31, 1<<31, 2)}, `tensor "w": shape [2147483648 2147483648 2] of float32 exceeds 2^63 bytes`},
		{"rank", []Entry{Values("w", []float32{1}, make([]int, 33)...)}, `tensor "w": at most 32 dimensions, got 33`},
		{"too few", []Entry{ok, Values("w", []float32{1}, 3)}, `tensor "w": shape [3] of float32 needs 12 bytes, 4 were written`},
		{"too many", []Entry{ok, Values("w", []float32{1, 2}, 1)}, `tensor "w": 4 bytes more than its shape needs`},
		{"rounding to int", []Entry{Rounded("w", dtype.Int8, []float32{1}, 1)}, `tensor "w": float32 data cannot be rounded to int8`},
		{"data fails", []Entry{ok, {Name: "w", DType: dtype.Int8, Write: func(io.Writer) error { return bad }}}, `tensor "w": no data today`},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, old := range []SaveOptions{{}, {MaxShardBytes: 16}} {
				for _, opt := range []SaveOptions{{}, {MaxShardBytes: 4}} {
					dir := t.TempDir()
					require.NoError(t, save(dir, old, layers(6, 1)...))
					before := listing(t, dir)
					require.EqualError(t, save(dir, opt, c.entries...), "checkpoint: save "+dir+": "+c.want)
					require.Equal(t, before, listing(t, dir))
				}
			}
			path := filepath.Join(t.TempDir(), "x.safetensors")
			require.EqualError(t, save(path, SaveOptions{}, c.entries...), "checkpoint: save "+path+": "+c.want)
			require.Empty(t, names(t, filepath.Dir(path)))
		})
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	require.EqualError(t, save(path, SaveOptions{MaxShardBytes: -1}, ok), "checkpoint: save "+path+": MaxShardBytes must not be negative, it is -1")
	require.EqualError(t, save(path, SaveOptions{MaxShardBytes: 4}, ok, Values("w", []float32{1}, 1)), "checkpoint: save "+path+": tensors exceed MaxShardBytes 4, shards need a folder as path")
	require.ErrorIs(t, save(filepath.Join(path, "y.safetensors"), SaveOptions{}, ok), os.ErrNotExist)
	put(t, path, nil)
	require.Error(t, save(filepath.Join(path, "folder"), SaveOptions{}, ok))
}

// fullDisk fails when more than left bytes are written in all, or on sync or
// close.
type fullDisk struct {
	*os.File
	left              *int
	failSync, failEnd bool
}

var errFull = errors.New("no space left on device")

func (f fullDisk) Write(p []byte) (int, error) {
	if *f.left -= len(p); *f.left < 0 {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, errFull
	}
	return f.File.Write(p)
}

func (f fullDisk) Sync() error {
	if f.failSync {
		return errFull
	}
	return f.File.Sync()
}

func (f fullDisk) Close() error {
	err := f.File.Close()
	if f.failEnd {
		return errFull
	}
	return err
}

// TestSaveOnFullDisk runs out of space at many places; the old checkpoint
// stays, byte for byte, and no temporary is left.
func TestSaveOnFullDisk(t *testing.T) {
	whole := create
	defer func() { create = whole }()
	for _, opt := range []SaveOptions{{}, {MaxShardBytes: 16}} {
		dir := t.TempDir()
		create = whole
		require.NoError(t, save(dir, opt, layers(6, 1)...))
		before := listing(t, dir)
		for space := 0; ; space += 100 {
			left := space
			create = func(path string) (file, error) {
				f, err := os.Create(path)
				return fullDisk{File: f, left: &left, failSync: space == 100, failEnd: space == 200}, err
			}
			err := save(dir, opt, layers(6, 2)...)
			if err == nil {
				require.Greater(t, space, 400)
				break
			}
			require.ErrorIs(t, err, errFull)
			require.Equal(t, before, listing(t, dir), space)
		}
		requireLayers(t, dir, 6, 2)
	}
}

// TestStaleTemporaries: what a killed save left is removed by the next one,
// and nothing else.
func TestStaleTemporaries(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "model.safetensors.tmp-0123456789abcdef"), []byte("cut off"))
	put(t, filepath.Join(dir, "model.safetensors.tmp-mine"), nil)
	put(t, filepath.Join(dir, "other.tmp-0123456789abcdef"), nil)
	require.NoError(t, save(filepath.Join(dir, "x.safetensors"), SaveOptions{}, layers(1, 1)...))
	require.Len(t, names(t, dir), 4)
	require.NoError(t, save(dir, SaveOptions{}, layers(1, 1)...))
	require.Equal(t, []string{"model.safetensors", "model.safetensors.tmp-mine", "other.tmp-0123456789abcdef", "x.safetensors"}, names(t, dir))
}

// TestPythonReads opens what Save writes with the safetensors package.
func TestPythonReads(t *testing.T) {
	const script = `
import sys, json, os
from safetensors import safe_open
root = sys.argv[1]
files = sorted(set(json.load(open(root + "/model.safetensors.index.json"))["weight_map"].values()))
for f in files:
    with safe_open(os.path.join(root, f), "np") as s:
        assert s.metadata()["format"] == "pt"
        for k in s.keys():
            print(k, s.get_slice(k).get_dtype(), s.get_tensor(k).tolist())
`
	if err := exec.Command("python3", "-c", "import safetensors, numpy").Run(); err != nil {
		t.Skip("python3 with safetensors and numpy is not installed")
	}
	dir := t.TempDir()
	require.NoError(t, save(dir, SaveOptions{MaxShardBytes: 8},
		Values("f", []float32{1.5, -2}, 2, 1), Rounded("h", dtype.Float16, []float32{0.1}, 1), Values("i", []int64{1 << 40})))
	out, err := exec.Command("python3", "-c", script, dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "f F32 [[1.5], [-2.0]]\nh F16 [0.0999755859375]\ni I64 1099511627776\n", string(out))
}

// TestSavingWhatIsGone: values in a file that was closed, and functions that are
// missing, are errors, and the old checkpoint stays.
func TestSavingWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, save(dir, SaveOptions{}, layers(2, 1)...))
	other := filepath.Join(t.TempDir(), "x.safetensors")
	require.NoError(t, save(other, SaveOptions{}, Values("a", make([]float32, 1<<20), 1<<20)))
	ck, err := Open(other)
	require.NoError(t, err)
	a, _ := ck.Lookup("a")
	w, ok := View[float32](a)
	if !ok {
		t.Skip("files are not mapped here")
	}
	require.NoError(t, ck.Close())
	for _, e := range []Entry{Values("a", w, 1<<20), Rounded("a", dtype.BFloat16, w, 1<<20)} {
		require.ErrorContains(t, save(dir, SaveOptions{}, e), `tensor "a": the file was closed, shortened or failed while it was mapped`)
	}
	gone := func(yield func(Entry) bool) { yield(Values("a", append([]float32(nil), w...), 1<<20)) }
	require.ErrorContains(t, Save(dir, gone, SaveOptions{}), "the file was closed, shortened or failed while it was mapped")
	require.EqualError(t, Save(dir, nil, SaveOptions{}), "checkpoint: save "+dir+": the tensors are missing (nil)")
	require.ErrorContains(t, WriteDir(dir, nil), "the function that fills it is missing (nil)")
	_, err = OpenReaderAt(nil, 8)
	require.EqualError(t, err, "checkpoint: the reader is missing (nil)")
	requireLayers(t, dir, 2, 1)
}
