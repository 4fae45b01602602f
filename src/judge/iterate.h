/* One local run of one leg, end to end: read the contract and the golden, start the engine, time
 * it, check it, seal what came of it (benchd-cli.md section 2). */
#ifndef MLXFAST_JUDGE_ITERATE_H
#define MLXFAST_JUDGE_ITERATE_H

#include "base/error.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum iterate_mode { ITERATE_LOCAL_ITERATE, ITERATE_LOCAL_SUBMIT };

struct iterate_options {
    const char *engine, *weights, *golden, *contract;
    const char *drafter;       /* folder, for the engine's --drafter; NULL: none */
    const char *golden_sha256; /* NULL: no pin; else with golden_bytes */
    uint64_t golden_bytes;
    enum iterate_mode mode;
    const char *score_path;
    bool strict;
    const char *const *resources; /* NAME=PATH, NULL-terminated; may be NULL */
    const char *candidate_spec;   /* SpecConfig as JSON; NULL: none. Excludes mtp_depth */
    int64_t mtp_depth;            /* 0: none */
    bool stored_baseline_given;   /* --baseline-*-spt: refused or of no use locally */
    bool cool_gate;
    bool no_sandbox;
    const char *const *engine_trees; /* folders that a sandboxed engine may read; may be NULL */
    bool quiet;
};

/* The program's exit status. */
enum iterate_exit {
    ITERATE_PASSED = 0,
    ITERATE_NOT_PASSED = 1, /* a failed score file was written where possible */
    ITERATE_REFUSED = 2,    /* usage or an unusable contract: no score file */
    /* Ranked runs; neither is a failure of the participant. */
    ITERATE_CALIBRATION = 6, /* the calibration or the control leg */
    ITERATE_DECLINED = 7,    /* the machine did not allow a valid measurement */
    ITERATE_INTERRUPTED = 130
};
/* Writes the score, its sidecar and the integrity file; shows progress on stderr and a table on
 * stdout. err holds the one line to print when the result is not ITERATE_PASSED. */
enum iterate_exit iterate_run(const struct iterate_options *o, struct error *err);

#endif
