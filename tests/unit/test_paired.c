/* Statistics of pairs: Student's t against constants made with SciPy 1.17, pairs worked by hand,
 * the rule that stops, the null pairs, the verdicts, the sealed object. */
#include "base/buffer.h"
#include "base/json.h"
#include "judge/stats/paired.h"
#include "judge/stats/student.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define CLOSE(a, b) assert_true(fabs((a) - (b)) <= 1e-12 * fabs(b))

static void test_quantiles(void **state)
{
    (void)state;
    static const struct {
        double p, freedom, t;
    } rows[] = {/* scipy.stats.t.ppf */
                {0.975, 1, 12.706204736174694},  {0.975, 2, 4.302652729749462},
                {0.975, 3, 3.1824463052837078},  {0.975, 5, 2.5705818356363146},
                {0.975, 11, 2.200985160091639},  {0.975, 30, 2.0422724563012378},
                {0.95, 2, 2.9199855803537242},   {0.9875, 3, 4.176534846104503},
                {0.9875, 11, 2.593092682539364}, {0.995, 5, 4.032142983555228},
                {0.6, 1, 0.32491969623290634},   {0.9999, 1, 3183.098757118502},
                {0.025, 3, -3.1824463052837086}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        CLOSE(student_quantile(rows[i].p, rows[i].freedom), rows[i].t);
        CLOSE(student_cdf(rows[i].t, rows[i].freedom), rows[i].p);
    }
    /* Of one degree of freedom it is Cauchy's, of two it has a closed form. */
    CLOSE(student_quantile(0.75, 1), 1.0);
    CLOSE(student_quantile(0.9, 2), 0.8 / sqrt(2 * 0.9 * 0.1));
    assert_true(student_quantile(0.5, 4) == 0);
    assert_true(fabs(student_quantile(0.975, 999) - 1.9623414611334493) < 1e-11);
    CLOSE(student_cdf(-2.5, 5), 0.02724504967118813);
    CLOSE(normal_cdf(1.0), 0.8413447460685429);
}

static void test_detectable(void **state)
{
    (void)state;
    static const struct {
        double freedom, errors;
    } rows[] = {/* root of scipy.stats.nct.sf(t.ppf(.975, f), f, d) = 0.8 */
                {1, 16.33400886992046},  {2, 5.65348926640557},   {3, 4.2558988207400095},
                {5, 3.5139041055628986}, {11, 3.078391724534762}, {30, 2.89536175157927},
                {999, 2.804282031082358}};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        assert_true(fabs(student_detectable(0.95, 0.8, rows[i].freedom) / rows[i].errors - 1) <
                    1e-11);
}

/* Log ratios 0.01, 0.02, 0.03: mean 0.02, sd 0.01, standard error 0.01 / sqrt 3. */
static const double control3[] = {1.0100501670841679, 1.0202013400267558, 1.030454533953517};
static const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};

static void test_estimate_by_hand(void **state)
{
    (void)state;
    struct paired_estimate e, again;
    assert_true(paired_estimate(control3, ones, 3, 0.95, 7, &e));
    assert_int_equal(e.count, 3);
    assert_true(fabs(e.mean_log_ratio - 0.02) < 1e-15);
    assert_true(fabs(e.sd - 0.01) < 1e-15);
    assert_true(fabs(e.ratio - 1.0202013400267558) < 1e-15);
    const double half = 4.302652729749462 * 0.01 / sqrt(3);
    assert_true(fabs(e.t_low - exp(0.02 - half)) < 1e-14);
    assert_true(fabs(e.t_high - exp(0.02 + half)) < 1e-14);
    assert_true(fabs(e.smallest_effect - expm1(5.65348926640557 * 0.01 / sqrt(3))) < 1e-12);
    /* All three draws alike has a chance of 1 in 27 on either side, above 2.5 %. */
    assert_true(fabs(e.boot_low - exp(0.01)) < 1e-14);
    assert_true(fabs(e.boot_high - exp(0.03)) < 1e-14);
    assert_true(paired_estimate(control3, ones, 3, 0.95, 7, &again));
    assert_memory_equal(&e, &again, sizeof e);
    /* The other way round the candidate is slower, by the same. */
    assert_true(paired_estimate(ones, control3, 3, 0.95, 7, &again));
    assert_true(fabs(again.mean_log_ratio + 0.02) < 1e-15);
    assert_true(fabs(again.t_low * e.t_high - 1) < 1e-14);
}

