/* Rounds whose acceptance is simulated: how often drafts count as right. What rounds do is seen by
 * whole programs (tests/cli/test_bench.py). */
#include "engine/decode/simulate.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_each_draft_is_right_as_often_as_asked(void **state)
{
    static const double asked[] = {0.1, 0.5, 0.75, 0.9};
    enum { ROUNDS = 2000, BLOCK = 8 };
    (void)state;
    for (size_t k = 0; k < sizeof asked / sizeof *asked; k++) {
        int offered[BLOCK] = {0}, taken[BLOCK] = {0};
        for (size_t n = 0; n < ROUNDS; n++) {
            const int accepted = simulate_accepted(n, asked[k], BLOCK);
            assert_in_range(accepted, 0, BLOCK - 1);
            for (int i = 0; i < BLOCK - 1; i++) {
                offered[i] += accepted >= i;
                taken[i] += accepted > i;
            }
        }
        for (int i = 0; i < BLOCK - 1; i++)
            if (offered[i] > 200)
                assert_true(fabs((double)taken[i] / offered[i] - asked[k]) < 0.03);
    }
}

static void test_short_runs_have_the_mean_of_long_ones(void **state)
{
    const double p = 0.75, mean = p + p * p + p * p * p;
    (void)state;
    for (size_t first = 0; first < 500; first += 50) {
        int accepted = 0;
        for (size_t n = 0; n < 100; n++)
            accepted += simulate_accepted(first + n, p, 4);
        assert_true(fabs(accepted / 100.0 - mean) < 0.05);
    }
}

static void test_ends(void **state)
{
    (void)state;
    for (size_t n = 0; n < 100; n++) {
        assert_int_equal(simulate_accepted(n, 0, 4), 0);
        assert_int_equal(simulate_accepted(n, 1, 4), 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_draft_is_right_as_often_as_asked),
        cmocka_unit_test(test_short_runs_have_the_mean_of_long_ones),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
