// The package in use, as its documentation shows it.

package generate_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/generate"
	"github.com/seafan/seafan/models/tokenizer"
)

// Text from a model in a folder: that of a training run is its best or last.
// This one has not been trained.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model")
	if err := untrained(path); err != nil {
		log.Fatal(err)
	}

	m, err := models.Open(path) // a Hugging Face folder or a .gguf file
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	s, err := generate.New(m, generate.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	prompt, err := m.Tokenizer.Encode("The Rays of", tokenizer.EncodeOptions{AddSpecial: true})
	if err != nil {
		log.Fatal(err)
	}
	how := generate.TextOptions{Max: 20, Sampling: generate.Sampling{Temperature: 0.8, TopP: 0.95, Seed: 1}}
	tokens, end, text := 0, "", ""
	for token, err := range s.Text(context.Background(), m.Tokenizer, prompt, how) {
		if err != nil {
			log.Fatal(err)
		}
		tokens, end, text = tokens+1, token.End, text+token.Text
	}
	fmt.Println(tokens, "tokens, end:", end, text != "")
	// Output: 20 tokens, end: length true
}

// untrained saves a model of bytes.
func untrained(path string) error {
	m, err := models.New(models.Config{
		Type: "llama", Vocab: 256, Hidden: 16, FFN: 32, Layers: 1, Heads: 2, KVHeads: 2, HeadDim: 8,
		Context: 64, NormEps: 1e-5, RopeTheta: 1e4,
	})
	if err != nil {
		return err
	}
	if err := m.Init(0); err != nil {
		return err
	}
	return m.Save(path)
}
