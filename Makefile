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

.PHONY: help lib test clean

help:
	@echo "make lib       the shared and the static library in $(LIB)"
	@echo "make test      every test; make test SUITES='c install' some of them"
	@echo "make clean     removes $(BUILD) and $(TARGET)"

# One artefact a call: with several crate types at once cargo drops link-time optimisation.
lib:
	$(CARGO) rustc --locked --release --lib --crate-type cdylib
	$(CARGO) rustc --locked --profile release-static --lib --crate-type staticlib
	@mkdir -p $(LIB)
	@$(STRIP) --strip-all -o $(LIB)/libtcuda.so.$(VERSION).new $(TARGET)/release/libtcuda.so
	@mv -f $(LIB)/libtcuda.so.$(VERSION).new $(LIB)/libtcuda.so.$(VERSION)
	@ln -sf libtcuda.so.$(VERSION) $(LIB)/libtcuda.so.$(ABI)
	@ln -sf libtcuda.so.$(ABI) $(LIB)/libtcuda.so
	@$(STRIP) --strip-debug -o $(LIB)/libtcuda.a.new $(TARGET)/release-static/libtcuda.a
	@mv -f $(LIB)/libtcuda.a.new $(LIB)/libtcuda.a
	@echo "libtcuda.so and libtcuda.a $(VERSION) are in $(LIB)"

test: lib
	$(PYTHON) tests/run.py $(SUITES)

clean:
	rm -rf $(BUILD)
	$(CARGO) clean
