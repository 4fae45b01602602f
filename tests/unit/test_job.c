/* The older flow's arithmetic and loop: windows, ratios, composites and gates at both sides of
 * their limits; the order of legs, retries, and what ends a job. */
#include "base/arena.h"
#include "judge/job/pairs.h"
#include "judge/job/score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fabs(b);
}

/* ---- windows ---- */

static void certified(struct job_windows w, const char *name, const char *field)
{
    struct error err = {0};
    const bool ok = job_windows_certify(&w, &err);
    if (name == NULL) {
        if (!ok)
            fail_msg("%s: %s", err.name, err.message);
        return;
    }
    assert_false(ok);
    assert_string_equal(err.name, name);
    assert_string_equal(err.field, field);
}

static void test_windows(void **state)
{
    (void)state;
    static const char unseen[] = "PREFILL-WINDOW-NOT-OBSERVED";
    const struct job_windows good = {1, 3, 4, 10, 20};
    struct job_windows w = good;
    certified(good, NULL, NULL);
    w.whole = 4.21; /* 0.21 of 4.21 is 4.99 % */
    certified(w, NULL, NULL);
    w.whole = 4.211;
    certified(w, "PREFILL-WINDOW-DISAGREES", "whole_window_seconds");
    w.whole = 3.81; /* halves longer than the whole */
    certified(w, NULL, NULL);
    w.whole = 3.80;
    certified(w, "PREFILL-WINDOW-DISAGREES", "whole_window_seconds");
    const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        w = good;
        w.prefill = bad[i];
        certified(w, unseen, "prefill_window_seconds");
        w = good;
        w.decode = bad[i];
        certified(w, unseen, "decode_window_seconds");
        w = good;
        w.whole = bad[i];
        certified(w, unseen, "whole_window_seconds");
    }
    w = good;
    w.prefill_tokens = 0;
    certified(w, unseen, "prefill_window_seconds");
    w = good;
    w.decode_tokens = 0;
    certified(w, unseen, "decode_window_seconds");
}

/* ---- ratios ---- */

static void test_ratios(void **state)
{
    (void)state;
    const struct job_times t[] = {{1, 2, 4, 8, 10, 5}, {3, 1, 4, 8, 10, 5}};
    assert_true(job_pair_ratio(&t[0]) == 0.5);
    const struct job_means m = job_ratio_of_means(t, 2);
    assert_true(m.serial == 2 && m.candidate == 1.5 && m.ratio == 2 / 1.5);
    assert_true(isnan(job_ratio_of_means(t, 0).ratio));
    /* 8 / 16 of prefill, 20 / 10 of decode */
    struct job_composite c = job_cohort_composite(t, 2, 0.25, 0.75);
    assert_true(c.prefill_gain == 0.5 && c.decode_gain == 2);
    assert_true(near(c.score, pow(0.5, 0.25) * pow(2, 0.75)));
    /* exponents are taken as they stand */
    assert_true(near(job_cohort_composite(t, 2, 1, 1).score, 1.0));
    const struct job_times no_prefill = {1, 2, 0, 0, 10, 5};
    assert_true(near(job_cohort_composite(&no_prefill, 1, 0, 0.75).score, pow(2, 0.75)));
    assert_true(isnan(job_cohort_composite(&no_prefill, 1, 0.25, 0.75).score));
}

static void judged(double score, const char *name)
{
    struct error err = {0};
    assert_int_equal(job_judge_score(score, &err), name == NULL);
    if (name != NULL)
        assert_string_equal(err.name, name);
}

static void test_gates(void **state)
{
    (void)state;
    struct error err = {0};
    judged(0.90, NULL);
    judged(nextafter(0.90, 0), "Floor");
    judged(5.0, NULL);
    judged(nextafter(5.0, 6), "Ceiling");
    judged(NAN, "SCORE-NOT-FINITE");
    judged(INFINITY, "SCORE-NOT-FINITE");
    const double good[] = {1, 8.0, 0.001};
    assert_true(job_judge_pairs(good, 3, &err));
    assert_true(job_judge_pairs(NULL, 0, &err));
    const double bad[] = {0, -1, NAN, INFINITY, nextafter(8.0, 9)};
    for (size_t i = 0; i < 5; i++) {
        const double pair[] = {1, bad[i]};
        assert_false(job_judge_pairs(pair, 2, &err));
        assert_string_equal(err.name, "PerPairBound");
        assert_string_equal(err.field, "pairs[1].raw_ratio");
    }
}

