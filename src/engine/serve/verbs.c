/* The request kinds. */
#include "engine/serve/verbs.h"

#include "engine/decode/pick.h"
#include "engine/decode/serial.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>

/* One bit per request field, so that what a kind requires and allows is one table. */
enum field {
#define FIELD(type, name, required) FIELD_##name,
    WIRE_REQUEST_FIELDS(FIELD)
#undef FIELD
};
#define BIT(name) (1u << FIELD_##name)

static const char *const field_names[] = {
#define FIELD(type, name, required) #name,
    WIRE_REQUEST_FIELDS(FIELD)
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

/* The decoder that serves this spec; effective is echoed. */
static bool resolve_spec(const struct verbs *v, const struct wire_spec *spec,
                         struct wire_spec *effective, struct error *err)
{
    if (!spec->present)
        return true;
    bool declared = false;
    for (size_t i = 0; i < v->manifest->decoder_count; i++)
        declared |= strcmp(v->manifest->decoders[i].mode, spec->mode) == 0;
    if (!declared) {
        error_set(err, "DECODER-NOT-LOADED",
                  "spec mode %s is not among the loaded decoders (serial)", spec->mode);
        return error_at(err, NULL, "spec.mode", NULL);
    }
    if (spec->has_mtp || spec->dflash || spec->dspark) {
        error_set(err, "SPEC-INVALID", "spec mode %s takes no block of another mode", spec->mode);
        return error_at(err, NULL, "spec", NULL);
    }
    *effective = (struct wire_spec){.present = true, .mode = spec->mode};
    return true;
}

static uint64_t peak_resident_bytes(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0)
        return 0;
    return (uint64_t)usage.ru_maxrss * 1024;
}

static void report_memory(struct wire_response *out)
{
    out->expert_stats.present = true; /* nothing is streamed: zeros */
    out->peak_ram_gb = (struct wire_f64){true, (double)peak_resident_bytes() / 1e9};
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
    if (!resolve_spec(v, &r->spec, &out->effective_spec, err) ||
        !begin(v, &r->seed_tokens, sequence, &token, err))
        return false;
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
    out->peak_ram_gb = (struct wire_f64){true, (double)peak_resident_bytes() / 1e9};
    return true;
}

/* Serial rounds: one forward and one committed token each, nothing drafted. */
static bool answer_free_decode_run(struct verbs *v, struct arena *arena,
                                   const struct wire_request *r, struct wire_response *out,
                                   struct error *err)
{
    size_t count = r->count.value;
    if (!check_sequence(v, SEQUENCE_FREE_RUN, "free_decode_run", "free_decode_begin", err) ||
        !check_room(v, (uint64_t)session_position(v->session) + count, err))
        return false;
    int64_t *tokens = arena_array(arena, count, sizeof *tokens);
    uint32_t *lengths = arena_array(arena, count, sizeof *lengths);
    if (!serial_rounds(v->session, &v->next_token, count, tokens, err))
        return false;
    for (size_t i = 0; i < count; i++)
        lengths[i] = 1;
    v->completed_work += (int64_t)count;
    out->tokens = (struct wire_tokens){true, count, tokens};
    out->acceptance_lengths = (struct wire_u32s){true, count, lengths};
    out->drafted_total = (struct wire_u64){true, 0};
    out->accepted_total = (struct wire_u64){true, 0};
    out->committed_total = (struct wire_u64){true, count};
    return true;
}

/* The watermarks as they are before the phase's state is dropped. Nothing is cached: keys, values
 * and scratch are allocated once at load and stay in use. */
static void answer_phase_diagnostics(struct verbs *v, struct wire_response *out)
{
    uint64_t active = model_get_info(v->model)->weight_bytes + session_bytes(v->session);
    uint64_t peak = peak_resident_bytes();
    report_memory(out);
    out->completed_work = (struct wire_i64){true, v->completed_work};
    out->cache_memory = (struct wire_i64){true, 0};
    out->mlx_active_memory_bytes = (struct wire_u64){true, active};
    out->mlx_cache_memory_bytes = (struct wire_u64){true, 0};
    out->mlx_peak_memory_bytes = (struct wire_u64){true, peak > active ? peak : active};
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
    v->sequence = SEQUENCE_NONE;
    v->completed_work = 0;
}

bool verbs_answer(struct verbs *v, struct arena *arena, const struct wire_request *request,
                  struct wire_response *out, struct error *err)
{
    enum wire_kind kind = wire_kind_find(request->kind.text);
    bool ok = kind < WIRE_KIND_COUNT
                  ? check_request(v, kind, present_fields(request), err) &&
                        dispatch(v, arena, kind, request, out, err)
                  : error_set(err, "WIRE-UNKNOWN-KIND", "the request kind is not known");
    if (!ok)
        verbs_drop(v);
    return ok;
}
