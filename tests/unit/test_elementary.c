/* elementary.h: the sample bits of the oracle, within 2 ulp of the truth on dense grids, and the
 * vector versions bit for bit. */
#include "compute_random.h"
#include "engine/compute/cpu/kernels.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/elementary.h"

#include <float.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static float bf16_round(float x)
{
    return to_bf16(x);
}

static void check_samples(const json_t *samples, float (*f)(float), bool sixteen)
{
    assert_true(json_is_array(samples));
    assert_true(json_array_size(samples) > 40);
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *pair = json_array_get(samples, i);
        const char *in = json_string_value(json_array_get(pair, 0));
        const char *out = json_string_value(json_array_get(pair, 1));
        assert_non_null(in);
        assert_non_null(out);
        const uint64_t mode = machine_float_enter();
        const float got = f(bits_float((uint32_t)strtoul(in, NULL, 16)));
        machine_float_leave(mode);
        if (strcmp(out, "nan") == 0) {
            assert_true(isnan(got));
            continue;
        }
        const uint32_t expected = (uint32_t)strtoul(out, NULL, 16) << (sixteen ? 16 : 0);
        if (float_bits(got) != expected)
            fail_msg("f(0x%s) is 0x%08x, expected 0x%08x", in, float_bits(got), expected);
    }
}

static void sample_bits(void **state)
{
    (void)state;
    json_error_t where;
    json_t *all = json_load_file("tests/vectors/elementary.json", 0, &where);
    assert_non_null(all);
    check_samples(json_object_get(all, "exp"), elementary_exp, false);
    check_samples(json_object_get(all, "sigmoid"), elementary_sigmoid, false);
    check_samples(json_object_get(all, "log1p"), elementary_log1p, false);
    check_samples(json_object_get(all, "softplus"), elementary_softplus, false);
    check_samples(json_object_get(all, "bf16"), bf16_round, true);
    json_decref(all);
}

static double true_sigmoid(double z)
{
    return z >= 0 ? 1.0 / (1.0 + exp(-z)) : exp(z) / (1.0 + exp(z));
}

static double true_softplus(double z)
{
    return (z > 0 ? z : 0) + log1p(exp(-fabs(z)));
}

/* The worst error in units of the true value's last place, over every stride-th float of a range.
 */
static double worst_ulp(float (*f)(float), double (*truth)(double), float low, float high,
                        uint32_t stride)
{
    double worst = 0;
    for (int sign = 0; sign < 2; sign++) {
        const float end = sign ? -low : high;
        if (end <= 0)
            continue;
        for (uint32_t u = float_bits(FLT_MIN); u <= float_bits(end); u += stride) {
            const float x = sign ? -bits_float(u) : bits_float(u);
            const double t = truth((double)x);
            int e;
            frexp(t, &e);
            const double error = fabs((double)f(x) - t) / ldexp(1.0, e - 24);
            if (!(error <= worst))
                worst = error;
        }
    }
    return worst;
}

static void within_two_ulp(void **state)
{
    (void)state;
    const uint32_t stride = 1999; /* about a million points each, no power of two */
    assert_true(worst_ulp(elementary_exp, exp, -87.33654f, 88.72283f, stride) <= 2.0);
    assert_true(worst_ulp(elementary_sigmoid, true_sigmoid, -87.33654f, 100.0f, stride) <= 2.0);
    assert_true(worst_ulp(elementary_log1p, log1p, 0.0f, 1.0f, stride) <= 2.0);
    assert_true(worst_ulp(elementary_softplus, true_softplus, -87.33654f, 200.0f, stride) <= 2.0);
    /* where values are most often: denser */
    assert_true(worst_ulp(elementary_exp, exp, -2.0f, 2.0f, 401) <= 2.0);
    assert_true(worst_ulp(elementary_sigmoid, true_sigmoid, -20.0f, 20.0f, 401) <= 2.0);
}

static void ends_of_the_range(void **state)
{
    (void)state;
    assert_true(elementary_exp(0.0f) == 1.0f && elementary_exp(-0.0f) == 1.0f);
    assert_true(elementary_exp(-INFINITY) == 0.0f && elementary_exp(INFINITY) == INFINITY);
    assert_true(elementary_exp(-87.4f) == 0.0f && elementary_exp(88.8f) == INFINITY);
    assert_true(elementary_sigmoid(0.0f) == 0.5f);
    assert_true(elementary_sigmoid(INFINITY) == 1.0f && elementary_sigmoid(-INFINITY) == 0.0f);
    assert_true(elementary_softplus(INFINITY) == INFINITY);
    assert_true(elementary_softplus(-INFINITY) == 0.0f);
    assert_true(isnan(elementary_exp(NAN)) && isnan(elementary_sigmoid(NAN)) &&
                isnan(elementary_softplus(NAN)));
}

static void vector_versions(void **state)
{
    (void)state;
    enum { N = 1000 };
    const struct cpu_kernels *have[KERNELS_MAX];
    const int count = kernels_available(have);
    struct random r = {7};
    const uint64_t mode = machine_float_enter();
    bool same = true;
    for (int round = 0; round < 300; round++) {
        float x[N], expected[N], got[N];
        for (int i = 0; i < N; i++)
            x[i] = round % 3 == 0   ? bits_float((uint32_t)random_next(&r))
                   : round % 3 == 1 ? random_float(&r) * 100.0f
                                    : to_bf16(random_float(&r) * 8.0f);
        for (int k = 0; k < count; k++) {
            have[k]->sigmoid(x, N, got);
            for (int i = 0; i < N; i++)
                expected[i] = elementary_sigmoid(x[i]);
            same = same && same_floats(got, expected, N);
            have[k]->softplus(ACTIVATIONS_F32, x, N, got);
            for (int i = 0; i < N; i++)
                expected[i] = elementary_softplus(x[i]);
            same = same && same_floats(got, expected, N);
        }
    }
    machine_float_leave(mode);
    assert_true(same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sample_bits),
        cmocka_unit_test(within_two_ulp),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(vector_versions),
    };
    return cmocka_run_group_tests_name("elementary", tests, NULL, NULL);
}
