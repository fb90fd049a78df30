# Every target that needs Python sets up .venv first; that is skipped when nothing changed.
# PYTHON3 runs set-up, and is what .venv is made with if it is 3.11 or 3.12: make test PYTHON3=python3.12
PYTHON3 ?= python3
PYTHON := .venv/bin/python
SEED ?= $(shell date +%F)
# What a process imports is compiled once, also where the environment forbids that, as those of many images do: of some
# thousand processes each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
# A file, and so a notebook, stays with one worker. A worker that dies is not replaced (pytest-xdist 3.8 would give out its
# files a second time, and wait for ever for tests that have run): the run ends, red, and names its test. A test that hangs
# where no signal reaches it ends its worker, after a traceback; a cell may take ten minutes by itself.
PYTEST := $(PYTHON) -m pytest --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder \
	--max-worker-restart=0 --override-ini=faulthandler_timeout=900 --override-ini=faulthandler_exit_on_timeout=true
GATED := $(wildcard notebooks/0[049]_*.ipynb)
SCRIPTS := inflight/lessons/*/lecture.py inflight/lessons/*/lab.py
CHECKS := lint imports types workflows scripts sources advisories

.DEFAULT_GOAL := help
.PHONY: help setup course check $(CHECKS) quick test lectures test-all mutants lab notebooks site play release address clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1	\2/p' Makefile | expand -t 18

course: setup ## run every lecture, 10 to 15 minutes on two cores; the pages are then in build/course
	@.venv/bin/inflight run

check: setup ## all of the checks below, also after one that fails: a minute
	@$(MAKE) --no-print-directory --keep-going $(CHECKS)

lint: setup ## ruff: format and rules
	@$(PYTHON) -m ruff format --check --quiet . && $(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m ruff format --check --quiet --line-length 88 $(SCRIPTS) && $(PYTHON) -m ruff check --quiet $(SCRIPTS)

imports: setup ## which room may import which
	@.venv/bin/lint-imports

types: setup ## mypy
	@$(PYTHON) -m mypy

workflows: setup ## zizmor; without --strict-collection it would only warn of what is no valid workflow
	@.venv/bin/zizmor --offline --quiet --strict-collection .github/workflows

scripts: setup ## shellcheck; on arm64 your own, because there is no wheel
	@PATH="$$PWD/.venv/bin:$$PATH" shellcheck .ci/* $$(git ls-files 'assets/*.sh')

sources: setup ## do notebooks, README.md, glossary and instructor's pages agree with the lessons?
	@$(PYTHON) -m tools.lessons check

advisories: setup ## what is known of the packages; skipped where the package index cannot be asked
	@mkdir -p build
	@timeout 60 .venv/bin/pip-audit --local --skip-editable --progress-spinner off --timeout 10 >build/advisories 2>&1; \
	if grep '^Found' build/advisories; then cat build/advisories; exit 1; fi; \
	if grep -q '^No known' build/advisories && ! grep -q 'could not be audited: numpy' build/advisories; \
	then echo "No advisory on any package."; else echo "Advisories skipped: the package index has none to give."; fi

quick: setup ## the tests that start no server and no browser: a minute and a half
	@$(PYTEST) -m "not server and not browser and not slow" tests

test: setup ## every test but the slow ones, and lectures 00, 04 and 09 against their stored outputs
	@$(PYTEST) -m "not slow" $(GATED) tests

lectures: setup ## every other lecture against its stored outputs
	@$(PYTEST) $(filter-out $(GATED), $(wildcard notebooks/*.ipynb))

mutants: setup ## fifty faults drawn at random, and whether the tests see them; SEED=7 draws the same again
	@$(PYTHON) -m tools.mutants 6 --seed $(SEED)

test-all: setup ## every test, lecture and solution: an hour
	@$(PYTEST) notebooks solutions tests

lab: setup ## copy the lessons to work/, which is yours, and open JupyterLab there, on this machine only
	@.venv/bin/inflight lab

notebooks: setup ## make notebooks/, labs/ and solutions/ again from inflight/lessons/
	@$(PYTHON) -m tools.lessons build

site: build/site-venv/stamp ## make the pages for the web in build/site from the stored notebooks; nothing is run
	@build/site-venv/bin/sphinx-build --fail-on-warning --keep-going --quiet --jobs auto -c site -d build/site-doctrees . build/site
	@$(MAKE) --no-print-directory play
	@echo "Open build/site/index.html in a browser; Play wants a server: $(PYTHON) -m http.server -b 127.0.0.1 -d build/site"

play: setup build/site-node/stamp ## make the front page and Play alone in build/site; needs Node
	@$(PYTHON) -m tools.front build/site build/site-node/node_modules

# Pyodide, the editor and what bundles it: from npm, held to the hashes of the lock file; no script of theirs is run.
build/site-node/stamp: site/package-lock.json
	@mkdir -p build/site-node && cp site/package.json site/package-lock.json build/site-node
	@npm --prefix build/site-node ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# Sphinx is no part of a learner's set-up.
build/site-venv/stamp: site/requirements.txt | setup
	@$(PYTHON) -m venv --clear --without-pip build/site-venv
	@$(PYTHON) -m pip --python build/site-venv install --quiet --require-hashes --only-binary=:all: --no-deps -r site/requirements.txt
	@touch $@

release: check ## make wheel and source distribution of the last commit in dist/, and print their SHA-256
	@rm -rf dist build/release && mkdir -p dist build/release
	@git archive HEAD | tar -x -C build/release
	@cd build/release && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(CURDIR)/$(PYTHON) -c "from setuptools import build_meta; \
	build_meta.build_sdist('$(CURDIR)/dist'); build_meta.build_wheel('$(CURDIR)/dist')" >../release.log
	@cd dist && sha256sum *

address: setup ## write the repository's address wherever it is needed: make address URL=https://github.com/you/your-course
	@$(PYTHON) -m tools.address $(URL)

clean: ## remove .venv and build/; engines in the cache stay
	rm -rf .venv build

setup:
	@if command -v $(PYTHON3) >/dev/null; then $(PYTHON3) -I inflight/bootstrap.py; \
	elif command -v uv >/dev/null; then uv run --no-project --python 3.12 python -I inflight/bootstrap.py; \
	else echo "error: here is neither $(PYTHON3) nor uv, and set-up needs one of them: install Python, of any version \
	(on Debian and Ubuntu: sudo apt install python3-venv), then run make again." >&2; exit 2; fi
