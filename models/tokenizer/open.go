// Opening the tokenizer of a model folder.

package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
)

// Open opens a tokenizer.json, a SentencePiece .model file, or the folder of a
// model that holds one of them; tokenizer.json goes first. In a folder the
// roles of special tokens are read from tokenizer_config.json and
// generation_config.json; add_bos_token and add_eos_token there replace the
// template of the file.
func Open(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	if info.IsDir() {
		return openFolder(path)
	}
	return openFile(path)
}

// maxFile is ten times the largest tokenizer; places in it fit 32 bits.
const maxFile = 1 << 30

// ReadFile reads a regular file of at most 1 GiB. What is none, a pipe that nobody writes to or a
// device without end, is an error.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: required a regular file, this is %s", path, info.Mode())
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s: at most %d bytes are read, this file has %d", path, maxFile, info.Size())
	}
	return os.ReadFile(path)
}

func openFile(path string) (*Tokenizer, error) {
	data, err := ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	open := FromJSON
	if filepath.Ext(path) == ".model" {
		open = FromSentencePiece
	}
	t, err := open(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

func openFolder(dir string) (*Tokenizer, error) {
	for _, name := range []string{"tokenizer.json", "tokenizer.model"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			continue
		}
		t, err := openFile(path)
		if err != nil {
			return nil, err
		}
		if err := t.readRoles(dir); err != nil {
			return nil, fmt.Errorf("tokenizer: %s: %w", dir, err)
		}
		return t, nil
	}
	if found := otherKinds(dir); found != "" {
		return nil, fmt.Errorf("tokenizer: %s: %s is a tokenizer of a kind that is not supported: required tokenizer.json or tokenizer.model", dir, found)
	}
	return nil, fmt.Errorf("tokenizer: %s: required tokenizer.json or tokenizer.model, found neither", dir)
}

// otherKinds names the first tokenizer of another kind in a folder.
func otherKinds(dir string) string {
	list, _ := os.ReadDir(dir)
	for _, pattern := range []string{"vocab.json", "vocab.txt", "tekken.json", "*.tiktoken", "tiktoken.model", "spiece.model", "sentencepiece.bpe.model"} {
		for _, f := range list {
			if ok, _ := filepath.Match(pattern, f.Name()); ok {
				return f.Name()
			}
		}
	}
	return ""
}
