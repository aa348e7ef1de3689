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
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
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
// cache does not have it, and where its documents begin. The name in the cache
// is made of the path, size and time of the text, of the separator, and of what
// the encoder does to its beginning.
func encoded(path string, o OpenOptions) (string, Format, []int64, error) {
	fail := func(err error) (string, Format, []int64, error) { return "", Auto, nil, err }
	if o.Cache == "" {
		return fail(fmt.Errorf("%s: text with an encoder needs a cache folder, OpenOptions.Cache is empty", path))
	}
	format, ext := Uint16, ".u16"
	if o.Encoder.VocabSize() > math.MaxUint16+1 {
		format, ext = Uint32, ".u32"
	}
	in, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer in.Close()
	key, err := cacheKey(in, o)
	if err != nil {
		return fail(err)
	}
	name := filepath.Join(o.Cache, "tokens-"+key)
	out, documents := name+ext, name+".documents"
	if _, err := os.Stat(out); err == nil {
		starts, err := readStarts(documents, o.Separator)
		if err == nil {
			return out, format, starts, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fail(err)
		}
	}
	if err := os.MkdirAll(o.Cache, 0o777); err != nil {
		return fail(err)
	}
	var starts []int64
	err = ReplaceFile(out, func(w io.Writer) error {
		starts, err = encodeTo(w, in, o, format.width())
		return err
	})
	if err == nil && o.Separator != "" {
		err = ReplaceFile(documents, func(w io.Writer) error { return binary.Write(w, binary.LittleEndian, starts) })
	}
	return out, format, starts, err
}

// readStarts reads where the documents of an encoded text begin, written
// beside it when there is a separator.
func readStarts(path, separator string) ([]int64, error) {
	if separator == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	starts := make([]int64, len(raw)/8)
	if _, err := binary.Decode(raw, binary.LittleEndian, starts); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, s := range starts {
		if s < 0 || i > 0 && s < starts[i-1] {
			return nil, fmt.Errorf("%s: number %d must not be below the one before, got %d", path, i, s)
		}
	}
	return starts, nil
}

func cacheKey(in *os.File, o OpenOptions) (string, error) {
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
	ids, err := o.Encoder.AppendEncode(nil, string(head[:n]), tokenizer.EncodeOptions{Literal: true})
	if err != nil {
		return "", fmt.Errorf("%s: %w", in.Name(), err)
	}
	h := sha256.New()
	fmt.Fprintln(h, path, info.Size(), info.ModTime().UnixNano(), o.Encoder.VocabSize())
	if o.Separator != "" {
		fmt.Fprintf(h, "%q\n", o.Separator)
	}
	if err := binary.Write(h, binary.LittleEndian, ids); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:12]), nil
}

// encodeTo streams the tokens of a text, document by document, and returns
// where these begin.
func encodeTo(w io.Writer, in *os.File, o OpenOptions, width int) (starts []int64, err error) {
	c := &encoding{e: o.Encoder, width: width, out: bufio.NewWriterSize(w, 1<<16), buf: make([]byte, 0, chunk)}
	at := int64(0)
	text := func(end int64) error {
		starts = append(starts, c.n)
		return c.text(io.NewSectionReader(in, at, end-at))
	}
	if o.Separator != "" {
		sep, err := separatorOf(Text, o.Separator)
		if err != nil {
			return nil, err
		}
		special, err := specialIDs(o.Encoder, o.Separator)
		if err != nil {
			return nil, err
		}
		info, err := in.Stat()
		if err != nil {
			return nil, err
		}
		p := part{path: in.Name(), n: info.Size(), width: 1, file: in}
		err = p.documents(sep, func(body, end int64) error {
			if special == nil {
				body = end
			}
			if err := text(body); err != nil {
				return err
			}
			at = end
			return c.put(special)
		})
		if err != nil {
			return nil, err
		}
	}
	if err := text(math.MaxInt64); err != nil {
		return nil, err
	}
	return starts, c.out.Flush()
}

// specialIDs are the ids of a separator that the encoder has as a special
// token; nil where it is text like any other.
func specialIDs(e Encoder, separator string) ([]int32, error) {
	plain, err := e.AppendEncode(nil, separator, tokenizer.EncodeOptions{Literal: true})
	if err != nil {
		return nil, err
	}
	ids, err := e.AppendEncode(nil, separator, tokenizer.EncodeOptions{})
	if err != nil || slices.Equal(ids, plain) {
		return nil, err
	}
	return ids, nil
}

// encoding writes the tokens of texts.
type encoding struct {
	e     Encoder
	width int
	out   *bufio.Writer
	n     int64 // tokens written
	buf   []byte
	ids   []int32
}

func (c *encoding) text(in io.Reader) error {
	for buf := c.buf[:0]; ; {
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
		c.ids, err = c.e.AppendEncode(c.ids[:0], string(buf[:cut]), tokenizer.EncodeOptions{Literal: true})
		if err == nil {
			err = c.put(c.ids)
		}
		if err != nil || last {
			return err
		}
		buf = buf[:copy(buf[:cap(buf)], buf[cut:])]
	}
}

func (c *encoding) put(ids []int32) error {
	for _, id := range ids {
		if id < 0 || c.width == 2 && id > math.MaxUint16 {
			return fmt.Errorf("the encoder gave token %d, its vocabulary has %d", id, c.e.VocabSize())
		}
		var raw [4]byte
		binary.LittleEndian.PutUint32(raw[:], uint32(id))
		if _, err := c.out.Write(raw[:c.width]); err != nil {
			return err
		}
	}
	c.n += int64(len(ids))
	return nil
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
