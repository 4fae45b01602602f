/* The configuration of a DFlash drafter, read from its config.json by strict rules (dflash.md
 * section 1). Any consistent sizes are accepted; unknown keys are ignored; a known key that asks
 * for something else than the forward of section 3 is refused by field and value (CONFIG-INVALID).
 */
#ifndef MLXFAST_ENGINE_MODEL_DFLASH_CONFIG_H
#define MLXFAST_ENGINE_MODEL_DFLASH_CONFIG_H

#include "base/arena.h"
#include "base/error.h"
#include "engine/checkpoint/inventory.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    DFLASH_MAX_SIZE = 1 << 20,
    DFLASH_MAX_LAYERS = 256,
    DFLASH_MAX_TAPS = 64,
    DFLASH_MAX_BLOCK = 64
};

struct dflash_config {
    int vocab, hidden, layer_count, width; /* width: of the MLP */
    int heads, kv_heads, head_dim;
    int window; /* keys a row sees, itself included */
    double eps, theta;
    int64_t max_positions;
    int block; /* rows of one draft at most: the bonus and block - 1 masks */
    int32_t mask;
    int target_layers;
    int tap_count;
    int taps[DFLASH_MAX_TAPS]; /* zero-based layers of the target, in the order that fc takes */
};

/* Where q, k and v are one tensor (as published) or three (repacked). */
enum dflash_layout { DFLASH_REPACKED, DFLASH_FUSED };

/* What the drafter must agree with. */
struct dflash_target_sizes {
    int vocab, hidden, layers;
};

/* config: the parsed config.json; file: its name for messages. */
bool dflash_config_parse(struct arena *a, const json_t *config, const char *file,
                         struct dflash_config *out, struct error *err);
/* CONFIG-INVALID at the first size that is not the target's. */
bool dflash_config_match(const struct dflash_config *c, const struct dflash_target_sizes *target,
                         const char *file, struct error *err);
/* Appends every tensor of a drafter of this configuration (dflash.md section 2). */
void dflash_config_inventory(const struct dflash_config *c, enum dflash_layout layout,
                             struct inventory *inventory);

#endif
