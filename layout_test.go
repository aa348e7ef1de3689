// Tests that hold the whole tree to its layout: which package may import which,
// how long a file may be, and what must not stand in one.
package seafan_test

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/seafan/seafan/"

// mayImport lists, for each part of the tree, the parts of ours that its code
// (tests apart) may import. A package may import those below its own part.
var mayImport = []struct {
	part string
	from []string
}{
	{"graph/dtype", nil},
	{"graph", []string{"graph/dtype"}},
	{"ops/native", []string{"graph/dtype"}},
	{"ops/optest/cases", []string{"graph", "ops", "ops/optest"}},
	{"ops/optest", nil},
	{"kernels", nil},
	{"ops/cuda", []string{"graph", "ops", "kernels"}},
	{"ops", []string{"graph", "ops/native"}},
	{"autocast", []string{"graph", "ops"}},
	{"models/tokenizer", nil},
	{"models/checkpoint", []string{"graph/dtype"}},
	{"models", []string{"graph", "ops", "autocast", "models/tokenizer", "models/checkpoint"}},
	{"models/train", []string{"graph", "ops", "autocast", "models"}},
	{"models/generate", []string{"graph", "ops", "autocast", "models"}},
	{"examples", []string{"graph", "ops", "autocast", "models", "kernels"}},
}

// partOf is the longest part that a package belongs to.
func partOf(pkg string) (int, bool) {
	best, found := 0, false
	for i, p := range mayImport {
		if (pkg == p.part || strings.HasPrefix(pkg, p.part+"/")) && (!found || len(p.part) > len(mayImport[best].part)) {
			best, found = i, true
		}
	}
	return best, found
}

func TestImportsGoOneWay(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	require.NoError(t, err)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for dec.More() {
		var p struct {
			ImportPath string
			Imports    []string
		}
		require.NoError(t, dec.Decode(&p))
		if p.ImportPath+"/" == module {
			continue // these tests
		}
		pkg := strings.TrimPrefix(p.ImportPath, module)
		own, found := partOf(pkg)
		require.True(t, found, "%s belongs to no part of the tree", pkg)
		for _, imp := range p.Imports {
			if !strings.HasPrefix(imp, module) {
				continue
			}
			i, found := partOf(strings.TrimPrefix(imp, module))
			require.True(t, found, "%s imports %s", pkg, imp)
			allowed := i == own || slices.ContainsFunc(mayImport[own].from, func(a string) bool {
				return mayImport[i].part == a || strings.HasPrefix(mayImport[i].part, a+"/") && !strings.HasPrefix(mayImport[i].part, "ops/optest")
			})
			require.True(t, allowed, "%s must not import %s", pkg, imp)
		}
	}
}

// vagueNames are package names that do not say what is in the package.
var vagueNames = []string{"util", "utils", "common", "helpers", "helper", "misc", "base", "shared", "core", "lib"}

func TestFilesAreReadable(t *testing.T) {
	const longest = 650 // lines; a file above about 600 holds more than one idea
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "build" || name == "runs") {
				return filepath.SkipDir
			}
			require.NotContains(t, vagueNames, d.Name(), path)
			return nil
		}
		switch filepath.Ext(path) {
		case ".go", ".s", ".cu", ".cuh":
		default:
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close() // only read
		lines := 0
		for s := bufio.NewScanner(f); s.Scan(); lines++ {
			require.NotContains(t, s.Text(), "/"+"work/", "%s:%d holds an absolute path", path, lines+1)
		}
		require.LessOrEqual(t, lines, longest, path)
		return nil
	})
	require.NoError(t, err)
}
