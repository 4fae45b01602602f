# mlxfast: `make` builds the programs, `make test` runs the unit tests, `make SAN=1` builds all of it
# with ASan and UBSan, `make fuzz` builds the fuzz targets, `make ARCH=aarch64` cross-builds, `make CUDA=1`
# adds the CUDA backend, `make CUDA=emulated` the same sources on the processor (tests/cuda-emulator).
# Everything goes to $(BUILD); nothing is written beside the sources.

ARCH ?= native
BUILD ?= build$(if $(CUDA),/cuda$(if $(filter emulated,$(CUDA)),-emulated,$(if $(CUDA_TIMELINE),-timeline)))$(if $(SAN),/san)$(if $(SLOWED),/slowed-$(SLOWED))$(if $(filter-out native,$(ARCH)),/$(ARCH))
# What sanitizers report needs lines, not variables; at -O1 they take half of the compiler's time.
OPT ?= $(if $(SAN),-O1,-O2)
DEBUG_INFO := $(if $(SAN),-g1,-g)
PKG_CONFIG ?= pkg-config

ifneq ($(filter-out 1 emulated,$(CUDA)),)
$(error CUDA is 1, emulated or not given)
endif
ifeq ($(CUDA),1)
ifneq ($(SAN),)
$(error make CUDA=1 SAN=1: sanitizers see nothing of a device; use CUDA=emulated SAN=1, or compute-sanitizer on a build with CUDA=1)
endif
ifneq ($(ARCH),native)
$(error make CUDA=1 builds for this machine only)
endif
endif

ifeq ($(ARCH),aarch64)
CC = aarch64-linux-gnu-gcc
SYSROOT ?= build/sysroot-aarch64
PKG_CFLAGS := -I$(SYSROOT)/usr/include -I$(SYSROOT)/usr/include/aarch64-linux-gnu
PKG_LIBS := -L$(SYSROOT)/usr/lib/aarch64-linux-gnu -l:libjansson.a -l:libcrypto.a -l:libpcre2-8.a -l:libutf8proc.a -ldl
SECCOMP_CFLAGS := $(PKG_CFLAGS)
SECCOMP_LIBS := -l:libseccomp.a
CURL_CFLAGS := $(PKG_CFLAGS)
# libcurl's static form needs libraries that Debian has as shared ones only: mlxfast is linked as usual.
CURL_LIBS := -lcurl -Wl,--unresolved-symbols=ignore-in-shared-libs
CLIENT_LIBS := $(subst -l:libcrypto.a,-lcrypto,$(PKG_LIBS))
PROGRAM_LDFLAGS = -static # programs run anywhere; unit tests need cmocka's shared library
MACHINE := aarch64
else
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags jansson libcrypto libpcre2-8 libutf8proc 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs jansson libcrypto libpcre2-8 libutf8proc 2>/dev/null || echo -ljansson -lcrypto -lpcre2-8 -lutf8proc)
SECCOMP_CFLAGS := $(shell $(PKG_CONFIG) --cflags libseccomp 2>/dev/null)
SECCOMP_LIBS := $(shell $(PKG_CONFIG) --libs libseccomp 2>/dev/null || echo -lseccomp)
CURL_CFLAGS := $(shell $(PKG_CONFIG) --cflags libcurl 2>/dev/null)
CURL_LIBS := $(shell $(PKG_CONFIG) --libs libcurl 2>/dev/null || echo -lcurl)
CLIENT_LIBS := $(PKG_LIBS)
MACHINE := $(shell uname -m)
endif

# Programs to give away, made by tools/build-dist: the same bytes from any folder, only the C library shared.
ifneq ($(DIST),)
ifeq ($(ARCH),native)
PKG_LIBS := -l:libjansson.a -l:libcrypto.a -l:libpcre2-8.a -l:libutf8proc.a -ldl
SECCOMP_LIBS := -l:libseccomp.a
endif
CFLAGS += '-ffile-prefix-map=$(CURDIR)=.'
PROGRAM_LDFLAGS = -s -Wl,--build-id=none
endif

WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wpointer-arith -Werror
# No contraction: every fused multiply-add in the arithmetic is written as one.
CFLAGS += -std=gnu11 $(OPT) $(DEBUG_INFO) $(WARN) -ffp-contract=off -fno-strict-aliasing -D_GNU_SOURCE -Isrc $(PKG_CFLAGS)
LIBS = $(PKG_LIBS) -lpthread -lm
LDFLAGS += -Wl,--as-needed
# The judge's programs, and the tests and fuzz targets that link its library.
JUDGE_LIBS = $(SECCOMP_LIBS) $(LIBS)
ifneq ($(SAN),)
CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -DMLXFAST_DEBUG
LDFLAGS += -fsanitize=address,undefined
endif

