/* Pairs of block decoding: what makes one not count, retries, and what the accepted ones come to.
 */
#include "judge/block_pairs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct contract_block_decode rules = {.decode_tokens = 512,
                                                   .min_accepted_pairs = 3,
                                                   .target_pairs = 4,
                                                   .has_calibration = true,
                                                   .serial_seconds_per_token = 0.5,
                                                   .calibration_band = 0.0625,
                                                   .calibration_decode_tokens = 512};
static const struct block_pair sound = {.serial = 0.5,
                                        .candidate = 0.25,
                                        .serial_tokens = 512,
                                        .candidate_tokens = 512,
                                        .telemetry_holds = true,
                                        .temperature_held = true};

static void test_rejections(void **state)
{
    (void)state;
    struct block_pair pairs[16];
    for (size_t i = 0; i < COUNT_OF(pairs); i++)
        pairs[i] = sound;
    pairs[1].stalled = true;
    pairs[2].telemetry_holds = false;
    pairs[3].temperature_held = false;
    pairs[4].serial_tokens = 511;
    pairs[5].candidate_tokens = 513;
    pairs[6].serial = 0.53125; /* at the band's end */
    pairs[7].serial = 0.53126;
    pairs[8].serial = 0.46875;
    pairs[9].serial = 0.46874;
    pairs[10].serial = 0;
    pairs[11].candidate = NAN;
    pairs[12].candidate = -1;
    pairs[13].serial = INFINITY;
    pairs[14].stalled = true; /* what comes first is told */
    pairs[14].telemetry_holds = false;
    pairs[14].serial = 9;
    pairs[15].stalled = true;
    pairs[15].serial = 9;
    static const enum block_rejection wanted[] = {
        BLOCK_REJECTION_COUNT,         BLOCK_REJECTION_stall_guardrail,
        BLOCK_REJECTION_telemetry,     BLOCK_REJECTION_temperature_timeout,
        BLOCK_REJECTION_decode_tokens, BLOCK_REJECTION_decode_tokens,
        BLOCK_REJECTION_COUNT,         BLOCK_REJECTION_calibration_band,
        BLOCK_REJECTION_COUNT,         BLOCK_REJECTION_calibration_band,
        BLOCK_REJECTION_decode_tokens, BLOCK_REJECTION_decode_tokens,
        BLOCK_REJECTION_decode_tokens, BLOCK_REJECTION_decode_tokens,
        BLOCK_REJECTION_telemetry,     BLOCK_REJECTION_stall_guardrail};
    for (size_t i = 0; i < COUNT_OF(pairs); i++)
        if (block_pair_rejection(&rules, 512, &pairs[i]) != wanted[i])
            fail_msg("pair %zu: %d", i, (int)block_pair_rejection(&rules, 512, &pairs[i]));
}

static void test_calibration_belongs_to_its_tokens(void **state)
{
    (void)state;
    struct block_pair pair = sound;
    struct contract_block_decode bare = rules;
    bare.has_calibration = false;
    pair.serial = 9;
    assert_int_equal(block_pair_rejection(&bare, 512, &pair), BLOCK_REJECTION_COUNT);
    assert_false(block_calibration_holds(&bare, 512, 0.5));
    assert_true(block_calibration_holds(&rules, 512, 0.5));
    assert_false(block_calibration_holds(&rules, 512, 0.53126));
    assert_false(block_calibration_holds(&rules, 128, 0.5));
    assert_false(block_calibration_holds(&rules, 512, NAN));
    pair.serial_tokens = pair.candidate_tokens = 128;
    assert_int_equal(block_pair_rejection(&rules, 128, &pair), BLOCK_REJECTION_COUNT);
}

static void test_one_retry_for_each_class(void **state)
{
    (void)state;
    struct block_retries r = {{false}};
    assert_int_equal(BLOCK_REJECTION_COUNT, 5);
    for (int i = 0; i < BLOCK_REJECTION_COUNT; i++) {
        const enum block_rejection why = (enum block_rejection)i;
        assert_true(block_retry_take(&r, why));
        assert_false(block_retry_take(&r, why));
        assert_true(strlen(block_rejection_name(why)) > 0);
        assert_true(strlen(block_rejection_meaning(why)) > 0);
    }
    assert_false(block_retry_take(&r, BLOCK_REJECTION_COUNT)); /* nothing to repeat */
    assert_string_equal(block_rejection_name(BLOCK_REJECTION_stall_guardrail), "stall_guardrail");
    assert_true(block_pair_serial_first(0) && !block_pair_serial_first(1) &&
                block_pair_serial_first(2));
}

static struct block_pair timed(double serial, double candidate)
{
    struct block_pair p = sound;
    p.serial = serial;
    p.candidate = candidate;
    return p;
}

static void test_aggregate(void **state)
{
    (void)state;
    const struct block_pair pairs[] = {timed(1, 0.5), timed(2, 0.5), timed(1, 1), timed(4, 2)};
    struct block_aggregate a;
    assert_true(block_pairs_aggregate(pairs, 4, &a));
    assert_int_equal(a.count, 4);
    assert_true(a.serial_mean == 2 && a.candidate_mean == 1);
    assert_true(a.ratio_of_means == 2);         /* the mean of the ratios were 2.25 */
    assert_true(a.median == 2 && a.least == 1); /* of 2, 4, 1, 2 */
    assert_true(block_pairs_aggregate(pairs, 2, &a));
    assert_true(a.ratio_of_means == 3 && a.median == 3 && a.least == 2);
    assert_true(block_pairs_aggregate(pairs, 1, &a)); /* the others are not looked at */
    assert_true(a.ratio_of_means == 2 && a.median == 2 && a.least == 2);
    assert_false(block_pairs_aggregate(pairs, 0, &a));
    static const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const struct block_pair serial[] = {timed(1, 1), timed(bad[i], 1)};
        const struct block_pair candidate[] = {timed(1, 1), timed(1, bad[i])};
        const struct block_pair first[] = {timed(bad[i], 1), timed(1, 1)};
        assert_false(block_pairs_aggregate(first, 2, &a));
        assert_false(block_pairs_aggregate(serial, 2, &a));
        assert_false(block_pairs_aggregate(candidate, 2, &a));
    }
    const struct block_pair far[] = {timed(1e300, 1e-300)};
    assert_false(block_pairs_aggregate(far, 1, &a));
    assert_false(block_pairs_suffice(&rules, 2));
    assert_true(block_pairs_suffice(&rules, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rejections),
        cmocka_unit_test(test_calibration_belongs_to_its_tokens),
        cmocka_unit_test(test_one_retry_for_each_class),
        cmocka_unit_test(test_aggregate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
