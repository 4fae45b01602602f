/* The meter: parts add up to the whole, bytes are those of the formats, a recording is kept by its
 * rule; traces reach the sink once. */
#include "base/arena.h"
#include "engine/compute/meter.h"
#include "engine/compute/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t sum_of(const struct compute_meter *m)
{
    int64_t total = 0;
    for (int p = 0; p < METER_PARTS; p++)
        total += m->part[p].ns;
    return total;
}

static void test_parts_add_up(void **state)
{
    (void)state;
    struct compute_meter m = {0};
    for (int i = 0; i < 50; i++) {
        meter_forward_begin(&m, 1, i);
        meter_switch(&m, METER_EMBED);
        meter_switch(&m, METER_PROJECT);
        meter_switch(&m, METER_PROJECT);
        meter_switch(&m, METER_EXPERTS);
        meter_end_experts(&m, 300, 100);
        meter_switch(&m, METER_HEAD);
        meter_forward_end(&m);
    }
    assert_int_equal(m.forwards, 50);
    assert_int_equal(m.rows, 50);
    assert_int_equal(sum_of(&m), m.ns);
    meter_reset(&m);
    assert_int_equal(sum_of(&m) + m.ns + (int64_t)m.forwards, 0);
}

static void test_experts_are_cut_by_bytes(void **state)
{
    (void)state;
    struct compute_meter m = {0};
    meter_forward_begin(&m, 1, 0);
    meter_switch(&m, METER_EXPERTS);
    m.since -= 4000000; /* as if four milliseconds had passed */
    meter_end_experts(&m, 300, 100);
    meter_forward_end(&m);
    const int64_t both = m.part[METER_EXPERTS].ns + m.part[METER_SHARED].ns;
    assert_true(both >= 4000000);
    assert_true(llabs(m.part[METER_EXPERTS].ns - both * 3 / 4) <= 1);
    meter_forward_begin(&m, 1, 1);
    meter_switch(&m, METER_EXPERTS);
    const int64_t before = m.part[METER_SHARED].ns;
    meter_end_experts(&m, 300, 0); /* no shared expert: all of it is the routed ones' */
    assert_int_equal(m.part[METER_SHARED].ns, before);
}

static void test_bytes_of_formats(void **state)
{
    (void)state;
    struct compute_meter m = {0};
    const struct weight_matrix wide = {.format = WEIGHT_BF16, .out = 48, .in = 2048};
    const struct weight_matrix small = {.format = WEIGHT_NVFP4, .out = 512, .in = 2048};
    assert_int_equal(meter_matrix_bytes(&wide), 2 * 48 * 2048);
    assert_int_equal(meter_matrix_bytes(&small), 512 * 1024 + 512 * 128);
    meter_linear(&m, METER_PROJECT, &wide, 3);
    meter_linear(&m, METER_PROJECT, &wide, 1);
    assert_int_equal(m.part[METER_PROJECT].bytes, 2 * 2 * 48 * 2048);
    assert_true(m.part[METER_PROJECT].flops == 2.0 * 48 * 2048 * 4);
}

/* The widest of the first eight, the latest of equal ones; later forwards change nothing. */
static void test_recording_rule(void **state)
{
    (void)state;
    static const int rows[] = {16, 256, 8, 256, 100, 1, 1, 256, 1};
    struct compute_meter m = {.recorder = meter_recorder_new()};
    for (int i = 0; i < 40; i++) {
        meter_forward_begin(&m, i < 9 ? rows[i] : 1, i);
        m.layer = 3;
        m.since -= 1000;
        meter_switch(&m, METER_HEAD);
        m.since -= 1000;
        meter_forward_end(&m);
    }
    const struct meter_recording *wide = &m.recorder->kind[0], *one = &m.recorder->kind[1];
    assert_int_equal(wide->rows, 256);
    assert_int_equal(wide->position, 7);
    assert_int_equal(one->rows, 1);
    assert_int_equal(one->position, 13); /* the eighth of one row: 5, 6, 8, 9 .. 13 */
    assert_int_equal(one->count, 2);
    assert_int_equal(one->events[0].layer, 3);
    assert_int_equal(one->events[1].part, METER_HEAD);
    assert_int_equal(one->events[0].end, one->events[1].start + 1000);
    meter_recorder_free(m.recorder);
}

struct heard {
    int count, ran, fell_back;
    char reason[64];
};

static void hear(void *context, enum trace_site s, bool ran, const char *reason)
{
    struct heard *h = context;
    h->count++;
    *(ran ? &h->ran : &h->fell_back) = (int)s;
    if (reason)
        snprintf(h->reason, sizeof h->reason, "%s", reason);
}

static void test_trace_is_said_once(void **state)
{
    (void)state;
    struct heard h = {0};
    trace_ran(TRACE_HEAD_PICKS); /* off: nobody hears it */
    trace_begin(hear, &h);
    for (int i = 0; i < 3; i++) {
        trace_ran(TRACE_HEAD_PICKS);
        trace_fell_back(TRACE_ALIGNED, "because");
    }
    assert_int_equal(h.count, 2);
    assert_int_equal(h.ran, TRACE_HEAD_PICKS);
    assert_int_equal(h.fell_back, TRACE_ALIGNED);
    assert_string_equal(h.reason, "because");
    trace_fell_back(TRACE_HEAD_PICKS, "and the other way round");
    assert_int_equal(h.count, 3);
    trace_begin(NULL, NULL);
    trace_ran(TRACE_BF16_DOT);
    assert_int_equal(h.count, 3);
}

static void test_names_are_distinct(void **state)
{
    (void)state;
    for (int a = 0; a < TRACE_SITES; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(trace_site_name((enum trace_site)a),
                                    trace_site_name((enum trace_site)b));
    for (int a = 0; a < METER_PARTS; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(meter_part_key((enum meter_part)a),
                                    meter_part_key((enum meter_part)b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_add_up),       cmocka_unit_test(test_experts_are_cut_by_bytes),
        cmocka_unit_test(test_bytes_of_formats),   cmocka_unit_test(test_recording_rule),
        cmocka_unit_test(test_trace_is_said_once), cmocka_unit_test(test_names_are_distinct),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
