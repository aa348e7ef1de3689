package native

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// panelsOf are the panels of a weight; none where this CPU has no use for them.
func panelsOf(c Coding, w []byte, n, k int) []byte {
	p := make([]byte, c.Panels(n, k))
	if len(p) > 0 {
		FillPanels(p, w, n, k)
	}
	return p
}

func TestPanelsHoldTheWordsOfTheirDefinition(t *testing.T) {
	const n, k = 100, 96
	r := rand.New(rand.NewPCG(1, 9))
	w := randomCoded(r, CodedBF16, n*k)
	p := panelsOf(CodedBF16, w, n, k)
	if gemmKernel < avx512Kernel {
		require.Empty(t, p)
		t.Skip("this CPU has no use for panels")
	}
	require.Len(t, p, 96*k*2)
	at := func(row, j int) uint16 { return binary.LittleEndian.Uint16(w[(row*k+j)*2:]) }
	for row := range 96 {
		for j := 0; j < k; j += 2 {
			word := binary.LittleEndian.Uint32(p[row/32*32*k*2+(j/2*32+row%32)*4:])
			require.Equal(t, uint32(at(row, j))<<16|uint32(at(row, j+1)), word, "row %d, k %d", row, j)
		}
	}
	for _, c := range []Coding{CodedQ8_0, CodedQ4_0, CodedQ4_1} {
		require.Zero(t, c.Panels(n, k))
	}
	require.Zero(t, CodedBF16.Panels(n, 40))
}

// TestPanelsGiveTheBitsOfTheWeight: another order in memory changes no result,
// and the weight is not read where it has panels.
func TestPanelsGiveTheBitsOfTheWeight(t *testing.T) {
	defer SetWorkers(0)
	defer func(was bool) { panelsThroughL2 = was }(panelsThroughL2)
	r := rand.New(rand.NewPCG(1, 8))
	for _, c := range []Coding{CodedBF16, CodedF16} {
		for _, s := range [][2]int{{32, 32}, {64, 256}, {31, 64}, {97, 288}, {130, 544}, {560, 576}, {64, 1536}} {
			n, k := s[0], s[1]
			w := randomCoded(r, c, n*k)
			wide := make([]float32, n*k)
			c.widen(wide, w)
			for _, m := range []int{1, 2, 3, 4, 5, 31, 60} {
				x, bias := normals[float32](r, m*k), normals[float32](r, n)
				for _, b := range [][]float32{nil, bias} {
					want := make([]float32, m*n)
					Linear(want, x, wide, b, m, n, k)
					for _, workers := range []int{1, 2, 7} {
						SetWorkers(workers)
						panelsThroughL2 = workers == 2
						got := make([]float32, m*n+1)
						fill(got, float32(math.NaN()))
						got[m*n] = 7 // the guard
						p := CodedLinear{Y: got, W: slices.Clone(w), Panels: panelsOf(c, w, n, k), Bias: b, Coding: c, N: n}
						for i := range p.Panels {
							p.W[i] = 0x7f // of a NaN
						}
						LinearsCoded(x, m, k, []CodedLinear{p})
						require.Equal(t, append(want[:m*n:m*n], 7), got, "%s m %d n %d k %d", c, m, n, k)
					}
				}
			}
		}
	}
}

func TestPanelsOfOddNumbers(t *testing.T) {
	const n, k = 64, 320
	oddNumbers(t, n, k, func(y, x []float32, w []byte, c Coding, m int) {
		LinearsCoded(x, m, k, []CodedLinear{{Y: y, W: w, Panels: panelsOf(c, w, n, k), Coding: c, N: n}})
	})
}

// BenchmarkPanels is one row or four on panels of 256 MB, the weights of many
// layers of 1536x576.
func BenchmarkPanels(b *testing.B) {
	const n, k, layers = 1536, 576, 150
	for _, c := range []Coding{CodedBF16, CodedF16} {
		if c.Panels(n, k) == 0 {
			b.Skip("this CPU has no use for panels")
		}
		w := make([]byte, c.Bytes(n*k))
		panels := make([]byte, layers*len(w))
		for l := range layers {
			FillPanels(panels[l*len(w):][:len(w)], w, n, k)
		}
		for _, m := range []int{1, 4} {
			x, y := make([]float32, m*k), make([]float32, m*n)
			b.Run(fmt.Sprintf("%s/m%d", c, m), func(b *testing.B) {
				b.SetBytes(int64(len(panels)))
				for b.Loop() {
					for l := range layers {
						LinearsCoded(x, m, k, []CodedLinear{{Y: y, W: w, Panels: panels[l*len(w):][:len(w)], Coding: c, N: n}})
					}
				}
			})
		}
	}
}

// TestAfterIsWhereALaneBegins: what a helper fetches begins with a panel of its
// lane, where there is enough of it, and the caller fetches nothing.
func TestAfterIsWhereALaneBegins(t *testing.T) {
	const k, panel = 512, panelCols * 512 * 2
	mem := make([]byte, 9*panel)
	a := After{Panels: mem, K: k}
	require.Nil(t, a.begin(0, 2))
	require.Same(t, &mem[4*panel], a.begin(1, 2))
	require.Same(t, &mem[6*panel], a.begin(2, 3))
	require.Same(t, &mem[7*panel], a.begin(7, 9))
	require.Nil(t, a.begin(8, 9), "less than is fetched")
	require.Nil(t, (&After{}).begin(1, 2))
}
