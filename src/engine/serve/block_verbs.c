/* The request kinds of the block protocol. */
#include "engine/serve/block_verbs.h"

#include "engine/serve/memory.h"

#include <endian.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_TOKEN = 2 };

void block_verbs_open(struct block_verbs *b, const struct model *m, const struct dflash *drafter,
                      struct session *s)
{
    b->info = model_get_info(m);
    b->session = s;
    b->config = dflash_get_config(drafter);
    b->weight_bytes = b->info->weight_bytes + dflash_weight_bytes(drafter);
    b->chain = memory_alloc(((size_t)b->info->context + 1) * sizeof *b->chain);
    b->taps = memory_alloc(session_tap_width(s) * sizeof *b->taps);
}

void block_verbs_close(struct block_verbs *b)
{
    free(b->chain);
    free(b->taps);
    *b = (struct block_verbs){0};
}

void block_verbs_end(struct block_verbs *b)
{
    b->sequence = BLOCK_NONE;
    b->seed_count = b->chain_count = b->walked = 0;
    b->accepted = b->rejected = b->rollbacks = 0;
}

void block_verbs_refused(struct block_verbs *b)
{
    block_verbs_end(b);
    if (b->begun)
        b->poisoned = true;
}

static void drop(struct block_verbs *b)
{
    block_verbs_end(b);
    session_reset(b->session);
}

/* ---- Checks ---- */

static bool refuse(struct error *err, const char *name, const char *field, const char *message)
{
    error_set(err, name, "%s", message);
    return error_at(err, NULL, field, NULL);
}

static bool check_sequence(const struct block_verbs *b, enum block_sequence needed,
                           const char *begin, struct error *err)
{
    return b->sequence == needed ||
           error_set(err, "OUT-OF-ORDER", "no sequence is open: %s comes first", begin);
}

static bool check_width(const struct block_verbs *b, int64_t width, const char *field,
                        struct error *err)
{
    if (width >= 1 && width <= b->config->block)
        return true;
    error_set(err, "BLOCK-WIDTH-INVALID", "a block has 1 to %d rows", b->config->block);
    return error_at(err, NULL, field, NULL);
}

static bool check_room(const struct block_verbs *b, size_t rows, struct error *err)
{
    const int64_t room = b->info->context - session_position(b->session);
    return (uint64_t)rows <= (uint64_t)room ||
           error_set(err, "CONTEXT-EXCEEDED", "%zu rows at position %lld, in a context of %lld",
                     rows, (long long)session_position(b->session), (long long)b->info->context);
}

static bool check_tokens(const struct block_verbs *b, const int64_t *tokens, size_t count,
                         const char *field, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= b->info->vocab)
            return refuse(err, "TOKEN-OUT-OF-RANGE", field, "a token is outside the vocabulary");
    return true;
}

static bool not_finite(const struct block_verbs *b, int64_t row, struct error *err)
{
    return error_set(err, "LOGITS-NOT-FINITE",
                     "row %lld after position %lld has no two largest logits that are numbers",
                     (long long)row, (long long)session_position(b->session));
}

static bool pick_is_finite(const struct head_pick *p)
{
    return p->token[0] >= 0 && p->token[1] >= 0 && isfinite(p->logit[0]) && isfinite(p->logit[1]);
}

/* ---- Readouts ---- */

struct readouts { /* of rows: the two largest logits of each */
    struct wire_tokens *tokens;
    struct wire_f64s *logits;
};

static struct readouts readouts_new(struct arena *arena, size_t rows)
{
    return (struct readouts){arena_array(arena, rows, sizeof(struct wire_tokens)),
                             arena_array(arena, rows, sizeof(struct wire_f64s))};
}

/* JSON has no infinity: a row without two numbers is refused, never told otherwise. */
static bool readouts_put(const struct block_verbs *b, struct readouts *t, struct arena *arena,
                         size_t row, const struct head_pick *p, struct error *err)
{
    if (!pick_is_finite(p))
        return not_finite(b, (int64_t)row, err);
    int64_t *ids = arena_array(arena, 2, sizeof *ids);
    double *logits = arena_array(arena, 2, sizeof *logits);
    for (int i = 0; i < 2; i++) {
        ids[i] = p->token[i];
        logits[i] = (double)p->logit[i];
    }
    t->tokens[row] = (struct wire_tokens){true, 2, ids};
    t->logits[row] = (struct wire_f64s){true, 2, logits};
    return true;
}

