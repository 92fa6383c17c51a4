# `make book` and `make test` need only Python 3.10 or newer; the rest is installed into .venv on first use.
# Another interpreter: `make book PYTHON=python3.12`. Without CUDA's packages: `make book TORCH=cpu`.

BIN := .venv/bin

# What the caller's shell has set must not decide which modules the book sees, nor that each of some
# 200 processes compiles them anew.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

# NAME, PYTHON and TORCH reach recipes as variables of the shell, which runs nothing within them.

.DEFAULT_GOAL := help
.PHONY: help book test chaos lab record chapter clean env

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

book: env ## build the pages, and print where they are
	@$(BIN)/jupyter-book build . -W -n --keep-going
	@echo "The book: $(CURDIR)/_build/html/index.html"

# Outputs are compared with the stored ones, so where there is a GPU its measurements are replayed too.
# Four tests at a time suit two cores: ranks and browsers often wait. One thread for each, or the
# threads of one wait for those of another.
test: env ## check style, helpers, notebooks (run and compared) and pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PYTHONPATH="$(CURDIR)/tests/at_start" OMP_NUM_THREADS=1 $(if $(shell command -v nvidia-smi),BOOK_EXPERIMENTS=replay) $(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder --nbval

chaos: env ## kill the training program 20 times on one rank and 20 times on two, and compare the weights
	@CHAOS=20 $(BIN)/pytest -q -s tests/test_train.py -k killed

lab: env ## open the notebooks in JupyterLab
	@$(BIN)/jupyter-lab

record: env ## measure on this machine and store the results; NOTEBOOKS="book/15_transfers.ipynb" for some only
	@$(BIN)/python -m utils.record $(NOTEBOOKS)

chapter: env ## start a chapter that passes its own tests: make chapter NAME=64_logging
	@$(BIN)/python tools/chapter.py "$$NAME"

clean: ## remove what was built (.venv and data/ stay)
	@rm -rf _build .pytest_cache .ruff_cache
	@find utils tests book -name __pycache__ -prune -exec rm -rf {} +

env:
	@sh tools/bootstrap.sh "$$PYTHON" "$$TORCH"