static void test_pairs_cancel_what_is_common(void **state)
{
    (void)state;
    /* Each pair twice as slow as the one before, the candidate always 1 % faster. */
    double a[6], b[6];
    for (int i = 0; i < 6; i++) {
        a[i] = ldexp(1.01, i);
        b[i] = ldexp(1.0, i);
    }
    struct paired_estimate e;
    assert_true(paired_estimate(a, b, 6, 0.95, 1, &e));
    assert_true(fabs(e.ratio - 1.01) < 1e-14 && e.sd < 1e-15);
    assert_true(fabs(e.t_high - e.t_low) < 1e-14 && e.smallest_effect < 1e-14);
}

static void test_estimate_refuses(void **state)
{
    (void)state;
    struct paired_estimate e;
    static const double bad[][2] = {{1, 0}, {1, -1}, {1, INFINITY}, {NAN, 1}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(paired_estimate(bad[i], ones, 2, 0.95, 1, &e));
        assert_false(paired_estimate(ones, bad[i], 2, 0.95, 1, &e));
    }
    assert_false(paired_estimate(ones, ones, 0, 0.95, 1, &e));
    assert_false(paired_estimate(ones, ones, PAIRED_COUNT_MAX + 1, 0.95, 1, &e));
    assert_false(paired_estimate(ones, ones, 2, 1, 1, &e));
    assert_false(paired_estimate(ones, ones, 2, 0, 1, &e));
    assert_false(paired_estimate(ones, ones, 2, NAN, 1, &e));
    assert_true(paired_estimate(control3, ones, 1, 0.95, 1, &e));
    assert_true(e.t_low == 0 && isinf(e.t_high) && isinf(e.smallest_effect) && e.sd == 0);
    assert_int_equal(paired_verdict(&e, 0), PAIRED_NO_DIFFERENCE);
}

/* Pairs whose log ratios are +x, -x, +x, ... */
static void alternate(double x, size_t n, double *control, double *candidate)
{
    for (size_t i = 0; i < n; i++) {
        control[i] = exp(i % 2 ? -x : x);
        candidate[i] = 1;
    }
}

static void test_rule(void **state)
{
    (void)state;
    const struct paired_rule fixed = {.min_pairs = 3, .max_pairs = 3, .confidence = 0.95};
    const struct paired_rule grows = {
        .min_pairs = 2, .max_pairs = 8, .half_width = 0.01, .confidence = 0.95};
    double a[8], b[8];
    alternate(0.005, 8, a, b);
    assert_false(paired_rule_is_sequential(&fixed));
    assert_true(paired_rule_confidence(&fixed) == 0.95);
    assert_int_equal(paired_next(&fixed, a, b, 2), PAIRED_MORE);
    assert_int_equal(paired_next(&fixed, a, b, 3), PAIRED_BOUND_REACHED);
    assert_true(paired_rule_is_sequential(&grows));
    CLOSE(paired_rule_confidence(&grows), 0.975);
    /* sd of four: 0.005 sqrt(4 / 3); half width at 97.5 %: 4.1765 x 0.0057735 / 2 = 0.01206; of
     * six: 3.1634 x 0.0054772 / sqrt 6 = 0.00707. Five have a mean of 0.001. */
    assert_int_equal(paired_next(&grows, a, b, 4), PAIRED_MORE);
    assert_int_equal(paired_next(&grows, a, b, 6), PAIRED_NARROW_ENOUGH);
    /* Never before four pairs, however alike; where the interval lies does not matter. */
    static const double same[8] = {2, 2, 2, 2, 2, 2, 2, 2};
    assert_int_equal(paired_next(&grows, same, ones, 1), PAIRED_MORE);
    assert_int_equal(paired_next(&grows, same, ones, 3), PAIRED_MORE);
    assert_int_equal(paired_next(&grows, same, ones, 4), PAIRED_NARROW_ENOUGH);
    assert_int_equal(paired_next(&grows, ones, same, 4), PAIRED_NARROW_ENOUGH);
    alternate(1, 8, a, b);
    assert_int_equal(paired_next(&grows, a, b, 7), PAIRED_MORE);
    assert_int_equal(paired_next(&grows, a, b, 8), PAIRED_BOUND_REACHED);
}

