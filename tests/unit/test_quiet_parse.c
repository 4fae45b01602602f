/* What the readers' sources say: commands, /proc, /sys, nvidia-smi. */
#include "judge/quiet/parse.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static void test_celsius_line(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double celsius; /* NAN: not usable */
    } rows[] = {
        {"41\n", 41},
        {"41", 41},
        {"  41.5 \r\n99\n", 41.5},
        {"+45.0\xc2\xb0"
         "C\n",
         45},
        {"45 C", 45},
        {"-12.25", -12.25},
        {"149.9", 149.9},
        {"150", NAN},
        {"-54.9", -54.9},
        {"-55", NAN},
        {"", NAN},
        {"\n41\n", NAN},
        {"rubbish", NAN},
        {"41 degrees", NAN},
        {"0x29", NAN},
        {"nan", NAN},
        {"1e400", NAN},
        {"4 1", NAN},
        {"C", NAN},
        {"41000000000000000000000000000000000000000000000000000000000000000000000000", NAN},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double celsius = -1;
        const bool ok = parse_celsius_line(rows[i].text, &celsius);
        if (ok != !isnan(rows[i].celsius) || (ok && celsius != rows[i].celsius))
            fail_msg("\"%s\" gave %d, %g", rows[i].text, ok, celsius);
    }
}

static void test_small_files(void **state)
{
    (void)state;
    double x;
    uint64_t n;
    assert_true(parse_millidegrees("41500\n", &x) && x == 41.5);
    assert_true(parse_millidegrees("-3000\n", &x) && x == -3);
    assert_false(parse_millidegrees("150000\n", &x) || parse_millidegrees("", &x) ||
                 parse_millidegrees("41.5\n", &x));
    assert_true(parse_kilohertz("2596104\n", &x) && x == 2596.104);
    assert_false(parse_kilohertz("0\n", &x) || parse_kilohertz("-1\n", &x) ||
                 parse_kilohertz("<unknown>\n", &x) || parse_kilohertz("100000001\n", &x));
    assert_true(parse_count("17\n", &n) && n == 17);
    assert_false(parse_count("-1\n", &n));
    assert_true(parse_load("1.99 0.50 0.25 2/118 4812\n", &x) && x == 1.99);
    assert_true(parse_load("0\n", &x) && x == 0);
    assert_false(parse_load("-0.5 1 1\n", &x) || parse_load("\n", &x) || parse_load("x", &x));
}

static void test_run_delay(void **state)
{
    (void)state;
    double x;
    assert_true(parse_run_delay("163505 3325232000 2\n", &x) && fabs(x - 3.325232) < 1e-9);
    assert_true(parse_run_delay("0 0", &x) && x == 0);
    assert_false(parse_run_delay("", &x) || parse_run_delay("5\n", &x) ||
                 parse_run_delay("5 -1 2\n", &x) ||
                 parse_run_delay("5 99999999999999999999 2\n", &x));
}

static void test_stat(void **state)
{
    (void)state;
    struct cpu_times *t = malloc(sizeof *t);
    /* steal is others' work, iowait is idle, guest is in user already */
    assert_true(parse_stat("cpu  1 2 3 100 10 4 5 6 7 8\n"
                           "cpu0 1 0 0 50 0 0 0 1 0 0\ncpu2 0 2 3 50 10 4 5 5 0 0\nintr 9\n",
                           t));
    assert_int_equal(t->whole.busy, 1 + 2 + 3 + 4 + 5 + 6);
    assert_int_equal(t->whole.all, t->whole.busy + 110);
    assert_int_equal(t->whole.stolen, 6);
    assert_int_equal(t->count, 3);
    assert_int_equal(t->each[0].busy, 2);
    assert_int_equal(t->each[1].all, 0); /* offline */
    assert_int_equal(t->each[2].busy, 19);
    assert_true(parse_stat("cpu  1 2 3 4 5 6 7 8", t) && t->count == 0);
    assert_true(parse_stat("cpu  1 2 3 4 5 6 7 8\ncpu1024 1 2 3 4 5 6 7 8\n", t) && t->count == 0);
    assert_false(parse_stat("", t) || parse_stat("cpu0 1 2 3 4 5 6 7 8\n", t) ||
                 parse_stat("cpu  1 2 3 4 5 6 7\n", t) ||
                 parse_stat("cpu  1 2 3 4 5 6 7 99999999999999999999\n", t) ||
                 parse_stat("cpu  1 2 3 4 5 6 7 9223372036854775808\n", t));
    free(t);
}