void block_row_digest(float *values, size_t count, char hex[SHA256_HEX])
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if (isnan(values[i]))
            bits = 0x7fc00000;
        else if (bits == 0x80000000)
            bits = 0;
        bits = htole32(bits);
        memcpy(&values[i], &bits, sizeof bits);
    }
    sha256_hex(values, count * sizeof *values, hex);
}

static bool tap_digest(struct block_verbs *b, int64_t position, char hex[SHA256_HEX],
                       struct error *err)
{
    if (!session_read_taps(b->session, position, b->taps))
        return error_set(err, "TAPS-NOT-HELD", "the hidden rows of position %lld are not held",
                         (long long)position);
    block_row_digest(b->taps, session_tap_width(b->session), hex);
    return true;
}

/* ---- The candidate ---- */

static bool begin(struct block_verbs *b, const struct wire_tokens *seed,
                  enum block_sequence sequence, struct wire_response *out, struct error *err)
{
    drop(b);
    if (!session_feed(b->session, seed->items, seed->count, err) ||
        !session_argmax(b->session, &b->last, err))
        return false;
    if (sequence == BLOCK_DECODE) /* the drafter's part of the seed is the seed's, not a round's */
        session_prepare_drafts(b->session);
    b->sequence = sequence;
    b->seed_count = seed->count;
    out->seed_token = (struct wire_i64){true, b->last};
    return true;
}

/* Drafts behind tokens[0] and runs them all: the rows that the target ran, 0 on an error. */
static int run_block(struct block_verbs *b, int width, int32_t *tokens, struct head_pick *next,
                     struct error *err)
{
    const int limit = session_block_limit(b->session);
    int rows = 1;
    if (width > limit)
        width = limit;
    const bool ok = width > 1 ? session_round(b->session, tokens, width, 1, &rows, next, err)
                              : session_verify(b->session, tokens, 1, next, err);
    return ok ? rows : 0;
}

/* Drafts that are the target's own tokens, up to the first that is not. */
static int count_accepted(const int32_t *tokens, const struct head_pick *next, int rows)
{
    int accepted = 0;
    while (accepted < rows - 1 && next[accepted].token[0] == tokens[accepted + 1])
        accepted++;
    return accepted;
}

static bool answer_decode_block(struct block_verbs *b, struct arena *arena,
                                const struct wire_request *r, struct wire_response *out,
                                struct error *err)
{
    int32_t tokens[DFLASH_MAX_BLOCK];
    struct head_pick next[DFLASH_MAX_BLOCK];
    if (!check_sequence(b, BLOCK_DECODE, "dflash_decode_begin", err) ||
        !check_width(b, r->max_block_size.value, "max_block_size", err) || !check_room(b, 1, err))
        return false;
    if (r->token.value != b->last)
        return refuse(err, "TOKEN-NOT-LAST", "token", "it is not the last token given out");
    tokens[0] = b->last;
    const int64_t position = session_position(b->session);
    const int rows = run_block(b, (int)r->max_block_size.value, tokens, next, err);
    if (rows == 0)
        return false;
    const int accepted = count_accepted(tokens, next, rows), given = accepted + 1;

    struct readouts readouts = readouts_new(arena, (size_t)rows);
    const char **digests = arena_array(arena, (size_t)rows, sizeof *digests);
    int64_t *emitted = arena_array(arena, (size_t)given, sizeof *emitted);
    int64_t *drafts = arena_array(arena, (size_t)rows, sizeof *drafts);
    for (int i = 0; i < rows; i++) {
        char *hex = arena_alloc(arena, SHA256_HEX);
        if (!readouts_put(b, &readouts, arena, (size_t)i, &next[i], err) ||
            !tap_digest(b, position + i, hex, err))
            return false;
        digests[i] = hex;
        if (i < given)
            emitted[i] = next[i].token[0];
        if (i > 0)
            drafts[i - 1] = tokens[i];
    }
    session_keep(b->session, given);
    b->last = next[accepted].token[0];
    b->accepted += accepted;
    b->rejected += rows - given;
    b->rollbacks += rows > given;

