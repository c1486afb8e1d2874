# `make demo` and `make test` do all set-up by themselves; `make help` lists the rest.

PYTHON ?= python3.11
# Wheel index with torch's CPU build ("Get started" at pytorch.org names it). Without it pip takes what its own
# index has, on Linux perhaps the CUDA build: it works as well, but is gigabytes larger.
TORCH_INDEX ?=
# Options for the command that `make serve`, `make demo` or `make bench` runs.
ARGS ?=
# Test processes that run side by side, each with one compute thread.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# What `make bench-engine` compares to, which would not fit in with the rest.
PEERS := .venv-peers
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

TORCH := torch==$(shell sed -n 's/^torch==//p' constraints.txt)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup models demo serve bench bench-engine bench-slo reference docs check test clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make the virtual environment in .venv

$(STAMP): pyproject.toml constraints.txt $(wildcard src/collm/ops/native/*.cpp src/collm/ops/native/*.h)
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "collm needs Python 3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) pip setuptools
	$(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
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
	$(BIN)/python benchmarks/memory.py $(ARGS)

bench-engine: models $(PEERS)/installed ## Beside llama.cpp, vLLM and the machine's limits; quiet machine, 15 minutes
	$(BIN)/python benchmarks/bars.py --peers $(PEERS)/bin/python $(ARGS)

$(PEERS)/installed: benchmarks/peers/requirements.txt
	@rm -f $@
	test -x $(PEERS)/bin/python || $(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet -r $<
	$(PEERS)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

bench-slo: models ## Whether latency objectives hold while training; quiet machine, an hour, or in pieces
	$(BIN)/python benchmarks/slo.py $(ARGS)

reference: $(STAMP) ## Write the reference pages in docs/reference/ from the code
	$(BIN)/python docs/generate

docs: reference ## Build the documentation as a site in build/site; a broken link fails
	$(BIN)/mkdocs build --strict
	@echo "open build/site/index.html"

check: $(STAMP) ## Format, lint, types, import contracts, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test: models check ## Set-up, the default model, then everything of `make check`

clean: ## Remove the environments and what tools left behind; keeps data and models
	rm -rf $(VENV) $(PEERS) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
