/* What the worker says of its memory, in the one way that every reply says it. */
#ifndef MLXFAST_ENGINE_SERVE_MEMORY_H
#define MLXFAST_ENGINE_SERVE_MEMORY_H

#include "engine/decode/session.h"
#include "wire/wire.h"

#include <stdint.h>

/* peak_ram_gb: the process's peak resident memory. */
void memory_report_peak(struct wire_response *out);
/* That and the three mlx_*_memory_bytes. Nothing is cached: keys, values and scratch are allocated
 * once at load and stay in use. weight_bytes: of everything loaded. */
void memory_report(const struct session *s, uint64_t weight_bytes, struct wire_response *out);

#endif
