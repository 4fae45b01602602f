/* The loop of a ranked run: pairs of a control leg and a candidate leg, null pairs of two control
 * legs between them, and how many (contract-and-scoring.md section 3, docs/ranked-run.md). Legs are
 * measured by a function, so that the loop knows no engine. */
#ifndef MLXFAST_JUDGE_RANKED_PAIRS_H
#define MLXFAST_JUDGE_RANKED_PAIRS_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/contract.h"
#include "judge/ranked/combine.h"
#include "judge/stats/paired.h"

#include <stdbool.h>
#include <stddef.h>

enum ranked_role { RANKED_CONTROL, RANKED_CANDIDATE, RANKED_NULL_A, RANKED_NULL_B };
const char *ranked_role_name(enum ranked_role role); /* control, candidate, null-a, null-b */

/* One leg that is to be measured. */
struct ranked_slot {
    enum ranked_role role;
    int pair;             /* 1-based, of its kind */
    size_t golden;        /* (pair - 1) mod goldens */
    size_t done, planned; /* legs before this one, and as far as is known in all */
};
/* False ends the run, but for TELEMETRY-CONTENDED: others were at work during the leg, and its
 * whole pair is set aside and measured again. Whatever else comes of a leg the context keeps; of a
 * pair that is measured again the last. */
typedef bool ranked_measure(void *context, const struct ranked_slot *slot, struct pair_times *out,
                            struct error *err);

struct ranked_runs {
    struct ranked_pair *pairs, *nulls; /* in the arena; what was measured whole */
    size_t count, null_count;
    size_t set_aside; /* pairs and null pairs that were measured again */
    enum paired_next stopped;
    bool has_statistics;                            /* from one pair on */
    struct paired_estimate estimate, null_estimate; /* of composites; null: a against b */
};

/* So many pairs of a run may be set aside; one more ends it. Who decides is the telemetry, which
 * knows no times. */
#define RANKED_SET_ASIDE_MOST(count) (1 + (count) / 8) /* of pairs and null pairs of the run */

/* Pairs begin with the control leg; where the contract says alternate, every second one (and every
 * second null pair) begins with the other leg, so that a steady drift favours neither.
 *
 * min_pairs pairs with the null pairs spread among them, then, where the rule allows it, more (one
 * for each golden at a time) until the interval is narrow enough or max_pairs are done. Only the
 * interval's width is looked at. prompt_sha256: of each golden. On false out holds what was
 * measured before. */
bool ranked_pairs_run(const struct contract *c, const struct paired_rule *rule,
                      const char *const *prompt_sha256, size_t goldens, ranked_measure *measure,
                      void *context, struct arena *a, struct ranked_runs *out, struct error *err);

#endif
