/* The ranked run without engines: what pairs come to, in which order they are measured, when it
 * stops, and what is said of tokens that are not the golden's. Legs have scripted times. */
#include "judge/ranked/combine.h"
#include "judge/ranked/pairs.h"
#include "judge/ranked/token_replay.h"
#include "judge/score.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static struct contract rules(void)
{
    return (struct contract){.official_pairs = 3,
                             .score_decode_weight = 0.75,
                             .score_prefill_weight = 0.25,
                             .decode_speedup_floor = 0.95,
                             .prefill_speedup_floor = 0.95,
                             .vocab_size = 100};
}

static struct ranked_pair pair_of(double control, double candidate)
{
    return (struct ranked_pair){.control = {1, control, 1, 0}, .candidate = {1, candidate, 1, 0}};
}

/* ---- what pairs come to ---- */

static void gains_by_hand(void **state)
{
    (void)state;
    const struct contract c = rules();
    const struct ranked_pair p = {.control = {.prefill = 0.002, .decode = 0.02},
                                  .candidate = {.prefill = 0.001, .decode = 0.00125}};
    const struct pair_gains g = combine_gains(&c, &p);
    assert_true(g.prefill == 2 && g.decode == 16);
    assert_true(g.composite == pow(16, 0.75) * pow(2, 0.25)); /* 8 * 1.1892... */
    assert_true(fabs(g.composite - 9.513656920021768) < 1e-12);
}

static void lower_median_of_pairs(void **state)
{
    (void)state;
    const struct contract c = rules();
    const struct {
        size_t count, enforced;
        double candidate[5];
    } cases[] = {{1, 0, {1}},
                 {2, 1, {1, 2}},          /* gains 1, 1/2: the lower */
                 {3, 2, {1, 4, 2}},       /* the middle one */
                 {4, 3, {1, 4, 2, 3}},    /* gains 1, 1/4, 1/2, 1/3: the second lowest */
                 {5, 0, {2, 1, 3, 4, 1}}, /* the third of five */
                 {3, 1, {2, 2, 2}}};      /* equal ones: the earlier goes first */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct ranked_pair pairs[5];
        struct combined out;
        for (size_t k = 0; k < cases[i].count; k++)
            pairs[k] = pair_of(2, cases[i].candidate[k]);
        combine_pairs(&c, pairs, cases[i].count, &out);
        assert_int_equal(out.enforced, cases[i].enforced);
        assert_true(out.score == combine_gains(&c, &pairs[out.enforced]).composite);
        assert_true(out.candidate.decode == pairs[out.enforced].candidate.decode);
    }
}

static void mean_of_pairs(void **state)
{
    (void)state;
    struct contract c = rules();
    c.combine_mean = true;
    const struct ranked_pair pairs[] = {pair_of(2, 1), pair_of(3, 3), pair_of(4, 1)};
    struct combined out;
    combine_pairs(&c, pairs, 3, &out);
    assert_true(out.gains.decode == (2.0 + 1.0 + 4.0) / 3);
    assert_true(out.control.decode == 3 && fabs(out.candidate.decode - 5.0 / 3) < 1e-15);
    assert_true(fabs(out.score - (pow(2, 0.75) + 1 + pow(4, 0.75)) / 3) < 1e-12);
    assert_null(out.error);
}

/* A leg of 512 tokens at 30 us and 1024 at 140 us, with a seed that takes `seed` times as long. */
static struct ranked_pair window_pair(double prefill, double seed, double barrier)
{
    return (struct ranked_pair){
        .number = 1,
        .control = {30e-6, 140e-6, 30e-6, 0.001, 0.001},
        .candidate = {30e-6 * prefill, 140e-6, 30e-6 * seed, barrier, 0.001}};
}

/* Nor may the barrier behind the decode window: of most pairs, of any where all count; and that of
 * the control leg is no work. */
static void untimed_work_behind(void **state)
{
    (void)state;
    struct contract c = rules();
    c.seed_tokens = 512;
    c.benchmark_decode_steps = 1024;
    c.prefill_speedup_floor = c.decode_speedup_floor = 0.1;
    struct ranked_pair pairs[3];
    struct combined out;
    for (int k = 0; k < 3; k++)
        pairs[k] = window_pair(1, 1, 0.001);
    for (int k = 0; k < 2; k++) {
        pairs[k].candidate.decode_barrier = 0.0034; /* a round under way: 2 ms and a quarter more */
        combine_pairs(&c, pairs, 3, &out);
        assert_null(out.error);
        pairs[k].candidate.decode_barrier = 0.0036;
        combine_pairs(&c, pairs, 3, &out);
        assert_true((out.error != NULL) == (k == 1)); /* one of three is a hiccup */
    }
    assert_string_equal(out.error, "decode barrier failed");
    assert_non_null(strstr(out.text, "in pair 1 the candidate took 0.000100 s"));
    pairs[0].control.decode_barrier = 0.002;
    combine_pairs(&c, pairs, 3, &out);
    assert_null(out.error);
    c.combine_mean = true;
    combine_pairs(&c, pairs, 3, &out);
    assert_string_equal(out.error, "decode barrier failed");
    c.benchmark_decode_steps = 4096; /* a hundredth of a longer window */
    combine_pairs(&c, pairs, 3, &out);
    assert_null(out.error);
}

/* What is not scored may not hold work: neither the seed's prefill nor the barrier before it. */
static void untimed_work(void **state)
{
    (void)state;
    struct contract c = rules();
    c.seed_tokens = 512;
    c.benchmark_decode_steps = 1024;
    c.prefill_speedup_floor = c.decode_speedup_floor = 0.1;
    const struct {
        double prefill, seed, barrier;
        bool fails;
    } cases[] = {{1, 1, 0.001, false},   {0.5, 0.5, 0.001, false}, /* faster, and evenly so */
                 {1, 1.4, 0.001, false}, /* 2.3 ms beyond a quarter: within 2 ms and its quarter */
                 {1, 1.45, 0.001, true}, /* a few tokens decoded in the seed's request */
                 {1, 10, 0.001, true},   /* all of them */
                 {0.5, 1, 0.001, true},  /* half the prompt left out where it is timed */
                 {1, 1, 0.0034, false},  /* a barrier with something to do */
                 {1, 1, 0.0036, true}};  /* and one with decoding in it */
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct combined out;
        struct ranked_pair pairs[3];
        for (int k = 0; k < 3; k++)
            pairs[k] = window_pair(cases[i].prefill, cases[i].seed, cases[i].barrier);
        combine_pairs(&c, pairs, 3, &out);
        assert_true((out.error != NULL) == cases[i].fails);
        if (!cases[i].fails)
            continue;
        assert_string_equal(out.error, "seed window failed");
        /* One pair of three is a hiccup; the lower median would not be its own. The mean would. */
        pairs[0] = pairs[1] = window_pair(1, 1, 0.001);
        combine_pairs(&c, pairs, 3, &out);
        assert_null(out.error);
        c.combine_mean = true;
        combine_pairs(&c, pairs, 3, &out);
        assert_string_equal(out.error, "seed window failed");
        c.combine_mean = false;
        c.has_seed_window_tolerance = true; /* the contract's own */
        c.seed_window_tolerance = 100;
        pairs[0] = pairs[1] = pairs[2];
        combine_pairs(&c, pairs, 3, &out);
        assert_null(out.error);
        c.has_seed_window_tolerance = false;
    }
    /* A machine on which the control's own seed takes longer than its prefill. */
    struct ranked_pair p = window_pair(1, 2, 0.001);
    struct combined out;
    p.control.seed_prefill_window *= 2;
    combine_pairs(&c, &p, 1, &out);
    assert_null(out.error);
}

