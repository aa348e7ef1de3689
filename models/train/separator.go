// Separators: where the documents of a sequence of tokens end.

package train

import "strconv"

// separatorOf is a separator as the tokens of a format: the bytes of a text, or
// one token id.
func separatorOf(f Format, text string) ([]int32, error) {
	if f == Text {
		sep := make([]int32, len(text))
		for i := range len(text) {
			sep[i] = int32(text[i])
		}
		return sep, nil
	}
	id, err := strconv.ParseInt(text, 10, 32)
	if err != nil || id < 0 {
		return nil, &OptionError{"separator", "an id, 0 to 2147483647, in files of token ids", strconv.Quote(text)}
	}
	return []int32{int32(id)}, nil
}

// matcher finds a separator in tokens that come one by one (Knuth, Morris and
// Pratt 1977). A separator that is followed by itself, or by the shortest piece
// that it repeats (one newline, of two), is one with what follows: there are no
// documents of separators alone between two others.
type matcher struct {
	sep    []int32
	border []int // border[k]: longest proper prefix of sep[:k] that ends it
	unit   int   // length of the shortest piece that sep repeats

	state     int   // tokens of sep matched; in a run, of the piece
	at        int64 // tokens seen
	body, end int64 // of a run: the document without it, and with it
	run       bool
}

func newMatcher(sep []int32) *matcher {
	m := &matcher{sep: sep, border: make([]int, len(sep)+1)}
	for k, b := 1, 0; k < len(sep); k++ {
		for b > 0 && sep[b] != sep[k] {
			b = m.border[b]
		}
		if sep[b] == sep[k] {
			b++
		}
		m.border[k+1] = b
	}
	m.unit = len(sep) - m.border[len(sep)]
	if len(sep)%m.unit != 0 {
		m.unit = len(sep)
	}
	return m
}

// next takes a token and reports that a document ended before it: at end, its
// text without the separator at body.
func (m *matcher) next(t int32) (ended bool) {
	m.at++
	if m.run {
		if t == m.sep[m.state] {
			if m.state++; m.state == m.unit {
				m.state, m.end = 0, m.at
			}
			return false
		}
		// What there is of another piece begins another separator; a token
		// that does not go on with it cannot end one.
		m.run, ended = false, true
	}
	for m.state > 0 && t != m.sep[m.state] {
		m.state = m.border[m.state]
	}
	if t == m.sep[m.state] {
		m.state++
	}
	if m.state == len(m.sep) {
		m.run, m.state, m.body, m.end = true, 0, m.at-int64(len(m.sep)), m.at
	}
	return ended
}

// documents calls f with the two ends of every document of the part that ends
// with a separator: that of its text and that of the separator.
func (p *part) documents(sep []int32, f func(body, end int64) error) error {
	m := newMatcher(sep)
	buf := make([]int32, 1<<15)
	for at := int64(0); at < p.n; at += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), p.n-at)]
		if err := p.read(buf, at); err != nil {
			return err
		}
		for _, t := range buf {
			if m.next(t) {
				if err := f(m.body, m.end); err != nil {
					return err
				}
			}
		}
	}
	if m.run {
		return f(m.body, m.end)
	}
	return nil
}
