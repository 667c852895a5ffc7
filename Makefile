# make demo   sets up in .venv what it needs and trains a small network through loaderd, killing things on the way
# make test   sets up the rest and runs what CI runs: format, lint, types, floors (make lint), tests (make tests)
# make bench  figures beside torch's DataLoader, in five minutes
# make storm  faults of every kind for MINUTES=30, every batch proven; SEED=n repeats one
# make fuzz   the code in C under sanitizers for MINUTES=30, with damaged files; SEED=n repeats one
# make wheel  an sdist and one wheel for every Python, in dist/
# make mutants  N=100 small mistakes drawn over the product: which of them does no test notice? SEED=n draws the same ones,
#               AMONG="engine/ worker/" in files whose path has one of these words
#
# VENV=folder      where to install (default .venv)
# PYTHON=python3   which Python, 3.10 to 3.14
# JOBS=4         how many tests run at a time: most of them wait
# TORCH=...        a Python whose torch to use, or what pip is to install ("torch==2.13.0", a wheel's path)

VENV ?= .venv
PYTHON ?= python3
TORCH ?=
JOBS ?= 4
MINUTES ?= 30
N ?= 100
SEED ?=
AMONG ?=
BIN := $(VENV)/bin

.PHONY: demo test lint tests bench storm fuzz mutants wheel clean
.DELETE_ON_ERROR:

SETUP = VENV='$(VENV)' PYTHON='$(PYTHON)' TORCH='$(TORCH)' bash .ci/venv

$(VENV)/.served: pyproject.toml deploy/constraints.txt .ci/venv $(wildcard loaderd/data/native/*)
	@$(SETUP) daemon demo
	@touch $@

$(VENV)/.ready: $(VENV)/.served
	@$(SETUP) daemon demo dev
	@touch $@

demo: $(VENV)/.served
	@$(BIN)/python deploy/demo/run.py

test: lint tests

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

tests: $(VENV)/.ready
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

bench: $(VENV)/.ready
	@$(BIN)/python tests/bench/run.py

mutants: $(VENV)/.ready
	@PYTHONPATH=tests:tests/support $(BIN)/python -m mutants.run --count $(N) --jobs $(JOBS) $(if $(SEED),--seed $(SEED)) $(if $(AMONG),--among $(AMONG))

fuzz: $(VENV)/.served
	@$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

storm: $(VENV)/.ready
	@PYTHONPATH=tests:tests/support $(BIN)/python -m faults.storm.run --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

wheel: $(VENV)/.ready
	@$(BIN)/python deploy/build_wheel.py

clean:
	rm -rf $(VENV) build dist loaderd.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
