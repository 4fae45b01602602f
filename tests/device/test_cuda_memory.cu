/* Memory of an instance: what there is to be had is planned, and an allocation that fails is told
 * to whom it failed, and to nobody else. */
#include "check.h"
#include "engine/compute/cuda/instance.h"

extern "C" {
#include "engine/compute/blocks.h"
}

#ifdef CUDA_EMULATED
#include "emulator.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = 64,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 32,
    VOCAB = 100,
    ROWS = 4,
    MANY = 24,     /* more than are recorded: fast where it is asked for */
    SHORT = 600,   /* positions */
    LONG = 262144, /* whose attention needs far more scratch */
    KIND_DRAFT = 0,
    KIND_CONTEXT = 1
};

static uint16_t
    weights[VOCAB * HIDDEN + (HEADS + 2 * KV_HEADS) * DIM * HIDDEN * 2 + HEADS * HIDDEN];
static uint16_t ones[HIDDEN];
static float turns[8 * SHORT * DIM / 2]; /* all alike: of cosine and sine */
static const struct rope_table rope = {DIM, 8 * SHORT, turns, turns, 1.0f};
static struct weight_matrix table;
static struct attention_block block;
static int32_t ids[MANY];

static struct weight_matrix matrix(int out, int in, const uint16_t **at)
{
    struct weight_matrix m = {};
    m.format = WEIGHT_BF16;
    m.out = out;
    m.in = in;
    m.data = *at;
    *at += (size_t)out * (size_t)in;
    return m;
}

static void make_weights(void)
{
    uint32_t state = 7;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        state = state * 1664525u + 1013904223u;
        weights[i] = (uint16_t)(0x3c00u | (state >> 31) << 15 | (state >> 12 & 0xff));
    }
    for (int i = 0; i < HIDDEN; i++)
        ones[i] = 0x3f80;
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++)
        turns[i] = 0.70710678f;
    const uint16_t *at = weights;
    table = matrix(VOCAB, HIDDEN, &at);
    block.heads = HEADS;
    block.kv_heads = KV_HEADS;
    block.head_dim = DIM;
    block.eps = 1e-6f;
    block.rope = &rope;
    block.input_norm = block.q_norm = block.k_norm = ones;
    block.q = matrix(HEADS * DIM, HIDDEN, &at);
    block.k = matrix(KV_HEADS * DIM, HIDDEN, &at);
    block.v = matrix(KV_HEADS * DIM, HIDDEN, &at);
    block.o = matrix(HIDDEN, HEADS * DIM, &at);
    block.gate = matrix(HEADS, HIDDEN, &at);
    for (int i = 0; i < MANY; i++)
        ids[i] = (7 * i + 3) % VOCAB;
}

static struct compute_options options_of(enum arithmetic a)
{
    struct compute_options o = {};
    o.backend = "cuda";
    o.arithmetic = a;
    return o;
}

static struct compute_shape shape_of(int64_t positions)
{
    struct compute_shape s = {};
    s.max_rows = MANY;
    s.hidden = HIDDEN;
    s.vocab = VOCAB;
    s.max_heads = HEADS;
    s.max_kv_heads = KV_HEADS;
    s.head_dim = DIM;
    s.max_ffn_width = HIDDEN;
    s.max_positions = positions;
    return s;
}

static struct compute *open_one(enum arithmetic a)
{
    const struct compute_options o = options_of(a);
    const struct compute_shape s = shape_of(0);
    struct compute *c = NULL;
    struct error err = {};
    if (!compute_new(&o, &s, &c, &err)) {
        printf("%s: %s\n", err.name, err.message);
        exit(1);
    }
    compute_prepare_begin(c, NULL, NULL, 0);
    CHECK(compute_prepare_embedding(c, &table, &err) &&
              compute_prepare_attention(c, &block, &err) && compute_prepare_end(c, &err),
          "%s: %s", err.name, err.message);
    return c;
}

static struct kv_layer *ring(struct compute *c, int64_t positions)
{
    struct kv_layer *kv = NULL;
    struct error err = {};
    CHECK(kv_layer_new(c, KV_HEADS, DIM, positions, &kv, &err), "%s: %s", err.name, err.message);
    return kv;
}

/* What compute_end says; the rows, where there is somewhere to put them. */
static bool forward(struct compute *c, struct kv_layer *kv, int kind, int64_t pos0, int rows,
                    float *out, struct error *err)
{
    struct compute_forward f = {};
    f.owner = kv;
    f.kind = kind;
    f.ids = ids;
    f.pos0 = pos0;
    f.rows = rows;
    if (!compute_begin(c, &f)) {
        compute_embed(c, &table, ids, rows);
        compute_attention(c, &block, kv, pos0, rows);
    }
    const bool ok = compute_end(c, err);
    if (ok && out != NULL)
        compute_read_rows(c, 0, rows, out);
    return ok;
}

static bool says(const struct error *err, const char *name)
{
    return strcmp(err->name, name) == 0;
}

