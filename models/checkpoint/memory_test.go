// What opening a checkpoint takes in memory.

package checkpoint

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// boundedOpen opens a file and holds the peak of live memory, beside the file's
// own bytes, to twice its size and the slack of the budget, and 1 MB for what is
// not collected yet. All that opening allocates bounds it; only where that is more
// it is measured.
func boundedOpen(t *testing.T, file []byte) (*Checkpoint, error) {
	t.Helper()
	var c *Checkpoint
	var err error
	open := func() { c, err = OpenReaderAt(bytes.NewReader(file), int64(len(file))) }
	limit := int64(2*len(file) + budgetSlack + 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	open()
	runtime.ReadMemStats(&after)
	if int64(after.TotalAlloc-before.TotalAlloc) > limit {
		peak := peakMemory(open)
		for range 4 {
			if peak > limit {
				peak = min(peak, peakMemory(open))
			}
		}
		require.LessOrEqual(t, peak, limit)
	}
	return c, err
}

// peakMemory is how far the live heap rises while open runs.
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

// TestHostileHeaders: files that are all header. Those of many parts are refused
// when these take more memory than the budget; a file with few opens.
func TestHostileHeaders(t *testing.T) {
	const n = 200000
	list := func(entry func(i int) string) string {
		var out strings.Builder
		for i := range n {
			if i > 0 {
				out.WriteByte(',')
			}
			out.WriteString(entry(i))
		}
		return out.String()
	}
	const empty = `{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
	tensors, keys, strs, lists := begin(3, n, 0), begin(3, 0, n), begin(3, 0, 1), begin(3, 0, 1)
	strs.str("k").u32(ggufArray).u32(ggufString).u64(n)
	lists.str("k").u32(ggufArray).u32(ggufArray).u64(n)
	for i := range n {
		tensors.tensor(fmt.Sprint(i), 0, 0, 0)
		keys.str(fmt.Sprint(i)).u32(ggufUint8).Write([]byte{1})
		strs.str("")
		lists.u32(ggufUint8).u64(0)
	}
	for name, file := range map[string][]byte{
		"tensors":      raw(`{`+list(func(i int) string { return fmt.Sprintf(`"%d":%s`, i, empty) })+`}`, nil),
		"metadata":     raw(`{"__metadata__":{`+list(func(i int) string { return fmt.Sprintf(`"%d":""`, i) })+`}}`, nil),
		"a long name":  raw(`{"`+strings.Repeat("a", 1<<22)+`":`+empty+`}`, nil),
		"gguf tensors": tensors.Bytes(), "gguf keys": keys.Bytes(), "gguf strings": strs.Bytes(), "gguf lists": lists.Bytes(),
		"a long gguf string": begin(3, 0, 1).str("k").u32(ggufString).str(strings.Repeat("a", 1<<22)).Bytes(),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := boundedOpen(t, file)
			if strings.Contains(name, "gguf string") {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, fmt.Sprintf("takes more memory than twice the file's %d bytes", len(file)))
		})
	}
	few := raw(`{`+strings.Join(strings.SplitN(list(func(i int) string { return fmt.Sprintf(`"%d":%s`, i, empty) }), `]},`, 1001)[:1000], `]},`)+`]}}`, nil)
	c, err := boundedOpen(t, few)
	require.NoError(t, err)
	require.Len(t, c.Tensors(), 1000)
}
