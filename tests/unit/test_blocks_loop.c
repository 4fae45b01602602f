/* The loop of the ranked run of block decoding (judge/blocks/loop.h), with legs from a script:
 * which pairs count, which are measured again, when there are enough, and who has failed. */
#include "judge/blocks/document.h"
#include "judge/blocks/loop.h"

#include "base/arena.h"
#include "base/buffer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS = 64, LEGS_MOST = 200 };
static const double SERIAL = 0.010, BLOCKS = 0.005;

/* What one measured leg is made to be; legs without an entry are right. */
struct line {
    enum blocks_role role;
    int pair, attempt; /* attempt 0: every one */
    enum block_rejection why;
    const char *fails, *violates; /* names of errors: of the leg, of its replay */
    double seconds_per_token;     /* 0: the usual */
};

struct script {
    const struct line *lines;
    size_t count;
    double noise; /* pair k's candidate is so much slower, times k - 1 */
    char log[4096];
    size_t measured, judged;
};

static const struct line *line_of(const struct script *s, const struct blocks_slot *slot)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->lines[i].role == slot->role && s->lines[i].pair == slot->pair &&
            (s->lines[i].attempt == 0 || s->lines[i].attempt == slot->attempt))
            return &s->lines[i];
    return NULL;
}

static bool measure(void *context, const struct blocks_slot *slot, struct blocks_leg *out,
                    struct error *err)
{
    struct script *s = context;
    const struct line *l = line_of(s, slot);
    const enum block_rejection why = l != NULL ? l->why : BLOCK_REJECTION_COUNT;
    const size_t used = strlen(s->log);
    snprintf(s->log + used, sizeof s->log - used, "%s%s%d.%d", used > 0 ? " " : "",
             blocks_role_name(slot->role), slot->pair, slot->attempt);
    s->measured++;
    assert_true(s->measured < LEGS_MOST);
    if (l != NULL && l->fails != NULL)
        return error_set(err, l->fails, "scripted");
    const bool candidate = slot->role == BLOCKS_CANDIDATE;
    double seconds = candidate ? BLOCKS * (1 + s->noise * (slot->pair - 1)) : SERIAL;
    if (l != NULL && l->seconds_per_token != 0)
        seconds = l->seconds_per_token;
    *out = (struct blocks_leg){.temperature_held = why != BLOCK_REJECTION_temperature_timeout,
                               .telemetry_holds = why != BLOCK_REJECTION_telemetry,
                               .measured = why != BLOCK_REJECTION_temperature_timeout,
                               .median_request = 0.0123456,
                               .longest_request = 0.0223456,
                               .stalled = why == BLOCK_REJECTION_stall_guardrail};
    if (why == BLOCK_REJECTION_calibration_band)
        seconds *= 1.06;
    out->report =
        (struct block_report){.tokens = why == BLOCK_REJECTION_decode_tokens ? TOKENS - 1 : TOKENS,
                              .block_size = candidate ? 4 : 1,
                              .seconds_per_token = seconds,
                              .decode_seconds = seconds * TOKENS};
    return true;
}

static bool judge(void *context, const struct blocks_slot *slot, struct blocks_leg *leg,
                  struct error *err)
{
    struct script *s = context;
    const struct line *l = line_of(s, slot);
    s->judged++;
    assert_true(leg->measured);
    if (l != NULL && l->violates != NULL)
        return error_set(err, l->violates, "scripted");
    leg->report.all_matched = true;
    return true;
}

/* ---- The contract ---- */

static struct contract contract_of(int64_t least, int64_t target)
{
    struct contract c = {.track_id = "toy-dflash-v1", .has_block_decode = true};
    c.block_decode = (struct contract_block_decode){.block_size = 4,
                                                    .decode_tokens = TOKENS,
                                                    .min_accepted_pairs = least,
                                                    .target_pairs = target,
                                                    .stall_factor = 4,
                                                    .raw_speedup_min = 0.5,
                                                    .raw_speedup_max = 5,
                                                    .has_calibration = true,
                                                    .serial_seconds_per_token = SERIAL,
                                                    .calibration_band = 0.05,
                                                    .calibration_decode_tokens = TOKENS};
    return c;
}

struct run {
    struct contract c;
    struct paired_rule rule;
    struct script script;
    struct arena arena;
    struct blocks_runs runs;
    struct error err;
    bool ok;
};

static void play(struct run *r, const struct line *lines, size_t count)
{
    r->script.lines = lines;
    r->script.count = count;
    const struct blocks_doors doors = {.context = &r->script, .measure = measure, .judge = judge};
    r->ok = blocks_loop_run(&r->c, &r->rule, &doors, &r->arena, &r->runs, &r->err);
}

static struct run begin(int64_t least, int64_t target)
{
    struct run r = {.c = contract_of(least, target)};
    r.rule = blocks_rule(&r.c);
    return r;
}

static void finish(struct run *r)
{
    arena_free(&r->arena);
}

/* ---- Tests ---- */

static void the_rule_is_the_contracts(void **state)
{
    (void)state;
    struct run r = begin(3, 4);
    assert_int_equal(r.rule.min_pairs, 4);
    assert_int_equal(r.rule.max_pairs, 4);
    assert_int_equal(r.rule.null_pairs, 1);
    assert_string_equal(r.rule.axis, "decode");
    assert_false(paired_rule_is_sequential(&r.rule));
    r.c.has_official_pairs = true;
    r.c.official_pairs = 2;
    r.c.has_statistics = true;
    r.c.statistics = (struct contract_statistics){
        .null_pairs = 2, .max_pairs = 9, .half_width = 0.01, .confidence = 0.9};
    r.rule = blocks_rule(&r.c);
    assert_int_equal(r.rule.min_pairs, 4);
    assert_int_equal(r.rule.max_pairs, 9);
    assert_int_equal(r.rule.null_pairs, 2);
    assert_true(paired_rule_is_sequential(&r.rule));
    finish(&r);
}

static void order_alternates_and_nulls_are_between(void **state)
{
    (void)state;
    struct run r = begin(3, 4);
    play(&r, NULL, 0);
    assert_true(r.ok);
    assert_string_equal(r.script.log, "control1.1 candidate1.1 null-a1.1 null-b1.1 "
                                      "candidate2.1 control2.1 control3.1 candidate3.1 "
                                      "candidate4.1 control4.1");
    assert_int_equal(r.script.judged, 10);
    assert_int_equal(r.runs.accepted, 4);
    assert_int_equal(r.runs.null_accepted, 1);
    assert_true(blocks_loop_suffices(&r.c, &r.runs, &r.err));
    assert_int_equal(r.runs.stopped, PAIRED_BOUND_REACHED);
    assert_true(r.runs.has_statistics);
    assert_true(fabs(r.runs.estimate.ratio - 2.0) < 1e-12);
    assert_int_equal(r.runs.null_estimate.count, 1);
    assert_true(fabs(r.runs.null_estimate.ratio - 1.0) < 1e-12);
    finish(&r);
}

static void more_null_pairs_than_pairs_are_measured_at_the_end(void **state)
{
    (void)state;
    struct run r = begin(1, 1);
    r.rule.null_pairs = 3;
    play(&r, NULL, 0);
    assert_true(r.ok);
    assert_int_equal(r.runs.null_accepted, 3);
    assert_int_equal(r.script.measured, 8);
    finish(&r);
}

