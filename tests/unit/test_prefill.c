/* The straight line of prefill-decompose and its verdict. */
#include "judge/prefill.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(1, fabs(b));
}

static void test_an_exact_line_is_found(void **state)
{
    (void)state;
    const double x[] = {128, 256, 512, 1024};
    double y[COUNT_OF(x)];
    struct prefill_fit fit;
    for (size_t i = 0; i < COUNT_OF(x); i++)
        y[i] = 3.25 + 0.5 * x[i];
    assert_true(prefill_fit_line(x, y, COUNT_OF(x), &fit));
    assert_true(near(fit.slope, 0.5) && near(fit.intercept, 3.25) && near(fit.r_squared, 1));
}

/* By hand: x 1, 2, 4; y 2, 3, 9: mean 7/3 and 14/3, sxx 14/3, sxy 34/3, syy 86/3. */
static void test_least_squares_by_hand(void **state)
{
    (void)state;
    const double x[] = {1, 2, 4}, y[] = {2, 3, 9};
    struct prefill_fit fit;
    assert_true(prefill_fit_line(x, y, 3, &fit));
    assert_true(near(fit.slope, 34.0 / 14.0));
    assert_true(near(fit.intercept, 14.0 / 3.0 - 34.0 / 14.0 * 7.0 / 3.0));
    assert_true(near(fit.r_squared, (34.0 / 3) * (34.0 / 3) / (14.0 / 3 * 86.0 / 3)));
}

static void test_two_points_repeats_and_flat_lines(void **state)
{
    (void)state;
    struct prefill_fit fit;
    const double x[] = {100, 100, 200, 200}, y[] = {9, 11, 19, 21}, flat[] = {5, 5, 5, 5};
    assert_true(prefill_fit_line(x, y, 4, &fit));
    assert_true(near(fit.slope, 0.1) && near(fit.intercept, 0));
    assert_true(prefill_fit_line(x, flat, 4, &fit));
    assert_true(near(fit.slope, 0) && near(fit.intercept, 5) && fit.r_squared == 1);
    assert_true(prefill_fit_line(x + 1, y + 1, 2, &fit)); /* 100 and 200 */
    assert_true(near(fit.slope, 0.08) && near(fit.intercept, 3));
}

static void test_no_line(void **state)
{
    (void)state;
    struct prefill_fit fit;
    const double same[] = {64, 64, 64}, y[] = {1, 2, 3};
    const double x[] = {1, 2, 3}, bad[] = {1, NAN, 3}, huge[] = {1, INFINITY, 3};
    assert_false(prefill_fit_line(same, y, 3, &fit));
    assert_false(prefill_fit_line(x, y, 1, &fit));
    assert_false(prefill_fit_line(x, y, 0, &fit));
    assert_false(prefill_fit_line(x, bad, 3, &fit));
    assert_false(prefill_fit_line(x, huge, 3, &fit));
}

static void test_verdict_on_both_sides_of_eight(void **state)
{
    (void)state;
    static const struct {
        double intercept;
        bool good;
    } rows[] = {{-1, true},         {0, true},    {7.999, true}, {8.0, true},
                {8.0000001, false}, {100, false}, {NAN, false},  {INFINITY, false}};
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct prefill_fit fit = {rows[i].intercept, 1, 1};
        assert_true(prefill_verdict(&fit) == rows[i].good);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_exact_line_is_found),
        cmocka_unit_test(test_least_squares_by_hand),
        cmocka_unit_test(test_two_points_repeats_and_flat_lines),
        cmocka_unit_test(test_no_line),
        cmocka_unit_test(test_verdict_on_both_sides_of_eight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
