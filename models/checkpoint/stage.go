// Files that are written under a temporary name and renamed when all of them
// are complete and on the disk.

package checkpoint

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// temporary matches the suffix of every temporary file and folder.
var temporary = regexp.MustCompile(`\.tmp-([0-9a-f]{16}|old)$`)

func temporaryName(path string) string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return path + ".tmp-" + hex.EncodeToString(b[:])
}

// removeTemporaries removes those of dir that begin with prefix.
func removeTemporaries(dir, prefix string) error {
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range list {
		if strings.HasPrefix(f.Name(), prefix) && temporary.MatchString(f.Name()) && f.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// stage holds the files of one save until they are published together.
type stage struct{ files []staged }

type staged struct{ tmp, final string }

// create opens a temporary file; tests put a failing disk here.
var create = func(path string) (file, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
}

type file interface {
	io.WriteCloser
	Sync() error
}

// write fills the temporary of final and syncs it.
func (s *stage) write(final string, fill func(w io.Writer) error) error {
	tmp := temporaryName(final)
	f, err := create(tmp)
	if err != nil {
		return err
	}
	s.files = append(s.files, staged{tmp, final})
	if err = fill(f); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// publish renames the files in the order they were written and syncs dir.
// When one fails, those that took a new name are removed again.
func (s *stage) publish(dir string) error {
	for i, f := range s.files {
		if err := os.Rename(f.tmp, f.final); err != nil {
			for _, done := range s.files[:i] {
				err = errors.Join(err, os.Remove(done.final))
			}
			return err
		}
	}
	if err := syncPath(dir); err != nil {
		return fmt.Errorf("the files are in place, but syncing the folder failed: %w", err)
	}
	return nil
}

// discard removes what was not renamed.
func (s *stage) discard() {
	for _, f := range s.files {
		os.Remove(f.tmp)
	}
}
