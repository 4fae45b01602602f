/* number.h: whole input, in range, and shortest text back. */
#include "base/number.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void signed_integers(void **state)
{
    (void)state;
    int64_t v = 77;
    const char *const bad[] = {"",
                               "-",
                               "+1",
                               " 1",
                               "1 ",
                               "1a",
                               "0x10",
                               "1.0",
                               "1e2",
                               "9223372036854775808",
                               "--1",
                               "-9223372036854775809",
                               "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(number_int64(bad[i], INT64_MIN, INT64_MAX, &v));
        assert_int_equal(v, 77);
    }
    assert_true(number_int64("9223372036854775807", INT64_MIN, INT64_MAX, &v));
    assert_true(v == INT64_MAX);
    assert_true(number_int64("-9223372036854775808", INT64_MIN, INT64_MAX, &v));
    assert_true(v == INT64_MIN);
    assert_true(number_int64("007", 0, 10, &v));
    assert_int_equal(v, 7);
    assert_true(number_int64("-0", 0, 0, &v));
    assert_int_equal(v, 0);
    assert_false(number_int64("11", 0, 10, &v));
    assert_false(number_int64("-1", 0, 10, &v));
    assert_int_equal(v, 0);
}

static void unsigned_integers(void **state)
{
    (void)state;
    uint64_t v = 77;
    assert_true(number_uint64("18446744073709551615", UINT64_MAX, &v));
    assert_true(v == UINT64_MAX);
    assert_false(number_uint64("18446744073709551616", UINT64_MAX, &v));
    assert_false(number_uint64("-1", UINT64_MAX, &v));
    assert_false(number_uint64("", UINT64_MAX, &v));
    assert_false(number_uint64("5", 4, &v));
    assert_true(v == UINT64_MAX);
}

static void doubles(void **state)
{
    (void)state;
    double v = 7;
    const char *const bad[] = {"",    "-",   "+1",  "01",    "1.",  ".5",    "-.5",      "1e",
                               "1e+", "nan", "NaN", "inf",   "0x1", "1e400", "Infinity", "-1e999",
                               "1 ",  " 1",  "1,5", "1e1.5", "--1", "1.5.5", "00.5"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(number_double(bad[i], &v));
        assert_true(v == 7);
    }
    assert_true(number_double("-0.0", &v) && v == 0 && signbit(v));
    assert_true(number_double("1e-400", &v) && v == 0);
    assert_true(number_double("12", &v) && v == 12);
    assert_true(number_double("-1.25E+2", &v) && v == -125);
    assert_true(number_double("5e-324", &v) && v > 0);
}

static void shapes(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {-2.5, "-2.5"},
        {100, "100.0"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {123456.789, "123456.789"},
        {0.0001, "0.0001"},
        {0.00001, "0.00001"},
        {0.000001, "1e-6"},
        {0.0000015, "1.5e-6"},
        {1e15, "1000000000000000.0"},
        {9007199254740993.0, "9007199254740992.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e16"},
        {1e21, "1e21"},
        {1.2345678901234568e17, "1.2345678901234568e17"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {2.225073858507201e-308, "2.225073858507201e-308"},
        {1.7976931348623157e308, "1.7976931348623157e308"},
        {0x1p-44, "5.684341886080802e-14"},
        {0x1p-1074 * 3, "1.5e-323"},
        {9.5367431640625e-7, "9.5367431640625e-7"},
        {-12345678.9f, "-12345679.0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char out[32];
        assert_string_equal(number_format_double(rows[i].value, out, sizeof out), rows[i].text);
        double back;
        assert_true(number_double(out, &back));
        assert_memory_equal(&back, &rows[i].value, sizeof back);
    }
    char out[32];
    assert_string_equal(number_format_double(NAN, out, sizeof out), "NaN");
    assert_string_equal(number_format_double(-INFINITY, out, sizeof out), "-Infinity");
}

/* Any bits: reads back as the same double, no longer than %.17g, and no digit can be spared. */
static void round_trips(void **state)
{
    (void)state;
    uint64_t bits = 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 100000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        double v, back;
        memcpy(&v, &bits, sizeof v);
        if (i % 4 == 0)
            v = (double)(float)ldexp((double)(bits >> 40), (int)(bits % 20) - 30);
        if (!isfinite(v) || v == 0)
            continue;
        char out[32], shorter[40];
        number_format_double(v, out, sizeof out);
        assert_true(number_double(out, &back));
        assert_true(back == v);
        int digits = 0;
        const char *end = out + strcspn(out, "e");
        const char *first = out + strspn(out, "-0.");
        for (const char *p = first; p < end; p++)
            digits += *p != '.';
        for (const char *p = end - 1; p > first && (*p == '0' || *p == '.'); p--)
            digits -= *p == '0';
        if (digits > 1) {
            snprintf(shorter, sizeof shorter, "%.*e", digits - 2, v);
            assert_true(strtod(shorter, NULL) != v);
        }
    }
}

static void sizes(void **state)
{
    (void)state;
    size_t out = 5;
    assert_true(size_multiply(SIZE_MAX / 2, 2, &out));
    assert_true(out == SIZE_MAX - 1);
    assert_false(size_multiply((size_t)1 << 32, (size_t)1 << 32, &out));
    assert_true(size_multiply(0, SIZE_MAX, &out) && out == 0);
    assert_true(size_add(SIZE_MAX, 0, &out));
    assert_false(size_add(SIZE_MAX, 1, &out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signed_integers), cmocka_unit_test(unsigned_integers),
        cmocka_unit_test(doubles),         cmocka_unit_test(shapes),
        cmocka_unit_test(round_trips),     cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
