/* What one answer, and a whole run, must hold on their own (dflash-track.md section 6). */
#include "judge/fidelity.h"

#include <math.h>

static bool in_vocabulary(const struct fidelity_limits *l, int64_t token)
{
    return token >= 0 && token < l->vocab_size;
}

static bool check_vocabulary(const struct fidelity_limits *l, const struct fidelity_round *r,
                             size_t round, struct error *err)
{
    bool inside = true;
    for (int i = 0; i < r->count; i++)
        inside = inside && in_vocabulary(l, r->tokens[i]);
    for (int i = 0; i < r->draft_count; i++)
        inside = inside && in_vocabulary(l, r->drafts[i]);
    for (int i = 0; i < r->readout_count; i++)
        inside = inside && in_vocabulary(l, r->readouts[i].token[0]) &&
                 in_vocabulary(l, r->readouts[i].token[1]);
    return inside || fidelity_fail(FIDELITY_outOfVocabularyToken, round, err, "%s", "");
}

static bool check_counts(const struct fidelity_round *r, size_t round, struct error *err)
{
    if (r->rows < r->count)
        return fidelity_fail(FIDELITY_declaredRowsMissing, round, err, "tokens=%d rows=%d",
                             r->count, r->rows);
    if (r->rows > r->width)
        return fidelity_fail(FIDELITY_rowAccountingMismatch, round, err, "rows=%d width=%d",
                             r->rows, r->width);
    /* Row 0 takes the last token given; every further one a draft, accepted or rejected. */
    const int64_t drafts = r->rows - 1;
    const bool adds_up = r->draft_count == drafts && r->accepted >= r->count - 1 &&
                         r->accepted <= drafts && r->rejected == drafts - r->accepted;
    return adds_up || fidelity_fail(FIDELITY_rowAccountingMismatch, round, err,
                                    "rows=%d drafts=%d accepted=%lld rejected=%lld", r->rows,
                                    r->draft_count, (long long)r->accepted, (long long)r->rejected);
}

static bool check_drafts(const struct fidelity_round *r, size_t round, struct error *err)
{
    for (int i = 0; i < r->count && i < r->accepted; i++)
        if (r->drafts[i] != r->tokens[i])
            return fidelity_fail(FIDELITY_draftTokenBindingMismatch, round, err, "row=%d", i);
    return true;
}

/* Two finite logits of two tokens, the larger first; of a row that gave a token, the first is its.
 */
static bool check_readouts(const struct fidelity_round *r, size_t round, struct error *err)
{
    if (r->readout_count != r->rows)
        return fidelity_fail(FIDELITY_workBindingMissing, round, err, "rows=%d readouts=%d",
                             r->rows, r->readout_count);
    for (int i = 0; i < r->rows; i++) {
        const struct fidelity_readout *top = &r->readouts[i];
        const bool sound = isfinite(top->logit[0]) && isfinite(top->logit[1]) &&
                           top->logit[0] >= top->logit[1] && top->token[0] != top->token[1];
        if (!sound || (i < r->count && top->token[0] != r->tokens[i]))
            return fidelity_fail(FIDELITY_workBindingLogitMismatch, round, err, "row=%d", i);
    }
    return true;
}

bool fidelity_check_round(const struct fidelity_limits *l, const struct fidelity_round *r,
                          size_t round, size_t seed_count, int64_t given, struct error *err)
{
    if (r->count < 1)
        return fidelity_fail(FIDELITY_emptyBlock, round, err, "width=%d", r->width);
    if (r->count > r->width)
        return fidelity_fail(FIDELITY_oversizedBlock, round, err, "tokens=%d width=%d", r->count,
                             r->width);
    if (!check_vocabulary(l, r, round, err) || !check_counts(r, round, err) ||
        !check_drafts(r, round, err) || !check_readouts(r, round, err))
        return false;
    /* All tokens given count, those beyond the configured number too: they are in the cache. */
    return r->offset == (int64_t)seed_count + given + r->count ||
           fidelity_fail(FIDELITY_cacheOffsetDiverged, round, err, "tokens=%d", r->count);
}

/* Only the last round may reach beyond the configured number of tokens. */
static bool check_scored(const struct fidelity_run *run, struct error *err)
{
    int64_t scored = 0;
    for (size_t i = 0; i < run->round_count; i++) {
        const struct fidelity_round *r = &run->rounds[i];
        if (r->scored < 1 || r->scored > r->count ||
            (r->scored < r->count && i + 1 < run->round_count))
            return fidelity_fail(FIDELITY_incompleteRun, i, err, "tokens=%d", r->scored);
        scored += r->scored;
    }
    return scored == run->wanted ||
           fidelity_fail(FIDELITY_incompleteRun, run->round_count, err, "total=%lld wanted=%lld",
                         (long long)scored, (long long)run->wanted);
}

bool fidelity_check_run(const struct fidelity_run *run, struct error *err)
{
    int64_t accepted = 0, rejected = 0, rows = 0;
    for (size_t i = 0; i < run->round_count; i++) {
        const struct fidelity_round *r = &run->rounds[i];
        if (r->accepted < 0 || r->accepted >= FIDELITY_BLOCK_MOST || r->rejected < 0 ||
            r->rejected >= FIDELITY_BLOCK_MOST || r->rows < 1 || r->rows > FIDELITY_BLOCK_MOST)
            return fidelity_fail(FIDELITY_rowAccountingMismatch, i, err, "rows=%d", r->rows);
        accepted += r->accepted;
        rejected += r->rejected;
        rows += r->rows;
    }
    /* Each round has one token of the target's own: the tail (section 6). */
    const int64_t tail = (int64_t)run->round_count;
    if (accepted + rejected + tail != rows)
        return fidelity_fail(FIDELITY_rowAccountingMismatch, run->round_count, err,
                             "rows=%lld accepted=%lld rejected=%lld", (long long)rows,
                             (long long)accepted, (long long)rejected);
    return check_scored(run, err);
}
