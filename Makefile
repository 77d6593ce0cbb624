# What is longer than one cargo command. `make test` passes all tests and hunts for five minutes; the
# others are for nights. docs/testing.md says what each is for.

HUNT_SECONDS ?= 300
SEEDS ?= 2000
CORE_SEEDS ?= 200000
KILLS ?= 200
FUZZ_TARGETS := wire jute commands apply state frames messages image log
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
FUZZ_WORK := $(TARGET_DIR)/fuzz-work

# Where the ordinary run's hunt begins, and how many seeds it tries at most: the commit's own, fresh
# for each and the same everywhere.
FROM_SEED := $(shell printf '%d' 0x$$(git rev-parse --short=12 HEAD 2>/dev/null || echo 1))
SEEDS_MAX := 1300

SIM := cargo run --quiet --profile hunt --package lockkeeper-sim --features lockkeeper-sim/mutations --
NEMESIS := cargo test --package lockkeeper-cli --test nemesis --

.PHONY: test packages proof hunt core-hunt chaos crash-loop datacentres fuzz $(FUZZ_TARGETS:%=fuzz-%)

## Everything that has to pass.
test: packages
	cargo test --workspace --locked
	$(MAKE) zookeeper-short
	$(MAKE) proof

## What the tests with real processes use beside Rust: installed where that can be done without asking
## (root on Debian), and otherwise named.
PACKAGES := ip:iproute2 nft:nftables strace:strace faketime:faketime
packages:
	@missing=""; for tool in $(PACKAGES); do \
		command -v $${tool%%:*} >/dev/null || missing="$$missing $${tool##*:}"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else echo "some faults are left out of the tests; to have them, install:$$missing"; fi

## The tester is tested (known-bad versions are found), and then hunts with fresh seeds.
proof:
	cargo test --profile hunt --package lockkeeper-sim --features mutations --test mutations --test core_mutations
	$(SIM) --from $(FROM_SEED) --seeds $(SEEDS_MAX) --hunt $(HUNT_SECONDS) --threads 2
	$(SIM) core --seeds 20000

## Whole clusters, seed after seed: make hunt SEEDS=2000 [FROM=…]
hunt:
	$(SIM) --seeds $(SEEDS) $(if $(FROM),--from $(FROM)) --threads 2

## The state machine alone: make core-hunt CORE_SEEDS=200000
core-hunt:
	$(SIM) core --seeds $(CORE_SEEDS)

## Random faults on three real servers under load: make chaos MINUTES=30 [NEMESIS_SEED=…]
chaos:
	NEMESIS_SECONDS=$$(( $(or $(MINUTES),30) * 60 )) $(NEMESIS) nemesis --exact

## One kill -9 of random servers after another, under load: make crash-loop KILLS=200
crash-loop:
	NEMESIS_KILLS=$(KILLS) $(NEMESIS) crash_loop --exact

## Three servers in network namespaces with 30 to 80 ms between them (root, iproute2, nftables).
datacentres:
	NEMESIS_SECONDS=$$(( $(or $(MINUTES),30) * 60 )) $(NEMESIS) datacentres --exact

## Each decoder under a coverage-guided fuzzer, one after the other: make fuzz MINUTES=10. Needs
## `cargo install cargo-fuzz` and a C++ compiler. A finding is left in fuzz/artifacts; what was
## discovered stays in $(FUZZ_WORK) for the next run. FUZZ_TARGETS="wire log" chooses.
fuzz: $(FUZZ_TARGETS:%=fuzz-%)

# The coverage instrumentation is of the stable compiler; cargo-fuzz asks for a nightly one all the
# same, hence RUSTC_BOOTSTRAP. The address sanitizer would need a nightly one: our code is safe.
FUZZ := RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$(TARGET_DIR)/fuzz cargo fuzz

$(FUZZ_TARGETS:%=fuzz-%): fuzz-%:
	cd fuzz && CARGO_TARGET_DIR=$(TARGET_DIR)/fuzz cargo run --quiet --release --example seeds -- $(FUZZ_WORK)
	$(FUZZ) run -s none $* $(FUZZ_WORK)/$* fuzz/corpus/$* -- \
		-max_total_time=$$(( $(or $(MINUTES),10) * 60 )) -max_len=4096 -timeout=10 -rss_limit_mb=2048

## Clients of ZooKeeper that nobody here wrote, against our server: make zookeeper-suites, one of them
## with make zookeeper-kazoo (kazoo-3, client-rs, curator, zkcli, words, go, node, examples, differential), and
## SERVER=zookeeper for the real one. They fetch what they need (PyPI, Maven Central, Go modules, npm,
## crates.io) and say what they couldn't. docs/compat-zookeeper.md has the counts.
ZOOKEEPER_SUITES := kazoo kazoo-3 client-rs curator zkcli words go node examples differential
.PHONY: zookeeper-suites zookeeper-short zookeeper-load zookeeper-handover zookeeper-full zookeeper-stalls zookeeper-kafka $(ZOOKEEPER_SUITES:%=zookeeper-%)
zookeeper-suites:
	compat/zookeeper/all.sh $(ZOOKEEPER_SUITES)

## The short form: every kind of client, in a few minutes.
zookeeper-short:
	compat/zookeeper/all.sh --short

$(ZOOKEEPER_SUITES:%=zookeeper-%): zookeeper-%:
	compat/zookeeper/all.sh $*

## A release build that is laid out by what the program does under load, as a packager would make it:
## target/pgo/lockkeeper, a fifth more lock pairs a second. Ten minutes (rustup component llvm-tools).
.PHONY: pgo
pgo:
	bench/pgo.sh

## What an unaffected lock notices of crowds that end and of a flood, five times calm at most (root, for
## priorities): make overload [SERVERS=1, with a flood above its capacity] [RUNS=2] [DATA=DIR] [LOAD=…]
.PHONY: overload
overload:
	cargo build --release --locked --package lockkeeper-cli
	SERVERS=$(or $(SERVERS),3) DATA=$(DATA) RUNS=$(or $(RUNS),2) $(if $(LOAD),LOAD="$(LOAD)") bench/overload.sh

## The lock recipe through ZooKeeper's protocol, three durable servers: the real one (75 s of warming
## up), then ours. make zookeeper-load SERVER=both LOAD="--workers 64,1024 --runs 3"
zookeeper-load:
	SERVER=$(or $(SERVER),both) compat/zookeeper/probe/load.sh

## One lock with two and with 20,000 waiters, through the same protocol.
zookeeper-handover:
	compat/zookeeper/probe/handover.sh

## A million znodes and 200,000 watches: their memory, and what a lock beside them takes.
zookeeper-full:
	compat/zookeeper/probe/full.sh

## How long others wait while one sets, asks for and leaves 200,000 watches, and one ends who has 100,000
## ephemeral znodes.
zookeeper-stalls:
	compat/zookeeper/probe/stalls.sh

## Kafka 3.9 in ZooKeeper mode: a topic, a killed controller, a broker that comes back. A gigabyte of memory.
zookeeper-kafka:
	compat/zookeeper/all.sh kafka
