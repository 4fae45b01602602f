/* Laguna (laguna.md): attention with per-head norm, rotary and softplus gate; dense or routed
 * experts. The family is `laguna_family` in plan.h; this header is for its own tests. */
#ifndef MLXFAST_ENGINE_MODEL_LAGUNA_H
#define MLXFAST_ENGINE_MODEL_LAGUNA_H

#include "engine/model/laguna_config.h"
#include "engine/model/rope.h"

struct rope_parameters laguna_rope_parameters(const struct laguna_rope *rope);

#endif
