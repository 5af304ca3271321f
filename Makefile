# SPDX-License-Identifier: MIT
#
# `make help` lists the targets. The dependencies' flags come from build/config.mk, which
# tools/setup writes; it is run by itself when that file is missing.

VERSION := 0.1.0
PREFIX ?= /usr/local
DESTDIR ?=
BUILD ?= build
V ?= 0

ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-8s %s\n'
MAKEFLAGS += --no-print-directory
endif
# What a target builds first, as many files at once as there are processors, if no -j says otherwise.
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(shell nproc))

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# --- dependencies ---------------------------------------------------------------------------

# A machine rented for its GPU may have nothing of a mount's libraries: check-gpu, bench-gpu and wheel
# do without.
CONFIG := build/config.mk
GOALS := $(filter-out clean distclean help setup check check-power check-power-seeded check-quota check-scale check-ceph check-seeded check-suites soak demo deb install-python uninstall-python,$(or $(MAKECMDGOALS),all))
ifneq ($(filter-out check-gpu bench-gpu wheel,$(GOALS)),)
include $(CONFIG)
else ifneq ($(GOALS),)
-include $(CONFIG)
endif

$(CONFIG): tools/setup
	$(Q)tools/setup -q build

# --- flags ----------------------------------------------------------------------------------

SANITIZE ?=
ifeq ($(SANITIZE),)
OPT ?= -O2 -g
HARDEN := -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2
else
OPT := -O1 -g -fno-omit-frame-pointer -fsanitize=$(SANITIZE)
HARDEN :=
ifneq ($(findstring undefined,$(SANITIZE)),)
# A trap, which the address sanitizer reports to its log; gcc's own report goes to a terminal
# that a daemon does not have.
OPT += -fsanitize-undefined-trap-on-error
endif
endif

CC := gcc
CXX := g++
# A newer compiler warns of more, which must not stop a user's build: CI=true or WERROR=1.
WARN := -Wall -Wextra $(if $(CI)$(WERROR),-Werror)
# gcc's instrumentation makes this one see ghosts.
WARN += $(if $(SANITIZE),-Wno-maybe-uninitialized)
# Only to compare our declarations of the driver with the toolkit's: nothing is linked.
CUDA_HOME ?= /usr/local/cuda
CUDA_CFLAGS := $(if $(wildcard $(CUDA_HOME)/include/cuda.h),-idirafter $(CUDA_HOME)/include)
DEFS := -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DFUSE_USE_VERSION=317 -DCAIRN_VERSION='"$(VERSION)"'
INCS := -I. $(FUSE_CFLAGS) $(URING_CFLAGS) $(XXHASH_CFLAGS) $(SECCOMP_CFLAGS) $(CUDA_CFLAGS)
COMMON := $(OPT) $(HARDEN) $(WARN) $(DEFS) $(INCS) -pthread -MMD -MP
ALL_CFLAGS := -std=c11 $(COMMON) $(CFLAGS)
# Tests only, of which the compiler's time is a third of what `make check` takes: nothing is optimized.
ALL_CXXFLAGS := -std=c++17 $(COMMON) $(if $(SANITIZE),,-O0 -U_FORTIFY_SOURCE) -Itests/lib $(GTEST_CFLAGS) $(CXXFLAGS)
ALL_LDFLAGS := $(OPT) -pthread -Wl,-z,relro,-z,now $(LDFLAGS)

# --- what is built --------------------------------------------------------------------------

