# `make up` and `make test` need Python 3.11 or newer and install the rest into .venv.

# The first Python that is new enough; name one yourself with PYTHON=...
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& { echo $$p; break; }; done)
# A machine with an NVIDIA GPU gets SGLang's own kernels, in an environment of their own: the CPU
# engine, which the tests use everywhere, cannot share one with them.
GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
VENV ?= .venv
ifeq ($(GPU),yes)
UP_VENV ?= .venv-gpu
UP_SETS := core gpu trial
else
UP_VENV ?= $(VENV)
UP_SETS := core cpu trial
endif
BIN := $(VENV)/bin
PACKAGES := schemas ingress workers
ARGS ?=
# Two more than there are processors, for many tests wait; four are as good as any number.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 2))')

.PHONY: help up test test-clients chaos soak bench docs lint format lock sbom clean python
.DEFAULT_GOAL := help

help: ## Say what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 20
	@echo '  ARGS="..." is passed on: to "headrace up" by "make up", to pytest by "make test",'
	@echo '  to "python -m tests.chaos" by "make chaos" (try --help) and "make soak".'

python:
	@test -n "$(PYTHON)" || { \
	echo "Headrace needs Python 3.11, 3.12 or 3.13; none was found. Name one with: make PYTHON=/path/to/python3"; \
	exit 1; }

up: python ## Install what is missing, then serve a model on this machine
	@$(PYTHON) deploy/install.py --venv $(UP_VENV) $(UP_SETS)
	@trap : INT; $(UP_VENV)/bin/headrace up $(ARGS) || test $$? -eq 130 # Ctrl-C is a good end

test: python ## Install what is missing, then check everything
	@$(PYTHON) deploy/install.py --venv $(VENV) test docs cpu broker database browser
	@$(PYTHON) deploy/install.py --venv .venv-clients-old clients-old
	@# Beside each other: each alone leaves processors idle for a while.
	@$(MAKE) --no-print-directory --jobs=2 --keep-going lint tests

.PHONY: tests
tests:
	@# Real brokers, engines and clocks share the processors: what fails beside others is tried alone,
	@# and said. A fault fails again.
	$(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) $(ARGS) || { test $$? -eq 1 && \
	echo "Once more, alone, what has failed beside others:" && \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(ARGS); }

test-clients: python ## Install real clients, of Node.js too, and run them against the service
	@command -v npm >/dev/null || { echo "The clients need npm (Debian: apt-get install npm)."; exit 1; }
	@$(PYTHON) deploy/install.py --venv $(VENV) test
	@$(PYTHON) deploy/install.py --venv .venv-clients clients
	@# Not "npm ci": it refuses a lock without the packages of platforms that a registry does not carry.
	npm install --prefix tests/clients --no-save --no-audit --no-fund --loglevel error
	$(BIN)/python -m pytest tests/clients $(ARGS)

chaos: python ## Kill processes of a running service by a plan, and check that nothing is lost
	@$(PYTHON) deploy/install.py --venv $(VENV) test cpu broker database
	$(BIN)/python -m tests.chaos $(or $(ARGS),all)

soak: python ## Keep a service busy for an hour, and check that memory stays flat
	@$(PYTHON) deploy/install.py --venv $(VENV) test cpu broker
	$(BIN)/python -m tests.chaos soak $(ARGS)

bench: python ## Measure the service beside its peers, which are installed first
	@$(PYTHON) deploy/install.py --venv $(VENV) test broker
	@# What cannot be installed is left out of the measurement, which says so.
	-@$(PYTHON) deploy/install.py --venv $(VENV) nginx
	-@$(PYTHON) deploy/install.py --venv .venv-peers peers
	-@$(PYTHON) deploy/install.py --venv .venv-dynamo dynamo
	$(BIN)/python -m benchmarks.peers $(ARGS)

docs: python ## Build the documentation's site into site/
	@$(PYTHON) deploy/install.py --venv $(VENV) docs
	$(BIN)/zensical build --clean --strict

lint: ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tests and service share one environment, so every lock is resolved within the test set's pins.
LOCK = $(BIN)/uv pip compile --quiet --no-header --no-annotate --universal --python-version 3.11
PEERS_LOCK = $(BIN)/uv pip compile --quiet --no-header --no-annotate --python-version 3.11 \
	--python-platform x86_64-manylinux_2_35 --generate-hashes --upgrade
lock: python ## Pin the newest versions anew, with uv
	@$(PYTHON) deploy/install.py --venv $(VENV) core
	$(BIN)/python -m pip install --quiet uv
	$(LOCK) --generate-hashes --upgrade pyproject.toml requirements/build.in --extra test \
		-o requirements/test.txt
	$(LOCK) --generate-hashes -c requirements/test.txt pyproject.toml requirements/build.in --extra otel \
		-o requirements/core.txt
	$(LOCK) -c requirements/test.txt --config-file deploy/cpu/uv.toml deploy/cpu/requirements.in \
		-o deploy/cpu/requirements.txt
	$(LOCK) --generate-hashes -c requirements/test.txt requirements/docs.in -o requirements/docs.txt
	$(LOCK) --generate-hashes --upgrade requirements/clients.in -o requirements/clients.txt
	$(LOCK) --generate-hashes --upgrade requirements/clients-old.in -o requirements/clients-old.txt
	$(PEERS_LOCK) requirements/peers.in -o requirements/peers.txt
	$(PEERS_LOCK) --overrides requirements/dynamo-overrides.txt requirements/dynamo.in -o requirements/dynamo.txt
	$(PEERS_LOCK) requirements/load.in -o requirements/load.txt
	$(LOCK) --no-deps deploy/cpu/trial.in -o deploy/cpu/trial.txt
	sed 's/ *\\$$//; /^    --hash/d' requirements/core.txt > $(VENV)/core-pins.txt
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --prerelease allow \
		--python-platform x86_64-manylinux_2_35 -c $(VENV)/core-pins.txt deploy/gpu/requirements.in \
		-o deploy/gpu/requirements.txt

SBOM = $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible
# Of each image what pip installs; what the base images hold is told by who makes those.
sbom: python ## Write bills of materials of the images (CycloneDX) into dist/
	@$(PYTHON) deploy/install.py --venv $(VENV) core
	$(BIN)/python -m pip install --quiet cyclonedx-bom==7.5.0
	@mkdir -p dist
	$(SBOM) -o dist/headrace-ingress.cdx.json requirements/core.txt
	cat requirements/core.txt deploy/cpu/requirements.txt | $(SBOM) -o dist/headrace-worker-cpu.cdx.json -
	$(SBOM) -o dist/headrace-worker-gpu.cdx.json deploy/gpu/requirements.txt

clean: ## Remove the environments and every cache
	rm -rf dist site .cache .venv .venv-gpu .venv-clients .venv-clients-old .venv-peers .venv-dynamo .venv-load tests/clients/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
