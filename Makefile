# `make demo` and `make test` work from a fresh clone with Python, pip and make alone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What nestsim needs, and what its tests need as well.
CORE   := $(VENV)/.core
STAMP  := $(VENV)/.installed
WORKERS ?= auto
TESTS  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

.PHONY: help demo test test-rest test-all lint unit wide docs dist fuzz regret mutants frameworks benchmark bench-planner \
	bench-simulator validate refit refit-operators \
	paper paper-all paper-page tables published slow clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Installed once; again only when pyproject.toml changes. The stamp is written last,
# so that an interrupted installation is taken up again.
$(CORE): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMP): $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

demo: $(CORE)  ## set up .venv and run the main scenario
	$(BIN)/nestsim run scenarios/glm4_32b_64_h100.toml --output results/demo --force

# Side by side: types take most of a minute, on one core.
test: $(STAMP)  ## set up .venv and pass lint, types, import contracts and tests
	$(MAKE) --jobs=2 lint unit

# One worker more than there are cores: these tests wait for what they start.
test-rest: $(STAMP)  ## the costly tests: processes, browser, Dask, site, random inputs
	$(TESTS) -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) -m "costly and not slow and not benchmark"

test-all: test test-rest  ## all tests

lint: $(STAMP)  ## formatting, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP)  ## the tests but the costly ones, on all cores
	$(TESTS) -m "not costly and not slow and not benchmark"

wide: $(STAMP)  ## the tests with other examples of each property, and more: tens of minutes
	$(TESTS) --hypothesis-profile wide

# The tests build it, too. Its cache does not see that the changelog has changed.
docs: $(STAMP)  ## the documentation as a site in results/site, warnings as errors
	$(BIN)/python -m zensical build --strict --clean

# Minutes, and gigabytes of packages: an environment for each Python at hand (of pyenv, or PYTHON312=..).
dist: $(STAMP)  ## wheel and source distribution in dist, checked and tried in clean environments
	$(BIN)/python -m tests.distributions

# `make fuzz SEED=$RANDOM` tries others; the seeds of sessions are in their summaries.
SEED ?= 0
fuzz: $(STAMP)  ## 10,000 right and wrong inputs: counts, and a reproducer of each failure
	rm -rf results/fuzz
	$(BIN)/python -m tests.fuzz --inputs 10000 --seed $(SEED) --output results/fuzz

# At most a minute or two each; `--workers` takes several at a time.
regret: $(STAMP)  ## 100 random scenarios: is any other plan faster than the answer?
	$(BIN)/python -m tests.regret --scenarios 100 --seed $(SEED) --output results/regret

# One core, minutes to hours: each mutant runs the folder of tests beside its file.
MUTANTS ?= 100
mutants: $(STAMP)  ## 100 wrong operators and numbers: do tests notice each?
	$(BIN)/python -m tests.mutants --mutants $(MUTANTS) --seed $(SEED) --output results/mutants

# An environment of packages for each framework, below .frameworks: minutes, and disk.
# CHECKOUTS=DIR (.frameworks/checkouts) has checkouts of Megatron-LM, each called like
# its tag, and of Megatron-DeepSpeed. Python 3.12 is on the path, of pyenv, or PYTHON312=/path/to/python.
frameworks: $(STAMP)  ## 200 plans in each framework's own code: do verdicts differ?
	$(BIN)/python -m tests.frameworks --seed $(SEED) --output results/frameworks \
		$(if $(CHECKOUTS),--checkouts $(CHECKOUTS))

benchmark: $(STAMP)  ## timed tests, one at a time
	$(BIN)/python -m pytest -m benchmark -p no:xdist tests/benchmarks

bench-planner: $(STAMP)  ## time and memory of the search: a table and a plot
	$(BIN)/python -m tests.benchmarks.planner_growth --output results/bench-planner

bench-simulator: $(STAMP)  ## time and memory of the replay: a table and a plot
	$(BIN)/python -m tests.benchmarks.simulator_growth --output results/bench-simulator

validate: $(STAMP)  ## predict the published figures that come with nestsim: their errors
	$(BIN)/nestsim validate --output results/published_validation

refit: $(STAMP)  ## fit the constants to MEASUREMENTS=FILE.csv and hold rows out: tables
	$(BIN)/python -m nestsim.features.calibration $(MEASUREMENTS)

# Needs pyarrow, and the parquet files of AIConfigurator's systems/data.
refit-operators: $(STAMP)  ## fit the tables of kernels' times to DATA=FOLDER of parquet files
	$(BIN)/pip install -q "pyarrow>=18"
	$(BIN)/python -m nestsim.features.calibration.tables $(DATA) --write estimators/operators

# The comparisons of the NEST paper, one folder each. Interrupted, they go on from the
# point they had reached; docs/paper.md explains them.
PAPER  := scenarios/paper
SIZES  := 64 128 256 512 1024
FIG5   := $(foreach model,bert_large llama2_7b llama3_70b mixtral_8x7b gpt3_175b,\
	$(foreach size,$(SIZES),$(PAPER)/fig5_$(model)_$(size).toml))
