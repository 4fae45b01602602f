/* The ranked score document of block decoding: what it holds when a run has passed, what it tells
 * of one that has not, and every way in which it is refused. */
#include "judge/block_score.h"
#include "judge/blocks/document.h"
#include "judge/score.h"

#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define HIDDEN "1111111111111111111111111111111111111111111111111111111111111111"
#define PUBLIC "2222222222222222222222222222222222222222222222222222222222222222"
#define DRAFTER "3333333333333333333333333333333333333333333333333333333333333333"

enum { PAIRS = 2, TOKENS = 64 };

struct fixture {
    struct contract c;
    struct contract_pool_entry entry;
    struct block_report control[PAIRS], candidate[PAIRS];
    struct blocks_attempt attempts[PAIRS + 2];
    struct blocks_runs runs;
    struct paired_rule rule;
    struct block_score_inputs in;
    struct score_document d;
    struct buffer text;
    struct error err;
};

static struct blocks_leg leg(double seconds)
{
    return (struct blocks_leg){.temperature_held = true,
                               .telemetry_holds = true,
                               .measured = true,
                               .median_request = seconds,
                               .longest_request = 2 * seconds,
                               .report = {.tokens = TOKENS,
                                          .block_size = 4,
                                          .seconds_per_token = seconds,
                                          .decode_seconds = seconds * TOKENS,
                                          .accepted = 6,
                                          .rejected = 2,
                                          .rounds = 3,
                                          .all_matched = true,
                                          .trained_drafter = true,
                                          .own_reference = true}};
}

/* Two pairs that count, one that does not before them, one null pair. */
static void build(struct fixture *f, double noop)
{
    *f = (struct fixture){0};
    f->entry.noop_decode_speedup = noop;
    memcpy(f->entry.sha256, HIDDEN, sizeof f->entry.sha256);
    f->c = (struct contract){.track_id = "t-v1",
                             .pool = &f->entry,
                             .pool_count = 1,
                             .has_decode_floor = true,
                             .decode_speedup_floor = 0.95,
                             .has_block_decode = true,
                             .block_decode = {.block_size = 4,
                                              .decode_tokens = TOKENS,
                                              .min_accepted_pairs = 2,
                                              .target_pairs = 2,
                                              .stall_factor = 4,
                                              .raw_speedup_min = 0.5,
                                              .raw_speedup_max = 5}};
    f->rule = blocks_rule(&f->c);
    double control[PAIRS], candidate[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        struct blocks_attempt *t = &f->attempts[i + 1];
        *t = (struct blocks_attempt){.pair = i + 1,
                                     .attempt = i == 0 ? 2 : 1,
                                     .control_first = i == 0,
                                     .control = leg(0.02),
                                     .candidate = leg(0.01),
                                     .rejection = BLOCK_REJECTION_COUNT};
        f->control[i] = t->control.report;
        f->candidate[i] = t->candidate.report;
        control[i] = 0.02;
        candidate[i] = 0.01;
    }
    f->attempts[0] = f->attempts[1];
    f->attempts[0].attempt = 1;
    f->attempts[0].rejection = BLOCK_REJECTION_telemetry;
    f->attempts[0].candidate = (struct blocks_leg){.temperature_held = true};
    f->attempts[PAIRS + 1] = f->attempts[2];
    f->attempts[PAIRS + 1].null_pair = true;
    f->attempts[PAIRS + 1].pair = 1;
    f->runs = (struct blocks_runs){.attempts = f->attempts,
                                   .count = PAIRS + 2,
                                   .control = f->control,
                                   .candidate = f->candidate,
                                   .accepted = PAIRS,
                                   .null_accepted = 1,
                                   .stopped = PAIRED_BOUND_REACHED,
                                   .has_statistics = true};
    assert_true(paired_estimate(control, candidate, PAIRS, 0.95, 1, &f->runs.estimate));
    f->in = (struct block_score_inputs){.contract = &f->c,
                                        .mode = BLOCK_OFFICIAL,
                                        .tokens = TOKENS,
                                        .golden_sha256 = HIDDEN,
                                        .probes = f->control,
                                        .benchmarks = f->candidate,
                                        .pair_count = PAIRS,
                                        .correctness_sha256 = PUBLIC,
                                        .drafter_sha256 = DRAFTER,
                                        .passed_correctness = true};
    score_document_init(&f->d, "rust");
}

