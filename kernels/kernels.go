// Package kernels holds the CUDA sources, their compiled images and the manifest that ties the two together. It imports
// nothing of the project: ops/cuda loads the images, kernelc writes them. The images are embedded; SEAFAN_CUDA_IMAGES names a
// folder to take images and manifest from instead, to try kernels without building the program again.
package kernels

import (
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

//go:embed image
var images embed.FS

// Manifest says what the images were built from. Its test recomputes Sources from the working tree, so an image that
// is older than its source fails without a compiler at hand.
type Manifest struct {
	Compiler string   `json:"compiler"` // the version line of nvcc
	Flags    []string `json:"flags"`    // flags of every compilation
	Images   []Image  `json:"images"`
}

// Image is one compiled source file.
type Image struct {
	Source  string            `json:"source"`  // file name under kernels/
	Inputs  map[string]string `json:"inputs"`  // sha256 of the source and of each header that it includes, by path
	File    string            `json:"file"`    // file name under kernels/image/
	SHA256  string            `json:"sha256"`  // of the image
	Entries []string          `json:"entries"` // kernel names
}

type catalogue struct {
	read     func(file string) ([]byte, error)
	manifest Manifest
	byEntry  map[string]string // kernel name to image file
	err      error
}

var load = sync.OnceValue(func() catalogue {
	if dir := os.Getenv("SEAFAN_CUDA_IMAGES"); dir != "" {
		return open(func(file string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, file)) })
	}
	return open(func(file string) ([]byte, error) { return images.ReadFile("image/" + file) })
})

func open(read func(file string) ([]byte, error)) (c catalogue) {
	c.read = read
	text, err := c.read("manifest.json")
	if err != nil {
		c.err = fmt.Errorf("kernels: no manifest: %w", err)
		return c
	}
	if err := json.Unmarshal(text, &c.manifest); err != nil {
		c.err = fmt.Errorf("kernels: manifest.json: %w", err)
		return c
	}
	c.byEntry = map[string]string{}
	for _, image := range c.manifest.Images {
		for _, entry := range image.Entries {
			c.byEntry[entry] = image.File
		}
	}
	return c
}

// Built returns the manifest of the images.
func Built() (Manifest, error) {
	c := load()
	return c.manifest, c.err
}

// FileOf returns the image file that holds a kernel.
func FileOf(entry string) (string, error) {
	c := load()
	if c.err != nil {
		return "", c.err
	}
	file, ok := c.byEntry[entry]
	if !ok {
		return "", fmt.Errorf("kernels: no image has a kernel named %q", entry)
	}
	return file, nil
}

// Bytes returns an embedded image and fails when it is not the one that the manifest describes.
func Bytes(file string) ([]byte, error) { return load().bytes(file) }

func (c catalogue) bytes(file string) ([]byte, error) {
	if c.err != nil {
		return nil, c.err
	}
	for _, image := range c.manifest.Images {
		if image.File != file {
			continue
		}
		data, err := c.read(file)
		if err != nil {
			return nil, fmt.Errorf("kernels: image %s of the manifest cannot be read: %w", file, err)
		}
		if got := Sum(data); got != image.SHA256 {
			return nil, fmt.Errorf("kernels: image %s has sha256 %s, its manifest says %s", file, got, image.SHA256)
		}
		return data, nil
	}
	return nil, fmt.Errorf("kernels: the manifest has no image %q", file)
}

// Covers answers whether the images hold code for a compute capability (90 for 9.0), or PTX that the driver can compile for it.
func Covers(compute int) error { return load().covers(compute) }

var code = regexp.MustCompile(`\b(sm|compute)_(\d+)(a?)\b`)

func (c catalogue) covers(compute int) error {
	if c.err != nil {
		return c.err
	}
	var have []string
	for _, flag := range c.manifest.Flags {
		_, list, found := strings.Cut(flag, ",code=")
		if !found {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(list, -1) {
			have = append(have, m[0])
			n, err := strconv.Atoi(m[2])
			if err != nil {
				return fmt.Errorf("kernels: manifest.json: flag %s: %w", flag, err)
			}
			// PTX serves every later GPU, machine code later ones of its generation, and that of sm_90a no other.
			if n == compute || m[3] == "" && n < compute && (m[1] == "compute" || n/10 == compute/10) {
				return nil
			}
		}
	}
	return fmt.Errorf("kernels: the images hold %s, none of which runs on compute capability %d.%d", strings.Join(have, ", "), compute/10, compute%10)
}
