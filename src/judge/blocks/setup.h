/* What a ranked run of block decoding stands on, checked before anything is measured: the contract
 * with its calibration, the two trees, the whole pool, the correctness golden, the sandboxes; and
 * the draw of the prompt. */
#ifndef MLXFAST_JUDGE_BLOCKS_SETUP_H
#define MLXFAST_JUDGE_BLOCKS_SETUP_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "judge/blocks/official.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/dflash_golden.h"
#include "judge/digest.h"
#include "judge/fidelity.h"
#include "judge/golden.h"
#include "judge/pool.h"
#include "judge/ranked/roots.h"
#include "judge/sandbox.h"
#include "judge/semantic.h"

#include <stdbool.h>
#include <stddef.h>

struct blocks_setup {
    const struct blocks_official_options *o;
    struct arena arena;
    struct contract *contract;
    struct fidelity_limits limits;
    double run_ceiling_seconds;
    const char *box;         /* this machine's name */
    const char *draw_record; /* path */
    struct leg_roots baseline;
    struct golden *golden; /* of correctness */
    struct semantic_judge semantic;
    struct dflash_golden **pool;        /* [contract->pool_count], by index */
    const struct dflash_golden *prompt; /* the one that was drawn; NULL before */

    struct client_options candidate, control, reference;
    struct sandbox_plan candidate_sandbox, baseline_sandbox;
    bool own_reference; /* the baseline's engine is the candidate's, byte for byte */
    struct tree_digest weights, drafter; /* the candidate's; the organiser's */
    struct {
        char weights[SHA256_HEX], engine[SHA256_HEX], drafter[SHA256_HEX];
        char baseline_weights[SHA256_HEX], baseline_engine[SHA256_HEX];
    } stamps;
};

/* Everything that is the organiser's. What fails here is no failure of the submission, and nothing
 * is sealed: the contract's refusals (official scoring, block_decode, fidelity, floor, window,
 * model), BASELINE-CALIBRATION-MISSING, BASELINE-BOX-UNRESOLVED and
 * BASELINE-CALIBRATION-BOX-MISMATCH, those of roots.h, POOL-INVALID and the golden's, USAGE,
 * LEG-SERVE-INHERITED-SOCKET, the sandbox's. s->o is set. */
bool blocks_setup_open(struct blocks_setup *s, struct error *err);
/* Whether an error of it is of the calibration: exit 6. */
bool blocks_setup_is_calibration(const struct error *err);
/* What is the submission's: its engine and weights, and no golden among them. */
bool blocks_setup_prepare(struct blocks_setup *s, struct error *err);
/* Draws the prompt and writes the private record (mode 0600): which entry, and of which contract.
 */
bool blocks_setup_draw(struct blocks_setup *s, pool_random *random, void *context,
                       struct error *err);
/* Nothing was changed while the engines ran; the organiser's files, the submission's. */
bool blocks_setup_check_baseline(const struct blocks_setup *s, struct error *err);
bool blocks_setup_check_submission(const struct blocks_setup *s, struct error *err);
void blocks_setup_close(struct blocks_setup *s);

#endif
