# Every target goes through `make venv`: .venv with everything installed and `picker` in it.
PYTHON ?= python3
BIN := .venv/bin
COMPILE := $(BIN)/python -m tests.compiled_copy
IN_COMPILED := cd build/compiled && PYTHONPATH="$$PWD" ../../$(BIN)/python

.PHONY: venv demo picture test test-quick tools compiled test-compiled test-deploy test-pythons test-cold coverage test-sanitized test-arm mutants test-vllm test-vllm-usage test-vllm-events check contest wheels bench bench-scale bench-peers attack probe soak docs proto lock clean

venv: .venv/.done

.venv/.done: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "picker needs Python 3.11 or newer; set PYTHON=python3.11 (found: $$($(PYTHON) --version 2>&1))"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Simulated model servers + picker + the real Envoy: round robin, then the picker, side by side.
demo: venv
	$(BIN)/picker demo

# Everything the project can prove on this machine, and at the end what each tier took and what was skipped.
# Made once and kept: what `make tools` brings, and a compiled build.
test: venv
	@$(BIN)/python -m tests.run all

# For whoever changes a line: no Envoy, no cluster, no second build; under a minute.
test-quick: venv
	@$(BIN)/python -m tests.run quick

# What tests run and pip does not install: kube-apiserver and etcd (some minutes of Go, once), helm, Prometheus, h2spec.
# Fixtures only look for them. ARGS=--all-or-fail fails where one cannot be had; else its tests are skipped.
tools: venv
	@$(BIN)/python -m tests.tools $(ARGS)

# The same sources through mypyc, in build/compiled (needs a C compiler; about a minute).
compiled: venv
	$(COMPILE) build/compiled

# The compiled build passes the same tests.
test-compiled: venv
	@$(BIN)/python -m tests.run compiled

# The chart, the examples, the image's steps and the documents of deploying, where helm and a cluster can be had.
test-deploy: venv tools
	$(BIN)/python -m pytest tests/deploy

# The quick tier and the demo on each Python from 3.11 to 3.13 that is found here. ARGS="--no-demo 3.13" for less.
test-pythons: venv
	@$(BIN)/python -m tests.pythons $(ARGS)

# `make test` as on a machine that has nothing yet: a fresh clone of what is committed, HOME and all caches empty.
# Downloads and builds everything again; some 20 minutes on two cores.
test-cold:
	@python=$$($(PYTHON) -c 'import sys; print(sys.executable)'); folder=$$(mktemp -d); status=0; \
	git clone --quiet . "$$folder/picker" && mkdir "$$folder/home" && cd "$$folder/picker" && \
	env -u GOPATH -u GOCACHE -u GOMODCACHE -u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u PIP_CACHE_DIR -u KUBEBUILDER_ASSETS \
	  HOME="$$folder/home" $(MAKE) --no-print-directory test PYTHON="$$python" || status=$$?; \
	chmod -R u+w "$$folder"; rm -rf "$$folder"; exit $$status

