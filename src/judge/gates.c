#include "judge/gates.h"

#include <math.h>

bool gate_top_logits_trusted(const struct wire_top_logits *t, int64_t reported, int64_t vocab_size)
{
    if (t->count < 1 || t->count > WIRE_TOP_LOGITS || t->items[0].token != reported)
        return false;
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *e = &t->items[i];
        if (e->token < 0 || e->token >= vocab_size || !isfinite(e->logit))
            return false;
        for (size_t j = 0; j < i; j++)
            if (t->items[j].token == e->token)
                return false;
        if (i == 0)
            continue;
        const struct wire_top_logit *before = &t->items[i - 1];
        if (e->logit > before->logit || (e->logit == before->logit && e->token < before->token))
            return false;
    }
    return true;
}

static const struct wire_top_logit *find_token(const struct wire_top_logits *t, int64_t token)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->items[i].token == token)
            return &t->items[i];
    return NULL;
}

bool gate_tie_accepts(const struct wire_top_logits *t, int64_t reported, int64_t a,
                      int64_t vocab_size)
{
    if (a == reported)
        return true;
    if (!gate_top_logits_trusted(t, reported, vocab_size))
        return false;
    const struct wire_top_logit *e = find_token(t, a);
    return e != NULL && t->items[0].logit - e->logit <= GATE_TIE_TOLERANCE;
}

static void note_mismatch(struct gate_outcome *o, int64_t step, int64_t expected, int64_t actual)
{
    if (o->mismatches++ > 0)
        return;
    o->step = step;
    o->expected = expected;
    o->actual = actual;
}

void gate_base_begin(struct gate_outcome *o)
{
    *o = (struct gate_outcome){.step = -1, .expected = -1, .actual = -1};
}

void gate_base_demand_gap(struct gate_outcome *o, double gap)
{
    o->has_gap = true;
    o->gap = gap;
}

/* The expected token is near enough to the first one for a small difference of arithmetic. */
static bool is_near(const struct gate_outcome *o, const struct wire_top_logits *t, int64_t reported,
                    int64_t expected, int64_t vocab_size)
{
    if (!gate_top_logits_trusted(t, reported, vocab_size))
        return false;
    const struct wire_top_logit *e = find_token(t, expected);
    return e != NULL && t->items[0].logit - e->logit <= o->gap;
}

static void note_leniency(struct gate_outcome *o, const struct wire_top_logits *t, int64_t token)
{
    const struct wire_top_logit *e = find_token(t, token);
    if (e != NULL && t->items[0].logit - e->logit > o->max_abs_diff)
        o->max_abs_diff = t->items[0].logit - e->logit;
}

void gate_base_step(struct gate_outcome *o, int64_t step, int64_t reported,
                    const struct wire_top_logits *t, int64_t expected, int64_t vocab_size)
{
    if (gate_tie_accepts(t, reported, expected, vocab_size)) {
        if (reported != expected)
            note_leniency(o, t, expected);
        return;
    }
    note_mismatch(o, step, expected, reported);
    if (o->has_gap && !o->beyond_gap && !is_near(o, t, reported, expected, vocab_size)) {
        o->beyond_gap = true;
        o->far_step = step;
        o->far_expected = expected;
        o->far_actual = reported;
    }
}

void gate_base_end(struct gate_outcome *o, int64_t steps)
{
    const bool in_budget = o->mismatches * 1000 <= GATE_BASE_BUDGET_PER_THOUSAND * steps;
    o->passed = in_budget && !o->beyond_gap;
    if (in_budget && o->beyond_gap) { /* the budget did not fail it: this one did */
        o->step = o->far_step;
        o->expected = o->far_expected;
        o->actual = o->far_actual;
    }
    o->beyond_gap = in_budget && o->beyond_gap;
    o->checked_steps = o->passed ? steps : o->step + 1;
}

/* Rank of a token by logit descending, lowest id first; 0 when it is not in the list. */
static int64_t rank_of(const struct wire_top_logits *t, const struct wire_top_logit *e)
{
    int64_t rank = 1;
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *other = &t->items[i];
        if (other->logit > e->logit || (other->logit == e->logit && other->token < e->token))
            rank++;
    }
    return rank;
}

void gate_anchor(struct gate_outcome *o, const struct golden_anchor *a,
                 const struct wire_top_logits *t, int64_t vocab_size)
{
    gate_base_begin(o);
    o->checked_steps = 1;
    const struct wire_top_logit *best = NULL;
    bool finite = t->count > 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *e = &t->items[i];
        finite = finite && isfinite(e->logit);
        if (best == NULL || e->logit > best->logit ||
            (e->logit == best->logit && e->token < best->token))
            best = e;
    }
    const int64_t argmax = best != NULL ? best->token : -1;
    if (!finite) {
        note_mismatch(o, 0, a->expected_token, argmax);
        return;
    }
    o->passed = gate_tie_accepts(t, argmax, a->expected_token, vocab_size);
    for (size_t i = 0; !o->passed && i < a->accepted.count; i++)
        o->passed = gate_tie_accepts(t, argmax, a->accepted.items[i], vocab_size);
    const struct wire_top_logit *expected = find_token(t, a->expected_token);
    if (!o->passed && a->has_rank && expected != NULL &&
        gate_top_logits_trusted(t, argmax, vocab_size)) {
        const double most = a->has_delta ? a->max_top_logit_delta : GATE_TIE_TOLERANCE;
        o->passed =
            rank_of(t, expected) <= a->max_expected_rank && best->logit - expected->logit <= most;
        if (o->passed)
            o->max_abs_diff = best->logit - expected->logit;
    }
    if (!o->passed)
        note_mismatch(o, 0, a->expected_token, argmax);
}

void gate_free_run(struct gate_outcome *o, const struct golden_free_run *f,
                   const struct wire_tokens *tokens)
{
    gate_base_begin(o);
    for (size_t i = 0; i < f->exact_prefix; i++) {
        const int64_t got = i < tokens->count ? tokens->items[i] : -1;
        if (got != f->expected.items[i])
            note_mismatch(o, (int64_t)i, f->expected.items[i], got);
    }
    o->passed = o->mismatches == 0;
    o->checked_steps = o->passed ? (int64_t)f->exact_prefix : o->step + 1;
}

void gate_behavior(struct gate_outcome *o, const struct golden_behavior *b,
                   const struct wire_tokens *tokens)
{
    gate_base_begin(o);
    /* Of several accepted sequences the one that was followed furthest tells what went wrong. */
    int64_t furthest = -1;
    for (size_t s = 0; s < b->accepted_count && !o->passed; s++) {
        const struct golden_tokens *want = &b->accepted[s];
        size_t i = 0;
        while (i < want->count && i < tokens->count && want->items[i] == tokens->items[i])
            i++;
        if (i == want->count) {
            *o = (struct gate_outcome){.passed = true,
                                       .checked_steps = (int64_t)want->count,
                                       .step = -1,
                                       .expected = -1,
                                       .actual = -1};
        } else if ((int64_t)i > furthest) {
            furthest = (int64_t)i;
            o->mismatches = 0;
            note_mismatch(o, (int64_t)i, want->items[i], i < tokens->count ? tokens->items[i] : -1);
            o->checked_steps = o->step + 1;
        }
    }
}
