# gatherbench: `make bench` and `make test` each work as the first command on a bare machine.
#
#   PLAN=usual         which plan `make bench` runs (usual: gpu-decide on a GPU, else quick)
#   VENV=.venv         where the environment lives; VENV=system uses the interpreter at hand
#   PYTHON=python3     the interpreter that makes the environment (>= 3.11)
#   RESULTS=results    where runs are kept
#   PROFILE=           machine that epochs are predicted for (`gatherbench list profiles`)
#   OUT=gpu-out        where the gpu-… targets write, each into a folder of its own but gpu-test
#   BUDGET=500         seconds that gpu-epoch may take (regress-against: 270)
#   GPU_PLAN=gpu-decide which plan `make gpu-epoch` runs
#   CARRY_PYTHON=3.12  the Python of a GPU machine without a network, for `make carry`
#   PEERS=1            `make carry` takes WholeGraph along, to be measured beside ours

PLAN    ?= usual
VENV    ?= .venv
RESULTS ?= results
OUT     ?= gpu-out
BUDGET  ?= 500
GPU_PLAN ?= gpu-decide
TODAY   := $(shell date -u +%Y%m%d)
CARRY_PYTHON ?= 3.12
REHEARSAL ?= .venv-rehearsal
PYTHON  ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13 python3.14,\
             $(if $(shell $(p) -c 'import sys; print(sys.version_info >= (3, 11) or "")' 2>/dev/null),$(p))))

# Packages for CUDA 13 need driver 580 or newer; torch of the Python Package Index is built for 13 since 2.11.
CUDA := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | \
          awk '{ driver = $$1 + 0; exit } END { print driver && driver < 580 ? "cu12" : "cu13" }')
ifeq ($(CUDA),cu12)
  EXACT := grep -v -e '^torch==' -e '^cuda-bindings==' constraints.txt; echo 'torch<2.11'
else
  EXACT := cat constraints.txt
endif

ifeq ($(VENV),system)
  PY    := PYTHONPATH='$(CURDIR)/src:$(CURDIR)/.carry$(if $(PYTHONPATH),:$(PYTHONPATH))' $(PYTHON)
  READY :=
  TESTS :=
else
  PY    := $(VENV)/bin/python
  READY := $(VENV)/.ready
  TESTS := $(VENV)/.ready-tests
endif

.DEFAULT_GOAL := help
.PHONY: help setup bench test lint figures regress-against regress regress-code regress-untimed gpu-test gpu-epoch gpu-rehearsal carry probe calibrate clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

setup: $(TESTS) ## make the environment (exact versions of constraints.txt): what runs, and what tests

$(VENV)/.ready: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo 'error: no Python >= 3.11 found; name one with PYTHON=…' >&2; exit 2; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { \
	  echo 'error: $(PYTHON) cannot make a virtual environment (Debian and Ubuntu: apt-get install python3-venv)' >&2; \
	  rm -rf $(VENV); exit 2; }
	{ $(EXACT); } > $(VENV)/constraints.txt
	$(VENV)/bin/python -m pip install -q -c $(VENV)/constraints.txt -e '.[$(CUDA),ogb,disk]'
	@touch $@

$(VENV)/.ready-tests: $(VENV)/.ready
	$(VENV)/bin/python -m pip install -q -c $(VENV)/constraints.txt -e '.[$(CUDA),ogb,disk,notebooks,dev]'
	@touch $@

bench: $(READY) ## measure every strategy (plan quick, on a GPU gpu-decide), print table and pictures (no GPU: predict for PROFILE=)
	$(PY) -m gatherbench run $(PLAN) --results $(RESULTS) $(if $(PROFILE),--profile $(PROFILE))

# A test on each core where pytest-xdist is there; then one thread each is faster.
PARALLEL = $(shell $(PY) -c 'import xdist' 2> /dev/null && printf '%s' '-n auto --dist worksteal')

test: $(TESTS) ## the test suite
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest $(PARALLEL)

# Words that puzzle a reader; ours are: separated, tie, control, noisy, limit, while other work ran.
UNUSED = told apart|tells? apart|disturbed|lies? ready|whoever|beside other work|by nobody|thereof|wherein|aside|stood in|the floor

