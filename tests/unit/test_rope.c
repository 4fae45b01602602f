/* Rotary tables: the check values of laguna.md 5.3, the vectors of tools/oracle, our sines against
 * long double on a grid, the two magnitudes. */
#include "base/json.h"
#include "base/sha256.h"
#include "engine/model/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct rope_parameters full = {.dim = 64,
                                            .theta = 500000,
                                            .yarn = true,
                                            .factor = 32,
                                            .original_positions = 8192,
                                            .beta_fast = 64,
                                            .beta_slow = 1,
                                            .has_attention_factor = true,
                                            .attention_factor = 1};
static const struct rope_parameters sliding = {.dim = 128, .theta = 10000};

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static void check_values_of_the_spec(void **state)
{
    (void)state;
    static const struct {
        int i;
        double value;
    } expected[] = {{0, 1},
                    {7, 0.0566696214},
                    {8, 0.0342941362},
                    {12, 0.00408140612},
                    {17, 0.000111976996},
                    {18, 1.94616382e-05},
                    {31, 9.41830673e-08}};
    double f[32];
    rope_inverse_frequencies(&full, f);
    for (size_t k = 0; k < sizeof expected / sizeof *expected; k++)
        assert_true(fabs(f[expected[k].i] / expected[k].value - 1) < 1e-8);
}

/* Equal limits of the ramp: its width is then 0.001, a step. */
static void a_ramp_without_width_is_a_step(void **state)
{
    (void)state;
    struct rope_parameters p = full;
    p.dim = 8;
    p.theta = 1e30; /* all correction dimensions fall together */
    p.beta_fast = p.beta_slow = 1;
    p.original_positions = 2 * M_PI * 1e30; /* exactly dimension dim/2 */
    double f[4];
    rope_inverse_frequencies(&p, f);
    for (int i = 0; i < 4; i++) {
        double base = pow(p.theta, -2.0 * i / p.dim);
        assert_true(isfinite(f[i]));
        assert_true(f[i] == base || f[i] == base / p.factor);
    }
}

static void sines_equal_long_double(void **state)
{
    (void)state;
    uint64_t seed = 12345;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        /* float32 values of every size from 2^-20 to 2^18 */
        float x = ldexpf((float)(seed >> 40) / 16777216.0f, i % 39 - 20);
        double s, c;
        rope_sincos(x, &s, &c);
        double es = (double)fabsl(s - sinl(x)), ec = (double)fabsl(c - cosl(x));
        worst = fmax(worst, fmax(es, ec));
        assert_true((float)s == (float)sinl(x) && (float)c == (float)cosl(x));
    }
    assert_true(worst < 1.2e-16);
    for (int k = 1; k < 160000; k += 7) { /* where the reduction cancels most */
        float x = (float)(k * M_PI_2);
        double s, c;
        rope_sincos(x, &s, &c);
        assert_true((float)s == (float)sinl(x) && (float)c == (float)cosl(x));
    }
    double s, c;
    rope_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
}

static uint32_t hex_bits(const json_t *value)
{
    return (uint32_t)strtoul(json_string_value(value), NULL, 16);
}

static void compare_with_vectors(const json_t *part, const struct rope_parameters *p)
{
    struct arena arena = {0};
    int half = p->dim / 2;
    double f[64];
    rope_inverse_frequencies(p, f);
    const json_t *frequencies = json_object_get(part, "inv_freq");
    assert_int_equal(json_array_size(frequencies), half);
    for (int i = 0; i < half; i++)
        assert_int_equal(bits_of((float)f[i]), hex_bits(json_array_get(frequencies, (size_t)i)));

    struct rope_table t = rope_table_new(&arena, p, 262144, YARN_ATTENTION_FACTOR);
    assert_int_equal(t.dim, p->dim);
    assert_true(t.positions == 262144 && t.input_scale == 1);
    const json_t *samples = json_object_get(part, "samples"), *sample;
    size_t index;
    assert_true(json_array_size(samples) > 50);
    json_array_foreach(samples, index, sample)
    {
        size_t at = (size_t)json_integer_value(json_array_get(sample, 0)) * (size_t)half +
                    (size_t)json_integer_value(json_array_get(sample, 1));
        assert_int_equal(bits_of(t.cosine[at]), hex_bits(json_array_get(sample, 2)));
        assert_int_equal(bits_of(t.sine[at]), hex_bits(json_array_get(sample, 3)));
    }
    /* The pinned hashes are of little-endian tables of 4096 positions. */
    char hex[SHA256_HEX];
    size_t bytes = 4096 * (size_t)half * sizeof(float);
    sha256_hex(t.cosine, bytes, hex);
    assert_string_equal(hex, json_string_value(json_object_get(part, "cos_sha256")));
    sha256_hex(t.sine, bytes, hex);
    assert_string_equal(hex, json_string_value(json_object_get(part, "sin_sha256")));
    arena_free(&arena);
}

static void tables_equal_the_vectors(void **state)
{
    (void)state;
    struct error err;
    json_t *vectors = json_read_file("tests/vectors/rope.json", 1 << 22, 16, &err);
    assert_non_null(vectors);
    compare_with_vectors(json_object_get(vectors, "full_attention"), &full);
    compare_with_vectors(json_object_get(vectors, "sliding_attention"), &sliding);
    assert_int_equal(bits_of((float)rope_derived_magnitude(32)),
                     hex_bits(json_object_get(vectors, "derived")));
    json_decref(vectors);
}

/* The magnitude goes to the table or to the inputs, once. */
static void magnitude_is_applied_once(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct rope_parameters p = full;
    float derived = (float)rope_derived_magnitude(32);
    assert_true(fabs(derived - 1.3465735903) < 1e-7);

    struct rope_table plain = rope_table_new(&arena, &p, 40, YARN_ATTENTION_FACTOR);
    struct rope_table inputs = rope_table_new(&arena, &p, 40, YARN_DERIVED);
    p.has_attention_factor = false;
    struct rope_table absent = rope_table_new(&arena, &p, 40, YARN_ATTENTION_FACTOR);
    p.has_attention_factor = true;
    p.attention_factor = 0.75;
    struct rope_table scaled = rope_table_new(&arena, &p, 40, YARN_ATTENTION_FACTOR);
    struct rope_table ignored = rope_table_new(&arena, &p, 40, YARN_DERIVED);
    struct rope_table unscaled = rope_table_new(&arena, &sliding, 40, YARN_DERIVED);

    assert_true(plain.input_scale == 1 && absent.input_scale == 1 && scaled.input_scale == 1);
    assert_true(inputs.input_scale == derived && ignored.input_scale == derived);
    assert_true(unscaled.input_scale == 1 && unscaled.cosine[0] == 1);
    for (int i = 0; i < 40 * 32; i++) {
        assert_true(inputs.cosine[i] == plain.cosine[i] && ignored.sine[i] == plain.sine[i]);
        assert_true(absent.cosine[i] == plain.cosine[i] * derived);
        assert_true(scaled.sine[i] == plain.sine[i] * 0.75f);
    }
    assert_true(rope_derived_magnitude(1) == 1 && rope_derived_magnitude(0.5) == 1);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(check_values_of_the_spec),
        cmocka_unit_test(a_ramp_without_width_is_a_step),
        cmocka_unit_test(sines_equal_long_double),
        cmocka_unit_test(tables_equal_the_vectors),
        cmocka_unit_test(magnitude_is_applied_once),
    };
    return cmocka_run_group_tests_name("rope", tests, NULL, NULL);
}
