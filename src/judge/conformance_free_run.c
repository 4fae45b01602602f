/* Free runs, speculation, cohorts and the trusted replay; and that what is not advertised is
 * refused. */
#include "judge/conformance_kit.h"

#include "judge/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { COHORT_MOST = 64 }; /* wider ones are tried at this width */

static struct wire_request run_request(uint32_t count)
{
    struct wire_request q = client_request(WIRE_KIND_free_decode_run);
    q.count = (struct wire_u32){.present = true, .value = count};
    return q;
}

/* The depth of an echo: UINT32_MAX - 1 where a mode that drafts does not say it. */
static uint32_t depth_of(const struct wire_spec *effective)
{
    if (!effective->present || strcmp(effective->mode, "serial") == 0)
        return 0;
    const json_t *block = effective->dflash != NULL ? effective->dflash : effective->dspark;
    const json_int_t depth = json_integer_value(json_object_get(block, "depth"));
    if (effective->mtp_depth.present)
        return effective->mtp_depth.value;
    return depth > 0 && depth < UINT32_MAX ? (uint32_t)depth : UINT32_MAX - 1;
}

/* begin (with a spec or NULL), run of KIT_STEPS tokens; the run's reply stays the peer's. */
static bool free_run_deep(struct kit *k, struct peer *p, const struct wire_spec *spec,
                          const struct wire_response **reply, uint32_t *depth, struct verdict *v)
{
    struct wire_request q = kit_prompt(WIRE_KIND_free_decode_begin, &k->seed);
    const struct wire_response *r;
    if (spec != NULL)
        q.spec = *spec;
    if (!kit_ask(k, p, &q, &r, v) ||
        !kit_same_tokens(&r->seed_token.value, k->greedy, 1, "seed_token", v))
        return false;
    *depth = depth_of(&r->effective_spec);
    q = run_request(KIT_STEPS);
    return kit_ask_loosely(k, p, &q, reply, v);
}

static bool free_run(struct kit *k, struct peer *p, const struct wire_response **reply,
                     struct verdict *v)
{
    uint32_t unused;
    return free_run_deep(k, p, NULL, reply, &unused, v);
}

static bool run_tokens(struct kit *k, const struct wire_response *r, const char *what,
                       struct verdict *v)
{
    if (r->tokens.count != KIT_STEPS) {
        kit_fail(v, "%s: %zu tokens, %d were asked for", what, r->tokens.count, KIT_STEPS);
        return false;
    }
    return kit_same_tokens(r->tokens.items, k->greedy + 1, KIT_STEPS, what, v);
}

/* depth: how many tokens a round may draft, 0 for a serial run. */
static bool run_counters(const struct wire_response *r, uint32_t depth, struct verdict *v)
{
    struct error err = {0};
    if (!reply_check_free_run(r, KIT_STEPS, &err)) {
        kit_fail(v, "%s: %s", err.name, err.message);
        return false;
    }
    for (size_t i = 0; i < r->acceptance_lengths.count; i++) {
        const uint32_t length = r->acceptance_lengths.items[i];
        if (length < 1 || length > (uint64_t)depth + 1) {
            kit_fail(v, "round %zu committed %u tokens; with depth %u it is 1 to %u", i, length,
                     depth, depth + 1);
            return false;
        }
    }
    if (depth > 0 || r->drafted_total.value == 0)
        return true;
    kit_fail(v, "drafted_total of a serial run is %" PRIu64 ", not 0",
             (uint64_t)r->drafted_total.value);
    return false;
}

static bool run_closes(struct kit *k, struct peer *p, const struct wire_response *r,
                       struct verdict *v)
{
    struct error err = {0};
    const struct free_run_close close = reply_free_run_close(r);
    if (!kit_barrier(k, p, -1, &r, v))
        return false;
    if (reply_check_free_run_close(&close, &r->completed_work, &err))
        return true;
    kit_fail(v, "%s: %s", err.name, err.message);
    return false;
}

static struct peer *free_run_peer(struct kit *k, struct verdict *v)
{
    return kit_learn_greedy(k, v) ? kit_peer_with(k, "free_run_decode", v) : NULL;
}

static void check_free_run(struct kit *k, struct verdict *v)
{
    struct peer *p = free_run_peer(k, v);
    const struct wire_response *r;
    if (p != NULL && free_run(k, p, &r, v))
        run_tokens(k, r, "free_decode_run beside correctness", v);
}