/* Each class, of each leg, is measured again once; the second time it is left out. */
static void every_class_has_one_retry(void **state)
{
    (void)state;
    for (size_t why = 0; why < BLOCK_REJECTION_COUNT; why++)
        for (int leg = 0; leg < 2; leg++) {
            const enum blocks_role role = leg == 0 ? BLOCKS_CONTROL : BLOCKS_CANDIDATE;
            if (role == BLOCKS_CANDIDATE && why == BLOCK_REJECTION_calibration_band)
                continue; /* of the control alone */
            const struct line once = {
                .role = role, .pair = 2, .attempt = 1, .why = (enum block_rejection)why};
            struct run r = begin(3, 4);
            play(&r, &once, 1);
            assert_true(r.ok);
            assert_int_equal(r.runs.accepted, 4);
            assert_int_equal(r.runs.rejected[why], 1);
            assert_true(blocks_loop_suffices(&r.c, &r.runs, &r.err));
            assert_non_null(strstr(r.script.log, "control2.2"));
            finish(&r);

            const struct line always = {.role = role, .pair = 2, .why = (enum block_rejection)why};
            r = begin(3, 4);
            play(&r, &always, 1);
            assert_true(r.ok);
            assert_int_equal(r.runs.accepted, 3);
            assert_int_equal(r.runs.rejected[why], 2);
            assert_null(strstr(r.script.log, "control2.3"));
            assert_true(blocks_loop_suffices(&r.c, &r.runs, &r.err));
            finish(&r);
        }
}

static void a_class_has_one_retry_in_a_run(void **state)
{
    (void)state;
    const struct line lines[] = {
        {.role = BLOCKS_CONTROL, .pair = 1, .why = BLOCK_REJECTION_stall_guardrail},
        {.role = BLOCKS_CONTROL, .pair = 3, .why = BLOCK_REJECTION_stall_guardrail},
        {.role = BLOCKS_CANDIDATE, .pair = 4, .attempt = 1, .why = BLOCK_REJECTION_telemetry}};
    struct run r = begin(3, 4);
    play(&r, lines, 3);
    assert_true(r.ok);
    /* Pair 1 twice, pair 3 once, pair 4 again for its own class. */
    assert_null(strstr(r.script.log, "control3.2"));
    assert_non_null(strstr(r.script.log, "candidate4.2"));
    assert_int_equal(r.runs.rejected[BLOCK_REJECTION_stall_guardrail], 3);
    assert_int_equal(r.runs.accepted, 2);
    assert_false(blocks_loop_suffices(&r.c, &r.runs, &r.err));
    assert_string_equal(r.err.name, "BLOCK-PAIRS-REJECTED");
    assert_non_null(strstr(r.err.message, "no failure of the submission"));
    assert_non_null(strstr(r.err.message, "telemetry (1), stall_guardrail (3)"));
    finish(&r);
}

/* A pair may be rejected for one class after the other; each has its retry. */
static void classes_in_a_row(void **state)
{
    (void)state;
    struct line lines[BLOCK_REJECTION_COUNT];
    for (int i = 0; i < BLOCK_REJECTION_COUNT; i++)
        lines[i] = (struct line){
            .role = BLOCKS_CONTROL, .pair = 1, .attempt = i + 1, .why = (enum block_rejection)i};
    struct run r = begin(1, 1);
    play(&r, lines, BLOCK_REJECTION_COUNT);
    assert_true(r.ok);
    assert_int_equal(r.runs.accepted, 1);
    assert_non_null(strstr(r.script.log, "control1.6 candidate1.6"));
    finish(&r);
}

static void a_spoilt_first_leg_spares_the_second(void **state)
{
    (void)state;
    const struct line lines[] = {
        {.role = BLOCKS_CONTROL, .pair = 1, .attempt = 1, .why = BLOCK_REJECTION_telemetry},
        {.role = BLOCKS_CANDIDATE,
         .pair = 2,
         .attempt = 1,
         .why = BLOCK_REJECTION_temperature_timeout}};
    struct run r = begin(2, 2);
    play(&r, lines, 2);
    assert_true(r.ok);
    assert_string_equal(r.script.log, "control1.1 control1.2 candidate1.2 null-a1.1 null-b1.1 "
                                      "candidate2.1 candidate2.2 control2.2");
    assert_int_equal(r.runs.attempts[0].rejection, BLOCK_REJECTION_telemetry);
    assert_int_equal(r.runs.attempts[3].rejection, BLOCK_REJECTION_temperature_timeout);
    /* The leg with bad clocks was judged all the same; the one that was not run was not. */
    assert_int_equal(r.script.judged, 7);
    finish(&r);
}

