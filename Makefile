# `make demo` and `make test` do all set-up by themselves; `make help` lists the rest.

PYTHON ?= python3.11
# Wheel index that holds torch's CPU build, for when the one that pip is configured for has none.
TORCH_INDEX ?=
# Options for the command that `make serve`, `make demo` or `make bench` runs.
ARGS ?=
# Test processes that run side by side, each with one compute thread.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

# An exact local version can never turn into a CUDA build; macOS has one build and no such name.
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
ifeq ($(shell uname -s),Darwin)
TORCH := torch==$(TORCH_VERSION)
else
TORCH := torch==$(TORCH_VERSION)+cpu
endif

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup models demo serve bench check test clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the virtual environment in .venv

$(STAMP): pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "collm needs Python 3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) pip setuptools
	$(INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(TORCH) || { \
	  echo 'If pip found no CPU build of torch: see "Get started" at pytorch.org for the address' \
	    'of the index that has it, then: make setup TORCH_INDEX=ADDRESS' >&2; exit 1; }
	$(INSTALL) --no-build-isolation --editable . --group dev
	@touch $@

models: $(STAMP) ## Fetch the default model into the user's cache, unless it is there
	@for wait in 5 15 0; do \
	  $(BIN)/collm models pull && exit 0; \
	  echo "fetching the default model failed; next try in $$wait s, at most three" >&2; \
	  sleep $$wait; \
	done; exit 1

demo: models ## Serve a replayed trace while learning from a real data set, then show the outcome
	$(BIN)/collm demo $(ARGS)

serve: models ## Start a server on port 8000; ARGS='--train NAME=DATA' lets it learn meanwhile
	$(BIN)/collm serve $(ARGS)

bench: models ## Speed and memory beside transformers and peft, on the default model
	$(BIN)/python benchmarks/engine.py $(ARGS)
	$(BIN)/python benchmarks/training.py $(ARGS)

check: $(STAMP) ## Format, lint, types, import contracts, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test: models check ## Set-up, the default model, then everything of `make check`

clean: ## Remove the environment and what tools left behind; keeps data and models
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