FIG6   := $(foreach model,bert_large llama2_7b llama3_70b,\
	$(foreach size,1 2 4 8,$(PAPER)/fig6_$(model)_b$(size).toml))
FIG11  := $(subst fig6,fig11,$(FIG6))
FIG7   := $(foreach model,bert_large llama2_7b llama3_70b mixtral_8x7b gpt3_175b \
	gpt3_35b mixtral_790m,$(PAPER)/fig7_$(model).toml)
# Those with a table [plan]: the artifact's own one for "Manual".
MANUAL := $(shell grep -l '^\[plan\]' $(FIG5))
SWEEPS := $(foreach one,fig2 fig10 table6 table7,$(wildcard $(PAPER)/$(one)_*.toml))
ENGINES := $(filter %_128.toml,$(FIG5))
RESTRICTED := $(filter %_512.toml,$(MANUAL))
# Search times of figure 7 stand on the page, so that one runs alone.
BOTH   := --workers 2

paper: $(STAMP)  ## figure 5 of the NEST paper, 25 points: at most 10 minutes
	$(BIN)/nestsim compare $(FIG5) $(BOTH) --output results/paper/fig5

paper-all: paper  ## every experiment of the paper, and the tables of docs/paper.md
	$(BIN)/nestsim compare $(FIG7) --output results/paper/fig7
	$(BIN)/nestsim compare $(MANUAL) --planners nest,fixed $(BOTH) \
		--output results/paper/fig5_published_manual
	# Status 1: the last point of figures 6 and 11 fits in no memory, as in the paper.
	$(BIN)/nestsim compare $(FIG6) $(BOTH) --output results/paper/fig6 || test $$? -eq 1
	$(BIN)/nestsim compare $(FIG11) $(BOTH) --output results/paper/fig11 || test $$? -eq 1
	$(BIN)/nestsim compare $(wildcard $(PAPER)/table2_*.toml) --output results/paper/table2
	$(BIN)/nestsim compare $(wildcard $(PAPER)/s54_*.toml) --output results/paper/s54
	for file in $(SWEEPS); do \
		$(BIN)/nestsim sweep $$file --no-figures \
			--output results/paper/$$(basename $$file .toml) || exit 1; \
	done
	# One engine and two; and the artifact's own restrictions.
	for file in $(ENGINES); do \
		$(BIN)/nestsim sweep $$file --what simulate --no-figures \
			--set cluster.accelerator.vector_engine=true,false \
			--output results/paper/engines_$$(basename $$file .toml) || exit 1; \
	done
	for file in $(RESTRICTED); do \
		$(BIN)/nestsim sweep $$file --what run --no-figures \
			--set search.planner=nest,fixed --set "search.zero_stages=[[0]]" \
			--set "search.recompute=[['$$(case $$file in (*bert*) echo none;; (*) echo stage;; esac)']]" \
			--output results/paper/restricted_$$(basename $$file .toml) || exit 1; \
	done
	# Alpa with micro-batches of one sequence: stages of one replica, as in its paper.
	# Status 1: BERT has too few layers for 512 devices in one replica.
	for file in $(filter-out %_1024.toml,$(FIG5)); do \
		$(BIN)/nestsim sweep $$file --what run --no-figures \
			--set search.planner=alpa --set "search.data_parallel_sizes=[[1]]" \
			--set "search.tensor_model_parallel_sizes=[[1,2,4,8,16]]" \
			--output results/paper/unreplicated_$$(basename $$file .toml) || test $$? -eq 1 || exit 1; \
	done
	$(MAKE) paper-page

paper-page: $(STAMP)  ## the tables and figures of docs/paper.md, from results/paper
	$(BIN)/python -m tests.nestsim.paper_page results/paper
	cp results/paper/fig5/comparison.png docs/images/paper_figure5.png
	cp results/paper/fig7/comparison.png docs/images/paper_figure7.png

# Minutes: the searches of the table of answers, and all published runs.
tables: $(STAMP)  ## what programs write into the other pages of docs, and the schema of scenarios
	$(BIN)/python -m tests.docs.made
	$(BIN)/nestsim schema > scenarios/scenario.schema.json

SEARCHED = $(addprefix scenarios/published/,bloom_* korthikanti_* megatron_* \
	meta_llama3_405b_16384_* mlperf_gpt3_* nemo_* sc21_*)

published: $(STAMP)  ## published plans beside Manual's and ours: docs/published.md
	$(BIN)/nestsim compare $(SEARCHED) --planners nest,manual,fixed \
		--base fixed --output results/published
	$(BIN)/python -m tests.nestsim.published_page results/published

slow: $(STAMP)  ## validation that takes minutes
	$(BIN)/python -m pytest -m slow

clean:  ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
