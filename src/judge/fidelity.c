/* A finished run against a reference that has walked the same chain: the admissibility ladder, work
 * binding, the rows behind the tokens, the mean, the budgets (dflash-track.md section 7). Every
 * comparison with a tolerance is written so that what is not a number fails it. */
#include "judge/fidelity.h"

#include "base/stats.h"

#include <math.h>

enum { PER_THOUSAND = 1000 };

int64_t fidelity_budget(int64_t per_thousand, int64_t tokens)
{
    if (per_thousand <= 0)
        return 0;
    /* Counts are below 2^31 and budgets at most 1000: no overflow. */
    const int64_t budget = (tokens * per_thousand + PER_THOUSAND - 1) / PER_THOUSAND;
    return budget > 1 ? budget : 1;
}

/* One judgement on its way. */
struct judge {
    const struct fidelity_limits *limits;
    struct fidelity_judgement *out;
    struct error *err;
    size_t round;
    const struct fidelity_round *r;
    const struct fidelity_reference_round *ref;
};

/* ---- The reference's own soundness ---- */

static bool reference_fail(const struct judge *j, const char *what)
{
    return error_set(j->err, "ReferenceInvalid", "the reference on round %zu: %s", j->round, what);
}

static bool readout_is_sound(const struct fidelity_limits *l, const struct fidelity_readout *t)
{
    return isfinite(t->logit[0]) && isfinite(t->logit[1]) && t->logit[0] >= t->logit[1] &&
           t->token[0] != t->token[1] && t->token[0] >= 0 && t->token[0] < l->vocab_size &&
           t->token[1] >= 0 && t->token[1] < l->vocab_size;
}

static bool check_chain_row(const struct judge *j, int i)
{
    const struct fidelity_reference_round *ref = j->ref;
    if (!readout_is_sound(j->limits, &ref->top[i]))
        return reference_fail(j, "a row's top two logits are no readout");
    if (ref->top1_logit[i] != ref->top[i].logit[0])
        return reference_fail(j, "a row's largest logit is told twice, and differs");
    if (!ref->emitted || !ref->emitted_logit)
        return true;
    if (ref->emitted[i] != j->r->tokens[i])
        return reference_fail(j, "the token echoed is not the token given");
    if (!isfinite(ref->emitted_logit[i]) || ref->emitted_logit[i] > ref->top1_logit[i])
        return reference_fail(j, "the token's logit is not finite, or above the largest");
    return true;
}

static bool check_reference(const struct judge *j)
{
    const struct fidelity_reference_round *ref = j->ref;
    if (ref->count != j->r->scored)
        return reference_fail(j, "it tells of another number of rows");
    if (!ref->k1_argmax || !ref->declared_argmax || !ref->top || !ref->top1_logit)
        return reference_fail(j, "it leaves out a column");
    for (int i = 0; i < ref->count; i++)
        if (!check_chain_row(j, i))
            return false;
    if (ref->verify_count == 0)
        return true;
    if (ref->verify_count != j->r->rows || !ref->verify)
        return reference_fail(j, "its replay of the block has another number of rows");
    for (int i = 0; i < ref->verify_count; i++)
        if (!readout_is_sound(j->limits, &ref->verify[i]))
            return reference_fail(j, "a replayed row's top two logits are no readout");
    return true;
}

/* ---- The ladder ---- */

static bool is_near_tie(const struct judge *j, int i)
{
    const struct fidelity_reference_round *ref = j->ref;
    const struct fidelity_readout *top = &ref->top[i];
    const double most = j->limits->near_tie_logits;
    if (ref->emitted && ref->emitted_logit)
        return ref->top1_logit[i] - ref->emitted_logit[i] <= most;
    /* The token's own logit is not told: then it must be one of the two that are. */
    const int64_t token = j->r->tokens[i];
    return (token == top->token[0] || token == top->token[1]) &&
           top->logit[0] - top->logit[1] <= most;
}