static void fill(struct fixture *f)
{
    block_score_fill(&f->d, &f->in);
    score_set_json(&f->d, "gates", json_array());
    blocks_seal_runs(&f->runs, &f->rule, &f->d);
}

static bool render(struct fixture *f)
{
    buffer_clear(&f->text);
    return score_render(&f->d, &f->text, &f->err) &&
           score_validate(f->text.data, f->text.length, &f->err);
}

static void drop(struct fixture *f)
{
    score_document_free(&f->d);
    buffer_free(&f->text);
}

static json_t *at(struct fixture *f, const char *key)
{
    return json_object_get(f->d.metrics, key);
}

static void a_run_that_passes(void **state)
{
    (void)state;
    struct fixture f;
    build(&f, 1.25);
    fill(&f);
    assert_true(render(&f));
    assert_true(f.d.passed);
    assert_true(f.d.score == 2.0 / 1.25);
    assert_string_equal(json_string_value(at(&f, "mode")), "dflash-paired-decode-only");
    assert_true(json_is_true(at(&f, "rankable")) && json_is_true(at(&f, "official_score")));
    assert_true(json_is_true(at(&f, "parity_all_ok")));
    assert_string_equal(json_string_value(at(&f, "golden_hash")), PUBLIC);
    assert_string_equal(json_string_value(at(&f, "dflash_weights_hash")), DRAFTER);
    assert_true(json_number_value(at(&f, "baseline_serial_seconds_per_token_mean")) == 0.02);
    assert_true(json_number_value(at(&f, "candidate_dflash_seconds_per_token_mean")) == 0.01);
    assert_int_equal(json_array_size(at(&f, "block_pairs")), 3);
    assert_int_equal(json_array_size(at(&f, "block_null_pairs")), 1);
    assert_null(at(&f, "not_rankable_reason"));
    assert_null(strstr(f.text.data, HIDDEN)); /* the prompt finds its normaliser and is not told */
    drop(&f);
}

