/* kernels.h: every instruction set gives the portable bits, for any rows, outputs, cuts and edges;
 * and the portable ones do what the equations say on cases worked by hand. */
#include "compute_random.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/elementary.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static const enum activations modes[] = {ACTIVATIONS_BF16, ACTIVATIONS_F32};
static const struct cpu_kernels *have[KERNELS_MAX];
static int have_count;
static uint64_t outer_mode;

static int set_up(void **state)
{
    (void)state;
    have_count = kernels_available(have);
    outer_mode = machine_float_enter();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    machine_float_leave(outer_mode);
    return 0;
}

static void *aligned_new(size_t size)
{
    return aligned_alloc(64, (size + 63) / 64 * 64 + 64);
}

/* ---- Linear ---- */

struct layer {
    struct weight_matrix w;
    uint8_t *data, *scales;
    size_t offset; /* of data off its alignment */
};

static struct layer layer_new(struct random *r, enum weight_format format, int out, int in,
                              bool wild)
{
    struct layer l = {.offset = (size_t)random_int(r, 0, 3)};
    const size_t n = (size_t)out * (size_t)in;
    if (format == WEIGHT_BF16) {
        l.data = random_bytes_new(n * 2, l.offset);
        for (size_t i = 0; i < n; i++) {
            const uint16_t b = f32_to_bf16(random_value(r, wild));
            memcpy(l.data + 2 * i, &b, 2);
        }
    } else {
        l.data = random_bytes_new(n / 2, l.offset);
        l.scales = random_bytes_new(n / 16, 0);
        for (size_t i = 0; i < n / 2; i++)
            l.data[i] = (uint8_t)random_next(r);
        /* any byte, also the negative, tiny and the two that are NaN elsewhere */
        for (size_t i = 0; i < n / 16; i++)
            l.scales[i] = wild ? (uint8_t)random_next(r) : (uint8_t)random_int(r, 0x20, 0x48);
    }
    l.w = (struct weight_matrix){
        .format = format, .out = out, .in = in, .data = l.data, .scales = l.scales};
    return l;
}

static void layer_free(struct layer *l)
{
    random_bytes_free(l->data, l->offset);
    free(l->scales);
}

static uint8_t *prepare_rows(const struct cpu_kernels *k, enum activations a, const float *x,
                             int rows, int in, const void **pointers)
{
    const size_t bytes = (size_t)kernel_pad(in, KERNEL_BLOCK) * (size_t)k->prepared_bytes[a];
    const size_t stride = (bytes + 63) / 64 * 64;
    uint8_t *all = aligned_new(stride * (size_t)rows);
    for (int i = 0; i < rows; i++) {
        pointers[i] = all + (size_t)i * stride;
        k->prepare(a, x + (size_t)i * (size_t)in, in, all + (size_t)i * stride);
    }
    return all;
}

/* One case: the reference is portable, a row at a time, all outputs at once. */
static void linear_case(struct random *r, enum weight_format format, int in, int out, int rows,
                        bool wild)
{
    const enum activations a = modes[random_int(r, 0, 1)];
    const bool add = random_int(r, 0, 3) == 0;
    struct layer l = layer_new(r, format, out, in, wild);
    const size_t stride = (size_t)out + 3, cells = stride * (size_t)rows;
    float *x = malloc((size_t)rows * (size_t)in * sizeof *x);
    float *before = malloc(cells * sizeof *before), *expected = malloc(cells * sizeof *expected);
    float *got = malloc(cells * sizeof *got);
    const void **pointers = malloc((size_t)rows * sizeof *pointers);
    for (int i = 0; i < rows * in; i++) {
        x[i] = random_value(r, wild);
        if (a == ACTIVATIONS_BF16)
            x[i] = to_bf16(x[i]);
    }
    for (size_t i = 0; i < cells; i++)
        before[i] = to_bf16(random_float(r));

    struct linear_call call = {.w = &l.w, .y_stride = stride, .add = add};
    memcpy(expected, before, cells * sizeof *before);
    uint8_t *prepared = prepare_rows(have[0], a, x, rows, in, pointers);
    for (int i = 0; i < rows; i++) {
        call.x = pointers + i;
        call.rows = 1;
        call.first = 0;
        call.count = out;
        call.y = expected + (size_t)i * stride;
        have[0]->linear(a, &call);
    }
    free(prepared);

    for (int k = 0; k < have_count; k++) {
        memcpy(got, before, cells * sizeof *before);
        prepared = prepare_rows(have[k], a, x, rows, in, pointers);
        call.x = pointers;
        call.rows = rows;
        call.y = got;
        for (int o = 0; o < out; o += call.count) {
            const int left = out - o;
            call.first = o;
            call.count = left > 1 && random_int(r, 0, 1) ? random_int(r, 1, left) : left;
            if (k > 0 || rows <= 2)
                have[k]->linear(a, &call);
        }
        if ((k > 0 || rows <= 2) && !same_floats(got, expected, cells))
            fail_msg("%s: format %d mode %d in %d out %d rows %d add %d wild %d", have[k]->name,
                     (int)format, (int)a, in, out, rows, add, wild);
        free(prepared);
    }
    layer_free(&l);
    free(x);
    free(before);
    free(expected);
    free(got);
    free(pointers);
}