static void check_free_run_counters(struct kit *k, struct verdict *v)
{
    struct peer *p = free_run_peer(k, v);
    const struct wire_response *r;
    uint32_t depth; /* of an engine that drafts unasked, and says so */
    if (p != NULL && free_run_deep(k, p, NULL, &r, &depth, v))
        run_counters(r, depth, v);
}

static void check_free_run_work(struct kit *k, struct verdict *v)
{
    struct peer *p = free_run_peer(k, v);
    const struct wire_response *r;
    if (p == NULL || !free_run(k, p, &r, v) || !run_closes(k, p, r, v))
        return;
    struct wire_request q = kit_prompt(WIRE_KIND_free_decode_begin, &k->brief);
    if (kit_ask(k, p, &q, NULL, v))
        kit_barrier(k, p, 1, NULL, v);
}

static void check_free_run_none(struct kit *k, struct verdict *v)
{
    struct peer *p = free_run_peer(k, v);
    struct wire_request q = kit_prompt(WIRE_KIND_free_decode_begin, &k->seed);
    const struct wire_response *r;
    if (p == NULL || !kit_ask(k, p, &q, NULL, v))
        return;
    q = run_request(0);
    if (kit_ask(k, p, &q, &r, v))
        kit_barrier(k, p, 1 + (int64_t)r->acceptance_lengths.count, NULL, v);
}

static struct wire_request cohort_begin(struct kit *k, uint32_t streams);

/* A run after a begin of another kind, or of another form. */
static void run_in_another_form(struct kit *k, struct peer *p, struct verdict *v)
{
    static const char after_decode[] = "free_decode_run after decode_begin";
    static const char single[] = "free_decode_run of one stream after a cohort's begin";
    static const char wide[] = "free_decode_run of a cohort after one stream's begin";
    struct wire_request q = kit_prompt(WIRE_KIND_decode_begin, &k->brief);
    if (!kit_ask(k, p, &q, NULL, v))
        return;
    q = run_request(4);
    if (!kit_request_refused(k, p, after_decode, &q, v) || !kit_recovers(k, p, after_decode, v) ||
        !kit_has_capability(p, "batched_free_run_decode") || p->hello.max_batch_size.value < 2)
        return;
    q = cohort_begin(k, 2);
    if (!kit_ask(k, p, &q, NULL, v))
        return;
    q = run_request(4);
    if (!kit_request_refused(k, p, single, &q, v) || !kit_recovers(k, p, single, v))
        return;
    q = kit_prompt(WIRE_KIND_free_decode_begin, &k->brief);
    if (!kit_ask(k, p, &q, NULL, v))
        return;
    q = run_request(4);
    q.batch_size = (struct wire_u32){.present = true, .value = 2};
    if (kit_request_refused(k, p, wide, &q, v))
        kit_recovers(k, p, wide, v);
}

static void check_run_before_begin(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_brief(k, v) ? kit_peer_with(k, "free_run_decode", v) : NULL;
    if (p == NULL)
        return;
    struct wire_request q = run_request(4);
    if (!kit_request_refused(k, p, "free_decode_run without a begin", &q, v) ||
        !kit_recovers(k, p, "free_decode_run without a begin", v))
        return;
    q = kit_prompt(WIRE_KIND_free_decode_begin, &k->brief);
    if (!kit_ask(k, p, &q, NULL, v) || !kit_barrier(k, p, -1, NULL, v))
        return;
    q = run_request(4);
    if (kit_request_refused(k, p, "free_decode_run after a barrier", &q, v) &&
        kit_recovers(k, p, "free_decode_run after a barrier", v))
        run_in_another_form(k, p, v);
}

static void check_oversize_run(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_brief(k, v) ? kit_peer_with(k, "free_run_decode", v) : NULL;
    struct wire_request q = kit_prompt(WIRE_KIND_free_decode_begin, &k->brief);
    if (p == NULL || !kit_ask(k, p, &q, NULL, v))
        return;
    q = run_request(UINT32_MAX);
    if (kit_request_refused(k, p, "a count of 4294967295", &q, v))
        kit_recovers(k, p, "a count of 4294967295", v);
}

/* ---- what is not advertised ---- */

static bool refuse_free_run(struct kit *k, struct peer *p, struct verdict *v)
{
    struct wire_request q = kit_prompt(WIRE_KIND_free_decode_begin, &k->brief);
    if (!kit_request_refused(k, p, "free_decode_begin", &q, v))
        return false;
    q = run_request(4);
    return kit_request_refused(k, p, "free_decode_run", &q, v) &&
           kit_recovers(k, p, "free_decode_begin and free_decode_run", v);
}

