/* A plan: a model as the list of blocks that one forward runs, made once at load by its family and
 * then immutable. model.c runs any plan; a family only makes one. */
#ifndef MLXFAST_ENGINE_MODEL_PLAN_H
#define MLXFAST_ENGINE_MODEL_PLAN_H

#include "engine/checkpoint/checkpoint.h"
#include "engine/compute/blocks.h"
#include "engine/model/model.h"

#include <stddef.h>

/* Exactly one of the blocks is set. */
struct plan_block {
    const struct attention_block *attention;
    const struct ffn_block *ffn;
    bool ends_layer; /* the stream after it is the layer's output, which a drafter may tap */
};

struct model_plan {
    struct weight_matrix embedding; /* bf16 [vocab, hidden] */
    struct plan_block *blocks;
    size_t block_count;
    int attention_count; /* blocks that have a KV layer */
    struct head_block head;
    struct compute_shape shape; /* max_rows is filled by model.c */
    struct model_info info;     /* the family fills all but context and max_rows */
};

/* What running the model will take, known from its config alone. */
struct model_needs {
    struct compute_shape shape; /* without max_rows */
    uint64_t bytes_per_token;
    const struct kv_shape {
        int kv_heads, head_dim, window; /* window 0: all positions */
    } * kv;                             /* [attention_count] */
    int attention_count;
    uint64_t table_bytes; /* of one position's entries in the rotary tables */
};

/* A family: which model_type strings it claims and how it makes its plan. */
struct model_family {
    const char *name;
    const char *model_types[4]; /* NULL-terminated */
    /* Reads the config and checks the inventory; no tensor data. Sets *max_context and what it will
     * need at bind time in the arena. */
    bool (*check)(struct arena *arena, const struct checkpoint *checkpoint, void **family_state,
                  int64_t *max_context, struct error *err);
    /* The same facts as the plan will have, before the weights are bound. */
    void (*needs)(struct arena *arena, const void *family_state, struct model_needs *out);
    /* Binds the weights and makes the tables. options have context and max_rows resolved. */
    bool (*bind)(struct arena *arena, const struct checkpoint *checkpoint, void *family_state,
                 const struct model_options *options, struct model_plan *plan, struct error *err);
};

extern const struct model_family laguna_family;

/* NULL when no family claims the string. */
const struct model_family *model_family_find(const char *model_type);

#endif