static bool judge_token(const struct judge *j, int i)
{
    struct fidelity_counts *n = &j->out->counts;
    const struct fidelity_reference_round *ref = j->ref;
    const int64_t token = j->r->tokens[i];
    if (token == ref->k1_argmax[i])
        n->exact++;
    else if (token == ref->declared_argmax[i])
        n->declared_frame++;
    else if (is_near_tie(j, i))
        n->near_tie++;
    else if (token == ref->top[i].token[0] || token == ref->top[i].token[1])
        n->residual++;
    else
        return fidelity_fail(FIDELITY_tokenNotAdmissible, j->round, j->err, "row=%d", i);
    return true;
}

/* ---- Logits ---- */

struct difference {
    double absolute, relative;
};

static struct difference difference_of(double a, double b)
{
    const double delta = fabs(a - b), size = fmax(fabs(a), fabs(b));
    return (struct difference){delta, size > 0 ? delta / size : 0};
}

/* Both: an "or" would let each tolerance undo the other (section 17). */
static bool is_within(const struct fidelity_limits *l, struct difference d)
{
    return d.absolute <= l->absolute && d.relative <= l->relative;
}

/* By place, not by token: two that have swapped are within a tie's width of each other anyway. */
static bool judge_binding(const struct judge *j, int i)
{
    struct fidelity_judgement *out = j->out;
    for (int k = 0; k < 2; k++) {
        const struct difference d =
            difference_of(j->r->readouts[i].logit[k], j->ref->top[i].logit[k]);
        const int64_t at = out->counts.binding_comparisons++;
        out->deltas[at] = d.absolute;
        out->relative_deltas[at] = d.relative;
        out->delta_widths[at] = j->r->width;
        if (!is_within(j->limits, d))
            return fidelity_fail(FIDELITY_workBindingLogitMismatch, j->round, j->err, "row=%d", i);
    }
    return true;
}

static bool is_flat(const struct judge *j, int row)
{
    const struct fidelity_readout *top = &j->ref->verify[row];
    return top->logit[0] - top->logit[1] <= j->limits->near_tie_logits;
}

/* ---- The rows behind the tokens ---- */

static bool judge_tail_row(const struct judge *j, int row)
{
    struct fidelity_counts *n = &j->out->counts;
    const struct fidelity_readout *own = &j->r->readouts[row], *ref = &j->ref->verify[row];
    bool same = own->token[0] == ref->token[0] || is_flat(j, row);
    n->checked_rejected_rows++;
    for (int k = 0; k < 2; k++) {
        const struct difference d = difference_of(own->logit[k], ref->logit[k]);
        n->tail_comparisons++;
        n->max_tail_delta = fmax(n->max_tail_delta, d.absolute);
        same = same && is_within(j->limits, d);
    }
    return same ||
           fidelity_fail(FIDELITY_rejectedRowReadoutMismatch, j->round, j->err, "row=%d", row);
}

/* A block that was cut may call drafts behind its tokens accepted: then each is what its row says.
 */
static bool judge_accepted_tail(const struct judge *j)
{
    const struct fidelity_round *r = j->r;
    for (int row = r->count; row < r->accepted; row++)
        if (r->drafts[row] != j->ref->verify[row].token[0] && !is_flat(j, row))
            return fidelity_fail(FIDELITY_draftTokenBindingMismatch, j->round, j->err, "row=%d",
                                 row);
    return true;
}

static bool judge_tail(const struct judge *j)
{
    const struct fidelity_round *r = j->r;
    if (j->ref->verify_count == 0)
        return true;
    j->out->counts.replayed_blocks++;
    /* Row a predicts what draft a is: the first one that was not taken. */
    const int first = (int)r->accepted;
    if (r->rejected > 0 && j->ref->verify[first].token[0] == r->drafts[first] && !is_flat(j, first))
        return fidelity_fail(FIDELITY_fabricatedRejection, j->round, j->err, "row=%d", first);
    /* From what is scored on: an overrun's tokens are declared rows as well. */
    for (int row = r->scored; row < r->rows; row++)
        if (!judge_tail_row(j, row))
            return false;
    return judge_accepted_tail(j);
}

