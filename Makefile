# The commands for developers and users of braidmq. `make help` lists them.
#
# Set-up runs once and leaves stamps in .tools/; later calls need neither time nor the network.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# Debian's own interpreters first: the shims of version managers may name an interpreter that is not installed.
CANDIDATES := $(wildcard $(foreach dir,/usr/bin /usr/local/bin,$(foreach minor,11 12 13,$(dir)/python3.$(minor)))) python3
PYTHON ?= $(firstword $(CANDIDATES))

VENV := .venv/bin
export PATH := $(CURDIR)/.tools/programs:$(PATH):/usr/local/sbin:/usr/sbin
# A version manager's choice for this folder must not leak into the private environments.
unexport VIRTUAL_ENV PYTHONHOME

LANE := $(wildcard src/braidmq/lane/*/*.py src/braidmq/lane/*/*.pyx src/braidmq/lane/*/*.pxd)
QUICK_TESTS := $(wildcard tests/base tests/mqtt tests/lane tests/tidy)
# The newest Spark is in .venv. Each of these has its own environment and runs the tests for all versions.
OLDER_SPARKS := 4.0 4.1
EVERY_SPARK_TESTS := $(addprefix tests/spark/,test_every_version.py test_connect.py source/test_with_spark.py sink/test_with_spark.py sink/test_again_with_spark.py)
# Tests of one broker that are run again with their clients on a node of its own, and the core behind it.
THROUGH_NODE_TESTS := $(addprefix tests/conformance/test_,connect.py connack.py publish.py qos1.py qos2.py will.py session.py \
  subscribe.py unsubscribe.py topic_alias.py flow_control.py packet_size.py) \
  tests/scenarios/test_features_takeover.py tests/durability/campaigns/test_kill.py tests/durability/producers/test_kill_producers.py \
  tests/spark/sink/test_publisher.py
# Of many simultaneous connections with one client id, nodes refuse some; two of the campaigns are enough.
# On a node QoS 1 overtakes a QoS 2 message that waits for the disk more often than a test of aliases expects.
THROUGH_NODE_CHOICE := not many_connections and not hashed and not shared and not unsynced and not aliases_of_an_earlier
CHECKED := src tests benchmarks scripts setup.py

CONFIG ?=
ARGS ?=
JOBS ?= 2

.PHONY: help install run test test-compiled test-pure test-through-node test-spark-matrix $(OLDER_SPARKS:%=test-spark-%) demo pyspark check bench bench-cluster bench-registry soak format build lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install: .tools/.built ## set up .venv, which contains .venv/bin/braidmq

run: install ## start a node (CONFIG=file.toml: with your configuration)
	@exec $(VENV)/braidmq start --hints $(if $(CONFIG),-c $(CONFIG)) $(ARGS)

test: test-compiled test-pure test-through-node ## run all tests, those of the lane uncompiled, and some through a node

test-compiled: install .tools/.programs .tools/.etcd
	$(VENV)/pytest -n $(JOBS) --dist loadfile $(ARGS)

test-pure: install .tools/.programs .tools/.etcd
	BRAIDMQ_PURE=1 $(VENV)/pytest -n $(JOBS) --dist loadfile -m smoke $(ARGS)

test-through-node: install .tools/.programs .tools/.etcd
	BRAIDMQ_TEST_THROUGH=node $(VENV)/pytest -n $(JOBS) --dist loadfile $(THROUGH_NODE_TESTS) -k "$(THROUGH_NODE_CHOICE)" $(ARGS)

test-spark-matrix: $(OLDER_SPARKS:%=test-spark-%) ## run the tests for all Spark versions on the older ones

$(OLDER_SPARKS:%=test-spark-%): test-spark-%: install .tools/.programs .tools/.spark-%
	.spark-$*/bin/pytest $(EVERY_SPARK_TESTS) $(ARGS)

demo: install .tools/.programs ## simulate a plant: publish its data, archive and aggregate it with Spark, plot it
	$(VENV)/python -m scripts.demo $(ARGS)

pyspark: install .tools/.programs ## start a Python shell with a Spark session, `spark`, and the format "braidmq"
	@exec $(VENV)/braidmq pyspark $(ARGS)

check: install ## run ruff, mypy, import-linter and the quick tests
	$(VENV)/ruff check $(CHECKED)
	$(VENV)/ruff format --check $(CHECKED)
	$(VENV)/mypy
	$(VENV)/lint-imports --no-cache
	HYPOTHESIS_PROFILE=quick $(VENV)/pytest -q $(QUICK_TESTS)

bench: install .tools/.programs .tools/.peers ## compare with other brokers, and measure the log (QUICK=1: three minutes; SHAPES="pair-qos0 log": only these)
	$(VENV)/python -m benchmarks $(if $(QUICK),--quick) $(foreach shape,$(SHAPES),--shape $(shape)) $(ARGS)

bench-cluster: install ## compare a cluster with one node (QUICK=1: three minutes; SHAPES="pair-qos0 connect": only these)
	$(VENV)/python -m benchmarks.cluster $(if $(QUICK),--quick) $(foreach shape,$(SHAPES),--shape $(shape)) $(ARGS)

bench-registry: install .tools/.programs ## compare ways to decide who owns a client id (QUICK=1: a minute; SHAPES="crowd stopped": only these)
	$(VENV)/python -m benchmarks.registry $(if $(QUICK),--quick) $(foreach shape,$(SHAPES),--shape $(shape)) $(ARGS)

soak: install ## run the long tests: hostile and ordinary load, 500 kills
	$(VENV)/pytest -m soak --timeout=1800 -s $(ARGS)

format: install ## format the code and sort imports
	$(VENV)/ruff check --fix $(CHECKED)
	$(VENV)/ruff format $(CHECKED)

build: .tools/.built ## compile the lane in place

lock: .tools/.python ## update the lock files from pyproject.toml (needs the network)
	$(call compile,pyproject.toml --group dev,requirements.lock)
	$(call compile,--group tools,requirements-tools.lock)
	$(call compile,--group peers,requirements-peers.lock)
	$(call compile,--group node,requirements-node.lock)
	$(call compile,pyproject.toml --group spark-4-0,requirements-spark-4.0.lock)
	$(call compile,pyproject.toml --group spark-4-1,requirements-spark-4.1.lock)

clean: ## remove everything that was built or set up
	rm -rf .venv .peers .spark-* .tools build dist .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	rm -f src/braidmq/lane/*/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock files hold hashes and name no registry: whatever index the machine uses will do.
define compile
	.tools/bin/uv pip compile -q --universal --python-version 3.11 --upgrade --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header $(1) -o $(2)
endef

.tools/.python: requirements.lock requirements-tools.lock pyproject.toml
	$(PYTHON) scripts/bootstrap.py python
	@touch $@

.tools/.built: .tools/.python setup.py $(LANE)
	$(PYTHON) scripts/bootstrap.py build
	@touch $@

.tools/.programs: .tools/.python requirements-node.lock scripts/node/package-lock.json
	$(PYTHON) scripts/bootstrap.py programs && touch $@ || true # without the stamp the next run tries again

.tools/.etcd: scripts/bootstrap.py
	$(PYTHON) scripts/bootstrap.py etcd && touch $@ || true # without the stamp the next run tries again

.tools/.peers: .tools/.python requirements-peers.lock
	$(PYTHON) scripts/bootstrap.py peers
	@touch $@

$(OLDER_SPARKS:%=.tools/.spark-%): .tools/.spark-%: .tools/.python requirements-spark-%.lock
	$(PYTHON) scripts/bootstrap.py spark-$*
	@touch $@
