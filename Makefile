# make run    set everything up, pull the starter model, answer one question
# make test   set everything up, run the tests

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODELS := .cache/models/.complete
QUESTION ?= Why is the sky blue?

.PHONY: run test test-all check setup format docs clean

run: $(VENV)/.installed
	$(BIN)/edgellm pull smollm2:135m
	$(BIN)/edgellm run smollm2:135m "$(QUESTION)"
	@echo "next: . $(BIN)/activate, then edgellm for a chat, or edgellm serve for your programs"

test: setup
	$(BIN)/python -m pytest -m "not slow"

test-all: setup
	$(BIN)/python -m pytest

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_house.py
	$(BIN)/python tools/cli_reference.py --check

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/python tools/cli_reference.py

setup: $(VENV)/.installed-dev $(MODELS)

# llama-cpp-python comes as source and is compiled for this very CPU: about five minutes, once.
$(VENV)/.installed: pyproject.toml tools/build_engine.py tools/engine_source.py $(wildcard kernels/ggml/*.h)
	@$(PYTHON) tools/preflight.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python tools/build_engine.py
	$(BIN)/python -m pip install --quiet -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $@

$(MODELS): tools/fetch_test_models.py $(VENV)/.installed
	$(BIN)/python tools/fetch_test_models.py .cache/models
	touch $@

clean:
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