static void a_failure_is_a_category_and_no_time(void **state)
{
    (void)state;
    static const struct {
        const char *name, *message, *category;
    } rows[] = {
        {"dflash_fabricated_rejection", "A draft: round=3 row=1 secret=7",
         "dflash_fabricated_rejection round=3 row=1"},
        {"EngineExited", "at token 1234", "runtime_error"},
        {"no_score", "", "no_score"},
        {"teacher-forced token mismatch", "case one, step 3", "correctness_failed"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        struct error failure = {0};
        build(&f, 1.25);
        error_set(&failure, rows[i].name, "%s", rows[i].message);
        f.in.failure = &failure;
        f.in.pair_count = 0;
        f.in.correctness_sha256 = f.in.drafter_sha256 = NULL;
        block_score_fill(&f.d, &f.in);
        assert_true(render(&f));
        assert_false(f.d.passed);
        assert_string_equal(json_string_value(at(&f, "error")), rows[i].category);
        assert_true(json_is_false(at(&f, "rankable")) && json_is_false(at(&f, "parity_all_ok")));
        assert_true(json_number_value(at(&f, "dflash_decode_speedup")) == 0);
        assert_true(json_number_value(at(&f, "noop_reference_decode_speedup")) == 0);
        assert_null(at(&f, "block_pairs"));
        drop(&f);
    }
}

static void what_is_measured_and_does_not_pass(void **state)
{
    (void)state;
    static const struct {
        double noop, raw_max;
        bool correct;
        const char *category;
    } rows[] = {
        {2.2, 5, true, "floor_failed"},
        {1.25, 1.5, true, "invalid_score"}, /* RAW-SPEEDUP-IMPLAUSIBLE */
        {0, 5, true, "runtime_error"},      /* NOOP-SPEEDUP-UNPINNED: no raw score instead */
        {1.25, 5, false, "correctness_failed"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f, rows[i].noop);
        f.c.block_decode.raw_speedup_max = rows[i].raw_max;
        f.in.passed_correctness = rows[i].correct;
        fill(&f);
        assert_true(render(&f));
        assert_false(f.d.passed);
        assert_string_equal(json_string_value(at(&f, "error")), rows[i].category);
        assert_int_equal(json_array_size(at(&f, "block_pairs")), 3);
        drop(&f);
    }
}

/* The floor holds for the normalised number, and is itself enough. */
static void the_floor_itself(void **state)
{
    (void)state;
    struct fixture f;
    build(&f, 2.0);
    f.c.decode_speedup_floor = 1.0;
    fill(&f);
    assert_true(render(&f));
    assert_true(f.d.passed && f.d.score == 1.0);
    drop(&f);
}

static void documents_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value; /* NULL: left out */
    } rows[] = {
        {"oracle", NULL},
        {"official_score", NULL},
        {"rankable", NULL},
        {"rankable", "false"},
        {"parity_all_ok", NULL},
        {"dflash_decode_speedup_normalized", NULL},
        {"noop_reference_decode_speedup", "\"1\""},
        {"dflash_weights_hash", NULL},
        {"baseline_serial_seconds_per_token_mean", NULL},
        {"candidate_dflash_seconds_per_token_mean", NULL},
        {"block_pairs", NULL},
        {"block_pairs", "{}"},
        {"block_pairs", "[{}]"},
        {"block_pairs", "[]"}, /* two pairs count */
        {"block_null_pairs", NULL},
        {"statistics", NULL},
        {"gates", NULL},
        {"accepted_pair_count", "3"},
        {"mode", "\"official\""},
        {"block_tokens", "1"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f, 1.25);
        fill(&f);
        if (rows[i].value)
            score_set_json(&f.d, rows[i].key, json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(f.d.metrics, rows[i].key);
        if (render(&f))
            fail_msg("%s = %s", rows[i].key, rows[i].value ? rows[i].value : "absent");
        assert_string_equal(f.err.name, "SCORE-INVALID");
        drop(&f);
    }
}

static void records_that_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value;
    } rows[] = {
        {"pair", NULL},
        {"attempt", "\"1\""},
        {"order", "\"dflash-first\""},
        {"rejection", "\"telemetry\""}, /* and accepted */
        {"rejection", "\"too slow\""},
        {"accepted", "false"}, /* and no class */
        {"control_seconds_per_token", "null"},
        {"candidate_seconds_per_token", "null"},
        {"candidate_max_request_seconds", NULL},
        {"prompt_sha256", "\"" HIDDEN "\""},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct fixture f;
        build(&f, 1.25);
        fill(&f);
        json_t *pair = json_array_get(at(&f, "block_pairs"), 1);
        if (rows[i].value)
            json_object_set_new(pair, rows[i].key,
                                json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(pair, rows[i].key);
        if (render(&f))
            fail_msg("%s = %s", rows[i].key, rows[i].value ? rows[i].value : "absent");
        assert_string_equal(f.err.name, "SCORE-INVALID");
        assert_non_null(strstr(f.err.field, "block_pairs[1]"));
        drop(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_that_passes),
        cmocka_unit_test(a_failure_is_a_category_and_no_time),
        cmocka_unit_test(what_is_measured_and_does_not_pass),
        cmocka_unit_test(the_floor_itself),
        cmocka_unit_test(documents_that_are_refused),
        cmocka_unit_test(records_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
