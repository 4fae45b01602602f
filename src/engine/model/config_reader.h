/* Reading a config.json: typed values of one object, every fault reported as CONFIG-INVALID at its
 * path. Shared by the model families. */
#ifndef MLXFAST_ENGINE_MODEL_CONFIG_READER_H
#define MLXFAST_ENGINE_MODEL_CONFIG_READER_H

#include "base/error.h"
#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

struct config_reader {
    struct json_view view;
    struct error *err;
};

/* The JSON layer's names become CONFIG-INVALID. Returns false. */
bool config_renamed(struct error *err);
/* CONFIG-INVALID at the key, with its value. Returns false. */
bool config_refuse(const struct config_reader *r, const char *key, const char *why);
/* A key that is absent or null says nothing. */
bool config_given(const struct config_reader *r, const char *key);

bool config_int64(const struct config_reader *r, const char *key, int64_t min, int64_t max,
                  int64_t *out);
bool config_int(const struct config_reader *r, const char *key, int min, int max, int *out);
bool config_double(const struct config_reader *r, const char *key, double *out);
bool config_positive(const struct config_reader *r, const char *key, double *out); /* finite, > 0 */
bool config_bool(const struct config_reader *r, const char *key, bool *out);

#endif
