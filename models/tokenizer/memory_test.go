// What opening a tokenizer takes in memory, beside the file's own bytes.

package tokenizer

import (
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fixedMemory is what opening may take whatever the file's size: compiled
// expressions, small maps, first tables. Measured: up to 33 kB for the tiny
// files of the fuzz targets.
const fixedMemory = 1 << 20

// memoryFactor is how many times the file's bytes opening may take on top,
// whatever the file: measured up to 2.0 in hostile ones.
const memoryFactor = 2

// boundedMemory fails if open needs more than memoryFactor times size and
// fixedMemory at any time, or asks for more at once. All that it allocates
// bounds both; only where that is more they are measured.
func boundedMemory(t *testing.T, size int, open func()) {
	t.Helper()
	limit := int64(memoryFactor*size + fixedMemory)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	open()
	runtime.ReadMemStats(&after)
	if int64(after.TotalAlloc-before.TotalAlloc) <= limit {
		return
	}
	peak := peakMemory(open)
	for range 19 { // what was not yet collected counts too, the more, the busier the machine is
		if peak <= limit {
			break
		}
		peak = min(peak, peakMemory(open))
	}
	require.LessOrEqual(t, peak, limit)
	require.LessOrEqual(t, largestAllocation(open), limit)
}

// peakMemory is how far the live heap rises while open runs, as often as it
// can be collected and read.
func peakMemory(open func()) (peak int64) {
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	live := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	live()
	before := live()
	done, result := make(chan bool), make(chan int64)
	go func() {
		highest := before
		for {
			select {
			case <-done:
				result <- highest
				return
			default:
				highest = max(highest, live())
			}
		}
	}()
	open()
	done <- true
	return <-result - before
}

// largestAllocation is the size of the largest object that open allocates. The
// profile has a record for each size at each place.
func largestAllocation(open func()) (largest int64) {
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	before := map[[32]uintptr][]runtime.MemProfileRecord{}
	for _, r := range profile() {
		before[r.Stack0] = append(before[r.Stack0], r)
	}
	runtime.MemProfileRate = 1
	open()
	runtime.MemProfileRate = 0
	for _, r := range profile() {
		size := r.AllocBytes / max(r.AllocObjects, 1)
		for _, old := range before[r.Stack0] {
			if old.AllocBytes/max(old.AllocObjects, 1) == size {
				r.AllocObjects -= old.AllocObjects
			}
		}
		if r.AllocObjects > 0 && !ofProfile(r.Stack()) {
			largest = max(largest, size)
		}
	}
	return largest
}

// ofProfile tells whether an allocation was made to read the profile.
func ofProfile(stack []uintptr) bool {
	frames := runtime.CallersFrames(stack)
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, "tokenizer.profile") {
			return true
		}
		if !more {
			return false
		}
	}
}

func profile() []runtime.MemProfileRecord {
	runtime.GC()
	runtime.GC()
	for n := 1024; ; n *= 2 {
		records := make([]runtime.MemProfileRecord, n)
		if n, ok := runtime.MemProfile(records, true); ok {
			return records[:n]
		}
	}
}

func TestMemoryOfFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/*/tokenizer.json")
	require.NoError(t, err)
	more, err := filepath.Glob("testdata/*/*/tokenizer.*")
	require.NoError(t, err)
	require.Len(t, append(paths, more...), 6)
	for _, path := range append(paths, more...) {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		measured(t, path, data)
	}
	measured(t, "large.json", largeFile(t, 40000))
}

func measured(t *testing.T, name string, data []byte) {
	open := FromJSON
	if filepath.Ext(name) == ".model" {
		open = FromSentencePiece
	}
	var tok *Tokenizer
	var err error
	run := func() { tok, err = open(data) }
	peak, largest := peakMemory(run), largestAllocation(run)
	require.NoError(t, err)
	t.Logf("%s: %d bytes, peak %.2f, largest %.2f, %d tokens", name, len(data),
		float64(peak)/float64(len(data)), float64(largest)/float64(len(data)), tok.VocabSize())
	require.LessOrEqual(t, max(peak, largest), int64(memoryFactor*len(data)+fixedMemory), name)
}

// TestMemoryOfGGUF takes as size what the keys take in the file; the strings
// are the caller's.
func TestMemoryOfGGUF(t *testing.T) {
	large := filepath.Join(t.TempDir(), "large.json")
	require.NoError(t, os.WriteFile(large, largeFile(t, 40000), 0o600))
	for path, pre := range map[string]string{"testdata/gpt2_style/tokenizer.json": "gpt-2", "testdata/llama3_style/tokenizer.json": "llama-bpe", large: "gpt-2"} {
		g := ggufOf(t, path, pre)
		size := 4 * len(g.Types)
		for _, text := range append(slices.Clone(g.Tokens), g.Merges...) {
			size += 8 + len(text)
		}
		var tok *Tokenizer
		var err error
		run := func() { tok, err = FromGGUF(g) }
		peak, largest := peakMemory(run), largestAllocation(run)
		require.NoError(t, err)
		t.Logf("%s: %d bytes, peak %.2f, largest %.2f, %d tokens", path, size,
			float64(peak)/float64(size), float64(largest)/float64(size), tok.VocabSize())
		require.LessOrEqual(t, max(peak, largest), int64(memoryFactor*size+fixedMemory), path)
	}
}

// largeFile is a tokenizer.json of n merges whose tokens have up to 14
// letters.
func largeFile(t *testing.T, n int) []byte {
	tokens := make([]string, 256)
	for b, symbol := range byteSymbols() {
		tokens[symbol] = byteChar[b]
	}
	seen := map[string]bool{}
	var merges [][2]int32
	state := uint32(1)
	draw := func() int32 {
		state = state*1664525 + 1013904223
		return int32(state>>8) % int32(min(len(tokens), 3000))
	}
	for len(merges) < n {
		a, b := draw(), draw()
		if joined := tokens[a] + tokens[b]; !seen[joined] && len(joined) <= 14 {
			seen[joined] = true
			merges, tokens = append(merges, [2]int32{a, b}), append(tokens, joined)
		}
	}
	data, err := trainedFile(merges, []string{"<s>"})
	require.NoError(t, err)
	return data
}

func TestRepeatedTokensAndIDs(t *testing.T) {
	tok, err := FromJSON([]byte(`{"model":{"type":"BPE","merges":["a b"],"vocab":
		{"a":0,"b":1,"ab":2,"c":1,"b":7,"far":2000000000,"d":9,"far":3,"\u00e9\"":4,"d":2000000000}}}`))
	require.NoError(t, err)
	for token, id := range map[string]int32{"a": 0, "ab": 2, "c": 1, "b": 7, "far": 3, "é\"": 4, "d": 2000000000} {
		got, ok := tok.TokenToID(token)
		require.True(t, ok, token)
		require.Equal(t, id, got, token)
		shown, ok := tok.IDToToken(id)
		require.True(t, ok, token)
		require.Equal(t, token, shown)
	}
	require.Equal(t, 7, tok.VocabSize())
	_, ok := tok.IDToToken(9)
	require.False(t, ok)
	require.Equal(t, []int32{2, 7, 1}, encode(t, tok, "abbc", false))
}
