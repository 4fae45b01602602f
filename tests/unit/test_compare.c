/* Comparisons and noise floors from made-up times: the order of the legs, the verdicts, how several
 * comparisons share the confidence, the kill bar. */
#include "judge/compare/noise.h"
#include "judge/compare/rounds.h"
#include "judge/stats/student.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static void assert_order(size_t settings, size_t round, const char *wanted)
{
    size_t order[ROUNDS_SETTINGS_MOST];
    char text[ROUNDS_SETTINGS_MOST + 1] = "";
    rounds_order(settings, round, order);
    for (size_t i = 0; i < settings; i++)
        text[i] = (char)('A' + order[i]);
    assert_string_equal(text, wanted);
}

static void test_order(void **state)
{
    (void)state;
    static const char *const two[] = {"AB", "BA", "AB", "BA"};
    static const char *const four[] = {"ABCD", "DCBA", "ACDB", "BDCA", "ADBC", "CBDA", "ABCD"};
    for (size_t i = 0; i < COUNT_OF(two); i++)
        assert_order(2, i, two[i]);
    for (size_t i = 0; i < COUNT_OF(four); i++)
        assert_order(4, i, four[i]);
}

/* A steady drift of the machine: over two rounds it drops out of every comparison. */
static void test_order_cancels_a_drift(void **state)
{
    (void)state;
    for (size_t settings = 2; settings <= ROUNDS_SETTINGS_MOST; settings++) {
        size_t place[4][ROUNDS_SETTINGS_MOST], order[ROUNDS_SETTINGS_MOST];
        for (size_t round = 0; round < 4; round++) {
            rounds_order(settings, round, order);
            for (size_t i = 0; i < settings; i++)
                place[round][order[i]] = i;
        }
        for (size_t round = 0; round < 4; round += 2)
            for (size_t s = 1; s < settings; s++)
                assert_int_equal(place[round][s] + place[round + 1][s],
                                 place[round][0] + place[round + 1][0]);
    }
}

static struct rounds_plan plan_of(size_t pairs, size_t comparisons)
{
    return (struct rounds_plan){
        .axis = ROUNDS_COMPOSITE,
        .weight_prefill = 0.25,
        .weight_decode = 0.75,
        .rule = {.min_pairs = pairs, .max_pairs = pairs, .confidence = 0.95},
        .comparisons = comparisons,
        .claim_floor = 0.005};
}

/* Six pairs whose decode differs by `effect`, in a noise of plus and minus `noise`. */
static struct rounds_pairs pairs_of(double effect, double noise)
{
    struct rounds_pairs p = {.count = 6};
    for (size_t i = 0; i < p.count; i++) {
        const double sign = i % 2 ? 1 : -1;
        p.control[i] = (struct rounds_times){0.001, 0.008 * (1 + sign * noise)};
        p.candidate[i] = (struct rounds_times){0.001, 0.008 * (1 + effect)};
    }
    return p;
}

static void test_verdicts(void **state)
{
    (void)state;
    static const struct {
        double effect, noise;
        enum paired_verdict verdict;
    } rows[] = {{0.03, 0.002, PAIRED_SLOWER},          {-0.03, 0.002, PAIRED_FASTER},
                {0.003, 0.0001, PAIRED_NO_DIFFERENCE}, {0.003, 0.01, PAIRED_NO_DIFFERENCE},
                {0, 0, PAIRED_NO_DIFFERENCE},          {0.03, 0.05, PAIRED_NO_DIFFERENCE}};
    const struct rounds_plan plan = plan_of(6, 1);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct rounds_pairs pairs = pairs_of(rows[i].effect, rows[i].noise);
        struct rounds_result r;
        assert_true(rounds_judge(&plan, &pairs, &r));
        assert_int_equal(r.verdict, rows[i].verdict);
        assert_true(r.known[ROUNDS_COMPOSITE] && r.known[ROUNDS_DECODE] && r.known[ROUNDS_PREFILL]);
        assert_true(fabs(r.estimates[ROUNDS_COMPOSITE].mean_log_ratio -
                         0.75 * r.estimates[ROUNDS_DECODE].mean_log_ratio) < 1e-12);
        assert_true(fabs(r.estimates[ROUNDS_PREFILL].ratio - 1) < 1e-12);
    }
}

static void test_axis_of_the_verdict(void **state)
{
    (void)state;
    struct rounds_plan plan = plan_of(6, 1);
    const struct rounds_pairs pairs = pairs_of(0.03, 0.002);
    struct rounds_result r;
    plan.axis = ROUNDS_PREFILL;
    assert_true(rounds_judge(&plan, &pairs, &r));
    assert_int_equal(r.verdict, PAIRED_NO_DIFFERENCE);
    /* A contract without weights has no composite. */
    plan.weight_prefill = plan.weight_decode = 0;
    plan.axis = ROUNDS_DECODE;
    assert_true(rounds_judge(&plan, &pairs, &r));
    assert_false(r.known[ROUNDS_COMPOSITE]);
    assert_int_equal(r.verdict, PAIRED_SLOWER);
}

