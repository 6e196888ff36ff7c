# Two commands for a start: `make run` and `make test`. Everything is installed into .venv, from locked, hashed sets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HANGUP_ENGINES_DIR ?= .engines
TORCH ?= torch==2.13.0+cpu
FUZZ_S ?= 3600
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: help setup run demo test test-engines test-torch test-dashboard dashboard-picture fuzz check format bench judge lock docs clean chaos mutants

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: $(VENV)/.setup  ## .venv with hangup in it

$(VENV)/.setup: requirements/run.txt requirements/build.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hangup needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/build.txt -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.setup-test: $(VENV)/.setup requirements/dev.txt
	$(PIP) install --require-hashes -r requirements/dev.txt
	touch $@

run: setup  ## serve on 127.0.0.1:8080; ARGS="--upstream http://127.0.0.1:8000" puts it in front of an engine
	$(BIN)/hangup serve $(ARGS)

demo: setup  ## a crowd that hangs up, behind a plain proxy and behind hangup: one minute
	$(BIN)/hangup demo $(ARGS)

test: $(VENV)/.setup-test  ## all tests, beside each other where that is safe; ARGS="-k name" chooses
	$(BIN)/python -m tools.run_tests $(ARGS)

test-engines: $(VENV)/.setup-test  ## the tests with real engines, set up in HANGUP_ENGINES_DIR (5 GB); ENGINES=llamacpp: 0.5 GB
	$(BIN)/python -m tools.engines $(HANGUP_ENGINES_DIR) $(ENGINES)
	HANGUP_ENGINES_DIR=$(HANGUP_ENGINES_DIR) $(BIN)/python -m tools.run_tests --serial tests/real_engines -s $(ARGS)

$(VENV)/.setup-torch: $(VENV)/.setup-test
	$(PIP) install --target $(VENV)/torch "$(TORCH)" safetensors
	touch $@

test-torch: $(VENV)/.setup-torch  ## test the torch model (1 GB; TORCH=torch takes the build of your package index)
	PYTHONPATH=$(VENV)/torch $(BIN)/python -m tools.run_tests --serial tests/engine/test_torch.py $(ARGS)

# The browser itself is Debian's, installed once: apt-get install chromium
$(VENV)/.setup-dashboard: $(VENV)/.setup-test requirements/dashboard.txt
	$(PIP) install --require-hashes -r requirements/dashboard.txt
	touch $@

test-dashboard: $(VENV)/.setup-dashboard  ## the dashboard in Chromium (apt-get install chromium)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "hangup: Chromium is needed: apt-get install chromium"; exit 1; }
	DASHBOARD_TESTS=required $(BIN)/python -m tools.run_tests --serial tests/dashboard $(ARGS)

dashboard-picture: $(VENV)/.setup-dashboard  ## the picture of the dashboard in docs/figures
	DASHBOARD_TESTS=required DASHBOARD_PICTURE=docs/figures/dashboard.png $(BIN)/python -m pytest tests/dashboard -k picture

fuzz: $(VENV)/.setup-test  ## odd clients and odd engines for an hour; FUZZ_S=60 is a minute, ARGS="--case N" does one case again
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_S) $(ARGS)

check: $(VENV)/.setup-test  ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.markdown --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.setup-test  ## format code and Markdown
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m tools.markdown

bench: $(VENV)/.setup-test  ## measure against nginx and the other gateways; see bench/README.md
	PYTHONPATH=tests $(BIN)/python -m bench $(ARGS)

chaos: $(VENV)/.setup-test  ## faults and load from a seed, on real processes; ARGS="--seed 7 --minutes 4 --actors kill,calls"
	PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

mutants: $(VENV)/.setup-test  ## break core/ in small ways, see whether its tests notice; ARGS="--seed 1 --minutes 12 --only call.py"
	$(BIN)/python -m tools.mutants $(ARGS)

judge: $(VENV)/.setup-test  ## AIPerf and GuideLLM judge direct, nginx, LiteLLM and hangup (installs 4 GB into bench/.envs); ARGS="--help"
	PYTHONPATH=tests $(BIN)/python -m bench.judge $(ARGS)

docs: $(VENV)/.setup-test  ## write the generated parts of docs/ anew
	$(BIN)/python -m tools.docs
	$(BIN)/python -m tools.grafana

lock: $(VENV)/.setup  ## resolve the dependencies anew, with hashes
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml --extra gateway -o requirements/run.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group build -o requirements/build.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group test --group check -c requirements/run.txt -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group dashboard -c requirements/run.txt -c requirements/dev.txt -o requirements/dashboard.txt

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
