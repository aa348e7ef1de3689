# CUDA side of the build: compiler, kernel images, the driver stub and the gpu build.
# Included by the Makefile; also usable alone: make -f cuda.mk TARGET.
#
#   toolchain   compiler and headers from Python wheels into .toolchain/ (skipped when CUDA_HOME is set)
#   headers     only the headers that the gpu build needs (no compiler)
#   kernels     compile kernels/*.cu to kernels/image/*.fatbin and write the manifest
#   stub        .toolchain/stub/libcuda.a, which finds the driver at run time
#   symbols     list the driver symbols that the gpu build refers to (after a new driver call)
#   env         print the cgo flags for builds by hand: eval "$(make -s -f cuda.mk env)"
#   gpu         build, vet and staticcheck everything with -tags gpu
#   gpu-test    the tests of the gpu build; device tests skip without a device unless REQUIRE_CUDA=1
#   sanitize    the device tests, in short form, under compute-sanitizer: memcheck, racecheck, initcheck, synccheck

CUDA_ROOT := $(dir $(abspath $(lastword $(MAKEFILE_LIST))))
CUDA_PREFIX := $(if $(CUDA_HOME),$(CUDA_HOME),$(CUDA_ROOT).toolchain/nvidia/cu13)
CUDA_STUB := $(CUDA_ROOT).toolchain/stub
CUDA_DRIVER := $(CUDA_ROOT)ops/cuda/driver
CUDA_VERSION := 13.0.*
PIP ?= python3 -m pip
PIP_INTO := $(PIP) install --quiet --no-deps --disable-pip-version-check --root-user-action ignore --target $(CUDA_ROOT).toolchain
CC ?= cc
SANITIZE_JOBS ?= $(shell nproc)
# Later than the compiler: before 2026.1 racecheck reports races that warpgroups and barriers across a cluster rule out.
SANITIZER := $(CUDA_ROOT).toolchain/sanitizer/nvidia/cu13/bin/compute-sanitizer

CUDA_CFLAGS := -O2 -g -I$(CUDA_DRIVER)/include -I$(CUDA_PREFIX)/include
CUDA_LDFLAGS := -L$(CUDA_STUB)
CUDA_ENV := CGO_ENABLED=1 CGO_CFLAGS="$(CUDA_CFLAGS)" CGO_LDFLAGS="$(CUDA_LDFLAGS)"

.PHONY: toolchain headers kernels stub symbols env gpu gpu-test sanitize

toolchain: $(CUDA_PREFIX)/bin/nvcc
headers: $(CUDA_PREFIX)/include/cuda.h
stub: $(CUDA_STUB)/libcuda.a

$(CUDA_PREFIX)/bin/nvcc:
	$(if $(CUDA_HOME),$(error CUDA_HOME=$(CUDA_HOME) has no bin/nvcc))
	$(PIP_INTO) --upgrade 'nvidia-cuda-nvcc==$(CUDA_VERSION)' 'nvidia-cuda-crt==$(CUDA_VERSION)' 'nvidia-nvvm==$(CUDA_VERSION)' \
		'nvidia-cuda-runtime==$(CUDA_VERSION)' 'nvidia-cuda-cccl==$(CUDA_VERSION)'

$(CUDA_PREFIX)/include/cuda.h:
	$(if $(CUDA_HOME),$(error CUDA_HOME=$(CUDA_HOME) has no include/cuda.h))
	$(PIP_INTO) --upgrade 'nvidia-cuda-runtime==$(CUDA_VERSION)'

$(SANITIZER):
	$(PIP_INTO)/sanitizer 'nvidia-cuda-sanitizer-api==13.5.*'

kernels: toolchain
	cd $(CUDA_ROOT) && go run ./kernels/kernelc -cuda $(CUDA_PREFIX)

$(CUDA_STUB)/libcuda.a: $(CUDA_DRIVER)/symbols.txt $(CUDA_DRIVER)/init.c $(wildcard $(CUDA_DRIVER)/stubgen/*.go) | headers
	mkdir -p $(CUDA_STUB)
	cd $(CUDA_ROOT) && go run ./ops/cuda/driver/stubgen -symbols $(CUDA_DRIVER)/symbols.txt -out $(CUDA_STUB)/slots.S
	$(CC) -c -fPIC -o $(CUDA_STUB)/slots.o $(CUDA_STUB)/slots.S
	$(CC) -c -O2 -fPIC -I$(CUDA_PREFIX)/include -o $(CUDA_STUB)/init.o $(CUDA_DRIVER)/init.c
	rm -f $@ && ar rcs $@ $(CUDA_STUB)/slots.o $(CUDA_STUB)/init.o

symbols: headers
	mkdir -p $(CUDA_STUB)
	test -f $(CUDA_STUB)/libcuda.a || ar rcs $(CUDA_STUB)/libcuda.a
	cd $(CUDA_ROOT) && $(CUDA_ENV) go run ./ops/cuda/driver/stubgen -list $(CUDA_DRIVER)/symbols.txt
	rm -f $(CUDA_STUB)/libcuda.a

env: headers stub
	@printf 'export CGO_ENABLED=1\nexport CGO_CFLAGS="%s"\nexport CGO_LDFLAGS="%s"\n' '$(CUDA_CFLAGS)' '$(CUDA_LDFLAGS)'

gpu: headers stub
	cd $(CUDA_ROOT) && $(CUDA_ENV) go build -tags gpu ./... && $(CUDA_ENV) go vet -tags gpu ./... && $(CUDA_ENV) go tool staticcheck -tags gpu ./...

gpu-test: headers stub
	cd $(CUDA_ROOT) && $(CUDA_ENV) go test -tags gpu ./kernels/... ./ops/cuda/... ./models/backend ./examples/bench ./examples/fp8 ./examples/generate ./examples/kda ./examples/plan

# A process for each test: the tools do one thing at a time, the tests need not.
sanitize: headers stub $(SANITIZER)
	cd $(CUDA_ROOT) && $(CUDA_ENV) go test -tags gpu -c -o build/cuda.test ./ops/cuda
	cd $(CUDA_ROOT)ops/cuda && for tool in memcheck racecheck initcheck synccheck; do \
		echo "== $$tool" && mkdir -p $(CUDA_ROOT)build/$$tool && $(CUDA_ROOT)build/cuda.test -test.list TestDevice | grep ^TestDevice | grep -v Speed | \
		REQUIRE_CUDA=1 xargs -P $(SANITIZE_JOBS) -I NAME sh -c '$(SANITIZER) --tool $$1 --show-backtrace no --report-api-errors no --error-exitcode 9 \
			$(CUDA_ROOT)build/cuda.test -test.short -test.run "^$$2$$" > $(CUDA_ROOT)build/$$1/$$2.log 2>&1 || { cat $(CUDA_ROOT)build/$$1/$$2.log; exit 1; }' sh $$tool NAME || exit 1; done
