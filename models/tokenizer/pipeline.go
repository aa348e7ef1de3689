// The encoder of tokenizer.json: added tokens, normalizer, pre-tokenizers,
// model, template.

package tokenizer

import "sync"

type pipeline struct {
	added           *addedMatcher // looked for in the text as it came
	addedNormalized *addedMatcher // looked for in normalized text
	normalizer      normalizer    // nil: none
	pre             []preTokenizer
	model           model
	before, after   []int32 // ids of the template around the text
	scratch         sync.Pool
}

func (p *pipeline) encode(dst []int32, text string, o EncodeOptions) ([]int32, error) {
	s, ok := p.scratch.Get().(*scratch)
	if !ok {
		s = &scratch{}
	}
	defer func() {
		s.trim()
		p.scratch.Put(s)
	}()

	e := encoding{pipeline: p, scratch: s, ids: dst, literal: o.Literal}
	e.word = e.toModel
	for i := len(p.pre) - 1; i >= 0; i-- {
		pre, next := p.pre[i], e.word
		e.word = func(text string, atStart bool) error { return pre.cut(text, atStart, next) }
	}
	if o.AddSpecial {
		e.ids = append(e.ids, p.before...)
	}
	err := p.added.walk(text, o.Literal, func(from, to int) error {
		return e.stretch(text[from:to], from == 0)
	}, e.token)
	if o.AddSpecial {
		e.ids = append(e.ids, p.after...)
	}
	return e.ids, err
}

func (p *pipeline) surround(before, after []int32) { p.before, p.after = before, after }

// encoding is the state of one call.
type encoding struct {
	pipeline *pipeline
	scratch  *scratch
	ids      []int32
	literal  bool
	word     pieceFunc // the pre-tokenizers, then the model
}

func (e *encoding) token(id int32) { e.ids = append(e.ids, id) }

// stretch encodes text without added tokens of the first kind.
func (e *encoding) stretch(text string, atStart bool) (err error) {
	p := e.pipeline
	if p.normalizer != nil {
		if text, atStart, err = p.normalizer.normalize(text, atStart); err != nil {
			return err
		}
	}
	return p.addedNormalized.walk(text, e.literal, func(from, to int) error {
		return e.word(text[from:to], atStart && from == 0)
	}, e.token)
}

func (e *encoding) toModel(text string, _ bool) (err error) {
	e.ids, err = e.pipeline.model.appendWord(e.ids, text, e.scratch)
	return err
}

// keepSymbols is how much working memory an idle scratch keeps.
const keepSymbols = 1 << 16

// trim gives back the memory of an unusually long word.
func (s *scratch) trim() {
	if cap(s.symbols) > keepSymbols || cap(s.nodes) > keepSymbols {
		*s = scratch{cache: s.cache}
	}
}