lint: $(TESTS) ## ruff (check and format), mypy (strict), and words that we do not use
	@! grep -rniwE --include='*.py' --include='*.md' --include='*.toml' '$(UNUSED)' \
	  bench strategies kernels datasets tools examples docs src/gatherbench/*.py src/gatherbench/stats *.md
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

figures: $(TESTS) ## execute the notebooks on what is in RESULTS (SYNC=1: after editing a .py of theirs)
	$(PY) -m tools.notebooks --results $(RESULTS) $(if $(SYNC),--sync)

HOST_BENCHMARKS = $(PY) -m pytest bench/regress -o python_files='bench_*.py' -o addopts='--import-mode=importlib'

regress-against: $(TESTS) ## host-side times of this tree beside a commit's, in one run (BASE=main, BUDGET=270, ONLY=WORD)
	$(PY) -m gatherbench.bench.regress.against $(BASE) $(if $(filter command% env%,$(origin BUDGET)),--budget $(BUDGET)) $(if $(ONLY),--only '$(ONLY)')

regress: regress-code ## host-side times beside the run before, for days or library versions between, on a quiet machine
	$(HOST_BENCHMARKS) --benchmark-only --benchmark-storage=file://.benchmarks --benchmark-save=host \
	  --benchmark-compare$(if $(BASE),=$(BASE)) --benchmark-columns=median,iqr,rounds --benchmark-group-by=fullname

regress-code: $(TESTS) ## the kernels' machine code against its baseline: fails on any change (UPDATE=1: renew it)
	$(PY) -m tools.sass $(if $(UPDATE),--update,--check)

regress-untimed: $(TESTS) ## every host-side benchmark once, for its results alone
	$(HOST_BENCHMARKS) -q --benchmark-disable

# VENV=system uses what is at hand: gpu-test needs torch with CUDA, cuda-bindings and NVRTC only,
# gpu-epoch and probe the harness's packages too; `make carry` brings the few that are rarely there.
# Under ten minutes each; what they find is kept even when they fail or are cut off.
gpu-test: $(TESTS) ## on a GPU: conformance, residency, ordering, leaks, errors, sanitizer
	$(PY) tests/gpu/suite.py --out $(OUT) --budget $(if $(filter file,$(origin BUDGET)),560,$(BUDGET))

gpu-epoch: $(READY) ## on a GPU: whole epochs with every data path, for BUDGET seconds (GPU_PLAN=gpu-decide)
	$(PY) -m gatherbench run $(GPU_PLAN) --results $(OUT) --budget $(BUDGET) $(if $(PROFILE),--profile '$(PROFILE)')

gpu-rehearsal: $(REHEARSAL)/.ready ## without a GPU: the gpu-… targets on a stand-in for CUDA (6 GB of torch)
	$(REHEARSAL)/bin/python tests/gpu/standin/rehearse.py --out $(OUT)/rehearsal

# The stand-in lies under a torch that is built for CUDA 13; the other versions are those of .venv.
$(REHEARSAL)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(REHEARSAL)
	grep -v -e '^torch==' -e '^nvidia-cuda-nvrtc==' constraints.txt > $(REHEARSAL)/constraints.txt
	$(REHEARSAL)/bin/python -m pip install -q -c $(REHEARSAL)/constraints.txt \
	  'torch==2.11.*' 'nvidia-cuda-crt==13.0.*' -e '.[cu13,dev]'
	@touch $@

# Without bytecode: it would be of another Python.
CARRY = $(PY) -m pip install -q -c constraints.txt --no-deps --no-compile --upgrade --target .carry
WHEELS = --only-binary=:all: --python-version $(CARRY_PYTHON) --implementation cp

carry: $(READY) ## on any machine: unpack into .carry what a GPU machine without a network lacks
	$(CARRY) $(WHEELS) --platform manylinux2014_x86_64 \
	  pydantic pydantic-core annotated-types typing-inspection platformdirs
	git rev-parse --short=12 HEAD > .carry/commit
ifdef PEERS
	$(CARRY) ./examples/peers
	$(CARRY) $(WHEELS) --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 \
	  --platform manylinux_2_24_x86_64 \
	  pylibwholegraph-cu13 libwholegraph-cu13 librmm-cu13 rapids-logger
	rm -r .carry/librmm/include .carry/librmm/lib64/rapids  # 25 MB that nothing here compiles against
endif

probe: $(READY) ## a minute: GB/s of random rows of host memory, by a GPU or the host, as a table, a picture and a file
	$(PY) -m gatherbench probe

calibrate: $(READY) ## measure this machine's constants for the link model, with a GPU or without (into calibration/ or OUT=)
	timeout -k 10 $$(($(if $(filter file,$(origin BUDGET)),300,$(BUDGET)) + 30)) $(PY) -m gatherbench probe --profile $(if $(filter file,$(origin OUT)),calibration,$(OUT)) $(if $(filter command% env%,$(origin BUDGET)),--budget $(BUDGET))

clean: ## remove the environment, caches and build outputs (never results)
	rm -rf .venv $(REHEARSAL) .carry build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .regress
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +
