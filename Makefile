# The two targets a person needs are `run` and `test`; both do all set-up by themselves. `make help` lists the others.

# The environment that we make has no pip, and its python3 may come first on PATH: then the Python that it was made with.
PYTHON ?= $(shell python3 -c 'import sys, importlib.util as u; print(sys.executable if u.find_spec("pip") else sys._base_executable)' \
	2>/dev/null || echo python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(PYTHON) -m pip --python $(BIN)/python --disable-pip-version-check --quiet
LOCK := $(BIN)/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --build-deps-for editable \
	--no-header --no-emit-index-url --no-emit-trusted-host --no-emit-find-links
CODE := proxy scripts tests benchmarks
# One worker more than there are cores: some tests wait for processes that they started.
PYTEST := $(BIN)/python -m pytest --numprocesses=$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --dist=worksteal
ARGS ?=
EXTRAS ?=
RUN := $(if $(EXTRAS),$(EXTRAS:%=$(VENV)/.%),$(VENV)/.run)

# Python keeps what it has compiled: else each of the hundreds of processes of the suite would compile the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run install check test coverage static journeys golden bench format lock map clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(RUN) ## start the proxy; options in ARGS, such as ARGS="--port 9000"; EXTRAS="outlines mcp providers telemetry": with these
	@exec $(BIN)/palimpsest serve $(ARGS)

install: $(RUN) ## install, and start nothing: then .venv/bin/palimpsest run -- CLIENT

check: static ## format, lint, types, import contracts, tests of the core: within a minute
	$(PYTEST) tests/model tests/wire tests/context tests/test_house_rules.py tests/test_documentation.py

test: static ## the same, and all tests but those that make journeys runs; the slowest are listed in build/durations.txt
	$(PYTEST) --durations-file=build/durations.txt --ignore=tests/journeys --ignore=tests/clients --ignore=tests/browser

# Without the tests that start processes, and the long ones: they would take most of the time and reach nothing more.
# With the same examples of hypothesis in each run: what is reached must not depend on luck.
coverage: $(VENV)/.dev ## trace the tests that run in one process: which branches of the core are not tested
	$(PYTEST) -m 'not no_cover' --hypothesis-seed=0 --ignore=tests/journeys --ignore=tests/clients --ignore=tests/browser --ignore=tests/test_packaging.py \
		--cov --cov-report=term --cov-fail-under=95
	@printf 'branches covered in model, wire, context and retrieval, percent: '
	@$(BIN)/coverage report --include='proxy/model/*,proxy/wire/*,proxy/context/*,proxy/retrieval/*' --format=total --fail-under=100

static: $(VENV)/.dev
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

journeys: $(VENV)/.dev ## tests over sockets, in a browser, then real clients, direct and through the proxy; ALL=1: the agents too; LONG=1: tasks of 60 steps; names in ARGS
	$(PYTEST) tests/journeys tests/clients tests/browser
	$(BIN)/python -m tests.clients $(if $(ALL),--all) $(if $(LONG),--long) $(ARGS)

golden: $(VENV)/.dev ## compare what is sent and said with what was recorded; names of stories in ARGS
	$(BIN)/python -m tests.golden check $(ARGS)

bench: $(VENV)/.dev ## measure the proxy; options in ARGS
	$(BIN)/python -m benchmarks.run $(ARGS)

format: $(VENV)/.dev ## bring the code into its form
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

lock: $(VENV)/.dev ## resolve pyproject.toml anew into the six locks; then make map
	$(LOCK) --upgrade --output-file requirements.lock pyproject.toml
	$(LOCK) --upgrade --output-file requirements-outlines.lock --extra outlines --constraint requirements.lock pyproject.toml
	$(LOCK) --upgrade --output-file requirements-mcp.lock --extra mcp --constraint requirements.lock pyproject.toml
	$(LOCK) --upgrade --output-file requirements-providers.lock --extra providers --constraint requirements-mcp.lock pyproject.toml
	$(LOCK) --upgrade --output-file requirements-telemetry.lock --extra telemetry --constraint requirements-providers.lock pyproject.toml
	$(LOCK) --upgrade --output-file requirements-dev.lock --all-extras --constraint requirements-outlines.lock \
		--constraint requirements-mcp.lock --constraint requirements-providers.lock \
		--constraint requirements-telemetry.lock pyproject.toml

map: $(VENV)/.dev ## make the map of models anew from the installed litellm
	$(BIN)/python -m scripts.model_map

clean: ## remove the virtual environments and all caches
	rm -rf $(VENV) .journeys build dist *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

# The environment is made without a pip of its own, so that Pythons whose `venv` lacks ensurepip will do.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv --without-pip $(VENV)

# Install the packages of the lock $(1), which takes $(2), and palimpsest itself. The lock is complete: an older pip that
# resolves dependencies all the same fails as soon as a newer release of one with extras is published.
define INSTALL
@echo "Installing $$(grep -c == $(1)) packages from $(1): $(2), once ..."
@$(PIP) install --no-deps --require-hashes --requirement $(1)
@echo "Installing palimpsest itself ..."
@$(PIP) install --no-deps --no-build-isolation --editable .
endef

$(VENV)/.run: requirements.lock pyproject.toml | $(BIN)/python
	$(call INSTALL,requirements.lock,half a minute)
	@touch $@

$(VENV)/.outlines: requirements-outlines.lock pyproject.toml | $(BIN)/python
	$(call INSTALL,requirements-outlines.lock,a minute)
	@touch $@ $(VENV)/.run

$(VENV)/.mcp: requirements-mcp.lock pyproject.toml | $(BIN)/python
	$(call INSTALL,requirements-mcp.lock,half a minute)
	@touch $@ $(VENV)/.run

$(VENV)/.providers: requirements-providers.lock pyproject.toml | $(BIN)/python
	$(call INSTALL,requirements-providers.lock,a minute)
	@touch $@ $(VENV)/.run

$(VENV)/.telemetry: requirements-telemetry.lock pyproject.toml | $(BIN)/python
	$(call INSTALL,requirements-telemetry.lock,half a minute)
	@touch $@ $(VENV)/.run

$(VENV)/.dev: requirements-dev.lock requirements-outlines.lock requirements-mcp.lock requirements-providers.lock requirements-telemetry.lock \
		requirements.lock pyproject.toml | $(BIN)/python
	$(call INSTALL,requirements-dev.lock,a few minutes)
	@touch $@ $(VENV)/.outlines $(VENV)/.mcp $(VENV)/.providers $(VENV)/.telemetry $(VENV)/.run
