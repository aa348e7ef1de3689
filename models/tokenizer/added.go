// Added tokens: strings that are found in a text before anything else looks at
// it.

package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is one entry of added_tokens.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only between characters that are no word
	LStrip     bool   `json:"lstrip"`      // takes the white space before it
	RStrip     bool   `json:"rstrip"`      // and after it
	Normalized bool   `json:"normalized"`  // is looked for in normalized text
	Special    bool   `json:"special"`
}

// addedMatcher finds added tokens: the leftmost, and of those the longest.
type addedMatcher struct {
	tokens []addedToken
	start  [256]bool  // bytes that some token starts with
	only   int        // the one byte that starts every token, or -1
	trie   *pairTable // (node, byte) -> (child, index of the token or -1)
}

// newAddedMatcher is nil for no tokens.
func newAddedMatcher(tokens []addedToken) *addedMatcher {
	if len(tokens) == 0 {
		return nil
	}
	m := &addedMatcher{tokens: tokens, trie: newPairTable(), only: int(tokens[0].Content[0])}
	nodes := int32(1)
	for index, token := range tokens {
		m.start[token.Content[0]] = true
		if int(token.Content[0]) != m.only {
			m.only = -1
		}
		node := int32(0)
		for i := range len(token.Content) {
			b := int32(token.Content[i])
			child, leaf, ok := m.trie.get(node, b)
			if !ok {
				child, leaf = nodes, -1
				nodes++
			}
			if i == len(token.Content)-1 {
				leaf = int32(index)
			}
			m.trie.set(node, b, child, leaf)
			node = child
		}
	}
	return m
}

// find returns the next token at or after from; index -1: none.
func (m *addedMatcher) find(text string, from int) (index, start, end int) {
	for i := from; i < len(text); i++ {
		if m.only >= 0 {
			n := strings.IndexByte(text[i:], byte(m.only))
			if n < 0 {
				break
			}
			i += n
		} else if !m.start[text[i]] {
			continue
		}
		if index, n := m.longest(text[i:]); n > 0 {
			return index, i, i + n
		}
	}
	return -1, 0, 0
}

// longest returns the longest token that text starts with; n 0: none.
func (m *addedMatcher) longest(text string) (index, n int) {
	node := int32(0)
	for i := range len(text) {
		child, leaf, ok := m.trie.get(node, int32(text[i]))
		if !ok {
			break
		}
		node = child
		if leaf >= 0 {
			index, n = int(leaf), i+1
		}
	}
	return index, n
}

// walk calls token for each added token of text and plain for each stretch
// between them that is not empty. skipSpecial leaves special tokens in the
// plain text. A nil matcher finds nothing.
func (m *addedMatcher) walk(text string, skipSpecial bool, plain func(from, to int) error, token func(id int32)) error {
	done := 0
	for from := 0; m != nil; {
		index, start, end := m.find(text, from)
		if index < 0 {
			break
		}
		from = end
		t := &m.tokens[index]
		if skipSpecial && t.Special || t.SingleWord && !standsAlone(text, start, end) {
			continue
		}
		if t.LStrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if t.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if done < start {
			if err := plain(done, start); err != nil {
				return err
			}
		}
		if start < end { // else the white space that it is went to the one before it
			token(t.ID)
		}
		done = end
	}
	if done < len(text) {
		return plain(done, len(text))
	}
	return nil
}

func standsAlone(text string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(text[:start])
	after, _ := utf8.DecodeRuneInString(text[end:])
	return (start == 0 || !isWord(before)) && (end == len(text) || !isWord(after))
}
