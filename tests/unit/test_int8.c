/* Affine INT8 weights: the quantiser and the dot products against an independent implementation
 * (tests/vectors/affine.json), the kernels against double precision, and the same bits for any
 * rows, cut and instruction set. */
#include "base/json.h"
#include "compute_random.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static const char VECTORS[] = "tests/vectors/affine.json";
static const enum activations modes[] = {ACTIVATIONS_BF16, ACTIVATIONS_F32};

static const struct cpu_kernels *have[KERNELS_MAX];
static int have_count;
static uint64_t outer_mode;

static int setup(void **state)
{
    (void)state;
    have_count = kernels_available(have);
    outer_mode = machine_float_enter();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    machine_float_leave(outer_mode);
    return 0;
}

/* ---- the quantiser ---- */

static uint32_t word(const char *hex, size_t at, int digits)
{
    uint32_t u = 0;
    for (int i = 0; i < digits; i++) {
        const char c = hex[at * (size_t)digits + (size_t)i];
        u = u << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return u;
}

static json_t *vectors(const char *list, json_t **all)
{
    json_error_t where;
    *all = json_load_file(VECTORS, 0, &where);
    assert_non_null(*all);
    json_t *items = json_object_get(*all, list);
    assert_true(json_array_size(items) >= 10);
    return items;
}

static const char *text_of(const json_t *item, const char *key)
{
    const char *text = json_string_value(json_object_get(item, key));
    assert_non_null(text);
    return text;
}

static void quantiser_equals_the_vectors(void **state)
{
    (void)state;
    json_t *all, *list = vectors("groups", &all);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        float x[AFFINE_GROUP], back[AFFINE_GROUP];
        uint8_t codes[AFFINE_GROUP];
        uint16_t scale, bias;
        for (size_t k = 0; k < AFFINE_GROUP; k++)
            x[k] = bits_float(word(text_of(item, "x"), k, 4) << 16);
        assert_true(affine_quantize(x, AFFINE_GROUP, codes, &scale, &bias));
        assert_int_equal(scale, word(text_of(item, "scale"), 0, 4));
        assert_int_equal(bias, word(text_of(item, "bias"), 0, 4));
        affine_dequantize(codes, &scale, &bias, AFFINE_GROUP, back);
        for (size_t k = 0; k < AFFINE_GROUP; k++) {
            assert_int_equal(codes[k], word(text_of(item, "codes"), k, 2));
            const float step = fabsf(bf16_to_f32(scale));
            /* Half a step; half a step of the farthest code where the scale is rounded to bf16; one
             * where the scale was bent and the farthest code clipped. */
            assert_true(fabsf(back[k] - x[k]) <= 2 * step);
        }
    }
    json_decref(all);
}

static void quantiser_refuses_what_is_not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    uint8_t codes[2 * AFFINE_GROUP];
    uint16_t scales[2], biases[2];
    for (int i = 0; i < 3; i++) {
        float x[2 * AFFINE_GROUP] = {1, -1};
        x[40] = bad[i];
        assert_false(affine_quantize(x, 2 * AFFINE_GROUP, codes, scales, biases));
    }
    float wide[AFFINE_GROUP] = {3e38f, -3e38f};
    assert_false(affine_quantize(wide, AFFINE_GROUP, codes, scales, biases));
}

/* ---- the kernels ---- */

struct layer {
    struct weight_matrix w;
    uint8_t *data, *scales, *biases;
    size_t offset;
};

static uint8_t *bytes_new(size_t n, size_t offset)
{
    uint8_t *p = malloc(n + offset);
    assert_non_null(p);
    return p + offset;
}

static struct layer layer_new(struct random *r, int out, int in)
{
    struct layer l = {.offset = (size_t)random_int(r, 0, 3)};
    const size_t n = (size_t)out * (size_t)in, groups = n / AFFINE_GROUP;
    l.data = bytes_new(n, l.offset);
    l.scales = bytes_new(2 * groups, l.offset);
    l.biases = bytes_new(2 * groups, l.offset);
    for (size_t i = 0; i < n; i++)
        l.data[i] = (uint8_t)random_next(r);
    for (size_t i = 0; i < groups; i++) {
        const uint16_t scale = f32_to_bf16(random_float(r) / 256),
                       bias = f32_to_bf16(random_float(r));
        memcpy(l.scales + 2 * i, &scale, 2);
        memcpy(l.biases + 2 * i, &bias, 2);
    }
    l.w = (struct weight_matrix){.format = WEIGHT_INT8_AFFINE32,
                                 .out = out,
                                 .in = in,
                                 .data = l.data,
                                 .scales = l.scales,
                                 .biases = l.biases};
    return l;
}

static void layer_free(struct layer *l)
{
    free(l->data - l->offset);
    free(l->scales - l->offset);
    free(l->biases - l->offset);
}

static uint8_t *prepare_rows(const struct cpu_kernels *k, enum activations a, const float *x,
                             int rows, int in, const void **pointers)
{
    const size_t bytes =
        (size_t)kernel_pad(in, KERNEL_BLOCK) * (size_t)k->prepared_bytes[a] + kernel_sums_bytes(in);
    const size_t stride = (bytes + 63) / 64 * 64;
    uint8_t *all = aligned_alloc(64, stride * (size_t)rows);
    assert_non_null(all);
    for (int i = 0; i < rows; i++) {
        pointers[i] = all + (size_t)i * stride;
        k->prepare(a, x + (size_t)i * (size_t)in, in, all + (size_t)i * stride);
        k->group_sums(a, in, all + (size_t)i * stride);
    }
    return all;
}

