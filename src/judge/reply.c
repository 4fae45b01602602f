#include "judge/reply.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool missing(struct error *err, enum wire_kind kind, const char *field)
{
    error_set(err, "Protocol", "the reply to %s carries no %s", wire_kind_name(kind), field);
    return error_at(err, NULL, field, NULL);
}

static bool inconsistent(struct error *err, const char *what, uint64_t got, uint64_t wanted)
{
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, got);
    error_set(err, "FreeRunConsistency", "%s: got %" PRIu64 ", expected %" PRIu64, what, got,
              wanted);
    return error_at(err, NULL, what, value);
}

/* Objects key by key, everything else by equality. */
static bool json_subset(const json_t *part, const json_t *whole)
{
    if (!json_is_object(part) || !json_is_object(whole))
        return json_equal(part, whole);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)part, key, value)
    {
        const json_t *other = json_object_get(whole, key);
        if (other == NULL || !json_subset(value, other))
            return false;
    }
    return true;
}

static bool echo_diverges(struct error *err, const char *why, const char *field,
                          const struct wire_spec *requested, const struct wire_spec *effective)
{
    struct buffer asked = {0}, got = {0};
    wire_spec_encode(requested, &asked);
    if (effective->present)
        wire_spec_encode(effective, &got);
    else
        buffer_text(&got, "absent");
    /* The message is sealed: an engine's opaque block could hold anything, so it stands in the
     * value only, which is not. */
    const bool opaque = effective->dflash != NULL || effective->dspark != NULL;
    error_set(err, "SpecEchoDivergence", "%s: requested %s, effective %s", why, asked.data,
              opaque ? "another block" : got.data);
    error_at(err, NULL, field, got.data);
    buffer_free(&asked);
    buffer_free(&got);
    return false;
}

bool reply_check_spec_echo(const struct wire_spec *requested, const struct wire_spec *effective,
                           struct error *err)
{
#define DIVERGES(why, field) return echo_diverges(err, why, field, requested, effective)
    if (!requested->present)
        return true;
    if (!effective->present)
        DIVERGES("no effective_spec in the reply", "effective_spec");
    if (strcmp(requested->mode, effective->mode) != 0)
        DIVERGES("another mode", "effective_spec.mode");
    if (requested->has_mtp != effective->has_mtp ||
        (requested->dflash == NULL) != (effective->dflash == NULL) ||
        (requested->dspark == NULL) != (effective->dspark == NULL))
        DIVERGES("another set of blocks", "effective_spec");
    if (requested->has_mtp) {
        if (!effective->mtp_depth.present)
            DIVERGES("no depth in the echo", "effective_spec.mtp.depth");
        if (requested->mtp_depth.present &&
            requested->mtp_depth.value != effective->mtp_depth.value)
            DIVERGES("another depth", "effective_spec.mtp.depth");
    }
    if (requested->dflash != NULL && !json_subset(requested->dflash, effective->dflash))
        DIVERGES("the dflash block was not honoured", "effective_spec.dflash");
    if (strcmp(requested->mode, "dflash") == 0 &&
        !json_is_number(json_object_get(effective->dflash, "depth")))
        DIVERGES("no numeric depth in the echo", "effective_spec.dflash.depth");
    if (requested->dspark != NULL && !json_subset(requested->dspark, effective->dspark))
        DIVERGES("the dspark block was not honoured", "effective_spec.dspark");
#undef DIVERGES
    return true;
}

bool reply_check_resident(struct reply_window *w, const struct wire_resident *now,
                          struct error *err)
{
    if (!w->has_session) {
        w->has_session = true;
        w->resident = *now;
        return true;
    }
    const struct wire_resident *was = &w->resident;
    if (was->present == now->present &&
        (!now->present || (was->pid == now->pid && was->load_epoch == now->load_epoch)))
        return true;
    char value[64] = "absent";
    if (now->present)
        snprintf(value, sizeof value, "pid %u, load_epoch %" PRIu64, now->pid, now->load_epoch);
    error_set(err, "resident_identity_changed_within_window",
              "the engine is attached to another resident process, or another load of it, than the "
              "first session of this window");
    return error_at(err, NULL, "resident", value);
}

/* The equations that both forms share, with one vector of committed widths. */
static bool check_shared(const struct wire_response *r, uint32_t count, struct error *err)
{
    if (!r->drafted_total.present || !r->accepted_total.present ||
        r->drafted_total.value < r->accepted_total.value)
        return inconsistent(err, "DraftedLessThanAccepted", r->drafted_total.value,
                            r->accepted_total.value);
    uint64_t sum = 0;
    for (size_t i = 0; i < r->acceptance_lengths.count; i++)
        sum += r->acceptance_lengths.items[i];
    if (!r->acceptance_lengths.present || sum != count)
        return inconsistent(err, "AcceptanceSum", sum, count);
    return true;
}

