// Stop strings, against their definition.

package generate

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/models/tokenizer"
)

// stopAt is the definition: byte by byte, the text ends as soon as its tail is
// a stop string, before the longest such.
func stopAt(text string, stops []string) (string, bool) {
	for end := range len(text) + 1 {
		longest := 0
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) {
				longest = max(longest, len(s))
			}
		}
		if longest > 0 {
			return text[:end-longest], true
		}
	}
	return text, false
}

// TestStopStringsDoNotDependOnTheTokens cuts random texts of few letters into
// random pieces, with stop strings that overlap and span many of them.
func TestStopStringsDoNotDependOnTheTokens(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[r.IntN(2)]
		}
		return string(b)
	}
	stopped := 0
	for range 20000 {
		text := letters(r.IntN(20))
		var stops []string
		for range r.IntN(4) {
			stops = append(stops, letters(r.IntN(7)))
		}
		want, found := stopAt(text, stops)
		w := writer{stream: tokenizer.Byte().Stream(true), stop: stops}
		got, ended := "", false
		for rest := text; rest != "" && !ended; {
			n := 1 + r.IntN(min(6, len(rest)))
			piece, stop := w.add(rest[:n])
			require.True(t, strings.HasPrefix(want, got+piece), "%q: %q leaves too early, stops %q", text, got+piece, stops)
			got, rest, ended = got+piece, rest[n:], stop
		}
		if !ended {
			got += w.flush()
		}
		require.Equal(t, want, got, "%q, stops %q", text, stops)
		require.Equal(t, found, ended)
		if found {
			stopped++
		}
	}
	require.Greater(t, stopped, 2000)
}
