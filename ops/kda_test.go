package ops_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/graph"
	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/ops"
	"github.com/seafan/seafan/ops/optest"
)

// runKDA builds the core over [T,...] packed at cu and runs it.
func runKDA(t *testing.T, feeds graph.Feeds, tokens, h, k, v int, o ops.KDAOptions, cu, s0 bool) ([][]float64, error) {
	t.Helper()
	b := graph.New(graph.Float(dtype.Float64))
	lead := []int{1, tokens}
	if cu {
		lead = []int{tokens}
		o.Cu = b.Input("cu", dtype.Int32, len(feeds["cu"].([]int32)))
	}
	of := func(name string, dims ...int) *graph.Node {
		return b.Input(name, b.Float(), append(append([]int(nil), lead...), dims...)...)
	}
	if s0 {
		o.S0 = b.Input("s0", b.Float(), 1, h, k, v)
	}
	out, state := ops.KDA(of("q", h, k), of("k", h, k), of("v", h, v), of("g", h, k), of("beta", h), o)
	require.NoError(t, b.Err())
	p, err := b.Plan(out, state)
	require.NoError(t, err)
	run, err := p.Native(graph.Poison())
	require.NoError(t, err)
	if err := run.Do(context.Background(), feeds); err != nil {
		return nil, err
	}
	var res [][]float64
	for _, n := range p.Outputs {
		x, err := run.Value(n)
		require.NoError(t, err)
		res = append(res, append([]float64(nil), graph.Data[float64](x)...))
	}
	return res, nil
}

// kdaFeeds are tokens of one sequence with H 2, K 16, V 24.
func kdaFeeds(tokens int) graph.Feeds {
	q, k := optest.Normals("q", tokens*32, 1), optest.Normals("k", tokens*32, 1)
	g, beta := optest.Normals("g", tokens*32, 1), optest.Normals("beta", tokens*2, 1)
	for i, x := range g {
		g[i] = -math.Exp(x - 3)
	}
	for i, x := range beta {
		beta[i] = optest.Sigmoid(x)
	}
	return graph.Feeds{"q": optest.L2Norm(q, 16, 1e-6), "k": optest.L2Norm(k, 16, 1e-6), "v": optest.Normals("v", tokens*48, 1), "g": g, "beta": beta}
}

// cut takes tokens [from,to) of feeds.
func cut(f graph.Feeds, from, to int) graph.Feeds {
	c := graph.Feeds{}
	for name, width := range map[string]int{"q": 32, "k": 32, "v": 48, "g": 32, "beta": 2} {
		c[name] = f[name].([]float64)[from*width : to*width]
	}
	return c
}

// TestK04_SplitEqualsWhole cuts a sequence in three and hands the state on, in
// both forms, and ends with tokens one at a time.
func TestK04_SplitEqualsWhole(t *testing.T) {
	const tokens = 130
	all := kdaFeeds(tokens)
	whole, err := runKDA(t, all, tokens, 2, 16, 24, ops.KDAOptions{}, false, false)
	require.NoError(t, err)
	for _, recurrent := range []bool{false, true} {
		var o []float64
		state := make([]float64, 2*16*24)
		for _, part := range [][2]int{{0, 1}, {1, 70}, {70, 128}, {128, 129}, {129, 130}} {
			f := cut(all, part[0], part[1])
			f["s0"] = state
			res, err := runKDA(t, f, part[1]-part[0], 2, 16, 24, ops.KDAOptions{Recurrent: recurrent}, false, true)
			require.NoError(t, err)
			o, state = append(o, res[0]...), res[1]
		}
		require.InDeltaSlice(t, whole[0], o, 1e-13)
		require.InDeltaSlice(t, whole[1], state, 1e-13)
	}
	// What follows a prefix does not change a bit of it.
	for _, n := range []int{1, 64, 65, 100} {
		res, err := runKDA(t, cut(all, 0, n), n, 2, 16, 24, ops.KDAOptions{}, false, false)
		require.NoError(t, err)
		require.Equal(t, whole[0][:n*48], res[0])
	}
}