/* ---- the loop ---- */

enum { CALLS = 128 };
struct script {
    struct {
        size_t unit, pair;
        enum job_role role;
    } calls[CALLS];
    size_t count, probes;
    /* From call `fail_at` on, this many legs (of fail_role, if it is not -1) fail by this name. */
    size_t fail_at, fail_count;
    int fail_role;
    const char *name;
    const char *probe_name;
    double whole_factor; /* of the whole window; 0: 1 */
};

static bool fake_leg(void *context, size_t unit, size_t pair, enum job_role role,
                     struct job_leg *out, struct error *err)
{
    struct script *s = context;
    assert_true(s->count < CALLS);
    const size_t at = s->count++;
    s->calls[at].unit = unit;
    s->calls[at].pair = pair;
    s->calls[at].role = role;
    out->cohort = json_object(); /* must not leak, whatever happens */
    if (s->name != NULL && at >= s->fail_at && s->fail_count > 0 &&
        (s->fail_role < 0 || (int)role == s->fail_role)) {
        s->fail_count--;
        return error_set(err, s->name, "as the test wants");
    }
    const double f = s->whole_factor > 0 ? s->whole_factor : 1;
    out->windows = (struct job_windows){1, 3, 4 * f, 10, 20};
    out->decode_seconds_per_token = role == JOB_SERIAL ? 0.2 : 0.1;
    return true;
}

static bool fake_probe(void *context, size_t unit, size_t pair, struct error *err)
{
    struct script *s = context;
    (void)unit, (void)pair;
    s->probes++;
    return s->probe_name == NULL || error_set(err, s->probe_name, "as the test wants");
}

static enum job_end play(struct script *s, struct job_pairs_plan p, struct arena *a,
                         struct job_pairs *out, struct error *err)
{
    p.context = s;
    p.run_leg = fake_leg;
    if (p.units == 0)
        p.units = 1;
    if (p.min_pairs == 0)
        p.min_pairs = p.target_pairs;
    return job_pairs_run(&p, a, out, err);
}

static void test_order_alternates(void **state)
{
    (void)state;
    struct script s = {.fail_role = -1};
    struct arena a = {0};
    struct job_pairs out;
    assert_int_equal(
        play(&s, (struct job_pairs_plan){.units = 2, .target_pairs = 3}, &a, &out, NULL),
        JOB_END_DONE);
    assert_int_equal(out.accepted_count, 6);
    assert_int_equal(out.rejected_count, 0);
    static const enum job_role roles[] = {JOB_SERIAL, JOB_CANDIDATE, JOB_CANDIDATE,
                                          JOB_SERIAL, JOB_SERIAL,    JOB_CANDIDATE};
    for (size_t i = 0; i < 12; i++) {
        assert_int_equal(s.calls[i].role, roles[i % 6]);
        assert_int_equal(s.calls[i].unit, i / 6);
        assert_int_equal(s.calls[i].pair, i % 6 / 2);
    }
    assert_true(out.accepted[0].serial_first && !out.accepted[1].serial_first);
    assert_true(job_pair_times(&out.accepted[0]).serial == 0.2);
    job_pairs_free(&out);
    arena_free(&a);
}

static void ends(struct script s, struct job_pairs_plan p, enum job_end end, size_t calls,
                 const char *class)
{
    struct arena a = {0};
    struct job_pairs out;
    struct error err = {0};
    const enum job_end got = play(&s, p, &a, &out, &err);
    if (got != end)
        fail_msg("ended as %d, not %d: %s %s", (int)got, (int)end, err.name, err.message);
    assert_int_equal(s.count, calls);
    if (class != NULL) {
        assert_true(out.rejected_count > 0);
        assert_string_equal(out.rejected[out.rejected_count - 1].class, class);
    }
    job_pairs_free(&out);
    arena_free(&a);
}