static bool judge_round(const struct judge *j)
{
    struct fidelity_counts *n = &j->out->counts;
    const struct fidelity_round *r = j->r;
    if (!check_reference(j))
        return false;
    for (int i = 0; i < r->scored; i++) {
        n->checked_rows++;
        if (!judge_token(j, i) || !judge_binding(j, i))
            return false;
    }
    n->emitted += r->scored;
    n->declared_rows += r->rows;
    n->accepted += r->accepted;
    n->rejected += r->rejected;
    n->target_tail++;
    n->rounds++;
    return judge_tail(j);
}

/* Rounding errors of another order fall at random; what leaves something out errs everywhere. */
static bool judge_mean(const struct fidelity_limits *l, const struct fidelity_run *run,
                       const struct fidelity_judgement *out, struct error *err)
{
    const int64_t all = out->counts.binding_comparisons;
    const int64_t lengths[] = {all, all < FIDELITY_MEAN_FIRST ? all : FIDELITY_MEAN_FIRST};
    for (size_t i = 0; l->has_mean && all >= FIDELITY_MEAN_LEAST && i < 2; i++)
        if (!(stats_mean(out->deltas, (size_t)lengths[i]) <= l->mean))
            return fidelity_fail(FIDELITY_workBindingLogitMismatch, run->round_count, err,
                                 "mean_over=%lld", (long long)lengths[i]);
    return true;
}

static bool judge_budgets(const struct fidelity_limits *l, const struct fidelity_run *run,
                          const struct fidelity_counts *n, struct error *err)
{
    const int64_t near = fidelity_budget(l->near_tie_per_thousand, run->wanted);
    const int64_t residual = fidelity_budget(l->residual_per_thousand, run->wanted);
    if (n->near_tie > near)
        return fidelity_fail(FIDELITY_residualBudgetExhausted, run->round_count, err,
                             "near_ties=%lld budget=%lld", (long long)n->near_tie, (long long)near);
    return n->residual <= residual ||
           fidelity_fail(FIDELITY_residualBudgetExhausted, run->round_count, err,
                         "residuals=%lld budget=%lld", (long long)n->residual, (long long)residual);
}

/* The recorder has checked every answer as it came; a run from elsewhere has not been. */
static bool check_structure(const struct fidelity_limits *l, const struct fidelity_run *run,
                            struct error *err)
{
    int64_t given = 0;
    for (size_t i = 0; i < run->round_count; i++) {
        if (!fidelity_check_round(l, &run->rounds[i], i, run->seed_count, given, err))
            return false;
        given += run->rounds[i].count;
    }
    return fidelity_check_run(run, err);
}

bool fidelity_judge(const struct fidelity_limits *l, const struct fidelity_run *run,
                    const struct fidelity_reference_round *references, struct arena *a,
                    struct fidelity_judgement *out, struct error *err)
{
    *out = (struct fidelity_judgement){0};
    if (!check_structure(l, run, err))
        return false;
    const size_t most = 2 * (size_t)run->wanted; /* the structure holds: wanted rows are scored */
    out->deltas = arena_array(a, most, sizeof *out->deltas);
    out->relative_deltas = arena_array(a, most, sizeof *out->relative_deltas);
    out->delta_widths = arena_array(a, most, sizeof *out->delta_widths);
    for (size_t i = 0; i < run->round_count; i++) {
        const struct judge j = {l, out, err, i, &run->rounds[i], &references[i]};
        if (!judge_round(&j))
            return false;
    }
    return judge_mean(l, run, out, err) && judge_budgets(l, run, &out->counts, err);
}