bool reply_check_free_run(const struct wire_response *r, uint32_t count, struct error *err)
{
    if (!r->tokens.present || r->tokens.count != count)
        return inconsistent(err, "TokenCount", r->tokens.count, count);
    if (!r->committed_total.present || r->committed_total.value != count)
        return inconsistent(err, "CommittedTotal", r->committed_total.value, count);
    return check_shared(r, count, err);
}

bool reply_check_cohort(const struct wire_response *r, uint32_t streams, uint32_t count,
                        struct error *err)
{
    const size_t rounds = r->acceptance_lengths.count;
    if (!r->tokens_by_stream.present || r->tokens_by_stream.count != streams)
        return inconsistent(err, "CohortWidth", r->tokens_by_stream.count, streams);
    for (size_t s = 0; s < streams; s++)
        if (r->tokens_by_stream.items[s].count != count)
            return inconsistent(err, "CohortStreamTokenCount", r->tokens_by_stream.items[s].count,
                                count);
    const uint64_t all = (uint64_t)streams * count;
    if (!r->committed_total.present || r->committed_total.value != all)
        return inconsistent(err, "CohortCommittedTotal", r->committed_total.value, all);
    if (!check_shared(r, count, err))
        return false;
    if (!r->rounds.present || r->rounds.value != rounds)
        return inconsistent(err, "CohortRoundsDisagree", r->rounds.value, rounds);
    const struct wire_u32_lists *natural = &r->natural_accepted_by_stream;
    if (!natural->present || natural->count != streams)
        return inconsistent(err, "CohortNaturalWidth", natural->count, streams);
    for (size_t s = 0; s < streams; s++) {
        if (natural->items[s].count != rounds)
            return inconsistent(err, "CohortNaturalRoundCount", natural->items[s].count, rounds);
        for (size_t i = 0; i < rounds; i++)
            if (natural->items[s].items[i] < r->acceptance_lengths.items[i])
                return inconsistent(err, "CohortNaturalBelowCommitted", natural->items[s].items[i],
                                    r->acceptance_lengths.items[i]);
    }
    const struct wire_u32s *active = &r->active_streams_by_round;
    if (!active->present || active->count != rounds)
        return inconsistent(err, "CohortActiveStreamsLength", active->count, rounds);
    for (size_t i = 0; i < rounds; i++)
        if (active->items[i] < 1 || active->items[i] > streams)
            return inconsistent(err, "CohortActiveStreamsOutOfRange", active->items[i], streams);
    for (size_t i = 1; i < rounds; i++)
        if (active->items[i] > active->items[i - 1])
            return inconsistent(err, "CohortActiveStreamsIncreased", active->items[i],
                                active->items[i - 1]);
    return true;
}

struct free_run_close reply_free_run_close(const struct wire_response *r)
{
    return (struct free_run_close){.rounds = r->acceptance_lengths.count,
                                   .rejected = r->drafted_total.value - r->accepted_total.value,
                                   .disagreements = r->verify_replay_disagreements};
}

bool reply_check_free_run_close(const struct free_run_close *c, const struct wire_i64 *completed,
                                struct error *err)
{
    /* The seed forward and one forward for each round. */
    if (!completed->present || completed->value < 0 || (uint64_t)completed->value != c->rounds + 1)
        return inconsistent(err, "RoundCounter",
                            completed->present ? (uint64_t)completed->value : 0, c->rounds + 1);
    if (c->disagreements.present && c->disagreements.value > c->rejected)
        return inconsistent(err, "VerifyReplayDisagreementsExceedRejected", c->disagreements.value,
                            c->rejected);
    return true;
}

static bool check_top_logits(enum wire_kind kind, const struct wire_response *r, struct error *err)
{
    if (!r->token.present)
        return missing(err, kind, "token");
    if (r->top_logits.count == WIRE_TOP_LOGITS)
        return true;
    char value[32];
    snprintf(value, sizeof value, "%zu", r->top_logits.count);
    error_set(err, "Protocol", "expected 8 top_logits, got %zu", r->top_logits.count);
    return error_at(err, NULL, "top_logits", value);
}

static bool check_cohort_begin(const struct wire_request *q, const struct wire_response *r,
                               struct error *err)
{
    if (!r->effective_batch_size.present || r->effective_batch_size.value != q->batch_size.value) {
        error_set(err, "BatchEchoDivergence", "requested %u streams, the engine runs %u",
                  q->batch_size.value, r->effective_batch_size.value);
        return error_at(err, NULL, "effective_batch_size", NULL);
    }
    if (r->seed_token_by_stream.count != q->batch_size.value)
        return missing(err, WIRE_KIND_free_decode_begin, "seed_token_by_stream of every stream");
    return reply_check_spec_echo(&q->spec, &r->effective_spec, err);
}

