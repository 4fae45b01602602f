/* Cohorts: the replay's gate, the near-tie record and the per-stream times at both sides of every
 * limit, and the client's cohort checks against the scripted engine. Run from the repository's
 * root. */
#include "judge/audit.h"
#include "judge/client.h"
#include "judge/cohort.h"
#include "judge/reply.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct error err;

#define assert_refused(name_, field_, call)                                                        \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        assert_false(call);                                                                        \
        assert_string_equal(err.name, name_);                                                      \
        assert_string_equal(err.field, field_);                                                    \
    } while (0)

/* ---- a report and a run that agree: two streams of 20 tokens ---- */

enum { STREAMS = 2, TOKENS = 20 };
static struct cohort_position positions[STREAMS][TOKENS];
static struct cohort_stream report_streams[STREAMS];
static int64_t run_tokens[STREAMS][TOKENS];
static struct wire_tokens run_lists[STREAMS];
static struct cohort_report report;
static struct wire_token_lists committed;

static int fresh(void **state)
{
    (void)state;
    memset(&err, 0, sizeof err);
    for (int s = 0; s < STREAMS; s++) {
        for (int i = 0; i < TOKENS; i++) {
            run_tokens[s][i] = 100 * s + i;
            positions[s][i] =
                (struct cohort_position){run_tokens[s][i], run_tokens[s][i], true, 0.5, true, 0.0};
        }
        report_streams[s] = (struct cohort_stream){TOKENS, positions[s]};
        run_lists[s] = (struct wire_tokens){true, TOKENS, run_tokens[s]};
    }
    report = (struct cohort_report){STREAMS, report_streams, true, 0.05};
    committed = (struct wire_token_lists){true, STREAMS, run_lists};
    return 0;
}

static void gate_budget_per_stream(void **state)
{
    (void)state;
    int64_t wrong[STREAMS];
    assert_true(cohort_gate(&report, &committed, wrong, &err));
    assert_int_equal(wrong[0], 0);
    positions[1][3].sequential_argmax = positions[1][9].sequential_argmax = 7;
    assert_true(cohort_gate(&report, &committed, wrong, &err)); /* 2 of 20: 10 % */
    assert_int_equal(wrong[1], 2);
    positions[1][19].sequential_argmax = 7;
    assert_refused("GateRejected", "streams[1]", cohort_gate(&report, &committed, wrong, &err));
    assert_int_equal(wrong[1], 3);
    /* The budget is each stream's: 3 of 40 in all would be inside. */
    assert_int_equal(wrong[0], 0);
}

/* Streams of 20 do not tell 100 in a thousand from 149. */
static void gate_budget_to_the_last(void **state)
{
    (void)state;
    enum { LONG = 1000 };
    static struct cohort_position place[LONG];
    static int64_t tokens[LONG];
    struct cohort_stream stream = {LONG, place};
    struct wire_tokens list = {true, LONG, tokens};
    const struct cohort_report one = {1, &stream, true, 0.05};
    const struct wire_token_lists run = {true, 1, &list};
    int64_t wrong;
    for (int i = 0; i < LONG; i++)
        place[i] = (struct cohort_position){0, i < 100 ? 7 : 0, true, 0.5, true, 0.0};
    assert_true(cohort_gate(&one, &run, &wrong, &err));
    assert_int_equal(wrong, 100);
    place[LONG - 1].sequential_argmax = 7;
    assert_refused("GateRejected", "streams[0]", cohort_gate(&one, &run, &wrong, &err));
    assert_int_equal(wrong, 101);
}

static void gate_structure_and_echo_come_first(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        positions[0][i].sequential_argmax = 7; /* over the budget, told only when all else holds */
    positions[1][4].committed_token = 3;
    assert_refused("CohortEchoDivergence", "streams[1]",
                   cohort_gate(&report, &committed, NULL, &err));
    report_streams[1].count = TOKENS - 1;
    assert_refused("StreamLengthMismatch", "streams[1]",
                   cohort_gate(&report, &committed, NULL, &err));
    run_lists[1].count = 0;
    assert_refused("EmptyStream", "streams[1]", cohort_gate(&report, &committed, NULL, &err));
    report.count = 1;
    assert_refused("StreamCountMismatch", "", cohort_gate(&report, &committed, NULL, &err));
}