static void test_too_few_pairs(void **state)
{
    (void)state;
    const struct rounds_plan plan = plan_of(2, 1);
    struct rounds_pairs pairs = pairs_of(0.03, 0.002);
    struct rounds_result r;
    pairs.count = 1;
    assert_false(rounds_judge(&plan, &pairs, &r));
    pairs.count = 2;
    pairs.candidate[1].decode = 0;
    assert_false(rounds_judge(&plan, &pairs, &r));
}

static void test_several_comparisons_share_the_confidence(void **state)
{
    (void)state;
    struct rounds_plan plan = plan_of(6, 5);
    assert_true(fabs(rounds_confidence(&plan) - 0.99) < 1e-12);
    const struct rounds_pairs pairs = pairs_of(0.03, 0.002);
    struct rounds_result r;
    assert_true(rounds_judge(&plan, &pairs, &r));
    const struct paired_estimate *e = &r.estimates[ROUNDS_DECODE];
    assert_true(fabs(e->confidence - 0.99) < 1e-12);
    const double half = student_quantile(0.995, 5) * e->sd / sqrt(6);
    assert_true(fabs(log(e->t_high) - e->mean_log_ratio - half) < 1e-9);
    /* With a rule that may stop, the misses are halved once more. */
    plan.rule.max_pairs = 12;
    plan.rule.half_width = 0.01;
    assert_true(rounds_judge(&plan, &pairs, &r));
    assert_true(fabs(r.estimates[ROUNDS_DECODE].confidence - 0.995) < 1e-12);
    assert_int_equal(rounds_next(&plan, &pairs), PAIRED_NARROW_ENOUGH);
    plan.rule.half_width = 0.001;
    assert_int_equal(rounds_next(&plan, &pairs), PAIRED_MORE);
}

/* Pairs beside other work do not count, and too many of them end it. */
static void test_pairs_set_aside(void **state)
{
    (void)state;
    const struct rounds_plan plan = plan_of(3, 1);
    const struct rounds_times a = {1, 2}, b = {3, 4};
    struct rounds_pairs pairs = {0};
    rounds_add(&pairs, &a, &b, false);
    rounds_add(&pairs, &a, &b, false);
    assert_false(rounds_is_hopeless(&plan, &pairs));
    rounds_add(&pairs, &a, &b, true);
    rounds_add(&pairs, &a, &b, false);
    assert_int_equal(pairs.count, 1);
    assert_int_equal(pairs.set_aside, 3);
    assert_true(pairs.control[0].decode == 2 && pairs.candidate[0].prefill == 3);
    assert_false(rounds_is_hopeless(&plan, &pairs));
    rounds_add(&pairs, &a, &b, false);
    assert_true(rounds_is_hopeless(&plan, &pairs));
}

static void test_smallest_claim(void **state)
{
    (void)state;
    const struct rounds_plan plan = plan_of(6, 1);
    const struct paired_estimate small = {.smallest_effect = 0.001},
                                 large = {.smallest_effect = 0.02};
    assert_true(fabs(rounds_smallest_claim(&plan, &small) - 0.006005) < 1e-15);
    assert_true(fabs(rounds_smallest_claim(&plan, &large) - 0.0251) < 1e-15);
}

static void test_noise_floor(void **state)
{
    (void)state;
    /* The field report's n = 5: mean 8 ms, sd 0.19764 ms. */
    static const double field[] = {0.008, 0.00825, 0.00775, 0.008125, 0.007875};
    const struct noise_floor f = noise_floor_of(field, 5);
    const double sd = sqrt((2 * 0.00025 * 0.00025 + 2 * 0.000125 * 0.000125) / 4);
    assert_true(fabs(f.mean - 0.008) < 1e-15 && fabs(f.sd - sd) < 1e-12);
    assert_true(f.min == 0.00775 && f.max == 0.00825 && f.runs == 5);
    assert_true(fabs(f.kill_bar - 2 * sd / 0.008) < 1e-9);
    static const double still[] = {0.008, 0.008, 0.008001};
    assert_true(noise_floor_of(still, 3).kill_bar == NOISE_BAR_FLOOR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_order_cancels_a_drift),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_axis_of_the_verdict),
        cmocka_unit_test(test_too_few_pairs),
        cmocka_unit_test(test_several_comparisons_share_the_confidence),
        cmocka_unit_test(test_pairs_set_aside),
        cmocka_unit_test(test_smallest_claim),
        cmocka_unit_test(test_noise_floor),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