/* What a reply of the block protocol may hold of v1's keys (docs/block-protocol.md). */
static const char *const block_shared[] = {"id",
                                           "nonce",
                                           "ok",
                                           "error",
                                           "seed_token",
                                           "tokens",
                                           "peak_ram_gb",
                                           "mlx_active_memory_bytes",
                                           "mlx_cache_memory_bytes",
                                           "mlx_peak_memory_bytes"};

static bool check_shared_key(bool set, const char *key, struct error *err)
{
    for (size_t i = 0; set && i < sizeof block_shared / sizeof *block_shared; i++)
        set = strcmp(block_shared[i], key) != 0;
    if (!set)
        return true;
    error_set(err, "Protocol", "a key of Engine Protocol v1 in a reply of the block protocol");
    return error_at(err, NULL, key, NULL);
}

static bool is_set(const bool *present)
{
    return *present;
}

static bool is_set_text(const struct wire_text *t)
{
    return t->text != NULL;
}

/* Every other field type begins with its `present`. */
#define IS_SET(field)                                                                              \
    _Generic((field), struct wire_text : is_set_text, default : is_set)((const void *)&(field))
#define CHECK_SHARED(type, name, required) &&check_shared_key(IS_SET(r->name), #name, err)
static bool check_block_keys(const struct wire_response *r, struct error *err)
{
    return true WIRE_RESPONSE_FIELDS(CHECK_SHARED);
}
#undef CHECK_SHARED
#undef IS_SET

bool reply_check(enum wire_kind kind, const struct wire_request *q, const struct wire_response *r,
                 struct error *err)
{
    if (wire_kind_is_block(kind) && !check_block_keys(r, err))
        return false;
    switch (kind) {
    case WIRE_KIND_prefill:
    case WIRE_KIND_decode_step:
        return r->token.present || missing(err, kind, "token");
    case WIRE_KIND_decode_begin:
        return (r->seed_token.present || missing(err, kind, "seed_token")) &&
               reply_check_spec_echo(&q->spec, &r->effective_spec, err);
    case WIRE_KIND_correctness:
        if (!r->tokens.present)
            return missing(err, kind, "tokens");
        if (r->tokens.count == (size_t)q->steps.value)
            return true;
        error_set(err, "Protocol", "correctness gave %zu tokens, %" PRId64 " were asked for",
                  r->tokens.count, q->steps.value);
        return error_at(err, NULL, "tokens", NULL);
    case WIRE_KIND_correctness_begin:
    case WIRE_KIND_correctness_step:
        return check_top_logits(kind, r, err);
    case WIRE_KIND_free_decode_begin:
        if (q->batch_size.present)
            return check_cohort_begin(q, r, err);
        return (r->seed_token.present || missing(err, kind, "seed_token")) &&
               reply_check_spec_echo(&q->spec, &r->effective_spec, err);
    case WIRE_KIND_free_decode_run:
        if (!q->batch_size.present)
            return reply_check_free_run(r, q->count.value, err);
        if (r->effective_batch_size.present && r->effective_batch_size.value != q->batch_size.value)
            return error_set(err, "BatchEchoDivergence", "requested %u streams, the engine ran %u",
                             q->batch_size.value, r->effective_batch_size.value);
        return reply_check_cohort(r, q->batch_size.value, q->count.value, err);
    case WIRE_KIND_cohort_reference_replay: {
        if (!r->cohort_reference_replay.present)
            return missing(err, kind, "cohort_reference_replay");
        const json_t *width = json_object_get(r->cohort_reference_replay.report, "replay_width");
        if (width != NULL && q->replay_width.text != NULL &&
            (!json_is_string(width) || strcmp(json_string_value(width), q->replay_width.text) != 0))
            return error_set(err, "Protocol", "the replay was run at another width than \"%s\"",
                             q->replay_width.text);
        return true;
    }
    case WIRE_KIND_dflash_decode_begin:
    case WIRE_KIND_dflash_reference_prefill:
        return r->seed_token.present || missing(err, kind, "seed_token");
    case WIRE_KIND_phase_diagnostics:
    case WIRE_KIND_dflash_decode_warm:
    case WIRE_KIND_dflash_decode_block: /* fidelity.h names what it must hold */
    case WIRE_KIND_dflash_phase_diagnostics:
    case WIRE_KIND_dflash_reference_rows:
    case WIRE_KIND_COUNT:
        break;
    }
    return true;
}