static void test_retry(void **state)
{
    (void)state;
    const struct job_pairs_plan two = {.target_pairs = 2};
    struct script s = {.fail_role = -1, .name = "EngineExited", .fail_count = 1};
    ends(s, two, JOB_END_DONE, 5, NULL); /* the first leg twice */
    s.fail_count = 2;
    ends(s, two, JOB_END_BASELINE, 2, "EngineExited");
    s.fail_at = 1; /* the candidate's first */
    ends(s, two, JOB_END_CANDIDATE, 3, "EngineExited");
    s.name = "TokenMismatch"; /* a verdict is not asked for again */
    s.fail_count = 1;
    ends(s, two, JOB_END_CANDIDATE, 2, "TokenMismatch");
    s.name = "TIMED-REPLAY-FAILED"; /* of the candidate's tokens, by the baseline's worker */
    ends(s, two, JOB_END_BASELINE, 2, "TIMED-REPLAY-FAILED");
    s.name = "TELEMETRY-THROTTLED";
    ends(s, two, JOB_END_DONE, 5, NULL);
    s.fail_count = 2;
    ends(s, two, JOB_END_MACHINE, 3, "TELEMETRY-THROTTLED");
    s.name = "QUIESCENCE-TIMEOUT";
    s.fail_count = 1;
    ends(s, two, JOB_END_MACHINE, 2, "QUIESCENCE-TIMEOUT");
    s.name = "Interrupted";
    ends(s, two, JOB_END_MACHINE, 2, "Interrupted");
    assert_true(job_may_retry("RunTimeout"));
    s.fail_count = 2;
    s.name = "TELEMETRY-CONTENDED"; /* others beside it: once more, and then the machine's fault */
    ends(s, two, JOB_END_MACHINE, 3, "TELEMETRY-CONTENDED");
    assert_true(job_may_retry("TELEMETRY-CONTENDED"));
    assert_false(job_may_retry("FreeRunConsistency"));
}

static void test_local_budget(void **state)
{
    (void)state;
    const struct job_pairs_plan local = {.target_pairs = 2, .min_pairs = 1, .local_dev = true};
    /* Six pairs fail, two of eight tries are left. */
    struct script s = {.fail_role = JOB_CANDIDATE, .name = "TokenMismatch", .fail_count = 6};
    ends(s, local, JOB_END_DONE, 13, "TokenMismatch"); /* three of the six ran the serial first */
    s.fail_count = 7;                                  /* one pair is the minimum */
    ends(s, local, JOB_END_DONE, 13, "TokenMismatch");
    s.fail_count = 8;
    ends(s, local, JOB_END_CANDIDATE, 12, "TokenMismatch");
    s.fail_role = JOB_SERIAL;
    ends(s, local, JOB_END_BASELINE, 12, "TokenMismatch");
    struct arena a = {0};
    struct job_pairs out;
    struct error err = {0};
    play(&s, local, &a, &out, &err);
    assert_string_equal(err.name, "PAIRS-TOO-FEW");
    assert_int_equal(out.rejected_count, 8);
    job_pairs_free(&out);
    arena_free(&a);
}

static void test_certification(void **state)
{
    (void)state;
    struct job_pairs_plan p = {.target_pairs = 1, .certify_windows = true};
    struct script s = {.fail_role = -1};
    struct arena a = {0};
    struct job_pairs out;
    struct error err = {0};
    assert_int_equal(play(&s, p, &a, &out, &err), JOB_END_DONE);
    assert_true(out.accepted[0].certified);
    job_pairs_free(&out);
    s = (struct script){.fail_role = -1, .whole_factor = 2};
    ends(s, p, JOB_END_BASELINE, 2, "prefill-window-uncertified");
    p.certify_windows = false; /* not armed */
    s = (struct script){.fail_role = -1, .whole_factor = 2};
    assert_int_equal(play(&s, p, &a, &out, &err), JOB_END_DONE);
    assert_false(out.accepted[0].certified);
    job_pairs_free(&out);
    arena_free(&a);
}

static void test_probe_is_the_candidates(void **state)
{
    (void)state;
    struct job_pairs_plan p = {.target_pairs = 2, .before_pair = fake_probe};
    struct script s = {.fail_role = -1, .probe_name = "EXACTNESS-PROBE-FAILED"};
    ends(s, p, JOB_END_CANDIDATE, 0, "EXACTNESS-PROBE-FAILED");
    struct arena a = {0};
    struct job_pairs out;
    s.probe_name = NULL;
    assert_int_equal(play(&s, p, &a, &out, NULL), JOB_END_DONE);
    assert_int_equal(s.probes, 2);
    job_pairs_free(&out);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),       cmocka_unit_test(test_ratios),
        cmocka_unit_test(test_gates),         cmocka_unit_test(test_order_alternates),
        cmocka_unit_test(test_retry),         cmocka_unit_test(test_local_budget),
        cmocka_unit_test(test_certification), cmocka_unit_test(test_probe_is_the_candidates),
    };
    return cmocka_run_group_tests_name("job", tests, NULL, NULL);
}
