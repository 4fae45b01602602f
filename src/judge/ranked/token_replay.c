#include "judge/ranked/token_replay.h"

#include "judge/gates.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void token_replay_begin(struct pair_tokens *t)
{
    *t = (struct pair_tokens){.judged = true, .first_step = -1};
}

/* (top1 - second) / max(1, |top1|), where the list can be trusted and the token is second in it. */
static bool second_choice(const struct wire_top_logits *top, int64_t argmax, int64_t said,
                          int64_t vocab_size, double *gap)
{
    if (!gate_top_logits_trusted(top, argmax, vocab_size) || top->count < 2 ||
        top->items[1].token != said)
        return false;
    const double first = top->items[0].logit, second = top->items[1].logit;
    *gap = (first - second) / fmax(1, fabs(first));
    return isfinite(*gap);
}

void token_replay_position(struct pair_tokens *t, const struct contract *c, int64_t step,
                           int64_t said, int64_t argmax, const struct wire_top_logits *top)
{
    double gap;
    if (said == argmax)
        return;
    if (t->mismatches++ == 0)
        t->first_step = step;
    if (!second_choice(top, argmax, said, c->vocab_size, &gap))
        return;
    t->second_choices++;
    if (gap > t->largest_second_choice_gap)
        t->largest_second_choice_gap = gap;
    if (c->has_near_tie_gap && gap <= c->near_tie_relative_gap)
        t->near_ties++;
}

bool token_replay_end(const struct pair_tokens *t, const struct contract *c, int64_t positions,
                      struct error *err)
{
    if (c->has_near_tie_gap && t->near_ties < t->mismatches)
        return error_set(err, "TIMED-DIVERGENCE-NOT-A-NEAR-TIE",
                         "%" PRId64 " of %" PRId64 " tokens that the reference would not have said "
                         "are not its second choice within a relative gap of %g",
                         t->mismatches - t->near_ties, t->mismatches, c->near_tie_relative_gap);
    if (t->mismatches * 1000 <= c->token_tolerance_per_thousand * positions)
        return true;
    return error_set(err, "TIMED-DIVERGENCE-OVER-TOLERANCE",
                     "%" PRId64 " of %" PRId64 " tokens are not the reference's; %" PRId64
                     " per thousand are let through",
                     t->mismatches, positions, c->token_tolerance_per_thousand);
}

/* The reference's own failure has one name: the candidate has nothing to do with it. */
static bool cannot_say(struct error *err)
{
    const struct error why = *err;
    if (strcmp(why.name, "Interrupted") == 0)
        return false;
    return error_set(err, "TIMED-REPLAY-FAILED", "the reference worker cannot replay: %s: %s",
                     why.name, why.message);
}

bool token_replay_window(struct client *reference, const struct contract *c,
                         const struct replay_window *w, struct pair_tokens *out, struct error *err)
{
    token_replay_begin(out);
    /* Position 0 is the token after the seed, position k + 1 the output of step k. */
    for (int64_t i = 0; i <= w->steps; i++) {
        struct wire_request q =
            client_request(i == 0 ? WIRE_KIND_correctness_begin : WIRE_KIND_correctness_step);
        const int64_t said = i == 0 ? w->seed_token : w->tokens[i - 1];
        if (i == 0)
            q.prompt_tokens = client_tokens(w->seed.items, w->seed.count);
        else
            q.token = (struct wire_i64){.present = true,
                                        .value = i == 1 ? w->seed_token : w->tokens[i - 2]};
        const struct wire_response *r;
        if (!client_call(reference, &q, 0, &r, NULL, err))
            return cannot_say(err);
        token_replay_position(out, c, i, said, r->token.value, &r->top_logits);
    }
    if (!client_barrier(reference, -1, NULL, err))
        return cannot_say(err);
    return token_replay_end(out, c, w->steps + 1, err);
}
