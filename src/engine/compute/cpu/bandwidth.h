/* Reading memory as fast as it goes. */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_BANDWIDTH_H
#define MLXFAST_ENGINE_COMPUTE_CPU_BANDWIDTH_H

#include "engine/compute/cpu/pool.h"

#include <stddef.h>

/* Seconds of one pass over data with so many of the pool's threads, each with its own part of whole
 * pieces of 256 bytes. */
double bandwidth_pass(struct pool *p, int threads, const void *data, size_t bytes);

#endif
