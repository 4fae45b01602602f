/* Two score files field by field (benchd-cli.md section 7, parity-diff): do two judges, or two runs
 * of one, say the same? Every metric key has a bucket that tells how it is compared. */
#ifndef MLXFAST_JUDGE_PARITY_H
#define MLXFAST_JUDGE_PARITY_H

#include "base/buffer.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { PARITY_VERSION = 2 };

enum parity_bucket {
    PARITY_TIMED,   /* within 10 % of the larger */
    PARITY_DET,     /* exact; floats within 1e-9 of the larger, or of 1 */
    PARITY_DET_TOL, /* within 5 % of the larger */
    PARITY_FAILING, /* where a run failed: exact */
    PARITY_ERROR,   /* the text before the first ':', lower case */
    PARITY_ENV,     /* not compared: the place and the moment */
    PARITY_UNKNOWN
};

#define PARITY_TIMED_BAND 0.10
#define PARITY_DET_BAND 1e-9
#define PARITY_DET_TOL_BAND 0.05

/* The bucket of a metric key, or of a key of a record inside metrics (paired_legs, per_prompt,
 * ...). PARITY_UNKNOWN: no score has it. */
enum parity_bucket parity_bucket_of(const char *key);

struct parity_result {
    size_t differences, compared;
    size_t not_compared; /* Env fields */
    size_t waived;       /* Timed fields that differ while both sides failed */
};

/* Appends one line for each difference: "<TAG> <field>: <a> | <b>". Tags: UNKNOWN-FIELD,
 * SCHEMA-DRIFT-MISSING, PASSED-NOT-BOOL, TIMED, DET, DET-TOL, FAILING, ERROR-CLASS. */
void parity_diff(const json_t *a, const json_t *b, struct buffer *lines,
                 struct parity_result *result);

/* A valid score with every metric key that there is, for authors of other judges: canonical JSON.
 * Error SCORE-INVALID: the tables of keys contradict each other. */
bool parity_sample(struct buffer *out, struct error *err);

#endif