/* Each limit from both sides; the mean looks at every pair and tells of the first. */
static void floors(void **state)
{
    (void)state;
    struct contract c = rules();
    struct combined out;
    struct ranked_pair pairs[] = {pair_of(0.95, 1), pair_of(2, 1)};
    combine_pairs(&c, pairs, 1, &out);
    assert_true(out.error == NULL && out.decode_floor && out.prefill_floor);
    pairs[0].control.decode = nextafter(0.95, 0);
    combine_pairs(&c, pairs, 1, &out);
    assert_string_equal(out.error, "performance floor failed");
    assert_string_equal(out.text, "decode_speedup=0.950000 floor=0.950000 "
                                  "prefill_speedup=1.000000 floor=0.950000");
    assert_true(!out.decode_floor && out.prefill_floor);
    pairs[0] = pair_of(1, 1);
    pairs[0].control.prefill = 0.9;
    combine_pairs(&c, pairs, 1, &out);
    assert_true(out.decode_floor && !out.prefill_floor && out.error != NULL);

    c.combine_mean = true; /* the mean clears it, one pair does not */
    pairs[0] = pair_of(0.9, 1);
    combine_pairs(&c, pairs, 2, &out);
    assert_true(out.gains.decode > 1.4 && !out.decode_floor);
    assert_non_null(strstr(out.text, "decode_speedup=0.900000"));
}

static void fast_side_of_bands(void **state)
{
    (void)state;
    struct contract c = rules();
    struct combined out;
    c.has_bands = c.decode_band_down_enabled = true;
    c.decode_band_down = 0.5;
    struct ranked_pair pairs[] = {pair_of(1, 0.5)};
    combine_pairs(&c, pairs, 1, &out);
    assert_null(out.error);
    pairs[0].candidate.decode = nextafter(0.5, 0);
    combine_pairs(&c, pairs, 1, &out);
    assert_string_equal(out.error, "acceptance band failed");
    c.decode_band_down_enabled = false;
    combine_pairs(&c, pairs, 1, &out);
    assert_null(out.error);
    pairs[0].candidate.decode = NAN; /* not finite comes before everything */
    combine_pairs(&c, pairs, 1, &out);
    assert_string_equal(out.error, "score");
    assert_string_equal(out.text, "computed score was not finite");
}

/* ---- the order ---- */

