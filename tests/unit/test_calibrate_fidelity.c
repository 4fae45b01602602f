/* What calibrate-fidelity measures of a finished run, and what it says of many. */
#include "judge/calibrate_fidelity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* One round of 4 rows: two tokens given out of which one is scored, two rows behind them. */
struct sample {
    int64_t seed[1], tokens[2], drafts[3], argmax[1];
    struct fidelity_readout readouts[4], top[1], verify[4];
    double top1[1], given[1];
    struct fidelity_round round;
    struct fidelity_run run;
    struct fidelity_reference_round reference;
};

static void make(struct sample *s)
{
    *s = (struct sample){
        .tokens = {5, 6},
        .drafts = {5, 7, 8},
        .argmax = {9},
        .readouts = {{{5, 9}, {10, 8}},
                     {{6, 1}, {90, 80}}, /* behind what is scored: not looked at */
                     {{3, 1}, {4, 2}},
                     {{2, 1}, {8, -8}}},
        .top = {{{9, 5}, {10.5, 8}}},
        .verify = {{{9, 5}, {10.5, 8}}, {{6, 1}, {1, 0}}, {{3, 1}, {4, 2.5}}, {{2, 1}, {8, -7}}},
        .top1 = {10.5},
        .given = {8}};
    s->round = (struct fidelity_round){.width = 4,
                                       .tokens = s->tokens,
                                       .count = 2,
                                       .scored = 1,
                                       .rows = 4,
                                       .accepted = 1,
                                       .rejected = 2,
                                       .drafts = s->drafts,
                                       .draft_count = 3,
                                       .readouts = s->readouts,
                                       .readout_count = 4};
    s->run = (struct fidelity_run){
        .seed = s->seed, .seed_count = 1, .wanted = 1, .rounds = &s->round, .round_count = 1};
    s->reference = (struct fidelity_reference_round){.count = 1,
                                                     .k1_argmax = s->argmax,
                                                     .top = s->top,
                                                     .top1_logit = s->top1,
                                                     .emitted_logit = s->given,
                                                     .verify = s->verify,
                                                     .verify_count = 4};
}

static void test_a_run_is_measured(void **state)
{
    (void)state;
    struct sample s;
    struct calibration_run r;
    struct error err = {0};
    make(&s);
    assert_true(calibration_measure(&s.run, &s.reference, &r, &err));
    assert_int_equal(r.tokens, 1);
    assert_int_equal(r.emitted.rows, 1);
    assert_true(r.emitted.absolute == 0.5 && r.emitted.relative == 0.5 / 10.5);
    assert_true(r.emitted.mean == 0.25);
    assert_int_equal(r.rejected.rows, 2);
    assert_true(r.rejected.absolute == 1.0 && r.rejected.relative == 0.5 / 2.5);
    assert_true(r.rejected.mean == 1.5 / 4);
    assert_true(r.near_tie_gap == 2.5);
    assert_int_equal(r.other_tokens, 1);
    assert_int_equal(r.unbound_rows, 0);
    assert_true(calibration_of(&r, CALIBRATION_ABSOLUTE) == 1.0);
    assert_true(calibration_of(&r, CALIBRATION_RELATIVE) == 0.2);
    assert_true(calibration_of(&r, CALIBRATION_NEAR_TIE) == 2.5);
    assert_true(calibration_of(&r, CALIBRATION_MEAN) == 0.25);

    assert_true(r.flat_gap == 0);
    s.verify[2].token[0] = 2;
    s.verify[2].logit[1] = -1; /* the reference's first by 5 is another id */
    assert_true(calibration_measure(&s.run, &s.reference, &r, &err));
    assert_true(r.flat_gap == 5 && calibration_of(&r, CALIBRATION_NEAR_TIE) == 5);

    s.readouts[0].token[0] = 9;
    assert_true(calibration_measure(&s.run, &s.reference, &r, &err));
    assert_int_equal(r.unbound_rows, 1);
    s.reference.emitted_logit = NULL;
    assert_false(calibration_measure(&s.run, &s.reference, &r, &err));
    assert_string_equal(err.name, "ReferenceInvalid");
}

static struct calibration_run drifted(double absolute)
{
    return (struct calibration_run){.emitted = {.rows = 1, .absolute = absolute}};
}

static void test_a_tolerance_separates_or_not(void **state)
{
    (void)state;
    struct calibration_run exact[2] = {drifted(0), drifted(0)};
    struct calibration_run honest[2] = {drifted(0.25), drifted(0.125)};
    struct calibration_run close[2] = {drifted(2), drifted(0.5)};
    struct calibration_run far[2] = {drifted(3), drifted(4)};
    struct calibration_engine engines[] = {
        {.kind = CALIBRATION_HONEST, .name = "exact", .runs = exact},
        {.kind = CALIBRATION_HONEST, .name = "honest", .runs = honest},
        {.kind = CALIBRATION_CHEAT, .name = "far", .runs = far},
        {.kind = CALIBRATION_CHEAT, .name = "near", .runs = close},
    };
    struct calibration_verdict v = calibration_judge(engines, 4, 2, CALIBRATION_ABSOLUTE);
    assert_true(v.separates && v.honest == 0.25 && v.cheat == 0.5);
    assert_string_equal(v.nearest->name, "near");
    assert_true(v.tolerance == 0.375);

    /* What is no more than honest drift is missed; at the very limit too. */
    close[1] = drifted(0.25);
    v = calibration_judge(engines, 4, 2, CALIBRATION_ABSOLUTE);
    assert_false(v.separates);
    assert_string_equal(v.nearest->name, "near");
    assert_string_equal(v.caught->name, "far");
    assert_true(v.caught_at == 3 && v.tolerance == (0.25 + 3) / 2);

    /* A run that a rule ended says nothing of tolerances. */
    memcpy(close[1].refused, "refused", sizeof "refused");
    v = calibration_judge(engines, 4, 2, CALIBRATION_ABSOLUTE);
    assert_true(v.separates && v.cheat == 2);
    v = calibration_judge(engines, 2, 2, CALIBRATION_ABSOLUTE);
    assert_false(v.separates);
    assert_null(v.nearest);
    assert_null(v.caught);
}

static void test_what_an_engine_may_be_given(void **state)
{
    (void)state;
    struct error err = {0};
    assert_true(calibration_environment_valid("MLXFAST_CPU=portable", &err));
    assert_true(calibration_environment_valid("BENCH_WORKER_THREADS=1", &err));
    assert_false(calibration_environment_valid("MLXFAST_CPUS=portable", &err));
    assert_string_equal(err.name, "USAGE");
    assert_false(calibration_environment_valid("=portable", &err));
    assert_false(calibration_environment_valid("MLXFAST_CPU", &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_run_is_measured),
        cmocka_unit_test(test_a_tolerance_separates_or_not),
        cmocka_unit_test(test_what_an_engine_may_be_given),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
