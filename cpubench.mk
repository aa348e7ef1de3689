# Our speed beside PyTorch's on the same cores, in turns of one run. The peer
# takes part where PYTHON has torch; its training step is the program PEER_STEPS
# where that is there. ROUNDS=3 and COMPILE=1 (torch.compile too) take longer;
# WORKERS=1 is for a machine that others use.
PYTHON     ?= python3
PEER_STEPS ?= ../shared/bench/cpu_train.py
ROUNDS     ?= 2
WORKERS    ?= 0

.PHONY: bench-cpu

bench-cpu:
	$(GO) run ./examples/cpubench -rounds $(ROUNDS) -workers $(WORKERS) -python $(PYTHON) \
		-steps "$(wildcard $(PEER_STEPS))" $(if $(COMPILE),-compile)
