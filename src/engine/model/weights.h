/* From an opened checkpoint to weights that are in memory, by the start-up memory profile. */
#ifndef MLXFAST_ENGINE_MODEL_WEIGHTS_H
#define MLXFAST_ENGINE_MODEL_WEIGHTS_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/memory/startup.h"

/* Full: copies the tensors (pack.h) with so many threads (0: one per core). Low: asks for the
 * files' pages, if all fit. Before the tensors are bound. Errors: INTERRUPTED, OUT-OF-MEMORY. */
bool weights_load(struct checkpoint *c, const struct memory_request *request,
                  const struct memory_plan *plan, int threads, struct error *err);

#endif
