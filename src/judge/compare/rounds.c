#include "judge/compare/rounds.h"

#include <math.h>

void rounds_order(size_t settings, size_t round, size_t *order)
{
    const size_t others = settings - 1, shift = others > 0 ? round / 2 % others : 0;
    order[0] = 0;
    for (size_t i = 0; i < others; i++)
        order[1 + i] = 1 + (i + shift) % others;
    for (size_t i = 0; round % 2 == 1 && i < settings / 2; i++) {
        const size_t first = order[i];
        order[i] = order[settings - 1 - i];
        order[settings - 1 - i] = first;
    }
}

const char *rounds_axis_name(enum rounds_axis axis)
{
    static const char *const names[] = {
        [ROUNDS_COMPOSITE] = "composite", [ROUNDS_DECODE] = "decode", [ROUNDS_PREFILL] = "prefill"};
    return names[axis];
}

void rounds_add(struct rounds_pairs *pairs, const struct rounds_times *control,
                const struct rounds_times *candidate, bool clean)
{
    if (!clean) {
        pairs->set_aside++;
        return;
    }
    pairs->control[pairs->count] = *control;
    pairs->candidate[pairs->count++] = *candidate;
}

bool rounds_is_hopeless(const struct rounds_plan *p, const struct rounds_pairs *pairs)
{
    return pairs->set_aside >= pairs->count + p->rule.min_pairs;
}

double rounds_confidence(const struct rounds_plan *p)
{
    return 1 - (1 - p->rule.confidence) / (double)p->comparisons;
}

static struct paired_rule own_rule(const struct rounds_plan *p)
{
    struct paired_rule rule = p->rule;
    rule.confidence = rounds_confidence(p);
    return rule;
}

/* One number for a leg, seconds of a kind: the composite's is the weighted geometric mean. */
static double of_axis(const struct rounds_plan *p, enum rounds_axis axis,
                      const struct rounds_times *t)
{
    if (axis == ROUNDS_PREFILL)
        return t->prefill;
    if (axis == ROUNDS_DECODE)
        return t->decode;
    return pow(t->prefill, p->weight_prefill) * pow(t->decode, p->weight_decode);
}

struct columns {
    double control[ROUNDS_PAIRS_MOST], candidate[ROUNDS_PAIRS_MOST];
};

static void fill(const struct rounds_plan *p, enum rounds_axis axis,
                 const struct rounds_pairs *pairs, struct columns *out)
{
    for (size_t i = 0; i < pairs->count; i++) {
        out->control[i] = of_axis(p, axis, &pairs->control[i]);
        out->candidate[i] = of_axis(p, axis, &pairs->candidate[i]);
    }
}

enum paired_next rounds_next(const struct rounds_plan *p, const struct rounds_pairs *pairs)
{
    struct columns c;
    const struct paired_rule rule = own_rule(p);
    fill(p, p->axis, pairs, &c);
    return paired_next(&rule, c.control, c.candidate, pairs->count);
}

bool rounds_judge(const struct rounds_plan *p, const struct rounds_pairs *pairs,
                  struct rounds_result *out)
{
    struct columns c;
    const struct paired_rule rule = own_rule(p);
    *out = (struct rounds_result){0};
    if (pairs->count < 2)
        return false;
    for (int axis = 0; axis < ROUNDS_AXES; axis++) {
        if (axis == ROUNDS_COMPOSITE && p->weight_prefill + p->weight_decode == 0)
            continue;
        fill(p, axis, pairs, &c);
        out->known[axis] =
            paired_estimate(c.control, c.candidate, pairs->count, paired_rule_confidence(&rule),
                            PAIRED_BOOTSTRAP_SEED, &out->estimates[axis]);
    }
    if (!out->known[p->axis])
        return false;
    out->verdict = paired_verdict(&out->estimates[p->axis], p->claim_floor);
    return true;
}

double rounds_smallest_claim(const struct rounds_plan *p, const struct paired_estimate *e)
{
    return paired_smallest_claim(e, p->claim_floor);
}