static int random_inputs(struct random *r, enum weight_format format, int most)
{
    if (format == WEIGHT_NVFP4)
        return 16 * random_int(r, 1, most / 16);
    switch (random_int(r, 0, 3)) {
    case 0:
        return random_int(r, 1, 100);
    case 1:
        return 32 * random_int(r, 1, most / 32);
    default:
        return random_int(r, 16, most);
    }
}

static void linear_any_shape(void **state)
{
    (void)state;
    struct random r = {11};
    for (int round = 0; round < 800; round++) {
        const enum weight_format format = round % 2 ? WEIGHT_NVFP4 : WEIGHT_BF16;
        const int rows = random_int(&r, 1, 17);
        const int in = random_inputs(&r, format, rows < 4 ? 2048 : 400);
        const int out = random_int(&r, 1, in > 600 ? 30 : 70);
        linear_case(&r, format, in, out, rows, random_int(&r, 0, 1));
    }
}

static void linear_every_row_count(void **state)
{
    (void)state;
    struct random r = {12};
    for (int rows = 1; rows <= 17; rows++)
        for (int format = 0; format < 2; format++)
            linear_case(&r, (enum weight_format)format, 16 * random_int(&r, 1, 12),
                        random_int(&r, 1, 40), rows, false);
    const int many[] = {33, 64, 512};
    for (int i = 0; i < 3; i++)
        for (int format = 0; format < 2; format++)
            linear_case(&r, (enum weight_format)format, 80, i == 2 ? 9 : 23, many[i], false);
}

/* Enough rows and inputs for weights to be laid out apart: more rows than are taken at once, more
 * inputs than one panel has, outputs that are left over, a last tile of any height. */
static void linear_many_rows(void **state)
{
    (void)state;
    struct random r = {17};
    const struct {
        int in, out, rows;
    } shapes[] = {{512, 19, 17},  {544, 16, 33},  {2048, 12, 150}, {2080, 9, 64},  {4128, 17, 41},
                  {6144, 8, 100}, {2048, 8, 301}, {1000, 11, 18},  {512, 10, 512}, {8192, 7, 40}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int round = 0; round < 3; round++)
            linear_case(&r, WEIGHT_BF16, shapes[i].in, shapes[i].out, shapes[i].rows, round == 2);
    for (int rows = 18; rows <= 36; rows++)
        linear_case(&r, WEIGHT_BF16, 32 * random_int(&r, 16, 70), random_int(&r, 8, 24), rows,
                    false);
}

/* Weights of a page and more an output, which are read in the order of memory while rows are few;
 * one block less is not. */
static void linear_long_outputs(void **state)
{
    (void)state;
    struct random r = {19};
    for (int rows = 1; rows <= 9; rows++)
        for (int i = 0; i < 4; i++)
            linear_case(&r, WEIGHT_BF16, 2016 + 32 * i, random_int(&r, 1, 21), rows, i == 3);
}

