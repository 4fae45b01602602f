#include "judge/job/timing.h"

#include "base/clock.h"
#include "base/json.h"
#include "judge/client.h"
#include "judge/cohort.h"
#include "judge/measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WARM_UP_TOKENS = 16, WARM_UP_STEPS = 8 };

const char *job_series_tag(enum job_series s)
{
    static const char *const tags[] = {"teacher_forced_v1", "free_run_v1_1",
                                       "batched_free_run_v1_2_b8"};
    return tags[s];
}

const char *job_series_regime(enum job_series s)
{
    static const char *const regimes[] = {"tf-serial-timed", "free-run-v1_1-timed",
                                          "batched-free-run-v1_2-timed"};
    return regimes[s];
}

/* One leg under way. */
struct leg {
    const struct job_leg_plan *p;
    struct arena *a;
    struct client *client;
    struct job_leg *out;
    const int64_t **tokens; /* of each stream: the oracle's */
    struct error *err;
};

static bool start(const struct job_engine *e, bool timed, bool trusted, struct client **out,
                  struct error *err)
{
    struct client_options o = {.engine = e->engine,
                               .weights = e->weights,
                               .drafter = e->drafter,
                               .resources = e->resources,
                               .speculative_v1_1 = timed,
                               .trusted = trusted,
                               .yarn_magnitude = e->yarn_magnitude,
                               .arithmetic = e->arithmetic,
                               .echo_stderr = !e->silent && !e->withhold_text,
                               .withhold_text = e->withhold_text,
                               .sandbox = e->sandbox};
    *out = NULL;
    return client_deadlines_from_environment(&o, err) && client_start(&o, out, err);
}

bool job_engine_can_free_run(const struct job_engine *e, bool *out, struct error *err)
{
    struct client *c;
    const bool ok = start(e, true, false, &c, err);
    *out = ok && client_has_capability(c, "free_run_decode");
    client_free(c);
    return ok;
}

/* ---- requests ---- */

static struct wire_tokens seed_of(const struct job_prompt *m)
{
    return client_tokens(m->seed, m->seed_count);
}

/* For the warm-up as long and as hard, and of no use to an engine that remembers. */
static bool choose_seed(struct leg *l, const struct job_prompt *m, bool warm_up,
                        struct wire_tokens *out)
{
    *out = seed_of(m);
    return !warm_up || measure_shuffle(l->a, m->seed, m->seed_count, out, l->err);
}

static bool begin_request(struct leg *l, bool warm_up, struct wire_request *out)
{
    const struct job_leg_plan *p = l->p;
    struct wire_request q = client_request(
        p->series == JOB_TEACHER_FORCED ? WIRE_KIND_decode_begin : WIRE_KIND_free_decode_begin);
    if (p->engine->spec != NULL)
        q.spec = *p->engine->spec;
    *out = q;
    if (p->series != JOB_COHORT_RUN)
        return choose_seed(l, p->members[0], warm_up, &out->seed_tokens);
    struct wire_tokens *seeds = arena_array(l->a, p->streams, sizeof *seeds);
    for (size_t s = 0; s < p->streams; s++)
        if (!choose_seed(l, p->members[s], warm_up, &seeds[s]))
            return false;
    out->seed_tokens_by_stream =
        (struct wire_token_lists){.present = true, .count = p->streams, .items = seeds};
    out->batch_size = (struct wire_u32){.present = true, .value = (uint32_t)p->streams};
    return true;
}

static struct wire_request run_request(const struct leg *l, int64_t count)
{
    struct wire_request q = client_request(WIRE_KIND_free_decode_run);
    q.count = (struct wire_u32){.present = true, .value = (uint32_t)count};
    if (l->p->series == JOB_COHORT_RUN)
        q.batch_size = (struct wire_u32){.present = true, .value = (uint32_t)l->p->streams};
    return q;
}

static struct wire_request step_request(enum wire_kind kind, int64_t token)
{
    struct wire_request q = client_request(kind);
    q.token = (struct wire_i64){.present = true, .value = token};
    return q;
}

/* ---- tokens ---- */

