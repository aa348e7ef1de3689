// Kernelc compiles kernels/*.cu to fat images and writes their manifest. It fails on register spills and on local
// memory unless the source's header comment declares "local memory: N bytes", an upper bound a thread.
//
//	go run ./kernels/kernelc -cuda PREFIX                        compiles what changed, for every architecture
//	go run ./kernels/kernelc -cuda PREFIX -arch sm_90a -out DIR  compiles for one architecture into DIR, for trials
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/seafan/seafan/kernels"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("kernelc: ")
	cuda := flag.String("cuda", "", "CUDA prefix that holds bin/nvcc")
	dir := flag.String("dir", "kernels", "folder of the sources")
	out := flag.String("out", "", "folder of the images (default: image under -dir)")
	arch := flag.String("arch", "", "one architecture such as sm_90a, for trials")
	only := flag.String("only", "", "compile only this source")
	verbose := flag.Bool("v", false, "print the resources of every kernel")
	jobs := flag.Int("j", max(1, runtime.NumCPU()/2), "sources compiled at a time")
	flag.Parse()
	if *cuda == "" {
		log.Fatal("-cuda is required")
	}
	if *out == "" {
		*out = filepath.Join(*dir, "image")
	}
	flags := kernels.Flags
	if *arch != "" {
		flags = nil
		for _, f := range kernels.Flags {
			if !strings.HasPrefix(f, "-gencode") {
				flags = append(flags, f)
			}
		}
		flags = append(flags, fmt.Sprintf("-gencode=arch=compute_%s,code=%s", strings.TrimPrefix(*arch, "sm_"), *arch))
	}
	c := compiler{nvcc: filepath.Join(*cuda, "bin", "nvcc"), cuda: *cuda, dir: *dir, out: *out, flags: flags, verbose: *verbose, jobs: *jobs}
	if err := c.run(*only); err != nil {
		log.Fatal(err)
	}
}

type compiler struct {
	nvcc, cuda, dir, out string
	flags                []string
	verbose              bool
	jobs                 int
	mu                   sync.Mutex // of the output
}

func (c *compiler) run(only string) error {
	version, err := exec.Command(c.nvcc, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", c.nvcc, err)
	}
	lines := strings.Split(strings.TrimSpace(string(version)), "\n")
	m := kernels.Manifest{Compiler: lines[len(lines)-1], Flags: c.flags}
	old := c.readManifest()
	sources, err := filepath.Glob(filepath.Join(c.dir, "*.cu"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.out, 0o755); err != nil {
		return err
	}
	images, errs := make([]kernels.Image, len(sources)), make([]error, len(sources))
	slots := make(chan struct{}, c.jobs)
	var wait sync.WaitGroup
	for i, path := range sources {
		wait.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			images[i], errs[i] = c.image(filepath.Base(path), only, m, old)
		})
	}
	wait.Wait()
	total := 0
	var failed []error
	for i, image := range images {
		if errs[i] != nil {
			failed = append(failed, errs[i]) // the manifest still keeps what compiled
			continue
		}
		m.Images = append(m.Images, image)
		info, err := os.Stat(filepath.Join(c.out, image.File))
		if err != nil {
			return err
		}
		total += int(info.Size())
		fmt.Printf("%-28s %8d bytes %4d kernels\n", image.File, info.Size(), len(image.Entries))
	}
	if total > kernels.MaxTotalBytes {
		failed = append(failed, fmt.Errorf("the images hold %d bytes together, %d are allowed", total, kernels.MaxTotalBytes))
	}
	text, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	return errors.Join(append(failed, os.WriteFile(filepath.Join(c.out, "manifest.json"), append(text, '\n'), 0o644))...)
}

func (c *compiler) readManifest() kernels.Manifest {
	var m kernels.Manifest
	text, err := os.ReadFile(filepath.Join(c.out, "manifest.json"))
	if err != nil {
		return m
	}
	if json.Unmarshal(text, &m) != nil {
		return kernels.Manifest{}
	}
	return m
}

// image compiles one source, or keeps the image of the old manifest when nothing that went into it changed.
func (c *compiler) image(source, only string, m, old kernels.Manifest) (kernels.Image, error) {
	image := kernels.Image{Source: source, File: strings.TrimSuffix(source, ".cu") + ".fatbin"}
	inputs, err := kernels.Inputs(c.dir, source)
	if err != nil {
		return image, err
	}
	image.Inputs = inputs
	for _, was := range old.Images {
		if was.Source != source || was.File != image.File {
			continue
		}
		data, err := os.ReadFile(filepath.Join(c.out, was.File))
		intact := err == nil && kernels.Sum(data) == was.SHA256
		same := old.Compiler == m.Compiler && reflect.DeepEqual(old.Flags, m.Flags) && reflect.DeepEqual(was.Inputs, inputs)
		if intact && (same || only != "" && only != source) {
			return was, nil
		}
	}
	header, err := os.ReadFile(filepath.Join(c.dir, source))
	if err != nil {
		return image, err
	}
	args := append(slices.Clone(c.flags), "-I", filepath.Join(c.dir, "include"), "-I", filepath.Join(c.cuda, "include", "cccl"),
		"-o", filepath.Join(c.out, image.File), filepath.Join(c.dir, source))
	args = append(args, "--threads=0") // one a processor for the architectures; not a flag of the result
	text, err := exec.Command(c.nvcc, args...).CombinedOutput()
	if err != nil {
		return image, fmt.Errorf("nvcc %s: %w\n%s", source, err, text)
	}
	image.Entries, err = c.check(source, string(header), string(text))
	if err != nil {
		return image, err
	}
	data, err := os.ReadFile(filepath.Join(c.out, image.File))
	if err != nil {
		return image, err
	}
	image.SHA256 = kernels.Sum(data)
	return image, nil
}

var (
	entryLine = regexp.MustCompile(`Compiling entry function '(\w+)' for '(\w+)'`)
	stackLine = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	usedLine  = regexp.MustCompile(`Used (\d+) registers`)
	declared  = regexp.MustCompile(`local memory: (\d+) bytes`)
)

// check reads ptxas's report: the kernel names, and no spill or stack frame above what the source declares.
func (c *compiler) check(source, header, report string) ([]string, error) {
	allowed := 0
	if m := declared.FindStringSubmatch(header); m != nil {
		allowed, _ = strconv.Atoi(m[1])
	}
	var entries []string
	var entry, arch string
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, line := range strings.Split(report, "\n") {
		if m := entryLine.FindStringSubmatch(line); m != nil {
			entry, arch = m[1], m[2]
			if !slices.Contains(entries, entry) {
				entries = append(entries, entry)
			}
		}
		if strings.Contains(line, "warning") || strings.Contains(line, "Performance Loss") {
			fmt.Println(line)
		}
		if m := stackLine.FindStringSubmatch(line); m != nil {
			frame, _ := strconv.Atoi(m[1])
			spills, _ := strconv.Atoi(m[2])
			loads, _ := strconv.Atoi(m[3])
			if max(frame, spills, loads) > allowed {
				return nil, fmt.Errorf("%s: kernel %s for %s: stack frame %d bytes, spill stores %d, spill loads %d; the header declares %d",
					source, entry, arch, frame, spills, loads, allowed)
			}
		}
		if m := usedLine.FindStringSubmatch(line); m != nil && c.verbose {
			fmt.Printf("  %-48s %-7s %3s registers\n", entry, arch, m[1])
		}
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("%s: the compiler reported no kernel", source)
	}
	slices.Sort(entries)
	return entries, nil
}