static double reference(const struct weight_matrix *w, int o, const float *x, double *size)
{
    double sum = 0;
    *size = 0;
    for (int i = 0; i < w->in; i++) {
        const size_t at = (size_t)o * (size_t)w->in + (size_t)i, g = at / AFFINE_GROUP;
        uint16_t scale, bias;
        memcpy(&scale, w->scales + 2 * g, 2);
        memcpy(&bias, w->biases + 2 * g, 2);
        const double product = (double)bf16_to_f32(scale) * ((const uint8_t *)w->data)[at];
        sum += (product + (double)bf16_to_f32(bias)) * (double)x[i];
        *size += (fabs(product) + fabs((double)bf16_to_f32(bias))) * fabs((double)x[i]);
    }
    return sum;
}

/* Portable, a row at a time, is near the double sum; all others have its bits. */
static void one_case(struct random *r, int in, int out, int rows)
{
    const enum activations a = modes[random_int(r, 0, 1)];
    const bool add = random_int(r, 0, 3) == 0;
    struct layer l = layer_new(r, out, in);
    const size_t stride = (size_t)out + 3, cells = stride * (size_t)rows;
    float *x = malloc((size_t)rows * (size_t)in * sizeof *x);
    float *before = malloc(cells * sizeof *before), *expected = malloc(cells * sizeof *expected);
    float *got = malloc(cells * sizeof *got);
    const void **pointers = malloc((size_t)rows * sizeof *pointers);
    for (int i = 0; i < rows * in; i++) {
        x[i] = random_value(r, false);
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
        for (int o = 0; !add && o < out; o++) {
            double size;
            const double sum = reference(&l.w, o, x + (size_t)i * (size_t)in, &size);
            const double allowed = 1e-6 * size + (a == ACTIVATIONS_BF16 ? fabs(sum) / 256 : 0);
            assert_true(fabs((double)call.y[o] - sum) <= allowed);
        }
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
            have[k]->linear(a, &call);
        }
        for (size_t i = 0; i < cells; i++)
            if (!same_float(got[i], expected[i]))
                fail_msg("%s: mode %d in %d out %d rows %d add %d", have[k]->name, (int)a, in, out,
                         rows, add);
        free(prepared);
    }
    layer_free(&l);
    free(x);
    free(before);
    free(expected);
    free(got);
    free(pointers);
}

static void same_bits_for_any_shape(void **state)
{
    (void)state;
    struct random r = {31};
    for (int round = 0; round < 120; round++) {
        const int rows = random_int(&r, 1, 17);
        const int in = AFFINE_GROUP * random_int(&r, 1, rows < 4 ? 66 : 20);
        one_case(&r, in, random_int(&r, 1, 37), rows);
    }
}

static void same_bits_for_every_row_count(void **state)
{
    (void)state;
    struct random r = {32};
    for (int rows = 1; rows <= 17; rows++)
        one_case(&r, AFFINE_GROUP * random_int(&r, 1, 20), 16 + random_int(&r, 0, 9), rows);
    static const int many[] = {33, 64, 512};
    for (int i = 0; i < 3; i++)
        one_case(&r, 96, i == 2 ? 9 : 23, many[i]);
}

static void dots_equal_the_vectors(void **state)
{
    (void)state;
    json_t *all, *list = vectors("dot", &all);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const size_t n = strlen(text_of(item, "x")) / 4, groups = n / AFFINE_GROUP;
        float *x = malloc(n * sizeof *x);
        uint8_t *codes = malloc(n);
        uint16_t *scales = malloc(2 * groups), *biases = malloc(2 * groups);
        for (size_t k = 0; k < n; k++) {
            x[k] = bits_float(word(text_of(item, "x"), k, 4) << 16);
            codes[k] = (uint8_t)word(text_of(item, "codes"), k, 2);
        }
        for (size_t g = 0; g < groups; g++) {
            scales[g] = (uint16_t)word(text_of(item, "scales"), g, 4);
            biases[g] = (uint16_t)word(text_of(item, "biases"), g, 4);
        }
        const float sum = bits_float(word(text_of(item, "sum"), 0, 8));
        const struct weight_matrix w = {.format = WEIGHT_INT8_AFFINE32,
                                        .out = 1,
                                        .in = (int)n,
                                        .data = codes,
                                        .scales = (const uint8_t *)scales,
                                        .biases = (const uint8_t *)biases};
        for (int k = 0; k < have_count; k++)
            for (int m = 0; m < 2; m++) {
                const void *row;
                uint8_t *prepared = prepare_rows(have[k], modes[m], x, 1, (int)n, &row);
                float y;
                const struct linear_call call = {
                    .w = &w, .x = &row, .rows = 1, .count = 1, .y = &y, .y_stride = 1};
                have[k]->linear(modes[m], &call);
                const float wanted = m == 0 ? to_bf16(sum) : sum;
                if (!same_float(y, wanted))
                    fail_msg("%s case %zu mode %d: 0x%08x, expected 0x%08x", have[k]->name, i, m,
                             float_bits(y), float_bits(wanted));
                free(prepared);
            }
        free(x);
        free(codes);
        free(scales);
        free(biases);
    }
    json_decref(all);
}

/* One NaN among the inputs reaches every output. */
static void nan_is_kept(void **state)
{
    (void)state;
    struct random r = {33};
    for (int round = 0; round < 20; round++) {
        const int in = AFFINE_GROUP * random_int(&r, 1, 9), out = 9;
        struct layer l = layer_new(&r, out, in);
        float x[288], y[9];
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiser_equals_the_vectors),
        cmocka_unit_test(quantiser_refuses_what_is_not_finite),
        cmocka_unit_test(same_bits_for_any_shape),
        cmocka_unit_test(same_bits_for_every_row_count),
        cmocka_unit_test(dots_equal_the_vectors),
        cmocka_unit_test(nan_is_kept),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
