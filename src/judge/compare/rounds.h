/* Rounds of legs and what is made of them: the order in which settings take turns, which pairs
 * count, when there are enough, the verdict. Setting 0 is the one that the others are compared
 * with. Pure arithmetic. */
#ifndef MLXFAST_JUDGE_COMPARE_ROUNDS_H
#define MLXFAST_JUDGE_COMPARE_ROUNDS_H

#include "judge/stats/paired.h"

#include <stdbool.h>
#include <stddef.h>

enum { ROUNDS_SETTINGS_MOST = 33, ROUNDS_PAIRS_MOST = 200 };

/* The order of the legs of a round (0 is the first): every setting once. Each second round is the
 * one before backwards (A B C, C B A), so that a steady drift adds up to nothing; each two rounds
 * the others have moved on by one place, so that none is always the furthest from A. */
void rounds_order(size_t settings, size_t round, size_t *order);

enum rounds_axis { ROUNDS_COMPOSITE, ROUNDS_DECODE, ROUNDS_PREFILL };
enum { ROUNDS_AXES = 3 };
const char *rounds_axis_name(enum rounds_axis axis);

struct rounds_times {
    double prefill, decode; /* seconds per token */
};
/* The pairs of one comparison that count. */
struct rounds_pairs {
    struct rounds_times control[ROUNDS_PAIRS_MOST], candidate[ROUNDS_PAIRS_MOST];
    size_t count;
    size_t set_aside; /* measured, and not counted: others used the machine */
};

struct rounds_plan {
    enum rounds_axis axis;                /* that the rule and the verdict look at */
    double weight_prefill, weight_decode; /* of the composite; both 0: there is none */
    struct paired_rule rule;              /* its confidence: of all comparisons together */
    size_t comparisons;
    double claim_floor;
};
/* One more pair; not clean: it is set aside. */
void rounds_add(struct rounds_pairs *pairs, const struct rounds_times *control,
                const struct rounds_times *candidate, bool clean);
/* Pairs that are set aside are measured again until they outnumber the others by min_pairs: then
 * the machine is not for measuring. */
bool rounds_is_hopeless(const struct rounds_plan *p, const struct rounds_pairs *pairs);

/* Of one comparison: Bonferroni's, so that the intervals of all hold together. */
double rounds_confidence(const struct rounds_plan *p);

enum paired_next rounds_next(const struct rounds_plan *p, const struct rounds_pairs *pairs);

struct rounds_result {
    bool known[ROUNDS_AXES];
    struct paired_estimate estimates[ROUNDS_AXES];
    enum paired_verdict verdict; /* of the plan's axis */
};
/* False: fewer than two pairs, or one without a time above 0. */
bool rounds_judge(const struct rounds_plan *p, const struct rounds_pairs *pairs,
                  struct rounds_result *out);

/* What differs by less than this could not have been claimed: the estimate's smallest effect, or
 * the floor where that is larger. */
double rounds_smallest_claim(const struct rounds_plan *p, const struct paired_estimate *e);

#endif