static bool wrong_token(struct leg *l, const char *label, size_t stream, int64_t step)
{
    client_discard(l->client);
    error_set(l->err, "TokenMismatch", "%s: the token at step %" PRId64 " is not the golden's",
              label, step);
    char field[48];
    snprintf(field, sizeof field, "streams[%zu]", stream);
    return error_at(l->err, NULL, l->p->streams > 1 ? field : label, NULL);
}

static bool check_tokens(struct leg *l, const struct wire_tokens *said)
{
    for (int64_t i = 0; i < l->p->steps; i++)
        if (said->items[i] != l->tokens[0][i])
            return wrong_token(l, "decode", 0, i);
    return true;
}

static void keep_spec(struct leg *l, const struct wire_response *begin)
{
    const struct wire_spec *s = &begin->effective_spec;
    l->out->spec_mode = s->present ? arena_strdup(l->a, s->mode) : "serial";
    if (s->present && s->mtp_depth.present)
        l->out->spec_depth = s->mtp_depth.value;
    const json_t *depth = s->present ? json_object_get(s->dflash, "depth") : NULL;
    if (json_is_integer(depth))
        l->out->spec_depth = json_integer_value(depth);
}

static void keep_lengths(struct leg *l, const struct wire_response *run)
{
    struct wire_u32s *kept = &l->out->acceptance_lengths;
    *kept = (struct wire_u32s){.present = true, .count = run->acceptance_lengths.count};
    kept->items = arena_array(l->a, kept->count, sizeof *kept->items);
    if (kept->count > 0)
        memcpy(kept->items, run->acceptance_lengths.items, kept->count * sizeof *kept->items);
}

/* ---- windows ---- */

/* The halves are the client's intervals, without a gap between them; the whole is a clock of its
 * own around both, so that the one can be held against the other. */
struct edges {
    int64_t opened_ns, closed_ns;
    struct client_interval begin, end;
};

static double between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) * 1e-9;
}

static void keep_windows(struct leg *l, const struct edges *e)
{
    struct job_windows *w = &l->out->windows;
    w->prefill = between(e->begin.start_ns, e->begin.end_ns);
    w->decode = between(e->begin.end_ns, e->end.end_ns);
    w->whole = between(e->opened_ns, e->closed_ns);
    for (size_t s = 0; s < l->p->streams; s++)
        w->prefill_tokens += l->p->members[s]->seed_count;
    w->decode_tokens = l->p->streams * (uint64_t)l->p->steps;
    l->out->decode_seconds_per_token = w->decode / (double)w->decode_tokens;
}

static bool teacher_forced(struct leg *l, struct edges *e)
{
    struct client *c = l->client;
    struct wire_request q;
    if (!begin_request(l, false, &q))
        return false;
    const struct wire_response *r;
    e->opened_ns = clock_now_ns();
    if (!client_call(c, &q, 0, &r, NULL, l->err))
        return false;
    e->begin = client_last_interval(c);
    if (r->seed_token.value != l->p->members[0]->seed_token)
        return wrong_token(l, "decode-seed", 0, 0);
    keep_spec(l, r);
    for (int64_t i = 0; i < l->p->steps; i++) {
        q = step_request(WIRE_KIND_decode_step,
                         i == 0 ? l->p->members[0]->seed_token : l->tokens[0][i - 1]);
        if (!client_call(c, &q, 0, &r, NULL, l->err))
            return false;
        if (r->token.value != l->tokens[0][i])
            return wrong_token(l, "decode", 0, i);
    }
    e->end = client_last_interval(c);
    e->closed_ns = clock_now_ns();
    return true;
}

static bool free_run(struct leg *l, struct edges *e)
{
    struct client *c = l->client;
    struct wire_request begin, run = run_request(l, l->p->steps);
    const struct wire_response *r;
    if (!begin_request(l, false, &begin))
        return false;
    e->opened_ns = clock_now_ns();
    if (!client_call(c, &begin, 0, &r, NULL, l->err))
        return false;
    e->begin = client_last_interval(c);
    if (r->seed_token.value != l->p->members[0]->seed_token)
        return wrong_token(l, "decode-seed", 0, 0);
    keep_spec(l, r);
    if (!client_call(c, &run, 0, &r, NULL, l->err))
        return false;
    e->end = client_last_interval(c);
    e->closed_ns = clock_now_ns();
    if (!check_tokens(l, &r->tokens))
        return false;
    keep_lengths(l, r);
    return true;
}

