/* A machine's noise floor: several legs of one engine on one golden, how much their times differ,
 * and from where on a difference is worth a look (docs/compare.md). */
#ifndef MLXFAST_JUDGE_COMPARE_NOISE_H
#define MLXFAST_JUDGE_COMPARE_NOISE_H

#include "judge/compare/bench.h"

/* Two standard deviations, and one percent at least: less is weather. */
#define NOISE_BAR_DEVIATIONS 2.0
#define NOISE_BAR_FLOOR 0.01
enum { NOISE_RUNS_LEAST = 3, NOISE_RUNS_MOST = 100 };

struct noise_floor {
    size_t runs;
    double mean, sd, min, max; /* seconds per token */
    double kill_bar;           /* relative to the mean */
};
/* n from 2. */
struct noise_floor noise_floor_of(const double *seconds, size_t n);

struct noise_run {
    struct bench *bench;
    struct bench_setting *setting;
    size_t runs;
    struct bench_times times[NOISE_RUNS_MOST];
    struct noise_floor prefill, decode;
    size_t disturbed; /* legs beside other work, or slowed down: they count, and are told of */
};
/* One leg that is not counted, then the runs. Errors: bench_leg's and bench_check_unchanged's. */
bool noise_run(struct noise_run *r, struct error *err);
json_t *noise_report(const struct noise_run *r); /* a new reference */

#endif
