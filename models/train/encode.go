// Text to tokens, once, into a file beside the run.

package train

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/seafan/seafan/models/tokenizer"
)

// Encoder turns text into token ids; *tokenizer.Tokenizer is one.
type Encoder interface {
	AppendEncode(dst []int32, text string, o tokenizer.EncodeOptions) ([]int32, error)
	VocabSize() int
}

// chunk is how much text is encoded at a time. It ends at the start of a line,
// where tokenizers end a word; a line longer than it is cut at a space, or
// anywhere.
const chunk = 1 << 20

// encoded returns the file of token ids for a text file, writing it if the
// cache does not have it. The name in the cache is made of the path, size and
// time of the text and of what the encoder does to its beginning.
func encoded(path string, o OpenOptions) (string, Format, error) {
	if o.Cache == "" {
		return "", Auto, fmt.Errorf("%s: text with an encoder needs a cache folder, OpenOptions.Cache is empty", path)
	}
	format := Uint16
	if o.Encoder.VocabSize() > math.MaxUint16+1 {
		format = Uint32
	}
	in, err := os.Open(path)
	if err != nil {
		return "", Auto, err
	}
	defer in.Close()
	key, err := cacheKey(in, o.Encoder)
	if err != nil {
		return "", Auto, err
	}
	ext := ".u16"
	if format == Uint32 {
		ext = ".u32"
	}
	out := filepath.Join(o.Cache, "tokens-"+key+ext)
	if _, err := os.Stat(out); err == nil {
		return out, format, nil
	}
	if err := os.MkdirAll(o.Cache, 0o777); err != nil {
		return "", Auto, err
	}
	err = replaceFile(out, func(w io.Writer) error { return encodeTo(w, in, o.Encoder, format.width()) })
	return out, format, err
}

func cacheKey(in *os.File, e Encoder) (string, error) {
	info, err := in.Stat()
	if err != nil {
		return "", err
	}
	path, err := filepath.Abs(in.Name())
	if err != nil {
		return "", err
	}
	head := make([]byte, 64<<10)
	n, err := in.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	ids, err := e.AppendEncode(nil, string(head[:n]), tokenizer.EncodeOptions{Literal: true})
	if err != nil {
		return "", fmt.Errorf("%s: %w", in.Name(), err)
	}
	h := sha256.New()
	fmt.Fprintln(h, path, info.Size(), info.ModTime().UnixNano(), e.VocabSize())
	if err := binary.Write(h, binary.LittleEndian, ids); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// encodeTo streams the tokens of a text.
func encodeTo(w io.Writer, in io.Reader, e Encoder, width int) error {
	buf := make([]byte, 0, chunk)
	var ids []int32
	out := bufio.NewWriterSize(w, 1<<16)
	for {
		n, err := io.ReadFull(in, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		last := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !last {
			return err
		}
		cut := len(buf)
		if !last {
			cut = boundary(buf)
		}
		ids, err = e.AppendEncode(ids[:0], string(buf[:cut]), tokenizer.EncodeOptions{Literal: true})
		if err != nil {
			return err
		}
		for _, id := range ids {
			if id < 0 || width == 2 && id > math.MaxUint16 {
				return fmt.Errorf("the encoder gave token %d, its vocabulary has %d", id, e.VocabSize())
			}
			var raw [4]byte
			binary.LittleEndian.PutUint32(raw[:], uint32(id))
			if _, err := out.Write(raw[:width]); err != nil {
				return err
			}
		}
		if last {
			return out.Flush()
		}
		buf = buf[:copy(buf[:cap(buf)], buf[cut:])]
	}
}

// boundary is where a chunk of a longer text ends: before the last line that
// begins with a visible character, else before the last space, else before the
// last UTF-8 character.
func boundary(b []byte) int {
	for end := len(b); ; {
		i := bytes.LastIndexByte(b[:end], '\n')
		if i < 0 {
			break
		}
		if i+1 < len(b) && !strings.ContainsRune(" \t\r\n", rune(b[i+1])) {
			return i + 1
		}
		end = i
	}
	if i := bytes.LastIndexByte(b, ' '); i > 0 {
		return i
	}
	for i := len(b) - 1; i > len(b)-4 && i > 0; i-- {
		if b[i]&0xc0 != 0x80 {
			return i
		}
	}
	return len(b)
}
