# Every target sets up .venv by itself when it is missing or older than the locks, which hold each package by hash.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
FLEET := $(VENV)/bin/gpu-fleet
STACK ?= local
LOCKS := requirements.lock torch-pypi.lock torch-cpu.lock
READY := $(VENV)/.ready
POLICY := $(VENV)/policy/.ready
# what builds the site; it sees the packages of .venv
DOCS ?= $(VENV)/docs
# `.venv` comes without bytecode. A shell that forbids to write it would have every process, of which the tests start
# hundreds, compile torch again: 5 s instead of 2.
export PYTHONDONTWRITEBYTECODE :=
# What `make test` runs of tests/; the rest takes root, packages or minutes, and is run by `make prove`.
QUICK := not image and not libraries and not queue and not prove
# folders of tests, at any depth: image image/console image/console/runs ...
FOLDERS := $(patsubst tests/%/,%,$(dir $(wildcard tests/*/test_*.py tests/*/*/test_*.py tests/*/*/*/test_*.py tests/*/*/*/*/test_*.py)))
ROOMS := $(filter-out . bench libraries,$(sort $(FOLDERS) $(patsubst %/,%,$(dir $(FOLDERS))) image/instance image/controllers))
# image/controllers/sweep -> image-controllers-sweep
dashes = $(subst _,-,$(subst /,-,$1))

.DEFAULT_GOAL := help
.PHONY: help rehearse test touched boot test-libraries lock image-lock lint format bench prove docs docs-links changelog release-notes release-state policy up preview preflight check cost refresh clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): $(LOCKS) pyproject.toml .ci/environment.py
	@echo "setting up $(VENV): some 450 MB, a minute or two; with an NVIDIA GPU 3 GB"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; say make PYTHON=/path/to/python3.11")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) .ci/environment.py install
	@touch $@

$(POLICY): stacks/gpu_fleet_stacks/crossguard/requirements.lock $(READY)
	@echo "setting up $(VENV)/policy"
	@$(PY) -m venv $(VENV)/policy
	@$(VENV)/policy/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@touch $@

$(DOCS)/.ready: docs/requirements.lock $(READY)
	@echo "setting up $(DOCS)"
	@$(PY) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r $<
	@$(PY) .ci/environment.py show $(DOCS)
	@touch $@

rehearse: $(READY) ## Run the main job on this computer: stack, trainer with a spot notice, reaper
	@$(FLEET) rehearse $(STACK)

# A third worker fills the waits of the other two on two cores.
test: $(READY) ## Run the tests
	@$(PY) -m pytest -m "$(QUICK)" -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

# one room: make test-stacks, make test-image-controllers-sweep
define room
.PHONY: test-$(call dashes,$1)
test-$(call dashes,$1): $(READY)
	@$(PY) -m pytest -m "$(QUICK)" -n 2 --dist loadfile --no-loadscope-reorder tests/$1 $$(ARGS)
endef
$(foreach folder,$(ROOMS),$(eval $(call room,$(folder))))

touched: $(READY) ## Run the tests that your change can break; of one room: make test-stacks
	@$(PY) -m tests.touched $(ARGS)

# Two at a time, the modules of one group one after another: an emulated computer leaves half the cores idle.
boot: $(READY) ## Bake an image, boot it, end it as idle: needs root and Debian packages
	@$(PY) -m pytest -m "image and not prove" -n 2 --dist loadgroup $(ARGS)

test-libraries: $(READY) ## Check the callbacks with the libraries themselves, which this brings from PyPI
	@$(PY) -m pytest -m "libraries and not prove" $(ARGS)

lint: $(READY) ## Format and lint with ruff, hold the house's rules, type-check with mypy --strict
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(PY) .ci/house.py
	@$(VENV)/bin/mypy

format: $(READY) ## Let ruff rewrite what it can
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

lock: $(READY) ## Resolve requirements*.txt anew into the locks, which hold every package by hash
	@$(PY) .ci/environment.py lock

image-lock: $(READY) ## Hold the image's lockfile against what lies here
	@$(FLEET) image lock

bench: $(READY) ## Measure; writes build/bench.json
	@$(PY) -m tests.bench $(ARGS)

prove: $(READY) ## Prove what takes longer than CI may, hours in all; needs root. One part: make prove-queue
	@$(PY) -m tests.prove $(ARGS)

prove-%: $(READY)
	@$(PY) -m tests.prove $* $(ARGS)

check: $(READY) ## Check a stack file without a cloud: make check STACK=aws-dev
	@$(FLEET) check $(STACK)

cost: $(READY) ## What a stack costs an hour and a month: make cost STACK=aws-prod
	@$(FLEET) cost $(STACK)

refresh: $(READY) ## Read today's list prices: make refresh ARGS="--dry-run --cloud aws"
	@$(FLEET) catalog refresh $(ARGS)

preflight: $(READY) ## Ask the cloud whether there is room: make preflight STACK=aws-prod
	@$(FLEET) preflight $(STACK)

SPHINX = $(DOCS)/bin/python -m sphinx -W --keep-going -n -q -E -d build/doctrees

docs: $(DOCS)/.ready ## Build the site into build/docs; a broken link is an error
	@$(SPHINX) -b html docs build/docs
	@echo "build/docs/index.html"

changelog: $(READY) ## Show what the next release says, from docs/changes
	@$(VENV)/bin/towncrier build --draft --version Unreleased

release-notes: $(READY) # move it into CHANGELOG.md: make release-notes VERSION=0.2.0
	@$(VENV)/bin/towncrier build --yes --version $(VERSION)

release-state: $(READY) # record what this release writes, for the tests of later ones
	@$(PY) -m tests.releases.record $(VERSION)

docs-links: $(DOCS)/.ready ## Ask for every external link of the site; needs the network
	@$(SPHINX) -b linkcheck docs build/docs-links

policy: $(POLICY) ## Set up the policy pack's own environment, which preview and up load

preview: $(POLICY) ## Show what `pulumi up` would do: make preview STACK=aws-dev
	@$(FLEET) preview $(STACK)

up: $(POLICY) ## Stand a stack up with the Pulumi CLI: make up STACK=aws-dev
	@$(FLEET) up $(STACK)

clean: ## Remove what was built; .venv stays
	@rm -rf build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
