/* How a Laguna's weights are stored, as config.json says: NVFP4 for the experts, and entries of
 * single projections of attention that are affine INT8 (laguna.md section 7). */
#ifndef MLXFAST_ENGINE_MODEL_LAGUNA_QUANTIZATION_H
#define MLXFAST_ENGINE_MODEL_LAGUNA_QUANTIZATION_H

#include "engine/model/config_reader.h"
#include "engine/model/laguna_config.h"

/* "q_proj" .. "g_proj" */
extern const char *const laguna_projection_names[LAGUNA_PROJECTIONS];

/* Reads quantization and quantization_config, of which one may be absent and both must say the
 * same; sets the layers' int8 bits. The sizes and the layers are read before. Errors:
 * CONFIG-INVALID; QUANTIZATION-NOT-PERMITTED for a module or a format that is not permitted. */
bool laguna_quantization_read(const struct config_reader *r, struct laguna_config *c);

#endif
