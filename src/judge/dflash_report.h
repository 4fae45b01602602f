/* What a leg came to, as one JSON object (dflash-track.md section 9). */
#ifndef MLXFAST_JUDGE_DFLASH_REPORT_H
#define MLXFAST_JUDGE_DFLASH_REPORT_H

#include "base/buffer.h"
#include "judge/block_run.h"
#include "judge/fidelity.h"

#include <stdbool.h>
#include <stdint.h>

struct dflash_leg {
    const char *track_id;
    int64_t tokens;
    int block_size;
    bool own_reference; /* the reference's program is the candidate's, byte for byte */
    const char *golden_sha256, *weights_sha256, *drafter_sha256; /* of what ran */
    bool widened; /* a tolerance, by a flag: the deltas are listed */
    const struct fidelity_limits *limits;
    double stall_factor;
};

/* A leg that holds. The text ends with a newline. */
void dflash_report(const struct dflash_leg *leg, const struct block_run_result *r,
                   const struct fidelity_judgement *j, struct buffer *out);
/* A leg that failed under this name: no time, no count of the run. */
void dflash_report_failure(const struct dflash_leg *leg, const char *error, struct buffer *out);

#endif