static void outside_the_band_nothing_is_scored(void **state)
{
    (void)state;
    const struct line lines[] = {
        {.role = BLOCKS_CONTROL, .pair = 1, .why = BLOCK_REJECTION_calibration_band},
        {.role = BLOCKS_CONTROL, .pair = 2, .why = BLOCK_REJECTION_calibration_band}};
    struct run r = begin(3, 4);
    play(&r, lines, 2);
    assert_true(r.ok);
    assert_int_equal(r.runs.accepted, 2);
    assert_false(blocks_loop_suffices(&r.c, &r.runs, &r.err));
    assert_string_equal(r.err.name, "SERIAL-CONTROL-LEG-OUTSIDE-BAND");
    finish(&r);
}

/* Both legs of a null pair are controls: the second is held to the band too. */
static void a_null_pair_has_two_controls(void **state)
{
    (void)state;
    const struct line lines[] = {
        {.role = BLOCKS_NULL_B, .pair = 1, .why = BLOCK_REJECTION_calibration_band}};
    struct run r = begin(1, 2);
    play(&r, lines, 1);
    assert_true(r.ok);
    assert_int_equal(r.runs.accepted, 2);
    assert_int_equal(r.runs.null_accepted, 0);
    assert_int_equal(r.runs.null_estimate.count, 0);
    assert_int_equal(r.runs.rejected[BLOCK_REJECTION_calibration_band], 2);
    assert_false(blocks_loop_suffices(&r.c, &r.runs, &r.err));
    assert_string_equal(r.err.name, "SERIAL-CONTROL-LEG-OUTSIDE-BAND");
    finish(&r);
}

static void a_null_pairs_retries_are_its_own(void **state)
{
    (void)state;
    const struct line lines[] = {
        {.role = BLOCKS_CONTROL, .pair = 1, .attempt = 1, .why = BLOCK_REJECTION_telemetry},
        {.role = BLOCKS_NULL_A, .pair = 1, .attempt = 1, .why = BLOCK_REJECTION_telemetry}};
    struct run r = begin(2, 2);
    play(&r, lines, 2);
    assert_true(r.ok);
    assert_int_equal(r.runs.accepted, 2);
    assert_int_equal(r.runs.null_accepted, 1);
    finish(&r);
}

static void a_leg_that_fails_ends_the_run(void **state)
{
    (void)state;
    const struct line line = {.role = BLOCKS_CANDIDATE, .pair = 2, .fails = "EngineExited"};
    struct run r = begin(3, 4);
    play(&r, &line, 1);
    assert_false(r.ok);
    assert_string_equal(r.err.name, "EngineExited");
    assert_int_equal(r.runs.failed, BLOCKS_CANDIDATE);
    assert_int_equal(r.runs.accepted, 1);
    finish(&r);

    const struct line control = {.role = BLOCKS_NULL_B, .pair = 1, .fails = "EngineExited"};
    r = begin(3, 4);
    play(&r, &control, 1);
    assert_false(r.ok);
    assert_int_equal(r.runs.failed, BLOCKS_NULL_B);
    finish(&r);
}

/* A violation ends the run, even of a pair that would be rejected. */
static void a_violation_ends_the_run(void **state)
{
    (void)state;
    const struct line line = {.role = BLOCKS_CANDIDATE,
                              .pair = 1,
                              .why = BLOCK_REJECTION_stall_guardrail,
                              .violates = "dflash_fabricated_rejection"};
    struct run r = begin(3, 4);
    play(&r, &line, 1);
    assert_false(r.ok);
    assert_string_equal(r.err.name, "dflash_fabricated_rejection");
    assert_int_equal(r.runs.failed, BLOCKS_CANDIDATE);
    assert_int_equal(r.runs.count, 1);
    assert_true(r.runs.attempts[0].unfinished);
    json_t *records = blocks_pair_records(&r.runs, false);
    assert_int_equal(json_array_size(records), 0); /* no verdict, no record */
    json_decref(records);
    finish(&r);
}