/* ---- cohorts ---- */

/* What is kept of a cohort's run for its replay and its seals. */
struct cohort_run {
    struct wire_token_lists committed; /* the seed's token, then the run's */
    struct wire_u64s prefill_ns, decode_ns;
    uint64_t rounds;
};

static struct wire_u64s copy_u64s(struct arena *a, const struct wire_u64s *from)
{
    struct wire_u64s to = {.present = from->present, .count = from->count};
    to.items = arena_array(a, to.count, sizeof *to.items);
    if (to.count > 0)
        memcpy(to.items, from->items, to.count * sizeof *to.items);
    return to;
}

static void keep_committed(struct leg *l, const struct wire_response *run, struct cohort_run *k)
{
    const size_t n = (size_t)l->p->steps;
    struct wire_tokens *lists = arena_array(l->a, l->p->streams, sizeof *lists);
    for (size_t s = 0; s < l->p->streams; s++) {
        int64_t *items = arena_array(l->a, n + 1, sizeof *items);
        items[0] = l->p->members[s]->seed_token; /* it has been checked */
        memcpy(items + 1, run->tokens_by_stream.items[s].items, n * sizeof *items);
        lists[s] = client_tokens(items, n + 1);
    }
    k->committed =
        (struct wire_token_lists){.present = true, .count = l->p->streams, .items = lists};
}

static bool cohort_run(struct leg *l, struct edges *e, struct cohort_run *k)
{
    struct client *c = l->client;
    struct wire_request begin, run = run_request(l, l->p->steps);
    const struct wire_response *r;
    if (!begin_request(l, false, &begin))
        return false;
    e->opened_ns = clock_now_ns();
    if (!client_call(c, &begin, 0, &r, NULL, l->err))
        return false;
    e->begin = client_last_interval(c);
    for (size_t s = 0; s < l->p->streams; s++)
        if (r->seed_token_by_stream.items[s] != l->p->members[s]->seed_token)
            return wrong_token(l, "decode-seed", s, 0);
    keep_spec(l, r);
    k->prefill_ns = copy_u64s(l->a, &r->prefill_ns_by_stream);
    if (!client_call(c, &run, 0, &r, NULL, l->err))
        return false;
    e->end = client_last_interval(c);
    e->closed_ns = clock_now_ns();
    keep_committed(l, r, k);
    keep_lengths(l, r);
    k->decode_ns = copy_u64s(l->a, &r->decode_ns_by_stream);
    k->rounds = r->acceptance_lengths.count;
    return true;
}

/* The record of near ties has no verdict: where there is none, it says why. */
static void seal_report(json_t *seal, const char *key, json_t *record, const struct error *why)
{
    char absent[64];
    if (record != NULL) {
        json_object_set_new(seal, key, record);
        return;
    }
    snprintf(absent, sizeof absent, "%s_absent_reason", key);
    json_object_set_new(seal, absent, json_string(why->name));
}

/* Only an engine that advertises the times is held to their form. */
static bool attest(struct leg *l, const struct cohort_run *k, json_t *seal)
{
    uint64_t tokens[JOB_COHORT_STREAMS];
    struct error why = {0};
    const struct cohort_times t = {.capability =
                                       client_has_capability(l->client, "per_stream_timing"),
                                   .batch_size = (uint32_t)l->p->streams,
                                   .prefill_ns = &k->prefill_ns,
                                   .decode_ns = &k->decode_ns,
                                   .tokens_by_stream = tokens,
                                   .tokens_count = l->p->streams,
                                   .prefill_window_ns = (int64_t)(l->out->windows.prefill * 1e9),
                                   .decode_window_ns = (int64_t)(l->out->windows.decode * 1e9),
                                   .rounds = k->rounds};
    for (size_t s = 0; s < l->p->streams; s++)
        tokens[s] = (uint64_t)l->p->steps;
    json_t *record = cohort_attest_times(&t, &why);
    if (record == NULL && t.capability) {
        if (l->err != NULL)
            *l->err = why;
        return false;
    }
    seal_report(seal, "attestation", record, &why);
    return true;
}