static void test_process(void **state)
{
    (void)state;
    pid_t parent;
    uint64_t ticks;
    assert_true(
        parse_process("42 (a) R) S 7 1 1 0 -1 4 1 1 1 1 10 20 30 40 20 0 1\n", &parent, &ticks));
    assert_int_equal(parent, 7);
    assert_int_equal(ticks, 100);
    assert_false(parse_process("42 (x) S 7 1 1\n", &parent, &ticks));
    assert_false(parse_process("42 x S 7 1 1 0 -1 4 1 1 1 1 10 20 30 40 20\n", &parent, &ticks));
    assert_false(parse_process("42 (x) S -1 1 1 0 -1 4 1 1 1 1 10 20 30 40 20\n", &parent, &ticks));
    assert_false(parse_process("", &parent, &ticks) || parse_process(")", &parent, &ticks));
}

static void test_cpuinfo(void **state)
{
    (void)state;
    double mhz[4];
    const char *text = "processor\t: 0\ncpu MHz\t\t: 2596.104\n\nprocessor\t: 1\ncpu MHz : x\n"
                       "cpu MHz : 100\ncpu MHz";
    assert_int_equal(parse_cpuinfo_clocks(text, mhz, 4), 3);
    assert_true(mhz[0] == 2596.104 && isnan(mhz[1]) && mhz[2] == 100);
    assert_int_equal(parse_cpuinfo_clocks(text, mhz, 1), 1);
    assert_int_equal(parse_cpuinfo_clocks("processor : 0\nBogoMIPS : 50\n", mhz, 4), 0);
}

static void test_nvidia_smi(void **state)
{
    (void)state;
    struct gpu_reading r;
    assert_true(parse_nvidia_smi("97, 61, 1980, 0x0000000000000024\n"
                                 "[N/A], 40, [N/A], [Not Supported]\n",
                                 true, &r));
    assert_int_equal(r.count, 2);
    assert_true(r.each[0].use == 0.97 && r.each[0].celsius == 61 && r.each[0].clock_mhz == 1980);
    assert_int_equal(r.each[0].throttle, 0x24);
    assert_true(isnan(r.each[1].use) && r.each[1].celsius == 40 && isnan(r.each[1].clock_mhz));
    assert_int_equal(r.each[1].throttle, 0);
    assert_true(parse_nvidia_smi("0, 34, 345", false, &r) && r.count == 1);
    static const char *const bad[] = {
        "",
        "\n",
        "No devices were found\n",
        "101, 61, 1980, 0x0\n",
        "97, 61, 1980\n",
        "97, 61, 1980, 0x0, 5\n",
        "97, 61, 1980, 24\n",
        "97, 61, 1980, 0x\n",
        "97, 61, 1980, 0x00000000000000000\n",
        "97, 151, 1980, 0x0\n",
        "97, 61, -1, 0x0\n",
        "[N/A, 61, 1980, 0x0\n",
        "97, 61, 1980, 0x0\nNVRM: rubbish\n",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (parse_nvidia_smi(bad[i], true, &r))
            fail_msg("accepted: %s", bad[i]);
    char lines[40 * 16] = "";
    for (size_t i = 0; i < 20; i++)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%zu, 30, 100, 0x0\n", i);
    assert_true(parse_nvidia_smi(lines, true, &r));
    assert_int_equal(r.count, QUIET_GPUS_MAX);
    assert_true(r.each[15].use == 0.15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_celsius_line), cmocka_unit_test(test_small_files),
        cmocka_unit_test(test_stat),         cmocka_unit_test(test_run_delay),
        cmocka_unit_test(test_process),      cmocka_unit_test(test_cpuinfo),
        cmocka_unit_test(test_nvidia_smi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
