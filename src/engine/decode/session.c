/* The session: positions move here and nowhere else. */
#include "engine/decode/session.h"

#include "base/arena.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct session {
    struct model *model;
    struct model_state *state;
    int vocab, max_rows;
    int32_t *ids;                 /* [max_rows] */
    float *logits;                /* [most_block, vocab] */
    bool device_logits;           /* the backend keeps them; one row is fetched when it is asked */
    int fetched;                  /* the row of logits that was; -1: none */
    int current;                  /* the row of logits that is the session's */
    int verified;                 /* rows of the last session_verify; 0: kept, or nothing to keep */
    int most_block;               /* 1 without a drafter */
    struct head_pick *next;       /* [most_block] of each verified row */
    struct dflash_state *drafter; /* NULL: none */
    float *draft_logits;          /* [most_block - 1, vocab] */
    struct head_pick *drafted;    /* [most_block - 1] */
    size_t tap_width;
    struct head_pick pick; /* of logits; nothing: none fed, or rewound */
};

static const struct head_pick nothing = {{-1, -1}, {-INFINITY, -INFINITY}};

bool session_new(struct model *m, struct session **out, struct error *err)
{
    const struct model_info *info = model_get_info(m);
    struct session *s = memory_alloc(sizeof *s);
    *out = NULL;
    s->model = m;
    s->vocab = info->vocab;
    s->max_rows = info->max_rows;
    s->pick = nothing;
    s->most_block = 1;
    s->fetched = -1;
    s->device_logits = compute_keeps_logits(model_compute(m));
    s->ids = memory_alloc((size_t)s->max_rows * sizeof *s->ids);
    s->logits = memory_alloc((size_t)s->vocab * sizeof *s->logits);
    if (!model_state_new(m, &s->state, err)) {
        session_free(s);
        return false;
    }
    *out = s;
    return true;
}

void session_free(struct session *s)
{
    if (!s)
        return;
    model_state_free(s->state);
    dflash_state_free(s->drafter);
    free(s->ids);
    free(s->logits);
    free(s->next);
    free(s->draft_logits);
    free(s->drafted);
    free(s);
}

/* Every step back goes through here: the drafter has to hear of it. */
static void move_back(struct session *s, int64_t position)
{
    model_state_rewind(s->state, position);
    if (s->drafter)
        dflash_state_rewind(s->drafter, position);
}

void session_reset(struct session *s)
{
    move_back(s, 0);
    s->pick = nothing;
}

int64_t session_position(const struct session *s)
{
    return model_state_position(s->state);
}

size_t session_bytes(const struct session *s)
{
    return model_state_bytes(s->state) + (s->drafter ? dflash_state_bytes(s->drafter) : 0);
}

/* Everything is checked before the first row runs, so that a refusal leaves no trace. */
static bool check_tokens(const struct session *s, const int64_t *tokens, size_t count,
                         struct error *err)
{
    char field[32], value[32];
    if (count == 0)
        return error_set(err, "EMPTY-PROMPT", "there is no token to feed");
    int64_t context = model_get_info(s->model)->context, position = session_position(s);
    if (count > (uint64_t)(context - position)) {
        error_set(err, "CONTEXT-EXCEEDED",
                  "%llu tokens at position %lld do not fit a context of %lld",
                  (unsigned long long)count, (long long)position, (long long)context);
        return error_at(err, NULL, "tokens", NULL);
    }
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= s->vocab) {
            error_set(err, "TOKEN-OUT-OF-RANGE", "a token is outside the vocabulary of %d",
                      s->vocab);
            snprintf(field, sizeof field, "tokens[%zu]", i);
            snprintf(value, sizeof value, "%lld", (long long)tokens[i]);
            return error_at(err, NULL, field, value);
        }
    return true;
}

/* Where a forward puts logits. */
static float *logits_of_forward(struct session *s)
{
    s->fetched = -1;
    return s->device_logits ? NULL : s->logits;
}

