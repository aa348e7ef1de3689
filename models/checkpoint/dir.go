// Folders that are replaced as a whole.

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// WriteDir replaces the folder dir by one that fill writes. fill gets an empty
// folder dir.tmp-xxx beside it; when it returns nil, everything in it is
// synced to the disk and the folder takes the place of dir. On an error dir is
// as it was and the temporary is gone.
//
// A process killed at any moment leaves, after RecoverDir, the old folder or
// the new one, whole. On Linux the two are exchanged in one step, so dir is
// never absent. Elsewhere, and on file systems without the exchange, the old
// one is first renamed dir.tmp-old.
//
// Two writers must not use one dir at the same time.
func WriteDir(dir string, fill func(tmp string) error) (err error) {
	dir = filepath.Clean(dir)
	defer func() {
		if err != nil {
			err = fmt.Errorf("checkpoint: write folder %s: %w", dir, err)
		}
	}()
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return errors.New("it exists and is not a folder")
	}
	if fill == nil {
		return errors.New("the function that fills it is missing (nil)")
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return err
	}
	if err := RecoverDir(dir); err != nil {
		return err
	}
	tmp := temporaryName(dir)
	if err := os.Mkdir(tmp, 0o777); err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // what is there at the end is unfinished or superseded
	if err := fill(tmp); err != nil {
		return err
	}
	if err := syncTree(tmp); err != nil {
		return err
	}
	if err := replaceDir(tmp, dir); err != nil {
		return err
	}
	return syncPath(parent)
}

// replaceDir puts tmp in the place of dir; the old folder, if any, ends as tmp
// or is removed.
func replaceDir(tmp, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(tmp, dir)
	}
	if err := exchange(tmp, dir); err == nil || !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return replaceByRename(tmp, dir)
}

// replaceByRename is replaceDir in two steps.
func replaceByRename(tmp, dir string) error {
	old := dir + oldSuffix
	if err := os.Rename(dir, old); err != nil {
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return errors.Join(err, os.Rename(old, dir))
	}
	return os.RemoveAll(old)
}

const oldSuffix = ".tmp-old"

// RecoverDir mends what a killed WriteDir left: if dir is absent and dir.tmp-old
// is there, the latter is renamed dir; every other dir.tmp-xxx is unfinished or
// superseded and is removed. WriteDir begins with it; call it before reading a
// folder that may have been written by a process that was killed.
func RecoverDir(dir string) error {
	dir = filepath.Clean(dir)
	parent, base := filepath.Split(dir)
	if parent == "" {
		parent = "."
	}
	if base == "" || base == "." || base == ".." {
		return fmt.Errorf("checkpoint: recover %s: a folder with a name is required", dir)
	}
	list, err := os.ReadDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("checkpoint: recover %s: %w", dir, err)
	}
	_, err = os.Lstat(dir)
	absent := errors.Is(err, fs.ErrNotExist)
	for _, f := range list {
		name := f.Name()
		if !strings.HasPrefix(name, base+".tmp-") || !temporary.MatchString(name) || len(temporary.ReplaceAllString(name, "")) != len(base) {
			continue
		}
		path := filepath.Join(parent, name)
		if absent && name == base+oldSuffix {
			err = os.Rename(path, dir)
		} else {
			err = os.RemoveAll(path)
		}
		if err != nil {
			return fmt.Errorf("checkpoint: recover %s: %w", dir, err)
		}
	}
	return nil
}

// syncTree flushes all files and folders below root.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && (d.IsDir() || d.Type().IsRegular()) {
			err = syncPath(path)
		}
		return err
	})
}
