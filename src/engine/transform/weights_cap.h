/* How many bytes a folder of weights may have: the track's limit, or what a person says. */
#ifndef MLXFAST_ENGINE_TRANSFORM_WEIGHTS_CAP_H
#define MLXFAST_ENGINE_TRANSFORM_WEIGHTS_CAP_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* text: a number of bytes, or 0, none, unlimited; NULL: MLXFAST_MAX_WEIGHTS_BYTES says it, where it
 * is unset or empty 25 GiB. *out is UINT64_MAX where there is no limit. Error USAGE. */
bool weights_cap_read(const char *text, uint64_t *out, struct error *err);
/* Error WEIGHTS-TOO-LARGE, naming the folder. */
bool weights_cap_check(uint64_t cap, uint64_t bytes, const char *folder, struct error *err);

#endif
