// The folder of a run: held by one process, never another's.

package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"

	"github.com/seafan/seafan/models/checkpoint"
)

// Folder is the folder of a run, held by this process alone.
type Folder struct {
	path string
	lock *os.File                // nil: it was let go
	made bool                    // it was not there
	user atomic.Pointer[Trainer] // that writes to it, by In; nil: none
}

// Claim holds the folder dir, made if it is absent, until Close, and mends what
// a killed run left in it. It fails where another run, of this process or another,
// holds the folder: Linux, macOS, the BSDs and Windows tell. A program that keeps
// files of its own beside those of the run claims the folder before it writes the
// first; a Trainer with Dir does it by itself.
func Claim(dir string) (*Folder, error) {
	f := &Folder{path: dir}
	_, err := os.Stat(dir)
	f.made = errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, fmt.Errorf("the folder of the run must be writable: %w", err)
	}
	if f.lock, err = lockFolder(dir); err != nil {
		return nil, fmt.Errorf("%s: must not be written to by another run: %w", dir, err)
	}
	if err := f.mend(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var stepTemporary = regexp.MustCompile(`^(step-[0-9]{8,})\.tmp-`)

// mend removes or completes what a killed run left.
func (f *Folder) mend() error {
	list, err := os.ReadDir(f.path)
	if err != nil {
		return err
	}
	for _, e := range list {
		if m := stepTemporary.FindStringSubmatch(e.Name()); m != nil {
			err = checkpoint.RecoverDir(filepath.Join(f.path, m[1]))
		} else if fileTemporary.MatchString(e.Name()) && !e.IsDir() {
			err = os.Remove(filepath.Join(f.path, e.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var errNoFolder = errors.New("train: the folder is missing (nil): Claim holds one")

var errLocked = errors.New("it is locked")

// lend gives the folder to a Trainer until giveBack, one at a time.
func (f *Folder) lend(t *Trainer) error {
	if err := f.held(); err != nil {
		return err
	}
	if f.user.Load() != t && !f.user.CompareAndSwap(nil, t) {
		return fmt.Errorf("%s: must not be written to by two trainers at once: another one has resumed in it, and has it until its Run ends", f.path)
	}
	return nil
}

func (f *Folder) giveBack(t *Trainer) { f.user.CompareAndSwap(t, nil) }

// held fails where the folder is not this process's any more.
func (f *Folder) held() error {
	switch {
	case f == nil:
		return errNoFolder
	case f.lock == nil:
		return fmt.Errorf("the folder %s was closed: Claim holds it again", f.path)
	}
	return nil
}

// Close lets the folder go. One that Claim made is removed if it is empty.
func (f *Folder) Close() error {
	if err := f.held(); err != nil {
		return err
	}
	lock := f.lock
	f.lock = nil
	return unlockFolder(lock, func() {
		if f.made {
			_ = os.Remove(f.path) // fails, as it should, where there is anything in it
		}
	})
}

// Fresh fails unless a new run can begin in the folder without writing over
// anything: where it holds a run, or a file or folder with a name that a run
// writes to.
func (f *Folder) Fresh() error {
	if err := f.held(); err != nil {
		return err
	}
	steps, err := listSteps(f.path)
	if err != nil {
		return err
	}
	if len(steps) > 0 {
		return fmt.Errorf("%s holds a run of %d steps: resume it, or choose another folder", f.path, steps[len(steps)-1])
	}
	for _, name := range []string{metricsName, lossesName, curveName, LastName, BestName, stepName(0)} {
		path := filepath.Join(f.path, name)
		switch _, err := os.Lstat(path); {
		case err == nil:
			return fmt.Errorf("%s is there, but no checkpoint of a run: a new run needs a folder without it", path)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}