static void test_stopping_never_looks_at_the_sign(void **state)
{
    (void)state;
    const struct paired_rule r = {
        .min_pairs = 4, .max_pairs = 8, .half_width = 0.008, .confidence = 0.95};
    double a[8], b[8], shifted[8];
    for (int k = 1; k < 40; k++) {
        alternate(0.0005 * k, 8, a, b);
        for (int i = 0; i < 8; i++)
            shifted[i] = a[i] * (k % 2 ? 1.25 : 0.75);
        for (size_t n = 4; n <= 8; n++) {
            assert_int_equal(paired_next(&r, a, b, n), paired_next(&r, shifted, b, n));
            assert_int_equal(paired_next(&r, a, b, n), paired_next(&r, b, a, n));
        }
    }
}

static void test_verdicts(void **state)
{
    (void)state;
    struct paired_estimate e = {.count = 6, .mean_log_ratio = log(1.02), .ratio = 1.02};
    e.t_low = 1.0051;
    e.t_high = 1.04;
    assert_int_equal(paired_verdict(&e, 0.005), PAIRED_FASTER);
    e.t_low = 1.0049; /* some of it is not more than the floor */
    assert_int_equal(paired_verdict(&e, 0.005), PAIRED_NO_DIFFERENCE);
    assert_int_equal(paired_verdict(&e, 0.004), PAIRED_FASTER);
    e = (struct paired_estimate){.count = 6, .mean_log_ratio = log(0.98), .ratio = 0.98};
    e.t_low = 0.96;
    e.t_high = 1 / 1.0051; /* as far away as 1.0051 is */
    assert_int_equal(paired_verdict(&e, 0.005), PAIRED_SLOWER);
    e.t_high = 1 / 1.0049;
    assert_int_equal(paired_verdict(&e, 0.005), PAIRED_NO_DIFFERENCE);
    /* Sure, and too small to be claimed. */
    e = (struct paired_estimate){.count = 6, .mean_log_ratio = log(0.997), .ratio = 0.997};
    e.t_low = 0.996;
    e.t_high = 0.998;
    assert_int_equal(paired_verdict(&e, 0.005), PAIRED_NO_DIFFERENCE);
    assert_int_equal(paired_verdict(&e, 0), PAIRED_SLOWER);
    assert_string_equal(paired_verdict_text(PAIRED_SLOWER), "slower");
    assert_string_equal(paired_verdict_text(PAIRED_FASTER), "faster");
    assert_string_equal(paired_verdict_text(PAIRED_NO_DIFFERENCE), "no difference seen");
}

