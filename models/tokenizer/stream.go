// Decoding as a chain of stages, and the incremental detokenizer over it.

package tokenizer

// fragment is a piece of text on its way through the stages: at the first
// stage one token with its id, later any text.
type fragment struct {
	id   int32
	text string
}

// stage is one step of decoding. It may hold text back until more tokens or
// the end have come. end also makes the stage ready for the next decoding.
type stage interface {
	push(out []fragment, f fragment) []fragment
	end(out []fragment) []fragment
}

// chain runs fragments through stages and collects the text that comes out.
type chain struct {
	stages []stage
	fresh  [][]fragment // output of each stage, reused
	out    []byte
}

func newChain(stages []stage) *chain {
	return &chain{stages: stages, fresh: make([][]fragment, len(stages))}
}

func (c *chain) push(f fragment) { c.feed(0, f) }

func (c *chain) feed(at int, f fragment) {
	if at == len(c.stages) {
		c.out = append(c.out, f.text...)
		return
	}
	c.fresh[at] = c.stages[at].push(c.fresh[at][:0], f)
	for _, g := range c.fresh[at] {
		c.feed(at+1, g)
	}
}

func (c *chain) end() {
	for at := range c.stages {
		c.fresh[at] = c.stages[at].end(c.fresh[at][:0])
		for _, g := range c.fresh[at] {
			c.feed(at+1, g)
		}
	}
}

func (c *chain) take() string {
	s := string(c.out)
	c.out = c.out[:0]
	return s
}

// Stream turns ids into text one at a time. A character leaves with its last
// byte: never a part of one, never earlier as U+FFFD. Text of a token before
// the character that it starts leaves at once. U+FFFD comes only for bytes
// that can no longer become a character.
//
// Joined, the pieces are what Decode gives, but for one case: where a run of
// byte tokens is broken somewhere, a tokenizer.json with ByteFallback decodes
// the whole run as U+FFFD, valid characters in it included; a Stream has
// emitted those by then.
//
// A Stream is for one goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	chain       *chain
}

// Stream starts an incremental decoding.
func (t *Tokenizer) Stream(skipSpecial bool) *Stream {
	t = t.some()
	return &Stream{t: t, skipSpecial: skipSpecial, chain: newChain(t.decode(true))}
}

// Push takes the next id and returns the text that is now complete, possibly
// none.
func (s *Stream) Push(id int32) string {
	token, ok := s.t.vocab.shown(id, s.skipSpecial)
	if !ok {
		return ""
	}
	s.chain.push(fragment{id: id, text: token})
	return s.chain.take()
}

// Flush returns what is left, a cut character as U+FFFD, and makes the Stream
// ready for another text.
func (s *Stream) Flush() string {
	s.chain.end()
	return s.chain.take()
}
