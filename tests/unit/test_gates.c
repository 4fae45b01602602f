/* The gates of conformance.md section 3: each passes an honest engine, passes one just inside the
 * limit and fails one just outside. */
#include "judge/gates.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { VOCAB = 100, STEPS = 64 };

static struct wire_top_logit eight[8] = {{5, 8.0}, {6, 7.0},  {7, 6.0},  {8, 5.0},
                                         {9, 4.0}, {10, 3.0}, {11, 2.0}, {12, 1.0}};

static struct wire_top_logits list_of(struct wire_top_logit *items, size_t count)
{
    return (struct wire_top_logits){.present = true, .count = count, .items = items};
}

static void fresh(struct wire_top_logit *out)
{
    for (int i = 0; i < 8; i++)
        out[i] = eight[i];
}

static void trusted_lists(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    struct wire_top_logits t = list_of(e, 8);
    assert_true(gate_top_logits_trusted(&t, 5, VOCAB));
    t.count = 1;
    assert_true(gate_top_logits_trusted(&t, 5, VOCAB));
    t.count = 0;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB));
    t.count = 8;
    assert_false(gate_top_logits_trusted(&t, 6, VOCAB)); /* not the reported token */
    assert_true(gate_top_logits_trusted(&t, 5, 13));
    assert_false(gate_top_logits_trusted(&t, 5, 12)); /* token 12 outside the vocabulary */
    e[3].token = -1;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB));
    e[3].token = 6;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB)); /* twice */
    fresh(e);
    e[7].logit = NAN;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB));
    e[7].logit = -INFINITY;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB));
    fresh(e);
    e[1].logit = 8.5;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB)); /* rises */
    fresh(e);
    e[2].logit = e[1].logit; /* equal, lower id first */
    assert_true(gate_top_logits_trusted(&t, 5, VOCAB));
    e[1].token = 7;
    e[2].token = 6;
    assert_false(gate_top_logits_trusted(&t, 5, VOCAB));
}

static void ties(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    struct wire_top_logits t = list_of(e, 8);
    e[0].logit = 1.0;
    for (int i = 1; i < 8; i++)
        e[i].logit = 0.5 - i;
    e[1].logit = 1.0 - 0.9e-6; /* just inside */
    assert_true(gate_tie_accepts(&t, 5, 6, VOCAB));
    assert_true(gate_tie_accepts(&t, 5, 5, VOCAB));
    e[1].logit = 1.0 - 1.1e-6; /* just outside */
    assert_false(gate_tie_accepts(&t, 5, 6, VOCAB));
    e[1].logit = 1.0 - 0.9e-6;
    assert_false(gate_tie_accepts(&t, 5, 40, VOCAB)); /* not in the list */
    e[7].logit = NAN;                                 /* malformed: strict, never wider */
    assert_false(gate_tie_accepts(&t, 5, 6, VOCAB));
    assert_true(gate_tie_accepts(&t, 5, 5, VOCAB));
}

static struct gate_outcome base_with(int wrong, int from)
{
    struct gate_outcome o;
    const struct wire_top_logits t = list_of(eight, 8);
    gate_base_begin(&o);
    for (int i = 0; i < STEPS; i++)
        gate_base_step(&o, i, 5, &t, i >= from && i < from + wrong ? 60 : 5, VOCAB);
    gate_base_end(&o, STEPS);
    return o;
}

static void base_budget(void **state)
{
    (void)state;
    struct gate_outcome o = base_with(0, 0);
    assert_true(o.passed);
    assert_int_equal(o.checked_steps, STEPS);
    assert_int_equal(o.step, -1);
    o = base_with(6, 10); /* 6 * 1000 <= 100 * 64 */
    assert_true(o.passed);
    assert_int_equal(o.mismatches, 6);
    assert_int_equal(o.checked_steps, STEPS);
    o = base_with(7, 10);
    assert_false(o.passed);
    assert_int_equal(o.checked_steps, 11); /* the first mismatch + 1 */
    assert_int_equal(o.step, 10);
    assert_int_equal(o.expected, 60);
    assert_int_equal(o.actual, 5);
    o = base_with(1, STEPS - 1);
    assert_true(o.passed);
}

/* 64 steps do not tell 100 in a thousand from 109: the limit itself, and one beyond it. */
static void base_budget_to_the_last(void **state)
{
    (void)state;
    static const struct {
        int64_t steps;
        int wrong;
        bool passes;
    } rows[] = {{1000, 100, true}, {1000, 101, false}, {10, 1, true},     {10, 2, false},
                {9, 1, false},     {9, 0, true},       {20, 2, true},     {19, 2, false},
                {2000, 200, true}, {2000, 201, false}, {1009, 100, true}, {1009, 101, false}};
    const struct wire_top_logits t = list_of(eight, 8);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct gate_outcome o;
        gate_base_begin(&o);
        for (int64_t s = 0; s < rows[i].steps; s++)
            gate_base_step(&o, s, 5, &t, s < rows[i].wrong ? 60 : 5, VOCAB);
        gate_base_end(&o, rows[i].steps);
        assert_true(o.passed == rows[i].passes);
    }
}

