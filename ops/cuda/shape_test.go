//go:build gpu

package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops/native"
)

// llamaShape runs a decoder of the Llama-3-8B shape with random weights as a list of launches, captured and replayed.
type llamaShape struct {
	b                    *bench
	layers               int
	qkv, o, gateUp, down []Pointer
	norm, embed, head    Pointer
	cos, sin             Pointer
	k, v                 []Pointer
	scratch, flags       Pointer
	poolTokens           int
}

const (
	shapeD, shapeF, shapeHq, shapeHk, shapeHead, shapeV = 4096, 14336, 32, 8, 128, 128256
)

func newLlamaShape(b *bench, layers, poolTokens int) *llamaShape {
	s := &llamaShape{b: b, layers: layers, poolTokens: poolTokens}
	w := func(n, k int) Pointer { return b.random(BF16, n*k, 0.02) }
	for range layers {
		s.qkv, s.o = append(s.qkv, w((shapeHq+2*shapeHk)*shapeHead, shapeD)), append(s.o, w(shapeD, shapeHq*shapeHead))
		s.gateUp, s.down = append(s.gateUp, w(2*shapeF, shapeD)), append(s.down, w(shapeD, shapeF))
		s.k, s.v = append(s.k, b.random(BF16, poolTokens*shapeHk*shapeHead, 1)), append(s.v, b.random(BF16, poolTokens*shapeHk*shapeHead, 1))
	}
	s.norm, s.embed, s.head = b.random(BF16, shapeD, 1), w(shapeV, shapeD), w(shapeV, shapeD)
	s.cos, s.sin = b.random(F32, 16384*shapeHead/2, 0.5), b.random(F32, 16384*shapeHead/2, 0.5)
	s.scratch = b.alloc(64 << 20).Pointer
	s.flags = b.alloc(4096).Pointer
	require.NoError(b.t, b.d.Main().Fill(s.flags, 0, 4096))
	return s
}

// step is the forward pass of T tokens; attention is the launch of one layer. Logits are taken of the last `rows` tokens.
func (s *llamaShape) step(T, rows int, buf func(string, int) Pointer, positions, slots, ids Pointer, attention func(layer int, q, out Pointer) interface{ Launch(Queue) error }) []interface{ Launch(Queue) error } {
	width := (shapeHq + 2*shapeHk) * shapeHead
	x, h, qkv, q, o, act, logits := buf("x", T*shapeD), buf("h", T*shapeD), buf("qkv", T*width), buf("q", T*shapeHq*shapeHead), buf("o", T*shapeD), buf("act", T*shapeF), buf("logits", 2*rows*shapeV)
	gemm := func(m int, y, x, w Pointer, n, k int) Gemm {
		return Gemm{Type: BF16, M: m, N: n, K: k, Y: y, X: x, W: w}
	}
	list := []interface{ Launch(Queue) error }{Embedding{Type: BF16, T: T, D: shapeD, Vocabulary: shapeV, Scale: 1, Y: x, Table: s.embed, IDs: ids}}
	for l := range s.layers {
		out, gate, down := gemm(T, x, o, s.o[l], shapeD, shapeD), gemm(T, act, h, s.gateUp[l], shapeF, shapeD), gemm(T, x, act, s.down[l], shapeD, shapeF)
		out.Residual, down.Residual, gate.SwiGLU = x, x, true
		norm := RMSNorm{Type: BF16, Rows: T, D: shapeD, Eps: 1e-5, Y: h, X: x, W: s.norm}
		list = append(list, norm, gemm(T, qkv, h, s.qkv[l], width, shapeD),
			Rotary{Type: BF16, T: T, Hq: shapeHq, Hk: shapeHk, D: shapeHead, Rot: shapeHead, MaxPositions: 16384, Q: qkv, K: qkv.At(shapeHq * shapeHead * 2), QOut: q, Cos: s.cos, Sin: s.sin, Positions: positions,
				V: qkv.At((shapeHq + shapeHk) * shapeHead * 2), KPool: s.k[l], VPool: s.v[l], Slots: slots, QStride: int64(width), KStride: int64(width), VStride: int64(width)},
			attention(l, q, o), out, norm, gate, down)
	}
	last := gemm(rows, logits, h.At(int64((T-rows)*shapeD*2)), s.head, shapeV, shapeD)
	last.F32Out = true
	return append(list, RMSNorm{Type: BF16, Rows: T, D: shapeD, Eps: 1e-5, Y: h, X: x, W: s.norm}, last)
}

