# make demo: set up and run the whole job on the embedded synthetic study.  make test: set up and run the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready

.PHONY: setup demo test lint types wheel clean
setup: $(READY)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $(INSTALLED)

# engines, accountant and the tools of development: the demo needs none of them
$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $(READY)

demo: $(INSTALLED)
	$(BIN)/fedskew demo --out demo --force

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

wheel: $(READY)
	$(BIN)/python -m build --wheel --outdir dist .

clean:
	rm -rf $(VENV) demo dist build .pytest_cache .mypy_cache .ruff_cache
