# The only entry point people need: `make` lists the targets.

GO      ?= go
PACKAGES = ./...
OPTICKS  = $(shell $(GO) env GOROOT)/src/testdata/Isaac.Newton-Opticks.txt
RUN     ?= runs/demo
VETTED   = linux/arm64 darwin/arm64 windows/amd64

.PHONY: help demo test test-race bench lint fmt check cross gpu-check

help:
	@echo "make demo       train a small model on Newton's Opticks, then let it write (about 2 minutes)"
	@echo "make test       all tests that this machine can run"
	@echo "make test-race  the same under the race detector"
	@echo "make bench      benchmarks of the bodies and of a training step"
	@echo "make lint       gofmt, go vet, staticcheck"
	@echo "make cross      build without cgo, vet for $(VETTED)"
	@echo "make check      lint and cross"
	@echo "make gpu-check  build, vet and test with -tags gpu against a stub of the driver (no GPU needed)"
	@echo "make gpu, make gpu-test   its two halves: compiled and checked; tested, on a device where there is one"
	@echo "make sanitize   the device tests under compute-sanitizer (needs a GPU)"
	@echo "make env        the flags of cgo for builds of your own: eval \"\$$(make env)\""
	@echo "make kernels    compile kernels/*.cu (make toolchain fetches the compiler)"
	@echo "make smollm2    fetch SmolLM2-135M-Instruct (92 MB); make chat talks to it"
	@echo "make bench-cpu  ours and, where it is installed, PyTorch in one run"
	@echo "make fmt        gofmt -w"

demo:
	$(GO) run ./examples/train -text $(OPTICKS) -out $(RUN) -steps 1000 -batch 8 -context 128 \
		-layers 4 -dim 256 -heads 4 -kv-heads 4 -ffn 1024 -lr 1e-3 -warmup 100 -eval-every 250 -seed 0 -resume
	@echo
	$(GO) run ./examples/generate -model $(RUN)/best -prompt "The Rays of Light" -n 110 -temperature 0.7 -seed 1

test:
	CGO_ENABLED=0 $(GO) test $(PACKAGES)

test-race:
	$(GO) test -race $(PACKAGES)

bench:
	$(GO) test -run '^$$' -bench . -benchtime 1s ./ops/native ./models ./models/generate ./models/tokenizer

lint:
	@test -z "$$(gofmt -l .)" || { echo "gofmt these files:"; gofmt -l .; exit 1; }
	$(GO) vet $(PACKAGES)
	$(GO) tool staticcheck $(PACKAGES)

cross:
	CGO_ENABLED=0 $(GO) build $(PACKAGES)
	@for t in $(VETTED); do \
		echo "go vet for $$t"; \
		GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) vet $(PACKAGES) || exit 1; \
	done

check: lint cross

gpu-check: gpu gpu-test

fmt:
	gofmt -w .

# Parts of the tree bring their own targets.
-include cuda.mk smollm2.mk cpubench.mk
