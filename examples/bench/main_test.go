package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/backend"
)

func TestBenchMeasures(t *testing.T) {
	for _, args := range [][]string{{"-batch", "2", "-context", "40"}, {"-prefill", "33"}, {"-dtype", "fp8", "-context", "20"}} {
		var out bytes.Buffer
		require.NoError(t, run(append(args, "-shape", "tiny", "-steps", "2", "-json", "-backend", "native"), &out, io.Discard))
		var r result
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		require.Equal(t, "native", r.Backend)
		require.Contains(t, []string{"f32", "fp8"}, r.Dtype)
		require.Greater(t, r.StepMS, 0.0)
		require.Greater(t, r.Tokens, 0.0)
	}
	_, missing := backend.Choose(backend.Options{Name: backend.CUDA})
	require.False(t, missing != nil && os.Getenv("REQUIRE_CUDA") == "1", missing)
	if missing == nil {
		var out bytes.Buffer
		require.NoError(t, run([]string{"-shape", "tiny", "-backend", "cuda", "-steps", "2", "-batch", "3", "-context", "70", "-json"}, &out, io.Discard))
		var r result
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		require.Equal(t, "cuda", r.Backend)
		require.Greater(t, r.Floor, 0.0)
		require.NotEmpty(t, r.Profile.Kernels)
	}
	require.Equal(t, "batch 1 context 1024: 4.180 ms a step, 239 tokens/s, 3850 GB/s of weights and cache, 0.80 of the floor",
		result{Batch: 1, Context: 1024, StepMS: 4.18, Tokens: 239, GBs: 3850, Floor: 0.8}.String())
	require.Equal(t, "prefill 2048: 48.400 ms a step, 42314 tokens/s, 332 GB/s of weights and cache", result{Prefill: 2048, StepMS: 48.4, Tokens: 42314, GBs: 332}.String())
	for want, args := range map[string][]string{
		`-shape must be one of kimi-linear-small, llama3-1b, llama3-8b, qwen3-30b-a3b-layer, tiny, got "x"`: {"-shape", "x"},
		`unexpected argument "tiny": every value belongs to a flag (-h lists them)`:                         {"tiny"},
		"-batch must be 1 to 1024, got 0":                               {"-batch", "0"},
		`-dtype must be bf16, f16, f32, fp8 or fp8-weights, got "int8"`: {"-dtype", "int8"},
		`-backend: backend must be native or cuda, got "x"`:             {"-backend", "x"},
	} {
		require.EqualError(t, run(args, io.Discard, io.Discard), want)
	}
}

// full is where nothing more can be written.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestAResultThatIsNotWrittenIsAnError(t *testing.T) {
	require.ErrorIs(t, run([]string{"-shape", "tiny", "-steps", "1", "-context", "1", "-backend", "native"}, full{}, io.Discard), io.ErrShortWrite)
}
