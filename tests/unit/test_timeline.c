/* What stamps come to: times from place to place, kernels that overlap, layers, old stamps. */
#include "engine/compute/timeline.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <math.h>
#include <string.h>

enum { FIRST_NS = 1000000000, LAYER_NS = 50000 };

struct stamps {
    struct timeline_stamp at[4096];
    size_t count;
};

static void add(struct stamps *s, uint64_t ns, int place)
{
    assert_true(s->count < sizeof s->at / sizeof *s->at);
    s->at[s->count++] = (struct timeline_stamp){ns, place};
}

/* The n-th layer: the sparse ffn starts while the project works; the experts' products take 2 us,
 * in every fourth layer 6. The next project starts in the middle of them. */
static void add_layer(struct stamps *s, int n)
{
    const uint64_t at = FIRST_NS + (uint64_t)n * LAYER_NS;
    const uint64_t more = n % 4 == 3 ? 4000 : 0;
    add(s, at, TIMELINE_PROJECT_THERE);
    add(s, at + 3000, TIMELINE_MOE_STARTS);
    add(s, at + 4500, TIMELINE_MOE_WAITS);
    add(s, at + 13000, TIMELINE_PROJECT_ENDS);
    add(s, at + 13500, TIMELINE_MOE_THERE);
    add(s, at + 20000, TIMELINE_MOE_UP_THERE);
    add(s, at + 21000, TIMELINE_PROJECT_STARTS);
    add(s, at + 22000 + more, TIMELINE_MOE_UP_MULTIPLIED);
    add(s, at + 30000 + more, TIMELINE_MOE_ENDS);
}

/* As they lie in the slots: by place, not by time. */
static void mix(struct stamps *s)
{
    uint32_t random = 20261130;
    for (size_t i = s->count; i > 1; i--) {
        random = random * 1664525u + 1013904223u;
        const size_t j = (random >> 8) % i;
        const struct timeline_stamp was = s->at[i - 1];
        s->at[i - 1] = s->at[j];
        s->at[j] = was;
    }
}

static const struct timeline_step *find(const struct timeline_summary *t, int from, int to)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->step[i].from == from && t->step[i].to == to)
            return &t->step[i];
    return NULL;
}

/* Microseconds. */
static void assert_time(double seconds, double us)
{
    assert_true(fabs(1e6 * seconds - us) < 1e-6);
}

static void assert_step(const struct timeline_summary *t, int from, int to, size_t count,
                        double median_us, double into_us)
{
    const struct timeline_step *s = find(t, from, to);
    assert_non_null(s);
    assert_int_equal(s->count, count);
    assert_time(s->median, median_us);
    assert_time(s->into, into_us);
}

static void test_a_layer(void **state)
{
    (void)state;
    static struct stamps s;
    struct arena arena = {0};
    struct timeline_summary t;
    s.count = 0;
    for (int n = 0; n < 100; n++)
        add_layer(&s, n);
    mix(&s);
    timeline_summarise(s.at, s.count, &arena, &t);
    assert_int_equal(t.layers, 99);
    assert_time(t.layer, 50);
    assert_int_equal(t.count, 9);
    assert_step(&t, TIMELINE_MOE_ENDS, TIMELINE_PROJECT_THERE, 99, 20, 0);
    assert_step(&t, TIMELINE_PROJECT_THERE, TIMELINE_PROJECT_ENDS, 100, 13, 13);
    assert_step(&t, TIMELINE_PROJECT_ENDS, TIMELINE_MOE_THERE, 100, 0.5, 13.5);
    assert_step(&t, TIMELINE_MOE_THERE, TIMELINE_MOE_UP_THERE, 100, 6.5, 20);
    assert_step(&t, TIMELINE_MOE_UP_THERE, TIMELINE_MOE_UP_MULTIPLIED, 100, 2, 22);
    assert_step(&t, TIMELINE_MOE_UP_MULTIPLIED, TIMELINE_MOE_ENDS, 100, 8, 30);
    /* They stand for themselves, whatever runs beside them. */
    assert_step(&t, -1, TIMELINE_MOE_STARTS, 100, 0, 3);
    assert_step(&t, TIMELINE_MOE_STARTS, TIMELINE_MOE_WAITS, 100, 1.5, 4.5);
    assert_step(&t, -1, TIMELINE_PROJECT_STARTS, 100, 0, 21);
    const struct timeline_step *up = find(&t, TIMELINE_MOE_UP_THERE, TIMELINE_MOE_UP_MULTIPLIED);
    assert_time(up->low, 2);
    assert_time(up->high, 6);
    for (size_t i = 1; i < t.count; i++)
        assert_true(t.step[i - 1].into <= t.step[i].into);
    arena_free(&arena);
}

