/* The last word of a run, for people. */
#ifndef MLXFAST_JUDGE_REPORT_H
#define MLXFAST_JUDGE_REPORT_H

#include "judge/gates.h"
#include "judge/measure.h"
#include "judge/score.h"

/* A short table on stdout: correctness, prefill and decode tokens per second, what was sealed. */
void report_run(const struct score_document *d, const struct gates_result *gates, bool gates_ran,
                const struct measure_result *m, const char *score_path);

#endif
