#include "engine/decode/simulate.h"

#include "base/child.h"
#include "base/clock.h"
#include "engine/decode/speculate.h"

#include <math.h>

int simulate_accepted(size_t n, double acceptance, int block)
{
    const double golden = 0.6180339887498949; /* multiples of it, mod 1, are equidistributed */
    const double turns = ((double)n + 0.5) * golden, u = turns - floor(turns);
    double reached = acceptance;
    int accepted = 0;
    while (accepted < block - 1 && u < reached) {
        accepted++;
        reached *= acceptance;
    }
    return accepted;
}

static bool differs(int64_t position, int row, struct error *err)
{
    return error_set(err, "ROWS-DIFFER",
                     "row %d of a block at position %lld gives another token than serial decoding",
                     row, (long long)position);
}

/* A round in two steps, each with the time that it takes. */
static bool run_apart(struct session *s, int32_t *tokens, int width, int known, int *rows,
                      struct head_pick *next, struct simulate_result *result, struct error *err)
{
    int32_t drafts[SPECULATE_MOST];
    const int64_t start = clock_now_ns();
    if (!session_draft(s, tokens[0], width, drafts, rows, err))
        return false;
    const int64_t drafted = clock_now_ns();
    ++*rows;
    for (int i = known; i < *rows; i++)
        tokens[i] = drafts[i - 1];
    if (!session_verify(s, tokens, *rows, next, err))
        return false;
    result->draft_seconds += (double)(drafted - start) / 1e9;
    result->verify_seconds += clock_seconds(drafted);
    return true;
}

/* One round; right: what serial decoding gave, its first token the bonus. */
static bool run_round(struct session *s, const struct simulate_request *q, const int32_t *right,
                      int accepted, struct simulate_result *result, struct error *err)
{
    int32_t tokens[SPECULATE_MOST];
    struct head_pick next[SPECULATE_MOST];
    int rows = 0;
    const int64_t position = session_position(s);
    for (int i = 0; i <= accepted; i++)
        tokens[i] = right[i];
    if (!(q->apart ? run_apart(s, tokens, q->block, accepted + 1, &rows, next, result, err)
                   : session_round(s, tokens, q->block, accepted + 1, &rows, next, err)))
        return false;
    if (rows < q->block)
        return error_set(err, "DRAFT-IMPOSSIBLE", "the drafter's logits were not numbers");
    session_keep(s, accepted + 1);
    for (int i = 0; i <= accepted; i++)
        if (next[i].token[0] != right[i + 1])
            return differs(position, i, err);
    return true;
}

bool simulate_rounds(struct session *s, const struct simulate_request *request,
                     struct simulate_result *result, struct error *err)
{
    *result = (struct simulate_result){0};
    const int width = request->block;
    if (width < 2 || width > SPECULATE_MOST || width > session_block_limit(s))
        return error_set(err, "DRAFT-IMPOSSIBLE", "a block of %d rows cannot be drafted here",
                         width);
    const int64_t start = clock_now_ns();
    for (size_t at = 0; at + (size_t)width < request->count; result->rounds++) {
        if (interrupt_requested())
            return error_set(err, "INTERRUPTED", "stopped by a signal");
        const int accepted =
            simulate_accepted(request->first + result->rounds, request->acceptance, width);
        if (!run_round(s, request, request->tokens + at, accepted, result, err))
            return false;
        at += (size_t)accepted + 1;
        result->accepted += (size_t)accepted;
        result->tokens += (size_t)accepted + 1;
    }
    result->seconds = clock_seconds(start);
    return true;
}
