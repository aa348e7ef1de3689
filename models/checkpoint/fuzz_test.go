// Fuzz targets: whatever the bytes, an error or a checkpoint that can be read,
// and no more memory than the file justifies.

package checkpoint

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// readAll reads every tensor whole and by its first row; no size can exceed
// the file's by more than the widening.
func readAll(t *testing.T, file []byte) {
	c, err := boundedOpen(t, file)
	if err != nil {
		return
	}
	for _, x := range c.Tensors() {
		require.LessOrEqual(t, x.Bytes(), int64(len(file)))
		require.LessOrEqual(t, x.Len(), len(file)*4) // 256 elements take at least 84 bytes
		raw := make([]byte, x.Bytes())
		require.NoError(t, x.Raw(raw))
		if err := x.Float32(make([]float32, x.Len())); err != nil {
			require.ErrorContains(t, err, "no exact float32 value")
		}
		if x.Rows() > 0 && x.Coding() == Plain {
			require.NoError(t, x.RawRows(make([]byte, x.Bytes()/int64(x.Rows())), 0, 1))
		}
		if _, err := c.FP8(x.Name()); err != nil {
			require.NotEmpty(t, err.Error())
		}
	}
}

func FuzzSafetensors(f *testing.F) {
	file, err := os.ReadFile("testdata/types.safetensors")
	require.NoError(f, err)
	f.Add(file)
	for _, c := range corrupt {
		f.Add(raw(c.header, make([]byte, c.data)))
	}
	f.Add(raw(`{"w":{"dtype":"F8_E4M3","shape":[1,2],"data_offsets":[0,2]},"w_scale":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}}`, []byte{1, 2, 0x80, 0x3F}))
	f.Fuzz(func(t *testing.T, file []byte) { readAll(t, file) })
}

func FuzzIndex(f *testing.F) {
	for _, s := range []string{
		`{"metadata":{"total_size":8},"weight_map":{"a":"m1.safetensors","b":"m2.safetensors"}}`,
		`{"weight_map":{"a":"../m1.safetensors"}}`,
		`{"weight_map":{"a":"sub/m1.safetensors","a":"m1.safetensors"}}`,
		`{"metadata":[[{}]],"weight_map":{}}`,
		`{"weight_map":{"a":"m2.safetensors"}} `,
	} {
		f.Add([]byte(s))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		idx, err := parseIndex(text)
		if err != nil {
			return
		}
		for _, name := range idx.shards {
			rel, err := filepath.Rel(dir, filepath.Join(dir, name))
			require.NoError(t, err)
			require.True(t, filepath.IsLocal(rel), name)
		}
		own := t.TempDir()
		put(t, filepath.Join(own, "m1.safetensors"), shard("a"))
		put(t, filepath.Join(own, "m2.safetensors"), shard("b"))
		put(t, filepath.Join(own, indexName), text)
		c, err := Open(own)
		if err == nil {
			require.LessOrEqual(t, len(c.Tensors()), 2)
			require.NoError(t, c.Close())
		}
	})
}

func FuzzGGUF(f *testing.F) {
	file, err := os.ReadFile("testdata/blocks.gguf")
	require.NoError(f, err)
	f.Add(file)
	f.Add(begin(3, 0, 0).Bytes())
	f.Add(begin(2, 2, 1).str("general.alignment").u32(ggufUint32).u32(8).tensor("a", 0, 0, 1).tensor("b", 8, 8, 32).data(8, make([]byte, 42)...))
	f.Add(begin(3, 1, 2).str("s").u32(ggufString).str("x").str("n").u32(ggufArray).u32(ggufArray).u64(1).u32(ggufString).u64(1).str("y").tensor("w", 14, 0, 256, 2).data(32, make([]byte, 420)...))
	f.Fuzz(func(t *testing.T, file []byte) { readAll(t, file) })
}
