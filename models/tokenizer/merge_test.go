// Merging against its definition, cutting and caching against doing without,
// and long words in linear memory and near-linear time.

package tokenizer

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mergeByDefinition joins, while it can, the pair of lowest rank, the leftmost
// of equal ones.
func mergeByDefinition(rules map[[2]int32][2]int32, symbols []int32) []int32 {
	for {
		best, at := int32(math.MaxInt32), -1
		for i := 1; i < len(symbols); i++ {
			if r, ok := rules[[2]int32{symbols[i-1], symbols[i]}]; ok && r[0] < best {
				best, at = r[0], i-1
			}
		}
		if at < 0 {
			return symbols
		}
		joined := rules[[2]int32{symbols[at], symbols[at+1]}][1]
		symbols = slices.Concat(symbols[:at], []int32{joined}, symbols[at+2:])
	}
}

// ruleTable has the rules of a map.
type ruleTable map[[2]int32][2]int32

func (t ruleTable) rule(left, right int32, _ *scratch) (rank uint32, joined int32) {
	if r, ok := t[[2]int32{left, right}]; ok {
		return uint32(r[0]), r[1]
	}
	return noRank, 0
}

func TestMergeFollowsItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		rules := map[[2]int32][2]int32{}
		m := merger{ruleTable(rules)}
		size := int32(2 + r.IntN(3))
		for rank := range int32(1 + r.IntN(40)) {
			pair := [2]int32{r.Int32N(size), r.Int32N(size)}
			if _, ok := rules[pair]; ok {
				continue
			}
			shared := rank
			if r.IntN(4) == 0 {
				shared = rank / 2 // scores may tie
			}
			rules[pair] = [2]int32{shared, size}
			size++
		}
		symbols := make([]int32, r.IntN(90))
		for i := range symbols {
			symbols[i] = r.Int32N(min(size, 4))
		}
		want := mergeByDefinition(rules, symbols)
		s := &scratch{}
		require.Equal(t, want, m.mergeShort(slices.Clone(symbols), s))
		require.Equal(t, want, m.mergeLong(slices.Clone(symbols), s))
	}
}

// TestCutsAndCacheChangeNothing encodes with and without the cuts between
// characters that no token joins, and with a warm cache.
func TestCutsAndCacheChangeNothing(t *testing.T) {
	text := sourceText(t, opticks, 100000, 160000)
	for _, file := range benchFiles {
		tok, err := Open(filepath.Join("testdata", file))
		require.NoError(t, err)
		want := encode(t, tok, text, false)
		require.Equal(t, want, encode(t, tok, text, false), "second time")
		switch e := tok.enc.(type) {
		case *pipeline:
			e.model.(*bpe).adjacent = nil
		case *spEncoder:
			all := newNeighbours()
			all.add(" " + strings.ReplaceAll(text, " ", spaceMark))
			e.model.(*scoredBPE).adjacent = all
		}
		require.Equal(t, want, encode(t, tok, text, false), file)
	}
}

// TestLongLines encodes a megabyte without a place to cut. Work that grew with
// the square of the length would take hours; the bound leaves room for a busy
// machine (measured: 0.2 s).
func TestLongLines(t *testing.T) {
	text := strings.Repeat("ab", 1<<19)
	for _, file := range benchFiles {
		tok, err := Open(filepath.Join("testdata", file))
		require.NoError(t, err)
		start := time.Now()
		ids := encode(t, tok, text, false)
		require.Less(t, time.Since(start), time.Minute, file)
		require.Equal(t, text, tok.Decode(ids, false))
	}
}
