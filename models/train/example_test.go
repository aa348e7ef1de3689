package train_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/train"
)

// A model of bytes learns a text, into a folder that Resume can go on from.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	text := filepath.Join(dir, "text.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("one fish, two fish. ", 50)), 0o666); err != nil {
		log.Fatal(err)
	}

	o := train.Defaults()
	o.Steps, o.Batch, o.Context, o.Warmup, o.LR = 60, 4, 16, 10, 1e-2
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 16, FFN: 32, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 8,
		Context: o.Context, NormEps: 1e-5, RopeTheta: 1e4,
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Init(o.Seed); err != nil {
		log.Fatal(err)
	}
	tokens, err := train.Open(train.OpenOptions{}, text)
	if err != nil {
		log.Fatal(err)
	}
	defer tokens.Close()
	data, err := train.NewWindows(tokens, m.Config.Vocab, train.WindowOptions{Context: o.Context, Order: train.Epochs, Validation: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	t, err := train.New(m, data, o, train.Dir(filepath.Join(dir, "run")))
	if err != nil {
		log.Fatal(err)
	}
	sum, err := t.Run(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(sum.Steps, "steps,", sum.Tokens, "tokens, learnt:", *sum.ValLoss < 1)
	// Output: 60 steps, 3840 tokens, learnt: true
}
