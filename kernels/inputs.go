package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// Flags are given to every compilation: the one list of architectures. wgmma and TMA code is guarded by
// __CUDA_ARCH_FEAT_SM90_ALL, so only the sm_90a image holds it; newer GPUs start from the PTX.
var Flags = []string{
	"-std=c++17", "-O3", "--fatbin", "-compress-mode=size", "-Xptxas=-v", "--expt-relaxed-constexpr",
	"-gencode=arch=compute_80,code=[sm_80,compute_80]",
	"-gencode=arch=compute_89,code=[sm_89,compute_89]",
	"-gencode=arch=compute_90a,code=sm_90a",
}

// MaxTotalBytes bounds all images together.
const MaxTotalBytes = 12 << 20

// Sum is the hexadecimal sha256 of data.
func Sum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

var include = regexp.MustCompile(`(?m)^\s*#\s*include\s+"([^"]+)"`)

// Inputs hashes a source under dir and every header that it includes with quotes, directly or through another.
func Inputs(dir, source string) (map[string]string, error) {
	sums := map[string]string{}
	var visit func(path string) error
	visit = func(path string) error {
		if _, done := sums[path]; done {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return fmt.Errorf("kernels: input of %s: %w", source, err)
		}
		sums[path] = Sum(text)
		for _, m := range include.FindAllStringSubmatch(string(text), -1) {
			next := filepath.ToSlash(filepath.Join(filepath.Dir(path), m[1]))
			if _, err := os.Stat(filepath.Join(dir, next)); err != nil {
				next = "include/" + m[1]
			}
			if err := visit(next); err != nil {
				return err
			}
		}
		return nil
	}
	if err := visit(source); err != nil {
		return nil, err
	}
	return sums, nil
}
