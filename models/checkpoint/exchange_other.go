//go:build !linux

// Systems without an atomic exchange of folders.

package checkpoint

import "errors"

func exchange(_, _ string) error { return errors.ErrUnsupported }