static void schedules(void **state)
{
    (void)state;
    const struct {
        size_t pairs, nulls;
        const char *order; /* p: a pair, n: a null pair */
    } cases[] = {{3, 0, "ppp"},   {1, 1, "pn"},      {2, 1, "pnp"},      {3, 1, "ppnp"},
                 {3, 2, "pnpnp"}, {4, 2, "ppnppnp"}, {6, 2, "ppnppnpp"}, {2, 3, "pnnpn"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const size_t steps = cases[i].pairs + cases[i].nulls;
        char order[32] = "";
        size_t count[2] = {0};
        for (size_t k = 0; k < steps; k++) {
            const struct schedule_step s = combine_schedule(cases[i].pairs, cases[i].nulls, k);
            assert_int_equal(s.index, count[s.null_pair]++);
            order[k] = s.null_pair ? 'n' : 'p';
        }
        assert_int_equal(count[0], cases[i].pairs);
        assert_int_equal(count[1], cases[i].nulls);
        if (strlen(cases[i].order) == steps)
            assert_string_equal(order, cases[i].order);
    }
}

/* ---- the loop ---- */

/* Legs of made-up times: a candidate is `slower` times as slow as control, and each leg is off by a
 * fixed noise. */
struct script {
    double slower, noise;
    int fail_at; /* leg, from 0; -1: none */
    int legs;
    const char *busy; /* roles of legs that others worked beside, in their order; NULL: none */
    char roles[256];
    size_t goldens[64];
};

static bool scripted(void *context, const struct ranked_slot *slot, struct pair_times *out,
                     struct error *err)
{
    struct script *s = context;
    static const double wobble[] = {0.31, -0.74, 0.52, 0.05, -0.93, 0.66, -0.12, 0.88, -0.45, 0.19};
    assert_true(slot->planned > slot->done);
    if (s->busy != NULL && s->busy[0] == "CXab"[slot->role]) {
        s->busy++;
        return error_set(err, "TELEMETRY-CONTENDED", "scripted");
    }
    assert_true(s->busy != NULL || slot->done == (size_t)s->legs);
    if (s->legs == s->fail_at)
        return error_set(err, "EngineExited", "scripted");
    const double off = 1 + s->noise * wobble[s->legs % 10];
    s->roles[s->legs] = "CXab"[slot->role];
    s->goldens[s->legs++] = slot->golden;
    const double t = slot->role == RANKED_CANDIDATE ? s->slower : 1;
    *out = (struct pair_times){0.001 * t * off, 0.01 * t * off, 0.001, 0, 0};
    return true;
}

static const char *const digests[] = {"aa", "bb"};

static struct ranked_runs run_script(struct script *s, const struct paired_rule *rule,
                                     size_t goldens, struct arena *a, bool wanted)
{
    const struct contract c = rules();
    struct ranked_runs runs;
    struct error err = {0};
    assert_true(ranked_pairs_run(&c, rule, digests, goldens, scripted, s, a, &runs, &err) ==
                wanted);
    assert_true(wanted || strcmp(err.name, "EngineExited") == 0);
    return runs;
}

static void identical_trees_score_one(void **state)
{
    (void)state;
    struct arena a = {0};
    const struct paired_rule rule = {
        .min_pairs = 4, .max_pairs = 4, .confidence = 0.95, .null_pairs = 2};
    struct script s = {.slower = 1, .noise = 0, .fail_at = -1};
    struct ranked_runs runs = run_script(&s, &rule, 2, &a, true);
    assert_string_equal(s.roles, "CXCXabCXabCX");
    assert_int_equal(runs.count, 4);
    assert_int_equal(runs.null_count, 2);
    assert_int_equal(runs.stopped, PAIRED_BOUND_REACHED);
    const size_t goldens[] = {0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1};
    for (size_t i = 0; i < COUNT_OF(goldens); i++)
        assert_int_equal(s.goldens[i], goldens[i]);
    assert_string_equal(runs.pairs[1].prompt_sha256, "bb");
    assert_int_equal(runs.pairs[3].number, 4);
    assert_true(runs.estimate.ratio == 1);
    struct combined out;
    const struct contract c = rules();
    combine_pairs(&c, runs.pairs, runs.count, &out);
    assert_true(out.score == 1 && out.error == NULL);

    s = (struct script){.slower = 1, .noise = 0.01, .fail_at = -1};
    runs = run_script(&s, &rule, 1, &a, true);
    assert_int_equal(paired_verdict(&runs.estimate, PAIRED_CLAIM_FLOOR), PAIRED_NO_DIFFERENCE);
    assert_true(runs.estimate.t_low < 1 && runs.estimate.t_high > 1);
    struct paired_null null_pair;
    assert_true(paired_null_check(&runs.estimate, &runs.null_estimate, 0.95, &null_pair));
    assert_true(null_pair.contains_one);
    arena_free(&a);
}

/* Three percent are seen, three tenths of a percent are claimed neither way. */
static void slower_trees(void **state)
{
    (void)state;
    struct arena a = {0};
    const struct paired_rule rule = {
        .min_pairs = 6, .max_pairs = 6, .confidence = 0.95, .null_pairs = 2};
    struct script s = {.slower = 1.03, .noise = 0.005, .fail_at = -1};
    struct ranked_runs runs = run_script(&s, &rule, 1, &a, true);
    assert_int_equal(paired_verdict(&runs.estimate, PAIRED_CLAIM_FLOOR), PAIRED_SLOWER);
    s = (struct script){.slower = 1.003, .noise = 0.005, .fail_at = -1};
    runs = run_script(&s, &rule, 1, &a, true);
    assert_int_equal(paired_verdict(&runs.estimate, PAIRED_CLAIM_FLOOR), PAIRED_NO_DIFFERENCE);
    s = (struct script){.slower = 1.003, .noise = 0, .fail_at = -1}; /* not even where it is sure */
    runs = run_script(&s, &rule, 1, &a, true);
    assert_int_equal(paired_verdict(&runs.estimate, PAIRED_CLAIM_FLOOR), PAIRED_NO_DIFFERENCE);
    arena_free(&a);
}

/* A pair beside which others worked is measured again, whole; and not for ever. */
static void busy_machine(void **state)
{
    (void)state;
    struct arena a = {0};
    const struct contract c = rules();
    struct error err = {0};
    struct ranked_runs runs;
    const struct paired_rule rule = {
        .min_pairs = 6, .max_pairs = 6, .confidence = 0.95, .null_pairs = 2};
    struct script s = {.slower = 1.5, .fail_at = -1, .busy = "bX"};
    assert_true(ranked_pairs_run(&c, &rule, digests, 1, scripted, &s, &a, &runs, &err));
    assert_int_equal(runs.count, 6);
    assert_int_equal(runs.null_count, 2);
    assert_int_equal(runs.set_aside, 2);
    assert_string_equal(s.roles, "CXCXaabCCXCXabCXCX");
    assert_true(fabs(runs.estimate.ratio * 1.5 - 1) < 1e-12 && err.name[0] == '\0');
    for (int i = 0; i < 6; i++)
        assert_int_equal(runs.pairs[i].number, i + 1);
    s = (struct script){
        .slower = 1, .fail_at = -1, .busy = "XXX"}; /* one, and one for each eight pairs */
    assert_false(ranked_pairs_run(&c, &rule, digests, 1, scripted, &s, &a, &runs, &err));
    assert_string_equal(err.name, "TELEMETRY-CONTENDED");
    assert_int_equal(runs.set_aside, 2);
    assert_int_equal(runs.count, 0);
    arena_free(&a);
}

/* Noise asks for more pairs, up to the bound, whole rounds of goldens at a time; the same whether
 * the candidate is faster or slower. */
static void sequential(void **state)
{
    (void)state;
    struct arena a = {0};
    struct paired_rule rule = {
        .min_pairs = 4, .max_pairs = 9, .half_width = 0.001, .confidence = 0.95, .null_pairs = 1};
    size_t counts[2];
    for (int i = 0; i < 2; i++) {
        struct script s = {.slower = i == 0 ? 1.1 : 1 / 1.1, .noise = 0.02, .fail_at = -1};
        const struct ranked_runs runs = run_script(&s, &rule, 2, &a, true);
        counts[i] = runs.count;
        assert_int_equal(runs.stopped, PAIRED_BOUND_REACHED);
    }
    assert_int_equal(counts[0], 8); /* 10 would pass the bound of 9 */
    assert_int_equal(counts[1], 8);
    rule.half_width = 0.5;
    struct script s = {.slower = 1, .noise = 0.02, .fail_at = -1};
    const struct ranked_runs runs = run_script(&s, &rule, 2, &a, true);
    assert_int_equal(runs.count, 4);
    assert_int_equal(runs.stopped, PAIRED_NARROW_ENOUGH);
    arena_free(&a);
}

/* Every second pair of either kind the other way round; the times stand with their legs. */
static void alternating(void **state)
{
    (void)state;
    struct arena a = {0};
    struct contract c = rules();
    const struct paired_rule rule = {
        .min_pairs = 3, .max_pairs = 3, .confidence = 0.95, .null_pairs = 2};
    struct script s = {.slower = 2, .fail_at = -1};
    struct ranked_runs runs;
    struct error err;
    c.alternate_pairs = true;
    assert_true(ranked_pairs_run(&c, &rule, digests, 1, scripted, &s, &a, &runs, &err));
    assert_string_equal(s.roles, "CXabXCbaCX");
    for (size_t i = 0; i < 3; i++)
        assert_true(runs.pairs[i].candidate.decode == 2 * runs.pairs[i].control.decode);
    arena_free(&a);
}

/* A leg that fails ends the run; what was measured whole is kept. */
static void failing_leg(void **state)
{
    (void)state;
    struct arena a = {0};
    const struct paired_rule rule = {
        .min_pairs = 3, .max_pairs = 3, .confidence = 0.95, .null_pairs = 1};
    for (int leg = 0; leg < 8; leg++) {
        struct script s = {.slower = 1, .fail_at = leg};
        const struct ranked_runs runs = run_script(&s, &rule, 1, &a, false);
        assert_int_equal(s.legs, leg);
        assert_int_equal(runs.count + runs.null_count, (size_t)leg / 2);
    }
    arena_free(&a);
}

/* ---- tokens that are not the golden's ---- */

static struct wire_top_logits top_of(struct wire_top_logit *items, double first, double second)
{
    items[0] = (struct wire_top_logit){.token = 7, .logit = first};
    items[1] = (struct wire_top_logit){.token = 9, .logit = second};
    items[2] = (struct wire_top_logit){.token = 3, .logit = second - 1};
    return (struct wire_top_logits){.present = true, .count = 3, .items = items};
}

static void replayed_positions(void **state)
{
    (void)state;
    struct contract c = rules();
    struct wire_top_logit items[3];
    struct pair_tokens t;
    c.has_token_tolerance = c.has_near_tie_gap = true;
    c.token_tolerance_per_thousand = 100;
    c.near_tie_relative_gap = 0.125;
    token_replay_begin(&t);
    struct wire_top_logits top = top_of(items, 8, 7); /* relative gap (8 - 7) / 8 */
    token_replay_position(&t, &c, 0, 7, 7, &top);
    assert_true(t.judged && t.mismatches == 0 && t.first_step == -1);
    token_replay_position(&t, &c, 4, 9, 7, &top); /* at the gap */
    assert_true(t.mismatches == 1 && t.first_step == 4 && t.near_ties == 1 &&
                t.second_choices == 1 && t.largest_second_choice_gap == 0.125);
    top = top_of(items, 8, 6.5);
    token_replay_position(&t, &c, 5, 9, 7, &top); /* second choice, too far */
    assert_true(t.mismatches == 2 && t.near_ties == 1 && t.second_choices == 2);
    token_replay_position(&t, &c, 6, 3, 7, &top); /* third */
    assert_true(t.mismatches == 3 && t.near_ties == 1 && t.second_choices == 2);
    top = top_of(items, 0.5, 0.375); /* below 1 the gap is absolute: 0.125 / 1 */
    token_replay_position(&t, &c, 7, 9, 7, &top);
    assert_int_equal(t.near_ties, 2);
    top = top_of(items, 7, 8); /* a list that cannot be trusted */
    token_replay_position(&t, &c, 8, 9, 7, &top);
    assert_true(t.mismatches == 5 && t.second_choices == 3 && t.first_step == 4);
}

static void replayed_windows(void **state)
{
    (void)state;
    struct contract c = rules();
    struct error err = {0};
    c.has_token_tolerance = true;
    c.token_tolerance_per_thousand = 100;
    struct pair_tokens t = {.judged = true, .mismatches = 2};
    assert_true(token_replay_end(&t, &c, 20, &err)); /* 100 per thousand */
    assert_false(token_replay_end(&t, &c, 19, &err));
    assert_string_equal(err.name, "TIMED-DIVERGENCE-OVER-TOLERANCE");
    c.has_near_tie_gap = true;
    t.near_ties = 2;
    assert_true(token_replay_end(&t, &c, 20, &err));
    t.near_ties = 1; /* named before the count is looked at */
    assert_false(token_replay_end(&t, &c, 19, &err));
    assert_string_equal(err.name, "TIMED-DIVERGENCE-NOT-A-NEAR-TIE");
}

/* The records that are sealed. */
static void sealed_pairs(void **state)
{
    (void)state;
    struct ranked_pair pairs[] = {pair_of(2, 1), pair_of(3, 1)};
    pairs[0].number = 1;
    pairs[1].number = 2;
    pairs[1].tokens = (struct pair_tokens){.judged = true, .first_step = -1};
    json_t *list = combine_seal(pairs, 2);
    assert_int_equal(json_array_size(list), 2);
    const json_t *one = json_array_get(list, 0), *two = json_array_get(list, 1);
    assert_true(json_real_value(json_object_get(one, "control_decode_seconds_per_token")) == 2);
    assert_null(json_object_get(one, "token_mismatch_count"));
    assert_int_equal(json_integer_value(json_object_get(two, "token_mismatch_count")), 0);
    assert_null(json_object_get(two, "token_mismatch_first_step"));
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gains_by_hand),
        cmocka_unit_test(lower_median_of_pairs),
        cmocka_unit_test(mean_of_pairs),
        cmocka_unit_test(floors),
        cmocka_unit_test(untimed_work),
        cmocka_unit_test(untimed_work_behind),
        cmocka_unit_test(fast_side_of_bands),
        cmocka_unit_test(schedules),
        cmocka_unit_test(identical_trees_score_one),
        cmocka_unit_test(slower_trees),
        cmocka_unit_test(busy_machine),
        cmocka_unit_test(sequential),
        cmocka_unit_test(failing_leg),
        cmocka_unit_test(alternating),
        cmocka_unit_test(replayed_positions),
        cmocka_unit_test(replayed_windows),
        cmocka_unit_test(sealed_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