static void test_what_is_before_the_first_layer_is_left_out(void **state)
{
    (void)state;
    struct stamps s = {0};
    struct arena arena = {0};
    struct timeline_summary t;
    add(&s, FIRST_NS - 900, TIMELINE_MOE_UP_THERE);
    add(&s, FIRST_NS - 100, TIMELINE_MOE_ENDS);
    add(&s, FIRST_NS, TIMELINE_PROJECT_THERE);
    add(&s, FIRST_NS + 700, TIMELINE_PROJECT_ENDS);
    timeline_summarise(s.at, s.count, &arena, &t);
    assert_int_equal(t.layers, 0);
    assert_time(t.layer, 0);
    assert_int_equal(t.count, 2);
    assert_step(&t, TIMELINE_MOE_ENDS, TIMELINE_PROJECT_THERE, 1, 0.1, 0);
    assert_step(&t, TIMELINE_PROJECT_THERE, TIMELINE_PROJECT_ENDS, 1, 0.7, 0.7);
    arena_free(&arena);
}

/* Slots that nothing has written for longer than the ring lasts hold what was there before. */
static void test_old_stamps_do_not_count(void **state)
{
    (void)state;
    struct stamps s = {0};
    struct arena arena = {0};
    struct timeline_summary t;
    add(&s, FIRST_NS, TIMELINE_PROJECT_THERE);
    add(&s, FIRST_NS + 1, TIMELINE_PROJECT_ENDS);
    add(&s, FIRST_NS + TIMELINE_SPAN_NS, TIMELINE_PROJECT_ENDS);
    timeline_summarise(s.at, s.count, &arena, &t);
    assert_int_equal(t.count, 0);
    s.count = 0;
    add(&s, FIRST_NS, TIMELINE_PROJECT_ENDS);
    add(&s, FIRST_NS + 1, TIMELINE_PROJECT_THERE);
    add(&s, FIRST_NS + TIMELINE_SPAN_NS, TIMELINE_PROJECT_ENDS);
    timeline_summarise(s.at, s.count, &arena, &t);
    assert_int_equal(t.count, 1);
    assert_step(&t, TIMELINE_PROJECT_THERE, TIMELINE_PROJECT_ENDS, 1, (TIMELINE_SPAN_NS - 1) / 1e3,
                (TIMELINE_SPAN_NS - 1) / 1e3);
    arena_free(&arena);
}

/* The clock stands for a while; what a kernel does again and again is told by where it came from.
 */
static void test_equal_times_and_turns(void **state)
{
    (void)state;
    struct stamps s = {0};
    struct arena arena = {0};
    struct timeline_summary t;
    add(&s, FIRST_NS + 2000, TIMELINE_MOE_DOWN_MULTIPLIED);
    add(&s, FIRST_NS + 3000, TIMELINE_MOE_DOWN_MULTIPLIED);
    add(&s, FIRST_NS + 2600, TIMELINE_MOE_DOWN_THERE);
    add(&s, FIRST_NS + 2000, TIMELINE_MOE_DOWN_THERE);
    add(&s, FIRST_NS, TIMELINE_PROJECT_THERE);
    timeline_summarise(s.at, s.count, &arena, &t);
    assert_int_equal(t.count, 3);
    assert_step(&t, TIMELINE_PROJECT_THERE, TIMELINE_MOE_DOWN_THERE, 1, 2, 2);
    assert_step(&t, TIMELINE_MOE_DOWN_MULTIPLIED, TIMELINE_MOE_DOWN_THERE, 1, 0.6, 2.6);
    assert_step(&t, TIMELINE_MOE_DOWN_THERE, TIMELINE_MOE_DOWN_MULTIPLIED, 2, 0.2, 2.5);
    arena_free(&arena);
}

static void test_nothing(void **state)
{
    (void)state;
    struct arena arena = {0};
    struct timeline_summary t;
    timeline_summarise(NULL, 0, &arena, &t);
    assert_int_equal(t.count, 0);
    assert_int_equal(t.layers, 0);
    assert_null(t.step);
    arena_free(&arena);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < TIMELINE_PLACES; i++) {
        assert_non_null(strstr(timeline_place_text(i), ": "));
        for (int j = 0; j < i; j++)
            assert_string_not_equal(timeline_place_text(i), timeline_place_text(j));
    }
}

static void test_the_cpu_has_none(void **state)
{
    (void)state;
    assert_false(compute_has_timeline(NULL));
    assert_false(compute_has_timeline("cpu"));
    assert_false(compute_has_timeline("nobody"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layer),
        cmocka_unit_test(test_what_is_before_the_first_layer_is_left_out),
        cmocka_unit_test(test_old_stamps_do_not_count),
        cmocka_unit_test(test_equal_times_and_turns),
        cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_the_cpu_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
