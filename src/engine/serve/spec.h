/* Which decoder serves a SpecConfig (engine-protocol.md section 5): every key is checked, nothing
 * is substituted. */
#ifndef MLXFAST_ENGINE_SERVE_SPEC_H
#define MLXFAST_ENGINE_SERVE_SPEC_H

#include "base/error.h"
#include "engine/serve/manifest.h"
#include "engine/serve/served_drafter.h"
#include "wire/wire.h"

#include <stdbool.h>

/* The modes of the manifest whose drafter is loaded, in its order; modes holds decoder_count. */
size_t spec_loaded_modes(const struct runner_manifest *m, const struct served_drafter *drafter,
                         const char **modes);

/* *width: rows of each round, 1 for serial and for an absent spec. effective is what the reply
 * echoes; it is released with the reply. Errors: DECODER-NOT-LOADED, SPEC-INVALID, DEPTH-MISSING,
 * DEPTH-INVALID, DRAFTER-MISMATCH. */
bool spec_resolve(const struct wire_spec *spec, const struct runner_manifest *m,
                  const struct served_drafter *drafter, struct wire_spec *effective, int *width,
                  struct error *err);

#endif
