# judgebench: `make help` lists what there is.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(if $(shell command -v $(name) 2>/dev/null),$(name))))
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run run-all test lint format bench clean

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.local ## install what is missing, then the embedded model on 24 instructions of `starter`
	@$(BIN)/judgebench run limit=24

run-all: $(VENV)/.local ## the same on the whole of `starter`
	@$(BIN)/judgebench run

test: $(VENV)/.dev ## the suite, with its own set-up
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(VENV)/.dev ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.dev ## let ruff mend what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.dev ## the heavy checks, then speed beside raw clients measured in the same run
	@JUDGEBENCH_HEAVY=1 $(BIN)/python -m pytest -q tests/test_kill.py tests/test_store.py
	@$(BIN)/python -m tests.bench

clean: ## remove the environment and what tools left
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.made:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# A stamp for each set of packages: a second call runs no installer.
$(VENV)/.local: $(SOURCES) | $(VENV)/.made
	@echo "Installing judgebench and the embedded model"
	@$(INSTALL) --editable '.[local]'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/.made
	@echo "Installing judgebench with what its tests need"
	@$(INSTALL) --editable '.[local,dev]'
	@touch $@ $(VENV)/.local
