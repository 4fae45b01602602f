/* From the options of any ranked run (judge/ranked/official.h) to those of one that decodes in
 * blocks. */
#ifndef MLXFAST_JUDGE_BLOCKS_DISPATCH_H
#define MLXFAST_JUDGE_BLOCKS_DISPATCH_H

#include "judge/ranked/official.h"

#include <stdbool.h>

/* True: the contract declares block_decode, and *result is what its run came to. What has no place
 * in such a run is refused: several goldens, a control golden, a stored baseline or a calibration
 * file (the contract holds the calibration), a speculation of the serial protocol. False: the run
 * is not for this room, or the contract cannot be read; the caller goes on. */
bool blocks_dispatch(const struct official_options *o, enum iterate_exit *result,
                     struct error *err);

#endif
