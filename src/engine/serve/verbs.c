/* The request kinds. */
#include "engine/serve/verbs.h"

#include "engine/decode/pick.h"
#include "engine/decode/serial.h"
#include "engine/decode/speculate.h"
#include "engine/serve/memory.h"
#include "engine/serve/spec.h"

#include <math.h>

/* One bit per request field, so that what a kind requires and allows is one table. */
enum field {
#define FIELD(type, name, required) FIELD_##name,
    WIRE_REQUEST_FIELDS(FIELD) WIRE_BLOCK_REQUEST_FIELDS(FIELD)
#undef FIELD
};
#define BIT(name) (1u << FIELD_##name)

static const char *const field_names[] = {
#define FIELD(type, name, required) #name,
    WIRE_REQUEST_FIELDS(FIELD) WIRE_BLOCK_REQUEST_FIELDS(FIELD)
#undef FIELD
};

static const struct kind_fields {
    unsigned required, optional;
} kind_fields[WIRE_KIND_COUNT] = {
    [WIRE_KIND_prefill] = {BIT(prompt_tokens), 0},
    [WIRE_KIND_decode_begin] = {BIT(seed_tokens), BIT(spec)},
    [WIRE_KIND_decode_step] = {BIT(token), 0},
    [WIRE_KIND_correctness] = {BIT(prompt_tokens) | BIT(steps), 0},
    [WIRE_KIND_correctness_begin] = {BIT(prompt_tokens), 0},
    [WIRE_KIND_correctness_step] = {BIT(token), 0},
    [WIRE_KIND_phase_diagnostics] = {0, 0},
    [WIRE_KIND_free_decode_begin] = {BIT(seed_tokens), BIT(spec)},
    [WIRE_KIND_free_decode_run] = {BIT(count), 0},
    [WIRE_KIND_cohort_reference_replay] = {BIT(replay_seeds_by_stream) | BIT(committed_by_stream),
                                           BIT(batch_size) | BIT(logit_top_k) | BIT(rel_envelope) |
                                               BIT(replay_width)},
    [WIRE_KIND_dflash_decode_warm] = {0, 0},
    [WIRE_KIND_dflash_decode_begin] = {BIT(seed_tokens), 0},
    [WIRE_KIND_dflash_decode_block] = {BIT(token) | BIT(max_block_size), 0},
    [WIRE_KIND_dflash_phase_diagnostics] = {0, 0},
    [WIRE_KIND_dflash_reference_prefill] = {BIT(seed_tokens), 0},
    [WIRE_KIND_dflash_reference_rows] = {BIT(prefix_tokens) | BIT(seed_token_count) |
                                             BIT(start_offset) | BIT(count) |
                                             BIT(declared_block_width),
                                         BIT(verify_block_tokens)},
};

/* Presence of a field of each wire type. */
#define PRESENT_i64(f) ((f).present)
#define PRESENT_u32(f) ((f).present)
#define PRESENT_f64(f) ((f).present)
#define PRESENT_text(f) ((f).text != NULL)
#define PRESENT_tokens(f) ((f).present)
#define PRESENT_token_lists(f) ((f).present)
#define PRESENT_spec(f) ((f).present)

