# `make demo` and `make test` need only Python >= 3.11, git and make; everything else goes into .venv.
PY := .venv/bin/python
PACKS := $(wildcard envs/*/pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-random durations check lint docs fast faults vllm test-vllm test-extras bench bench-gpu soak serve nano nano-instruct clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install:  ## make .venv with everything in it (done by the other targets when needed)
	@bash scripts/install.sh

demo: install  ## start the service, train tic-tac-toe, show the result, stop what was started
	@$(PY) scripts/demo.py

test: install  ## run the test-suite, without what takes long or needs more packages
	@$(PY) -m pytest -n 2 -m "not full"

test-all: $(if $(PARTS),install,test)  ## run the test-suite and what `make test` leaves out; of that only PARTS="recipes vllm"
	@bash scripts/test_all.sh $(PARTS)

test-random: install  ## run the test-suite in random order; again in the same one with SEED=n
	@$(PY) -m pytest -n 2 -m "not full" --shuffle$(if $(SEED),=$(SEED))

durations: install  ## measure for the order of tests how long each file takes, in a run of all of them
	@$(PY) -m pytest -n 2 --record-durations

check: lint fast  ## what every commit must pass: format, lint, types, import rules, fast tests

lint: install
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .
	@$(PY) -m mypy
	@.venv/bin/lint-imports

docs: install  ## build the documentation into site/, with warnings as errors
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet

fast: install
	@$(PY) -m pytest -n 2 --quick -m "not service and not full"

faults: install  ## make each seeded fault in a copy of the tree, and see whether its tests fail
	@$(PY) -m tests.faults --jobs 2

vllm: install  ## add vLLM's CPU build to .venv (Linux x86-64, two minutes), for engine=vllm and its tests
	@bash scripts/install_vllm.sh

test-vllm: install  ## run the tests of the engines with the real vLLM, in a .venv of its own
	@bash scripts/test_all.sh vllm

test-extras: install  ## run the tests with real trackers, S3, Kubernetes schemas, verifiers, OpenEnv and ALFWorld (installs them first)
	@bash scripts/test_all.sh trackers quantized s3 deploy verifiers openenv alfworld

bench: install  ## measure the figures of docs/benchmarks.md and write benchmarks/results/
	@$(PY) -m benchmarks

soak: install  ## kill every kind of process in turn while a mix of jobs trains, for SECONDS=3600
	@$(PY) -m benchmarks.soak --seconds $(or $(SECONDS),3600)

bench-gpu: install  ## measure an RL step, learning, decoding and parity of a 0.5 B model on a GPU
	@timeout 600 $(PY) -m benchmarks.gpu

serve: install  ## start the service on this machine
	@.venv/bin/tinkergym serve

nano: install  ## make the nano model again, from the seed
	@$(PY) scripts/make_nano.py

nano-instruct: install  ## make the nano-instruct model again, from the seed
	@$(PY) scripts/make_nano_instruct.py

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info envs/*/*.egg-info
