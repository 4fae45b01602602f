/* Recording a golden (goldens.md section 7): an engine is driven greedily and teacher-forced, and
 * its answers become a document that the loader has accepted before a byte of it is written. */
#ifndef MLXFAST_JUDGE_RECORD_H
#define MLXFAST_JUDGE_RECORD_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct record_prompt {
    const char *name, *file;
};

struct record_options {
    bool mock; /* the mock model below instead of an engine */
    const char *engine, *weights;
    const char *const *resources; /* NULL-terminated; may be NULL */
    const char *contract, *track, *out;
    const struct record_prompt *cases, *anchors, *free_runs, *behaviors;
    size_t case_count, anchor_count, free_run_count, behavior_count;
    int64_t steps, free_run_steps, behavior_steps;
    int64_t anchor_max_rank; /* 0: none */
    bool has_anchor_max_delta;
    double anchor_max_delta;
    bool benchmark;
    int64_t benchmark_steps;
    const char *benchmark_prefill, *benchmark_decode; /* prompt files; NULL: the first case's */
    const char *provenance_repository, *provenance_revision; /* NULL: the contract's target */
    const char *screen_report;                               /* NULL: none */
    bool no_sandbox;
    const char *const *engine_trees; /* folders that a sandboxed engine may read; may be NULL */
    bool quiet;
};

/* Errors: the contract's, the client's, the golden loader's; RECORD-PROMPT-INVALID,
 * RECORD-NOT-SELF-CONSISTENT, IO. */
bool record_golden(const struct record_options *o, struct error *err);

/* Token ids from a file: a JSON array, or integers between white space and commas. The caller
 * frees *out. Error RECORD-PROMPT-INVALID. */
bool record_read_tokens(const char *path, int64_t vocab_size, int64_t **out, size_t *count,
                        struct error *err);

/* The mock model, so that tests need no engine: the next token after a context of n tokens that
 * ends in t is (t * 31 + n * 17 + 7) mod vocab_size. */
int64_t record_mock_next(int64_t last, size_t length, int64_t vocab_size);

#endif
