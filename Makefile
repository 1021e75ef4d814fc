# make help lists the targets.
PYTHON ?=
CONFIG ?= configs/demo.yaml
BIN := .venv/bin
TUNIX := .venv-tunix

.PHONY: help setup demo test check lint test-slow redteam chaos bench-judge bench-learner bench-rollouts lock clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup:           ## .venv in the checkout, from the lock file
	@PYTHON="$(PYTHON)" scripts/setup.sh

demo: setup      ## set up and run the whole schedule on this machine (CPU is enough)
	@scripts/demo.sh $(CONFIG)

test: setup      ## set up and run the tests (Docker, Ray and vLLM for real; no slow ones, no GPU)
	$(BIN)/python -m pytest -m "not slow and not gpu"

test-slow: setup ## the tests that take minutes
	$(BIN)/python -m pytest -m "slow and not gpu"

redteam: setup   ## judge submissions that cheat and honest look-alikes (REDTEAM=folder for more of them)
	$(BIN)/python scripts/redteam.py $(REDTEAM) tests/sandbox/redteam/cases

bench-judge: setup ## what the judge costs and how steady it is, beside the usual ways
	$(BIN)/python scripts/bench_judge.py

bench-learner: setup ## the learner against google-tunix, and its memory on long rows; targets in its last line
	@test -x $(TUNIX)/bin/python || { python3 -m venv $(TUNIX) && $(TUNIX)/bin/pip install -q -r requirements/tunix.txt; }
	$(BIN)/python scripts/bench_learner/run.py --tunix-python $(TUNIX)/bin/python

lint: setup      ## ruff, pyright, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

check: lint      ## lint and the fast tests
	$(BIN)/python -m pytest -m "not slow and not gpu and not docker and not ray and not vllm"

bench-rollouts: setup ## asynchronous rollouts against their bound; CPU and memory of a turn (some 20 minutes)
	@$(BIN)/python scripts/bench_rollouts.py

chaos: setup     ## a run broken by 30 seeded faults, and the proof that nothing was lost (needs a Docker Engine)
	@$(BIN)/python scripts/chaos.py

lock: setup      ## rewrite requirements/cpu.lock from requirements/cpu.in
	scripts/lock.sh

clean:           ## remove caches and built files (not runs/)
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache
