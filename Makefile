# Needs git, make and Python 3.11.  `make` lists what there is.
PYTHON ?= python3.11
VENV := .venv
READY := $(VENV)/ready
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## install the driver (snakemake, ingot) into .venv

$(READY): envs/driver/requirements.lock pyproject.toml
	@echo "driver: installing into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --no-input --no-deps --require-hashes -r envs/driver/requirements.lock
	@$(VENV)/bin/python -m pip install -qq --no-input --no-deps --no-build-isolation -e .
	@touch $@

demo: $(READY) ## build the demo model's shortfin bundle, serve it, ask it
	@$(VENV)/bin/ingot demo

test: $(READY) ## build the toolchains once, run all tests
	@for name in hub convert llamacpp iree modelopt triton rtx; do $(VENV)/bin/ingot toolchain $$name || exit 1; done
	@$(VENV)/bin/python -m pytest

lint: $(READY) ## check style: ruff, snakefmt
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@PATH=$(VENV)/bin:$$PATH $(VENV)/bin/snakefmt --check Snakefile rules

fmt: $(READY) ## put files into the house's style
	@$(VENV)/bin/ruff check --fix --quiet .
	@$(VENV)/bin/ruff format .
	@PATH=$(VENV)/bin:$$PATH $(VENV)/bin/snakefmt Snakefile rules

bench: $(READY) ## time and memory of the converters beside cp and their peers
	@for name in hub convert llamacpp iree modelopt triton rtx; do $(VENV)/bin/ingot toolchain $$name || exit 1; done
	@$(VENV)/bin/python bench/convert.py

dag: $(READY) ## draw the way to TARGET (default: the demo's bundle) as mermaid
	@$(VENV)/bin/snakemake --rulegraph mermaid-js -- $(or $(TARGET),artifacts/demo_tp1.shortfin)

.PHONY: help setup demo test lint fmt bench dag
