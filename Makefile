# `make help` says what there is. Needs a Rust toolchain, a C and C++ compiler, make and python3.

CARGO  ?= cargo
PYTHON ?= python3
STRIP  ?= strip
BUILD  ?= build

TARGET  = $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
MAJOR   = $(word 1,$(subst ., ,$(VERSION)))
MINOR   = $(word 2,$(subst ., ,$(VERSION)))
# As in build.rs: while the major version is 0 a new minor may break the ABI.
ABI     = $(if $(filter 0,$(MAJOR)),0.$(MINOR),$(MAJOR))
LIB     = $(BUILD)/lib

# Here all is for this machine, and looked for where cargo then puts it.
unexport CARGO_BUILD_TARGET

.PHONY: help lib shared static demo lint test test-long test-attack test-random test-random-all battery bench gpu-kit check-dlpack check-kernels clean

help:
	@echo "make demo      builds the library and replays the allocations of a real training run through it,"
	@echo "               on the GPU if there is one, else on the simulated device"
	@echo "make test      every test; make test SUITES='c install' runs some: $(shell sed -n 's/^\([a-z_]*\) [0-9]*\( beside\)*$$/\1/p' tests/minimum_counts.txt | tr '\n' ' ')"
	@echo "make test-long each call of the driver fails once in whole recorded runs, the models of the cache run longer, compiled functions"
	@echo "               are compiled for every device by every NVRTC, collectives meet more orders; about half an hour on two cores"
	@echo "make test-attack"
	@echo "               random programs against the memory's functions: TCUDA_ATTACK_SEEDS=FIRST..END of them, begun within"
	@echo "               TCUDA_ATTACK_SECONDS; ten minutes where nothing is said"
	@echo "make test-random, make test-random-all"
	@echo "               the portable random numbers before dieharder (from Debian's packages): a minute, or every test once"
	@echo "make battery   packs dieharder and what it reads into $(TARGET)/battery, for a machine with a GPU"
	@echo "make lib       the shared and the static library in $(LIB), the header is include/tcuda.h"
	@echo "make bench     times tcuda beside other allocators, of which torch's is fetched once (530 MB); QUICK=1: one short round"
	@echo "make gpu-kit   packs what runs on a machine with a GPU and no Rust into $(TARGET)/gpu-kit; RMM=1: with RMM from PyPI for its bench"
	@echo "make check-dlpack, make check-kernels"
	@echo "               compares the tensor structs with the real dlpack.h; compiles the device code again and has ptxas take it"
	@echo "make lint      format, clippy, and the runtime's prototypes against a crate's"
	@echo "make clean     removes $(BUILD) and $(TARGET)"

# Beside each other: each computes on one processor for minutes.
lib:
	@$(MAKE) --no-print-directory -j 2 shared static

# One artefact a call: with several crate types at once cargo drops link-time optimisation.
shared:
	$(CARGO) rustc --locked --release --lib --crate-type cdylib
	@mkdir -p $(LIB)
	@$(STRIP) --strip-all -o $(LIB)/libtcuda.so.$(VERSION).new $(TARGET)/release/libtcuda.so
	@mv -f $(LIB)/libtcuda.so.$(VERSION).new $(LIB)/libtcuda.so.$(VERSION)
	@ln -sf libtcuda.so.$(VERSION) $(LIB)/libtcuda.so.$(ABI)
	@ln -sf libtcuda.so.$(ABI) $(LIB)/libtcuda.so
	@echo "libtcuda.so $(VERSION) is in $(LIB)"

static:
	$(CARGO) rustc --locked --profile release-static --lib --crate-type staticlib
	@mkdir -p $(LIB)
	@$(STRIP) --strip-debug -o $(LIB)/libtcuda.a.new $(TARGET)/release-static/libtcuda.a
	@mv -f $(LIB)/libtcuda.a.new $(LIB)/libtcuda.a
	@echo "libtcuda.a $(VERSION) is in $(LIB)"

demo: shared
	@mkdir -p $(BUILD)/demo
	$(CC) -O2 -Iinclude examples_c/replay.c -o $(BUILD)/demo/replay -L$(LIB) -ltcuda -Wl,-rpath,'$$ORIGIN/../lib' -pthread
	TCUDA_BACKEND=$${TCUDA_BACKEND:-auto} $(BUILD)/demo/replay

lint:
	$(CARGO) fmt --check
	$(CARGO) fmt --check --manifest-path tests/unwind/Cargo.toml
	$(CARGO) clippy --locked --all-targets -- -D warnings
	$(CARGO) check --locked --features signatures

test: lib
	$(PYTHON) tests/run.py $(SUITES)

test-long: lib
	TCUDA_MODEL_EFFORT=50 $(CARGO) test --locked --lib model::
	TCUDA_CACHE_MODEL_CASES=20000 $(CARGO) test --locked --test cache_model
	TCUDA_FAULT_TRACE=all $(CARGO) test --locked --test fault_trace -- --nocapture
	TCUDA_POLICY_EFFORT=8 $(CARGO) test --locked --test policy of_other_sizes
	TCUDA_NVRTC_EFFORT=all TCUDA_MACHINES_EFFORT=all $(PYTHON) tests/run.py nvrtc machines

test-attack:
	TCUDA_ATTACK_SEEDS=$${TCUDA_ATTACK_SEEDS:-1000..1000000} TCUDA_ATTACK_SECONDS=$${TCUDA_ATTACK_SECONDS:-600} \
		$(CARGO) test --locked --test attack seeds -- --nocapture

test-random: lib
	$(PYTHON) tests/run.py dieharder

test-random-all: lib
	$(PYTHON) tests/suites/dieharder.py

battery: lib
	$(PYTHON) tools/pack_battery.py

bench: lib
	$(PYTHON) benches/run.py $(if $(QUICK),--quick)

gpu-kit: lib
	$(PYTHON) tools/pack_gpu_kit.py $(if $(RMM),--rmm)

# Both fetch from PyPI, so they are no part of the tests.
check-dlpack:
	$(PYTHON) tests/check_dlpack.py

check-kernels:
	$(PYTHON) kernels/build.py --check --check-ptxas

clean:
	rm -rf $(BUILD)
	$(CARGO) clean