# The modules of io/, what is above first: store rests on engine and sum, these on neither.
IO_MODULES := store engine sum mounts
IO_SRC := $(wildcard $(IO_MODULES:%=io/%/*.c))
# Those of staging/; what lies in staging/ itself is above them.
STAGING_MODULES := drain file log memory
STAGING_SRC := $(wildcard staging/*.c $(STAGING_MODULES:%=staging/%/*.c))
FORMATS_SRC := $(wildcard fs/formats/*.c)
# Those of fs/.
FS_MODULES := process wire control views ops latest remote request tree parser base
FS_SRC := $(filter-out fs/process/main.c,$(wildcard $(FS_MODULES:%=fs/%/*.c)))
# Those of the command; its subcommands in tools/cairn/ are above them.
CAIRN_MODULES := tier ckpt base
CAIRN_SRC := $(wildcard tools/cairn/*.c)
BENCH_SRC := $(filter-out tools/bench/gpu.c,$(wildcard tools/bench/*.c))
BENCH_GPU_SRC := $(wildcard tools/bench/gpu.c)
# The client of S3, where its library was built (tools/setup tier).
S3_DEPS := build/deps/s3
S3_LIBS := $(if $(wildcard $(S3_DEPS)/.built),$(patsubst %,$(S3_DEPS)/lib/lib%.a,aws-c-s3 aws-c-auth \
	aws-c-http aws-c-compression aws-c-sdkutils aws-c-io s2n aws-c-cal aws-checksums aws-c-common) -lcrypto)
TIER_SRC := $(if $(S3_LIBS),$(wildcard tools/tier/*.c))
LIBCAIRN_SRC := $(wildcard tools/libcairn/*.c) fs/formats/crc.c

comma := ,
obj = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))

LIBIO := $(IO_MODULES:%=$(BUILD)/libio-%.a)
LIBSTAGING := $(BUILD)/libstaging.a $(STAGING_MODULES:%=$(BUILD)/libstaging-%.a)
LIBFORMATS := $(BUILD)/libformats.a
LIBFS := $(FS_MODULES:%=$(BUILD)/libfs-%.a)
LIBCOMMAND := $(CAIRN_MODULES:%=$(BUILD)/libcommand-%.a)

IO_LIBS := $(LIBIO) $(URING_LIBS) $(XXHASH_LIBS)
STAGING_LIBS := $(LIBSTAGING) $(IO_LIBS)
COMMAND_LIBS := $(LIBCOMMAND) $(LIBFORMATS) $(IO_LIBS)
FS_LIBS := $(LIBFS) $(LIBFORMATS) $(STAGING_LIBS) $(FUSE_LIBS) $(SECCOMP_LIBS)

# The library for trainers; a soname a major version.
LIBCAIRN_SO := libcairn.so.$(firstword $(subst ., ,$(VERSION)))
LIBCAIRN := $(BUILD)/libcairn.a $(BUILD)/libcairn.so
# For tests, which look inside: the same objects, nothing hidden.
LIBCAIRN_OBJ := $(patsubst %.c,$(BUILD)/pic/%.o,$(LIBCAIRN_SRC))
FAKE_CUDA := $(BUILD)/tests/fake_cuda/libcuda.so.1

PROGRAMS := $(if $(wildcard fs/process/main.c),$(BUILD)/cairnfs) \
	$(if $(CAIRN_SRC),$(BUILD)/cairn) $(if $(TIER_SRC),$(BUILD)/cairn-tier) \
	$(if $(BENCH_SRC),$(BUILD)/cairn-bench) $(if $(BENCH_GPU_SRC),$(BUILD)/cairn-bench-gpu)

UNIT := $(patsubst tests/unit/%.cc,$(BUILD)/tests/unit_%,$(wildcard tests/unit/*.cc))
API := $(patsubst tests/api/%.cc,$(BUILD)/tests/api_%,$(wildcard tests/api/*.cc))
HELPERS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/mount/*.c tests/crash/*.c \
	tests/gpu/*.c))
LAYERS := $(IO_MODULES:%=$(BUILD)/layers/io-%) $(BUILD)/layers/staging \
	$(STAGING_MODULES:%=$(BUILD)/layers/staging-%) $(BUILD)/layers/formats \
	$(FS_MODULES:%=$(BUILD)/layers/fs-%) $(CAIRN_MODULES:%=$(BUILD)/layers/command-%)

# Fuzzing wants clang and its runtime; each harness is built with the sources it tests.
FUZZ := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 60

.PHONY: fuzz fuzz-run
.PHONY: all tests cases check check-quick check-all check-asan check-tsan check-ecosystem demo bench tidy format install uninstall \
	install-python uninstall-python setup clean distclean help asan tsan
all: $(PROGRAMS) $(LIBCAIRN) $(LAYERS)
tests: cases $(UNIT) $(API)
# What the cases in shell run.
cases: all $(HELPERS) $(FAKE_CUDA) $(BUILD)/tests/cairnfs

# --- rules ----------------------------------------------------------------------------------

$(BUILD)/obj/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CFLAGS) -c $< -o $@

$(BUILD)/obj/%.o: %.cc $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CXX $<
	$(Q)$(CXX) $(ALL_CXXFLAGS) -c $< -o $@

# Made anew each time: `ar` would keep the object of a source that is gone.
define archive
$(say) AR $@
$(Q)rm -f $@ && $(AR) rcsD $@ $(filter %.o,$^)
endef

# $(1): the library's name, $(2): its sources.
define module
$(BUILD)/lib$(1).a: $(call obj,$(2)) $(BUILD)/sources
	$$(archive)
endef
$(foreach m,$(IO_MODULES),$(eval $(call module,io-$(m),$(wildcard io/$(m)/*.c))))
$(foreach m,$(STAGING_MODULES),$(eval $(call module,staging-$(m),$(wildcard staging/$(m)/*.c))))
$(eval $(call module,staging,$(wildcard staging/*.c)))
$(eval $(call module,formats,$(FORMATS_SRC)))
$(foreach m,$(FS_MODULES),$(eval $(call module,fs-$(m),$(filter fs/$(m)/%,$(FS_SRC)))))
$(foreach m,$(CAIRN_MODULES),$(eval $(call module,command-$(m),$(wildcard tools/cairn/$(m)/*.c))))

# Programs for tests check the order of locks (io/locks.h): their calls of these functions lead to
# tests/lib/locks.c. What is installed is made of the same objects, and calls libc.
CHECK_LOCKS := $(patsubst %,-Wl$(comma)--wrap=%,io_engine_run_check $(addprefix pthread_,mutex_lock \
	mutex_trylock mutex_unlock rwlock_rdlock rwlock_wrlock rwlock_unlock cond_wait cond_timedwait))

# link: objects of the target, then the libraries named in $(1).
define link
@mkdir -p $(@D)
$(say) LINK $@
$(Q)$(CC) $(ALL_LDFLAGS) $(filter %.o,$^) $(1) -o $@
endef
define link_cxx
@mkdir -p $(@D)
$(say) LINK $@
$(Q)$(CXX) $(ALL_LDFLAGS) $(CHECK_LOCKS) $(filter %.o,$^) $(1) -lgtest_main $(GTEST_LIBS) -ldl -o $@
endef

$(BUILD)/cairnfs: $(call obj,fs/process/main.c) $(LIBFS) $(LIBFORMATS) $(LIBSTAGING) $(LIBIO)
	$(call link,$(FS_LIBS))
# `cairn staging` reads logs
$(BUILD)/cairn: $(call obj,$(CAIRN_SRC) $(patsubst %,staging/log/%.c,left record)) $(LIBCOMMAND) $(LIBFORMATS) $(LIBIO) $(BUILD)/sources
	$(call link,$(COMMAND_LIBS))
$(call obj,$(wildcard tools/tier/*.c)): private ALL_CFLAGS += -isystem $(S3_DEPS)/include
$(BUILD)/cairn-tier: $(call obj,$(TIER_SRC)) $(BUILD)/libio-sum.a $(BUILD)/sources
	$(call link,$(BUILD)/libio-sum.a $(S3_LIBS) $(XXHASH_LIBS) -ldl -lm)
$(BUILD)/cairn-bench: $(call obj,$(BENCH_SRC)) $(BUILD)/sources
	$(call link,-lm)

# The same daemon with a failing store (CAIRNFS_FAULT), for tests: what is installed knows no such thing.
FAULTY := $(if $(wildcard fs/process/main.c),$(BUILD)/tests/cairnfs)
$(BUILD)/obj/fs/process/main_faults.o: fs/process/main.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CFLAGS) -DCAIRN_FAULTS -c $< -o $@
$(BUILD)/tests/cairnfs: $(BUILD)/obj/fs/process/main_faults.o $(call obj,tests/lib/locks.c tests/lib/locks_report.c) \
		$(LIBFS) $(LIBFORMATS) $(LIBSTAGING) $(LIBIO)
	$(call link,$(CHECK_LOCKS) $(FS_LIBS))

# Position-independent, and hidden but for what cairn.h declares.
$(BUILD)/pic/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -c $< -o $@
$(BUILD)/libcairn.so.$(VERSION): $(LIBCAIRN_OBJ) $(BUILD)/sources
	$(say) LINK $@
	$(Q)$(CC) $(ALL_LDFLAGS) -shared -Wl,-soname,$(LIBCAIRN_SO) $(if $(SANITIZE),,-Wl,-z,defs) \
		$(filter %.o,$^) -ldl -o $@
$(BUILD)/libcairn.so: $(BUILD)/libcairn.so.$(VERSION)
	$(Q)ln -sf $(<F) $(BUILD)/$(LIBCAIRN_SO) && ln -sf $(<F) $@
# One object, so that what is hidden is hidden from who links it too.
$(BUILD)/libcairn.a: $(LIBCAIRN_OBJ) $(BUILD)/sources
	$(say) AR $@
	$(Q)$(LD) -r -o $(BUILD)/pic/libcairn.o $(filter %.o,$^) && \
		objcopy --localize-hidden $(BUILD)/pic/libcairn.o && \
		rm -f $@ && $(AR) rcsD $@ $(BUILD)/pic/libcairn.o
$(BUILD)/cairn-bench-gpu: $(call obj,$(BENCH_GPU_SRC)) $(LIBCAIRN_OBJ) $(BUILD)/sources
	$(call link,-ldl -lm)

# A CUDA driver over host memory, for tests.
$(FAKE_CUDA): tests/lib/fake_cuda.c tools/libcairn/cuda_dl.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(CC) $(ALL_CFLAGS) $(ALL_LDFLAGS) -MF $(BUILD)/obj/fake_cuda.d -fPIC -shared \
		-Wl,-soname,libcuda.so.1 $< -o $@

# Dependencies point one way: fs -> staging -> io, in io/ store -> engine and sum, in staging/, fs/ and tools/cairn/
# as STAGING_MODULES, FS_MODULES and CAIRN_MODULES are listed, and fs/formats/ depends on nothing. Each archive must link
# whole without the ones above it; base, parser and tree also without libfuse. $(1): what is below.
define layer
@mkdir -p $(@D)
$(Q)echo 'int main(void){return 0;}' | $(CC) $(ALL_LDFLAGS) -x c - -x none \
	-Wl,--whole-archive $< -Wl,--no-whole-archive $(1) -o $@
endef
$(BUILD)/layers/io-sum: $(BUILD)/libio-sum.a
	$(call layer,$(XXHASH_LIBS))
$(BUILD)/layers/io-engine: $(BUILD)/libio-engine.a
	$(call layer,$(URING_LIBS))
$(BUILD)/layers/io-mounts: $(BUILD)/libio-mounts.a
	$(call layer)
$(BUILD)/layers/io-store: $(LIBIO)
	$(call layer,$(IO_LIBS))
$(BUILD)/layers/staging: $(LIBSTAGING) $(LIBIO)
	$(call layer,$(filter-out $<,$(STAGING_LIBS)))
$(BUILD)/layers/formats: $(LIBFORMATS)
	$(call layer)

# What follows $(1) in the list $(2).
below = $(if $(filter $(1),$(firstword $(2))),$(wordlist 2,$(words $(2)),$(2)),$(call \
	below,$(1),$(wordlist 2,$(words $(2)),$(2))))
define staging_layer
$(BUILD)/layers/staging-$(1): $(BUILD)/libstaging-$(1).a $(LIBSTAGING) $(LIBIO)
	$$(call layer,$(patsubst %,$(BUILD)/libstaging-%.a,$(call below,$(1),$(STAGING_MODULES))) $$(IO_LIBS))
endef
$(foreach m,$(STAGING_MODULES),$(eval $(call staging_layer,$(m))))
define fs_layer
$(BUILD)/layers/fs-$(1): $(BUILD)/libfs-$(1).a $(LIBFS) $(LIBFORMATS) $(LIBSTAGING) $(LIBIO)
	$$(call layer,$(patsubst %,$(BUILD)/libfs-%.a,$(call below,$(1),$(FS_MODULES))) $(LIBFORMATS) \
		$$(STAGING_LIBS) $(if $(filter base parser tree,$(1)),,$(FUSE_LIBS)) $(SECCOMP_LIBS))
endef
$(foreach m,$(FS_MODULES),$(eval $(call fs_layer,$(m))))
define command_layer
$(BUILD)/layers/command-$(1): $(BUILD)/libcommand-$(1).a $(LIBCOMMAND) $(LIBFORMATS) $(LIBIO)
	$$(call layer,$(patsubst %,$(BUILD)/libcommand-%.a,$(call below,$(1),$(CAIRN_MODULES))) $(LIBFORMATS) $$(IO_LIBS))
endef
$(foreach m,$(CAIRN_MODULES),$(eval $(call command_layer,$(m))))

# What unit tests need in C; taken from the archive only by those that call it.
SHIM := $(BUILD)/tests/libshim.a
SHIM_SRC := $(wildcard tests/unit/*.c)

$(addprefix $(BUILD)/tests/unit_staging_,ack early lack no_fallocate quota vanished): $(BUILD)/tests/unit_%: \
		$(BUILD)/obj/tests/unit/%.o $(call obj,tests/unit/engine_shim.c) \
		$(LIBSTAGING) $(LIBIO)
	$(call link_cxx,$(STAGING_LIBS))

$(addprefix $(BUILD)/tests/unit_staging_,counts limit pool): $(BUILD)/tests/unit_%: \
		$(BUILD)/obj/tests/unit/%.o $(call obj,tests/unit/staging_shim.c) $(LIBSTAGING) $(LIBIO)
	$(call link_cxx,$(STAGING_LIBS))

$(BUILD)/tests/unit_cairn_%: $(BUILD)/obj/tests/unit/cairn_%.o \
		$(LIBCOMMAND) $(LIBFORMATS) $(LIBIO)
	$(call link_cxx,$(COMMAND_LIBS))

$(BUILD)/tests/unit_formats_zip: $(BUILD)/obj/tests/unit/formats_zip.o $(call obj,tests/unit/crc_tables.c) $(LIBFORMATS)
	$(call link_cxx,$(LIBFORMATS))

$(UNIT) $(API): $(call obj,tests/lib/locks.c)

# A test that is named after a module (io_*, staging_*, formats_*) links that module and what is
# below it only.
define test_rules
$(BUILD)/tests/$(1)_io_%: $(BUILD)/obj/tests/$(1)/io_%.o $(LIBIO)
	$$(call link_cxx,$$(IO_LIBS))
$(BUILD)/tests/$(1)_staging_%: $(BUILD)/obj/tests/$(1)/staging_%.o $(LIBSTAGING) $(LIBIO)
	$$(call link_cxx,$$(STAGING_LIBS))
$(BUILD)/tests/$(1)_formats_%: $(BUILD)/obj/tests/$(1)/formats_%.o $(LIBFORMATS)
	$$(call link_cxx,$$(LIBFORMATS))
$(BUILD)/tests/$(1)_lib%: $(BUILD)/obj/tests/$(1)/lib%.o $(LIBCAIRN_OBJ)
	$$(call link_cxx)
$(BUILD)/tests/$(1)_%: $(BUILD)/obj/tests/$(1)/%.o $(LIBFS) $(LIBFORMATS) $(LIBSTAGING) $(LIBIO)
	$$(call link_cxx,$$(FS_LIBS))
endef
$(eval $(call test_rules,unit))
$(eval $(call test_rules,api))

$(SHIM): $(call obj,$(SHIM_SRC)) $(BUILD)/sources
	@mkdir -p $(@D)
	$(archive)
$(BUILD)/tests/unit_fs_%: $(BUILD)/obj/tests/unit/fs_%.o $(SHIM) $(LIBFS) $(LIBFORMATS) \
		$(LIBSTAGING) $(LIBIO)
	$(call link_cxx,$(SHIM) $(FS_LIBS))

$(BUILD)/tests/mount/libcairn: $(BUILD)/obj/tests/mount/libcairn.o $(call obj,tools/libcairn/cuda_dl.c) $(BUILD)/libcairn.so
	$(call link,-L$(BUILD) -lcairn -Wl$(comma)-rpath$(comma)$(abspath $(BUILD)))
$(BUILD)/tests/gpu/%: $(BUILD)/obj/tests/gpu/%.o $(call obj,tools/libcairn/cuda_dl.c)
	$(call link,-ldl)
$(BUILD)/tests/mount/hang_store: $(BUILD)/obj/tests/mount/hang_store.o
	$(call link,$(FUSE_LIBS))
$(BUILD)/tests/mount/%: $(BUILD)/obj/tests/mount/%.o
	$(call link,$(URING_LIBS))
$(BUILD)/tests/crash/%: $(BUILD)/obj/tests/crash/%.o
	$(call link,$(URING_LIBS))

# Written only when their text changes: everything is built again with other flags, and the
# archives when a source has come or gone.
FLAGS = $(ALL_CFLAGS) | $(ALL_CXXFLAGS) | $(ALL_LDFLAGS) | $(FS_LIBS) | $(SANITIZE)
quoted = '$(subst ','\'',$(1))'
define remember
@mkdir -p $(@D)
@printf '%s\n' $(call quoted,$(1)) | cmp -s - $@ || printf '%s\n' $(call quoted,$(1)) >$@
endef
$(BUILD)/flags: force
	$(call remember,$(FLAGS))
	@[ "$$(cat $(@D)/sanitizer 2>/dev/null)" = '$(SANITIZE)' ] || echo '$(SANITIZE)' >$(@D)/sanitizer
$(BUILD)/sources: force
	$(call remember,$(IO_SRC) $(STAGING_SRC) $(FORMATS_SRC) $(FS_SRC) $(CAIRN_SRC) \
		$(TIER_SRC) $(BENCH_SRC) $(LIBCAIRN_SRC) $(wildcard tests/unit/*.c))
.PHONY: force
force:

.SECONDARY:
-include $(shell find $(BUILD)/obj $(BUILD)/pic -name '*.d' 2>/dev/null)

# --- commands -------------------------------------------------------------------------------

setup:
	$(Q)tools/setup

# What these leave out is told in tests/run.
check: SET := check
check-quick: SET := quick
check check-quick:
	$(Q)tools/setup -q build test
	+$(Q)$(MAKE) $(JOBS) tests
	$(Q)BUILD=$(abspath $(BUILD)) tests/run $(or $(TESTS),-s $(SET))
# check, the other lanes, fuzzing, real frameworks; CephFS where it is installed.
check-all:
	$(Q).ci/run
	$(Q)BUILD=$(abspath $(BUILD)) tests/scale/run --on ceph --seconds 45 kills

ASAN := BUILD=build/asan SANITIZE=address,undefined
TSAN := BUILD=build/tsan SANITIZE=thread
asan:
	+$(Q)$(MAKE) $(JOBS) $(ASAN) tests
tsan:
	+$(Q)$(MAKE) $(JOBS) $(TSAN) tests
check-asan check-tsan: check-%: %
	$(Q)BUILD=$(abspath build/$*) tests/run $(TESTS)

# Real frameworks on the mount, in a virtual environment below build/ (some GB and minutes).
check-ecosystem:
	$(Q)tools/setup -q build test
	$(Q)tools/setup -q ecosystem || true
	+$(Q)$(MAKE) $(JOBS) all
	$(Q)BUILD=$(abspath $(BUILD)) tests/ecosystem/run $(TESTS)

$(BUILD)/fuzz/fuzz_%: tests/fuzz/fuzz_%.c tests/fuzz/fuzz_set.h $(FORMATS_SRC) $(wildcard fs/formats/*.h)
	@mkdir -p $(@D)
	$(say) FUZZ $@
	$(Q)clang -std=c11 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-Wall -Wextra $(DEFS) -I. $< $(FORMATS_SRC) -o $@
fuzz: $(FUZZ)

fuzz-run: fuzz
	$(Q)BUILD=$(BUILD) FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run

# Power cuts at the level of blocks: a guest kernel, root, and MINUTES of time.
MINUTES ?= 10
$(BUILD)/power/load: tests/power/load.c tests/power/content.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) -std=c11 -O2 -Wall -Wextra -Werror $(DEFS) -static -pthread $< -o $@
$(BUILD)/power/libscan.so: tests/power/scan.c tests/power/content.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(say) CC $@
	$(Q)$(CC) -std=c11 -O2 -Wall -Wextra -Werror $(DEFS) -fPIC -shared $< -o $@
# Each of tests/seeded/*.patch must make a fast test fail.
.PHONY: check-seeded
check-seeded:
	$(Q)tools/setup -q build test
	+$(Q)$(MAKE) $(JOBS) tests
	$(Q)BUILD=$(abspath $(BUILD)) tests/seeded/run $(TESTS)
.PHONY: power-built check-power check-power-seeded check-quota
power-built:
	$(Q)tools/setup -q build power || true
	+$(Q)$(MAKE) $(JOBS) all $(BUILD)/power/load $(BUILD)/power/libscan.so
check-power: power-built
	$(Q)BUILD=$(abspath $(BUILD)) tests/power/run campaign --minutes $(MINUTES) $(POWER)
# User and project quotas, in the guest.
check-quota: power-built
	$(Q)BUILD=$(abspath $(BUILD)) tests/power/quota
# Builds that lack a sync, or sync too late: power cuts must find each.
check-power-seeded: power-built
	$(Q)BUILD=$(abspath $(BUILD)) tests/seeded/run --power $(TESTS)

# Cycles of files and of modules, and sizes.
.PHONY: structure
structure: all
	$(Q)BUILD=$(abspath $(BUILD)) tests/structure $(if $(filter 1,$(V)),-v)

# pjdfstest, fsx and xfstests, built where PJDFSTEST and XFSTESTS say, on a mount (root).
.PHONY: check-suites
check-suites:
	$(Q)tools/setup -q build
	+$(Q)$(MAKE) $(JOBS) all
	$(Q)BUILD=$(abspath $(BUILD)) PJDFSTEST='$(PJDFSTEST)' XFSTESTS='$(XFSTESTS)' FSX='$(FSX)' tests/suites/run $(SUITES)

# The documents' commands, typed in fresh Debians that debootstrap makes (root); DEBIAN="bookworm trixie".
.PHONY: check-docs figures
check-docs:
	$(Q)tests/fresh/run $(DEBIAN)
# The figures of the documents, from their text sources.
figures:
	$(Q)docs/figures/draw

# Several hosts over a store on GlusterFS or CephFS, in namespaces (root); SCALE="--kills 1000 --seed 2 kills".
.PHONY: check-scale check-ceph
check-scale:
	$(Q)tools/setup -q build test
	$(Q)tools/setup -q scale || true
	+$(Q)$(MAKE) $(JOBS) all
	$(Q)BUILD=$(abspath $(BUILD)) tests/scale/run $(SCALE)
check-ceph:
	$(Q)tools/setup -q build test
	$(Q)tools/setup -q ceph || true
	+$(Q)$(MAKE) $(JOBS) all
	$(Q)BUILD=$(abspath $(BUILD)) tests/scale/run --on ceph $(SCALE)

# Hours of a training loop, and what grows meanwhile: build/soak.csv, build/soak.svg.
HOURS ?= 2
.PHONY: soak
soak:
	$(Q)tools/setup -q build
	+$(Q)$(MAKE) $(JOBS) all
	$(Q)BUILD=$(abspath $(BUILD)) tests/soak/run --hours $(HOURS) $(SOAK)

demo:
	$(Q)tools/demo/run

bench: all
	$(Q)tools/bench/run $(BENCH)

# Both say so and end with 77 where there is no GPU; GPU=--fake tries them against a fake driver.
.PHONY: bench-gpu check-gpu mount-if-it-builds
mount-if-it-builds:
	+$(Q)$(MAKE) $(JOBS) $(BUILD)/cairnfs $(BUILD)/cairn || \
		echo '  cairnfs cannot be built here, see above (tools/setup says what is missing): on without a mount'
check-gpu: $(BUILD)/tests/gpu/driver $(BUILD)/tests/mount/libcairn $(FAKE_CUDA) mount-if-it-builds
	$(Q)BUILD=$(abspath $(BUILD)) tests/gpu/run $(GPU)
bench-gpu: $(BUILD)/cairn-bench-gpu $(LIBCAIRN) $(FAKE_CUDA) mount-if-it-builds
	$(Q)BUILD=$(abspath $(BUILD)) tools/bench/run_gpu $(GPU)

SOURCES = $(wildcard io/*.h io/*/*.[ch] staging/*.[ch] staging/*/*.[ch] fs/*.[ch] fs/*/*.[ch] tools/*/*.[ch] tools/*/*/*.[ch])
TIDY_FLAGS = -std=c11 $(DEFS) $(INCS)
TIDY := $(patsubst %,tidy/%,$(filter-out $(if $(S3_LIBS),,tools/tier/%),$(filter %.c,$(SOURCES))))
$(TIDY): private TIDY_FLAGS += $(if $(S3_LIBS),-isystem $(S3_DEPS)/include)
tidy: $(TIDY)
.PHONY: $(TIDY)
$(TIDY): tidy/%:
	$(say) TIDY $*
	$(Q)clang-tidy --quiet --warnings-as-errors='*' $* -- $(TIDY_FLAGS)

format:
	$(Q)clang-format -i $(SOURCES)

# mount(8) finds cairnfs for `-t fuse.cairnfs` through the fuse3 package's mount.fuse.
MAN1 := $(wildcard docs/man/*.1)
MAN8 := $(wildcard docs/man/*.8)
MAN3 := $(wildcard docs/man/*.3)
MAN7 := $(wildcard docs/man/*.7)
LIBDIR ?= $(PREFIX)/lib
INSTALLED := cairnfs cairn $(if $(TIER_SRC),cairn-tier)
SHARE := $(PREFIX)/share
BASH_COMPLETION := $(SHARE)/bash-completion/completions/cairn
ZSH_COMPLETION := $(SHARE)/zsh/site-functions/_cairn
FISH_COMPLETION := $(SHARE)/fish/vendor_completions.d/cairn.fish
INSTALLED_FILES = $(INSTALLED:%=$(PREFIX)/bin/%) \
	$(patsubst docs/man/%,$(SHARE)/man/man1/%,$(MAN1)) $(patsubst docs/man/%,$(SHARE)/man/man8/%,$(MAN8)) \
	$(patsubst docs/man/%,$(SHARE)/man/man3/%,$(MAN3)) $(patsubst docs/man/%,$(SHARE)/man/man7/%,$(MAN7)) \
	$(PREFIX)/include/cairn.h $(LIBDIR)/libcairn.a \
	$(LIBDIR)/libcairn.so.$(VERSION) $(LIBDIR)/$(LIBCAIRN_SO) $(LIBDIR)/libcairn.so $(LIBDIR)/pkgconfig/libcairn.pc \
	$(BASH_COMPLETION) $(ZSH_COMPLETION) $(FISH_COMPLETION)
install: all
	$(Q)install -d $(sort $(dir $(INSTALLED_FILES:%=$(DESTDIR)%)))
	$(Q)install -m 755 $(INSTALLED:%=$(BUILD)/%) $(DESTDIR)$(PREFIX)/bin
	$(Q)$(if $(MAN1),install -m 644 $(MAN1) $(DESTDIR)$(SHARE)/man/man1)
	$(Q)$(if $(MAN8),install -m 644 $(MAN8) $(DESTDIR)$(SHARE)/man/man8)
	$(Q)$(if $(MAN3),install -m 644 $(MAN3) $(DESTDIR)$(SHARE)/man/man3)
	$(Q)$(if $(MAN7),install -m 644 $(MAN7) $(DESTDIR)$(SHARE)/man/man7)
	$(Q)install -m 644 tools/libcairn/cairn.h $(DESTDIR)$(PREFIX)/include
	$(Q)install -m 644 $(BUILD)/libcairn.a $(BUILD)/libcairn.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	$(Q)ln -sf libcairn.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(LIBCAIRN_SO)
	$(Q)ln -sf $(LIBCAIRN_SO) $(DESTDIR)$(LIBDIR)/libcairn.so
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
		tools/libcairn/libcairn.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/libcairn.pc
	$(Q)$(BUILD)/cairn completion bash >$(DESTDIR)$(BASH_COMPLETION)
	$(Q)$(BUILD)/cairn completion zsh >$(DESTDIR)$(ZSH_COMPLETION)
	$(Q)$(BUILD)/cairn completion fish >$(DESTDIR)$(FISH_COMPLETION)
	@echo 'installed:'; printf '  %s\n' $(INSTALLED_FILES:%=$(DESTDIR)%)
	@[ -n "$(DESTDIR)" ] || { [ "$$(id -u)" = 0 ] && PATH=$$PATH:/usr/sbin:/sbin ldconfig; } || \
		echo 'ldconfig was not run: run it as root, or set LD_LIBRARY_PATH=$(LIBDIR) for programs that use libcairn'

uninstall:
	$(Q)rm -f $(INSTALLED_FILES:%=$(DESTDIR)%)

# Where PYTHON itself looks for packages: a virtual environment's, or the system's local ones.
PYTHON ?= python3
PYTHONDIR ?= $(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
install-python:
	$(Q)$(PYTHON) tools/python/install.py --root "$(DESTDIR)" --libcairn "$(LIBDIR)/$(LIBCAIRN_SO)" "$(PYTHONDIR)"
# With libcairn in it, for machines whose glibc is no older than what it is linked with.
WHEELDIR ?= $(BUILD)
.PHONY: wheel
wheel: $(BUILD)/libcairn.so
	$(Q)$(PYTHON) tools/python/install.py --wheel "$(WHEELDIR)" --libcairn "$(BUILD)/libcairn.so.$(VERSION)"
# cairnfs, libcairn0 and libcairn-dev, of a copy of the sources.
DEBDIR ?= $(BUILD)/deb
.PHONY: deb
deb:
	$(Q)tools/setup -q build deb
	$(Q)tools/debian/build "$(DEBDIR)"
# An OCI image with these packages, and nothing from a registry (root).
.PHONY: image
image:
	$(Q)tools/setup -q build deb image
	$(Q)tools/debian/build "$(DEBDIR)"
	$(Q)tools/image/build "$(DEBDIR)" $(TAG)
.PHONY: check-image
check-image: image
	$(Q)tests/fresh/image "$(DEBDIR)/cairnfs-image.tar"
uninstall-python:
	$(Q)$(PYTHON) tools/python/install.py --root "$(DESTDIR)" --remove "$(PYTHONDIR)"

# The libraries tools/setup built and the frameworks stay; distclean removes them too.
clean:
	$(Q)rm -rf $(filter-out build/deps build/ecosystem build/scale build/peers build/config.mk build/setup.log,$(wildcard build/*))
distclean:
	$(Q)rm -rf build

help:
	@printf '%s\n' \
	'make              build build/cairnfs and build/cairn (installs what is missing first)' \
	'make check        install what is missing, build, run the tests; TESTS="-k name mount"' \
	'make check-quick  the same, only what takes at most 2 seconds' \
	'make check-all    make check, the other lanes, fuzzing, real frameworks: what CI runs' \
	'make check-asan   the same tests, address and undefined-behaviour sanitizers' \
	'make check-tsan   the same tests, thread sanitizer' \
	'make check-ecosystem  torch, DCP, Trainer, Lightning, Orbax, ... on the mount; TESTS="-k dcp"' \
	'make check-seeded does a fast test catch each of the classic defects in tests/seeded?' \
	'make check-suites pjdfstest, fsx, xfstests; PJDFSTEST=DIR XFSTESTS=DIR (docs/HACKING.md)' \
	'make check-scale  several hosts over GlusterFS, which is killed, too; SCALE="--kills 1000" (root)' \
	'make check-ceph   the same over CephFS, and RGW as the server of S3 (root)' \
	'make check-power  power cuts below the filesystem, in a guest; MINUTES=10 (root)' \
	'make check-quota  user and project quotas on ext4 and xfs, in a guest' \
	'make check-docs   the commands of README and INSTALL in fresh Debian 12 and 13 (root, debootstrap)' \
	'make figures      draw the figures of the documents again' \
	'make soak         HOURS=2 of a training loop with kills; build/soak.csv, build/soak.svg' \
	'make check-power-seeded  do power cuts find builds that lack a sync?' \
	'make fuzz-run     build the fuzzers and run each; FUZZ_SECONDS=60 (clang)' \
	'make demo         mount, write a 4-rank checkpoint, look at it, check the store' \
	'make bench        measure, and compare with tmpfs, ext4 and passthrough_hp; BENCH=args' \
	'make check-gpu    the tests that need a GPU; bench-gpu: figures; GPU=--fake: without one' \
	'make structure    cycles of files and of modules, sizes; V=1 names them' \
	'make tidy         clang-tidy' \
	'make format       clang-format, in place' \
	'make install      PREFIX=/usr/local DESTDIR=; uninstall: the same, away again' \
	'make install-python   the Python package, for PYTHON=python3' \
	'make wheel        the same as a wheel, with libcairn in it; WHEELDIR=build' \
	'make deb          Debian packages: cairnfs, libcairn0, libcairn-dev; DEBDIR=build/deb' \
	'make image        an OCI image with these packages (root); TAG=cairnfs:VERSION; check-image: runs it' \
	'make tests        build the tests only' \
	'make setup        install what is missing, for tests and benchmarks too' \
	'make clean        remove what was built; distclean: also what was fetched' \
	'V=1 shows the commands.'
