// Tokens: one long sequence of token ids on disk, read in place.

package train

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
)

// Format is how a file holds tokens.
type Format string

const (
	Auto   Format = ""       // by the name: .u16 and .bin are Uint16, .u32 is Uint32, all others Text
	Text   Format = "text"   // text to be encoded; without an encoder every byte is a token
	Uint16 Format = "uint16" // little-endian token ids
	Uint32 Format = "uint32"
)

func (f Format) width() int {
	switch f {
	case Uint16:
		return 2
	case Uint32:
		return 4
	}
	return 1
}

func formatOf(path string) Format {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".u16", ".bin":
		return Uint16
	case ".u32":
		return Uint32
	}
	return Text
}

// Tokens is a sequence of token ids in files, one file after the other. Files
// are mapped where the system can map them, else read piece by piece, so they
// may be larger than memory. Reads may come from several goroutines.
type Tokens struct {
	parts  []part
	n      int64
	sum    string
	starts []int64 // the first token of each document, ascending from 0

	separator string // of the documents in a file
}

// part is one file.
type part struct {
	path  string
	start int64 // its first token in the sequence
	n     int64
	width int
	file  *os.File
	mem   []byte // nil where it is read
}

// OpenOptions change what Open makes of the files.
type OpenOptions struct {
	Format  Format
	Encoder Encoder // of text; nil: bytes
	Cache   string  // folder for encoded text; needed with an Encoder

	// Separator ends a document, beside the end of a file: a text, or the
	// number of an id in files of token ids. It stays in the document that it
	// ends, once or as often as it stands there. Where the Encoder has it as
	// a special token, it becomes that token, once. Empty: a file is a
	// document.
	Separator string
}

// Open opens files, or all files below folders (hidden ones left out, in the
// order of their names), as one sequence.
func Open(o OpenOptions, paths ...string) (t *Tokens, err error) {
	files, err := listFiles(paths)
	if err != nil {
		return nil, err
	}
	t = &Tokens{separator: o.Separator}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
			t = nil
		}
	}()
	for _, path := range files {
		if err := t.open(path, o); err != nil {
			return t, err
		}
	}
	if t.n == 0 {
		return t, fmt.Errorf("%s: has no tokens: at least one is required", strings.Join(paths, ", "))
	}
	t.sum, err = t.digest()
	return t, err
}

// maxFiles bounds the mappings; systems allow a process some 65,000.
const maxFiles = 30000

