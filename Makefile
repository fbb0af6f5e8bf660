PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python

DATA ?= catalogs
PRESET ?= small
RUNS ?= runs
M4 = $(RUN) -m examples.m4
M4_FLAGS = --run $(RUNS)/$(PRESET) --preset $(PRESET) $(if $(MESH),--mesh "$(MESH)") $(if $(LAYOUT),--layout "$(LAYOUT)") $(FLAGS)

# Python keeps what it compiles: collecting the tests takes half the time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help env test test-all fast-tests lint types lines fuzz fuzz-files chaos golden messages docs \
	docs-outputs m4 clean

# Prints this help: every target with the last line of the comment above it.
help:
	@awk '/^# /{comment=substr($$0, 3)} /^[a-z][a-z0-9-]*:/{split($$0, part, ":"); \
		if (comment) printf "  make %-14s %s\n", part[1], comment} !/^# /{comment=""}' $(MAKEFILE_LIST)

# The environment in .venv, with pinned versions; every other target makes it first.
env: $(VENV)/ready

$(VENV)/ready: requirements.txt pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet -r requirements.txt
	$(RUN) -m pip install --quiet --no-deps --no-build-isolation -e . || $(RUN) -m pip install --quiet --no-deps -e .
	touch $@

# Lint, types and the fast tests: minutes on two cores.
test: env lint
	$(MAKE) --jobs=2 types fast-tests

# Everything, slow tests included.
test-all: env lint types
	$(RUN) -m pytest -n 2 --dist worksteal

# The tests that are not slow.
fast-tests: env
	$(RUN) -m pytest -n 2 --dist worksteal -m "not slow"

# Ruff: rules and format.
lint: env
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# Pyright.
types: env
	$(VENV)/bin/pyright

# Lines of code, docstrings and files of every room.
lines: env
	$(RUN) -m benchmarks.lines

# Hours: random programs under random layouts, each compiled strictly and compared with one device.
# Stop it when you like; the same command goes on. SEED chooses the programs.
SEED ?= 1
CASES ?= 10000
JOBS ?= 1
# Random programs under random layouts (hours; it can be stopped and goes on).
fuzz: env
	$(RUN) -m tests.fuzz --seed $(SEED) --cases $(CASES) --partitioner both --jobs $(JOBS)

# Files of Artifacts and checkpoints, each changed at random and read (minutes).
fuzz-files: env
	$(RUN) -m tests.fuzz_files --seed $(SEED) --cases $(CASES) --json benchmarks/results/fuzz/files.json

# An hour: processes that train are killed, stopped, refused, replaced and left out, their disk
# fills up, their checkpoints are damaged and bits flip in their memory. Stop it when you like; the
# same command goes on. SEED chooses the faults.
MINUTES ?= 60
FAULTS ?= 300
# Processes that are killed while they train (an hour).
chaos: env
	$(RUN) -m benchmarks.chaos --seed $(SEED) --minutes $(MINUTES) --faults $(FAULTS) \
		--results benchmarks/results/chaos

# A change that costs something shows as a diff of these files.
# Writes the plans of examples, presets and benchmarks to tests/golden again.
golden: env
	$(RUN) -m tests.diff.golden_plans

# Rewrites the messages that tests/errors expect with those that are raised now: read the diff.
messages: env
	WRITE_MESSAGES=1 $(RUN) -m pytest tests/errors -k "test_message" -p no:xdist

# Builds the site into build/site; a warning is an error.
docs: env
	$(RUN) -m docs.site.build

# Rewrites the outputs that the guides and tutorials show with what their code prints now.
docs-outputs: env
	NAMEDMESH_WRITE_OUTPUTS=1 $(RUN) -m pytest tests/docs/test_guides.py tests/docs/test_tutorials.py

# Trains the translation model of examples/m4 on real sentences, and evaluates it.
m4: env
	$(M4) train $(M4_FLAGS) --data "$(DATA)"
	$(M4) evaluate $(M4_FLAGS) --sentences 20

# Removes the environment and everything built.
clean:
	rm -rf $(VENV) build dist *.egg-info
