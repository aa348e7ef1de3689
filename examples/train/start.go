// The model that a run starts from: new, or a checkpoint, trained as a whole or
// with adapters.

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seafan/seafan/models"
	"github.com/seafan/seafan/models/checkpoint"
	"github.com/seafan/seafan/models/train"
)

// start is a model, what of it is trained, and the encoder of its text.
type start struct {
	*models.Transformer
	trained train.Model
	encoder train.Encoder // nil: the text is bytes
	sight   int           // tensors of the part that sees images, which is left out
	unsaved error         // why the models that are written lack the tokenizer
}

func (s settings) start() (*start, error) {
	if s.From == "" {
		m, err := models.New(s.config())
		if err == nil {
			err = m.Init(s.Train.Seed)
		}
		return &start{Transformer: m, trained: m}, err
	}
	var how []models.Option
	if s.LoRA.Rank == 0 {
		how = append(how, models.Widen()) // else it is only read, and stays as its files have it
	}
	o, err := models.Open(s.From, how...)
	if err != nil {
		return nil, fmt.Errorf("-init: %w", err)
	}
	from, err := s.prepare(o)
	if err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return from, nil
}

// prepare makes an opened model ready to be trained.
func (s settings) prepare(o *models.Opened) (*start, error) {
	files, unsaved := models.TokenizerFiles(s.From)
	from := &start{Transformer: o.Transformer, trained: &folder{o.Transformer, files}, sight: len(o.Report.Sight)}
	if _, longest, _ := o.Limits(); s.Train.Context > longest {
		return nil, fmt.Errorf("-context: must be at most %d, the context of %s, got %d", longest, s.From, s.Train.Context)
	}
	if o.Tokenizer == nil {
		return nil, fmt.Errorf("-init: %s has no tokenizer, and its vocabulary of %d is not one of bytes", s.From, o.Config.Vocab)
	}
	// No file of a tokenizer has a token that is no text.
	if _, bytes := o.Tokenizer.TokenToID("\xff"); !bytes {
		from.encoder = o.Tokenizer
		if s.LoRA.Rank == 0 || s.Merge {
			from.unsaved = unsaved
		}
	}
	if s.LoRA.Rank > 0 {
		ad, err := o.Adapt(models.LoRA(s.LoRA), s.Train.Seed)
		if err != nil {
			return nil, fmt.Errorf("-lora-rank, -lora-targets: %w", err)
		}
		ad.Base = s.From
		from.trained = ad
	}
	return from, nil
}

const mergedName = "merged"

// merge writes the model with the adapter of a checkpoint added to its weights.
func (s settings) merge(adapter string) (string, error) {
	o, err := models.Open(s.From)
	if err != nil {
		return "", err
	}
	defer o.Close() // only read
	ad, err := o.OpenAdapter(adapter)
	if err != nil {
		return "", err
	}
	m, err := ad.Merge()
	if err != nil {
		return "", err
	}
	files, _ := models.TokenizerFiles(s.From) // the start of the run has said what is wrong with them
	dir := filepath.Join(s.Out, mergedName)
	return dir, checkpoint.WriteDir(dir, (&folder{m, files}).WriteFiles)
}

// folder is a model whose checkpoints get the tokenizer of the model it came
// from.
type folder struct {
	*models.Transformer
	files map[string][]byte
}

func (f *folder) WriteFiles(dir string) error {
	if err := f.Transformer.WriteFiles(dir); err != nil {
		return err
	}
	for name, text := range f.files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
			return err
		}
	}
	return nil
}