bool session_feed(struct session *s, const int64_t *tokens, size_t count, struct error *err)
{
    if (!check_tokens(s, tokens, count, err))
        return false;
    int64_t start = session_position(s);
    s->pick = nothing;
    s->current = s->verified = 0;
    memory_guard_begin();
    bool ok = true;
    for (size_t done = 0; ok && done < count;) {
        size_t rows = count - done;
        if (rows > (size_t)s->max_rows)
            rows = (size_t)s->max_rows;
        for (size_t r = 0; r < rows; r++)
            s->ids[r] = (int32_t)tokens[done + r];
        done += rows;
        ok = model_forward(s->model, s->state, s->ids, (int)rows, done == count ? 1 : 0,
                           logits_of_forward(s), &s->pick, err);
    }
    memory_guard_end();
    if (ok && s->pick.token[0] < 0)
        ok = error_set(err, "LOGITS-NOT-FINITE", "every logit of position %lld is NaN",
                       (long long)(session_position(s) - 1));
    if (!ok)
        move_back(s, start);
    return ok;
}

const float *session_logits(struct session *s)
{
    if (s->device_logits && s->fetched != s->current &&
        compute_read_logits(model_compute(s->model), s->current,
                            s->logits + (size_t)s->current * (size_t)s->vocab))
        s->fetched = s->current;
    return s->logits + (size_t)s->current * (size_t)s->vocab;
}

struct head_pick session_pick(const struct session *s)
{
    return s->pick;
}

bool session_argmax(const struct session *s, int32_t *token, struct error *err)
{
    if (s->pick.token[0] < 0)
        return error_set(err, "NO-LOGITS", "nothing has been fed since the session was moved");
    *token = s->pick.token[0];
    return true;
}

bool session_step(struct session *s, int32_t token, struct error *err)
{
    int64_t wide = token;
    return session_feed(s, &wide, 1, err);
}

bool session_rewind(struct session *s, int64_t position, struct error *err)
{
    if (position < 0 || position > session_position(s))
        return error_set(err, "REWIND-INVALID", "position %lld is not within 0 .. %lld",
                         (long long)position, (long long)session_position(s));
    if (position == session_position(s))
        return true;
    move_back(s, position);
    s->pick = nothing;
    return true;
}

/* ---- Blocks ---- */

bool session_set_drafter(struct session *s, struct dflash *d, struct error *err)
{
    const struct dflash_config *c = dflash_get_config(d);
    int64_t capacity;
    if (s->drafter || session_position(s) != 0)
        return error_set(err, "DRAFTER-INVALID", "a drafter is given once, to a new session");
    if (!dflash_state_new(d, &s->drafter, err))
        return false;
    struct tap_rows *taps = dflash_state_taps(s->drafter, &capacity);
    model_state_tap(s->state, taps, c->taps, c->tap_count, capacity);
    s->most_block = c->block < s->max_rows ? c->block : s->max_rows;
    const size_t rows = (size_t)s->most_block, vocab = (size_t)s->vocab;
    free(s->logits);
    s->logits = memory_alloc(rows * vocab * sizeof *s->logits);
    s->draft_logits = memory_alloc(rows * vocab * sizeof *s->draft_logits);
    s->next = memory_alloc(rows * sizeof *s->next);
    s->drafted = memory_alloc(rows * sizeof *s->drafted);
    s->tap_width = (size_t)c->tap_count * (size_t)c->hidden;
    return true;
}

int session_block_limit(const struct session *s)
{
    const int64_t position = session_position(s);
    const int64_t room = model_get_info(s->model)->context - position;
    int limit = room < s->most_block ? (int)room : s->most_block;
    if (!s->drafter || limit < 2)
        return 1;
    const int64_t from = model_state_tapped_from(s->state);
    while (limit > 1 && !dflash_can_draft(s->drafter, position, from, limit))
        limit--;
    return limit;
}

void session_prepare_drafts(struct session *s)
{
    if (!s->drafter || session_block_limit(s) < 2)
        return;
    memory_guard_begin();
    dflash_take_context(s->drafter, session_position(s), model_state_tapped_from(s->state));
    memory_guard_end();
}

bool session_draft(struct session *s, int32_t bonus, int width, int32_t *drafts, int *count,
                   struct error *err)
{
    *count = 0;
    if (!s->drafter || bonus < 0 || bonus >= s->vocab)
        return error_set(err, "DRAFT-IMPOSSIBLE", "no drafter, or no such token");
    memory_guard_begin();
    const bool ok =
        dflash_draft(s->drafter, session_position(s), model_state_tapped_from(s->state), bonus,
                     width, s->device_logits ? NULL : s->draft_logits, s->drafted, err);
    memory_guard_end();
    for (int i = 0; ok && i < width - 1; i++) {
        drafts[i] = s->drafted[i].token[0];
        if (drafts[i] < 0)
            break;
        *count = i + 1;
    }
    return ok;
}

