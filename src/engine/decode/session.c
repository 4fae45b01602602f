/* The session: positions move here and nowhere else. */
#include "engine/decode/session.h"

#include "base/arena.h"
#include "engine/decode/pick.h"

#include <stdio.h>
#include <stdlib.h>

struct session {
    struct model *model;
    struct model_state *state;
    int vocab, max_rows;
    int32_t *ids;   /* [max_rows] */
    float *logits;  /* [vocab] */
    int32_t argmax; /* of logits; -1: none (nothing fed, or rewound) */
};

bool session_new(struct model *m, struct session **out, struct error *err)
{
    const struct model_info *info = model_get_info(m);
    struct session *s = memory_alloc(sizeof *s);
    *out = NULL;
    s->model = m;
    s->vocab = info->vocab;
    s->max_rows = info->max_rows;
    s->argmax = -1;
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
    free(s->ids);
    free(s->logits);
    free(s);
}

void session_reset(struct session *s)
{
    model_state_rewind(s->state, 0);
    s->argmax = -1;
}

int64_t session_position(const struct session *s)
{
    return model_state_position(s->state);
}

size_t session_bytes(const struct session *s)
{
    return model_state_bytes(s->state);
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

bool session_feed(struct session *s, const int64_t *tokens, size_t count, struct error *err)
{
    if (!check_tokens(s, tokens, count, err))
        return false;
    int64_t start = session_position(s);
    s->argmax = -1;
    memory_guard_begin();
    bool ok = true;
    for (size_t done = 0; ok && done < count;) {
        size_t rows = count - done;
        if (rows > (size_t)s->max_rows)
            rows = (size_t)s->max_rows;
        for (size_t r = 0; r < rows; r++)
            s->ids[r] = (int32_t)tokens[done + r];
        done += rows;
        ok = model_forward(s->model, s->state, s->ids, (int)rows, done == count ? 1 : 0, s->logits,
                           err);
    }
    memory_guard_end();
    if (ok) {
        s->argmax = pick_argmax(s->logits, s->vocab);
        if (s->argmax < 0)
            ok = error_set(err, "LOGITS-NOT-FINITE", "every logit of position %lld is NaN",
                           (long long)(session_position(s) - 1));
    }
    if (!ok)
        model_state_rewind(s->state, start);
    return ok;
}

const float *session_logits(const struct session *s)
{
    return s->logits;
}

bool session_argmax(const struct session *s, int32_t *token, struct error *err)
{
    if (s->argmax < 0)
        return error_set(err, "NO-LOGITS", "nothing has been fed since the session was moved");
    *token = s->argmax;
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
    model_state_rewind(s->state, position);
    s->argmax = -1;
    return true;
}