    const size_t n = (size_t)rows;
    out->tokens = (struct wire_tokens){true, (size_t)given, emitted};
    out->declared_rows = (struct wire_i64){true, rows};
    out->per_row_hidden_digest = (struct wire_texts){true, n, digests};
    out->per_row_top2_tokens = (struct wire_token_lists){true, n, readouts.tokens};
    out->per_row_top2_logits = (struct wire_f64_lists){true, n, readouts.logits};
    out->draft_tokens = (struct wire_tokens){true, n - 1, drafts};
    out->accepted_draft_count = (struct wire_i64){true, accepted};
    out->rejected_draft_count = (struct wire_i64){true, rows - given};
    out->target_cache_offset = (struct wire_i64){true, session_position(b->session)};
    return true;
}

static void answer_diagnostics(struct block_verbs *b, struct wire_response *out)
{
    memory_report(b->session, b->weight_bytes, out);
    out->accepted_draft_count = (struct wire_i64){true, b->accepted};
    out->rejected_draft_count = (struct wire_i64){true, b->rejected};
    out->rollback_round_count = (struct wire_i64){true, b->rollbacks};
    out->target_cache_offset =
        (struct wire_i64){true, b->sequence == BLOCK_NONE ? 0 : session_position(b->session)};
    drop(b);
}

/* One round of a width for its own sake: rows that could not be drafted run all the same. What the
 * context still holds afterwards is enough for the widest block, or the round is taken back. */
static bool warm_round(struct block_verbs *b, int width, int32_t *last, struct error *err)
{
    int32_t tokens[DFLASH_MAX_BLOCK];
    struct head_pick next[DFLASH_MAX_BLOCK];
    const int limit = session_block_limit(b->session);
    int drafts = 0;
    if (width > limit)
        width = limit;
    for (int i = 0; i < width; i++)
        tokens[i] = *last;
    if (width > 1 && !session_draft(b->session, *last, width, tokens + 1, &drafts, err))
        return false;
    if (!session_verify(b->session, tokens, width, next, err))
        return false;
    int kept = count_accepted(tokens, next, width) + 1;
    const int64_t start = session_position(b->session) - width;
    if (start + kept + b->config->block > b->info->context || next[kept - 1].token[0] < 0)
        kept = 0;
    session_keep(b->session, kept);
    if (kept > 0)
        *last = next[kept - 1].token[0];
    return true;
}

bool block_verbs_warm(struct block_verbs *b, struct error *err)
{
    drop(b);
    const int64_t block = b->config->block, context = b->info->context;
    int64_t length = (b->info->window > b->config->window ? b->info->window : b->config->window);
    length = length + block < context - block ? length + block : context - block;
    if (length < 1)
        length = 1;
    int64_t *seed = memory_alloc((size_t)length * sizeof *seed);
    int32_t last = WARM_TOKEN < b->info->vocab ? WARM_TOKEN : 0;
    for (int64_t i = 0; i < length; i++)
        seed[i] = last;
    bool ok = session_feed(b->session, seed, (size_t)length, err) &&
              session_argmax(b->session, &last, err);
    for (int width = b->config->block; ok && width >= 1; width--)
        ok = session_position(b->session) >= context || warm_round(b, width, &last, err);
    free(seed);
    drop(b);
    return ok;
}

/* ---- The reference ---- */

/* Seed, seed token, what was given out before, and what is given out for these rows. What was told
 * before must be told again: the chain is one. */
static bool check_prefix(const struct block_verbs *b, const struct wire_request *r, size_t count,
                         struct error *err)
{
    const struct wire_tokens *prefix = &r->prefix_tokens;
    if (r->start_offset.value != (int64_t)b->walked) {
        error_set(err, "OUT-OF-ORDER", "the chain has %zu rows since its seed", b->walked);
        return error_at(err, NULL, "start_offset", NULL);
    }
    if (r->seed_token_count.value != (int64_t)b->seed_count)
        return refuse(err, "PREFIX-MISMATCH", "seed_token_count", "it is not the seed's length");
    if (prefix->count != b->seed_count + 1 + b->walked + count)
        return refuse(err, "PREFIX-MISMATCH", "prefix_tokens",
                      "it is not seed, seed token and a token for each row up to the last");
    if (memcmp(prefix->items, b->chain, b->chain_count * sizeof *b->chain) != 0)
        return refuse(err, "PREFIX-MISMATCH", "prefix_tokens", "it is another chain");
    return check_tokens(b, prefix->items + b->chain_count, prefix->count - b->chain_count,
                        "prefix_tokens", err);
}