static double real_at(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

static void near_ties(void **state)
{
    (void)state;
    positions[0][0].near_gap = 0.05; /* at the bound: near */
    positions[0][1].near_gap = 0.0500001;
    positions[0][2].has_near_gap = false;
    positions[0][0].sequential_argmax = positions[0][1].sequential_argmax = 1000;
    positions[0][0].committed_gap = 0.25;
    positions[0][1].committed_gap = 0.75;
    json_t *o = cohort_near_ties(&report, &err);
    assert_non_null(o);
    const json_t *first = json_array_get(json_object_get(o, "streams"), 0);
    assert_int_equal(real_at(first, "slot"), 0);
    assert_int_equal(real_at(first, "committed"), TOKENS);
    assert_int_equal(real_at(first, "mismatches"), 2);
    assert_true(real_at(first, "mismatch_per_thousand") == 100);
    assert_int_equal(real_at(first, "near_tie_positions"), 1);
    assert_int_equal(real_at(first, "near_tie_mismatches"), 1);
    assert_int_equal(real_at(first, "non_near_tie_mismatches"), 1);
    assert_true(real_at(first, "min_committed_relative_gap_on_mismatch") == 0.25);
    assert_true(real_at(first, "median_committed_relative_gap_on_mismatch") == 0.5);
    const json_t *second = json_array_get(json_object_get(o, "streams"), 1);
    assert_int_equal(real_at(second, "mismatches"), 0);
    assert_null(json_object_get(second, "min_committed_relative_gap_on_mismatch"));
    assert_int_equal(real_at(o, "committed_total"), STREAMS * TOKENS);
    assert_int_equal(real_at(o, "mismatches_total"), 2);
    assert_int_equal(real_at(o, "near_tie_positions_total"), 1);
    assert_int_equal(real_at(o, "near_tie_mismatches_total"), 1);
    assert_int_equal(real_at(o, "non_near_tie_mismatches_total"), 1);
    assert_int_equal(real_at(o, "budget_per_thousand"), 100);
    assert_true(real_at(o, "max_stream_mismatch_per_thousand") == 100);
    assert_true(real_at(o, "headroom_per_thousand") == 0);
    assert_true(real_at(o, "rel_envelope") == 0.05);
    assert_int_equal(real_at(o, "near_tie_gap_index"), 1);
    assert_string_equal(json_string_value(json_object_get(o, "near_tie_predicate")),
                        "ranked_relative_gaps[1] <= rel_envelope");
    json_decref(o);
    report_streams[1].count = 0;
    assert_refused("EmptyStream", "streams[1]", cohort_near_ties(&report, &err));
    report.count = 0;
    assert_refused("NoStreams", "", cohort_near_ties(&report, &err));
    report.envelope = -0.01;
    assert_refused("UnusableEnvelope", "", cohort_near_ties(&report, &err));
    report.envelope = 0.0 / 0.0;
    assert_refused("UnusableEnvelope", "", cohort_near_ties(&report, &err));
    report = (struct cohort_report){STREAMS, report_streams, false, 0.05};
    assert_refused("UnusableEnvelope", "", cohort_near_ties(&report, &err));
}

/* ---- per-stream times ---- */

static uint64_t prefill_ns[] = {900, 1000}, decode_ns[] = {2000, 1500}, tokens_of[] = {20, 10};
static struct wire_u64s prefill_vector, decode_vector;

static struct cohort_times honest_times(void)
{
    prefill_ns[0] = 900;
    prefill_vector = (struct wire_u64s){true, 2, prefill_ns};
    decode_vector = (struct wire_u64s){true, 2, decode_ns};
    return (struct cohort_times){.capability = true,
                                 .batch_size = 2,
                                 .prefill_ns = &prefill_vector,
                                 .decode_ns = &decode_vector,
                                 .tokens_by_stream = tokens_of,
                                 .tokens_count = 2,
                                 .prefill_window_ns = 1000,
                                 .decode_window_ns = 2000,
                                 .rounds = 20};
}

static void check_ratio(const json_t *o, double value, bool flagged)
{
    assert_true(real_at(o, "raw_ratio") == value);
    assert_int_equal(json_is_true(json_object_get(o, "flagged_at_zero_tolerance")), flagged);
}

static void times_ratios(void **state)
{
    (void)state;
    struct cohort_times t = honest_times();
    json_t *o = cohort_attest_times(&t, &err);
    assert_non_null(o);
    assert_int_equal(real_at(o, "batch_size"), 2);
    assert_int_equal(real_at(o, "prefill_sum_ns"), 1900);
    assert_int_equal(real_at(o, "decode_sum_ns"), 3500);
    check_ratio(json_array_get(json_object_get(o, "prefill_bounding"), 1), 1.0, false);
    check_ratio(json_object_get(o, "prefill_coverage"), 1.0, false);
    check_ratio(json_array_get(json_object_get(o, "decode_bounding"), 1), 0.75, false);
    check_ratio(json_array_get(json_object_get(o, "token_count_floor"), 0), 1.0, false);
    check_ratio(json_array_get(json_object_get(o, "token_count_floor"), 1), 1.5, false);
    check_ratio(json_array_get(json_object_get(o, "lockstep_interleave"), 0), 2000 / 1750.0, false);
    assert_string_equal(json_string_value(json_object_get(o, "tolerance_state")),
                        "unpinned-tolerances");
    json_decref(o);
    t.prefill_window_ns = 999; /* one stream claims more than the window */
    t.decode_window_ns = 2001; /* and no stream fills this one */
    o = cohort_attest_times(&t, &err);
    check_ratio(json_array_get(json_object_get(o, "prefill_bounding"), 1), 1000 / 999.0, true);
    check_ratio(json_object_get(o, "decode_coverage"), 2000 / 2001.0, true);
    assert_true(json_is_true(json_object_get(
        json_array_get(json_object_get(o, "token_count_floor"), 0), "flagged_at_zero_tolerance")));
    json_decref(o);
}

static void times_structure(void **state)
{
    (void)state;
    struct cohort_times t = honest_times();
    t.capability = false;
    assert_refused("CapabilityAbsent", "per_stream_timing", cohort_attest_times(&t, &err));
    t = honest_times();
    decode_vector.present = false;
    assert_refused("VectorMissing", "decode_ns_by_stream", cohort_attest_times(&t, &err));
    t = honest_times();
    t.prefill_ns = NULL;
    assert_refused("VectorMissing", "prefill_ns_by_stream", cohort_attest_times(&t, &err));
    t = honest_times();
    prefill_vector.count = 1;
    assert_refused("VectorLength", "prefill_ns_by_stream", cohort_attest_times(&t, &err));
    t = honest_times();
    t.tokens_count = 3;
    assert_refused("TokensLenByStreamWidth", "tokens_by_stream", cohort_attest_times(&t, &err));
    t = honest_times();
    prefill_ns[0] = 0;
    assert_refused("ZeroDuration", "prefill_ns_by_stream", cohort_attest_times(&t, &err));
    prefill_ns[0] = 1; /* just above */
    json_decref(cohort_attest_times(&t, &err));
    t = honest_times();
    t.decode_window_ns = 0;
    assert_refused("NonPositiveWindow", "decode window", cohort_attest_times(&t, &err));
    t = honest_times();
    t.prefill_window_ns = -1;
    assert_refused("NonPositiveWindow", "prefill window", cohort_attest_times(&t, &err));
    t = honest_times();
    t.rounds = 0;
    assert_refused("ZeroRounds", "rounds", cohort_attest_times(&t, &err));
}

/* ---- the derived figures ---- */

static void audit_figures(void **state)
{
    (void)state;
    uint32_t lengths[] = {3, 1, 2, 2}, first[] = {3, 2, 2, 2}, second[] = {4, 2, 3, 2};
    uint32_t active[] = {2, 2, 2, 1}, reasons[] = {2, 5};
    const char *keys[] = {"a", "b"};
    struct wire_u32s natural[] = {{true, 4, first}, {true, 4, second}};
    struct wire_response r = {.acceptance_lengths = {true, 4, lengths},
                              .drafted_total = {true, 8},
                              .accepted_total = {true, 4},
                              .committed_total = {true, 16},
                              .natural_accepted_by_stream = {true, 2, natural},
                              .active_streams_by_round = {true, 4, active},
                              .depth_clamp_reasons = {true, 2, keys, reasons}};
    struct audit_speculation s = audit_of_run(&r, 8);
    const struct audit_cohort c = audit_of_cohort(&r, 2);
    assert_int_equal(c.throttled_round_count, 3);
    assert_int_equal(c.budget_truncated_round_count, 1);
    json_t *o = audit_flat(&s, &c);
    static const struct {
        const char *key;
        double value;
    } expected[] = {{"audit_spec_mean_acceptance_length", 2},
                    {"audit_spec_median_acceptance_length", 2},
                    {"audit_spec_verified_token_count", 8},
                    {"audit_spec_rounds", 4},
                    {"audit_spec_drafted_total", 8},
                    {"audit_spec_accepted_total", 4},
                    {"audit_spec_effective_tokens_per_forward", 2},
                    {"audit_spec_effective_mean_draft_len", 2},
                    {"audit_spec_non_drafting_round_count", 1},
                    {"audit_spec_acceptance_rate", 0.5},
                    {"audit_cohort_batch_size", 2},
                    {"audit_cohort_committed_total", 16},
                    {"audit_cohort_mean_natural_accepted_length", 2.5},
                    {"audit_cohort_throttled_round_count", 3},
                    {"audit_cohort_budget_truncated_round_count", 1},
                    {"audit_cohort_min_active_streams", 1},
                    {"audit_cohort_depth_clamp_total", 7}};
    assert_int_equal(json_object_size(o), sizeof expected / sizeof *expected);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(real_at(o, expected[i].key) == expected[i].value);
    json_decref(o);
    lengths[1] = 2; /* an odd one out moves the middle of an even count */
    lengths[2] = 3;
    s = audit_of_run(&r, 10);
    assert_true(s.median_acceptance_length == 2.5);
    r.drafted_total.value = r.accepted_total.value = 0; /* nothing drafted: no rate */
    s = audit_of_run(&r, 10);
    o = audit_flat(&s, NULL);
    assert_null(json_object_get(o, "audit_spec_acceptance_rate"));
    assert_int_equal(json_object_size(o), 9);
    json_decref(o);
    r.acceptance_lengths.count = 0;
    s = audit_of_run(&r, 0);
    assert_true(s.tokens_per_forward == 0 && s.mean_acceptance_length == 0);
}

static void series_tags(void **state)
{
    (void)state;
    char tag[AUDIT_TAG_SIZE];
    assert_string_equal(audit_series_tag(false, 0, tag), "teacher_forced_v1");
    assert_string_equal(audit_series_tag(true, 0, tag), "free_run_v1_1");
    assert_string_equal(audit_series_tag(true, 8, tag), "batched_free_run_v1_2_b8");
}

/* ---- the client and an engine ---- */

static char script_path[] = "/tmp/mlxfast-cohort-XXXXXX";
static int64_t seed_tokens[] = {3, 1, 4, 1, 5}, other_seed[] = {2, 7, 1, 8};

static int make_script(void **state)
{
    (void)state;
    const int fd = mkstemp(script_path);
    if (fd >= 0)
        close(fd);
    return fd < 0;
}

static int drop_script(void **state)
{
    (void)state;
    return unlink(script_path);
}

static bool start_engine(const char *script, struct reply_window *window, struct client **c)
{
    FILE *f = fopen(script_path, "w");
    assert_non_null(f);
    fputs(script, f);
    fclose(f);
    char resource[64];
    snprintf(resource, sizeof resource, "script=%s", script_path);
    const char *const resources[] = {resource, NULL};
    const struct client_options o = {.engine = "tests/engines/scripted_engine.py",
                                     .weights = ".",
                                     .resources = resources,
                                     .speculative_v1_1 = true,
                                     .hello_seconds = 20,
                                     .reply_seconds = 20,
                                     .barrier_seconds = 20,
                                     .window = window};
    memset(&err, 0, sizeof err);
    return client_start(&o, c, &err);
}

static struct client *open_engine(const char *script)
{
    struct client *c;
    if (!start_engine(script, NULL, &c))
        fail_msg("%s: %s", err.name, err.message);
    return c;
}

static struct wire_request begin_request(void)
{
    static struct wire_tokens lists[2];
    lists[0] = client_tokens(seed_tokens, 5);
    lists[1] = client_tokens(other_seed, 4);
    struct wire_request q = client_request(WIRE_KIND_free_decode_begin);
    q.seed_tokens_by_stream = (struct wire_token_lists){true, 2, lists};
    q.batch_size = (struct wire_u32){true, 2};
    return q;
}

static struct wire_request run_request(uint32_t count)
{
    struct wire_request q = client_request(WIRE_KIND_free_decode_run);
    q.count = (struct wire_u32){true, count};
    q.batch_size = (struct wire_u32){true, 2};
    return q;
}

static void honest_cohort(void **state)
{
    (void)state;
    struct client *c = open_engine("{\"cohort\":2}");
    struct arena a = {0};
    const struct wire_response *r;
    struct wire_request begin = begin_request(), run = run_request(10);
    assert_true(client_call(c, &begin, 0, &r, NULL, &err));
    assert_int_equal(r->seed_token_by_stream.items[1], (8 * 31 + 4 * 17 + 7) % 509);
    int64_t first[11] = {r->seed_token_by_stream.items[0]},
            second[11] = {r->seed_token_by_stream.items[1]};
    uint64_t prefill[2];
    memcpy(prefill, r->prefill_ns_by_stream.items, sizeof prefill);
    assert_true(client_call(c, &run, 0, &r, NULL, &err));
    const struct wire_u64s prefill_times = {true, 2, prefill};
    const uint64_t counts[] = {10, 10};
    const struct cohort_times t = {.capability = client_has_capability(c, "per_stream_timing"),
                                   .batch_size = 2,
                                   .prefill_ns = &prefill_times,
                                   .decode_ns = &r->decode_ns_by_stream,
                                   .tokens_by_stream = counts,
                                   .tokens_count = 2,
                                   .prefill_window_ns = 5000,
                                   .decode_window_ns = 50000,
                                   .rounds = r->rounds.value};
    json_t *times = cohort_attest_times(&t, &err);
    assert_non_null(times);
    json_decref(times);
    memcpy(first + 1, r->tokens_by_stream.items[0].items, 10 * sizeof *first);
    memcpy(second + 1, r->tokens_by_stream.items[1].items, 10 * sizeof *second);
    assert_true(client_barrier(c, 11, NULL, &err));

    struct wire_tokens all[] = {client_tokens(first, 11), client_tokens(second, 11)};
    struct wire_request replay = client_request(WIRE_KIND_cohort_reference_replay);
    replay.replay_seeds_by_stream = begin.seed_tokens_by_stream;
    replay.committed_by_stream = (struct wire_token_lists){true, 2, all};
    replay.replay_width.text = "cohort";
    assert_true(client_call(c, &replay, 0, &r, NULL, &err));
    struct cohort_report said;
    assert_true(cohort_report_read(&a, &r->cohort_reference_replay, &said, &err));
    assert_true(cohort_gate(&said, &replay.committed_by_stream, NULL, &err));
    first[4]++; /* now the run and the replay are not of the same tokens */
    assert_refused("CohortEchoDivergence", "streams[0]",
                   cohort_gate(&said, &replay.committed_by_stream, NULL, &err));
    arena_free(&a);
    client_free(c);
}

/* Each lie of a cohort's run, told by the equation that finds it. */
static void lies_in_a_run(void **state)
{
    (void)state;
    static const struct {
        const char *equation, *with;
    } lies[] = {
        {"CohortWidth", "{\"tokens_by_stream\":[[1,2,3]]}"},
        {"CohortStreamTokenCount", "{\"tokens_by_stream\":[[1,2,3],[1,2]]}"},
        {"CohortCommittedTotal", "{\"committed_total\":3}"},
        {"DraftedLessThanAccepted", "{\"accepted_total\":1}"},
        {"AcceptanceSum", "{\"acceptance_lengths\":[1,1,2]}"},
        {"CohortRoundsDisagree", "{\"rounds\":2}"},
        {"CohortNaturalWidth", "{\"natural_accepted_by_stream\":[[1,1,1]]}"},
        {"CohortNaturalRoundCount", "{\"natural_accepted_by_stream\":[[1,1,1],[1,1]]}"},
        {"CohortNaturalBelowCommitted", "{\"natural_accepted_by_stream\":[[1,1,1],[1,0,1]]}"},
        {"CohortActiveStreamsLength", "{\"active_streams_by_round\":[2,2]}"},
        {"CohortActiveStreamsOutOfRange", "{\"active_streams_by_round\":[3,2,2]}"},
        {"CohortActiveStreamsOutOfRange", "{\"active_streams_by_round\":[2,2,0]}"},
        {"CohortActiveStreamsIncreased", "{\"active_streams_by_round\":[1,2,2]}"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        char script[256];
        snprintf(script, sizeof script,
                 "{\"cohort\":2,\"at\":{\"kind\":\"free_decode_run\"},\"do\":\"set\",\"with\":%s}",
                 lies[i].with);
        struct client *c = open_engine(script);
        struct wire_request begin = begin_request(), run = run_request(3);
        assert_true(client_call(c, &begin, 0, NULL, NULL, &err));
        assert_refused("FreeRunConsistency", lies[i].equation,
                       client_call(c, &run, 0, NULL, NULL, &err));
        assert_true(strncmp(err.message, lies[i].equation, strlen(lies[i].equation)) == 0);
        assert_refused("SessionDiscarded", "", client_barrier(c, -1, NULL, &err));
        client_free(c);
    }
}

static void lies_at_the_barrier(void **state)
{
    (void)state;
    struct client *c = open_engine("{\"cohort\":2,\"at\":{\"kind\":\"phase_diagnostics\"},"
                                   "\"do\":\"set\",\"with\":{\"completed_work\":7}}");
    struct wire_request begin = begin_request(), run = run_request(3);
    assert_true(client_call(c, &begin, 0, NULL, NULL, &err));
    assert_true(client_call(c, &run, 0, NULL, NULL, &err));
    /* A round is one forward whatever the width: 4, not 7. */
    assert_refused("FreeRunConsistency", "RoundCounter", client_barrier(c, 4, NULL, &err));
    client_free(c);
    c = open_engine("{\"cohort\":2,\"at\":{\"kind\":\"free_decode_run\"},"
                    "\"do\":\"set\",\"with\":{\"verify_replay_disagreements\":1}}");
    begin = begin_request();
    run = run_request(3);
    assert_true(client_call(c, &begin, 0, NULL, NULL, &err));
    assert_true(client_call(c, &run, 0, NULL, NULL, &err));
    assert_refused("FreeRunConsistency", "VerifyReplayDisagreementsExceedRejected",
                   client_barrier(c, 4, NULL, &err));
    client_free(c);
}

static void widths(void **state)
{
    (void)state;
    struct wire_request begin = begin_request(), run = run_request(3);
    struct client *c = open_engine("{\"cohort\":1}");
    assert_refused("BatchWidthExceedsEngineMax", "", client_call(c, &begin, 0, NULL, NULL, &err));
    client_free(c);
    c = open_engine("{}");
    assert_refused("CapabilityNotAdvertised", "capabilities",
                   client_call(c, &begin, 0, NULL, NULL, &err));
    client_free(c);
    static const char *const echoes[] = {"{\"effective_batch_size\":1}",
                                         "{\"effective_batch_size\":null}"};
    for (int i = 0; i < 2; i++) {
        char script[256];
        snprintf(
            script, sizeof script,
            "{\"cohort\":2,\"at\":{\"kind\":\"free_decode_begin\"},\"do\":\"set\",\"with\":%s}",
            echoes[i]);
        c = open_engine(script);
        assert_refused("BatchEchoDivergence", "effective_batch_size",
                       client_call(c, &begin, 0, NULL, NULL, &err));
        client_free(c);
    }
    c = open_engine("{\"cohort\":2,\"at\":{\"kind\":\"free_decode_run\"},"
                    "\"do\":\"set\",\"with\":{\"effective_batch_size\":1}}");
    assert_true(client_call(c, &begin, 0, NULL, NULL, &err));
    assert_refused("BatchEchoDivergence", "", client_call(c, &run, 0, NULL, NULL, &err));
    client_free(c);
    c = open_engine("{\"cohort\":2,\"at\":{\"kind\":\"free_decode_begin\"},"
                    "\"do\":\"set\",\"with\":{\"seed_token_by_stream\":[1]}}");
    assert_refused("Protocol", "seed_token_by_stream of every stream",
                   client_call(c, &begin, 0, NULL, NULL, &err));
    client_free(c);
}

static bool read_report(const char *text)
{
    struct arena a = {0};
    struct cohort_report out;
    struct wire_replay replay = {true, json_loads(text, 0, NULL)};
    assert_non_null(replay.report);
    memset(&err, 0, sizeof err);
    const bool ok = cohort_report_read(&a, &replay, &out, &err);
    if (!ok)
        assert_string_equal(err.name, "Protocol");
    json_decref(replay.report);
    arena_free(&a);
    return ok;
}

static void malformed_reports(void **state)
{
    (void)state;
#define POSITION "{\"committed_token\":1,\"sequential_argmax\":2"
    assert_true(read_report("{\"streams\":[]}"));
    assert_true(read_report("{\"streams\":[{\"slot\":0,\"positions\":[" POSITION "}]}],\"x\":1}"));
    assert_true(read_report("{\"streams\":[{\"slot\":0,\"positions\":[" POSITION
                            ",\"ranked_relative_gaps\":[0]}]}]}"));
    assert_false(read_report("[]"));
    assert_false(read_report("{}"));
    assert_false(read_report("{\"streams\":[1]}"));
    assert_false(read_report("{\"streams\":[{\"slot\":1,\"positions\":[]}]}")); /* out of order */
    assert_string_equal(err.field, "streams[0].slot");
    assert_false(read_report("{\"streams\":[{\"slot\":0}]}"));
    assert_false(read_report("{\"streams\":[{\"slot\":0,\"positions\":[7]}]}"));
    assert_false(
        read_report("{\"streams\":[{\"slot\":0,\"positions\":[{\"committed_token\":1}]}]}"));
    assert_false(read_report("{\"streams\":[],\"rel_envelope\":\"wide\"}"));
#undef POSITION
}

static void residents(void **state)
{
    (void)state;
    struct reply_window w = {0};
    struct client *c;
    static const char same[] = "{\"hello\":{\"resident\":{\"pid\":5,\"load_epoch\":1}}}";
    assert_true(start_engine(same, &w, &c));
    client_free(c);
    assert_true(start_engine(same, &w, &c));
    client_free(c);
    static const char *const others[] = {"{\"hello\":{\"resident\":{\"pid\":6,\"load_epoch\":1}}}",
                                         "{\"hello\":{\"resident\":{\"pid\":5,\"load_epoch\":2}}}",
                                         "{}"};
    for (int i = 0; i < 3; i++) {
        assert_refused("resident_identity_changed_within_window", "resident",
                       start_engine(others[i], &w, &c));
        client_free(c);
    }
    w = (struct reply_window){0}; /* another window: another resident may serve it */
    assert_true(start_engine("{}", &w, &c));
    client_free(c);
    assert_refused("resident_identity_changed_within_window", "resident",
                   start_engine(same, &w, &c));
    client_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(gate_budget_per_stream, fresh),
        cmocka_unit_test_setup(gate_budget_to_the_last, fresh),
        cmocka_unit_test_setup(gate_structure_and_echo_come_first, fresh),
        cmocka_unit_test_setup(near_ties, fresh),
        cmocka_unit_test(times_ratios),
        cmocka_unit_test(times_structure),
        cmocka_unit_test(audit_figures),
        cmocka_unit_test(series_tags),
        cmocka_unit_test(honest_cohort),
        cmocka_unit_test(lies_in_a_run),
        cmocka_unit_test(lies_at_the_barrier),
        cmocka_unit_test(widths),
        cmocka_unit_test(malformed_reports),
        cmocka_unit_test(residents),
    };
    return cmocka_run_group_tests(tests, make_script, drop_script);
}
