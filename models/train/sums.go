// Sums of the files of a checkpoint: what is read is what was written, and all
// of it of one step.

package train

import (
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// sums are the sums of files by their slash-separated paths in a folder.
type sums map[string]sum

type sum struct {
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c"` // 8 hexadecimal digits
}

func (s sum) String() string { return fmt.Sprintf("%d bytes with CRC-32C %s", s.Bytes, s.CRC32C) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func sumFile(path string) (sum, error) {
	f, err := os.Open(path)
	if err != nil {
		return sum{}, err
	}
	defer f.Close()
	h := crc32.New(castagnoli)
	n, err := io.Copy(h, f)
	return sum{n, fmt.Sprintf("%08x", h.Sum32())}, err
}

// sumFiles sums the files below dir.
func sumFiles(dir string) (sums, error) {
	all := sums{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		all[filepath.ToSlash(name)], err = sumFile(path)
		return err
	})
	return all, err
}

// check requires the files in dir to have their sums. Checkpoints without sums
// pass.
func (s sums) check(dir string) error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if !fs.ValidPath(name) {
			return fmt.Errorf("%s: files must have paths inside the folder, got %q", filepath.Join(dir, trainerName), name)
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		got, err := sumFile(path)
		if err != nil {
			return fmt.Errorf("a file of the checkpoint must be readable: %w", err)
		}
		if got != s[name] {
			return fmt.Errorf("%s: must be as the checkpoint was saved, %v, got %v", path, s[name], got)
		}
	}
	return nil
}
