# What takes longer than the ordinary test run, one command each.

MINUTES ?= 10
FUZZ_TARGETS := wire commands apply state frames messages image log
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
FUZZ_WORK := $(TARGET_DIR)/fuzz-work

# Each decoder under a coverage-guided fuzzer, one after the other, MINUTES for each. Needs
# `cargo install cargo-fuzz` and a C++ compiler. A finding is left in fuzz/artifacts; what was
# discovered stays in $(FUZZ_WORK) for the next run. FUZZ_TARGETS="wire log" chooses.
.PHONY: fuzz
fuzz: $(FUZZ_TARGETS:%=fuzz-%)

# The coverage instrumentation is of the stable compiler; cargo-fuzz asks for a nightly one all the
# same, hence RUSTC_BOOTSTRAP. The address sanitizer would need a nightly one: our code is safe.
FUZZ := RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$(TARGET_DIR)/fuzz cargo fuzz

.PHONY: fuzz-%
fuzz-%:
	cd fuzz && CARGO_TARGET_DIR=$(TARGET_DIR)/fuzz cargo run --quiet --release --example seeds -- $(FUZZ_WORK)
	$(FUZZ) run -s none $* $(FUZZ_WORK)/$* fuzz/corpus/$* -- \
		-max_total_time=$$(( $(MINUTES) * 60 )) -max_len=4096 -timeout=10 -rss_limit_mb=2048