/* Keys and values that no device has room for: the sequences beside them go on. */
static void check_sequences(void)
{
    float before[ROWS * HIDDEN], after[ROWS * HIDDEN];
    struct compute *c = open_one(ARITHMETIC_STRICT);
    struct kv_layer *kv = ring(c, SHORT), *none = NULL;
    struct error err = {};
    CHECK(forward(c, kv, KIND_DRAFT, 0, ROWS, before, &err), "%s", err.message);
    CHECK(!kv_layer_new(c, KV_HEADS, DIM, (int64_t)1 << 36, &none, &err) && none == NULL &&
              says(&err, "OUT-OF-MEMORY") && strstr(err.message, "keys") != NULL,
          "%s: %s", err.name, err.message);
    err = {};
    CHECK(forward(c, kv, KIND_DRAFT, 0, ROWS, after, &err) &&
              memcmp(before, after, sizeof before) == 0,
          "%s: %s", err.name, err.message);
    kv_layer_free(ring(c, SHORT));
    kv_layer_free(kv);
    compute_free(c);
}

#ifdef CUDA_EMULATED

static void with_failure(const char *what)
{
    if (what != NULL)
        setenv("CUDA_EMULATOR_FAIL", what, 1);
    else
        unsetenv("CUDA_EMULATOR_FAIL");
    emulator_reset();
}

/* The scratch of a longer ring cannot be had: that of the shorter one stays. */
static void check_scratch(void)
{
    float before[ROWS * HIDDEN], after[ROWS * HIDDEN];
    struct compute *c = open_one(ARITHMETIC_STRICT);
    struct kv_layer *kv = ring(c, SHORT), *more = NULL;
    struct error err = {};
    CHECK(forward(c, kv, KIND_DRAFT, 300, ROWS, before, &err), "%s", err.message);
    for (int n = 1; n <= 3; n++) {
        char text[32];
        snprintf(text, sizeof text, "cudaMalloc:%d", n);
        with_failure(text);
        err = {};
        CHECK(!kv_layer_new(c, KV_HEADS, DIM, 8 * SHORT, &more, &err) &&
                  says(&err, "OUT-OF-MEMORY") &&
                  strstr(err.message, n == 3   ? "attention scratch"
                                      : n == 2 ? "values"
                                               : "keys"),
              "%s: %s: %s", text, err.name, err.message);
        with_failure(NULL);
        CHECK(forward(c, kv, KIND_DRAFT, 300, ROWS, after, &err) &&
                  memcmp(before, after, sizeof before) == 0,
              "%s: %s", err.name, err.message);
    }
    more = ring(c, 8 * SHORT);
    CHECK(more != NULL && forward(c, more, KIND_DRAFT, 7 * SHORT, ROWS, NULL, &err), "%s",
          err.message);
    CHECK(forward(c, kv, KIND_DRAFT, 300, ROWS, after, &err) &&
              memcmp(before, after, sizeof before) == 0,
          "%s: %s", err.name, err.message);
    kv_layer_free(more);
    kv_layer_free(kv);
    compute_free(c);
}

/* In the middle of a forward (fast scratch, or a recording): told by that forward's end, and no
 * other's. */