# Another order of sums in the portable kernels, to measure drift with: docs/calibration.md.
# -mfma: the same bits, without a call for each fmaf.
ifeq ($(SUM_ORDER),sequential)
CFLAGS += -DSUM_ORDER_SEQUENTIAL $(if $(filter x86_64,$(MACHINE)),-mfma)
else ifneq ($(SUM_ORDER),)
$(error SUM_ORDER is sequential or not given)
endif

# A worker that is slower by so many thousandths, to show that a ranked run sees it: docs/ranked-run.md.
ifneq ($(SLOWED),)
ifneq ($(shell echo '$(SLOWED)' | grep -Ex '[1-9][0-9]{0,3}'),$(SLOWED))
$(error SLOWED is a number of thousandths, 1 to 9999)
endif
endif

# The CUDA backend: src/engine/compute/cuda/*.cu by nvcc, or by g++ against the emulator's headers.
# CUDA_ARCH=90 builds for one architecture, faster; the last one is there as PTX too.
# Functions are named for the structs that they take, which -Wshadow would mind in C++.
CXX_WARN := -Wall -Wextra -Wshadow=local -Wpointer-arith
ifeq ($(CUDA),1)
NVCC ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_HOME ?= $(abspath $(dir $(realpath $(NVCC)))/..)
CUDA_ARCH ?= 80 90
comma := ,
CUDA_CODE := $(foreach a,$(CUDA_ARCH),-gencode 'arch=compute_$(a),code=$(if $(filter $(a),$(lastword $(CUDA_ARCH))),[sm_$(a)$(comma)compute_$(a)],sm_$(a))')
CFLAGS += -DMLXFAST_CUDA -isystem $(CUDA_HOME)/include
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -lstdc++
CUDA_COMPILE = $(NVCC) -std=c++17 -O3 -lineinfo -fmad=false -ftz=true -prec-div=true -prec-sqrt=true $(CUDA_CODE) \
	--Werror all-warnings $(addprefix -Xcompiler ,$(CXX_WARN) -ffp-contract=off -fno-strict-aliasing) -D_GNU_SOURCE -DMLXFAST_CUDA -Isrc
else ifeq ($(CUDA),emulated)
EMULATOR := tests/cuda-emulator
CFLAGS += -DMLXFAST_CUDA -I$(EMULATOR)
CUDA_LIBS := -lstdc++
# A thread variable that is extern needs no initialiser here, and sqrtf no errno.
CUDA_COMPILE = $(CXX) -x c++ -std=c++17 $(CXX_WARN) $(filter-out -std=gnu11 -Wshadow -Wstrict-prototypes,$(CFLAGS)) $(if $(filter x86_64,$(MACHINE)),-mfma) \
	-fno-exceptions -fno-rtti -fno-math-errno -fno-extern-tls-init -fno-gnu-unique -Wno-unknown-pragmas -DCUDA_EMULATED $(if $(SAN),-O1,-O2)
endif

# Stamps of the device's clock in the kernels, for `bench --timeline` (docs/cuda.md); emulated builds have them.
ifneq ($(filter-out 1,$(CUDA_TIMELINE))$(if $(CUDA),,$(CUDA_TIMELINE)),)
$(error CUDA_TIMELINE is 1 or not given, and needs CUDA=1)
endif
ifneq ($(CUDA_TIMELINE)$(filter emulated,$(CUDA)),)
CUDA_COMPILE += -DCUDA_TIMELINE
endif

find_c = $(sort $(shell find $(1) -name '*.c' 2>/dev/null))

# Instruction sets: a file whose name ends so is compiled for it, and only where it can be.
ISA_X86 := _avx2.c _avx512.c
ISA_ARM := _neon.c
ifeq ($(MACHINE),x86_64)
SKIP_ISA := $(ISA_ARM)
else ifeq ($(MACHINE),aarch64)
SKIP_ISA := $(ISA_X86)
else
SKIP_ISA := $(ISA_X86) $(ISA_ARM)
endif