static void check_free_run_refused(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_brief(k, v) ? kit_peer(k, KIT_V1, v) : NULL;
    if (p == NULL || !refuse_free_run(k, p, v))
        return;
    p = kit_peer(k, KIT_V11, v);
    if (p != NULL && !kit_has_capability(p, "free_run_decode"))
        refuse_free_run(k, p, v);
}

static struct wire_token_lists lists_of(struct kit *k, const struct wire_tokens *one,
                                        const struct wire_tokens *two, size_t count)
{
    struct wire_tokens *items = arena_array(&k->arena, count, sizeof *items);
    for (size_t i = 0; i < count; i++)
        items[i] = i % 2 == 0 ? *one : *two;
    return (struct wire_token_lists){.present = true, .count = count, .items = items};
}

/* The seeds of a cohort: three, of two lengths, over and over. */
enum { COHORT_SEEDS = 3 };
static const struct wire_tokens *cohort_seed(const struct kit *k, size_t stream)
{
    const struct wire_tokens *const seeds[COHORT_SEEDS] = {&k->seed, &k->brief, &k->other};
    return seeds[stream % COHORT_SEEDS];
}

static struct wire_request cohort_begin(struct kit *k, uint32_t streams)
{
    struct wire_request q = client_request(WIRE_KIND_free_decode_begin);
    struct wire_tokens *items = arena_array(&k->arena, streams, sizeof *items);
    for (size_t i = 0; i < streams; i++)
        items[i] = *cohort_seed(k, i);
    q.seed_tokens_by_stream =
        (struct wire_token_lists){.present = true, .count = streams, .items = items};
    q.batch_size = (struct wire_u32){.present = true, .value = streams};
    return q;
}

