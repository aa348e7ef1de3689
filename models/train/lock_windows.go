// Locking of the folder of a run by a file in it that one process can have open.

package train

import (
	"errors"
	"os"
	"path/filepath"

	win "golang.org/x/sys/windows"
)

// lockFolder holds dir until the file is closed: nobody else can open it, and the
// system removes it when it closes it, for a killed process too. errLocked: another
// holds dir.
func lockFolder(dir string) (*os.File, error) {
	path := filepath.Join(dir, ".run-lock")
	name, err := win.UTF16PtrFromString(path)
	if err != nil {
		return nil, err
	}
	h, err := win.CreateFile(name, win.GENERIC_READ|win.DELETE, 0, nil, win.OPEN_ALWAYS, win.FILE_FLAG_DELETE_ON_CLOSE, 0)
	switch {
	case errors.Is(err, win.ERROR_SHARING_VIOLATION):
		return nil, errLocked
	case err != nil:
		return nil, &os.PathError{Op: "lock", Path: path, Err: err}
	}
	return os.NewFile(uintptr(h), path), nil
}

// unlockFolder lets go of the folder before last, which could not remove it
// while the file is in it, nor when the file of another is.
func unlockFolder(f *os.File, last func()) error {
	defer last()
	return f.Close()
}
