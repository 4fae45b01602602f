#include "judge/block_run.h"

#include "base/buffer.h"
#include "base/terminal.h"

#include <inttypes.h>
#include <string.h>

int block_run_narrowest(int widest)
{
    return widest > 1 ? 2 : 1;
}

static struct wire_i64 number(int64_t value)
{
    return (struct wire_i64){.present = true, .value = value};
}

static int64_t told(struct wire_i64 v)
{
    return v.present ? v.value : -1; /* no count is negative */
}

/* Room for every round and for the rows of each, made before the clock runs. */
struct storage {
    struct fidelity_round *rounds;
    int64_t *tokens, *drafts;
    struct fidelity_readout *readouts;
};

static struct storage make_storage(struct arena *a, size_t rounds)
{
    const size_t rows = rounds * FIDELITY_BLOCK_MOST;
    return (struct storage){.rounds = arena_array(a, rounds, sizeof(struct fidelity_round)),
                            .tokens = arena_array(a, rows, sizeof(int64_t)),
                            .drafts = arena_array(a, rows, sizeof(int64_t)),
                            .readouts = arena_array(a, rows, sizeof(struct fidelity_readout))};
}

/* What is longer than any block is kept whole as well, for the check to refuse. */
static int64_t *keep_tokens(struct arena *a, int64_t *room, const struct wire_tokens *t)
{
    if (t->count > FIDELITY_BLOCK_MOST)
        room = arena_array(a, t->count, sizeof *room);
    if (t->count > 0)
        memcpy(room, t->items, t->count * sizeof *room);
    return room;
}

/* Rows up to the first that lacks one of its three parts: what lies behind is as good as missing.
 */
static int keep_readouts(struct arena *a, struct fidelity_readout **room,
                         const struct wire_response *r)
{
    const struct wire_token_lists *tokens = &r->per_row_top2_tokens;
    const struct wire_f64_lists *logits = &r->per_row_top2_logits;
    const struct wire_texts *digests = &r->per_row_hidden_digest;
    size_t count = 0;
    if (tokens->count != logits->count || tokens->count != digests->count)
        return 0;
    if (tokens->count > FIDELITY_BLOCK_MOST)
        *room = arena_array(a, tokens->count, sizeof **room);
    for (; count < tokens->count; count++) {
        const struct wire_tokens *t = &tokens->items[count];
        const struct wire_f64s *l = &logits->items[count];
        if (t->count != 2 || l->count != 2 || !text_is_lower_hex(digests->items[count], 64))
            break;
        (*room)[count] = (struct fidelity_readout){.token = {t->items[0], t->items[1]},
                                                   .logit = {l->items[0], l->items[1]}};
    }
    return (int)count;
}

/* One answer as fidelity.h sees it. Counts are bounded by the reply's length limit. */
static void keep_round(struct arena *a, const struct storage *s, size_t index,
                       const struct wire_response *r, struct fidelity_round *out)
{
    const size_t row = index * FIDELITY_BLOCK_MOST;
    struct fidelity_readout *readouts = s->readouts + row;
    out->tokens = keep_tokens(a, s->tokens + row, &r->tokens);
    out->count = (int)r->tokens.count;
    const int64_t rows = told(r->declared_rows);
    out->rows = rows > INT32_MAX ? INT32_MAX : rows < 0 ? -1 : (int)rows;
    out->accepted = told(r->accepted_draft_count);
    out->rejected = told(r->rejected_draft_count);
    out->drafts = keep_tokens(a, s->drafts + row, &r->draft_tokens);
    out->draft_count = (int)r->draft_tokens.count;
    out->readout_count = keep_readouts(a, &readouts, r);
    out->readouts = readouts;
    out->offset = told(r->target_cache_offset);
}

struct leg {
    struct client *c;
    const struct block_run_plan *plan;
    struct arena *a;
    struct storage storage;
    struct fidelity_run *run;
    int64_t given;    /* tokens given out since the seed, the last round whole */
    int64_t start_ns; /* of the seed's request */
    int64_t end_ns;   /* of the last answer */
};

static bool begin(struct leg *l, struct error *err)
{
    const struct block_run_plan *p = l->plan;
    struct wire_request q = client_request(WIRE_KIND_dflash_decode_begin);
    q.seed_tokens = client_tokens(p->seed, p->seed_count);
    const struct wire_response *r;
    if (!client_call(l->c, &q, 0, &r, NULL, err))
        return false;
    l->start_ns = client_last_interval(l->c).start_ns;
    l->run->seed_token = r->seed_token.value;
    if (l->run->seed_token == p->seed_token)
        return true;
    client_discard(l->c);
    return error_set(err, "decode_seed_token_mismatch",
                     "the token after the seed is not the golden's");
}

