// Opening a model with what came beside its weights.

package models

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/tokenizer"
)

// Opened is a model and what its files hold beside the weights.
type Opened struct {
	*Transformer
	Path      string
	Tokenizer *tokenizer.Tokenizer // nil without one
	Report    LoadReport
	// Metadata are the keys of a GGUF file but the tokenizer's lists, nil for a
	// folder.
	Metadata checkpoint.Metadata
}

// Open opens a Hugging Face folder (config.json beside model.safetensors, or an
// index and its shards) or a .gguf file, with its tokenizer. A model whose
// files hold no tokenizer is opened without, unless its vocabulary is that of
// bytes.
//
// Matrices are kept as the file has them: in 16 bits, in 8-bit floats, and in the
// block codings that ops read (Q8_0, Q4_0, Q4_1, and of rows of whole blocks of 256
// numbers Q4_K, Q5_K, Q6_K). Those in other codings, and stacks of experts that have a
// tensor for each expert or gate and up in one, are decoded to float32, which takes 6
// to 12 times the memory of the file, or with Store16
// half of that. All weights are frozen: a model that is to be trained, other than by
// adapters, is opened with Widen. Where the system maps files a matrix is the
// memory of the file: opening reads headers and vectors only, the matrix must not
// be written to, and the file must stay as it is until Close.
func Open(path string, opts ...Option) (*Opened, error) {
	kept, err := storageOf(opts)
	if err != nil {
		return nil, err
	}
	o := &Opened{Path: path}
	gguf, err := isGGUF(path)
	if err != nil {
		return nil, fmt.Errorf("models: %w", err)
	}
	if gguf {
		err = o.openGGUF(kept)
	} else {
		err = o.openFolder(kept)
	}
	if err != nil && o.Transformer != nil { // its weights lie in the files
		err = errors.Join(err, o.Close())
	}
	if err != nil {
		return nil, err
	}
	return o, nil
}

// isGGUF tells a file, or a folder with weights of no other kind, from a
// Hugging Face folder.
func isGGUF(path string) (bool, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return true, err
	}
	if _, err := os.Stat(filepath.Join(path, "config.json")); err == nil {
		return false, nil
	}
	list, err := os.ReadDir(path)
	return slices.ContainsFunc(list, func(f os.DirEntry) bool { return filepath.Ext(f.Name()) == ".gguf" }), err
}

func (o *Opened) openFolder(kept storage) (err error) {
	if o.Transformer, o.Report, err = loadFolder(o.Path, kept); err != nil {
		return err
	}
	if hasTokenizer(o.Path) || o.Config.Vocab == 256 {
		if o.Tokenizer, err = Tokenizer(o.Path, o.Config); err != nil {
			return err
		}
		o.addStops()
	}
	return nil
}

func (o *Opened) openGGUF(kept storage) error {
	fail := func(err error) error { return fmt.Errorf("models: %s: %w", o.Path, err) }
	neither := errors.New("neither a folder with a config.json nor a GGUF file")
	ck, err := checkpoint.Open(o.Path)
	if bad, ok := errors.AsType[*checkpoint.FormatError](err); ok && bad.Format == "safetensors" {
		return fail(neither)
	}
	if err != nil {
		return fmt.Errorf("models: %w", err)
	}
	if ck.Format() != "gguf" {
		return errors.Join(fail(neither), ck.Close())
	}
	c, err := ggufConfig(ck)
	if err != nil {
		return errors.Join(fail(err), ck.Close())
	}
	o.Metadata = ck.TakeMetadata()
	form := architectures[c.Type].gguf
	if o.Transformer, o.Report, err = load(c, &source{ck: ck, gguf: form, kept: kept}); err != nil {
		return fail(err)
	}
	if _, ok := o.Metadata["tokenizer.ggml.model"]; ok {
		g, err := ggufTokenizer(o.Metadata)
		if err != nil {
			return fail(err)
		}
		if o.Tokenizer, err = tokenizer.FromGGUF(g); err != nil {
			return fail(err)
		}
		// The tokenizer has them; they are most of the header.
		for _, key := range []string{"tokens", "merges", "scores", "token_type"} {
			delete(o.Metadata, "tokenizer.ggml."+key)
		}
		o.addStops()
	}
	return nil
}

// addStops makes the ids that end a text by the tokenizer's files ends for the
// model too: a turn of a chat ends with a token of its own in some of them.
func (o *Opened) addStops() {
	for _, id := range o.Tokenizer.Special().Stop {
		if int(id) < o.Config.Vocab { // a tokenizer may have tokens that the model has not
			o.Config.addEOS(id)
		}
	}
}

// tokenizerFiles are the kinds of tokenizer that a folder can hold.
var tokenizerFiles = []string{"tokenizer.json", "tokenizer.model"}

func hasTokenizer(dir string) bool {
	for _, name := range tokenizerFiles {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

// Tokenizer opens the tokenizer of a model folder. A folder without one belongs
// to a model of bytes, if its vocabulary has 256 tokens.
func Tokenizer(dir string, c Config) (*tokenizer.Tokenizer, error) {
	if hasTokenizer(dir) {
		return tokenizer.Open(dir)
	}
	if c.Vocab != 256 {
		return nil, fmt.Errorf("models: %s has neither tokenizer.json nor tokenizer.model, and a vocabulary of %d is not one of bytes", dir, c.Vocab)
	}
	return tokenizer.Byte(), nil
}
