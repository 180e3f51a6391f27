# Each target does its own set-up in .venv; Python 3.11 or later, git and make are all that is needed. What pip installs it
# compiles to bytecode, but not what stays here, and Python keeps what it compiles only where the environment lets it.
PYTHON ?= python3
VENV := .venv
FAST := .venv-fast
RUN := $(VENV)/bin
ROOMS := cli policies profiler real sim traces

.PHONY: demo test notebooks lint typecheck figures models fast clean

demo: $(VENV)/.installed
	$(RUN)/bulletsim demo

# A worker for each core: libraries' own threads would only wait for one another, and spin meanwhile. And what one of some
# hundred interpreters has compiled, the others read.
test: export OMP_NUM_THREADS := 1
test: export PYTHONDONTWRITEBYTECODE :=
test: lint typecheck
	$(RUN)/python -m pytest --nbmake --nbmake-timeout=120 -n 2 -q

notebooks: $(VENV)/.installed-notebooks
	$(RUN)/jupyter lab notebooks

lint: $(VENV)/.installed-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .

typecheck: $(VENV)/.installed-dev
	$(RUN)/mypy

# The pictures that README and docs show; those of pages need Chromium. The validation is of this machine's CPU.
figures: demo $(VENV)/.installed-dev
	$(RUN)/bulletsim simulate --trace workload:code --rate 5 --requests 120 --policy bullet --model Llama-3.1-8B \
	    --device A100-80G --slo-ttft-per-token 0.0015 --slo-ttft-floor 3.072 --slo-tpot 0.2 --out out/timeline --force
	$(RUN)/bulletsim plot timeline out/timeline --out out/timeline/timeline.png
	$(RUN)/bulletsim plot prediction out/timeline --out out/timeline/prediction.png
	$(RUN)/bulletsim plot slo out/timeline --out out/timeline/slo.png
	$(RUN)/bulletsim traces info workload:code --arrivals poisson:5 --picture out/timeline/trace.png > out/timeline/trace.txt
	$(RUN)/bulletsim simulate --config out/timeline/config.json --policy chunked --out out/chunked --force
	$(RUN)/bulletsim capacity --config out/timeline/config.json --requests 200 --seeds 3 --json > out/capacity.json
	$(RUN)/bulletsim tune --config out/timeline/config.json --vary layers_per_step=1:16:log --vary batch_fill=0.1:0.9 \
	    --rates 3:12 --out out/tuned
	$(RUN)/bulletsim validate --device cpu --model tiny --trace workload:sharegpt --shrink 8 --requests 20 --quick \
	    --policy bullet --policy chunked --rate 2 --slo-ttft 1 --slo-tpot 0.1 --out out/validation
	cp out/demo/knees.csv docs/figures/
	$(RUN)/python benchmarks/screenshots.py --page out/demo --page out/timeline --page out/timeline out/chunked \
	    --page out/capacity.json --page out/tuned --page out/validation --figure out/demo/frontier.png \
	    out/demo/latency.png out/timeline/timeline.png out/timeline/prediction.png out/timeline/slo.png \
	    out/timeline/trace.png

# The fitted models in the package, and that of vLLM's kernels for the paper's figures, from kernel tables of the package aiconfigurator-core and, under TABLES, of a vLLM run.
# On the RTX 4090 the run itself leaves no room for host time (docs/benchmarks.md).
TABLES ?= ../shared/silicon/vllm_rtx4090_llama31_8b
models: $(VENV)/.installed-dev
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[aic]'
	$(RUN)/bulletsim profiles import aiconfigurator --device A100-80G --backend sglang --out out/profiles/A100-80G --force
	$(RUN)/bulletsim profiles import aiconfigurator --device A100-80G --backend vllm --out out/profiles/A100-vllm --force
	$(RUN)/bulletsim profiles import aiconfigurator --device H100 --out out/profiles/H100 --force
	$(RUN)/bulletsim profiles import aiconfigurator --device H200 --out out/profiles/H200 --force
	$(RUN)/bulletsim profiles import vllm-tables $(TABLES) --device RTX-4090 --out out/profiles/RTX-4090 --force
	for device in A100-80G H100 H200; do \
	    $(RUN)/bulletsim fit out/profiles/$$device --no-points --out profiler/builtin/$$device.json --force || exit; done
	$(RUN)/bulletsim fit out/profiles/A100-vllm --no-points --out benchmarks/paper/a100_vllm.json --force
	$(RUN)/bulletsim fit out/profiles/RTX-4090 --no-points --host-pass 0 --host-launch 0 \
	    --out profiler/builtin/RTX-4090.json --force

# The same commands with the serving loop compiled, in an environment of their own: development stays in plain Python.
# Needs a C compiler besides. The wheel is built from a copy, since a compiled module here would hide its source.
fast: $(FAST)/bin/bulletsim

$(FAST)/bin/bulletsim: pyproject.toml constraints.txt $(shell git ls-files 'cli/*' 'policies/*' 'profiler/*' 'real/*' 'sim/*' 'traces/*')
	@command -v $${CC:-cc} > /dev/null || { echo "make fast: no C compiler; install one (gcc or clang) or name it in CC" >&2; exit 1; }
	rm -rf $(FAST)
	$(PYTHON) -m venv $(FAST)
	$(FAST)/bin/python -m pip install --quiet --disable-pip-version-check build
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(FAST)/bin/python -m build --outdir $(FAST)/dist .
	$(FAST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt $(FAST)/dist/*.whl

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	$(RUN)/python -m compileall -q $(ROOMS)
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,real,dask,tune]'
	$(RUN)/python -m compileall -q $(ROOMS)
	touch $@

$(VENV)/.installed-notebooks: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(RUN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[notebooks,real]'
	touch $@

clean:
	rm -rf $(VENV) $(FAST) out
