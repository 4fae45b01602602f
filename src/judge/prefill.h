/* Where the time of a prefill goes: a fixed cost and a cost per token, from the mean times of
 * several prompt lengths (benchd-cli.md section 7, prefill-decompose). */
#ifndef MLXFAST_JUDGE_PREFILL_H
#define MLXFAST_JUDGE_PREFILL_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The fixed cost above which the verdict is bad, in milliseconds. */
#define PREFILL_FIXED_COST_MAX_MS 8.0

/* The straight line y = intercept + slope x by ordinary least squares. False when the x do not hold
 * two different values, or a value is not finite. */
struct prefill_fit {
    double intercept, slope;
    double r_squared; /* 1 where all y are equal */
};
bool prefill_fit_line(const double *x, const double *y, size_t n, struct prefill_fit *out);

/* The fixed cost is no more than the limit; a fit that is not finite is not good. */
bool prefill_verdict(const struct prefill_fit *fit);

struct prefill_times {
    int64_t size; /* tokens */
    double mean_ms, min_ms, sd_ms;
};
/* Starts the engine, gives it `size` tokens of id 1 once unmeasured and then reps times, closes the
 * phase with its barrier, ends the engine. Errors: the client's. */
bool prefill_measure(const char *engine, const char *weights, int64_t size, int64_t reps,
                     struct prefill_times *out, struct error *err);

#endif
