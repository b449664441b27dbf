# The contributor interface. `make demo` and `make test` are the two commands a user needs.
SHELL := /bin/bash
BIN := .venv/bin
PY := $(BIN)/python
PYTEST := $(PY) -m pytest -q
# Three more than the cores: some tests wait for other processes, those of a real Kubernetes most of their time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$(( n < 8 ? n + 3 : 8 )))
# What a run prints of its time: .ci/run asks for the CPU seconds of each folder and the slowest tests.
TIMES ?=
# Sets and dictionaries of strings keep one order, in the tests and in the processes that they start.
export PYTHONHASHSEED ?= 0
# The tests start hundreds of processes; without bytecode on disk each compiles every module again.
unexport PYTHONDONTWRITEBYTECODE
# Compiling the kernels for GPUs takes two minutes of a processor: what was compiled lies beside the other caches.
export TRITON_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/mambaserve/triton

.PHONY: help setup demo test test-slow test-all interpreted tools clients open-webui lint types props gates compiled mutants kube e2e e2e-all zero-drop images bench docs site release version dashboards crds manifests lock format

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from the lock file
	@scripts/setup

demo: setup ## serve the shipped model on this machine and talk to it (ONCE=1 ends by itself)
	@$(PY) -m mamba_cli up examples/01-quick-start/mamba.yaml --demo $(if $(ONCE),--once)

# One file stays in one process; the files are begun in their order. One process imports them, for all.
MANY := $(PYTEST) -n $(WORKERS) --fork-workers --dist loadfile --no-loadscope-reorder

test: setup ## every test that needs neither root nor a GPU nor minutes, a real control plane included (WORKERS=1: one by one)
	@$(MANY) $(TIMES) -m "not slow and not gpu and not e2e and not tools"

test-slow: setup ## the tests that take two seconds of a processor or more
	@$(MANY) $(TIMES) -m "slow and not gpu and not e2e and not tools"

test-all: setup ## `test` and `test-slow` in one run (WITHOUT=interpreted: but for those, as .ci/run does)
	@$(MANY) $(TIMES) -m "not gpu and not e2e and not tools$(if $(WITHOUT), and not $(WITHOUT))"

interpreted: setup ## those of the tests on Triton's interpreter that take minutes, in two processes
	@$(PYTEST) -n 2 --dist loadfile $(TIMES) tests/gates/test_interpreted_kernels.py tests/unit/kernels/triton/test_interpreted.py

tools: setup ## the tests of the project's own tools: benchmarks, training, the test cluster, the tests for a card
	@$(MANY) -m "tools and not gpu and not e2e"

clients: setup ## the client libraries of other projects against a live server, in environments of their own (minutes the first time)
	@[ -x .venv-clients/bin/python ] || $(PY) -m venv .venv-clients
	@.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check --group clients
	@[ -x .venv-llama-index/bin/python ] || $(PY) -m venv .venv-llama-index
	@.venv-llama-index/bin/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@.venv-llama-index/bin/python -m pip install --quiet --disable-pip-version-check --group llama-index
	@[ -x .venv-lm-eval/bin/python ] || { $(PY) -m venv .venv-lm-eval && \
	  echo "import site; site.addsitedir('$$(echo $(CURDIR)/.venv/lib/python3*/site-packages)')" \
	    > "$$(echo .venv-lm-eval/lib/python3*/site-packages)/mambaserve.pth"; }
	@.venv-lm-eval/bin/python -m pip install --quiet --disable-pip-version-check accelerate "lm-eval>=0.4.11"
	@[ -x .venv-guidellm/bin/python ] || $(PY) -m venv .venv-guidellm
	@.venv-guidellm/bin/python -m pip install --quiet --disable-pip-version-check "guidellm>=0.8.1"
	@! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --ignore-scripts \
	  --prefix .venv-clients/node ai @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic zod
	@MAMBASERVE_CLIENTS=$(CURDIR)/.venv-clients/bin/python MAMBASERVE_LM_EVAL=$(CURDIR)/.venv-lm-eval/bin/python \
	  MAMBASERVE_LLAMA_INDEX=$(CURDIR)/.venv-llama-index/bin/python \
	  MAMBASERVE_GUIDELLM=$(CURDIR)/.venv-guidellm/bin/guidellm \
	  MAMBASERVE_NODE_CLIENTS=$$(command -v npm >/dev/null && echo $(CURDIR)/.venv-clients/node) \
	  $(PYTEST) -m tools tests/integration/test_other_clients.py tests/integration/test_lm_eval.py \
	  tests/integration/test_their_reports.py tests/conformance/test_new_routes_fuzz.py

open-webui: setup ## Open WebUI in front of a live server, in an environment of its own (gigabytes, minutes the first time)
	@[ -x .venv-open-webui/bin/open-webui ] || { $(PY) -m venv .venv-open-webui && \
	  .venv-open-webui/bin/python -m pip install --quiet --disable-pip-version-check open-webui; }
	@MAMBASERVE_OPEN_WEBUI=$(CURDIR)/.venv-open-webui/bin/open-webui $(PYTEST) -m tools tests/integration/test_open_webui.py

lint: setup ## ruff, the import contracts and the rules of the house
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(PY) scripts/house_rules.py

types: setup ## mypy, strict
	@$(BIN)/mypy