# Which lines of picker/ no test of the quick tier, the conformance and the simulation runs; the figures are printed.
coverage: venv
	$(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report=term:skip-covered \
	  $(addprefix tests/,unit properties contracts tidy conformance simulation)

# All that is compiled, under AddressSanitizer: what bytes of strangers make of the C (gcc; some six minutes).
SANITIZED := -fsanitize=address
test-sanitized: venv
	CFLAGS="$(SANITIZED)" LDFLAGS="$(SANITIZED)" $(COMPILE) build/sanitized
	cd build/sanitized && PICKER_COMPILED=1 PYTHONPATH="$$PWD" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(cc -print-file-name=libasan.so)" ../../$(BIN)/python -m pytest \
	  tests/properties $(addprefix tests/unit/,api edge/grpc/h2 engines extproc pool prefix residency scheduling sharing \
	    test_budget.py test_compiled.py test_director.py test_metering.py)

# Wheels of the compiled build for each Python found, portable (manylinux), each tried in an environment of its own: dist/.
wheels: venv
	$(BIN)/python deploy/wheels.py $(ARGS)

# The kernels compiled for ARM64 and tested under qemu (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user).
test-arm: venv
	$(BIN)/python -m tests.arm64 $(ARGS)

# Does a test fail where the code is wrong? Breaks the core at random places; some 20 minutes of one core.
# ARGS="--rooms prefix --each 100 --seed 2"; docs/testing.md has figures. Installs cosmic-ray into .venv-mutants, once.
mutants: venv
	@test -x .venv-mutants/bin/cosmic-ray || { $(PYTHON) -m venv .venv-mutants && \
	  .venv-mutants/bin/pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0; }
	nice $(BIN)/python -m tests.mutants --cosmic-ray "$$PWD/.venv-mutants/bin/cosmic-ray" $(ARGS)

# Two real vLLM servers on the CPU behind Envoy and the picker; installs 5.6 GiB into .venv-vllm, once.
test-vllm: venv
	$(BIN)/python -m tests.vllm $(ARGS)

# Tokens that the picker charges tenants beside those that two real vLLM servers count: 10,000 mixed requests, some ten
# minutes. ARGS="--requests 1000" for fewer.
test-vllm-usage: venv
	$(BIN)/python -m tests.vllm.metered $(ARGS)

# KV events of two real vLLM, through evictions, an emptied cache, a kill and lost messages: predicted beside found.
test-vllm-events: venv
	$(BIN)/python -m tests.vllm.events $(ARGS)

# Picker CPU a request and added latency beside an Envoy without ext_proc; the decision alone; index memory.
# Of the compiled build, as the image ships it, beside the interpreted one; without a C compiler of that alone.
bench: venv
	@if $(COMPILE) --check; then $(COMPILE) build/compiled && $(IN_COMPILED) -m tests.bench $(ARGS); \
	else $(BIN)/python -m tests.bench $(ARGS); fi

# What grows with the pool, to 3,000 endpoints; some ten minutes of a quiet machine.
# ARGS="--write ../../docs/scale.md" puts the tables into that page; "--only decision,events" stands on a busy machine.
bench-scale: venv
	$(COMPILE) build/compiled && $(IN_COMPILED) -m tests.bench.scale $(ARGS)

# Other routers, each in an environment of its own, and the picker: the same requests in turn, some twelve minutes.
bench-peers: venv
	$(BIN)/python -m tests.bench.peers

# Every routing policy on every workload at four loads, simulated: the tables of docs/benchmarks.md, an hour or two of one core.
# TRACES=directory adds the Mooncake traces in it; ARGS="--speeds 1,1,1,0.3" or others of `python -m picker.sim.contest --help`.
contest: venv
	@mkdir -p build
	$(BIN)/python -m picker.sim.contest --requests 4000 --seeds 11,12,13,14,15 --cache build/contest.json \
	  $(if $(TRACES),$(foreach name,conversation synthetic,--trace $(TRACES)/$(name)_trace.jsonl)) $(ARGS)

# What strangers, clients and engines can do, before an honest client of 50 requests/s: every attack on both builds, some
# half an hour of a quiet machine. ARGS="--only idle_connections --build interpreted"; --write puts the table into docs/security.md.
attack: venv
	@if $(COMPILE) --check; then $(COMPILE) build/compiled && $(BIN)/python -m tests.attack $(ARGS); \
	else $(BIN)/python -m tests.attack --build interpreted $(ARGS); fi

# What a tenant can learn of another's prompts, by time, place and headers; some three minutes. ARGS=--write as above.
probe: venv
	@if $(COMPILE) --check; then $(COMPILE) build/compiled && $(BIN)/python -m tests.attack.probe --build compiled $(ARGS); \
	else $(BIN)/python -m tests.attack.probe $(ARGS); fi

# A million streams: resident memory at the end within 5 % of that after 100,000.
soak: venv
	$(BIN)/python -m tests.soak.h2_streams

# Style, types, layers, generated code.
check: venv
	$(BIN)/ruff check picker tests deploy hatch_build.py
	$(BIN)/ruff format --check picker tests deploy hatch_build.py
	$(BIN)/mypy
	$(BIN)/lint-imports

# What documents take from the code: the reference of keys, the picture of the rooms (tests/tidy fails on a difference).
docs: venv
	$(BIN)/python -m tests.tidy.test_configuration
	$(BIN)/python -m tests.tidy.rooms
	$(BIN)/python -m tests.deploy.generated

# docs/page.png: the page of a picker before simulated model servers, in a real Chromium; three minutes.
picture: venv
	$(BIN)/python -m tests.page.screenshot

# protos/ -> picker/generated (committed; tests/tidy fails on a difference).
proto: venv
	$(BIN)/python -m grpc_tools.protoc -I protos/picker --python_out=picker/generated --pyi_out=picker/generated \
	  protos/picker/ext_proc.proto protos/picker/health.proto

# Pins with hashes, for every platform, naming no index.
lock: venv
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --extra dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .venv-vllm .venv-peers .venv-mutants .venv-pythons build dist
