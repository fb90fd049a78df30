# Every target that needs Python sets up .venv first; that is skipped when nothing changed.
# PYTHON3 is what .venv is made with: make test PYTHON3=python3.12
PYTHON3 ?= python3
PYTHON := .venv/bin/python
# A file, and so a notebook, stays with one worker.
PYTEST := $(PYTHON) -m pytest --numprocesses=logical --maxprocesses=4 --dist=loadfile --no-loadscope-reorder
# Of the notebooks, those that are short: the others are in test-all until they are.
SHORT := 00 02 07

.DEFAULT_GOAL := help
.PHONY: help setup course check quick test test-all lab notebooks site release clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/make \1	\2/p' Makefile | expand -t 18

course: setup ## run every lecture, 15 to 35 minutes on two cores; the pages are then in build/course
	@.venv/bin/inflight run

check: setup ## lint, types, imports between rooms, workflows, scripts, notebooks, advisories: under a minute
	@$(PYTHON) -m tools.check

quick: setup ## the tests that start no server and no browser: a minute and a half
	@$(PYTEST) -m "not server and not browser and not slow" tests

test: setup ## the gate: every test but the slow ones, and the short notebooks against their stored outputs
	@$(PYTEST) -m "not slow" $(foreach lesson,$(SHORT),$(wildcard notebooks/$(lesson)_* solutions/$(lesson)_*)) tests

test-all: setup ## every test and every notebook, an hour and more
	@$(PYTEST) notebooks solutions tests

lab: setup ## copy the lessons to work/, which is yours, and open JupyterLab there, on this machine only
	@.venv/bin/inflight lab

notebooks: setup ## make notebooks/, labs/ and solutions/ again from lessons/
	@$(PYTHON) -m tools.lessons build

site: setup ## make the pages for the web in build/site from the stored notebooks; nothing is run
	@$(PYTHON) -m tools.website

release: setup ## check everything, and make the wheel and the source distribution in dist/
	@$(PYTHON) -m tools.release

clean: ## remove .venv and build/; downloaded models stay
	rm -rf .venv build

setup:
	@command -v $(PYTHON3) >/dev/null || { echo "error: there is no $(PYTHON3) here: install Python 3.11 or 3.12 \
	with its venv module, then run make again." >&2; exit 2; }
	@$(PYTHON3) -I inflight/bootstrap.py
