package native

// This file widens weights in MXFP4. Source: Open Compute Project, OCP Microscaling
// Formats (MX) Specification, version 1.0 (2023).

// FP4Rows are rows of 4-bit codes in blocks of 32 along a row: block b has its scale
// at Scales[b*ScaleStep], and 16 bytes of two codes each from Codes[b*CodeStep] on.
type FP4Rows struct {
	Codes, Scales       []byte
	CodeStep, ScaleStep int

	Step   int  // every Step-th row is read, beginning with the first
	Halves bool // codes i and i+16 of a block share a byte, not 2i and 2i+1; the earlier is the lower half
}

// FP4Values are 16-bit numbers by scale and code.
type FP4Values [256][16]uint16

// WidenFP4 fills y [rows,K], the memory of 16-bit numbers, with those of the codes;
// K is a multiple of 32.
func WidenFP4(y []byte, x FP4Rows, values *FP4Values, rows, k int) {
	if k == 0 {
		return
	}
	per := max(unitElements/k, 1)
	widenFP4.launch(ceilDiv(rows, per), fp4Args{storedWords(y), x, values, rows, k / 32, per})
}

type fp4Args struct {
	y                 []uint16
	x                 FP4Rows
	values            *FP4Values
	rows, blocks, per int
}

var widenFP4 = newKernel(widenFP4Unit)

func widenFP4Unit(a *fp4Args, unit int) {
	x := &a.x
	for row := unit * a.per; row < min((unit+1)*a.per, a.rows); row++ {
		for j := range a.blocks {
			b := row*x.Step*a.blocks + j
			y := (*[32]uint16)(a.y[(row*a.blocks+j)*32:])
			codes := (*[16]byte)(x.Codes[b*x.CodeStep:])
			values := &a.values[x.Scales[b*x.ScaleStep]]
			if x.Halves {
				for i, c := range codes {
					y[i], y[i+16] = values[c&15], values[c>>4]
				}
				continue
			}
			for i, c := range codes {
				y[2*i], y[2*i+1] = values[c&15], values[c>>4]
			}
		}
	}
}