props: export MAMBASERVE_PROPS := large
props: export PYTHONHASHSEED := random
props: setup ## every property with many random examples; keeps what it finds in tests/properties/examples
	@$(PYTEST) -rP --timeout 7200 tests/properties; first=$$?; \
	  $(PYTEST) -n $(WORKERS) --timeout 7200 -m hypothesis tests/unit && exit $$first

mutants: setup ## seed known defects one by one and see the tests notice each
	@$(PY) tests/mutants/run.py

# The files of tests that try all cases of their matrices only here.
WHOLE_MATRICES = $(shell grep -rlE "^from matrix_size import" tests/conformance tests/integration tests/kube tests/unit | grep -v "/conftest.py\|/interpreted/")
gates: setup ## the correctness gates of the state cache and the kernels, and all other matrices, whole
	@MAMBASERVE_GATES=large $(PYTEST) $(WHOLE_MATRICES) tests/gates tests/unit/kernels/cpu tests/unit/kernels/triton/test_compiled*.py \
	  tests/unit/kernels/triton/test_interpreted.py \
	  tests/unit/model/test_parity.py tests/unit/engine/test_memory_foreseen.py tests/unit/engine/test_workspace.py \
	  tests/conformance/test_new_routes_fuzz.py tests/unit/release/test_push.py tests/kube/test_upgrade.py

compiled: setup ## every launch of every served model compiled for five GPUs, with two Tritons
	@MAMBASERVE_COMPILED=all $(PYTEST) tests/unit/kernels/triton/test_compile_matrix.py

kube: setup ## the tests against a real Kubernetes control plane (no root)
	@$(PYTEST) -m kube

# What `e2e` and `e2e-all` run, by the marker expression.
define e2e
	@$(PY) tests/cluster/packages.py
	@$(PY) -m images.build control
	@$(if $(filter all,$(IMAGES)),$(PY) -m images.build server)
	@$(PYTEST) -m "$(1)" tests/e2e -v --durations=10
endef

e2e: setup ## a real Kubernetes of one node, every kind of change once; needs root on Linux (IMAGES=all: the engine in its image, too)
	$(call e2e,e2e and not long)

e2e-all: setup ## all tests on a real Kubernetes, of one node and of two, twenty minutes
	$(call e2e,e2e)

bench: setup ## the benchmarks; results go to benchmarks/results
	@$(PY) -m benchmarks.run

docs: setup ## write the generated reference pages and check the links
	@$(PY) scripts/walks.py && $(PY) scripts/diagrams.py && $(PY) -m benchmarks.pictures && $(PY) scripts/docs.py

# The builder needs nothing of the project, so its environment is small and its own.
site: ## build the documentation as a website in dist/site, and check its links and anchors
	@test -x dist/site-tools/bin/zensical || { $${PYTHON:-python3} -m venv dist/site-tools && \
	  dist/site-tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/site.lock; }
	@dist/site-tools/bin/python scripts/website.py

dashboards: setup ## write the chart's dashboards and alerting rules from observability/
	@$(PY) -m observability.write

crds: setup ## write crds/ and the chart's copies from the models
	@$(PY) -m mamba_cli crd --write

manifests: setup ## write manifests/ from the chart, for kubectl apply -k
	@$(PY) scripts/manifests.py

format: setup ## let ruff mend what it can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

# All but `nixl`, which is large and whose tests are skipped where it is missing.
EXTRAS := $(foreach extra,operator gateway quick-tokenizer endpoint-picker server buckets telemetry,--extra $(extra))
LOCK := uv pip compile --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11
zero-drop: setup ## thousands of requests while everything is changed, moved and broken; needs root on Linux
	@$(PY) tests/cluster/packages.py
	@$(PY) tests/zero_drop/run.py

images: setup ## build the two container images from Debian and Python packages; needs root on Linux
	@$(PY) tests/cluster/packages.py
	@$(PY) -m images.build control
	@$(PY) -m images.build server

release: setup ## wheel, sdist, chart, manifests, bill of materials and checksums into dist/ (IMAGES=1, CHARTS=oci://HOST/PATH)
	@$(PY) -m release.build $(if $(IMAGES),--images) $(if $(CHARTS),--charts $(CHARTS))

version: setup ## write VERSION=… into every file that names the version
	@$(PY) -m release.stamp "$(VERSION)"
	@MAMBASERVE_GOLDEN=write $(PYTEST) tests/unit/operator/test_render.py

lock: ## pin the dependencies anew (needs uv); the images' pins follow those of the tests
	@$(LOCK) pyproject.toml $(EXTRAS) --group test --group lint --group bench --group images --universal \
	  --upgrade -o requirements/dev.lock
	@$(LOCK) pyproject.toml --extra operator --extra gateway --extra endpoint-picker --extra telemetry \
	  --python-platform linux -c requirements/dev.lock -o requirements/control.lock
	@$(LOCK) pyproject.toml --extra server --extra buckets --extra telemetry --python-platform linux \
	  -c requirements/dev.lock -o requirements/server.lock
	@$(LOCK) --group site --universal --upgrade -o requirements/site.lock
	@echo uv | $(LOCK) - --universal --upgrade -o requirements/uv.lock
	@echo hatchling | $(LOCK) - -c requirements/dev.lock -o requirements/build.lock
