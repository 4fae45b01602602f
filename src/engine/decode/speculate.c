/* Rounds. */
#include "engine/decode/speculate.h"

#include "base/child.h"
#include "base/clock.h"
#include "engine/compute/trace.h"
#include "engine/decode/width.h"

/* Gives one token out and sees whether it ends the run. Every token of every way of decoding passes
 * here. */
static bool commit(const struct serial_request *request, struct serial_result *result,
                   int32_t token)
{
    result->made++;
    if (request->on_token && !request->on_token(request->context, token)) {
        result->end = SERIAL_END_CALLER;
        return false;
    }
    for (int i = 0; i < request->stop_count; i++)
        if (request->stop[i] == token) {
            result->end = SERIAL_END_STOP;
            return false;
        }
    return result->made < request->count; /* SERIAL_END_LENGTH was set at the start */
}

struct round {
    int rows;    /* that the target ran */
    int emitted; /* tokens given out */
    bool going;
    int32_t last;
};

static void count_round(struct speculate_counts *c, const struct round *r, bool cut)
{
    const int accepted = r->emitted - 1;
    c->rounds++;
    c->drafted += (size_t)(r->rows - 1);
    c->accepted += (size_t)accepted;
    for (int i = 0; i < accepted; i++) {
        c->offered[i]++;
        c->taken[i]++;
    }
    if (!cut && accepted < r->rows - 1)
        c->offered[accepted]++;
}

static bool serial_round(struct session *s, int32_t bonus, const struct serial_request *request,
                         struct serial_result *result, struct round *round, struct error *err)
{
    *round = (struct round){.rows = 1, .emitted = 1};
    if (!session_step(s, bonus, err) || !session_argmax(s, &round->last, err))
        return false;
    round->going = commit(request, result, round->last);
    return true;
}

static bool block_round(struct session *s, int32_t bonus, int width,
                        const struct serial_request *request, struct serial_result *result,
                        struct round *round, bool *cut, struct error *err)
{
    int32_t tokens[SPECULATE_MOST];
    struct head_pick next[SPECULATE_MOST];
    int rows;
    tokens[0] = bonus;
    const int64_t position = session_position(s);
    if (!session_round(s, tokens, width, 1, &rows, next, err))
        return false;
    if (rows == 1)
        trace_fell_back(TRACE_SPECULATION, "the drafter's logits were not numbers");
    else
        trace_ran(TRACE_SPECULATION);
    /* Row i is serial decoding's as long as the drafts before it were its tokens. A row of NaN ends
     * the round before it; as the first row of the next one it is the error that it is serially. */
    int accepted = 0;
    while (accepted < rows - 1 && next[accepted].token[0] == tokens[accepted + 1])
        accepted++;
    *round = (struct round){.rows = rows, .going = true};
    for (int i = 0; i <= accepted && next[i].token[0] >= 0 && round->going; i++) {
        round->emitted++;
        round->last = next[i].token[0];
        round->going = commit(request, result, round->last);
    }
    session_keep(s, round->emitted);
    *cut = round->emitted <= accepted;
    if (round->emitted == 0)
        return error_set(err, "LOGITS-NOT-FINITE", "every logit of position %lld is NaN",
                         (long long)position);
    return true;
}

static int wanted_width(const struct speculate_plan *plan, struct width_policy *policy,
                        size_t round)
{
    if (!plan)
        return 1;
    if (plan->block > 0)
        return plan->block;
    return plan->schedule ? plan->schedule(plan->context, round) : width_policy_next(policy);
}

bool speculate_rounds(struct session *s, int32_t *token, const struct serial_request *request,
                      const struct speculate_plan *plan, struct speculate_counts *counts,
                      struct serial_result *result, struct error *err)
{
    struct speculate_counts unused = {0};
    struct width_policy policy;
    bool going = result->made < request->count;
    const int limit = session_block_limit(s);
    if (plan && limit < 2)
        trace_fell_back(TRACE_SPECULATION, "no drafter, or its hidden rows are not held here");
    width_policy_begin(&policy, limit);
    if (!counts)
        counts = &unused;
    for (size_t n = 0; going; n++) {
        if (interrupt_requested()) {
            result->end = SERIAL_END_INTERRUPT;
            return true;
        }
        const size_t room = request->count - result->made;
        const int fits = session_block_limit(s);
        int width = wanted_width(plan, &policy, n);
        if (width > fits)
            width = fits;
        if ((size_t)(width < 1 ? 1 : width) > room)
            width = (int)room;
        struct round round;
        bool cut = false;
        const int64_t start = plan ? clock_now_ns() : 0;
        const bool ok = width > 1
                            ? block_round(s, *token, width, request, result, &round, &cut, err)
                            : serial_round(s, *token, request, result, &round, err);
        if (!ok)
            return false;
        *token = round.last;
        going = round.going;
        count_round(counts, &round, cut);
        if (plan && !cut)
            width_policy_note(&policy, round.rows, round.emitted - 1, clock_seconds(start));
    }
    return true;
}

bool speculate_decode(struct session *s, const struct serial_request *request,
                      const struct speculate_plan *plan, struct speculate_counts *counts,
                      struct serial_result *result, struct error *err)
{
    *result = (struct serial_result){.end = SERIAL_END_LENGTH};
    if (counts)
        *counts = (struct speculate_counts){0};
    if (request->count == 0)
        return true;
    if (interrupt_requested()) {
        result->end = SERIAL_END_INTERRUPT;
        return true;
    }
    int32_t token;
    if (!session_argmax(s, &token, err))
        return false;
    if (!commit(request, result, token))
        return true;
    return speculate_rounds(s, &token, request, plan, counts, result, err);
}
