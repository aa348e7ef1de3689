// Files that are replaced as a whole.

package train

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
)

// fileTemporary are the names of temporaries in the folder of a run.
var fileTemporary = regexp.MustCompile(`^(tokens-.*|loss\.csv|loss\.png|run\.json|last|best)\.tmp-[0-9a-f]{16}$`)

// temporary is a name beside path that nobody has.
func temporary(path string) string { return fmt.Sprintf("%s.tmp-%016x", path, rand.Uint64()) }

// ReplaceFile writes path through a temporary beside it: a reader, or a run
// after a crash, finds the old file or the new one.
func ReplaceFile(path string, write func(w io.Writer) error) error {
	if write == nil {
		return fmt.Errorf("train: ReplaceFile: what writes %s is missing (nil)", path)
	}
	tmp := temporary(path)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
