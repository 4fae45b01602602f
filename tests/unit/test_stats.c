/* stats.h and clock.h, on numbers worked out by hand. */
#include "base/clock.h"
#include "base/stats.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void five(void **state)
{
    (void)state;
    const double x[] = {9, 1, 4, 2, 4}, kept[] = {9, 1, 4, 2, 4};
    assert_true(stats_mean(x, 5) == 4);
    assert_true(stats_median(x, 5) == 4);
    assert_true(stats_lower_median(x, 5) == 4);
    assert_true(stats_min(x, 5) == 1);
    assert_true(stats_max(x, 5) == 9);
    assert_true(fabs(stats_sample_sd(x, 5) - sqrt(38.0 / 4)) < 1e-15);
    assert_true(stats_quantile(x, 5, 0) == 1);
    assert_true(stats_quantile(x, 5, 1) == 9);
    assert_true(stats_quantile(x, 5, 0.5) == 4);
    assert_true(fabs(stats_quantile(x, 5, 0.9) - 7) < 1e-12);
    assert_memory_equal(x, kept, sizeof x);
}

static void even_counts(void **state)
{
    (void)state;
    const double x[] = {8, 2, 4, 1};
    assert_true(stats_median(x, 4) == 3);
    assert_true(stats_lower_median(x, 4) == 2);
    assert_true(stats_quantile(x, 4, 0.5) == 3);
    assert_true(stats_median(x, 2) == 5);
    assert_true(stats_lower_median(x, 2) == 2);
}

static void too_few(void **state)
{
    (void)state;
    const double x[] = {3};
    assert_true(isnan(stats_mean(x, 0)) && isnan(stats_median(x, 0)));
    assert_true(isnan(stats_lower_median(x, 0)) && isnan(stats_quantile(x, 0, 0.5)));
    assert_true(isnan(stats_min(x, 0)) && isnan(stats_max(x, 0)));
    assert_true(isnan(stats_sample_sd(x, 0)) && isnan(stats_sample_sd(x, 1)));
    assert_true(stats_mean(x, 1) == 3 && stats_median(x, 1) == 3);
    assert_true(stats_quantile(x, 1, 0.7) == 3);
    assert_true(isnan(stats_quantile(x, 1, 1.5)) && isnan(stats_quantile(x, 1, NAN)));
}

static void clocks(void **state)
{
    (void)state;
    int64_t a = clock_now_ns(), b = clock_now_ns();
    assert_true(b >= a && a > 0);
    assert_true(clock_seconds(a) >= 0);
    char out[32];
    setenv("SOURCE_DATE_EPOCH", "1769860800", 1);
    assert_string_equal(clock_utc_text(out, sizeof out), "2026-01-31T12:00:00Z");
    setenv("SOURCE_DATE_EPOCH", "0", 1);
    assert_string_equal(clock_utc_text(out, sizeof out), "1970-01-01T00:00:00Z");
    setenv("SOURCE_DATE_EPOCH", "soon", 1); /* not a number: as if it were not set */
    assert_true(strcmp(clock_utc_text(out, sizeof out), "2000-01-01T00:00:00Z") > 0);
    unsetenv("SOURCE_DATE_EPOCH");
    assert_int_equal(strlen(clock_utc_text(out, sizeof out)), 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(five),
        cmocka_unit_test(even_counts),
        cmocka_unit_test(too_few),
        cmocka_unit_test(clocks),
    };
    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
