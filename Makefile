# make demo    see flows fail, recover and be handled by rules; needs no service
# make test    everything: check, then all tests on real services (tests/services.py tells which)
# make test-fast   what needs no service: units, architecture, the broker contract and the core loop on SQLite
# make check   lint, format, types, floors
# make chaos   hours of faults on servers of its own: make chaos PART="kills pauses" SEED=1; docs/chaos.md is its report
# make bench   aft beside its peers, on the PostgreSQL and RabbitMQ of this machine: make bench QUICK=1 ONLY="happy faults"
# make lock    write requirements.lock anew: what continuous integration installs, with the hash of every file
# make audit   ask the advisory databases about all that is in requirements.lock; needs the internet
# make clean   remove what the others made

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev

# The newest one that is there; say PYTHON=... for another.
PYTHON ?= $(shell for python in python3.14 python3.13 python3.12 python3.11 python3; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# Test processes: two for each processor, because tests mostly wait for services.
WORKERS ?= $(shell "$(PYTHON)" -c 'import os; print(2 * (os.cpu_count() or 1))')

FAST := tests/unit tests/architecture tests/contract/test_contract.py tests/acceptance/test_core_loop.py

# LOCKED=1 installs exactly what requirements.lock has, and refuses every file whose hash it does not have.
LOCKED ?=

# Where Python may not keep what it compiled, each process compiles aft again: seconds of CPU, in hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast check chaos bench lock audit clean

demo: $(INSTALLED)
	@rm -rf .demo && mkdir .demo && cd .demo && unset AFT_DATABASE_URL AFT_BROKER_URL AFT_NAMESPACE && \
	"$(BIN)/aft" replay "$(CURDIR)/examples/cms_ad_approval" && \
	"$(BIN)/aft" replay "$(CURDIR)/examples/organise_concert"

test-fast: $(INSTALLED_DEV)
	@"$(BIN)/python" -m pytest -q -n $(WORKERS) -k "not postgresql and not rabbitmq" $(FAST)

test: check
	@"$(BIN)/python" -m pytest -n $(WORKERS) || { echo "What failed beside others is tried once more, alone:"; \
	"$(BIN)/python" -m pytest --last-failed --last-failed-no-failures none; }

check: $(INSTALLED_DEV)
	@"$(BIN)/ruff" check .
	@"$(BIN)/ruff" format --check .
	@"$(BIN)/mypy"
	@"$(BIN)/lint-imports"

# Parts that have a result in docs/chaos, of the same seed and code, are not repeated; QUICK=1 is a small version of each.
SEED ?= 1
chaos: $(INSTALLED_DEV)
	@"$(BIN)/python" -m chaos $(PART) --seed $(SEED) $(if $(QUICK),--quick)

# QUICK=1 takes less than five minutes; PERFORMANCE.md tells only of whole and full runs.
bench: $(INSTALLED)
	@"$(BIN)/python" -m bench $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

LOCKING := $(VENV)/.installed-lock
lock: $(LOCKING)
	@"$(BIN)/uv" pip compile --quiet pyproject.toml --extra dev --extra bench --universal --generate-hashes --upgrade \
	--no-header --no-emit-index-url --no-emit-find-links --system-certs --output-file requirements.lock

audit: $(LOCKING)
	@"$(BIN)/pip-audit" --requirement requirements.lock --require-hashes --disable-pip --strict

clean:
	rm -rf $(VENV) .demo .chaos .bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml | $(VENV)/bin/pip
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml $(if $(LOCKED),requirements.lock | $(VENV)/bin/pip,$(INSTALLED))
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check \
	$(if $(LOCKED),--require-hashes -r requirements.lock,-e '.[dev]')
	@$(if $(LOCKED),"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .)
	@touch $@ $(INSTALLED)

$(LOCKING): pyproject.toml | $(VENV)/bin/pip
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check -e '.[lock]'
	@touch $@

# Debian splits venv: without python3-venv it makes none that has pip. Then the system's pip puts one there: by
# --python since pip 22.3, run by the new interpreter before.
$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { echo "aft needs Python 3.11 or later, and there is none: install it, or say" \
	"make PYTHON=/path/to/python3 $(MAKECMDGOALS)"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "aft needs Python 3.11 or" \
	"later; PYTHON=$(PYTHON) is not"; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	"$(PYTHON)" -m venv --clear --without-pip $(VENV) && { \
	"$(PYTHON)" -m pip --python $(VENV)/bin/python install --quiet pip 2>/dev/null || \
	PYTHONPATH="$$($(PYTHON) -c 'import pip; print(pip.__path__[0].rpartition("/")[0])')" \
	$(VENV)/bin/python -m pip install --quiet --ignore-installed pip; }; } || { \
	echo "cannot make a virtual environment with $(PYTHON): it has neither ensurepip nor pip; on Debian:" \
	"apt-get install python3-venv"; exit 1; }
