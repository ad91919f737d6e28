.DEFAULT_GOAL := help
.PHONY: help demo game test test-all lint types docs bench pictures clean system-tools
MAKEFLAGS += --no-print-directory

PYTHON := $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
DEMO_READY := .venv/.demo-ready
GAME_READY := .venv/.game-ready
SYSTEM_TOOLS := strace faketime chromium

export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(READY): EXTRAS := dev
$(DEMO_READY): EXTRAS := agents,plot
$(GAME_READY): EXTRAS := agents,server

# The two variables pin the isolated build environment too (older and newer pip read different ones).
$(READY) $(DEMO_READY) $(GAME_READY): pyproject.toml constraints.txt
	@echo "Preparing .venv"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
		$(BIN)/python -m pip install -qq -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

.venv: $(READY)

demo: $(DEMO_READY) ## Train, kill in the middle, resume: the whole idea in one minute
	@$(BIN)/python examples/demo.py

game: $(GAME_READY) ## A game in your browser that learns while you watch; kill its server and it comes back
	@$(BIN)/rekindle game

test: $(READY) system-tools ## Everything a change must pass
	@$(MAKE) -j 3 lint types docs
	@$(BIN)/python -m pytest -q -n 2 -m "not exhaustive"

test-all: $(READY) system-tools ## Every test, with the ones that take minutes
	@$(BIN)/python -m pytest -q -n 2

lint: $(READY) ## Style, format, and the direction of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { $(BIN)/ruff format --check .; exit 1; }
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }
	@echo "lint: ok"

types: $(READY) ## Static types
	@out=$$(PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --warnings 2>&1) || { echo "$$out"; exit 1; }
	@echo "types: ok"

docs: $(READY) ## Build the documentation into site/; a warning is an error
	@out=$$($(BIN)/zensical build --clean --strict 2>&1) || { echo "$$out"; exit 1; }
	@echo "docs: ok"

bench: $(READY) ## Measure what sessions, memories, agents and being watched cost
	@$(BIN)/python benchmarks/session_overhead.py
	@$(BIN)/python benchmarks/replay.py
	@$(BIN)/python benchmarks/data.py
	@$(BIN)/python benchmarks/updates.py
	@$(BIN)/python benchmarks/startup.py
	@$(BIN)/python benchmarks/watching.py
	@$(BIN)/python benchmarks/dashboard.py
	@$(BIN)/python benchmarks/game.py

pictures: $(READY) ## Make the pictures of the README and the documentation again, from real runs
	@$(BIN)/python docs/pictures/make.py

clean: ## Remove everything that make created
	@rm -rf .venv .cache .peers .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist site
	@find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Tests that break the world on purpose need these; without one, the tests that use it are skipped.
system-tools:
	@for tool in $(SYSTEM_TOOLS); do \
		command -v $$tool >/dev/null && continue; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			export DEBIAN_FRONTEND=noninteractive; \
			apt-get install -y -qq $$tool >/dev/null 2>&1 \
				|| { apt-get update -qq && apt-get install -y -qq $$tool; } >/dev/null 2>&1 || true; \
		fi; \
		command -v $$tool >/dev/null || echo "note: $$tool is not installed; the tests that need it will be skipped"; \
	done
