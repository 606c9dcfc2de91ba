# Everything that is done with this project, each step written once.
#   make serve   install into .venv and start the router here      make serve ARGS="--port 8080"
#   make quick   format, lint, types and the fast unit tests: before each commit
#   make check   format, lint, import contracts, types, all unit and wire tests with their coverage
#   make test    the same, all tests with real servers and the documentation: what .ci/run runs
#   make bench   measure against a bare Flask view                  make soak   the long fault tests
#   make simulate ARGS="--seed 1 --runs 10 --hours 1"      hours of faults in seconds, in a simulation of disk, network and time
#   make pictures   write docs/pictures, and every page of the console as it is now to .cache/pictures
#   make pyspark-versions   the data source on each Spark and Python that it supports: minutes each
#   make release   wheel and sdist in dist/, proved in fresh environments on each supported Python
#   make docs    the documentation, warnings are errors             make clean  leave nothing behind

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST := $(BIN)/python -m pytest
# The workers of a parallel run, of which one or two wait at any time; tests/sharing.py says which tests share one.
WORKERS ?= 3
PARALLEL = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
CONSTRAINTS := deploy/constraints.txt
# The distribution had another name: with both in one environment pytest would find its plugin twice.
FORMER := $(PIP) uninstall --yes message-router 2>/dev/null || true
METADATA := setup.cfg pyproject.toml $(CONSTRAINTS)
ARGS ?=

# Some images forbid Python to keep what it compiled: each start of a process would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve release pictures pyspark-versions quick check test bench soak simulate mutations docs generate constraints clean servers format lint contracts types fast unit integration alone
.DEFAULT_GOAL := help

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

serve: .venv/installed
	@exec $(BIN)/router serve $(ARGS)

quick: format lint types fast

check: format lint contracts types unit

test: servers check integration alone docs

# The real servers that tests start: one sentence when something is missing, before anything is installed.
servers:
	@$(PYTHON) -m tests.servers.maven
	@$(PYTHON) -m tests.servers.golang
	@$(PYTHON) -m tests.servers.node
	@$(PYTHON) -m tests.servers.chromium
	@$(PYTHON) -m tests.servers.postgresql
	@$(PYTHON) -m tests.servers.environments

format: .venv/installed-test
	$(BIN)/ruff format --check .

lint: .venv/installed-test
	$(BIN)/ruff check .

contracts: .venv/installed-test
	$(BIN)/lint-imports --cache-dir .cache/import-linter

types: .venv/installed-test
	$(BIN)/mypy

fast: .venv/installed-test
	$(PYTEST) $(PARALLEL) -m "not slow" tests/unit $(ARGS)

unit: .venv/installed-test
	$(PYTEST) $(PARALLEL) -m "not alone" --cov=router tests/unit tests/wire $(ARGS)

# All that starts the product, or a server that is not ours.
integration: servers .venv/installed-test
	$(PYTEST) $(PARALLEL) -m "not alone" --ignore=tests/unit --ignore=tests/wire tests $(ARGS)

# Tests that measure memory, or how long something takes, have the machine for themselves.
alone: .venv/installed-test
	$(PYTEST) -m alone tests $(ARGS)

bench: .venv/installed-test
	$(BIN)/python -m bench $(ARGS)

# Publishers, consumers and faults around the broker in one process, by seeds; docs/trust.md says what is checked.
simulate: .venv/installed-test
	$(BIN)/python -m tests.simulation $(ARGS)

release:
	@deploy/release.sh

# The pictures of the documentation, and of every page in .cache/pictures, from a router that `router demo` fills.
pictures: servers .venv/installed-test
	WRITE_PICTURES=1 $(PYTEST) tests/browser/test_pictures.py

# Fresh environments outside of the checkout; ARGS are pairs, such as 4.1.4:python3.12.
pyspark-versions: .venv/installed-test
	$(BIN)/python -m tests.pipelines.pyspark_versions $(ARGS)

# Faults planted in the broker, one after the other: a table of the seeds of the simulation that find them.
mutations: .venv/installed-test
	$(BIN)/python -m tests.simulation.mutations $(ARGS)