static struct golden_anchor anchor_of(int64_t expected)
{
    return (struct golden_anchor){.name = "a", .expected_token = expected};
}

static bool anchor_passes(const struct golden_anchor *a, struct wire_top_logit *e)
{
    struct gate_outcome o;
    const struct wire_top_logits t = list_of(e, 8);
    gate_anchor(&o, a, &t, VOCAB);
    assert_int_equal(o.checked_steps, 1);
    return o.passed;
}

/* 64 steps; at each of `wrong` of them the expected token 6 stands `distance` logits below the
 * first. */
static struct gate_outcome gap_with(double gap, int wrong, struct wire_top_logit *e)
{
    struct gate_outcome o;
    const struct wire_top_logits t = list_of(e, 8);
    gate_base_begin(&o);
    gate_base_demand_gap(&o, gap);
    for (int i = 0; i < STEPS; i++)
        gate_base_step(&o, i, 5, &t, i >= 20 && i < 20 + wrong ? 6 : 5, VOCAB);
    gate_base_end(&o, STEPS);
    return o;
}

static void base_gap(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e); /* the expected token 6 is 1.0 below the reported 5 */
    struct gate_outcome o = gap_with(1.0, 6, e);
    assert_true(o.passed); /* at the bound, and inside the budget */
    assert_int_equal(o.mismatches, 6);
    o = gap_with(0.999, 1, e);
    assert_false(o.passed); /* just outside, though one mismatch is far inside the budget */
    assert_true(o.beyond_gap);
    assert_int_equal(o.step, 20);
    assert_int_equal(o.expected, 6);
    assert_int_equal(o.actual, 5);
    assert_int_equal(o.checked_steps, 21);
    o = gap_with(0.999, 0, e);
    assert_true(o.passed); /* nothing to be near to */
    o = gap_with(1.0, 7, e);
    assert_false(o.passed); /* near, but too many */
    assert_false(o.beyond_gap);
    o = gap_with(0.5, 7, e);
    assert_false(o.passed); /* both: the budget is told */
    assert_false(o.beyond_gap);
    e[1].logit = 8.0 - 0.9e-6;
    o = gap_with(0, 6, e);
    assert_true(o.passed); /* a tie is no mismatch */
    assert_int_equal(o.mismatches, 0);
    e[1].logit = 8.0 - 1.1e-6;
    o = gap_with(0, 1, e);
    assert_false(o.passed); /* 0: only a tie is near */
}

static void base_gap_needs_trusted_logits(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    e[7].logit = NAN;
    struct gate_outcome o = gap_with(100, 1, e);
    assert_false(o.passed);
    assert_true(o.beyond_gap);
    fresh(e);
    e[1].token = 40; /* the expected token is not among the eight */
    o = gap_with(100, 1, e);
    assert_false(o.passed);
    /* The first mismatch beyond the gap is told, not the first mismatch. */
    fresh(e);
    const struct wire_top_logits t = list_of(e, 8);
    gate_base_begin(&o);
    gate_base_demand_gap(&o, 2.0);
    gate_base_step(&o, 0, 5, &t, 6, VOCAB);
    gate_base_step(&o, 1, 5, &t, 8, VOCAB); /* 3.0 below */
    gate_base_step(&o, 2, 5, &t, 9, VOCAB);
    gate_base_end(&o, STEPS);
    assert_false(o.passed);
    assert_int_equal(o.mismatches, 3);
    assert_int_equal(o.step, 1);
    assert_int_equal(o.expected, 8);
}

/* The bound itself passes, the next double above it does not. */
static void limits_at_the_last_bit(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    e[0].logit = GATE_TIE_TOLERANCE;
    for (int i = 1; i < 8; i++)
        e[i].logit = -i;
    e[1].logit = 0;
    const struct wire_top_logits t = list_of(e, 8);
    assert_true(gate_tie_accepts(&t, 5, 6, VOCAB));
    e[0].logit = nextafter(GATE_TIE_TOLERANCE, 1);
    assert_false(gate_tie_accepts(&t, 5, 6, VOCAB));
    e[0].logit = 0.1;
    assert_true(gap_with(0.1, 6, e).passed);
    e[0].logit = nextafter(0.1, 1);
    assert_false(gap_with(0.1, 1, e).passed);
    struct golden_anchor a = {.expected_token = 6,
                              .has_rank = true,
                              .max_expected_rank = 2,
                              .has_delta = true,
                              .max_top_logit_delta = 0.1};
    struct gate_outcome o;
    e[0].logit = 0.1;
    gate_anchor(&o, &a, &t, VOCAB);
    assert_true(o.passed);
    e[0].logit = nextafter(0.1, 1);
    gate_anchor(&o, &a, &t, VOCAB);
    assert_false(o.passed);
}

