# Busbar's commands. `make` alone lists them.

.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JS := tests/interop/js
BROWSER := tests/console/browser
DATA ?= .busbar
ARGS ?=
SEED ?= 0
STEPS ?= 120
WORLD ?= all

.PHONY: help run spark setup test check format bench simulate deep requirements wheel docs clean

help: ## List the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST)

# Layers of what is installed: serving, then the pipeline, then what only developers need. Each stamp is written last, so
# an installation that was interrupted is taken up again; each layer asks for the ones below it.
run: $(VENV)/serving ## Serve the sample namespace from ./.busbar until Ctrl-C (DATA=dir, ARGS='--port 0')
	@$(BIN)/python tools/first_start.py $(BIN)/busbar serve --dev --data $(DATA) --config src/busbar/app/sample/Config.json $(ARGS)

spark: $(VENV)/spark $(VENV)/classes ## Install what the pipeline needs: Spark and a Java runtime
	@$(BIN)/python tools/build_rooms.py

setup: $(VENV)/dev $(VENV)/classes $(JS)/node_modules/installed $(VENV)/chromium ## Install everything that developers need and build the compiled rooms (seconds if nothing changed)
	@$(BIN)/python tools/build_rooms.py

LAYER := pyproject.toml constraints.txt hashes.txt tools/dependencies.py tools/hashes.py

$(VENV)/serving: $(LAYER)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Busbar needs Python 3.11 or later; %s is %s.%s (set PYTHON=...)" % (sys.executable, *sys.version_info[:2]))'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "creating $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
	@$(BIN)/python tools/dependencies.py serving
	@$(BIN)/python tools/dependencies.py busbar
	@touch $@

$(VENV)/spark: $(VENV)/serving
	@$(BIN)/python tools/dependencies.py spark
	@touch $@

$(VENV)/dev: $(VENV)/spark
	@$(BIN)/python tools/dependencies.py dev
	@touch $@

$(VENV)/docs: $(VENV)/serving
	@$(BIN)/python tools/dependencies.py docs
	@touch $@

# What Spark starts from faster; without it everything works, and it says why there is none.
$(VENV)/classes: $(VENV)/spark
	@echo "archiving Spark's classes (half a minute or so)"
	@rm -rf $(VENV)/share/busbar
	@$(BIN)/python -m busbar.spark.class_archive || true
	@touch $@

# The JavaScript SDK that the interop tests drive, with the Node.js that .venv brings along.
$(JS)/node_modules/installed: $(VENV)/dev $(JS)/package.json $(JS)/package-lock.json
	@echo "installing what $(JS)/package-lock.json pins"
	@cd $(JS) && $(CURDIR)/$(BIN)/npm ci --silent --ignore-scripts
	@touch $@

# The browser that the tests of the console drive. What it is unpacked from is not needed again.
$(VENV)/chromium: $(BROWSER)/package.json $(BROWSER)/package-lock.json $(BROWSER)/unpack.js | $(VENV)/dev
	@echo "unpacking the Chromium that $(BROWSER)/package-lock.json pins"
	@cd $(BROWSER) && $(CURDIR)/$(BIN)/npm ci --silent --ignore-scripts && $(CURDIR)/$(BIN)/node unpack.js $(CURDIR)/$(VENV)/share/chromium
	@rm -rf $(BROWSER)/node_modules
	@touch $@

test: setup ## Check, then run every suite; the time of each is printed
	@$(BIN)/python tools/run_suites.py

check: setup ## Format, lint, types and import contracts
	@$(BIN)/python tools/run_suites.py check

format: setup ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format .

bench: setup ## Run every benchmark of bench/ (ARGS='name ...' for some)
	@$(BIN)/python bench/run.py $(ARGS)

simulate: setup ## Replay a seed of the simulations and print what happens (SEED=7 STEPS=500 WORLD=queue|sessions|taps|topic|moves|express|express-sessions|express-topic|cluster)
	@$(BIN)/python tools/simulate.py --seed $(SEED) --steps $(STEPS) --world $(WORLD)

deep: setup ## The long campaigns of every suite, then the mutations (hours)
	@BUSBAR_DEEP=1 $(BIN)/python tools/run_suites.py deep

requirements: setup ## Print which requirements the last `make test` proved, and by which tests
	@$(BIN)/python tools/requirements.py

wheel: $(VENV)/serving ## Build dist/: a compiled wheel for this Python, and a pure one for any
	@$(BIN)/python tools/build_wheels.py

docs: $(VENV)/docs ## Build the documentation site into build/site; a link that leads nowhere fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html is the first page; to search too: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

clean: ## Remove everything that can be made again (not the data directory)
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info $(JS)/node_modules $(BROWSER)/node_modules
	@find src tests harness tools bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@find src -name '*.so' -delete
