/* The normaliser of a prompt on a machine: how much faster the organiser's own tree is as a
 * candidate than as the control (`benchd measure-noop`; dflash-track.md section 2). On a serial
 * track both legs are the same, and what it shows is how far from 1 this machine lets it be. */
#ifndef MLXFAST_JUDGE_RANKED_NOOP_H
#define MLXFAST_JUDGE_RANKED_NOOP_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "judge/ranked/reference_flags.h"
#include "judge/stats/paired.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NOOP_PAIRS = 12, NOOP_PAIRS_LEAST = 2, NOOP_GOLDENS_MOST = 8 };

/* Decode seconds per token of each pair on one golden. */
struct noop_prompt {
    const char *prompt;
    char sha256[SHA256_HEX]; /* of the golden */
    double *control, *candidate;
};

/* The pairs of a measurement: filled by one of the two functions below. Everything is in the arena
 * but gates. */
struct noop {
    const struct reference_flags *flags;
    const char *drafter; /* block tracks */
    size_t pairs;
    struct arena arena;
    struct contract *contract;
    bool blocks;
    int64_t decode_tokens, block_size; /* block_size 0: serial */
    struct noop_prompt *prompts;       /* as many as there are goldens */
    size_t prompt_count;
    json_t *gates; /* metrics.gates, in run order */
};

/* The legs: two of reference.h, or a serial and a block leg of the same engine, both replayed by
 * it. The prompts take turns and the order within a pair alternates. misused: the error is of the
 * command line or the contract, nothing was measured. */
bool noop_measure_serial(struct noop *n, bool *misused, struct error *err);
bool noop_measure_blocks(struct noop *n, bool *misused, struct error *err);
void noop_free(struct noop *n);

/* Control first in even pairs (0-based), so that a steady drift of the machine falls on both. */
bool noop_control_first(size_t pair);

struct noop_figures {
    struct paired_estimate paired; /* noop_decode_speedup is its ratio */
    double ratio_of_means;         /* as a ranked run of blocks forms its own */
    double ratio_of_fastest; /* the least that either took: robust where others use the machine */
};
/* False: fewer than two pairs, or a time that is not finite and above 0. */
bool noop_figures_of(const struct noop_prompt *p, size_t pairs, double confidence,
                     struct noop_figures *out);

/* The report, a new reference (docs/baseline-calibration.md); NULL where figures fail. when: UTC.
 */
json_t *noop_report(const struct noop *n, const char *when);

#endif
