package main

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTable(t *testing.T) {
	var out bytes.Buffer
	ours := times{"step f32": 0.1, "step bf16": 0.06, "step fp8": 0.08}
	ours.add("sgemm 1024^3", 0.006)
	ours.add("sgemm 1024^3", 0.004)
	ours.add("sgemm 1024^3", 0.005)
	require.NoError(t, table(&out, ours, times{"step f32": 0.2, "step bf16 compiled": 0.08, "sgemm 1024^3": 0.005},
		turns{"step bf16": {{0.06, 0.1}}, "step fp8": {{0.08, 0.1}}}))
	require.Equal(t, `work                ours ms  peer ms  ours/peer  GFLOP/s    peer
step f32            100.00   200.00   0.50                  eager
step bf16           60.00                                   autocast
step bf16 compiled  60.00    80.00    0.75                  autocast, torch.compile
step fp8            80.00                                   
sgemm 1024^3        4.00     5.00     0.80       537 / 429  mm

our steps of our f32, in turns: bf16 0.60, fp8 0.80
`, out.String())
}

// A pair across a change of the machine decides nothing.
func TestMiddle(t *testing.T) {
	pairs := turns{"decode": {{5, 3}, {4, 3.5}, {4, 5}, {5, 4}}}
	pairs.add("decode", 6, 5)
	require.Equal(t, pair{6, 5}, pairs.middle("decode"))
	require.Equal(t, pair{5, 3}, pairs["decode"][0], "the order stays")
}

func TestBadFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"-rounds: must be 1 to 100, got 0":                                       {"-rounds", "0"},
		`-only: must be train or infer, got "x"`:                                 {"-only", "x"},
		"-workers: must be 0 to 1024, got -1":                                    {"-workers", "-1"},
		"-steps and -compile: need -python, whose they are":                      {"-compile"},
		"-text: stat nowhere: no such file or directory":                         {"-text", "nowhere"},
		`unexpected argument "x": every value belongs to a flag (-h lists them)`: {"x"},
	} {
		require.EqualError(t, run(context.Background(), args, io.Discard, io.Discard), want)
	}
}
