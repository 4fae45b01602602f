/* The ranked run of a live-control track, end to end (contract-and-scoring.md section 3,
 * benchd-cli.md section 2; docs/ranked-run.md): `benchd iterate --mode official`, `benchd
 * official`.
 *
 *     contract, goldens, trees, calibration, sandbox   what fails here is no score, or a failed one
 *     pairs: control leg, candidate leg; null pairs    pairs.h, each leg between the quiet gates
 *     combination, replay of differing tokens          combine.h, token_replay.h
 *     correctness of the candidate                     after all timing
 *     seal, and if asked: signature, log               seal.h, evidence/
 */
#ifndef MLXFAST_JUDGE_RANKED_OFFICIAL_H
#define MLXFAST_JUDGE_RANKED_OFFICIAL_H

#include "base/error.h"
#include "judge/iterate.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A golden as the command line names it. */
struct official_golden {
    const char *path;
    const char *pin_sha256; /* NULL: no pin; else with its bytes */
    uint64_t pin_bytes;
    const char *prompt;       /* its name in the calibration; NULL: the golden's own */
    const char *control_path; /* the control leg's oracle; NULL: the same */
    const char *control_pin_sha256;
    uint64_t control_pin_bytes;
};

struct official_options {
    /* A participant's own rehearsal: the same pairs under a contract that may score nothing
     * officially, with the rules of local runs (window and runtime of the mode, a sandbox where
     * there can be one, no gate that refuses, base cases unless strict). */
    bool local;
    enum iterate_mode mode;       /* of a local one */
    bool strict, cool_gate;       /* likewise */
    const char *engine, *weights; /* of the submission: relative to the working folder, its root */
    const char *drafter;          /* block decoding: likewise */
    const char *contract;
    const struct official_golden *goldens;
    size_t golden_count;   /* 0: one is drawn from the contract's pool */
    const char *pool;      /* folder with the pool's goldens; NULL: none */
    const char *draw_file; /* where the drawn entry is named, for the organiser; NULL: nowhere */
    const char *baseline_workspace, *baseline_calibration; /* NULL: the environment's */
    const char *box;                                       /* RUNNER_NAME wins */
    const char *score_path;
    const char *const *resources;    /* NAME=PATH, NULL-terminated; may be NULL */
    const char *const *engine_trees; /* folders that a sandboxed engine may read; likewise */
    const char *candidate_spec;      /* SpecConfig as JSON; NULL: none. Excludes mtp_depth */
    int64_t mtp_depth;               /* 0: none */
    bool stored_baseline_given;      /* --baseline-*-spt: refused */
    bool no_sandbox;                 /* refused in a ranked run: SandboxDisabled */
    const char *signing_key, *log;   /* evidence/; NULL: MLXFAST_SIGNING_KEY, no log */
    bool quiet;
};

/* As iterate_run, and ITERATE_CALIBRATION (6: the organiser's tree or calibration),
 * ITERATE_DECLINED (7: the machine), which seal a failed score as 1 does: the score, its sidecar
 * and the integrity file, progress on stderr, a table on stdout. MLXFAST_BENCHMARK_SKIP_TIMED equal
 * to 1: correctness alone, a partial result. A contract with block_decode goes to
 * blocks/official.h. */
enum iterate_exit official_run(const struct official_options *o, struct error *err);

#endif