/* One forward of the target over a block. What the drafter takes of its rows follows at once, where
 * nobody has to wait for it: rows that are not kept are taken back from it too. */
static bool run_block(struct session *s, const int32_t *tokens, int rows,
                      const struct compute *drafted, struct error *err)
{
    const int64_t position = session_position(s);
    s->pick = nothing;
    s->current = s->verified = 0;
    if (!model_forward_run(s->model, s->state, tokens, rows, rows, logits_of_forward(s), s->next,
                           drafted, err))
        return false;
    if (s->drafter && compute_follows(model_compute(s->model)))
        dflash_take_rows(s->drafter, position, rows, model_state_tapped_from(s->state));
    if (model_forward_end(s->model, s->state, rows, err))
        return true;
    if (s->drafter)
        dflash_state_rewind(s->drafter, position);
    return false;
}

bool session_verify(struct session *s, const int32_t *tokens, int rows, struct head_pick *next,
                    struct error *err)
{
    if (rows < 1 || rows > s->most_block || !s->next)
        return error_set(err, "ROWS-INVALID", "a block of %d rows was asked, 1 to %d fit", rows,
                         s->next ? s->most_block : 0);
    memory_guard_begin();
    const bool ok = run_block(s, tokens, rows, NULL, err);
    memory_guard_end();
    if (!ok)
        return false;
    for (int r = 0; r < rows; r++)
        next[r] = s->next[r];
    s->verified = rows;
    return true;
}

/* The draft's picks are the verification's ids without having been here. */
static bool round_unwatched(struct session *s, int32_t *tokens, int width, struct error *err)
{
    if (!dflash_draft(s->drafter, session_position(s), model_state_tapped_from(s->state), tokens[0],
                      width, NULL, NULL, err) ||
        !run_block(s, tokens, width, dflash_state_compute(s->drafter), err))
        return false;
    dflash_drafted(s->drafter, width, s->drafted);
    for (int i = 1; i < width; i++)
        if (tokens[i] < 0)
            tokens[i] = s->drafted[i - 1].token[0];
    return true;
}

bool session_round(struct session *s, int32_t *tokens, int width, int known, int *rows,
                   struct head_pick *next, struct error *err)
{
    if (width < 2 || width > session_block_limit(s) || known < 1 || known > width ||
        tokens[0] < 0 || tokens[0] >= s->vocab)
        return error_set(err, "DRAFT-IMPOSSIBLE", "a block of %d rows cannot be drafted here",
                         width);
    if (!compute_follows(model_compute(s->model))) {
        int32_t drafts[DFLASH_MAX_BLOCK];
        int count;
        if (!session_draft(s, tokens[0], width, drafts, &count, err))
            return false;
        for (int i = known; i <= count; i++)
            tokens[i] = drafts[i - 1];
        *rows = count + 1 > known ? count + 1 : known;
        return session_verify(s, tokens, *rows, next, err);
    }
    for (int i = known; i < width; i++)
        tokens[i] = -1;
    memory_guard_begin();
    const bool ok = round_unwatched(s, tokens, width, err);
    memory_guard_end();
    if (!ok)
        return false;
    *rows = known;
    while (*rows < width && tokens[*rows] >= 0)
        ++*rows;
    for (int r = 0; r < *rows; r++)
        next[r] = s->next[r];
    s->verified = width;
    return true;
}

void session_keep(struct session *s, int kept)
{
    if (s->verified == 0)
        return;
    const int rows = s->verified;
    s->verified = 0;
    move_back(s, session_position(s) - (rows - kept));
    s->current = kept > 0 ? kept - 1 : 0;
    s->pick = kept > 0 ? s->next[kept - 1] : nothing;
}

size_t session_tap_width(const struct session *s)
{
    return s->tap_width;
}

bool session_read_taps(const struct session *s, int64_t position, float *out)
{
    int64_t capacity;
    if (!s->drafter || position < model_state_tapped_from(s->state) ||
        position >= session_position(s))
        return false;
    compute_read_taps(dflash_state_taps(s->drafter, &capacity), position, out);
    return true;
}
