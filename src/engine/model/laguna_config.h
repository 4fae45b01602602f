/* The configuration of a Laguna model, read from config.json by strict rules (laguna.md section 2).
 *
 * Any self-consistent configuration is accepted: sizes, head lists, layer kinds, window, experts.
 * Unknown keys are ignored, since real files carry many; a known key of the wrong type, or one that
 * asks for something that the model code does not do, is refused by field and value. Every size is
 * bounded (2^20 at most) and every product that the inventory needs is checked, so that the code
 * after this works with plain ints. Error CONFIG-INVALID throughout, but for
 * QUANTIZATION-NOT-PERMITTED (a format of weights that the model may not have). */
#ifndef MLXFAST_ENGINE_MODEL_LAGUNA_CONFIG_H
#define MLXFAST_ENGINE_MODEL_LAGUNA_CONFIG_H

#include "base/arena.h"
#include "base/error.h"
#include "engine/checkpoint/inventory.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { LAGUNA_MAX_SIZE = 1 << 20, LAGUNA_MAX_LAYERS = 4096, LAGUNA_MAX_EOS = 16 };

enum laguna_rope_type { LAGUNA_ROPE_DEFAULT, LAGUNA_ROPE_YARN };

/* Rotary parameters of one kind of layer. The yarn members are meaningful for yarn only. */
struct laguna_rope {
    enum laguna_rope_type type;
    double theta;
    double partial_rotary_factor; /* 1 when absent */
    int dim;                      /* rotary dimensions: head_dim * partial_rotary_factor, even */
    double factor;
    double beta_fast, beta_slow; /* 32 and 1 when absent */
    int64_t original_max_positions;
    bool has_attention_factor;
    double attention_factor; /* as in the file; 1 when absent: ask has_attention_factor */
};

enum laguna_attention { LAGUNA_FULL_ATTENTION, LAGUNA_SLIDING_ATTENTION };

/* The linear layers of attention that may be stored as affine INT8. */
enum laguna_projection { LAGUNA_Q, LAGUNA_K, LAGUNA_V, LAGUNA_O, LAGUNA_G, LAGUNA_PROJECTIONS };

struct laguna_layer {
    enum laguna_attention attention;
    int heads;     /* query heads, a multiple of kv_heads */
    bool sparse;   /* routed experts (and the shared one), else the dense MLP */
    unsigned int8; /* bit p: projection p is affine INT8 in groups of 32, else bf16 */
};

struct laguna_config {
    int vocab, hidden, layer_count;
    int head_dim, kv_heads;
    int sliding_window; /* keys a sliding layer sees, itself included; 0: no sliding layer */
    int dense_width;    /* intermediate_size */
    /* experts; all 0 when no layer is sparse */
    int experts, top_k, expert_width;
    int shared_width; /* 0: no shared expert */
    bool normalize_top_k;
    double routed_scale;
    double eps;
    int64_t max_positions;
    struct laguna_rope rope[2];  /* by enum laguna_attention; a kind that no layer uses has dim 0 */
    struct laguna_layer *layers; /* [layer_count], in the arena */
    int32_t bos, pad;            /* -1: none */
    int32_t eos[LAGUNA_MAX_EOS]; /* the stop set, each once, in file order */
    int eos_count;
};

/* config: the parsed config.json; file: its name for messages. Lists are put into the arena. */
bool laguna_config_parse(struct arena *a, const json_t *config, const char *file,
                         struct laguna_config *out, struct error *err);

/* Adds the eos_token_id of <folder>/generation_config.json to the stop set; no such file is fine.
 */
bool laguna_config_read_generation(const char *folder, struct laguna_config *c, struct error *err);

/* Appends every tensor that a checkpoint of this configuration has (laguna.md section 3). */
void laguna_config_inventory(const struct laguna_config *c, struct inventory *inventory);

/* outputs and inputs of a projection */
void laguna_projection_shape(const struct laguna_config *c, int layer, enum laguna_projection p,
                             int *out, int *in);

/* Weight bytes that decoding one token reads: all of the model but the embedding table, of which
 * one row is read, and the experts that are not chosen. */
uint64_t laguna_config_bytes_per_token(const struct laguna_config *c);

/* True when config.json is exactly that of Laguna XS 2.1 NVFP4, every key of laguna.md section 2
 * and the absent ones included. Error CONFIG-PIN-MISMATCH names the first field that differs. */
bool laguna_config_pin_xs21(const json_t *config, const char *file, struct error *err);

#endif
