/* Logits of every position, written to a file, so that anyone can check the engine from outside. */
#ifndef MLXFAST_ENGINE_SERVE_LOGITS_H
#define MLXFAST_ENGINE_SERVE_LOGITS_H

#include "base/error.h"
#include "engine/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Writes little-endian float32 [count, vocab] to path, whole or not at all, evaluated max_rows of
 * the model at a time. on_progress may be NULL. Errors: IO, INTERRUPTED, and the model's. */
bool logits_write(struct model *m, const int64_t *tokens, size_t count, const char *path,
                  void (*on_progress)(void *context, size_t done), void *context,
                  struct error *err);

#endif
