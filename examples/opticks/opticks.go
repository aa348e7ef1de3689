// Package opticks finds a text to train on that every Go install has: Newton's
// Opticks.
package opticks

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Path is where the text lies; its errors are those of a missing flag -text.
func Path(ctx context.Context) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("-text: must name a text, the Go install was not found: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(root)), "src", "testdata", "Isaac.Newton-Opticks.txt")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("-text: must name a text: %w", err)
	}
	return path, nil
}
