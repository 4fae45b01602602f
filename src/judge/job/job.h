/* One job of the older flow (benchd-cli.md section 4): every check before the engines start, the
 * pairs, results.json with its sidecar and integrity file. docs/older-flow.md tells it all. */
#ifndef MLXFAST_JUDGE_JOB_JOB_H
#define MLXFAST_JUDGE_JOB_JOB_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum job_exit {
    JOB_ACCEPTED = 0,
    JOB_FAILED = 1, /* a file, the machine */
    JOB_USAGE = 2,
    JOB_REJECTED = 5, /* the candidate */
    JOB_BASELINE = 6, /* the serial leg, or the calibration */
    JOB_REFUSED = 8,  /* what was given */
    JOB_INTERRUPTED = 130
};

enum job_probe { JOB_PROBE_NONE, JOB_PROBE_ONCE, JOB_PROBE_PER_PROMPT, JOB_PROBE_PER_PAIR };

struct job_options {
    const char *candidate, *baseline; /* built trees */
    const char *const *goldens;
    size_t golden_count;
    const char *contract, *correctness_golden;
    const char *weights; /* NULL: QMTP_TARGET_DIR */
    const char *tag, *out;
    int64_t min_pairs, target_pairs, tokens;
    int64_t mtp_depth;          /* 0: none. Excludes candidate_spec */
    const char *candidate_spec; /* SpecConfig as JSON; NULL: serial */
    const char *baseline_spec;  /* likewise, must be serial */
    enum job_probe probe;
    const char *prompt, *prompt_sha256, *target_id; /* all or none */
    const char *write_gate_base;                    /* NULL: the baseline's tree is compared */
    const char *gates_producer;
    const char *const *resources; /* NAME=PATH, NULL-terminated; may be NULL */
    bool preflight_only, bootstrap, local_dev, no_sandbox, quiet;
};

/* Prints progress on stderr and the verdict on stdout. err: why it did not end with JOB_ACCEPTED.
 * results.json is written from the moment that pairs may be run: also for a rejected candidate, and
 * not for a failed baseline, machine or refusal. */
enum job_exit job_run(const struct job_options *o, struct error *err);

#endif
