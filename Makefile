# Everything goes through .venv/bin/python -m: no absolute path, so a checkout may lie anywhere.
PYTHON := .venv/bin/python
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-vllm smoke-vllm check lint format docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

venv: ## Make .venv, or bring it up to date
	@scripts/setup-venv

demo: venv ## Train a small model with a swarm on this machine (under 20 minutes)
	@$(PYTHON) -m learner.demo $(DEMO_ARGS)

test: venv ## Run every test
	@$(PYTHON) -m pytest -q

test-vllm: venv ## Test the vLLM engine in an environment of its own (made the first time: 4 GB)
	@scripts/setup-vllm
	@ECHO2_VLLM_PYTHON=.venv-vllm/bin/python $(PYTHON) -m pytest -q -m vllm

smoke-vllm: venv ## Test that vLLM samples what it should, before and after new weights
	@scripts/setup-vllm
	@ECHO2_VLLM_PYTHON=.venv-vllm/bin/python $(PYTHON) -m pytest -q -m vllm \
		tests/contracts/test_engine.py -k next_to_no_temperature

check: lint test ## Check style, types and imports, then run every test

lint: venv ## Check style, types and imports
	@$(PYTHON) -m ruff check
	@$(PYTHON) -m ruff format --check
	@$(PYTHON) -m mypy
	@$(PYTHON) -c 'from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_logo=True))'

format: venv ## Format the code
	@$(PYTHON) -m ruff check --fix
	@$(PYTHON) -m ruff format

docs: venv ## Build the documentation as a site in build/site; fails at broken links
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

clean: ## Remove .venv and what tools left; runs/ stays
	rm -rf .venv .venv-vllm .venv.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
