# Every target goes through `make venv`: .venv with everything installed and `picker` in it.
PYTHON ?= python3
BIN := .venv/bin
COMPILE := $(BIN)/python deploy/image/compiled.py
IN_COMPILED := cd build/compiled && PYTHONPATH="$$PWD" ../../$(BIN)/python

.PHONY: venv demo test compiled test-compiled test-sanitized test-vllm check contest bench bench-peers soak proto lock clean

# What of the tests runs the modules that are compiled.
COMPILED_TESTS := $(addprefix tests/,unit properties contracts conformance envoy soak simulation/test_director_faults.py simulation/test_memory.py)

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

# Everything the project can prove on this machine.
test: venv check
	$(BIN)/python -m pytest
	@$(MAKE) --no-print-directory test-compiled

# The same sources through mypyc, in build/compiled (needs a C compiler; about a minute).
compiled: venv
	$(COMPILE) build/compiled

# The compiled build passes the same tests.
test-compiled: venv
	@if $(COMPILE) --check; then \
	  export PICKER_COMPILED=1; $(COMPILE) build/compiled && $(IN_COMPILED) -m pytest $(COMPILED_TESTS); \
	else echo "so the compiled build is not tested here"; fi

# All that is compiled, under AddressSanitizer: what bytes of strangers make of the C (gcc; some six minutes).
SANITIZED := -fsanitize=address
test-sanitized: venv
	CFLAGS="$(SANITIZED)" LDFLAGS="$(SANITIZED)" $(COMPILE) build/sanitized
	cd build/sanitized && PICKER_COMPILED=1 PYTHONPATH="$$PWD" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(cc -print-file-name=libasan.so)" ../../$(BIN)/python -m pytest \
	  tests/properties $(addprefix tests/unit/,api edge/h2 extproc pool prefix scheduling test_compiled.py test_director.py)

# Two real vLLM servers on the CPU behind Envoy and the picker; installs 5.6 GiB into .venv-vllm, once.
test-vllm: venv
	$(BIN)/python -m tests.vllm $(ARGS)

# Picker CPU a request and added latency beside an Envoy without ext_proc; the decision alone; index memory.
# Of the compiled build, as the image ships it, beside the interpreted one; without a C compiler of that alone.
bench: venv
	@if $(COMPILE) --check; then $(COMPILE) build/compiled && $(IN_COMPILED) -m tests.bench $(ARGS); \
	else $(BIN)/python -m tests.bench $(ARGS); fi

# Other routers, each in an environment of its own, and the picker: the same requests in turn, some twelve minutes.
bench-peers: venv
	$(BIN)/python -m tests.bench.peers

# Every routing policy on every workload at four loads, simulated: the tables of docs/benchmarks.md, an hour or two of one core.
# TRACES=directory adds the Mooncake traces in it; ARGS="--speeds 1,1,1,0.3" or others of `python -m picker.sim.contest --help`.
contest: venv
	@mkdir -p build
	$(BIN)/python -m picker.sim.contest --requests 4000 --seeds 11,12,13,14,15 --cache build/contest.json \
	  $(if $(TRACES),$(foreach name,conversation synthetic,--trace $(TRACES)/$(name)_trace.jsonl)) $(ARGS)

# A million streams: resident memory at the end within 5 % of that after 100,000.
soak: venv
	$(BIN)/python -m tests.soak.h2_streams

# Style, types, layers, generated code.
check: venv
	$(BIN)/ruff check picker tests
	$(BIN)/ruff format --check picker tests
	$(BIN)/mypy picker
	$(BIN)/lint-imports

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
	rm -rf .venv .venv-vllm .venv-peers build dist