/* All inputs one NaN or infinity must show, none may be lost in padding. */
static void linear_keeps_nan(void **state)
{
    (void)state;
    struct random r = {13};
    for (int round = 0; round < 60; round++) {
        const enum weight_format format = round % 2 ? WEIGHT_NVFP4 : WEIGHT_BF16;
        const int in = 16 * random_int(&r, 1, 9), out = 9;
        struct layer l = layer_new(&r, format, out, in, false);
        float x[160], y[9];
        for (int i = 0; i < in; i++)
            x[i] = to_bf16(random_float(&r));
        x[random_int(&r, 0, in - 1)] = NAN;
        for (int k = 0; k < have_count; k++)
            for (int m = 0; m < 2; m++) {
                const void *row;
                uint8_t *prepared = prepare_rows(have[k], modes[m], x, 1, in, &row);
                const struct linear_call call = {
                    .w = &l.w, .x = &row, .rows = 1, .count = out, .y = y, .y_stride = 9};
                have[k]->linear(modes[m], &call);
                for (int o = 0; o < out; o++)
                    assert_true(isnan(y[o]));
                free(prepared);
            }
        layer_free(&l);
    }
}

static uint8_t hex_digit(char c)
{
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static uint32_t hex_word(const char *p, int digits)
{
    uint32_t u = 0;
    for (int i = 0; i < digits; i++)
        u = u << 4 | hex_digit(p[i]);
    return u;
}

/* The oracle's dot products: inputs, weights and the float32 sum, as bits. */
static void linear_equals_the_oracle(void **state)
{
    (void)state;
    json_error_t where;
    json_t *all = json_load_file("tests/vectors/elementary.json", 0, &where);
    assert_non_null(all);
    static const char *const lists[] = {"dot", "dot_nvfp4"};
    for (int f = 0; f < 2; f++) {
        const json_t *list = json_object_get(all, lists[f]);
        assert_true(json_array_size(list) >= 10);
        for (size_t i = 0; i < json_array_size(list); i++) {
            const json_t *item = json_array_get(list, i);
            const char *xs = json_string_value(json_object_get(item, "x"));
            const char *ws = json_string_value(json_object_get(item, f ? "codes" : "w"));
            const int n = (int)strlen(xs) / 4;
            float *x = malloc((size_t)n * sizeof *x);
            uint8_t *data = calloc((size_t)n, 2), *scales = calloc((size_t)n, 1);
            for (int j = 0; j < n; j++) {
                x[j] = bits_float(hex_word(xs + 4 * j, 4) << 16);
                if (f) {
                    data[j / 2] |= (uint8_t)(hex_digit(ws[j]) << (4 * (j % 2)));
                } else {
                    const uint16_t b = (uint16_t)hex_word(ws + 4 * j, 4);
                    memcpy(data + 2 * j, &b, 2);
                }
            }
            const char *ss = f ? json_string_value(json_object_get(item, "scales")) : "";
            for (size_t j = 0; j + 1 < strlen(ss); j += 2)
                scales[j / 2] = (uint8_t)hex_word(ss + j, 2);
            const uint32_t sum = hex_word(json_string_value(json_object_get(item, "sum")), 8);
            const struct weight_matrix w = {.format = f ? WEIGHT_NVFP4 : WEIGHT_BF16,
                                            .out = 1,
                                            .in = n,
                                            .data = data,
                                            .scales = scales};
            for (int k = 0; k < have_count; k++)
                for (int m = 0; m < 2; m++) {
                    const void *row;
                    uint8_t *prepared = prepare_rows(have[k], modes[m], x, 1, n, &row);
                    float y;
                    const struct linear_call call = {
                        .w = &w, .x = &row, .rows = 1, .count = 1, .y = &y, .y_stride = 1};
                    have[k]->linear(modes[m], &call);
                    const float expected = m == 0 ? to_bf16(bits_float(sum)) : bits_float(sum);
                    if (!same_float(y, expected))
                        fail_msg("%s %s %d mode %d: 0x%08x, expected 0x%08x", have[k]->name,
                                 lists[f], (int)i, m, float_bits(y), float_bits(expected));
                    free(prepared);
                }
            free(x);
            free(data);
            free(scales);
        }
    }
    json_decref(all);
}

#if defined(__x86_64__)

#include <immintrin.h>

/* Millions of lanes of any bits: the instruction is fma(even, even, fma(odd, odd, acc)). */
__attribute__((target("avx512f,avx512bf16,fma"))) static long count_pair_mismatches(long rounds)
{
    struct random r = {99};
    long bad = 0;
    for (long i = 0; i < rounds; i++) {
        uint32_t w[16], x[16];
        float acc[16], got[16];
        for (int l = 0; l < 16; l++) {
            const uint64_t u = random_next(&r), v = random_next(&r);
            w[l] = (uint32_t)u;
            x[l] = (uint32_t)(u >> 32);
            acc[l] = bits_float((uint32_t)v);
            if (i % 2) { /* exponents near each other, so that roundings matter */
                w[l] = (w[l] & 0x83ff83ffu) | 0x3c003c00u;
                x[l] = (x[l] & 0x83ff83ffu) | 0x3c003c00u;
                acc[l] = bits_float(((uint32_t)v & 0x83ffffffu) | 0x3c000000u);
            }
            if (i % 16 == 2) { /* products and sums about the smallest normal, zeros */
                w[l] = (w[l] & 0x83ff83ffu) | 0x20002000u;
                x[l] = (x[l] & 0x83ff83ffu) | 0x1c001c00u;
                acc[l] = bits_float((uint32_t)v & 0x81ffffffu);
            }
        }
        _mm512_storeu_ps(got,
                         _mm512_dpbf16_ps(_mm512_loadu_ps(acc), (__m512bh)_mm512_loadu_si512(w),
                                          (__m512bh)_mm512_loadu_si512(x)));
        for (int l = 0; l < 16; l++) {
            const float we = bits_float(w[l] << 16), wo = bits_float(w[l] & 0xffff0000u);
            const float xe = bits_float(x[l] << 16), xo = bits_float(x[l] & 0xffff0000u);
            bad += !same_float(got[l], fmaf(we, xe, fmaf(wo, xo, acc[l])));
        }
    }
    return bad;
}

static void pair_instruction(void **state)
{
    (void)state;
    if (have[have_count - 1] != &cpu_kernels_avx512) {
        print_message("this machine has no VDPBF16PS: skipped\n");
        skip();
    }
    assert_int_equal(count_pair_mismatches(300000), 0); /* 4.8 million lanes */
}

#endif

/* ---- Rows and elements ---- */

static void elements_any_length(void **state)
{
    (void)state;
    enum { N = 600 };
    struct random r = {21};
    for (int round = 0; round < 400; round++) {
        const enum activations a = modes[round % 2];
        const int n = random_int(&r, 1, round % 4 ? 70 : N);
        float x[N], y[N], expected[4][N], got[N];
        uint16_t weight[N];
        const bool wild = random_int(&r, 0, 1);
        for (int i = 0; i < N; i++) {
            x[i] = random_value(&r, wild) * 3.0f;
            y[i] = random_value(&r, wild);
            if (a == ACTIVATIONS_BF16) {
                x[i] = to_bf16(x[i]);
                y[i] = to_bf16(y[i]);
            }
            weight[i] = f32_to_bf16(random_value(&r, false));
        }
        uint8_t *odd = random_bytes_new((size_t)n * 2, 1);
        memcpy(odd, weight, (size_t)n * 2);
        const float factor = to_bf16(random_float(&r) * 2.0f);
        for (int k = 0; k < have_count; k++) {
            const struct cpu_kernels *t = have[k];
            for (int f = 0; f < 6; f++) {
                memcpy(got, x, sizeof got);
                if (f == 0)
                    t->rms_norm(a, x, (const uint16_t *)(const void *)odd, n, 1e-6f, got);
                else if (f == 1)
                    t->silu_up(a, x, y, n, got);
                else if (f == 2)
                    t->scale(a, y, factor, n, got);
                else if (f == 3)
                    t->accumulate(a, y, factor, n, got);
                else if (f == 4)
                    t->add(a, y, n, got);
                else
                    t->softplus(a, x, n, got);
                float *kept = expected[f % 4];
                if (k == 0 && f < 4)
                    memcpy(kept, got, sizeof got);
                float reference[N];
                memcpy(reference, x, sizeof reference);
                if (f >= 4) {
                    if (f == 4)
                        have[0]->add(a, y, n, reference);
                    else
                        have[0]->softplus(a, x, n, reference);
                    kept = reference;
                }
                if (!same_floats(got, kept, N))
                    fail_msg("%s: function %d mode %d length %d", t->name, f, (int)a, n);
            }
            /* in place, as the backend does */
            memcpy(got, x, sizeof got);
            t->rms_norm(a, got, (const uint16_t *)(const void *)odd, n, 1e-6f, got);
            assert_true(same_floats(got, expected[0], N));
            memcpy(got, x, sizeof got);
            t->silu_up(a, got, y, n, got);
            assert_true(same_floats(got, expected[1], N));
        }
        random_bytes_free(odd, 1);
    }
}

static void rope_any_width(void **state)
{
    (void)state;
    enum { MOST = 200, POSITIONS = 5 };
    struct random r = {22};
    for (int round = 0; round < 200; round++) {
        const enum activations a = modes[round % 2];
        const int dim = 2 * random_int(&r, 1, MOST / 2);
        float cosine[POSITIONS * MOST / 2], sine[POSITIONS * MOST / 2], x[MOST + 8];
        float expected[MOST + 8], got[MOST + 8];
        for (int i = 0; i < POSITIONS * dim / 2; i++) {
            cosine[i] = cosf((float)i * 0.37f);
            sine[i] = sinf((float)i * 0.37f);
        }
        for (int i = 0; i < MOST + 8; i++)
            x[i] = to_bf16(random_value(&r, false));
        const struct rope_table table = {.dim = dim,
                                         .positions = POSITIONS,
                                         .cosine = cosine,
                                         .sine = sine,
                                         .input_scale = round % 3 ? 1.0f : 1.3465735902f};
        for (int k = 0; k < have_count; k++) {
            memcpy(got, x, sizeof got);
            have[k]->rope(a, &table, round % POSITIONS, got);
            if (k == 0)
                memcpy(expected, got, sizeof got);
            assert_true(same_floats(got, expected, MOST + 8));
            for (int i = dim; i < MOST + 8; i++) /* what does not rotate is left alone */
                assert_true(same_float(got[i], x[i]));
        }
    }
}

/* ---- Attention ---- */

struct ring {
    uint8_t *keys, *values;
    int64_t capacity;
};

/* Writes positions first..last of plain keys and values [position, dim]. */
static struct ring ring_new(const struct cpu_kernels *k, enum activations a, const float *keys,
                            const float *values, int dim, int64_t capacity, int64_t first,
                            int64_t last)
{
    const size_t key_bytes = kernel_key_bytes(a, dim), value_bytes = kernel_value_bytes(a, dim);
    struct ring ring = {.capacity = capacity};
    ring.keys = aligned_new(key_bytes * (size_t)capacity);
    ring.values = aligned_new(value_bytes * (size_t)capacity);
    for (int64_t p = first; p <= last; p++) {
        const size_t slot = (size_t)(p % capacity), at = (size_t)p * (size_t)dim;
        kernel_key_store(k, a, keys + at, dim, ring.keys + slot * key_bytes);
        kernel_value_store(a, values + at, dim, ring.values + slot * value_bytes);
    }
    return ring;
}

static void run_attention(const struct cpu_kernels *k, enum activations a, const struct ring *ring,
                          const float *q, const float *gate, int heads, int dim, int64_t first,
                          int64_t last, float *out)
{
    const void *pointers[20];
    uint8_t *prepared = prepare_rows(k, a, q, heads, dim, pointers);
    float *scratch = aligned_new(kernel_attention_scratch(dim) * sizeof *scratch);
    const struct attention_call call = {.heads = heads,
                                        .head_dim = dim,
                                        .scale = (float)(1.0 / sqrt((double)dim)),
                                        .q = pointers,
                                        .gate = gate,
                                        .keys = ring->keys,
                                        .values = ring->values,
                                        .capacity = ring->capacity,
                                        .first = first,
                                        .last = last,
                                        .out = out,
                                        .scratch = scratch};
    k->attention(a, &call);
    free(scratch);
    free(prepared);
}

static void attention_any_shape(void **state)
{
    (void)state;
    struct random r = {31};
    static const int dims[] = {16, 32, 48, 64, 80, 128, 20};
    for (int round = 0; round < 150; round++) {
        const enum activations a = modes[round % 3 == 0];
        const int dim = dims[random_int(&r, 0, 6)], heads = random_int(&r, 1, 17);
        const int64_t last = random_int(&r, 0, 799);
        const int64_t seen = random_int(&r, 1, round % 2 ? (int)last + 1 : 1 + (int)last / 8);
        const int64_t capacity = seen + random_int(&r, 0, 40), first = last - seen + 1;
        const size_t n = (size_t)(last + 1) * (size_t)dim;
        float *keys = malloc(n * sizeof *keys), *values = malloc(n * sizeof *values);
        float q[17 * 128], gate[17], expected[17 * 128], got[17 * 128];
        for (size_t i = 0; i < n; i++) {
            keys[i] = to_bf16(random_value(&r, false));
            values[i] = to_bf16(random_value(&r, false));
        }
        for (int i = 0; i < heads * dim; i++)
            q[i] = to_bf16(random_float(&r) * 4.0f);
        for (int i = 0; i < heads; i++)
            gate[i] = to_bf16(random_float(&r));
        for (int k = 0; k < have_count; k++) {
            struct ring ring = ring_new(have[k], a, keys, values, dim, capacity, first, last);
            if (k == 0) { /* one head at a time */
                for (int h = 0; h < heads; h++)
                    run_attention(have[0], a, &ring, q + h * dim, gate + h, 1, dim, first, last,
                                  expected + h * dim);
            } else {
                run_attention(have[k], a, &ring, q, gate, heads, dim, first, last, got);
                if (!same_floats(got, expected, (size_t)(heads * dim)))
                    fail_msg("%s: mode %d dim %d heads %d first %d last %d capacity %d",
                             have[k]->name, (int)a, dim, heads, (int)first, (int)last,
                             (int)capacity);
            }
            free(ring.keys);
            free(ring.values);
        }
        free(keys);
        free(values);
    }
}

/* The chunked sum against the plain formula in double precision. */
static void attention_is_softmax(void **state)
{
    (void)state;
    enum { DIM = 32, COUNT = 700 };
    struct random r = {32};
    float keys[COUNT * DIM], values[COUNT * DIM], q[DIM], out[DIM];
    const float gate = 1.0f;
    for (int i = 0; i < COUNT * DIM; i++) {
        keys[i] = to_bf16(random_float(&r) * 2.0f);
        values[i] = to_bf16(random_float(&r));
    }
    for (int i = 0; i < DIM; i++)
        q[i] = to_bf16(random_float(&r) * 3.0f);
    double total = 0, mean[DIM] = {0};
    for (int p = 100; p < COUNT; p++) {
        double s = 0;
        for (int d = 0; d < DIM; d++)
            s += (double)q[d] * (double)keys[p * DIM + d];
        const double e = exp(s / sqrt(DIM));
        total += e;
        for (int d = 0; d < DIM; d++)
            mean[d] += e * (double)values[p * DIM + d];
    }
    for (int k = 0; k < have_count; k++) {
        struct ring ring =
            ring_new(have[k], ACTIVATIONS_F32, keys, values, DIM, 620, 100, COUNT - 1);
        run_attention(have[k], ACTIVATIONS_F32, &ring, q, &gate, 1, DIM, 100, COUNT - 1, out);
        for (int d = 0; d < DIM; d++)
            assert_true(fabs((double)out[d] - mean[d] / total) < 1e-6);
        free(ring.keys);
        free(ring.values);
    }
}

/* ---- Worked by hand ---- */

static void norm_by_hand(void **state)
{
    (void)state;
    /* mean square 4, so inv is 0.5 and every value becomes 1, times its weight */
    float x[20], y[20];
    uint16_t w[20];
    for (int i = 0; i < 20; i++) {
        x[i] = i % 2 ? 2.0f : -2.0f;
        w[i] = f32_to_bf16((float)(i + 1) * 0.25f);
    }
    for (int k = 0; k < have_count; k++) {
        have[k]->rms_norm(ACTIVATIONS_BF16, x, w, 20, 0.0f, y);
        for (int i = 0; i < 20; i++)
            assert_true(y[i] == (i % 2 ? 1.0f : -1.0f) * (float)(i + 1) * 0.25f);
        /* Two roundings: 1 / sqrt(2.5) = 161.909 / 256 is first rounded to 162 / 256, and 162 *
         * 145/128 = 183.5+ goes up, where 161.909 * 145/128 = 183.4 would go down. */
        float pair[2] = {1.0f, 2.0f};
        const uint16_t weight[2] = {f32_to_bf16(1.1328125f), f32_to_bf16(1.1328125f)};
        have[k]->rms_norm(ACTIVATIONS_BF16, pair, weight, 2, 0.0f, pair);
        assert_true(pair[0] == 184.0f / 256.0f && pair[1] == 184.0f / 128.0f);
        /* eps alone: x is zero, the result is zero and not NaN */
        float zero[3] = {0, 0, 0};
        have[k]->rms_norm(ACTIVATIONS_BF16, zero, w, 3, 1e-6f, zero);
        assert_true(zero[0] == 0.0f && zero[1] == 0.0f && zero[2] == 0.0f);
        float nan[3] = {1, NAN, 2};
        have[k]->rms_norm(ACTIVATIONS_F32, nan, w, 3, 1e-6f, nan);
        assert_true(isnan(nan[0]) && isnan(nan[1]) && isnan(nan[2]));
    }
}

static void rope_by_hand(void **state)
{
    (void)state;
    /* position 1 turns by a right angle: (x1, x2) -> (-x2, x1); pairs are (0, 2), (1, 3) */
    const float cosine[4] = {1, 1, 0, 0}, sine[4] = {0, 0, 1, 1};
    struct rope_table table = {
        .dim = 4, .positions = 2, .cosine = cosine, .sine = sine, .input_scale = 1.0f};
    for (int k = 0; k < have_count; k++) {
        float x[6] = {1, 2, 3, 4, 5, 6};
        have[k]->rope(ACTIVATIONS_BF16, &table, 0, x);
        const float same[6] = {1, 2, 3, 4, 5, 6};
        assert_memory_equal(x, same, sizeof x);
        have[k]->rope(ACTIVATIONS_BF16, &table, 1, x);
        const float turned[6] = {-3, -4, 1, 2, 5, 6};
        assert_memory_equal(x, turned, sizeof x);
        /* the derived YaRN magnitude: 1.3465735903 rounds to 1.34375 in bf16 */
        table.input_scale = 1.3465735903f;
        float y[6] = {1, 1, 1, 1, 1, 1};
        have[k]->rope(ACTIVATIONS_BF16, &table, 0, y);
        const float scaled[6] = {1.34375f, 1.34375f, 1.34375f, 1.34375f, 1, 1};
        assert_memory_equal(y, scaled, sizeof y);
        table.input_scale = 1.0f;
    }
}

static void attention_by_hand(void **state)
{
    (void)state;
    enum { DIM = 16 };
    float keys[300 * DIM] = {0}, values[300 * DIM], q[DIM], out[DIM];
    for (int p = 0; p < 300; p++)
        for (int d = 0; d < DIM; d++)
            values[p * DIM + d] = (float)(p % 4) + (float)d * 0.5f;
    for (int d = 0; d < DIM; d++)
        q[d] = 1.0f;
    const float gate = 0.5f;
    for (int k = 0; k < have_count; k++)
        for (int m = 0; m < 2; m++) {
            struct ring ring = ring_new(have[k], modes[m], keys, values, DIM, 300, 0, 299);
            /* one key: its value, whatever the score; halved by the gate */
            run_attention(have[k], modes[m], &ring, q, &gate, 1, DIM, 3, 3, out);
            for (int d = 0; d < DIM; d++)
                assert_true(out[d] == (3.0f + (float)d * 0.5f) * 0.5f);
            /* equal scores: the mean, here of 0 1 2 3, on both sides of a chunk's end too */
            run_attention(have[k], modes[m], &ring, q, &gate, 1, DIM, 4, 7, out);
            for (int d = 0; d < DIM; d++)
                assert_true(out[d] == (1.5f + (float)d * 0.5f) * 0.5f);
            run_attention(have[k], modes[m], &ring, q, &gate, 1, DIM, 254, 257, out);
            for (int d = 0; d < DIM; d++)
                assert_true(out[d] == (1.5f + (float)d * 0.5f) * 0.5f);
            free(ring.keys);
            free(ring.values);
        }
}

static void silu_by_hand(void **state)
{
    (void)state;
    const float gate[4] = {0.0f, 40.0f, -200.0f, 1.0f}, up[4] = {3.0f, 2.0f, 5.0f, 1.0f};
    for (int k = 0; k < have_count; k++) {
        float out[4];
        have[k]->silu_up(ACTIVATIONS_BF16, gate, up, 4, out);
        assert_true(out[0] == 0.0f);        /* 0 * 0.5 * 3 */
        assert_true(out[1] == 80.0f);       /* the sigmoid of 40 is 1 */
        assert_true(out[2] == 0.0f);        /* and of -200 is 0 */
        assert_true(out[3] == 0.73046875f); /* sigmoid(1) = 0.731058.. to the nearest bf16 */
        float soft[4];
        have[k]->softplus(ACTIVATIONS_BF16, gate, 4, soft);
        assert_true(soft[0] == 0.69140625f); /* ln 2 = 0.693147.. to the nearest bf16 */
        assert_true(soft[1] == 40.0f && soft[2] == 0.0f && soft[3] == 1.3125f);
    }
}

/* ---- Picks ---- */

/* The rule once more, in another way: the best id, then the best of the others. */
static struct head_pick picked_by_hand(const float *logits, int n)
{
    struct head_pick p = {{-1, -1}, {-INFINITY, -INFINITY}};
    for (int place = 0; place < 2; place++)
        for (int i = n - 1; i >= 0; i--)
            if (!isnan(logits[i]) && !(place == 1 && i == p.token[0]) &&
                (p.token[place] < 0 || logits[i] >= p.logit[place])) {
                p.token[place] = i;
                p.logit[place] = logits[i];
            }
    return p;
}

static void picks_any_length(void **state)
{
    (void)state;
    struct random r = {91};
    enum { MOST = 200 };
    float logits[MOST];
    for (int n = 3000; n > 0; n--) {
        const int length = random_int(&r, 1, MOST), kind = random_int(&r, 0, 5);
        for (int i = 0; i < length; i++) {
            /* few values, so that there are ties; ascending and descending runs; NaN, infinities */
            logits[i] = kind == 1 ? (float)i : kind == 2 ? (float)-i : (float)random_int(&r, -3, 3);
            const int odd = kind > 2 ? random_int(&r, 0, kind == 5 ? 1 : 20) : 9;
            if (odd == 0)
                logits[i] = random_int(&r, 0, 1) ? NAN : -NAN;
            else if (kind == 4 && odd < 3)
                logits[i] = odd == 1 ? INFINITY : -INFINITY;
        }
        const struct head_pick want = picked_by_hand(logits, length);
        for (int i = 0; i < have_count; i++) {
            struct head_pick got = {{-1, -1}, {-INFINITY, -INFINITY}};
            for (int at = 0, piece; at < length; at += piece) {
                piece = random_int(&r, 1, length - at);
                have[i]->pick(logits + at, at, piece, &got);
            }
            assert_int_equal(got.token[0], want.token[0]);
            assert_int_equal(got.token[1], want.token[1]);
            assert_true(got.logit[0] == want.logit[0] && got.logit[1] == want.logit[1]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_any_shape),
        cmocka_unit_test(linear_every_row_count),
        cmocka_unit_test(linear_many_rows),
        cmocka_unit_test(linear_long_outputs),
        cmocka_unit_test(linear_keeps_nan),
        cmocka_unit_test(linear_equals_the_oracle),
#if defined(__x86_64__)
        cmocka_unit_test(pair_instruction),
#endif
        cmocka_unit_test(elements_any_length),
        cmocka_unit_test(rope_any_width),
        cmocka_unit_test(attention_any_shape),
        cmocka_unit_test(attention_is_softmax),
        cmocka_unit_test(norm_by_hand),
        cmocka_unit_test(rope_by_hand),
        cmocka_unit_test(attention_by_hand),
        cmocka_unit_test(silu_by_hand),
        cmocka_unit_test(picks_any_length),
    };
    return cmocka_run_group_tests_name("kernels", tests, set_up, tear_down);
}