# The long forms: some hours. The last results stand in docs/soak.md.
soak: export SOAK_BROKER_KILLS = 1000
soak: export SOAK_STACK_KILLS = 100
soak: export SOAK_FAULT_STEP = 1
soak: export SOAK_FULL_DISKS = 6
soak: export SOAK_LOOKUP_EXAMPLES = 3000
soak: export SOAK_ENGINE_EXAMPLES = 2500
soak: export SOAK_VANISHINGS = 600
soak: export SOAK_CROWD_SECONDS = 60
soak: export SOAK_WAITING_POLLS = 2000
soak: export SOAK_BROKER_PAUSES = 4
soak: export SOAK_WORKER_KILLS = 50
soak: export SOAK_IDEMPOTENT_REPEATS = 50
soak: export SOAK_CONNECTIONS = 1000
soak: export SOAK_TOPICS = 10000
soak: export SOAK_FLOOD_SECONDS = 60
soak: export SOAK_NODE_PAUSES = 100
soak: export SOAK_NODE_KILLS = 100
soak: export SOAK_NODE_BROKERS = 100
soak: export SOAK_NODE_KAFKA_KILLS = 100
soak: export SOAK_NODE_ZOOKEEPER_KILLS = 100
soak: export SOAK_NODE_CUTS = 100
soak: export SOAK_NODE_STALE_COMMITS = 100
soak: export SOAK_SLOW_CONNECTIONS = 2000
soak: export SOAK_SLOW_POLLS = 1500
soak: export SOAK_SLOW_POSTS = 20000
soak: export SOAK_CROWD_POLLS = 900
soak: export SOAK_KAFKA_KILLS = 100
soak: export SOAK_TRANSFORM_KILLS = 120
soak: export SOAK_STREAMS_KILLS = 100
soak: export SOAK_NATS_KILLS = 100
soak: export SOAK_FUZZ_SECONDS = 900
soak: export SOAK_HTTP_MUTATIONS = 200
soak: export SOAK_PREPARED_ROUNDS = 10000
soak: export SOAK_OPENAPI_EXAMPLES = 100
soak: export SOAK_PIPELINE_KILLS = 250
soak: export SOAK_SUPERVISED_KILLS = 100
soak: export SOAK_TAIL_SECONDS = 30
soak: export SOAK_HISTORIES = 1000
soak: export SOAK_CRASH_IMAGES = 100000
soak: export SOAK_BIT_FLIPS = 131072
soak: servers .venv/installed-test
	$(PYTEST) tests/system tests/unit/broker/storage tests/unit/broker/consume tests/wire tests/broker tests/kafka tests/nats tests/pipelines tests/browser tests/histories tests/crash_images \
	    -k "crash or faults or fuzz or as_a_list_would or all_dialects_at_once or written_over or thousand_messages_a_second" \
	    -o timeout=7200 $(ARGS)
	$(BIN)/python -m tests.simulation --seed 1000000 --runs 1000 --hours 1 --jobs 2 --shrink
	$(BIN)/python -m tests.simulation.mutations --jobs 2

docs: .venv/installed-test
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -d .cache/doctrees docs docs/_build/html

# What is made from definitions and tables in the code: run this after a change of messages, settings or errors.
generate: .venv/installed-test
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. router/wire/*/*.proto
	$(BIN)/python docs/generate.py

# The versions that all of this was tested with, after an upgrade of .venv: the comment stays, the pins are new.
constraints:
	{ grep '^#' $(CONSTRAINTS); $(PIP) freeze --all --exclude-editable --exclude pip | sort --ignore-case; } >$(CONSTRAINTS).new
	mv $(CONSTRAINTS).new $(CONSTRAINTS)

clean:
	rm -rf .venv .cache build dist docs/_build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "The router needs Python 3.11 or later: install it, or name it with make PYTHON=python3.x"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' || \
	    { echo "Python's venv module is missing: install it, on Debian with apt-get install python3-venv"; exit 1; }
	@echo "Making a virtual environment in .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python $(METADATA)
	@echo "Installing the router and the packages that it needs into .venv: half a minute or more, once."
	@$(BIN)/python -m pip --disable-pip-version-check install --progress-bar off --constraint $(CONSTRAINTS) --editable .
	touch $@

.venv/installed-test: .venv/bin/python $(METADATA)
	@$(FORMER)
	$(PIP) install --constraint $(CONSTRAINTS) --editable '.[test,docs,pipelines]'
	touch .venv/installed $@
