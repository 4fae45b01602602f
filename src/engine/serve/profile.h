/* What the environment asks to be told about a run: MLXFAST_TRACE_KERNELS (alias
 * DARKBLOOM_TRACE_FUSION) and MLXFAST_PROFILE (docs/performance.md). */
#ifndef MLXFAST_ENGINE_SERVE_PROFILE_H
#define MLXFAST_ENGINE_SERVE_PROFILE_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/compute/meter.h"
#include "engine/compute/trace.h"

#include <stdbool.h>

/* Before a model is opened. The sink gets the traces when they are asked for; a profile is recorded
 * of whatever model is opened afterwards. Errors: those of file_check_target on the profile's path.
 */
bool profile_begin(trace_sink *sink, struct error *err);
/* After the last model is closed: writes the file, if one was asked for and a forward ran. */
bool profile_end(struct error *err);

/* A recorder's stretches as a Chrome trace: one JSON object. Thread 1 is the prefill chunk, thread
 * 2 the decode step; both begin at 0. */
void profile_write(const struct meter_recorder *r, struct buffer *out);

#endif
