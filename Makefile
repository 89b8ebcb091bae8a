# `make help` lists what a person can do.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup dev test check format prove soak bench wheel clean reset

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything the project needs, at the versions in constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' \
		|| { echo "objbuf-dagster needs Python 3.10 to 3.13: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --constraint constraints.txt hatchling editables setuptools wheel
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@$(BIN)/python -m objbuf_dagster.spark.archive
	@touch $@

dev: $(STAMP) ## run the pipeline here, with demo data; DEMO=0, PORT=..., OBJBUF_BUFFER_URL=... change that
	@$(BIN)/python -m dev

test: $(STAMP) ## run the tests, two at a time; ARGS='-k name' picks some, ARGS='-n 0' runs one at a time
	$(BIN)/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder $(ARGS)

check: $(STAMP) ## lint, formatting, types, and which way imports point
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

format: $(STAMP) ## format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

prove: $(STAMP) ## try at full size what is promised: kills, faults, load, hostile input; takes hours. ARGS='--small load'
	$(BIN)/python -m tests.prove $(ARGS)

soak: $(STAMP) ## ten minutes of load that goes up and down, in a memory limit; draws artefacts/soak.png. ARGS='--minutes 3'
	$(BIN)/python -m tests.soak $(ARGS)

bench: $(STAMP) ## measure, in one run, the ratios that the project promises; ARGS=landing picks a part
	$(BIN)/python -m bench $(ARGS)

wheel: $(STAMP) ## build the wheel into dist/
	$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

clean: ## remove what was generated; the data of `make dev` stays
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

reset: ## delete the data of `make dev` (.dagster and .data), after asking
	@printf 'Delete .dagster and .data: every run, buffer and table of make dev? [y/N] '; read answer; [ "$$answer" = y ]
	rm -rf .dagster .data
