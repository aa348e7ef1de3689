// Tests of folders: indexes, shards, and the golden models.

package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shard is a file with one F32 tensor of one element for each name.
func shard(names ...string) []byte {
	head, data := "{", []byte{}
	for i, n := range names {
		if i > 0 {
			head += ","
		}
		head += fmt.Sprintf(`%q:{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}`, n, 4*i, 4*i+4)
		data = append(data, 0, 0, byte(0x80+i), 0x3F)
	}
	return raw(head+"}", data)
}

func folder(t *testing.T, index string, files map[string][]byte) string {
	t.Helper()
	dir := t.TempDir()
	if index != "" {
		put(t, filepath.Join(dir, indexName), []byte(index))
	}
	for name, f := range files {
		put(t, filepath.Join(dir, name), f)
	}
	return dir
}

func TestC02_Shards(t *testing.T) {
	index := `{"metadata":{"total_size":12,"deep":[{"a":[1]}]},"weight_map":{"a":"m1.safetensors","b":"m2.safetensors","c":"m3.safetensors"}}`
	all := map[string][]byte{"m1.safetensors": shard("a"), "m2.safetensors": shard("b"), "m3.safetensors": shard("c")}
	with := func(name string, f []byte) map[string][]byte {
		m := map[string][]byte{}
		for k, v := range all {
			m[k] = v
		}
		m[name] = f
		if f == nil {
			delete(m, name)
		}
		return m
	}
	t.Run("sound, with a stray file", func(t *testing.T) {
		dir := folder(t, index, with("model-00009-of-00009.safetensors", []byte("stray, and no safetensors")))
		for _, path := range []string{dir, filepath.Join(dir, indexName)} {
			c, err := Open(path)
			require.NoError(t, err)
			require.Len(t, c.Tensors(), 3)
			require.Equal(t, dir, c.Path())
			require.Equal(t, []float32{1}, floats(t, c, "b"))
			require.NoError(t, c.Close())
		}
	})
	for _, c := range []struct {
		name  string
		index string
		files map[string][]byte
		want  string
	}{
		{"missing shard", index, with("m2.safetensors", nil), `it names 3 shards, missing: m2.safetensors`},
		{"missing shard before a corrupt one", index, map[string][]byte{"m1.safetensors": []byte("junk")}, `it names 3 shards, missing: m2.safetensors, m3.safetensors`},
		{"tensor in another shard", `{"weight_map":{"a":"m2.safetensors","b":"m1.safetensors","c":"m3.safetensors"}}`, all, `tensor "a": the index puts it in m2.safetensors, it is in m1.safetensors`},
		{"tensor in no shard", `{"weight_map":{"a":"m1.safetensors","b":"m2.safetensors","c":"m3.safetensors","d":"m3.safetensors"}}`, all, `tensor "d": m3.safetensors does not hold it, nor does another shard`},
		{"tensor not in the index", index, with("m3.safetensors", shard("c", "d")), `tensor "d": m3.safetensors holds it, the index does not list it`},
		{"tensor in two shards", index, with("m3.safetensors", shard("c", "a")), `tensor "a": it is also in DIR/m1.safetensors`},
		{"corrupt shard", index, with("m3.safetensors", shard("c")[:30]), `the header has 54 bytes, the file only 22 after the length field`},
		{"outside the folder", `{"weight_map":{"a":"../m1.safetensors"}}`, all, `weight_map: tensor "a": file name "../m1.safetensors": a name inside the folder of the index is required`},
		{"absolute", `{"weight_map":{"a":"/etc/passwd"}}`, all, `weight_map: tensor "a": file name "/etc/passwd": a name inside the folder of the index is required`},
		{"outside by way of a folder", `{"weight_map":{"a":"x/../../m1.safetensors"}}`, all, `weight_map: tensor "a": file name "x/../../m1.safetensors": a name inside the folder of the index is required`},
		{"backslash", `{"weight_map":{"a":"..\\m1.safetensors"}}`, all, `weight_map: tensor "a": file name "..\\m1.safetensors": a name inside the folder of the index is required`},
		{"empty name", `{"weight_map":{"a":""}}`, all, `weight_map: tensor "a": file name "": a name inside the folder of the index is required`},
		{"duplicate", `{"weight_map":{"a":"m1.safetensors","a":"m1.safetensors"}}`, all, `weight_map: duplicate key "a"`},
		{"no map", `{"metadata":{}}`, all, `a weight_map with tensors is required, there is none`},
		{"empty map", `{"weight_map":{}}`, all, `a weight_map with tensors is required, there is none`},
		{"two maps", `{"weight_map":{"a":"m1.safetensors"},"weight_map":{}}`, all, `duplicate key "weight_map"`},
		{"map of numbers", `{"weight_map":{"a":1}}`, all, `weight_map: tensor "a": JSON at byte 20: a string expected, got 1`},
		{"no object", `[1]`, all, `JSON at byte 1: { expected, got [`},
		{"no JSON", `weights`, all, `JSON at byte 0: invalid character 'w' looking for beginning of value`},
		{"cut", `{"weight_map":{"a":"m1.safetensors"}`, all, `JSON at byte 36: unexpected EOF`},
		{"more", `{"weight_map":{"a":"m1.safetensors"}}x`, all, `JSON at byte 37: something follows the object`},
		{"folder as shard", `{"weight_map":{"a":"."}}`, all, `it names 1 shards, missing: .`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, c.index, c.files)
			_, err := Open(dir)
			require.Error(t, err)
			var fe *FormatError
			require.True(t, errors.As(err, &fe))
			text := fe.Problem
			if fe.Tensor != "" {
				text = fmt.Sprintf("tensor %q: %s", fe.Tensor, fe.Problem)
			}
			require.Equal(t, expandDir(c.want, dir), text)
			require.Equal(t, dir, filepath.Dir(fe.Path))
		})
	}
}

func expandDir(s, dir string) string {
	return strings.ReplaceAll(s, "DIR/", dir+string(filepath.Separator))
}

func TestFolderErrors(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "absent"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Open(dir)
	require.EqualError(t, err, "checkpoint: "+dir+": a folder holds model.safetensors, model.safetensors.index.json or one .gguf file, this one none: file does not exist")
	// One file wins over an index, as in transformers.
	put(t, filepath.Join(dir, singleName), shard("x"))
	put(t, filepath.Join(dir, indexName), []byte("not read"))
	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, []float32{1}, floats(t, c, "x"))
	require.NoError(t, c.Close())
}

// TestGoldenModels reads every tensor of each golden model; their bytes sum to
// what the index says, where there is one.
func TestGoldenModels(t *testing.T) {
	root := "../testdata/golden"
	list, err := os.ReadDir(root)
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, d := range list {
		t.Run(d.Name(), func(t *testing.T) {
			dir := filepath.Join(root, d.Name())
			c, err := Open(dir)
			require.NoError(t, err)
			defer c.Close()
			require.Equal(t, "pt", c.Metadata()["format"])
			total := int64(0)
			for _, x := range c.Tensors() {
				total += x.Bytes()
				for _, v := range floats(t, c, x.Name()) {
					require.False(t, v != v)
				}
			}
			text, err := os.ReadFile(filepath.Join(dir, indexName))
			if err != nil {
				return
			}
			var idx struct {
				Metadata struct {
					TotalSize int64 `json:"total_size"`
				}
			}
			require.NoError(t, json.Unmarshal(text, &idx))
			require.Equal(t, idx.Metadata.TotalSize, total)
		})
	}
}