static void test_null_pairs(void **state)
{
    (void)state;
    struct paired_estimate pair, one, off;
    struct paired_null check;
    double a[6], b[6];
    alternate(0.01, 6, a, b); /* sd 0.01 sqrt(6 / 5), five degrees of freedom */
    assert_true(paired_estimate(a, b, 6, 0.95, 1, &pair));
    static const double near_one[] = {1.005}, far_off[] = {1.05};
    assert_true(paired_estimate(near_one, ones, 1, 0.95, 1, &one));
    assert_true(paired_estimate(far_off, ones, 1, 0.95, 1, &off));
    assert_true(paired_null_check(&pair, &one, 0.95, &check));
    const double half = 2.5705818356363146 * 0.01 * sqrt(1.2);
    assert_true(fabs(check.low - 1.005 * exp(-half)) < 1e-12);
    assert_true(fabs(check.high - 1.005 * exp(half)) < 1e-12);
    assert_true(check.contains_one);
    assert_true(paired_null_check(&pair, &off, 0.95, &check) && !check.contains_one);
    /* Two of one pair each: no spread is known. */
    assert_false(paired_null_check(&one, &off, 0.95, &check));
    /* Pooled: (5 x 0.00012 + 2 x 0.0001) / 7. */
    struct paired_estimate three;
    assert_true(paired_estimate(control3, ones, 3, 0.95, 1, &three));
    assert_true(paired_null_check(&pair, &three, 0.95, &check));
    const double sd = sqrt((5 * 0.00012 + 2 * 0.0001) / 7);
    assert_true(fabs(log(check.high) - 0.02 - student_quantile(0.975, 7) * sd / sqrt(3)) < 1e-12);
}

static void assert_sealed(json_t *o, const char *wanted)
{
    struct buffer text = {0};
    json_write_ordered(o, 0, &text);
    assert_string_equal(text.data, wanted);
    buffer_free(&text);
    json_decref(o);
}

static void test_seal(void **state)
{
    (void)state;
    const struct paired_rule fixed = {
        .min_pairs = 2, .max_pairs = 2, .confidence = 0.95, .axis = "decode"};
    static const double same[] = {2, 2};
    struct paired_estimate pair, null_pair;
    assert_true(paired_estimate(same, same, 2, 0.95, 1, &pair));
    assert_true(paired_estimate(same, same, 1, 0.95, 1, &null_pair));
    assert_sealed(paired_seal(&pair, &null_pair, &fixed, PAIRED_BOUND_REACHED),
                  "{\"method\":\"paired log ratio\",\"quoted\":\"paired-t\",\"confidence\":0.95,"
                  "\"computed_confidence\":0.95,\"pairs\":2,\"axis\":\"decode\",\"ratio\":1.0,"
                  "\"mean_log_ratio\":0.0,\"sd\":0.0,\"interval\":[1.0,1.0],"
                  "\"bootstrap_interval\":[1.0,1.0],\"smallest_effect\":0.003,"
                  "\"null\":{\"pairs\":1,\"ratio\":1.0,\"interval\":[1.0,1.0],"
                  "\"contains_one\":true},"
                  "\"sequential\":{\"min_pairs\":2,\"max_pairs\":2,\"half_width\":0.0,"
                  "\"stopped\":\"fixed\"}}");
    /* What is not known is null. */
    const struct paired_rule grows = {
        .min_pairs = 1, .max_pairs = 9, .half_width = 0.25, .confidence = 0.5};
    assert_sealed(paired_seal(&null_pair, NULL, &grows, PAIRED_NARROW_ENOUGH),
                  "{\"method\":\"paired log ratio\",\"quoted\":\"paired-t\",\"confidence\":0.5,"
                  "\"computed_confidence\":0.95,\"pairs\":1,\"axis\":\"composite\",\"ratio\":1.0,"
                  "\"mean_log_ratio\":0.0,\"sd\":null,\"interval\":null,"
                  "\"bootstrap_interval\":null,\"smallest_effect\":null,\"null\":null,"
                  "\"sequential\":{\"min_pairs\":1,\"max_pairs\":9,\"half_width\":0.25,"
                  "\"stopped\":\"narrow-enough\"}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantiles),
        cmocka_unit_test(test_detectable),
        cmocka_unit_test(test_estimate_by_hand),
        cmocka_unit_test(test_pairs_cancel_what_is_common),
        cmocka_unit_test(test_estimate_refuses),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_stopping_never_looks_at_the_sign),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_null_pairs),
        cmocka_unit_test(test_seal),
    };
    return cmocka_run_group_tests_name("paired", tests, NULL, NULL);
}
