/* From an opened checkpoint to weights that are in memory, by the start-up memory profile. */
#ifndef MLXFAST_ENGINE_MODEL_WEIGHTS_H
#define MLXFAST_ENGINE_MODEL_WEIGHTS_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/compute/blocks.h"
#include "engine/memory/startup.h"

/* Sets what the model takes against what the backend's memory leaves: the device's, where it has
 * one, and request->destination hears of it; else the machine's. n->weights is filled here. Before
 * anything is read. Errors: MEMORY-INSUFFICIENT, badValue. */
bool weights_plan(const struct checkpoint *c, const struct compute_options *o,
                  const struct memory_request *request, const struct memory_need *n,
                  struct memory_plan *out, struct error *err);
/* Do they go into a device's memory? */
bool weights_on_device(const struct compute_options *o);

/* Full: copies the tensors (pack.h) with so many threads (0: one per core). Low: asks for the
 * files' pages, if all fit. For a device: nothing, compute_prepare_* copy them from the files'
 * pages. Before the tensors are bound. Errors: INTERRUPTED, OUT-OF-MEMORY. */
bool weights_load(struct checkpoint *c, const struct memory_request *request,
                  const struct memory_plan *plan, int threads, struct error *err);
/* After they were copied to a device: their pages are no longer counted as this process's. They
 * can be read as before. */
void weights_let_go(const struct checkpoint *c);

#endif