func listFiles(paths []string) ([]string, error) {
	var files []string
	for _, root := range paths {
		before := len(files)
		err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			hidden := path != root && strings.HasPrefix(d.Name(), ".")
			switch {
			case err != nil:
				return err
			case d.IsDir() && hidden:
				return filepath.SkipDir
			case d.IsDir() || hidden:
				return nil
			}
			info, err := os.Stat(path) // follows a link
			switch {
			case err != nil:
				return err
			case info.Mode().IsRegular():
				files = append(files, path)
			case path == root:
				return fmt.Errorf("%s: must be a regular file or a folder, it is %s", path, info.Mode().Type())
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(files) == before {
			return nil, fmt.Errorf("%s: the folder has no files: at least one is required", root)
		}
	}
	if len(files) == 0 {
		return nil, errors.New("no path was given: at least one file or folder is required")
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("%s: has %d files, at most %d can be open: join them into fewer", strings.Join(paths, ", "), len(files), maxFiles)
	}
	return files, nil
}

// open appends a file and its documents.
func (t *Tokens) open(path string, o OpenOptions) (err error) {
	format := o.Format
	if format == Auto {
		format = formatOf(path)
	}
	var starts []int64 // of documents in the file, known once it is encoded
	coded := format == Text && o.Encoder != nil
	if coded {
		if path, format, starts, err = encoded(path, o); err != nil {
			return err
		}
	}
	if err := t.add(path, format); err != nil {
		return err
	}
	p := &t.parts[len(t.parts)-1]
	if !coded && o.Separator != "" {
		sep, err := separatorOf(format, o.Separator)
		if err == nil {
			err = p.documents(sep, func(_, end int64) error {
				starts = append(starts, end)
				return nil
			})
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	// A document begins at the start of the file and where another has ended.
	last := int64(-1)
	for _, s := range append([]int64{0}, starts...) {
		if s > last && s < p.n {
			t.starts = append(t.starts, p.start+s)
			last = s
		}
	}
	return nil
}

func (t *Tokens) add(path string, format Format) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	p := part{path: path, start: t.n, width: format.width(), file: f}
	if info.Size()%int64(p.width) != 0 {
		return errors.Join(fmt.Errorf("%s: has %d bytes, not a multiple of the %d that a %s token takes: it is cut short or of another format", path, info.Size(), p.width, format), f.Close())
	}
	p.n = info.Size() / int64(p.width)
	if p.n > 0 {
		if mem, err := mapFile(f, info.Size()); err == nil {
			p.mem = mem
		}
	}
	if p.mem != nil { // the mapping stays without the file
		p.file = nil
		if err := f.Close(); err != nil {
			return errors.Join(err, unmapFile(p.mem))
		}
	}
	t.parts = append(t.parts, p)
	t.n += p.n
	return nil
}

var errNoTokens = errors.New("train: the tokens are missing (nil) or closed: Open gives some")

// Close releases the files.
func (t *Tokens) Close() error {
	if t == nil {
		return errNoTokens
	}
	var errs []error
	for _, p := range t.parts {
		if p.mem != nil {
			errs = append(errs, unmapFile(p.mem))
		}
		if p.file != nil {
			errs = append(errs, p.file.Close())
		}
	}
	t.parts, t.n, t.starts = nil, 0, nil
	return errors.Join(errs...)
}

// Len is the number of tokens.
func (t *Tokens) Len() int64 { return t.n }

// Documents is the number of documents.
func (t *Tokens) Documents() int { return len(t.starts) }

// Digest identifies the tokens: their number, and the bytes of the files at 64
// places and at both ends of each. Two sequences that differ elsewhere only
// have one digest.
func (t *Tokens) Digest() string { return t.sum }

// Read fills dst with the tokens from at on.
func (t *Tokens) Read(dst []int32, at int64) error {
	if t == nil || t.parts == nil {
		return errNoTokens
	}
	if at < 0 || at > t.n || int64(len(dst)) > t.n-at {
		return fmt.Errorf("train: tokens %d to %d lie outside the %d there are", at, at+int64(len(dst)), t.n)
	}
	i := sort.Search(len(t.parts), func(i int) bool { return t.parts[i].start+t.parts[i].n > at })
	for len(dst) > 0 {
		p := &t.parts[i]
		n := min(int64(len(dst)), p.start+p.n-at)
		if err := p.read(dst[:n], at-p.start); err != nil {
			return err
		}
		dst = dst[n:]
		at += n
		i++
	}
	return nil
}

func (p *part) read(dst []int32, at int64) (err error) {
	if p.mem == nil {
		buf := make([]byte, len(dst)*p.width)
		if _, err := p.file.ReadAt(buf, at*int64(p.width)); err != nil {
			return fmt.Errorf("%s: reading %d bytes at %d: %w", p.path, len(buf), at*int64(p.width), noEOF(err))
		}
		return p.decode(dst, buf, at)
	}
	// A file that someone shortens while it is mapped faults.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface {
				error
				Addr() uintptr
			})
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s: the file was shortened or failed while it was mapped: %w", p.path, fault)
		}
	}()
	off := at * int64(p.width)
	return p.decode(dst, p.mem[off:off+int64(len(dst)*p.width)], at)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (p *part) decode(dst []int32, raw []byte, at int64) error {
	switch p.width {
	case 1:
		for i, b := range raw {
			dst[i] = int32(b)
		}
	case 2:
		for i := range dst {
			dst[i] = int32(binary.LittleEndian.Uint16(raw[2*i:]))
		}
	default:
		for i := range dst {
			id := binary.LittleEndian.Uint32(raw[4*i:])
			if id > 1<<31-1 {
				return fmt.Errorf("%s: token %d is %d, token ids are below 2^31", p.path, at+int64(i), id)
			}
			dst[i] = int32(id)
		}
	}
	return nil
}

// name is what errors call the tokens.
func (t *Tokens) name() string {
	if n := len(t.parts); n > 1 {
		return fmt.Sprintf("%s and %d more", t.parts[0].path, n-1)
	}
	return t.parts[0].path
}

// locate says where a token stands, for an error.
func (t *Tokens) locate(at int64) string {
	for _, p := range slices.Backward(t.parts) {
		if at >= p.start {
			return fmt.Sprintf("%s: token %d", p.path, at-p.start)
		}
	}
	return fmt.Sprintf("token %d", at)
}

func (t *Tokens) digest() (string, error) {
	const places, span = 64, 1024
	h := sha256.New()
	buf := make([]int32, span)
	for _, p := range t.parts {
		fmt.Fprintf(h, "%d %d\n", p.n, p.width)
		for k := range int64(places) {
			n := min(span, p.n)
			at := (p.n - n) / (places - 1) * k
			if k == places-1 {
				at = p.n - n
			}
			if err := p.read(buf[:n], at); err != nil {
				return "", err
			}
			if err := binary.Write(h, binary.LittleEndian, buf[:n]); err != nil {
				return "", err
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}