static bool one_round(struct leg *l, int width, int64_t *token, struct error *err)
{
    struct fidelity_run *run = l->run;
    struct fidelity_round *round = &run->rounds[run->round_count];
    struct wire_request q = client_request(WIRE_KIND_dflash_decode_block);
    q.token = number(*token);
    q.max_block_size = number(width);
    const struct wire_response *r;
    if (!client_call(l->c, &q, 0, &r, NULL, err))
        return false;
    const struct client_interval at = client_last_interval(l->c);
    l->end_ns = at.end_ns;
    round->width = width;
    round->token = *token;
    round->seconds = (double)(at.end_ns - at.start_ns) * 1e-9;
    keep_round(l->a, &l->storage, run->round_count, r, round);
    if (!fidelity_check_round(l->plan->limits, round, run->round_count, run->seed_count, l->given,
                              err)) {
        client_discard(l->c);
        return false;
    }
    const int64_t left = run->wanted - l->given;
    round->scored = round->count < left ? round->count : (int)left;
    l->given += round->count;
    *token = round->tokens[round->count - 1];
    run->round_count++;
    return true;
}

static bool watch_before(const struct measure_watch *w, struct error *err)
{
    return w == NULL || w->before(w->context, "block-decode", err);
}

static bool watch_after(const struct measure_watch *w, struct error *err)
{
    return w == NULL || w->after(w->context, "block-decode", err);
}

static bool timed(struct leg *l, struct error *err)
{
    const struct block_run_plan *p = l->plan;
    struct fidelity_schedule widths = fidelity_schedule_begin(
        p->schedule_seed, block_run_narrowest(p->block_size), p->block_size);
    if (!client_arm_run_deadline(l->c, (uint64_t)p->tokens, p->run_ceiling_seconds, err))
        return false;
    bool ok = begin(l, err);
    int64_t token = l->run->seed_token;
    while (ok && l->given < p->tokens)
        ok = one_round(l, fidelity_schedule_next(&widths), &token, err);
    client_disarm_run_deadline(l->c);
    return ok;
}

/* The worker counts by itself; both must have seen the same run. A block that was cut (at the end
 * of a text) may hold accepted drafts behind its tokens, so that the rounds with a row to take back
 * are between those with a rejected draft and those with a row behind the tokens. */
static bool compare_counters(const struct leg *l, const struct wire_response *r, struct error *err)
{
    int64_t accepted = 0, rejected = 0, least = 0, most = 0;
    const size_t last = l->run->round_count;
    for (size_t i = 0; i < last; i++) {
        const struct fidelity_round *round = &l->run->rounds[i];
        accepted += round->accepted;
        rejected += round->rejected;
        least += round->rejected > 0;
        most += round->rows > round->count;
    }
    const int64_t own_accepted = told(r->accepted_draft_count);
    const int64_t own_rejected = told(r->rejected_draft_count);
    const int64_t rollbacks = told(r->rollback_round_count);
    if (own_accepted != accepted || own_rejected != rejected)
        return fidelity_fail(FIDELITY_rowAccountingMismatch, last, err,
                             "accepted_total=%" PRId64 " told=%" PRId64 " rejected_total=%" PRId64
                             " told=%" PRId64,
                             accepted, own_accepted, rejected, own_rejected);
    if (rollbacks < least || rollbacks > most)
        return fidelity_fail(FIDELITY_rowAccountingMismatch, last, err,
                             "rollback_rounds=%" PRId64 " told=%" PRId64, least, rollbacks);
    const int64_t offset = (int64_t)l->run->seed_count + l->given;
    if (told(r->target_cache_offset) != offset)
        return fidelity_fail(FIDELITY_cacheOffsetDiverged, last, err,
                             "offset=%" PRId64 " told=%" PRId64, offset,
                             told(r->target_cache_offset));
    return true;
}

bool block_run(struct client *c, const struct block_run_plan *plan, struct arena *a,
               struct block_run_result *out, struct error *err)
{
    *out = (struct block_run_result){.run = {.seed = plan->seed,
                                             .seed_count = plan->seed_count,
                                             .wanted = plan->tokens,
                                             .block_size = plan->block_size}};
    struct leg l = {.c = c, .plan = plan, .a = a, .run = &out->run};
    l.storage = make_storage(a, (size_t)plan->tokens); /* a round gives one token at least */
    out->run.rounds = l.storage.rounds;
    struct wire_request warm = client_request(WIRE_KIND_dflash_decode_warm);
    struct progress p = {.quiet = plan->quiet};
    if (!client_call(c, &warm, 0, NULL, NULL, err) || !watch_before(plan->watch, err))
        return false;
    for (int64_t i = 0; plan->watch != NULL && i < plan->rewarm_runs; i++)
        if (!client_call(c, &warm, 0, NULL, NULL, err))
            return false;
    progress_begin(&p, plan->block_size > 1 ? "blocks" : "serial", "tokens",
                   (uint64_t)plan->tokens);
    bool ok = timed(&l, err) && watch_after(plan->watch, err);
    progress_update(&p, (uint64_t)(l.given < plan->tokens ? l.given : plan->tokens));
    progress_end(&p);
    if (!ok)
        return false;
    out->decode_seconds = (double)(l.end_ns - l.start_ns) * 1e-9;
    struct wire_request diagnostics = client_request(WIRE_KIND_dflash_phase_diagnostics);
    const struct wire_response *r;
    if (!client_call(c, &diagnostics, 0, &r, NULL, err))
        return false;
    ok = compare_counters(&l, r, err) && fidelity_check_run(&out->run, err);
    if (!ok)
        client_discard(c);
    return ok;
}
