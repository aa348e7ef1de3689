package ops_test

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seafan/seafan/ops"
)

var update = flag.Bool("update", false, "rewrite the table of ops in the README")

// TestReadmeListsTheOps proves the README's table fresh; run it with -update
// to write it.
func TestReadmeListsTheOps(t *testing.T) {
	const path = "../README.md"
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	block := regexp.MustCompile(`(?s)<!-- ops: .*?-->\n(.*?)<!-- end of ops -->`)
	at := block.FindSubmatchIndex(raw)
	require.NotNil(t, at, "README.md holds the markers of the table")
	if *update {
		text := string(raw[:at[2]]) + ops.SupportTable() + string(raw[at[3]:])
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return
	}
	require.Equal(t, ops.SupportTable(), string(raw[at[2]:at[3]]), "run: go test ./ops -run Readme -update")
	require.LessOrEqual(t, strings.Count(string(raw), "\n"), 150)
}