static bool replay_failed(struct error *err)
{
    const struct error inner = *err;
    if (strcmp(inner.name, "Interrupted") == 0)
        return false;
    error_set(err, "TIMED-REPLAY-FAILED", "the reference cannot replay the cohort: %s: %s",
              inner.name, inner.message);
    return false;
}

static bool judge_replay(struct leg *l, const struct cohort_run *k, const struct wire_replay *said,
                         json_t *seal)
{
    struct cohort_report report;
    int64_t mismatches[JOB_COHORT_STREAMS] = {0};
    struct error why = {0};
    if (!cohort_report_read(l->a, said, &report, l->err))
        return replay_failed(l->err);
    if (!cohort_gate(&report, &k->committed, mismatches, l->err))
        return strcmp(l->err->name, "GateRejected") == 0 ? false : replay_failed(l->err);
    json_t *counts = json_array();
    for (size_t s = 0; s < l->p->streams; s++)
        json_array_append_new(counts, json_integer(mismatches[s]));
    json_object_set_new(seal, "mismatches", counts);
    seal_report(seal, "near_ties", cohort_near_ties(&report, &why), &why);
    return true;
}

/* After the engine has ended, so that two of them never share the machine. */
static bool replay(struct leg *l, const struct cohort_run *k, json_t *seal)
{
    struct wire_request q = client_request(WIRE_KIND_cohort_reference_replay);
    struct wire_tokens *seeds = arena_array(l->a, l->p->streams, sizeof *seeds);
    for (size_t s = 0; s < l->p->streams; s++)
        seeds[s] = seed_of(l->p->members[s]);
    q.replay_seeds_by_stream =
        (struct wire_token_lists){.present = true, .count = l->p->streams, .items = seeds};
    q.committed_by_stream = k->committed;
    q.replay_width.text = "cohort";
    struct client *reference;
    const struct wire_response *r;
    bool ok = (start(l->p->reference, true, true, &reference, l->err) &&
               client_call(reference, &q, 0, &r, NULL, l->err)) ||
              replay_failed(l->err);
    ok = ok && judge_replay(l, k, &r->cohort_reference_replay, seal);
    client_free(reference);
    return ok;
}

/* ---- the leg ---- */

static bool warm_up(struct leg *l)
{
    struct client *c = l->client;
    struct wire_request q;
    const struct wire_response *r;
    if (!begin_request(l, true, &q) || !client_call(c, &q, 0, &r, NULL, l->err))
        return false;
    if (l->p->series == JOB_TEACHER_FORCED) {
        int64_t token = r->seed_token.value;
        for (int i = 0; i < WARM_UP_STEPS; i++) {
            q = step_request(WIRE_KIND_decode_step, token);
            if (!client_call(c, &q, 0, &r, NULL, l->err))
                return false;
            token = r->token.value;
        }
        return client_barrier(c, -1, NULL, l->err);
    }
    q = run_request(l, WARM_UP_TOKENS);
    return client_call(c, &q, 0, &r, NULL, l->err) &&
           client_barrier(c, (int64_t)r->acceptance_lengths.count + 1, NULL, l->err);
}

static bool time_window(struct leg *l, struct cohort_run *k)
{
    const struct job_leg_plan *p = l->p;
    double ceiling;
    struct edges e = {0};
    if (!client_ceiling_from_environment(&ceiling, l->err) ||
        !client_arm_run_deadline(l->client, p->streams * (uint64_t)p->steps, ceiling, l->err))
        return false;
    const bool ok = p->series == JOB_TEACHER_FORCED ? teacher_forced(l, &e)
                    : p->series == JOB_FREE_RUN     ? free_run(l, &e)
                                                    : cohort_run(l, &e, k);
    client_disarm_run_deadline(l->client);
    if (ok)
        keep_windows(l, &e);
    return ok;
}

