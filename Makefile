# make demo: from a fresh clone to a trained model and a report. make test: every check and test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
export NUMBA_CACHE_DIR ?= $(CURDIR)/$(VENV)/numba-cache

.PHONY: demo test test-cluster check-style system-packages clean
demo: $(VENV)/.ready
	$(BIN)/modalities run config/demo.yaml

test: system-packages $(VENV)/.ready check-style
	$(BIN)/python -m pytest -m "not slurm"

# whole runs on a real Slurm; not in `make test` yet, see CONTRIBUTING.md
test-cluster: system-packages $(VENV)/.ready
	$(BIN)/python -m pytest tests/cluster -m slurm

# what tests need beside Python: a browser and a Slurm. CI installs them; on a laptop their tests say that they skip
system-packages:
	@if [ "$$CI" = true ]; then tests/system-packages; fi

check-style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check rules workflow
	$(BIN)/mypy
	$(BIN)/snakemake --lint --configfile config/tiny.yaml

# torch first and pinned: any other request may fetch another version with gigabytes of CUDA
$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	$(BIN)/python -c "import torch; assert torch.__version__.startswith('2.13.'), torch.__version__"
	touch $@

clean:
	rm -rf results .snakemake