static void anchors(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    struct golden_anchor a = anchor_of(5);
    assert_true(anchor_passes(&a, e));
    a = anchor_of(6);
    assert_false(anchor_passes(&a, e));
    int64_t accepted[] = {40, 5};
    a.accepted = (struct golden_tokens){accepted, 2};
    assert_true(anchor_passes(&a, e)); /* the accepted set */
    accepted[1] = 41;
    assert_false(anchor_passes(&a, e));
    e[1].logit = e[0].logit - 0.5e-6; /* a tie with the expected token */
    assert_true(anchor_passes(&a, e));
    e[7].logit = INFINITY;
    assert_false(anchor_passes(&a, e));
}

static void anchor_rank_and_delta(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    struct golden_anchor a = anchor_of(7); /* rank 3, 2.0 below */
    a.has_rank = true;
    a.max_expected_rank = 3;
    assert_false(anchor_passes(&a, e)); /* the default delta is 1e-6 */
    a.has_delta = true;
    a.max_top_logit_delta = 2.0;
    assert_true(anchor_passes(&a, e));
    a.max_top_logit_delta = 1.999;
    assert_false(anchor_passes(&a, e));
    a.max_top_logit_delta = 2.0;
    a.max_expected_rank = 2;
    assert_false(anchor_passes(&a, e));
    a.max_expected_rank = 8;
    a.expected_token = 50; /* outside the eight: no rank */
    assert_false(anchor_passes(&a, e));
    a = anchor_of(6);
    a.has_rank = a.has_delta = true;
    a.max_expected_rank = 2;
    a.max_top_logit_delta = 2.0;
    assert_true(anchor_passes(&a, e));
    e[3].token = e[2].token; /* a list that is not trusted gives no leniency */
    assert_false(anchor_passes(&a, e));
}

static void anchor_takes_the_argmax_of_the_list(void **state)
{
    (void)state;
    struct wire_top_logit e[8];
    fresh(e);
    e[0].logit = 6.5; /* now 6 is highest, whatever token the reply reports */
    struct golden_anchor a = anchor_of(6);
    assert_true(anchor_passes(&a, e));
    a = anchor_of(5);
    assert_false(anchor_passes(&a, e));
    fresh(e);
    e[1].logit = 8.0; /* equal: the lower id */
    a = anchor_of(5);
    assert_true(anchor_passes(&a, e));
}

static void free_runs(void **state)
{
    (void)state;
    int64_t expected[] = {1, 2, 3, 4, 5}, said[] = {1, 2, 3, 4, 5};
    struct golden_free_run f = {.expected = {expected, 5}, .exact_prefix = 5};
    const struct wire_tokens tokens = {.present = true, .count = 5, .items = said};
    struct gate_outcome o;
    gate_free_run(&o, &f, &tokens);
    assert_true(o.passed);
    assert_int_equal(o.checked_steps, 5);
    f.exact_prefix = 4;
    said[4] = 9; /* just behind the prefix */
    gate_free_run(&o, &f, &tokens);
    assert_true(o.passed);
    assert_int_equal(o.checked_steps, 4);
    said[3] = 9; /* its last token */
    gate_free_run(&o, &f, &tokens);
    assert_false(o.passed);
    assert_int_equal(o.checked_steps, 4);
    assert_int_equal(o.step, 3);
    assert_int_equal(o.expected, 4);
    assert_int_equal(o.actual, 9);
}

static void behaviors(void **state)
{
    (void)state;
    int64_t first[] = {1, 2, 3}, second[] = {7, 8}, said[] = {7, 8, 9, 9};
    struct golden_tokens sequences[] = {{first, 3}, {second, 2}};
    const struct golden_behavior b = {.accepted = sequences, .accepted_count = 2};
    const struct wire_tokens tokens = {.present = true, .count = 4, .items = said};
    struct gate_outcome o;
    gate_behavior(&o, &b, &tokens); /* an accepted sequence is a prefix of the answer */
    assert_true(o.passed);
    assert_int_equal(o.checked_steps, 2);
    said[1] = 5;
    gate_behavior(&o, &b, &tokens);
    assert_false(o.passed);
    assert_int_equal(o.step, 1); /* of the sequence that was followed furthest */
    assert_int_equal(o.expected, 8);
    assert_int_equal(o.actual, 5);
    said[0] = 1;
    said[1] = 2;
    said[2] = 4;
    gate_behavior(&o, &b, &tokens);
    assert_false(o.passed);
    assert_int_equal(o.checked_steps, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trusted_lists),
        cmocka_unit_test(ties),
        cmocka_unit_test(base_budget),
        cmocka_unit_test(base_budget_to_the_last),
        cmocka_unit_test(base_gap),
        cmocka_unit_test(base_gap_needs_trusted_logits),
        cmocka_unit_test(limits_at_the_last_bit),
        cmocka_unit_test(anchors),
        cmocka_unit_test(anchor_rank_and_delta),
        cmocka_unit_test(anchor_takes_the_argmax_of_the_list),
        cmocka_unit_test(free_runs),
        cmocka_unit_test(behaviors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
