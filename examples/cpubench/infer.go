package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/seafan/seafan/graph/dtype"
	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/ops/native"
)

// This file measures inference: a model of SmolLM2-135M's shape with random
// weights in bf16 reads a prompt of 512 tokens and writes 88 more.

const (
	promptTokens = 512
	textTokens   = 88
)

// inferModel saves such a model and gives its folder.
func inferModel() (dir string, err error) {
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 49152, Hidden: 576, FFN: 1536, Layers: 30, Heads: 9, KVHeads: 3, HeadDim: 64,
		Context: 2048, NormEps: 1e-5, RopeTheta: 1e5, Tied: true,
	})
	if err != nil {
		return "", err
	}
	if err := m.Init(1); err != nil {
		return "", err
	}
	if dir, err = os.MkdirTemp("", "cpubench"); err != nil {
		return "", err
	}
	if err := m.Save(filepath.Join(dir, "model"), models.As(dtype.BFloat16)); err != nil {
		os.RemoveAll(dir)
		return "", err
	}
	return dir, nil
}

// infer adds one round of ours. A token stands beside a read of the weights,
// which bounds it: both the mean over a text's tokens, one right after the other.
func infer(ctx context.Context, dir string, ours times, beside turns) error {
	m, err := models.Open(filepath.Join(dir, "model"))
	if err != nil {
		return err
	}
	defer m.Close() // only read
	weights := 0
	for _, p := range m.Params().All() {
		weights += p.Type.Bytes()
	}
	for _, x := range []struct {
		prefill        string // empty: the time of a token
		compute, cache dtype.DType
	}{
		{prefill: "prefill 512 f32", compute: dtype.Float32, cache: dtype.Float32},
		{prefill: "prefill 512 bf16", compute: dtype.BFloat16, cache: dtype.BFloat16},
		{compute: dtype.Float32, cache: dtype.BFloat16}, // the peer keeps keys and values in bf16 too
	} {
		s, err := generate.New(m, generate.Options{Context: 1024, Chunk: promptTokens, Compute: x.compute, Cache: x.cache})
		if err != nil {
			return err
		}
		for range 4 {
			prefill, token, err := text(ctx, s)
			if err != nil {
				return err
			}
			if x.prefill != "" {
				ours.add(x.prefill, prefill)
			} else {
				ours.add("decode", token)
				beside.add("decode, floor", token, readSeconds(weights))
			}
		}
	}
	return nil
}

// text is the time to the first token of a text and that of one after it.
func text(ctx context.Context, s *generate.Session) (prefill, token float64, err error) {
	ids := make([]int32, promptTokens)
	for i := range ids {
		ids[i] = int32(1 + i*7919%49000)
	}
	r, err := s.Add(ids, generate.Sampling{})
	if err != nil {
		return 0, 0, err
	}
	defer s.Remove(r)
	start := time.Now()
	if _, err := r.Next(ctx); err != nil {
		return 0, 0, err
	}
	prefill = time.Since(start).Seconds()
	start = time.Now()
	for range textTokens {
		if _, err := r.Next(ctx); err != nil {
			return 0, 0, err
		}
	}
	return prefill, time.Since(start).Seconds() / textTokens, nil
}

// readSeconds is the mean time to read n bytes, over as many reads as a text
// has tokens: every worker compares two streams, which is the fastest read that
// the standard library has.
func readSeconds(n int) float64 {
	var streams [][]byte
	workers := native.Workers()
	for range 2 * workers {
		streams = append(streams, bytes.Repeat([]byte{1}, n/2/workers))
	}
	defer runtime.KeepAlive(streams)
	read := func() {
		var wg sync.WaitGroup
		for i := 0; i < len(streams); i += 2 {
			wg.Go(func() {
				if !bytes.Equal(streams[i], streams[i+1]) {
					panic("the streams differ")
				}
			})
		}
		wg.Wait()
	}
	read()
	start := time.Now()
	for range textTokens {
		read()
	}
	return time.Since(start).Seconds() / textTokens
}

//go:embed infer.py
var inferProgram string

// infer adds one round of the peer's.
func (p *peer) infer(ctx context.Context, dir string, t times) error {
	raw, err := p.run(ctx, "-c", inferProgram, fmt.Sprint(native.Workers()), filepath.Join(dir, "model"))
	if err != nil {
		return err
	}
	return t.read(p.python, raw)
}

// read adds the times that a program of the peer's prints.
func (t times) read(program string, raw []byte) error {
	var got map[string]float64
	if err := json.Unmarshal(raw, &got); err != nil {
		return fmt.Errorf("%s: %w", program, err)
	}
	for work, seconds := range got {
		t.add(work, seconds)
	}
	return nil
}
