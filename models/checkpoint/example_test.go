// The package in use, as its documentation shows it.

package checkpoint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models/checkpoint"
)

// Write two tensors, one rounded to bfloat16, and read a row of it again.
func Example() {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")
	err = checkpoint.Save(path, slices.Values([]checkpoint.Entry{
		checkpoint.Rounded("embed.weight", dtype.BFloat16, []float32{0, 1, 2, 3.14159}, 2, 2),
		checkpoint.Values("norm.weight", []float32{1, 1}, 2),
	}), checkpoint.SaveOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := checkpoint.Open(dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	for _, t := range c.Tensors() {
		fmt.Println(t)
	}
	embed, _ := c.Lookup("embed.weight")
	row := make([]float32, 2)
	if err := embed.Float32Rows(row, 1, 1); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(row)
	// Output:
	// norm.weight F32 [2]
	// embed.weight BF16 [2 2]
	// [2 3.140625]
}