// TestKDARefusesAtRunTime: what only the values show is an error with its place.
func TestKDARefusesAtRunTime(t *testing.T) {
	for _, bad := range []float64{0.5, math.NaN(), math.Inf(-1), math.Inf(1)} {
		f := kdaFeeds(3)
		f["g"].([]float64)[2*32+16+5] = bad
		_, err := runKDA(t, f, 3, 2, 16, 24, ops.KDAOptions{}, false, false)
		require.ErrorContains(t, err, "kda: g must be finite and at most 0 (it is the logarithm of a decay): g[2,1,5] is")
	}
	for want, cu := range map[string][]int32{
		"cu_seqlens: must start at 0, cu_seqlens[0] is 1":                    {1, 3},
		"cu_seqlens: must not decrease, cu_seqlens[2] is 1 after 2":          {0, 2, 1, 3},
		"cu_seqlens: must end at the number of tokens 3, ends at 2":          {0, 2},
		"cu_seqlens: must end at the number of tokens 3, ends at 2147483647": {0, math.MaxInt32},
	} {
		f := kdaFeeds(3)
		f["cu"] = cu
		_, err := runKDA(t, f, 3, 2, 16, 24, ops.KDAOptions{}, true, false)
		require.EqualError(t, err, "kda: "+want)
	}
}

// FuzzCuSeqlens: any borders either cut the tokens or are an error.
func FuzzCuSeqlens(f *testing.F) {
	for _, seed := range []string{"\x00\x03", "\x00\x02\x01\x03", "\x00\x00\x03\x03", "\xff\x03"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) < 2 || len(raw) > 20 {
			return
		}
		var cu []int32
		for _, c := range raw {
			cu = append(cu, int32(int8(c)))
		}
		legal := cu[0] == 0 && cu[len(cu)-1] == 3
		for i := 1; i < len(cu); i++ {
			legal = legal && cu[i] >= cu[i-1]
		}
		feeds := kdaFeeds(3)
		feeds["cu"] = cu
		_, err := runKDA(t, feeds, 3, 2, 16, 24, ops.KDAOptions{}, true, false)
		require.Equal(t, legal, err == nil, "%v: %v", cu, err)
	})
}

// TestExpertsRefuseAtRunTime: an id that is no expert is an error of the run.
func TestExpertsRefuseAtRunTime(t *testing.T) {
	for _, id := range []int32{-1, 5} {
		b := graph.New()
		y := ops.Experts(b.Input("x", b.Float(), 3, 4), b.Input("w", b.Float(), 3, 1), b.Input("ids", dtype.Int32, 3, 1),
			b.Input("gate", b.Float(), 5, 6, 4), b.Input("up", b.Float(), 5, 6, 4), b.Input("down", b.Float(), 5, 4, 6))
		require.NoError(t, b.Err())
		p, err := b.Plan(y)
		require.NoError(t, err)
		run, err := p.Native()
		require.NoError(t, err)
		stack := make([]float32, 5*6*4)
		err = run.Do(context.Background(), graph.Feeds{"x": make([]float32, 12), "w": make([]float32, 3), "ids": []int32{0, id, 4}, "gate": stack, "up": stack, "down": stack})
		require.ErrorContains(t, err, "choice 1 is expert")
		require.ErrorContains(t, err, "must be from 0 to 4")
	}
}

// TestK10_ReferenceRecurrence is a call small enough to follow by hand.
func TestK10_ReferenceRecurrence(t *testing.T) {
	g := make([]float64, 8)
	for i := range g {
		g[i] = -0.1
	}
	for _, recurrent := range []bool{false, true} {
		res, err := runKDA(t, graph.Feeds{
			"q": []float64{1, 0, 0, 1, 1, 1, 1, 0}, "k": []float64{1, 0, 0, 1, 1, 0, 0, 1}, "v": []float64{1, 2, 3, 4},
			"g": g, "beta": []float64{.5, .5, .5, .5},
		}, 4, 1, 2, 1, ops.KDAOptions{Recurrent: recurrent, Scale: math.Sqrt(.5)}, false, false)
		require.NoError(t, err)
		require.InDeltaSlice(t, []float64{0.353553, 0.707107, 1.845209, 1.090684}, res[0], 1e-6)
		require.InDeltaSlice(t, []float64{1.542461, 2.409365}, res[1], 1e-6)
	}
}