static void check_forwards(void)
{
    static const struct {
        enum arithmetic arithmetic;
        int rows;
        const char *fails;
    } cases[] = {{ARITHMETIC_FAST, MANY, "cudaMalloc:1"},
                 {ARITHMETIC_STRICT, ROWS, "cudaGraphInstantiate:1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int rows = cases[i].rows;
        float want[MANY * HIDDEN], got[MANY * HIDDEN];
        struct compute *c = open_one(cases[i].arithmetic);
        struct kv_layer *kv = ring(c, SHORT);
        struct error err = {};
        for (int kind = KIND_DRAFT; kind <= KIND_CONTEXT; kind++) {
            const bool heard = kind == KIND_DRAFT;
            err = {};
            with_failure(kind == KIND_DRAFT || cases[i].arithmetic == ARITHMETIC_STRICT
                             ? cases[i].fails
                             : "cudaLaunchKernelEx:99999");
            const bool first = forward(c, kv, kind, 0, rows, NULL, heard ? &err : NULL);
            with_failure(NULL);
            if (heard)
                CHECK(!first && says(&err, "OUT-OF-MEMORY"), "%s: %s: %s", cases[i].fails, err.name,
                      err.message);
            if (!heard && !first) { /* the next one that is heard tells of it */
                CHECK(!forward(c, kv, KIND_DRAFT, 0, rows, NULL, &err) &&
                          says(&err, "OUT-OF-MEMORY"),
                      "%s: %s", err.name, err.message);
            }
            err = {};
            CHECK(forward(c, kv, KIND_DRAFT, 0, rows, kind == KIND_DRAFT ? want : got, &err),
                  "%s: %s", err.name, err.message);
        }
        CHECK(memcmp(want, got, (size_t)rows * HIDDEN * sizeof *want) == 0, "other rows");
        kv_layer_free(kv);
        compute_free(c);
    }
}

/* A forward that nobody hears, and then its sequence goes: the others never know. */
static void check_untold(void)
{
    struct compute *c = open_one(ARITHMETIC_STRICT);
    struct kv_layer *kv = ring(c, SHORT), *other = ring(c, SHORT);
    struct error err = {};
    with_failure("cudaGraphInstantiate:1");
    CHECK(!forward(c, kv, KIND_CONTEXT, 0, ROWS, NULL, NULL), "it was recorded");
    with_failure(NULL);
    compute_forget(c, kv);
    kv_layer_free(kv);
    CHECK(forward(c, other, KIND_DRAFT, 0, ROWS, NULL, &err), "%s: %s", err.name, err.message);
    kv_layer_free(other);
    compute_free(c);
}

static void check_beside(void)
{
    struct compute *c = open_one(ARITHMETIC_STRICT), *beside = NULL;
    struct kv_layer *kv = ring(c, SHORT);
    const struct compute_shape s = shape_of(0);
    struct error err = {};
    with_failure("cudaMalloc:3");
    CHECK(!compute_new_beside(c, &s, &beside, &err) && says(&err, "OUT-OF-MEMORY"), "%s: %s",
          err.name, err.message);
    with_failure(NULL);
    CHECK(forward(c, kv, KIND_DRAFT, 0, ROWS, NULL, &err), "%s: %s", err.name, err.message);
    CHECK(compute_new_beside(c, &s, &beside, &err), "%s: %s", err.name, err.message);
    compute_free(beside);
    kv_layer_free(kv);
    compute_free(c);
}

/* Any other fault is for good. */
static void check_others_stay(void)
{
    struct compute *c = open_one(ARITHMETIC_STRICT);
    struct kv_layer *kv = ring(c, SHORT), *none = NULL;
    struct error err = {};
    CHECK(forward(c, kv, KIND_DRAFT, 0, ROWS, NULL, &err), "%s", err.message);
    with_failure("cudaGraphLaunch:1");
    CHECK(!forward(c, kv, KIND_DRAFT, 0, ROWS, NULL, &err) && says(&err, "CUDA-FAILED"), "%s",
          err.name);
    with_failure(NULL);
    err = {};
    CHECK(!forward(c, kv, KIND_DRAFT, 0, ROWS, NULL, &err) && says(&err, "CUDA-FAILED"), "%s",
          err.name);
    CHECK(!kv_layer_new(c, KV_HEADS, DIM, SHORT, &none, &err) && says(&err, "CUDA-FAILED"), "%s",
          err.name);
    kv_layer_free(kv);
    compute_free(c);
    /* Nor is one forgotten that shows only when the device is asked whether it still works. */
    c = open_one(ARITHMETIC_STRICT);
    with_failure("cudaMalloc:1,cudaStreamSynchronize:1");
    CHECK(!kv_layer_new(c, KV_HEADS, DIM, SHORT, &none, &err), "it was had");
    with_failure(NULL);
    CHECK(!kv_layer_new(c, KV_HEADS, DIM, SHORT, &none, &err) && says(&err, "CUDA-FAILED"),
          "%s: %s", err.name, err.message);
    compute_free(c);
}

/* What compute_scratch_bytes says of the longest ring is what is taken, to a few bytes. */
static void check_plan(void)
{
    static const int64_t positions[] = {SHORT, 8 * SHORT, LONG};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        const struct compute_options o = options_of(ARITHMETIC_STRICT);
        const struct compute_shape s = shape_of(positions[i]);
        struct error err = {};
        size_t before = 0, after = 0, total = 0;
        uint64_t planned = 0;
        struct compute *c = NULL;
        CHECK(compute_scratch_bytes(&o, &s, &planned, &err), "%s", err.message);
        cudaMemGetInfo(&before, &total);
        CHECK(compute_new(&o, &s, &c, &err), "%s", err.message);
        struct kv_layer *little = ring(c, 64), *kv = ring(c, positions[i]);
        cudaMemGetInfo(&after, &total);
        const uint64_t taken = before - after - kv_layer_bytes(little) - kv_layer_bytes(kv);
        CHECK(taken <= planned + 4096 && planned <= taken + 65536, "%lld positions: %llu, not %llu",
              (long long)positions[i], (unsigned long long)taken, (unsigned long long)planned);
        kv_layer_free(little);
        kv_layer_free(kv);
        compute_free(c);
        cudaMemGetInfo(&after, &total);
        CHECK(before == after, "%zu bytes are left", before - after);
    }
}

#endif

int main(void)
{
    make_weights();
    check_sequences();
#ifdef CUDA_EMULATED
    check_scratch();
    check_forwards();
    check_untold();
    check_beside();
    check_others_stay();
    check_plan();
#endif
    printf("%d checks, %d failures\n", checks, failures);
    return failures != 0;
}