static unsigned present_fields(const struct wire_request *r)
{
    unsigned bits = 0;
#define FIELD(type, name, required)                                                                \
    if (PRESENT_##type(r->name))                                                                   \
        bits |= BIT(name);
    WIRE_REQUEST_FIELDS(FIELD)
    WIRE_BLOCK_REQUEST_FIELDS(FIELD)
#undef FIELD
    return bits;
}

static bool not_advertised(struct error *err, const char *capability)
{
    error_set(err, "CAPABILITY-NOT-ADVERTISED", "this worker does not advertise %s", capability);
    return error_at(err, NULL, capability, NULL);
}

/* Before anything runs: the capability, then the fields. */
static bool check_request(const struct verbs *v, enum wire_kind kind, unsigned present,
                          struct error *err)
{
    bool free_run = kind == WIRE_KIND_free_decode_begin || kind == WIRE_KIND_free_decode_run;
    if (free_run && !v->speculative)
        return not_advertised(err, "free_run_decode");
    if (free_run && (present & (BIT(batch_size) | BIT(seed_tokens_by_stream))))
        return not_advertised(err, "batched_free_run_decode");
    if (kind == WIRE_KIND_cohort_reference_replay && !(v->speculative && v->trusted))
        return not_advertised(err, "cohort_reference_replay");
    if (wire_kind_is_block(kind) && !v->block.config)
        return not_advertised(err, "dflash_block_decode");
    if ((kind == WIRE_KIND_dflash_reference_prefill || kind == WIRE_KIND_dflash_reference_rows) &&
        !v->trusted)
        return not_advertised(err, "dflash_reference");
    if ((present & BIT(spec)) && !v->speculative)
        return error_set(err, "", "spec requires --speculative-protocol v1.1");
    const struct kind_fields *f = &kind_fields[kind];
    unsigned allowed = f->required | f->optional | BIT(id) | BIT(kind);
    for (size_t i = 0; i < sizeof field_names / sizeof *field_names; i++) {
        unsigned bit = 1u << i;
        const char *problem = (f->required & bit) && !(present & bit) ? "needs"
                              : (present & bit) && !(allowed & bit)   ? "does not take"
                                                                      : NULL;
        if (problem) {
            error_set(err, "REQUEST-FIELDS", "%s %s %s", wire_kind_name(kind), problem,
                      field_names[i]);
            return error_at(err, NULL, field_names[i], NULL);
        }
    }
    return true;
}

static bool check_sequence(const struct verbs *v, enum verbs_sequence needed, const char *step,
                           const char *begin, struct error *err)
{
    if (v->sequence == needed)
        return true;
    return error_set(err, "OUT-OF-ORDER", "%s came without an open %s", step, begin);
}

/* A fresh sequence over a prompt. */
static bool begin(struct verbs *v, const struct wire_tokens *prompt, enum verbs_sequence sequence,
                  int32_t *token, struct error *err)
{
    v->sequence = SEQUENCE_NONE;
    session_reset(v->session);
    if (!session_feed(v->session, prompt->items, prompt->count, err) ||
        !session_argmax(v->session, token, err))
        return false;
    v->sequence = sequence;
    return true;
}

static void report_memory(struct wire_response *out)
{
    out->expert_stats.present = true; /* nothing is streamed: zeros */
    memory_report_peak(out);
}

static bool report_correctness(struct verbs *v, struct arena *arena, int32_t token,
                               struct wire_response *out, struct error *err)
{
    struct top_logit top[WIRE_TOP_LOGITS];
    int found = pick_top_k(session_logits(v->session), model_get_info(v->model)->vocab,
                           WIRE_TOP_LOGITS, top);
    struct wire_top_logit *items = arena_array(arena, WIRE_TOP_LOGITS, sizeof *items);
    for (int i = 0; i < found; i++) {
        items[i] = (struct wire_top_logit){top[i].token, (double)top[i].logit};
        if (!isfinite(top[i].logit))
            found = 0; /* JSON has no infinity */
    }
    if (found < WIRE_TOP_LOGITS)
        return error_set(err, "LOGITS-NOT-FINITE", "fewer than %d of the top logits are finite",
                         WIRE_TOP_LOGITS);
    out->token = (struct wire_i64){true, token};
    out->top_logits = (struct wire_top_logits){true, WIRE_TOP_LOGITS, items};
    out->top_logit_margin = (struct wire_f64){true, items[0].logit - items[1].logit};
    report_memory(out);
    return true;
}

static bool answer_prefill(struct verbs *v, const struct wire_request *r, struct wire_response *out,
                           struct error *err)
{
    int32_t token;
    if (!begin(v, &r->prompt_tokens, SEQUENCE_NONE, &token, err))
        return false;
    out->token = (struct wire_i64){true, token};
    return true;
}

static bool answer_decode_begin(struct verbs *v, enum verbs_sequence sequence,
                                const struct wire_request *r, struct wire_response *out,
                                struct error *err)
{
    int32_t token;
    if (!spec_resolve(&r->spec, v->manifest, &v->drafter, &out->effective_spec, &v->width, err) ||
        !begin(v, &r->seed_tokens, sequence, &token, err))
        return false;
    if (v->width > 1) /* the run that follows has nothing left to prefill */
        session_prepare_drafts(v->session);
    v->completed_work++;
    v->next_token = token;
    out->seed_token = (struct wire_i64){true, token};
    return true;
}

/* decode_step and correctness_step are the same step; only the reply differs. */
static bool step(struct verbs *v, const struct wire_request *r, int32_t *token, struct error *err)
{
    if (!session_feed(v->session, &r->token.value, 1, err) ||
        !session_argmax(v->session, token, err))
        return false;
    v->completed_work++;
    return true;
}

static bool check_room(const struct verbs *v, uint64_t needed, struct error *err)
{
    int64_t context = model_get_info(v->model)->context;
    if (needed > (uint64_t)context)
        return error_set(err, "CONTEXT-EXCEEDED", "%llu positions do not fit a context of %lld",
                         (unsigned long long)needed, (long long)context);
    return true;
}

struct token_sink {
    int64_t *items;
    size_t count;
};

static bool collect_token(void *context, int32_t token)
{
    struct token_sink *sink = context;
    sink->items[sink->count++] = token;
    return true;
}

static bool answer_correctness(struct verbs *v, struct arena *arena, const struct wire_request *r,
                               struct wire_response *out, struct error *err)
{
    if (r->steps.value < 1) {
        error_set(err, "STEPS-INVALID", "steps must be at least 1");
        return error_at(err, NULL, "steps", NULL);
    }
    uint64_t steps = (uint64_t)r->steps.value;
    if (!check_room(v, r->prompt_tokens.count + (steps - 1), err))
        return false;
    int32_t token;
    if (!begin(v, &r->prompt_tokens, SEQUENCE_NONE, &token, err))
        return false;
    struct token_sink sink = {arena_array(arena, steps, sizeof *sink.items), 0};
    struct serial_request serial = {.count = steps, .on_token = collect_token, .context = &sink};
    struct serial_result result;
    if (!serial_decode(v->session, &serial, &result, err))
        return false;
    if (sink.count != steps)
        return error_set(err, "INTERRUPTED", "the run was interrupted");
    out->tokens = (struct wire_tokens){true, sink.count, sink.items};
    memory_report_peak(out);
    return true;
}

/* A free run as its rounds come: one entry of lengths for each. */
struct free_run {
    int64_t *tokens;
    uint32_t *lengths;
    size_t made, rounds;
    int width;
};

static int begin_round(void *context, size_t round)
{
    struct free_run *run = context;
    run->rounds = round + 1;
    return run->width;
}

static bool end_token(void *context, int32_t token)
{
    struct free_run *run = context;
    run->tokens[run->made++] = token;
    run->lengths[run->rounds - 1]++;
    return true;
}

/* One forward of the target for each round. The same loop whatever the width: serial rounds draft
 * nothing and commit one token each. */
static bool answer_free_decode_run(struct verbs *v, struct arena *arena,
                                   const struct wire_request *r, struct wire_response *out,
                                   struct error *err)
{
    const size_t count = r->count.value;
    if (!check_sequence(v, SEQUENCE_FREE_RUN, "free_decode_run", "free_decode_begin", err) ||
        !check_room(v, (uint64_t)session_position(v->session) + count, err))
        return false;
    struct free_run run = {.tokens = arena_array(arena, count, sizeof *run.tokens),
                           .lengths = arena_array(arena, count, sizeof *run.lengths),
                           .width = v->width};
    const struct serial_request request = {.count = count, .on_token = end_token, .context = &run};
    const struct speculate_plan plan = {.schedule = begin_round, .context = &run};
    struct speculate_counts counts = {0};
    struct serial_result result = {.end = SERIAL_END_LENGTH};
    if (!speculate_rounds(v->session, &v->next_token, &request, &plan, &counts, &result, err))
        return false;
    if (result.end != SERIAL_END_LENGTH)
        return error_set(err, "INTERRUPTED", "the run was interrupted");
    v->completed_work += (int64_t)counts.rounds;
    out->tokens = (struct wire_tokens){true, count, run.tokens};
    out->acceptance_lengths = (struct wire_u32s){true, run.rounds, run.lengths};
    out->drafted_total = (struct wire_u64){true, counts.drafted};
    out->accepted_total = (struct wire_u64){true, counts.accepted};
    out->committed_total = (struct wire_u64){true, run.made};
    if (v->width > 1) {
        /* offered[0] counts the rounds that drafted: their rows ran in one forward. */
        out->spec_decoder.text = "dflash";
        out->verification_mode.text = counts.offered[0] > 0 ? "rectangular" : "serial";
        out->rectangular_verification_rounds = (struct wire_u64){true, counts.offered[0]};
        out->serial_verification_rounds =
            (struct wire_u64){true, counts.rounds - counts.offered[0]};
    }
    return true;
}

/* The watermarks as they are before the phase's state is dropped. */
static void answer_phase_diagnostics(struct verbs *v, struct wire_response *out)
{
    out->expert_stats.present = true;
    memory_report(v->session, model_get_info(v->model)->weight_bytes + v->drafter.weight_bytes,
                  out);
    out->completed_work = (struct wire_i64){true, v->completed_work};
    out->cache_memory = (struct wire_i64){true, 0};
    verbs_drop(v);
}

/* One stream of the trusted replay: the argmax before each committed token. */
static bool replay_stream(struct verbs *v, const struct wire_tokens *seed,
                          const struct wire_tokens *committed, json_t *positions, struct error *err)
{
    int32_t argmax = 0;
    if (!begin(v, seed, SEQUENCE_NONE, &argmax, err))
        return false;
    for (size_t i = 0; i < committed->count; i++) {
        json_array_append_new(positions, json_pack("{s:I, s:I}", "committed_token",
                                                   (json_int_t)committed->items[i],
                                                   "sequential_argmax", (json_int_t)argmax));
        if (i + 1 < committed->count && (!session_feed(v->session, &committed->items[i], 1, err) ||
                                         !session_argmax(v->session, &argmax, err)))
            return false;
    }
    return true;
}

static bool answer_replay(struct verbs *v, const struct wire_request *r, struct wire_response *out,
                          struct error *err)
{
    size_t streams = r->replay_seeds_by_stream.count;
    if (streams == 0 || streams != r->committed_by_stream.count ||
        (r->batch_size.present && r->batch_size.value != streams)) {
        error_set(err, "REQUEST-FIELDS", "the replay's lists differ in their number of streams");
        return error_at(err, NULL, "committed_by_stream", NULL);
    }
    for (size_t i = 0; i < streams; i++)
        if (!check_room(v,
                        (uint64_t)r->replay_seeds_by_stream.items[i].count +
                            r->committed_by_stream.items[i].count,
                        err))
            return false;
    json_t *report = json_object(), *list = json_array();
    /* One arithmetic: every width gives the same rows, so the width asked for is the one served. */
    if (r->replay_width.text)
        json_object_set_new(report, "replay_width", json_string(r->replay_width.text));
    json_object_set_new(report, "streams", list);
    out->cohort_reference_replay = (struct wire_replay){true, report};
    for (size_t i = 0; i < streams; i++) {
        json_t *positions = json_array();
        json_array_append_new(
            list, json_pack("{s:I, s:o}", "slot", (json_int_t)i, "positions", positions));
        if (!replay_stream(v, &r->replay_seeds_by_stream.items[i], &r->committed_by_stream.items[i],
                           positions, err))
            return false;
    }
    session_reset(v->session);
    out->effective_batch_size = (struct wire_u32){true, (uint32_t)streams};
    return true;
}

static bool dispatch(struct verbs *v, struct arena *arena, enum wire_kind kind,
                     const struct wire_request *r, struct wire_response *out, struct error *err)
{
    int32_t token;
    switch (kind) {
    case WIRE_KIND_prefill:
        return answer_prefill(v, r, out, err);
    case WIRE_KIND_decode_begin:
        return answer_decode_begin(v, SEQUENCE_DECODE, r, out, err);
    case WIRE_KIND_decode_step:
        if (!check_sequence(v, SEQUENCE_DECODE, "decode_step", "decode_begin", err) ||
            !step(v, r, &token, err))
            return false;
        out->token = (struct wire_i64){true, token};
        return true;
    case WIRE_KIND_correctness:
        return answer_correctness(v, arena, r, out, err);
    case WIRE_KIND_correctness_begin:
        if (!begin(v, &r->prompt_tokens, SEQUENCE_CORRECTNESS, &token, err))
            return false;
        v->completed_work++;
        return report_correctness(v, arena, token, out, err);
    case WIRE_KIND_correctness_step:
        return check_sequence(v, SEQUENCE_CORRECTNESS, "correctness_step", "correctness_begin",
                              err) &&
               step(v, r, &token, err) && report_correctness(v, arena, token, out, err);
    case WIRE_KIND_phase_diagnostics:
        answer_phase_diagnostics(v, out);
        return true;
    case WIRE_KIND_free_decode_begin:
        return answer_decode_begin(v, SEQUENCE_FREE_RUN, r, out, err);
    case WIRE_KIND_free_decode_run:
        return answer_free_decode_run(v, arena, r, out, err);
    case WIRE_KIND_cohort_reference_replay:
        return answer_replay(v, r, out, err);
    default:
        return error_set(err, "WIRE-UNKNOWN-KIND", "the request kind is not known");
    }
}

void verbs_drop(struct verbs *v)
{
    session_reset(v->session);
    block_verbs_end(&v->block);
    v->sequence = SEQUENCE_NONE;
    v->completed_work = 0;
}

void verbs_refused(struct verbs *v)
{
    verbs_drop(v);
    block_verbs_refused(&v->block);
}

/* The two protocols share one session: who speaks ends the other's sequence. */
static bool answer(struct verbs *v, struct arena *arena, enum wire_kind kind,
                   const struct wire_request *r, struct wire_response *out, struct error *err)
{
    if (v->block.poisoned)
        return error_set(err, "SESSION-POISONED", "a request was refused before this one");
    const bool block = wire_kind_is_block(kind);
    v->block.begun |= block && v->block.config;
    if (!check_request(v, kind, present_fields(r), err))
        return false;
    if (!block) {
        block_verbs_end(&v->block);
        return dispatch(v, arena, kind, r, out, err);
    }
    v->sequence = SEQUENCE_NONE;
    return block_verbs_answer(&v->block, arena, kind, r, out, err);
}

bool verbs_answer(struct verbs *v, struct arena *arena, const struct wire_request *request,
                  struct wire_response *out, struct error *err)
{
    enum wire_kind kind = wire_kind_find(request->kind.text);
    bool ok = kind < WIRE_KIND_COUNT
                  ? answer(v, arena, kind, request, out, err)
                  : error_set(err, "WIRE-UNKNOWN-KIND", "the request kind is not known");
    if (!ok)
        verbs_refused(v);
    return ok;
}