static void check_cohort_refused(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_brief(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    if (p == NULL)
        return;
    if (kit_has_capability(p, "batched_free_run_decode")) {
        kit_skip(v, "batched_free_run_decode is advertised");
        return;
    }
    struct wire_request q = cohort_begin(k, 2);
    if (kit_request_refused(k, p, "a cohort's free_decode_begin", &q, v))
        kit_recovers(k, p, "a cohort's free_decode_begin", v);
}

static void check_replay_refused(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_brief(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    if (p == NULL)
        return;
    if (kit_has_capability(p, "cohort_reference_replay")) {
        kit_skip(v, "cohort_reference_replay is advertised");
        return;
    }
    struct wire_request q = client_request(WIRE_KIND_cohort_reference_replay);
    q.replay_seeds_by_stream = lists_of(k, &k->brief, &k->brief, 1);
    q.committed_by_stream = lists_of(k, &k->forced, &k->forced, 1);
    q.replay_width.text = "cohort";
    if (kit_request_refused(k, p, "cohort_reference_replay", &q, v))
        kit_recovers(k, p, "cohort_reference_replay", v);
}

/* ---- speculation ---- */

/* The spec that asks for a mode and leaves its depth to the engine; but dflash, which an engine may
 * refuse without one, with the least. */
static bool spec_of(const char *mode, struct arena *a, struct wire_spec *out)
{
    struct error err = {0};
    char text[96];
    if (strcmp(mode, "serial") == 0)
        snprintf(text, sizeof text, "{\"mode\":\"serial\"}");
    else if (strcmp(mode, "dflash") == 0)
        snprintf(text, sizeof text, "{\"mode\":\"dflash\",\"dflash\":{\"depth\":1}}");
    else
        snprintf(text, sizeof text, "{\"mode\":\"%s\",\"%s\":{}}", mode, mode);
    if (!wire_spec_decode(a, text, strlen(text), out, &err))
        return false;
    out->present = true;
    return true;
}

/* A depth that the engine did not choose: echoed unchanged, or refused. */
static void other_depth(struct kit *k, struct peer *p, struct wire_spec *spec, struct verdict *v)
{
    struct verdict honoured = {0}, refused = {0};
    struct wire_request q = kit_prompt(WIRE_KIND_decode_begin, &k->seed);
    spec->mtp_depth.value = spec->mtp_depth.value == 1 ? 2 : 1;
    q.spec = *spec;
    if (kit_ask(k, p, &q, NULL, &honoured) || p->dead)
        return;
    q.id = (struct wire_i64){0};
    if (!kit_request_refused(k, p, "a depth that it cannot run", &q, &refused))
        *v = honoured;
}

static void check_spec_echo(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    if (p == NULL)
        return;
    if (p->hello.spec_modes.count == 0) {
        kit_skip(v, "the hello lists no spec_modes");
        return;
    }
    for (size_t i = 0; i < p->hello.spec_modes.count && v->is == KIT_PASS; i++) {
        struct wire_spec spec = {0};
        struct wire_request q = kit_prompt(WIRE_KIND_decode_begin, &k->seed);
        const struct wire_response *r;
        if (!spec_of(p->hello.spec_modes.items[i], &k->arena, &spec))
            continue;
        q.spec = spec;
        bool ok = kit_ask(k, p, &q, &r, v) &&
                  kit_same_tokens(&r->seed_token.value, k->greedy, 1, "seed_token with a spec", v);
        if (ok && spec.has_mtp) { /* the depth that it chose, asked for by number */
            spec.mtp_depth = r->effective_spec.mtp_depth;
            q = kit_prompt(WIRE_KIND_decode_begin, &k->seed);
            q.spec = spec;
            ok = kit_ask(k, p, &q, NULL, v);
        }
        if (ok && spec.has_mtp)
            other_depth(k, p, &spec, v);
        wire_spec_free(&spec);
    }
}

static void check_spec_runs(struct kit *k, struct verdict *v)
{
    struct peer *p = free_run_peer(k, v);
    if (p == NULL)
        return;
    if (p->hello.spec_modes.count == 0) {
        kit_skip(v, "the hello lists no spec_modes");
        return;
    }
    for (size_t i = 0; i < p->hello.spec_modes.count && v->is == KIT_PASS; i++) {
        struct wire_spec spec = {0};
        const struct wire_response *r;
        const char *mode = p->hello.spec_modes.items[i];
        if (!spec_of(mode, &k->arena, &spec))
            continue;
        uint32_t depth;
        if (free_run_deep(k, p, &spec, &r, &depth, v) && run_tokens(k, r, mode, v) &&
            run_counters(r, depth, v))
            run_closes(k, p, r, v);
        wire_spec_free(&spec);
    }
}

static void check_spec_refused(struct kit *k, struct verdict *v)
{
    static const char *const modes[] = {"mtp", "dflash", "dspark"};
    static const enum wire_kind kinds[] = {WIRE_KIND_decode_begin, WIRE_KIND_free_decode_begin};
    struct peer *p = kit_learn_brief(k, v) ? kit_peer(k, KIT_V11, v) : NULL;
    if (p == NULL)
        return;
    size_t tried = 0;
    for (size_t i = 0; i < 3; i++) {
        if (kit_texts_hold(&p->hello.spec_modes, modes[i]))
            continue;
        tried++;
        for (size_t j = 0; j < 2; j++) {
            char what[64];
            struct wire_spec spec = {0};
            struct wire_request q = kit_prompt(kinds[j], &k->brief);
            if (!spec_of(modes[i], &k->arena, &spec))
                continue;
            q.spec = spec;
            snprintf(what, sizeof what, "%s with mode %s, which is not in spec_modes",
                     wire_kind_name(kinds[j]), modes[i]);
            const bool ok = kit_request_refused(k, p, what, &q, v) && kit_recovers(k, p, what, v);
            wire_spec_free(&spec);
            if (!ok)
                return;
        }
    }
    if (tried == 0)
        kit_skip(v, "every mode is in spec_modes");
}

/* ---- cohorts ---- */

static bool cohort_run(struct kit *k, struct peer *p, uint32_t streams,
                       const struct wire_response **reply, struct verdict *v)
{
    struct wire_request q = cohort_begin(k, streams);
    const struct wire_response *r;
    if (!kit_ask(k, p, &q, &r, v))
        return false;
    for (size_t i = 0; i < streams; i += COHORT_SEEDS)
        if (!kit_same_tokens(&r->seed_token_by_stream.items[i], k->greedy, 1,
                             "seed_token_by_stream", v))
            return false;
    q = run_request(KIT_STEPS);
    q.batch_size = (struct wire_u32){.present = true, .value = streams};
    return kit_ask_loosely(k, p, &q, reply, v);
}

static struct peer *cohort_peer(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer_with(k, "batched_free_run_decode", v) : NULL;
    if (p == NULL || p->hello.max_batch_size.value >= 2)
        return p;
    kit_skip(v, "the hello's max_batch_size is not usable");
    return NULL;
}

static void check_cohort(struct kit *k, struct verdict *v)
{
    struct peer *p = cohort_peer(k, v);
    const struct wire_response *r;
    int64_t alone[COHORT_SEEDS][KIT_STEPS + 1];
    if (p == NULL)
        return;
    for (size_t i = 0; i < COHORT_SEEDS; i++) {
        struct wire_request q = kit_prompt(WIRE_KIND_correctness, cohort_seed(k, i));
        q.steps = (struct wire_i64){.present = true, .value = KIT_STEPS + 1};
        if (!kit_ask(k, p, &q, &r, v))
            return;
        memcpy(alone[i], r->tokens.items, sizeof alone[i]);
    }
    const uint32_t most = p->hello.max_batch_size.value;
    const uint32_t widths[] = {2, most < COHORT_MOST ? most : COHORT_MOST};
    for (size_t w = 0; w < 2; w++) {
        if (!cohort_run(k, p, widths[w], &r, v))
            return;
        if (r->tokens_by_stream.count != widths[w]) {
            kit_fail(v, "%zu lists of tokens for %u streams", r->tokens_by_stream.count,
                     (unsigned)widths[w]);
            return;
        }
        for (size_t i = 0; i < widths[w]; i++) {
            const struct wire_tokens *t = &r->tokens_by_stream.items[i];
            if (t->count != KIT_STEPS) {
                kit_fail(v, "stream %zu has %zu tokens, %d were asked for", i, t->count, KIT_STEPS);
                return;
            }
            char what[64];
            snprintf(what, sizeof what, "stream %zu beside correctness", i);
            if (!kit_same_tokens(t->items, alone[i % COHORT_SEEDS] + 1, KIT_STEPS, what, v))
                return;
        }
        if (!kit_barrier(k, p, -1, NULL, v))
            return;
    }
}

static void check_cohort_counters(struct kit *k, struct verdict *v)
{
    struct peer *p = cohort_peer(k, v);
    const struct wire_response *r;
    struct error err = {0};
    if (p == NULL || !cohort_run(k, p, 2, &r, v))
        return;
    if (!reply_check_cohort(r, 2, KIT_STEPS, &err))
        kit_fail(v, "%s: %s", err.name, err.message);
    else
        run_closes(k, p, r, v);
}

static void check_cohort_bounds(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_brief(k, v) ? cohort_peer(k, v) : NULL;
    if (p == NULL)
        return;
    const uint32_t most = p->hello.max_batch_size.value;
    struct wire_request q = cohort_begin(k, 2);
    q.batch_size.value = 3;
    if (!kit_request_refused(k, p, "batch_size 3 with two lists", &q, v) ||
        !kit_recovers(k, p, "batch_size 3 with two lists", v))
        return;
    q = cohort_begin(k, 2);
    q.seed_tokens = k->brief;
    if (!kit_request_refused(k, p, "seed_tokens beside seed_tokens_by_stream", &q, v) ||
        !kit_recovers(k, p, "seed_tokens beside seed_tokens_by_stream", v))
        return;
    if (most < COHORT_MOST) {
        q = cohort_begin(k, most + 1);
        if (kit_request_refused(k, p, "more streams than max_batch_size", &q, v))
            kit_recovers(k, p, "more streams than max_batch_size", v);
    }
}

static void check_stream_timing(struct kit *k, struct verdict *v)
{
    struct peer *p = cohort_peer(k, v);
    if (p == NULL)
        return;
    const bool timed = kit_has_capability(p, "per_stream_timing");
    struct wire_request q = cohort_begin(k, 2);
    const struct wire_response *r;
    if (!kit_ask(k, p, &q, &r, v))
        return;
    if (r->prefill_ns_by_stream.present != timed || (timed && r->prefill_ns_by_stream.count != 2)) {
        kit_fail(v,
                 "prefill_ns_by_stream has %zu entries for 2 streams, and per_stream_timing is "
                 "%sadvertised",
                 r->prefill_ns_by_stream.count, timed ? "" : "not ");
        return;
    }
    q = run_request(KIT_STEPS);
    q.batch_size = (struct wire_u32){.present = true, .value = 2};
    if (!kit_ask_loosely(k, p, &q, &r, v))
        return;
    if (r->decode_ns_by_stream.present != timed || (timed && r->decode_ns_by_stream.count != 2))
        kit_fail(v,
                 "decode_ns_by_stream has %zu entries for 2 streams, and per_stream_timing is "
                 "%sadvertised",
                 r->decode_ns_by_stream.count, timed ? "" : "not ");
}

/* ---- replay ---- */

static bool position_is(const json_t *position, int64_t committed, int64_t argmax)
{
    return json_integer_value(json_object_get(position, "committed_token")) == committed &&
           json_integer_value(json_object_get(position, "sequential_argmax")) == argmax;
}

/* Two streams: one commits what greedy decoding says, one its first token over and over. */
static void check_replay(struct kit *k, struct verdict *v)
{
    struct peer *p = kit_learn_greedy(k, v) ? kit_peer_with(k, "cohort_reference_replay", v) : NULL;
    struct wire_request q = client_request(WIRE_KIND_cohort_reference_replay);
    const struct wire_response *r;
    const struct wire_tokens greedy = client_tokens(k->greedy, KIT_STEPS);
    const struct wire_tokens first = client_tokens(k->greedy, 1);
    q.replay_seeds_by_stream = lists_of(k, &k->seed, &k->seed, 2);
    q.committed_by_stream = lists_of(k, &greedy, &first, 2);
    q.replay_width.text = "cohort";
    if (p == NULL || !kit_ask(k, p, &q, &r, v))
        return;
    const json_t *streams = json_object_get(r->cohort_reference_replay.report, "streams");
    if (json_array_size(streams) != 2) {
        kit_fail(v, "%zu streams in the report, 2 were asked for", json_array_size(streams));
        return;
    }
    for (size_t s = 0; s < 2; s++) {
        const json_t *stream = json_array_get(streams, s);
        const json_t *positions = json_object_get(stream, "positions");
        const size_t wanted = s == 0 ? KIT_STEPS : 1;
        if (json_integer_value(json_object_get(stream, "slot")) != (json_int_t)s ||
            json_array_size(positions) != wanted) {
            kit_fail(v, "stream %zu: slot or number of positions is wrong", s);
            return;
        }
        for (size_t i = 0; i < wanted; i++)
            if (!position_is(json_array_get(positions, i), k->greedy[i], k->greedy[i])) {
                kit_fail(v,
                         "stream %zu, position %zu: not the committed token with the argmax "
                         "before it",
                         s, i);
                return;
            }
    }
}

const struct kit_check kit_free_run_checks[] = {
    {"free_run", "Free runs", "free_decode_run gives the tokens of correctness after seed_token.",
     check_free_run},
    {"free_run_counters", "Free runs",
     "acceptance_lengths, committed_total, drafted_total and accepted_total fit the tokens; "
     "without "
     "speculation every length is 1.",
     check_free_run_counters},
    {"free_run_work", "Free runs", "completed_work of a free run is its rounds + 1.",
     check_free_run_work},
    {"free_run_count_0", "Free runs", "A count of 0 is answered with empty lists.",
     check_free_run_none},
    {"free_run_oversize", "Free runs", "A count beyond the context is refused.",
     check_oversize_run},
    {"run_before_begin", "Free runs",
     "free_decode_run without an open begin, of its own kind and form, is refused.",
     check_run_before_begin},
    {"free_run_not_advertised", "Free runs",
     "Without the capability, and always in plain v1, the free-run kinds are refused.",
     check_free_run_refused},
    {"spec_echo", "Speculation",
     "effective_spec honours the spec of each mode in spec_modes; a depth is echoed or refused.",
     check_spec_echo},
    {"spec_runs", "Speculation",
     "A free run in each mode of spec_modes gives the same tokens and counters that fit.",
     check_spec_runs},
    {"spec_not_advertised", "Speculation", "A spec of a mode outside spec_modes is refused.",
     check_spec_refused},
    {"cohort", "Cohorts", "Each stream of a cohort gives the tokens that it gives alone.",
     check_cohort},
    {"cohort_counters", "Cohorts", "The counters of a cohort fit one another and its barrier.",
     check_cohort_counters},
    {"cohort_bounds", "Cohorts",
     "A cohort wider than max_batch_size, or whose lists differ from batch_size, is refused.",
     check_cohort_bounds},
    {"cohort_timing", "Cohorts",
     "The vectors of nanoseconds are there exactly when per_stream_timing is advertised.",
     check_stream_timing},
    {"cohort_not_advertised", "Cohorts", "Without the capability the cohort form is refused.",
     check_cohort_refused},
    {"replay", "Replay", "The replay reports each committed token with the argmax before it.",
     check_replay},
    {"replay_not_advertised", "Replay", "Without the capability the replay is refused.",
     check_replay_refused},
};
const size_t kit_free_run_count = sizeof kit_free_run_checks / sizeof *kit_free_run_checks;
