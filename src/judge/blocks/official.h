/* `benchd iterate --mode official` on a track whose contract declares block_decode: the ranked run
 * of block decoding, end to end (dflash-track.md sections 2, 3, 10 and 11; docs/ranked-blocks.md).
 *
 * Contract, calibration, trees and the whole pool are checked; a prompt is drawn; the correctness
 * golden is walked; then serial control legs of the baseline tree and block legs of the
 * submission's are timed in pairs, last. Every timed leg is replayed by the baseline's engine. */
#ifndef MLXFAST_JUDGE_BLOCKS_OFFICIAL_H
#define MLXFAST_JUDGE_BLOCKS_OFFICIAL_H

#include "base/error.h"
#include "judge/contract.h"
#include "judge/iterate.h"

#include <stdbool.h>
#include <stdint.h>

struct blocks_official_options {
    const char *engine, *weights;   /* relative to the submission's root, the working folder */
    const char *baseline_workspace; /* the organiser's tree, with the same two below it; NULL:
                                       MLXFAST_BASELINE_WORKSPACE */
    const char *drafter;            /* folder, the organiser's: every leg has the same */
    const char *contract;
    const char *golden;        /* of correctness: walked before anything is timed */
    const char *golden_sha256; /* NULL: no pin; else with golden_bytes */
    uint64_t golden_bytes;
    const char *pool_folder; /* where the pool's files lie, by the last part of their paths */
    const char *draw_record; /* private file, replaced: which prompt was drawn. NULL:
                                prompt-draw.json in MLXFAST_PRIVATE_DIR */
    const char *box;         /* this machine's name: the calibration's must be the same */
    const char *score_path;
    const char *signing_key, *log;   /* evidence/; NULL: MLXFAST_SIGNING_KEY, MLXFAST_SIGNING_LOG */
    const char *const *resources;    /* NAME=PATH for every worker, NULL-terminated; may be NULL */
    const char *const *engine_trees; /* folders that the sandboxed engines may read; relative ones
                                        are found in the baseline tree for its legs. May be NULL */
    bool no_sandbox;                 /* SandboxDisabled */
    bool quiet;                      /* no progress on stderr, no table on stdout */
};

/* Whether a contract is for this run rather than for pairs of serial legs. */
bool blocks_official_is_for(const struct contract *c);

/* ITERATE_PASSED; ITERATE_NOT_PASSED (the submission failed: a failed score is sealed, its error is
 * a published category); ITERATE_CALIBRATION (6: no calibration of this machine, a control leg that
 * failed or was never as fast as it) and ITERATE_DECLINED (7: too few pairs were measured well):
 * neither is a failure of the participant. ITERATE_REFUSED, ITERATE_INTERRUPTED: nothing is sealed.
 * err holds the one line to print when the result is not ITERATE_PASSED; it is for the organiser.
 */
enum iterate_exit blocks_official_run(const struct blocks_official_options *o, struct error *err);

#endif
