# Two commands: `make demo` and `make test`. Each sets up all it needs; `make help` lists the rest.
#   TORCH=torch==2.13.0   what pip installs      PIP_ARGS="--extra-index-url ..."   where from
#   VENV=none             install and download nothing: use $(PYTHON) and the torch it has
PYTHON   ?= python3
VENV     ?= .venv
TORCH    ?= torch==2.13.0
PIP_ARGS ?=
NPROC    ?= 2
ARGS     ?=
PACKAGES := 'setuptools>=70' 'wheel>=0.43' 'ninja>=1.11' 'cmake>=3.24' 'numpy>=1.26' 'pytest>=7.4' \
            'pytest-xdist>=3.5' 'coverage>=7.10' 'expecttest>=0.2' 'rich>=13' 'matplotlib>=3.7' \
            'clang-format==14.0.6' 'ruff==0.17.6'
# Trainers that some tests run ringdp under; those tests are skipped where pip cannot get them.
INTEGRATIONS := 'lightning>=2.4' 'accelerate>=1.0' 'transformers>=5.0'
# What operates the pages in a browser; likewise.
BROWSING := 'selenium>=4.15' 'axe-selenium-python>=2.1.6'
# What builds the documentation site; only `make docs` installs it, and its test is skipped without it.
SITE := 'sphinx>=8' 'furo>=2024.8' 'myst-parser>=4'
ifeq ($(origin CXX),default)
CXX := $(shell command -v g++ || command -v clang++ || echo g++)
endif
export CXX
unexport PYTHONHOME

# Linting needs nothing built: the environment's interpreter where there is one.
LINT_PYTHON = $(if $(wildcard $(PY)),$(PY),$(PYTHON))

BUILD  := build
STAMPS := $(BUILD)/stamps
key     = $(shell printf '%s' "$(1)" | cksum | cut -d' ' -f1)
MACHINE := $(STAMPS)/machine-$(call key,$(PYTHON) $(VENV) $(CXX))
SOURCES := $(shell find csrc -name '*.cc' -o -name '*.h' -o -name '*.cu') csrc/modules.json
ifeq ($(VENV),none)
PY    := $(PYTHON)
FOUND := $(shell $(PYTHON) -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null)
PACKAGES_STAMP :=
INTEGRATIONS_STAMP :=
SITE_STAMP :=
BUILT := $(STAMPS)/metadata
export PYTHONPATH := $(CURDIR)/python$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY    := $(VENV)/bin/python
FOUND := $(TORCH)
PACKAGES_STAMP := $(VENV)/packages-$(call key,$(TORCH) $(PIP_ARGS) $(PACKAGES))
INTEGRATIONS_STAMP := $(VENV)/integrations-$(call key,$(TORCH) $(PIP_ARGS) $(INTEGRATIONS) $(BROWSING))
SITE_STAMP := $(VENV)/docs-$(call key,$(PIP_ARGS) $(SITE))
BUILT := $(STAMPS)/installed
endif
# Kernels are compiled for the devices that are here; for all that are supported where everything is tested or shipped.
ifneq ($(filter test-all wheels,$(MAKECMDGOALS)),)
export RINGDP_CUDA_ARCHS ?= all
endif
# An extension works with one interpreter and one torch; these, and how it is compiled, are in the name of its stamp.
COMPILED := $(STAMPS)/compiled-$(call key,$(PY) $(PYTHON) $(FOUND) $(CXXFLAGS) $(LDFLAGS) $(RINGDP_CUDA) $(RINGDP_CUDA_ARCHS))

.PHONY: demo test test-all mutants coverage fuzz conformance gpu-check soak bench docs build wheels lint format clean help
.DELETE_ON_ERROR:

demo: build  ## train a small GPT on 2 ranks of this machine (NPROC=4, ARGS="--steps 50", VENV=none)
	$(PY) -m torch.distributed.run --nproc-per-node $(NPROC) -m ringdp.examples.train_gpt $(ARGS)

test: build $(INTEGRATIONS_STAMP)  ## twelve minutes: C++ tests, two sanitizers, Python tests (SUITE="thread python")
	@.ci/check_machine.sh $(PYTHON) '$(CXX)' $(VENV) tests
	@$(PY) .ci/suites.py test $(SUITE)

test-all: build $(INTEGRATIONS_STAMP)  ## every test there is, in parts that are not repeated once they passed (PART=parity)
	@.ci/check_machine.sh $(PYTHON) '$(CXX)' $(VENV) tests
	@$(PY) .ci/suites.py all $(PART)

mutants: build $(INTEGRATIONS_STAMP)  ## plants faults, one at a time, and shows which suite of `make test` catches each
	@.ci/check_machine.sh $(PYTHON) '$(CXX)' $(VENV) tests
	@$(PY) tests/mutants/run.py $(ARGS)

