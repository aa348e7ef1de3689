// What Save takes: named tensors that write their own bytes.

package checkpoint

import (
	"fmt"
	"io"
	"slices"

	"github.com/seafan/seafan/graph/dtype"
)

// Entry is a tensor to save. Write is called once and must write exactly the
// bytes of the shape, row-major and little-endian.
type Entry struct {
	Name  string
	DType dtype.DType
	Shape []int
	Write func(w io.Writer) error

	bytes int64
}

// Values is an entry that stores data as it is.
func Values[T Element](name string, data []T, shape ...int) Entry {
	return Entry{Name: name, DType: DTypeOf[T](), Shape: shape, Write: func(w io.Writer) error {
		return writeElements(w, data)
	}}
}

// Rounded is an entry that stores float32 data as the float type to, rounded
// to nearest even (8-bit types saturate) while it is written.
func Rounded(name string, to dtype.DType, data []float32, shape ...int) Entry {
	e := Entry{Name: name, DType: to, Shape: shape}
	switch to {
	case dtype.Float64:
		e.Write = converting(data, func(dst []float64, src []float32) int {
			for i, x := range src {
				dst[i] = float64(x)
			}
			return len(src)
		})
	case dtype.Float32:
		e.Write = func(w io.Writer) error { return writeElements(w, data) }
	case dtype.Float16:
		e.Write = converting(data, dtype.FromFloat32[dtype.F16])
	case dtype.BFloat16:
		e.Write = converting(data, dtype.FromFloat32[dtype.BF16])
	case dtype.Float8E4M3:
		e.Write = converting(data, dtype.FromFloat32[dtype.E4M3])
	case dtype.Float8E5M2:
		e.Write = converting(data, dtype.FromFloat32[dtype.E5M2])
	default:
		e.Write = func(io.Writer) error { return fmt.Errorf("float32 data cannot be rounded to %s", to) }
	}
	return e
}

// Entry is the tensor itself, to be copied bit for bit into another
// checkpoint. A block coding has no safetensors form.
func (t *Tensor) Entry() Entry {
	return Entry{Name: t.name, DType: t.dtype, Shape: t.Shape(), Write: func(w io.Writer) error {
		_, err := t.WriteTo(w)
		return err
	}}
}

// converting writes data in pieces of the target type.
func converting[T Element](data []float32, convert func(dst []T, src []float32) int) func(io.Writer) error {
	return func(w io.Writer) error {
		buf := make([]T, min(len(data), 1<<15))
		for rest := data; len(rest) > 0; {
			n := convert(buf, rest[:min(len(rest), len(buf))])
			if err := writeElements(w, buf[:n]); err != nil {
				return err
			}
			rest = rest[n:]
		}
		return nil
	}
}

func writeElements[T Element](w io.Writer, data []T) error {
	raw := bytesOf(data)
	if size := DTypeOf[T]().Size(); !littleEndian && size > 1 {
		raw = slices.Clone(raw)
		swapBytes(raw, size)
	}
	_, err := w.Write(raw)
	return err
}
