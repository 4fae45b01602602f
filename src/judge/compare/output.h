/* What the two commands share besides the legs: their exits, their output. Only the tools_*.c files
 * of this folder include this. */
#ifndef MLXFAST_JUDGE_COMPARE_OUTPUT_H
#define MLXFAST_JUDGE_COMPARE_OUTPUT_H

#include "judge/compare/bench.h"

#define BENCH_ENVIRONMENT                                                                          \
    "Environment: MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600) and "               \
    "MLXFAST_BARRIER_TIMEOUT_S (60) bound every read from a worker; MLXFAST_RUN_CEILING_S "        \
    "(0.1336139485703125) is the seconds per token whose fourfold bounds the timed decode."

/* A file that may be written, and is none of those that are read. path may be NULL. */
bool bench_check_output(const struct bench_flags *f, const char *flag, const char *path,
                        struct error *err);
bool compare_write_json(const char *path, const json_t *report, struct error *err);
void compare_print_json(const json_t *report);
/* The exit code of an error: 2 usage or an unusable contract, 130 interrupted, else 1. */
int bench_exit(const struct bench *b, const struct error *err);

#endif
