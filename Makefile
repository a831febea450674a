# What a person types here. `make` alone prints the targets with the words after their `##`.
#
# Everything is installed into .venv; only python3 (3.11 or newer), make and git must be there
# before. The stamp files in .venv make an installation happen once, and again when pyproject.toml
# changes. .ci/run calls `make test` and `make check`.

PYTHON ?= python3
# Pinned, and installed first, so that nothing else chooses its build. Where no NVIDIA GPU is seen,
# the wheels without CUDA are preferred: they save gigabytes. TORCH_ARGS takes pip options instead.
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
CPU_WHEELS ?= https://download.pytorch.org/whl/cpu
GPU ?= $(shell command -v nvidia-smi || ls -d /proc/driver/nvidia 2>/dev/null)
# Further words for the target's command: make train ARGS="--seed 1", make test ARGS="-k engine".
ARGS ?=
# The exit status of a job whose package cannot be had, as for the model of `make train`.
MISSING := 69
# The interpreter of an environment with vLLM, for `make test-scale`.
VLLM ?=
# Rounds of the property tests in `make test-full`, each with other random examples.
ROUNDS ?= 5
# Processes that run test files at a time (tests/spread.py); 0 runs all in one. Two leave a third of
# two cores idle, since tests wait for processes and clocks.
WORKERS ?= 3

# Never another folder: `make clean` removes it.
override VENV := .venv
# Tests start hundreds of processes: what they import is compiled once and not in each of them.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
# Modules are compiled when they are first imported: faster than all of them now, and smaller.
PIP := $(BIN)/python -m pip install --no-compile
# Whole runs come last, and files are taken in this order: what breaks most is told first.
LONG := $(wildcard $(addprefix tests/,system orchestration weights prompts trainer docs examples))
QUICK := $(filter-out $(LONG) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
TESTS := $(sort $(QUICK)) $(LONG)
SPREAD := --processes $(WORKERS)
# Those that need no peer and no arguments.
BENCHMARKS := $(foreach name,engine train_step estimators gateway runner,benchmarks.$(name).run)

.DEFAULT_GOAL := help
.PHONY: help venv venv-dev train train-llm artefacts test test-full test-scale check format bench docs clean

help: ## print this
	@echo "Tutelage: trains LLM agents from the rewards they earn. Start with: make train"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## set up .venv with all that training needs

venv-dev: $(DEV_STAMP) ## the same with all that tests, checks and optional extras need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Tutelage needs Python 3.11 or newer: make venv PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { echo "this Python has no venv module; on Debian: apt install python3-venv"; exit 1; }
	@echo "setting up $(VENV): three minutes, once, and 1.3 GB of packages (more with CUDA)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --quiet --upgrade pip
	@args='$(TORCH_ARGS)'; \
	if [ -n "$$args" ]; then why="with $$args, as TORCH_ARGS says"; \
	elif [ -n '$(GPU)' ]; then why="the CUDA build, since an NVIDIA GPU is seen"; \
	elif $(PYTHON) -c 'import urllib.request as u; u.urlopen("$(CPU_WHEELS)/torch/", timeout=5)' \
		2>/dev/null; then \
		args='--extra-index-url $(CPU_WHEELS)'; why="the CPU build, since no NVIDIA GPU is seen"; \
	else why="the build that pip finds: no NVIDIA GPU is seen, but $(CPU_WHEELS) does not answer"; \
	fi; \
	echo "1 of 2: $(TORCH), $$why"; \
	$(PIP) $$args '$(TORCH)'
	@echo "2 of 2: tutelage and the other packages"
	@$(PIP) -e '.[train]'
	@touch $@

$(DEV_STAMP): $(STAMP)
	@echo "adding what tests, checks and optional extras need: another 1 GB of packages"
	@$(PIP) -e '.[train,dev]'
	@touch $@

# Around a training. At Ctrl-C, which a terminal sends to all, the shell waits for what is saved; where
# the training alone was stopped, make ends by the same signal (the second lets it wait for the shell).
# So a run that was saved is no error.
WATCHED := trap stopped=1 INT;
STOPPED = status=$$?; case $$status in \
	130) [ "$$stopped" ] || { kill -INT $$PPID; sleep 1; }; exit 0;; \
	143) trap '' TERM; kill -TERM $$PPID; sleep 1; exit 0;; esac

train: venv ## train a small policy (about two minutes); further words in ARGS="--seed 1"
	@$(WATCHED) $(BIN)/tutelage train math trainer.experiment_name=first $(ARGS) \
		|| { $(STOPPED); exit $$status; }
	@echo "  (before these: source $(BIN)/activate)"

train-llm: venv ## train a real language model (it says how long); ARGS="--level full" has all kinds
	$(info tutelage train word-problems $(ARGS))
	@$(WATCHED) $(BIN)/tutelage train word-problems $(ARGS) || { $(STOPPED); \
		[ $$status -eq $(MISSING) ] || exit $$status; \
		echo "The model cannot be had here, as said above, so the embedded job runs: tutelage train math"; \
		$(BIN)/tutelage train math $(ARGS) || { $(STOPPED); exit $$status; }; }
	@echo "  (before these: source $(BIN)/activate)"

artefacts: venv ## train again what the package ships trained (about 8 minutes)
	$(BIN)/python -m benchmarks.house.artefacts $(ARGS)

# Two layers of the real model, made from its wheel once; empty where that cannot be had.
CUT = TUTELAGE_REAL_MODEL="$$($(BIN)/python -m tests.real_model)"

test: venv-dev ## all tests but the long ones, the quick ones first
	$(CUT) $(BIN)/python -m pytest -q $(SPREAD) $(TESTS) $(ARGS)

test-full: venv-dev ## all tests, the long ones too, then more rounds of the property tests (ROUNDS=5)
	$(CUT) TUTELAGE_TEST_FULL=1 $(BIN)/python -m pytest -q $(SPREAD) $(TESTS) $(ARGS)
	for round in $$(seq $(ROUNDS)); do \
		$(BIN)/python -m pytest -q -m hypothesis --hypothesis-seed=$$round $(ARGS) || exit 1; \
	done

check: venv-dev ## format, lint, types, layering, size of packages, files and functions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/contract/test_layering.py
	$(BIN)/python tests/contract/house.py

format: venv-dev ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-scale: venv-dev ## compare vLLM with the server that stands in for it in tests: VLLM=PATH of its interpreter
	$(BIN)/python -m benchmarks.scale.vllm_replies $(VLLM)

bench: venv-dev ## run the benchmarks that need no peer; benchmarks/README.md has the others
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python -m $$script $(ARGS) || exit 1; done
	@echo "those that compare with a peer need its environment: see benchmarks/README.md"

docs: venv ## build the site of the documentation in build/site, with mkdocs-material
	$(BIN)/python -m pip install -q "mkdocs-material>=9.7,<10"
	rm -rf build/pages && mkdir -p build/pages
	git ls-files -z -- '*.md' docs examples benchmarks tests/testing | xargs -0 cp --parents -t build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## remove .venv and all caches; runs/ stays
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