coverage: build $(INTEGRATIONS_STAMP)  ## lines and branches of csrc and python that `make test` runs, by module
	@.ci/check_machine.sh $(PYTHON) '$(CXX)' $(VENV) tests
	@$(PY) .ci/coverage.py $(ARGS)

fuzz: build  ## every parser of bytes from elsewhere, for ten minutes in all (ARGS="--minutes 60", ARGS="--target card")
	@$(PY) tests/fuzz/fuzz.py $(ARGS)

conformance: build  ## PyTorch's own distributed tests over ringdp (ARGS="--world-size 3 --filter all_reduce")
	$(PY) -m tests.conformance $(ARGS)

gpu-check:  ## on a machine with a GPU, in eight minutes: probes, build, tests, speed (VENV=none, ARGS="--parts plans")
	@PYTHONPATH=tests:benchmarks$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTHON) -m gpu_check --python $(PY) \
	  --build 'VENV=$(VENV) PYTHON=$(PYTHON)' $(ARGS)

soak: build  ## random collectives for ten minutes, every bit checked (ARGS="--minutes 60 -n 8")
	$(PY) benchmarks/soak.py $(ARGS)

bench: build  ## collectives against gloo and the limits of this machine (ARGS="--ranks 8 --peers all")
	$(PY) benchmarks/collectives.py $(ARGS)

docs: build $(SITE_STAMP)  ## the documents and the API reference as a site, in build/docs
	$(PY) -m sphinx -q -W --keep-going -c docs . $(BUILD)/docs

wheels: $(PACKAGES_STAMP) | $(MACHINE)  ## an sdist, and from it a manylinux wheel for this torch, in dist/torch-MINOR
	@$(PY) .ci/wheels.py

build: $(BUILT)  ## environment and extension, as far as they changed

$(MACHINE):
	@.ci/check_machine.sh $(PYTHON) '$(CXX)' $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# Compiled files are kept below build/: only what changed is compiled again.
$(COMPILED): $(SOURCES) setup.py setup_cuda.py $(PACKAGES_STAMP) | $(MACHINE)
	@$(PY) setup.py -q build_ext --inplace > $(BUILD)/torch-side.log || \
	  (grep -A8 -E 'error|FAILED' $(BUILD)/torch-side.log | grep -v -- '-DTORCH_EXTENSION_NAME' | tail -n 60; exit 1)
	@rm -f $(STAMPS)/compiled-* && touch $@

# VENV=none: torch finds the entry points through the metadata beside the package.
$(STAMPS)/metadata: $(COMPILED) pyproject.toml
	@$(PY) setup.py -q egg_info > $(BUILD)/metadata.log 2>&1 || (cat $(BUILD)/metadata.log; exit 1)
	@touch $@

ifneq ($(VENV),none)
$(PACKAGES_STAMP): | $(MACHINE)
	@echo "ringdp: $(VENV) and pip install $(TORCH) (docs/install.md: sizes, and how to choose the smaller CPU build)"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q $(PIP_ARGS) $(TORCH) $(PACKAGES)
	@rm -f $(VENV)/packages-* && touch $@

$(INTEGRATIONS_STAMP): | $(PACKAGES_STAMP)
	@$(PY) -m pip install -q $(PIP_ARGS) $(TORCH) $(INTEGRATIONS) > $(BUILD)/integrations.log 2>&1 || \
	  echo "ringdp: no lightning, accelerate or transformers from here (build/integrations.log): their tests will be skipped"
	@$(PY) -m pip install -q $(PIP_ARGS) $(BROWSING) > $(BUILD)/browsing.log 2>&1 || \
	  echo "ringdp: no selenium from here (build/browsing.log): the tests of pages in a browser will be skipped"
	@touch $@

$(SITE_STAMP): | $(PACKAGES_STAMP)
	@$(PY) -m pip install -q $(PIP_ARGS) $(SITE)
	@rm -f $(VENV)/docs-* && touch $@

$(STAMPS)/installed: $(COMPILED) pyproject.toml
	@$(PY) -m pip install -q --no-build-isolation --no-deps -e . > $(BUILD)/install.log 2>&1 || \
	  (cat $(BUILD)/install.log; exit 1)
	@touch $@
endif

lint:  ## clang-format, ruff and the rules of the layout, as a check; what is not installed is skipped by name
	@$(LINT_PYTHON) .ci/lint.py check

format:  ## applies clang-format and ruff
	@$(LINT_PYTHON) .ci/lint.py format

clean:  ## what `make` compiled; the virtual environment stays (rm -r .venv)
	rm -rf $(BUILD) dist python/*.egg-info python/ringdp/_C*.so python/ringdp/libringdp_gpu.so python/ringdp/_built.json

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12