/* The gates before the window, telemetry during it. */
static bool time_quietly(struct leg *l, struct cohort_run *k)
{
    struct quiet *q = l->p->quiet;
    if (q == NULL)
        return time_window(l, k);
    if (!quiet_before(q, &l->p->at, l->err))
        return false;
    const bool timed = time_window(l, k);
    struct error ignored;
    const bool quiet = quiet_after_alone(q, timed ? l->err : &ignored);
    json_t *records = quiet_records(q);
    const json_t *last = json_array_get(records, json_array_size(records) - 1);
    const char *state =
        json_string_value(json_object_get(json_object_get(last, "temperature"), "state"));
    l->out->gate_state = arena_strdup(l->a, state != NULL ? state : "off");
    json_decref(records);
    return timed && quiet;
}

static bool drive(struct leg *l, struct cohort_run *k)
{
    const bool forced = l->p->series == JOB_TEACHER_FORCED;
    if (!warm_up(l) || !time_quietly(l, k))
        return false;
    const int64_t rounds = (int64_t)l->out->acceptance_lengths.count;
    return client_barrier(l->client, forced ? -1 : rounds + 1, NULL, l->err) &&
           (l->p->series != JOB_COHORT_RUN || attest(l, k, l->out->cohort));
}

bool job_leg_run(const struct job_leg_plan *p, struct arena *a, struct job_leg *out,
                 struct error *err)
{
    struct error none;
    struct leg l = {.p = p, .a = a, .out = out, .err = err != NULL ? err : &none};
    struct cohort_run k = {0};
    *out = (struct job_leg){.gate_state = "off"};
    if (p->series == JOB_COHORT_RUN)
        out->cohort = json_object();
    l.tokens = arena_array(a, p->streams, sizeof *l.tokens);
    /* The replay judges a cohort's tokens; one prompt's must be the golden's. */
    if (p->series != JOB_COHORT_RUN &&
        !job_prompt_tokens(a, p->members[0], p->steps, &l.tokens[0], l.err))
        return false;
    bool ok = start(p->engine, true, false, &l.client, l.err) && drive(&l, &k);
    client_free(l.client);
    return ok && (p->series != JOB_COHORT_RUN || replay(&l, &k, out->cohort));
}

/* ---- the exactness probe ---- */

static bool inexact(struct client *c, int64_t step, struct error *err)
{
    char value[32];
    snprintf(value, sizeof value, "%" PRId64, step);
    client_discard(c);
    error_set(err, "EXACTNESS-PROBE-FAILED",
              "the candidate's serial decoding differs from the golden at token %s", value);
    return error_at(err, NULL, "token", NULL);
}

static bool probe(struct client *c, const struct job_prompt *p, const int64_t *tokens,
                  int64_t steps, struct error *err)
{
    struct wire_request q = client_request(WIRE_KIND_correctness_begin);
    const struct wire_response *r;
    q.prompt_tokens = seed_of(p);
    if (!client_call(c, &q, 0, &r, NULL, err))
        return false;
    if (r->token.value != p->seed_token)
        return inexact(c, 0, err);
    for (int64_t i = 0; i < steps; i++) {
        q = step_request(WIRE_KIND_correctness_step, i == 0 ? p->seed_token : tokens[i - 1]);
        if (!client_call(c, &q, 0, &r, NULL, err))
            return false;
        if (r->token.value != tokens[i])
            return inexact(c, i + 1, err);
    }
    return client_barrier(c, -1, NULL, err);
}

bool job_probe_exactness(const struct job_engine *e, const struct job_prompt *p, int64_t steps,
                         struct error *err)
{
    struct arena a = {0};
    struct client *c = NULL;
    const int64_t *tokens;
    const bool ok = job_prompt_tokens(&a, p, steps, &tokens, err) &&
                    start(e, false, false, &c, err) && probe(c, p, tokens, steps, err);
    client_free(c);
    arena_free(&a);
    return ok;
}