static struct run sequential(double noise, double half_width)
{
    struct run r = begin(3, 4);
    r.rule.max_pairs = 9;
    r.rule.half_width = half_width;
    r.rule.confidence = 0.95;
    r.script.noise = noise;
    return r;
}

static void pairs_are_added_until_narrow(void **state)
{
    (void)state;
    struct run r = sequential(0, 0.01); /* no noise: narrow at once, when the rule may look */
    play(&r, NULL, 0);
    assert_true(r.ok);
    assert_int_equal(r.runs.stopped, PAIRED_NARROW_ENOUGH);
    assert_true(r.runs.accepted >= 4 && r.runs.accepted < 9);
    finish(&r);

    r = sequential(0.2, 0.0001); /* never narrow */
    play(&r, NULL, 0);
    assert_true(r.ok);
    assert_int_equal(r.runs.stopped, PAIRED_BOUND_REACHED);
    assert_int_equal(r.runs.accepted, 9);
    finish(&r);
}

/* The sign is not looked at: a slower candidate of the same spread is measured as often. */
static void the_rule_does_not_look_at_the_sign(void **state)
{
    (void)state;
    size_t counts[2];
    for (int i = 0; i < 2; i++) {
        struct line lines[9];
        for (int k = 0; k < 9; k++) {
            const double step = 1 + 0.01 * (k % 3);
            lines[k] = (struct line){.role = BLOCKS_CANDIDATE,
                                     .pair = k + 1,
                                     .why = BLOCK_REJECTION_COUNT,
                                     .seconds_per_token = SERIAL * (i == 0 ? 0.5 : 2) * step};
        }
        struct run r = sequential(0, 0.012);
        play(&r, lines, 9);
        assert_true(r.ok);
        counts[i] = r.runs.accepted;
        finish(&r);
    }
    assert_int_equal(counts[0], counts[1]);
}

static void lost_pairs_are_made_up_for_where_pairs_may_be_added(void **state)
{
    (void)state;
    const struct line lines[] = {
        {.role = BLOCKS_CONTROL, .pair = 1, .why = BLOCK_REJECTION_telemetry},
        {.role = BLOCKS_CONTROL, .pair = 2, .why = BLOCK_REJECTION_telemetry}};
    struct run r = begin(3, 4);
    play(&r, lines, 2);
    assert_int_equal(r.runs.accepted, 2); /* a fixed number is not filled up */
    finish(&r);
    r = sequential(0, 0.01);
    play(&r, lines, 2);
    assert_true(r.ok);
    assert_true(r.runs.accepted >= 4);
    assert_true(r.runs.attempts[r.runs.count - 1].pair <= 9);
    finish(&r);
}

/* Even where everything is rejected, the run ends, and the record holds every attempt. */
static void a_hopeless_machine(void **state)
{
    (void)state;
    struct line lines[20];
    for (int k = 0; k < 9; k++) {
        lines[k] = (struct line){
            .role = BLOCKS_CONTROL, .pair = k + 1, .why = BLOCK_REJECTION_temperature_timeout};
        lines[9 + k] = (struct line){
            .role = BLOCKS_CANDIDATE, .pair = k + 1, .why = BLOCK_REJECTION_temperature_timeout};
    }
    lines[18] =
        (struct line){.role = BLOCKS_NULL_A, .pair = 1, .why = BLOCK_REJECTION_temperature_timeout};
    struct run r = sequential(0, 0.01);
    play(&r, lines, 19);
    assert_true(r.ok);
    assert_int_equal(r.runs.accepted, 0);
    assert_false(r.runs.has_statistics);
    assert_int_equal(r.script.judged, 0);
    assert_false(blocks_loop_suffices(&r.c, &r.runs, &r.err));
    assert_string_equal(r.err.name, "BLOCK-PAIRS-REJECTED");
    json_t *pairs = blocks_pair_records(&r.runs, false);
    assert_int_equal(json_array_size(pairs), 10); /* nine, and one retry of the class */
    json_decref(pairs);
    finish(&r);
}