static bool check_reference_rows(const struct block_verbs *b, const struct wire_request *r,
                                 struct error *err)
{
    const struct wire_tokens *verify = &r->verify_block_tokens;
    const size_t count = r->count.value;
    if (!check_sequence(b, BLOCK_REFERENCE, "dflash_reference_prefill", err) ||
        !check_width(b, r->declared_block_width.value, "declared_block_width", err))
        return false;
    const size_t width = (size_t)r->declared_block_width.value;
    if (count < 1 || count > width)
        return refuse(err, "ROWS-INVALID", "count", "a round gives 1 token to its width");
    if (verify->present && (verify->count < count || verify->count > width))
        return refuse(err, "ROWS-INVALID", "verify_block_tokens",
                      "a round runs a row for each of its tokens, and its width at most");
    if (!check_room(b, verify->present ? verify->count : count, err) ||
        !check_prefix(b, r, count, err) ||
        !check_tokens(b, verify->items, verify->count, "verify_block_tokens", err))
        return false;
    if (verify->present && verify->items[0] != r->prefix_tokens.items[b->seed_count + b->walked])
        return refuse(err, "PREFIX-MISMATCH", "verify_block_tokens",
                      "its first token is not the chain's");
    return true;
}

struct frame {
    int32_t tokens[DFLASH_MAX_BLOCK];
    struct head_pick next[DFLASH_MAX_BLOCK];
    int rows; /* 0: not run */
};

/* Runs the frame's tokens at the chain's position and takes them back: the rings hold a block
 * beyond every window, so nothing that the chain will read is touched. */
static bool frame_run(struct block_verbs *b, struct frame *f, struct error *err)
{
    if (!session_verify(b->session, f->tokens, f->rows, f->next, err))
        return false;
    session_keep(b->session, 0);
    return true;
}

/* A frame of `width` rows over the chain; narrower only where the context ends. `same` has been run
 * before, and is used where it is the same frame. */
static bool frame_over_chain(struct block_verbs *b, const struct wire_request *r, int width,
                             const struct frame *same, struct frame *f, struct error *err)
{
    const struct wire_tokens *verify = &r->verify_block_tokens;
    const int64_t *chain = r->prefix_tokens.items + b->seed_count + b->walked;
    const int64_t room = b->info->context - session_position(b->session);
    f->rows = width < room ? width : (int)room;
    for (int i = 0; i < f->rows; i++)
        f->tokens[i] = (size_t)i < r->count.value  ? (int32_t)chain[i]
                       : (size_t)i < verify->count ? (int32_t)verify->items[i]
                                                   : f->tokens[i - 1];
    if (same->rows == f->rows &&
        memcmp(same->tokens, f->tokens, (size_t)f->rows * sizeof *f->tokens) == 0) {
        *f = *same;
        return true;
    }
    return frame_run(b, f, err);
}

static bool frame_argmax(const struct block_verbs *b, const struct frame *f, size_t count,
                         struct arena *arena, struct wire_tokens *out, struct error *err)
{
    int64_t *ids = arena_array(arena, count, sizeof *ids);
    for (size_t i = 0; i < count; i++) {
        ids[i] = f->next[i].token[0];
        if (ids[i] < 0)
            return not_finite(b, (int64_t)i, err);
    }
    *out = (struct wire_tokens){true, count, ids};
    return true;
}

static bool reference_frames(struct block_verbs *b, struct arena *arena,
                             const struct wire_request *r, struct wire_response *out,
                             struct error *err)
{
    const struct wire_tokens *verify = &r->verify_block_tokens;
    const int declared = (int)r->declared_block_width.value;
    struct frame block = {.rows = (int)verify->count}, frame;
    if (verify->present) {
        struct readouts readouts = readouts_new(arena, verify->count);
        for (size_t i = 0; i < verify->count; i++)
            block.tokens[i] = (int32_t)verify->items[i];
        if (!frame_run(b, &block, err))
            return false;
        for (size_t i = 0; i < verify->count; i++)
            if (!readouts_put(b, &readouts, arena, i, &block.next[i], err))
                return false;
        out->reference_verify_top2_tokens =
            (struct wire_token_lists){true, verify->count, readouts.tokens};
        out->reference_verify_top2_logits =
            (struct wire_f64_lists){true, verify->count, readouts.logits};
    }
    int64_t *widths = arena_array(arena, 2, sizeof *widths);
    struct wire_tokens *argmax = arena_array(arena, 2, sizeof *argmax);
    size_t frames = 0;
    if (block.rows > 1 && block.rows != declared)
        widths[frames++] = block.rows;
    widths[frames++] = declared;
    for (size_t i = 0; i < frames; i++)
        if (!frame_over_chain(b, r, (int)widths[i], &block, &frame, err) ||
            !frame_argmax(b, &frame, r->count.value, arena, &argmax[i], err))
            return false;
    out->reference_frame_widths = (struct wire_tokens){true, frames, widths};
    out->reference_frame_argmax = (struct wire_token_lists){true, frames, argmax};
    out->reference_block_argmax = argmax[frames - 1];
    return true;
}