NO_CUDA := $(if $(CUDA),,src/engine/compute/cuda/%)
objects = $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(NO_CUDA) $(addprefix %,$(SKIP_ISA)),$(call find_c,$(1))))
CUDA_SOURCES := $(if $(CUDA),$(sort $(wildcard src/engine/compute/cuda/*.cu)))
CUDA_O := $(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.o)
# Tests of single files of the backend: one source, one program; tests/device/run runs them too.
DEVICE_SOURCES := $(if $(CUDA),$(sort $(wildcard tests/device/test_*.cu)))
DEVICE_TESTS := $(DEVICE_SOURCES:%.cu=$(BUILD)/%)
BASE_O := $(call objects,src/base)
WIRE_O := $(call objects,src/wire)
JUDGE_O := $(call objects,src/judge)
ENGINE_O := $(call objects,src/engine)
ARENA_O := $(call objects,src/arena)

BASE_A := $(BUILD)/lib/base.a
WIRE_A := $(BUILD)/lib/wire.a
JUDGE_A := $(BUILD)/lib/judge.a
ENGINE_A := $(BUILD)/lib/engine.a
ARENA_A := $(BUILD)/lib/arena.a
ifeq ($(CUDA),emulated)
EMULATOR_O := $(patsubst %.cpp,$(BUILD)/%.o,$(sort $(wildcard $(EMULATOR)/*.cpp))) $(BUILD)/$(EMULATOR)/shared_names.o
endif

JUDGE_PROGRAMS := benchd record-correctness-golden
ENGINE_PROGRAMS := bench-worker synth-checkpoint
PROGRAMS := $(addprefix $(BUILD)/,$(JUDGE_PROGRAMS) $(ENGINE_PROGRAMS) mlxfast)

UNIT_SOURCES := $(sort $(wildcard tests/unit/test_*.c))
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(UNIT_SOURCES))
# Engines for the judge's tests: one C file, one program.
TEST_ENGINES := $(patsubst tests/engines/%.c,$(BUILD)/engines/%,$(sort $(wildcard tests/engines/*.c)))
# Developer programs: tools/<name>.c
TOOLS := $(patsubst tools/%.c,$(BUILD)/tools/%,$(sort $(wildcard tools/*.c)))
FUZZERS := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))

.PHONY: all tests engines tools unit device-tests fuzz clean format format-check
.DELETE_ON_ERROR:
all: $(PROGRAMS) $(BUILD)/measure-noop
tests: $(UNIT_TESTS) engines
engines: $(TEST_ENGINES)
tools: $(TOOLS)
device-tests: $(DEVICE_TESTS)
fuzz: $(FUZZERS)

$(BUILD)/%_avx2.o: ISA_FLAGS = -mavx2 -mfma -mf16c
# UBSan takes minutes over the unrolled tiles of the kernels; it sees the same templates as AVX2. At -O1 gcc has
# time for ASan's checks as code of their own: as calls they take two thirds of all that sanitizer tests compute.
$(BUILD)/%_avx512.o: ISA_FLAGS = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mavx512vnni -mavx512vbmi $(if $(SAN),-fno-sanitize=undefined)
$(BUILD)/src/engine/compute/%.o $(BUILD)/src/engine/transform/synth_fill.o: OPT = $(if $(SAN),-O2,-O3)
ifneq ($(SAN),)
$(BUILD)/src/engine/compute/cpu/kernels_avx2.o $(BUILD)/src/engine/compute/cpu/kernels_avx512.o: OPT = -O1
endif
# Nothing else of a slowed build differs.
$(BUILD)/src/engine/serve/%.o $(BUILD)/src/programs/bench-worker.o: CFLAGS += $(if $(SLOWED),-DSLOWED_PER_THOUSAND=$(SLOWED))
$(BUILD)/src/judge/%.o: CFLAGS += $(SECCOMP_CFLAGS)
$(BUILD)/src/arena/%.o: CFLAGS += $(CURL_CFLAGS)
# What made a folder of weights: docs/transform.md.
TRANSFORM_SOURCES := $(sort $(shell find src/base src/engine/checkpoint src/engine/model src/engine/transform -name '*.[ch]' 2>/dev/null))
$(BUILD)/src/engine/transform/source_digest.o: $(TRANSFORM_SOURCES)
$(BUILD)/src/engine/transform/source_digest.o: CFLAGS += -DTRANSFORM_SOURCE_SHA256='"$(shell sha256sum $(TRANSFORM_SOURCES) | sha256sum | cut -c1-64)"'

$(BUILD)/src/judge/page/assets.o $(BUILD)/fuzz/obj/src/judge/page/assets.o: src/judge/page/page.css src/judge/page/page.js

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ISA_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(CUDA_COMPILE) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
ifeq ($(CUDA),emulated)
$(BUILD)/$(EMULATOR)/%.o: $(EMULATOR)/%.cpp Makefile
	@mkdir -p $(@D)
	$(CUDA_COMPILE) -MMD -MP -c $< -o $@
# Every name that a kernel has for its dynamic shared memory.
$(BUILD)/$(EMULATOR)/shared_names.s: $(EMULATOR)/shared_names $(CUDA_SOURCES) $(DEVICE_SOURCES) $(wildcard src/engine/compute/cuda/*.cuh $(EMULATOR)/*.cu)
	@mkdir -p $(@D)
	$(EMULATOR)/shared_names $(filter %.cu %.cuh,$^) > $@
$(BUILD)/$(EMULATOR)/shared_names.o: $(BUILD)/$(EMULATOR)/shared_names.s
	$(CC) -c $< -o $@

$(BUILD)/tests/test_emulator: $(BUILD)/$(EMULATOR)/test_emulator.cu.o $(EMULATOR_O)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ -lcmocka $(CUDA_LIBS) $(LIBS) -o $@
.PHONY: emulator-test
emulator-test: $(BUILD)/tests/test_emulator
	$<
endif

define archive
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcsD $@ $^
endef
$(BASE_A): $(BASE_O)
	$(archive)
$(WIRE_A): $(WIRE_O)
	$(archive)
$(JUDGE_A): $(JUDGE_O)
	$(archive)
$(ENGINE_A): $(ENGINE_O) $(CUDA_O) $(EMULATOR_O)
	$(archive)
$(ARENA_A): $(ARENA_O)
	$(archive)

$(addprefix $(BUILD)/,$(JUDGE_PROGRAMS)): $(BUILD)/%: $(BUILD)/src/programs/%.o $(JUDGE_A) $(WIRE_A) $(BASE_A)
	$(CC) $(CFLAGS) $(LDFLAGS) $(PROGRAM_LDFLAGS) $^ $(JUDGE_LIBS) -o $@
# The judge under the name of one of its subcommands.
$(BUILD)/measure-noop: $(BUILD)/benchd
	ln -sf benchd $@
$(addprefix $(BUILD)/,$(ENGINE_PROGRAMS)): $(BUILD)/%: $(BUILD)/src/programs/%.o $(ENGINE_A) $(WIRE_A) $(BASE_A)
	$(CC) $(CFLAGS) $(LDFLAGS) $(PROGRAM_LDFLAGS) $^ $(CUDA_LIBS) $(LIBS) -o $@
# The participants' program: engine for checkpoints, arena for what comes over the network.
$(BUILD)/mlxfast: $(BUILD)/src/programs/mlxfast.o $(ENGINE_A) $(ARENA_A) $(WIRE_A) $(BASE_A)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(CUDA_LIBS) $(CURL_LIBS) $(CLIENT_LIBS) -lpthread -lm -o $@

# Nothing that a unit test needs of the arena calls libcurl.
$(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(ARENA_A) $(JUDGE_A) $(ENGINE_A) $(WIRE_A) $(BASE_A)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(CUDA_LIBS) $(JUDGE_LIBS) -lcmocka -o $@
$(DEVICE_TESTS): %: %.cu.o $(ENGINE_A) $(WIRE_A) $(BASE_A)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ -lcmocka $(CUDA_LIBS) $(LIBS) -o $@
$(BUILD)/engines/%: $(BUILD)/tests/engines/%.o $(WIRE_A) $(BASE_A)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@
$(BUILD)/tools/%: $(BUILD)/tools/%.o $(ENGINE_A) $(WIRE_A) $(BASE_A)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) $^ $(CUDA_LIBS) $(LIBS) -o $@

# Fuzz targets are built with clang's libFuzzer, library sources included, in their own objects.
FUZZ_CC ?= clang
FUZZ_FLAGS = -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
	-ffp-contract=off -fno-strict-aliasing -D_GNU_SOURCE -DMLXFAST_DEBUG -Isrc $(PKG_CFLAGS) $(SECCOMP_CFLAGS) $(CURL_CFLAGS)
FUZZ_O := $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(call find_c,src/base src/wire src/judge src/arena src/engine/checkpoint src/engine/text src/engine/memory))
$(BUILD)/fuzz/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) -MMD -MP -c $< -o $@
$(BUILD)/lib/fuzz.a: $(FUZZ_O)
	$(archive)
$(BUILD)/fuzz/fuzz_fetch_%: FUZZ_LIBS = $(CURL_LIBS)
$(BUILD)/fuzz/%: $(BUILD)/fuzz/obj/tests/fuzz/%.o $(BUILD)/lib/fuzz.a
	@mkdir -p $(@D)
	$(FUZZ_CC) $(FUZZ_FLAGS) $^ $(FUZZ_LIBS) $(JUDGE_LIBS) -o $@

unit: $(UNIT_TESTS)
	@for t in $(UNIT_TESTS); do $$t || exit 1; done

FORMATTED = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp')
format:
	clang-format -i $(FORMATTED)
format-check:
	clang-format --dry-run -Werror $(FORMATTED)

clean:
	rm -rf $(BUILD)

.SECONDARY:
# Not those of a build inside this one, which another make may be writing.
-include $(shell find $(BUILD)/src $(BUILD)/tests $(BUILD)/tools $(BUILD)/fuzz -name '*.d' 2>/dev/null)