static void times_that_are_none(void **state)
{
    (void)state;
    const double values[] = {NAN, INFINITY, -1.0};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const struct line line = {.role = BLOCKS_CANDIDATE,
                                  .pair = 1,
                                  .attempt = 1,
                                  .why = BLOCK_REJECTION_COUNT,
                                  .seconds_per_token = values[i]};
        struct run r = begin(1, 1);
        play(&r, &line, 1);
        assert_true(r.ok);
        assert_int_equal(r.runs.rejected[BLOCK_REJECTION_decode_tokens], 1);
        assert_int_equal(r.runs.accepted, 1);
        json_t *records = blocks_pair_records(&r.runs, false);
        assert_int_equal(json_array_size(records), 2);
        json_decref(records);
        finish(&r);
    }
}

static void records_tell_what_was_measured(void **state)
{
    (void)state;
    const struct line line = {
        .role = BLOCKS_CANDIDATE, .pair = 2, .attempt = 1, .why = BLOCK_REJECTION_telemetry};
    struct run r = begin(2, 2);
    play(&r, &line, 1);
    json_t *records = blocks_pair_records(&r.runs, false);
    char *text = json_dumps(records, JSON_COMPACT | JSON_REAL_PRECISION(4));
    assert_string_equal(
        text,
        "[{\"pair\":1,\"attempt\":1,\"order\":\"control-first\",\"control_seconds_per_token\":0.01,"
        "\"control_p50_request_seconds\":0.012,\"control_max_request_seconds\":0.022,"
        "\"candidate_seconds_per_token\":0.005,\"candidate_p50_request_seconds\":0.012,"
        "\"candidate_max_request_seconds\":0.022,\"accepted\":true,\"rejection\":null},"
        "{\"pair\":2,\"attempt\":1,\"order\":\"candidate-first\","
        "\"control_seconds_per_token\":null,\"control_p50_request_seconds\":null,"
        "\"control_max_request_seconds\":null,\"candidate_seconds_per_token\":0.005,"
        "\"candidate_p50_request_seconds\":0.012,\"candidate_max_request_seconds\":0.022,"
        "\"accepted\":false,\"rejection\":\"telemetry\"},"
        "{\"pair\":2,\"attempt\":2,\"order\":\"candidate-first\","
        "\"control_seconds_per_token\":0.01,\"control_p50_request_seconds\":0.012,"
        "\"control_max_request_seconds\":0.022,\"candidate_seconds_per_token\":0.005,"
        "\"candidate_p50_request_seconds\":0.012,\"candidate_max_request_seconds\":0.022,"
        "\"accepted\":true,\"rejection\":null}]");
    free(text);
    json_decref(records);
    finish(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule_is_the_contracts),
        cmocka_unit_test(order_alternates_and_nulls_are_between),
        cmocka_unit_test(more_null_pairs_than_pairs_are_measured_at_the_end),
        cmocka_unit_test(every_class_has_one_retry),
        cmocka_unit_test(a_class_has_one_retry_in_a_run),
        cmocka_unit_test(classes_in_a_row),
        cmocka_unit_test(a_spoilt_first_leg_spares_the_second),
        cmocka_unit_test(outside_the_band_nothing_is_scored),
        cmocka_unit_test(a_null_pair_has_two_controls),
        cmocka_unit_test(a_null_pairs_retries_are_its_own),
        cmocka_unit_test(a_leg_that_fails_ends_the_run),
        cmocka_unit_test(a_violation_ends_the_run),
        cmocka_unit_test(pairs_are_added_until_narrow),
        cmocka_unit_test(the_rule_does_not_look_at_the_sign),
        cmocka_unit_test(lost_pairs_are_made_up_for_where_pairs_may_be_added),
        cmocka_unit_test(a_hopeless_machine),
        cmocka_unit_test(times_that_are_none),
        cmocka_unit_test(records_tell_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
