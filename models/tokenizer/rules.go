// The merge rules that a file lists.

package tokenizer

import (
	"errors"
	"math/bits"
)

// ruleList is pairs of symbols in the order of ranks, and a table that finds
// them: 13 bytes a rule. What a pair becomes is the token that both spell.
type ruleList struct {
	pairs  []rulePair
	slots  []uint32 // rank + 1; 0: free
	joined []byte   // memory of who adds rules
}

type rulePair struct{ left, right int32 }

// newRuleList has room for n pairs.
func newRuleList(n int) *ruleList {
	return &ruleList{pairs: make([]rulePair, 0, n), slots: make([]uint32, n+n/4+1)}
}

// slot is the entry of a pair, or the free one where it goes.
func (l *ruleList) slot(p rulePair) *uint32 {
	n := uint64(len(l.slots))
	key := pairKey(p.left, p.right)
	for i, _ := bits.Mul64(key*0x9E3779B97F4A7C15, n); ; i++ {
		if i == n {
			i = 0
		}
		if s := &l.slots[i]; *s == 0 || l.pairs[*s-1] == p {
			return s
		}
	}
}

// add puts a pair at the next rank; of equal ones the last counts.
func (l *ruleList) add(p rulePair) error {
	if len(l.pairs) == cap(l.pairs) {
		return errors.New("merges: most are there several times")
	}
	l.pairs = append(l.pairs, p)
	*l.slot(p) = uint32(len(l.pairs))
	return nil
}

// listedRules are those of a model.
type listedRules struct {
	*ruleList
	model *bpe
}

func (r *listedRules) rule(left, right int32, s *scratch) (rank uint32, joined int32) {
	place := *r.slot(rulePair{left, right})
	if place == 0 {
		return noRank, 0
	}
	a, _ := r.model.vocab.own(left)
	b, _ := r.model.vocab.own(right)
	s.spelled = append(append(s.spelled[:0], a...), b[len(r.model.prefix):]...)
	joined, _ = r.model.words.find(view(s.spelled))
	return place - 1, joined
}
