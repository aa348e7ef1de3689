// Decoders of tokenizer.json as stages of a chain.

package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder makes the stage of one decoding. fused: what comes in is one token
// in pieces, no longer a list of tokens. A nil stage passes everything on.
type decoder interface {
	stage(eager, fused bool) (s stage, fusedAfter bool)
}

// stagesOf makes the stages of a list of decoders.
func stagesOf(decoders []decoder) func(eager bool) []stage {
	return func(eager bool) []stage {
		var stages []stage
		fused := false
		for _, d := range decoders {
			var s stage
			if s, fused = d.stage(eager, fused); s != nil {
				stages = append(stages, s)
			}
		}
		return stages
	}
}

// byteLevelDecoder reads tokens in the byte alphabet; a token with a character
// outside it stands for itself.
type byteLevelDecoder struct{}

func (byteLevelDecoder) stage(bool, bool) (stage, bool) { return &alphabetStage{}, true }

type alphabetStage struct {
	utf8 assembler
	raw  []byte
}

func (s *alphabetStage) push(out []fragment, f fragment) []fragment {
	raw, ok := appendFromAlphabet(s.raw[:0], f.text)
	s.raw = raw
	if !ok {
		return append(out, fragment{text: s.utf8.push(f.text)})
	}
	return append(out, fragment{text: s.utf8.push(string(raw))})
}

func (s *alphabetStage) end(out []fragment) []fragment {
	return append(out, fragment{text: s.utf8.end()})
}

// fuseDecoder joins all tokens to one.
type fuseDecoder struct{}

func (fuseDecoder) stage(bool, bool) (stage, bool) { return nil, true }

// wholeStage holds everything back and rewrites it at the end: for steps that
// could change any part of a fused text.
type wholeStage struct {
	rewrite func(string) string
	held    strings.Builder
}

func (s *wholeStage) push(out []fragment, f fragment) []fragment {
	s.held.WriteString(f.text)
	return out
}

func (s *wholeStage) end(out []fragment) []fragment {
	out = append(out, fragment{text: s.rewrite(s.held.String())})
	s.held.Reset()
	return out
}

// eachStage rewrites token by token.
type eachStage func(string) string

func (s eachStage) push(out []fragment, f fragment) []fragment {
	return append(out, fragment{id: f.id, text: s(f.text)})
}

func (eachStage) end(out []fragment) []fragment { return out }

// rewriting is a decoder that rewrites each token, or the fused text.
type rewriting func(string) string

func (d rewriting) stage(_, fused bool) (stage, bool) {
	if fused {
		return &wholeStage{rewrite: d}, true
	}
	return eachStage(d), false
}

// stripDecoder removes up to start and stop times content at the ends.
type stripDecoder struct {
	content     rune
	start, stop int
}

func (d stripDecoder) stage(_, fused bool) (stage, bool) {
	if fused && d.stop == 0 {
		return &stripStartStage{content: string(d.content), count: d.start, left: d.start}, true
	}
	return rewriting(d.strip).stage(false, fused)
}

func (d stripDecoder) strip(text string) string {
	content := string(d.content)
	for n := 0; n < d.start && strings.HasPrefix(text, content); n++ {
		text = text[len(content):]
	}
	for n := 0; n < d.stop && strings.HasSuffix(text, content); n++ {
		text = text[:len(text)-len(content)]
	}
	return text
}

// stripStartStage removes content at the start of a text that comes in pieces.
type stripStartStage struct {
	content     string
	count, left int
}

func (s *stripStartStage) push(out []fragment, f fragment) []fragment {
	for s.left > 0 && f.text != "" {
		rest, ok := strings.CutPrefix(f.text, s.content)
		if !ok {
			s.left = 0
			break
		}
		f.text = rest
		s.left--
	}
	return append(out, f)
}

func (s *stripStartStage) end(out []fragment) []fragment {
	s.left = s.count
	return out
}

// byteFallbackDecoder reads runs of tokens <0x00> to <0xFF>.
type byteFallbackDecoder struct{}

func (byteFallbackDecoder) stage(eager, fused bool) (stage, bool) {
	switch {
	case fused:
		return &wholeStage{rewrite: func(text string) string {
			if b, ok := byteOfToken(text); ok {
				return byteRun([]byte{b})
			}
			return text
		}}, true
	case eager:
		return &byteEagerStage{assembler{perByte: true}}, false
	}
	return &byteRunStage{}, false
}

// byteOfToken reads <0xNN>.
func byteOfToken(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil
}

// byteRun is the text of a run of byte tokens: all of it, or U+FFFD for each
// byte if any part is broken.
func byteRun(run []byte) string {
	if utf8.Valid(run) {
		return string(run)
	}
	return strings.Repeat(replacement, len(run))
}

type byteRunStage struct{ run []byte }

func (s *byteRunStage) push(out []fragment, f fragment) []fragment {
	if b, ok := byteOfToken(f.text); ok {
		s.run = append(s.run, b)
		return out
	}
	return append(s.end(out), f)
}

func (s *byteRunStage) end(out []fragment) []fragment {
	if len(s.run) > 0 {
		out = append(out, fragment{text: byteRun(s.run)})
		s.run = s.run[:0]
	}
	return out
}

// byteEagerStage emits each character of a run as soon as it is whole.
type byteEagerStage struct{ utf8 assembler }

func (s *byteEagerStage) push(out []fragment, f fragment) []fragment {
	if b, ok := byteOfToken(f.text); ok {
		return appendText(out, s.utf8.push(string([]byte{b})))
	}
	return append(s.end(out), f)
}

func (s *byteEagerStage) end(out []fragment) []fragment { return appendText(out, s.utf8.end()) }

// appendText appends a text that is not empty: where nothing is complete no
// token has come.
func appendText(out []fragment, text string) []fragment {
	if text == "" {
		return out
	}
	return append(out, fragment{text: text})
}

// metaspaceDecoder turns the mark into a space; in the first token it drops it
// if the encoder put one in front.
type metaspaceDecoder struct {
	mark   string
	scheme prependScheme
}

func (d metaspaceDecoder) stage(_, fused bool) (stage, bool) {
	return &metaspaceStage{metaspaceDecoder: d, first: true, fused: fused}, fused
}

type metaspaceStage struct {
	metaspaceDecoder
	first, fused bool
}

func (s *metaspaceStage) push(out []fragment, f fragment) []fragment {
	space := " "
	if s.first && s.scheme != prependNever {
		space = ""
	}
	s.first = s.first && s.fused
	return append(out, fragment{text: strings.ReplaceAll(f.text, s.mark, space)})
}

func (s *metaspaceStage) end(out []fragment) []fragment {
	s.first = true
	return out
}

// spacesDecoder stands where a file names no decoder: tokens are joined by
// spaces.
type spacesDecoder struct{}

func (spacesDecoder) stage(bool, bool) (stage, bool) { return &spacesStage{}, true }

type spacesStage struct{ later bool }

func (s *spacesStage) push(out []fragment, f fragment) []fragment {
	if s.later {
		f.text = " " + f.text
	}
	s.later = true
	return append(out, f)
}

func (s *spacesStage) end(out []fragment) []fragment {
	s.later = false
	return out
}