static bool reference_chain(struct block_verbs *b, struct arena *arena,
                            const struct wire_request *r, struct wire_response *out,
                            struct error *err)
{
    const size_t count = r->count.value;
    const int64_t *chain = r->prefix_tokens.items + b->seed_count + b->walked;
    struct readouts readouts = readouts_new(arena, count);
    int64_t *argmax = arena_array(arena, count, sizeof *argmax);
    int64_t *emitted = arena_array(arena, count, sizeof *emitted);
    double *top1 = arena_array(arena, count, sizeof *top1);
    double *emitted_logit = arena_array(arena, count, sizeof *emitted_logit);
    for (size_t i = 0; i < count; i++) {
        if (!session_feed(b->session, &chain[i], 1, err))
            return false;
        const struct head_pick pick = session_pick(b->session);
        if (!readouts_put(b, &readouts, arena, i, &pick, err))
            return false;
        argmax[i] = pick.token[0];
        top1[i] = (double)pick.logit[0];
        emitted[i] = chain[i + 1];
        emitted_logit[i] = (double)session_logits(b->session)[chain[i + 1]];
        if (!isfinite(emitted_logit[i]))
            return not_finite(b, (int64_t)i, err);
    }
    out->reference_k1_argmax = (struct wire_tokens){true, count, argmax};
    out->reference_top2_tokens = (struct wire_token_lists){true, count, readouts.tokens};
    out->reference_top2_logits = (struct wire_f64_lists){true, count, readouts.logits};
    out->reference_top1_logits = (struct wire_f64s){true, count, top1};
    out->reference_emitted_tokens = (struct wire_tokens){true, count, emitted};
    out->reference_emitted_token_logits = (struct wire_f64s){true, count, emitted_logit};
    return true;
}

static bool answer_reference_prefill(struct block_verbs *b, const struct wire_request *r,
                                     struct wire_response *out, struct error *err)
{
    if (!begin(b, &r->seed_tokens, BLOCK_REFERENCE, out, err))
        return false;
    memcpy(b->chain, r->seed_tokens.items, b->seed_count * sizeof *b->chain);
    b->chain_count = b->seed_count;
    return true;
}

static bool answer_reference_rows(struct block_verbs *b, struct arena *arena,
                                  const struct wire_request *r, struct wire_response *out,
                                  struct error *err)
{
    if (!check_reference_rows(b, r, err) || !reference_frames(b, arena, r, out, err) ||
        !reference_chain(b, arena, r, out, err))
        return false;
    const struct wire_tokens *prefix = &r->prefix_tokens;
    memcpy(b->chain + b->chain_count, prefix->items + b->chain_count,
           (prefix->count - b->chain_count) * sizeof *b->chain);
    b->chain_count = prefix->count;
    b->walked += r->count.value;
    return true;
}

bool block_verbs_answer(struct block_verbs *b, struct arena *arena, enum wire_kind kind,
                        const struct wire_request *r, struct wire_response *out, struct error *err)
{
    switch (kind) {
    case WIRE_KIND_dflash_decode_warm:
        return block_verbs_warm(b, err);
    case WIRE_KIND_dflash_decode_begin:
        return begin(b, &r->seed_tokens, BLOCK_DECODE, out, err);
    case WIRE_KIND_dflash_decode_block:
        return answer_decode_block(b, arena, r, out, err);
    case WIRE_KIND_dflash_phase_diagnostics:
        answer_diagnostics(b, out);
        return true;
    case WIRE_KIND_dflash_reference_prefill:
        return answer_reference_prefill(b, r, out, err);
    case WIRE_KIND_dflash_reference_rows:
        return answer_reference_rows(b, arena, r, out, err);
    default:
        return error_set(err, "WIRE-UNKNOWN-KIND", "the request kind is not the block protocol's");
    }
}
