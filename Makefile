# Every target that needs Python sets up .venv first; that is skipped when nothing changed.
# PYTHON3 is what .venv is made with: make test PYTHON3=python3.12
PYTHON3 ?= python3
PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup course check test lab notebooks site release clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/make \1	\2/p' Makefile | expand -t 18

course: setup ## run every notebook; the pages are then in build/course
	@.venv/bin/inflight run

check: setup ## lint, types, imports between rooms, workflows, scripts, notebooks, advisories: under a minute
	@$(PYTHON) -m tools.check

test: setup ## run every test, and check every notebook against its stored outputs
	@$(PYTHON) -m tools.lessons test

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
