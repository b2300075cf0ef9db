# Two commands: `make demo` compiles a real example, `make test` runs everything.
# Each makes its own .venv. Needs Python 3.11+ and a package index.

PYTHON ?= python3
BIN := .venv/bin
PYTEST ?= $(BIN)/python -m pytest
# A test that hangs, or that ends its process, ends the run: it does not wait for it.
ENDS := --max-worker-restart=0 -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

.PHONY: demo test test-pythons lint types layers pytest nightly probe cases tables docs docs-site mutations bench clean

demo: .venv/demo
	$(BIN)/shardspec compile specs/examples/t5-1.1-xxl.yaml
	$(BIN)/shardspec explain decoder/layers_7/self_attention/key/kernel --spec specs/examples/t5-1.1-xxl.yaml

test: lint types layers pytest

# Python 3.11, 3.12 and 3.13, each with the oldest and the newest jax: environments in .venv/pythons.
test-pythons:
	$(PYTHON) -m tests.pythons $(CORNERS)

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/test
	$(BIN)/mypy

layers: .venv/test
	$(BIN)/lint-imports --no-cache

pytest: .venv/test .venv/gpu-compiler
	$(PYTEST) -q -n auto --dist worksteal $(ENDS)

# `-v` names a failure when it happens, and not hours later.
nightly: .venv/test .venv/gpu-compiler
	HYPOTHESIS_PROFILE=nightly $(PYTEST) -v -n auto --dist worksteal
	$(MAKE) probe

# Mutants of the code itself, and how many of them the tests notice. The aim is 85 %.
probe: .venv/test
	$(BIN)/python -m tests.probe --at-least 70

cases: .venv/test
	$(PYTEST) -q tests/test_cases.py tests/test_guides.py tests/specs/test_examples.py --update-cases

tables: .venv/test
	$(BIN)/python -m tests.grammar_tables

docs: .venv/test
	$(BIN)/python -m docs.site.findings > docs/findings.md

docs-site: .venv/docs
	$(BIN)/python -m docs.site build/site

mutations: .venv/test
	$(BIN)/python -m tests.mutations --examples 25 --write

bench: .venv/test
	$(BIN)/python benchmarks/resolve.py
	$(BIN)/python benchmarks/topology.py
	$(BIN)/python benchmarks/lints.py
	$(BIN)/python benchmarks/runtime.py
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/editing.py

.venv/python: Makefile
	@$(PYTHON) -c 'import sys; sys.exit("shardspec needs Python 3.11 or newer; set PYTHON=" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

.venv/demo: .venv/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[report]'
	@touch $@

.venv/test: .venv/demo pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[flax,optax,equinox,haiku,orbax,tpu-aot,report]' --group test
	@touch $@

.venv/docs: .venv/demo pyproject.toml
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

# XLA for GPUs that are not here, in a folder of its own: beside JAX it would complain of them. Linux only.
.venv/gpu-compiler: .venv/test
	@test "$$(uname -s)" != Linux || $(BIN)/python -c 'import importlib.metadata as m; v = m.version("jax"); \
	  print(f"jax-cuda12-plugin=={v}\njax-cuda12-pjrt=={v}")' > .venv/gpu-compiler.txt
	@test "$$(uname -s)" != Linux || $(BIN)/python -m pip install --quiet --no-deps --upgrade \
	  --target $@ -r .venv/gpu-compiler.txt || echo 'no compiler for GPUs here: tests that need it are skipped'
	@mkdir -p $@ && touch $@

clean:
	rm -rf .venv dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
