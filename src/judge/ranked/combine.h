/* What the pairs of a ranked run come to (contract-and-scoring.md sections 2 and 3): gains of each
 * pair from its own control leg, one score from the pairs, the floors, the fast side of the bands.
 * Pure arithmetic in IEEE double; the order of pairs is theirs. */
#ifndef MLXFAST_JUDGE_RANKED_COMBINE_H
#define MLXFAST_JUDGE_RANKED_COMBINE_H

#include "base/sha256.h"
#include "judge/contract.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Seconds per token of one leg. */
struct pair_times {
    double prefill, decode;     /* decode: the decode window / its tokens */
    double seed_prefill_window; /* the decode seed's prefill; sealed, not scored */
    /* Seconds of the barriers behind the two phases; sealed, not scored. */
    double prefill_barrier, decode_barrier;
};

/* Tokens of the candidate that are not the golden's, as the replay found them (token_replay.h). */
struct pair_tokens {
    bool judged; /* the contract declares a tolerance: the counts below are told */
    int64_t mismatches, first_step; /* -1: none */
    int64_t near_ties, second_choices;
    double largest_second_choice_gap; /* relative; 0: none */
};

struct ranked_pair {
    int number;                     /* 1-based */
    char prompt_sha256[SHA256_HEX]; /* of the golden that it was measured on */
    size_t golden;                  /* its index */
    struct pair_times control, candidate;
    struct pair_tokens tokens;
};

struct pair_gains {
    double prefill, decode, composite;
};
/* From the pair's own control leg; the contract declares scoring weights. */
struct pair_gains combine_gains(const struct contract *c, const struct ranked_pair *p);

struct combined {
    size_t enforced; /* the pair whose golden is checked for correctness: the lower median one */
    struct pair_times control, candidate; /* that pair's, or the means */
    struct pair_gains gains;              /* likewise */
    double score;
    bool prefill_floor, decode_floor; /* cleared */
    const char *error; /* NULL, or a class of failure: "score", "performance floor failed",
                          "acceptance band failed", "seed window failed",
                          "decode barrier failed" */
    char text[256];    /* what is said after it */
};
/* What lies before the decode window is not scored: the seed's prefill and the barrier before it.
 * An engine could decode there, or hurry its timed prefill alone. So the seed may take as long as
 * the same leg's prefill, times what it took the control leg where that is more, and this much more
 * of it; and the barrier as long as the control leg's; both together so many seconds, or this part
 * of the decode window, longer (and the tolerance more of that). The barrier behind the decode
 * window may hold as much: a round that was under way, not rounds whose tokens were told before. */
#define COMBINE_SEED_WINDOW_TOLERANCE 0.25
#define COMBINE_UNTIMED_SECONDS 0.002
#define COMBINE_UNTIMED_DECODE 0.01

/* lower_median: the pair whose composite is the middle one, the lower of two; floors gate that
 * pair. mean: the mean of the pairs' composites, gains and times; floors gate every pair, and text
 * tells of the first that fails. Order of failures: a score that is not finite, floors, bands
 * (prefill first), the seed's window, the barrier behind the decode window (both of more than half
 * of the pairs; for the mean of any).
 * count >= 1; the contract declares weights and floors. */
void combine_pairs(const struct contract *c, const struct ranked_pair *pairs, size_t count,
                   struct combined *out);

/* The composites, for statistics: [count]. */
void combine_composites(const struct contract *c, const struct ranked_pair *pairs, size_t count,
                        double *out);

/* metrics.paired_legs and metrics.null_pairs: one record for each pair; a new reference. */
json_t *combine_seal(const struct ranked_pair *pairs, size_t count);

/* ---- the order in which pairs are measured ---- */

/* Step k (from 0) of a run of `pairs` pairs proper and `nulls` null pairs, which are spread evenly
 * behind them: the last step is a pair proper unless nulls >= pairs. */
struct schedule_step {
    bool null_pair;
    size_t index; /* of its kind, from 0 */
};
struct schedule_step combine_schedule(size_t pairs, size_t nulls, size_t step);

#endif