func (s *llamaShape) time(list []interface{ Launch(Queue) error }) float64 {
	return clock(s.b.t, s.b.d, 1, func(q Queue, _ int) error {
		for _, l := range list {
			if err := l.Launch(q); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestDeviceSpeedLlamaShape(t *testing.T) {
	speed(t)
	b := newBench(t)
	const context, page = 1024, 16
	s := newLlamaShape(b, 32, 64*(context+page))
	buffer := func(_ string, n int) Pointer { return b.alloc(2 * n).Pointer }
	for _, B := range []int{1, 16, 64} {
		lengths, positions, slots, ids := make([]int, B), make([]int, B), make([]int, B), make([]int, B)
		indptr, last := []int{0}, make([]int, B)
		var indices []int
		for i := range B {
			lengths[i], positions[i], ids[i] = context, context-1, i
			for range context / page {
				indices = append(indices, len(indices))
			}
			indptr, last[i] = append(indptr, len(indices)), page
			slots[i] = len(indices)*page - 1
		}
		pages := &Pages{PageSize: page, Indptr: b.ints(indptr...), Indices: b.ints(indices...), LastPageLen: b.ints(last...)}
		token := b.out(F32, B)
		sampling := Sampling{Type: F32, B: B, V: shapeV, Token: token, Draws: b.draws(B, native.Draw{Penalty: 1})}
		logits := Pointer{}
		list := s.step(B, B, func(name string, n int) Pointer {
			p := buffer(name, n)
			if name == "logits" {
				logits = p
			}
			return p
		}, b.ints(positions...), b.ints(slots...), b.ints(ids...), func(l int, q, out Pointer) interface{ Launch(Queue) error } {
			return AttentionDecode{Type: BF16, B: B, Hq: shapeHq, Hk: shapeHk, D: shapeHead, Q: q, K: s.k[l], V: s.v[l], Out: out, Pages: pages, MaxLength: context, Window: -1, Scratch: s.scratch.At(16 << 20), Ticket: s.flags}
		})
		sampling.Logits = logits
		us := s.time(append(list, sampling))
		bytes := 2*float64(s.layers)*float64(shapeD*(shapeHq+2*shapeHk)*shapeHead+shapeD*shapeD+3*shapeD*shapeF) + 2*shapeV*shapeD + 4*float64(s.layers*B*context*shapeHk*shapeHead)
		row(t, "llama3-8b decode", fmt.Sprintf("B%d context %d: %.0f tok/s", B, context, float64(B)*1e6/us), us, 0, bytes)
	}
	const T = 2048
	positions, slots, ids := make([]int, T), make([]int, T), make([]int, T)
	for i := range T {
		positions[i], slots[i], ids[i] = i, i, i
	}
	var indices []int
	for i := range T / page {
		indices = append(indices, i)
	}
	r := &Ragged{Pages: Pages{PageSize: page, Indptr: b.ints(0, T/page), Indices: b.ints(indices...), LastPageLen: b.ints(page)}, Tokens: T, PoolTokens: s.poolTokens, QoIndptr: b.ints(0, T)}
	a := AttentionPrefill{Type: BF16, Hq: shapeHq, Hk: shapeHk, D: shapeHead, Causal: true, Window: -1, Ragged: r}
	batch, index, err := WorkMap([]int32{0, T}, a.TileRows(b.d.Target()))
	require.NoError(t, err)
	r.TileBatch, r.TileIndex, r.Tiles = b.ints(wide(batch)...), b.ints(wide(index)...), len(batch)
	us := s.time(s.step(T, 1, buffer, b.ints(positions...), b.ints(slots...), b.ints(ids...), func(l int, q, out Pointer) interface{ Launch(Queue) error } {
		c := a
		c.Q, c.K, c.V, c.Out = q, s.k[l], s.v[l], out
		return c
	}))
	row(t, "llama3-8b prefill", fmt.Sprintf("T%d", T), us, 2*T*float64(s.layers)*float64(shapeD*(shapeHq+2*shapeHk)*shapeHead+shapeD*shapeD+3*shapeD*shapeF), 0)
}
