# Needs git, make and Python 3.11 with venv.  `make` lists what there is.
PYTHON ?= python3.11
VENV := .venv
READY := $(VENV)/ready
TOOLCHAINS := hub convert llamacpp llamacpp-hf transformers llmcompressor mlx iree modelopt triton onnx genai openvino optimum-intel optimum rtx vllm rayserve slurm kubernetes ci
# Two cores have time for four, of which one waits for servers and clusters (tests/doubles/queues.py).
JOBS ?= 4
.DEFAULT_GOAL := help
define INSTALL
from pathlib import Path
from ingot.driver.toolchains import toolchains
from ingot.base.refused import one_line
with one_line("error: "):
    toolchains.driver(Path("$(VENV)"), Path("envs/driver/requirements.lock"))
endef
export INSTALL

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: $(READY) ## install the driver (snakemake, ingot) into .venv

$(READY): envs/driver/requirements.lock pyproject.toml
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || \
		{ echo "error: $(PYTHON): not Python 3.11 with venv, which the toolchains are locked for; Debian 12:" \
		"apt install python3.11-venv; elsewhere: uv python install 3.11, then make PYTHON=\$$(uv python find 3.11)" >&2; exit 1; }
	@echo "driver: installing into $(VENV)"
	@$(PYTHON) -m venv --without-pip $(VENV)
	@PYTHONPATH=scripts $(VENV)/bin/python -c "$$INSTALL"
	@$(VENV)/bin/uv pip install --quiet --no-config --no-cache --offline --python $(VENV)/bin/python --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/lib/python3.11/site-packages/ingot-plugins.pth # of an Ingot of before
	@touch $@

build: $(READY) ## build TARGETS, of CONFIGFILE where that is set
	@$(VENV)/bin/snakemake $(if $(CONFIGFILE),--configfile $(CONFIGFILE)) -- $(TARGETS)

publish: $(READY) ## copy TARGETS from the store to PUBLISH, such as docker://ghcr.io/me/models
	@tags=$$($(VENV)/bin/ingot store tags $(TARGETS)) && echo "$$tags" | while read -r name digest title; do \
		skopeo copy --quiet --preserve-digests "$$name" "$(PUBLISH):$${name##*:}" </dev/null || exit; \
		echo "$$title  $(PUBLISH)@$$digest"; \
	done

demo: $(READY) ## build the demo model's shortfin bundle, serve it, ask it
	@$(VENV)/bin/ingot demo

quick: JOBS := $(if $(filter environment,$(origin JOBS)),$(JOBS),4) # short ones, some of which wait
quick: $(READY) ## run the tests of modules and steps that are not slow: about a minute
	@$(VENV)/bin/ingot toolchain hub convert >/dev/null
	@$(VENV)/bin/python -m pytest -q -n $(JOBS) -m "not slow" tests/unit tests/steps

toolchains: $(READY) ## build the toolchains that the tests use, once per machine
	@$(VENV)/bin/ingot toolchain $(TOOLCHAINS) >/dev/null

test: toolchains ## run all tests
	@$(VENV)/bin/python -m pytest -q -n $(JOBS)

lint: $(READY) ## check style and types by ruff, snakefmt and ty
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ty check --quiet --python $(VENV) scripts tests bench docs
	@$(VENV)/bin/ruff format --check .
	@PATH=$(VENV)/bin:$$PATH $(VENV)/bin/snakefmt --check Snakefile rules

fmt: $(READY) ## format the code
	@$(VENV)/bin/ruff format --quiet .
	@$(VENV)/bin/ruff check --fix --quiet . || true
	@$(VENV)/bin/ruff format .
	@PATH=$(VENV)/bin:$$PATH $(VENV)/bin/snakefmt Snakefile rules

wheels: $(READY) ## collect what the driver and TOOLCHAINS are built of into wheels/, for offline machines
	@$(VENV)/bin/ingot wheels driver $(TOOLCHAINS)

bench: $(READY) ## measure the converters' time and memory beside cp and their peers
	@$(VENV)/bin/ingot toolchain $(TOOLCHAINS) >/dev/null
	@$(VENV)/bin/python bench/convert.py

gpu: $(READY) ## check what this machine's GPU can show of the demo; says what it could not
	@$(VENV)/bin/python bench/gpu.py

gpu-kit: $(READY) ## collect gpu-kit/, at most 60 MB, for a machine with a GPU that reaches nothing
	@$(VENV)/bin/python bench/gpu_kit.py gpu-kit

dag: $(READY) ## draw the way to TARGET (default: the demo's bundle) as mermaid
	@$(VENV)/bin/snakemake --rulegraph mermaid-js -- $(or $(TARGET),artifacts/demo_tp1.shortfin)

docs: $(READY) ## write docs/tour.md, a phrase per file, and docs/formats.md, from the tables
	@$(VENV)/bin/python docs/tour.py
	@$(VENV)/bin/python docs/formats.py

.PHONY: help setup build publish demo quick toolchains test wheels lint fmt bench gpu gpu-kit dag docs
