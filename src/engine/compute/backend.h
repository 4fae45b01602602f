/* What a backend is: a function for each call of blocks.h, which says what each does. Every backend
 * has its own struct compute, kv_layer and tap_rows; the first member of each is the pointer to its
 * backend, by which blocks.c finds the function. */
#ifndef MLXFAST_ENGINE_COMPUTE_BACKEND_H
#define MLXFAST_ENGINE_COMPUTE_BACKEND_H

#include "engine/compute/blocks.h"
#include "engine/compute/meter.h"
#include "engine/compute/roofline.h"
#include "engine/compute/timeline.h"

struct compute_backend {
    const char *name;
    bool (*check)(const struct compute_options *options, struct error *err);
    size_t (*capabilities)(const int **out); /* NULL: none */
    /* NULL: it works in the machine's memory */
    bool (*device_memory)(const struct compute_options *options, uint64_t *available,
                          char source[96]);
    bool (*create)(const struct compute_options *options, const struct compute_shape *shape,
                   struct compute **out, struct error *err);
    bool (*scratch_bytes)(const struct compute_options *options, const struct compute_shape *shape,
                          uint64_t *out, struct error *err);
    bool (*create_beside)(struct compute *owner, const struct compute_shape *shape,
                          struct compute **out, struct error *err);
    void (*free)(struct compute *c);
    const char *(*instance_name)(const struct compute *c);
    const char *(*cpu_name)(const struct compute *c);
    const char *(*device_name)(const struct compute *c); /* NULL: the machine's processor */
    enum arithmetic (*arithmetic)(const struct compute *c);
    int (*threads)(const struct compute *c);

    uint64_t (*matrix_bytes)(enum weight_format format, int out, int in); /* NULL: 0 */
    /* NULL: nothing to prepare, record or wait for */
    void (*prepare_begin)(struct compute *c,
                          void (*progress)(void *context, uint64_t done, uint64_t total),
                          void *context, uint64_t total);
    bool (*prepare_end)(struct compute *c, struct error *err);
    bool (*prepare_embedding)(struct compute *c, const struct weight_matrix *table,
                              struct error *err);
    bool (*prepare_attention)(struct compute *c, const struct attention_block *b,
                              struct error *err);
    bool (*prepare_ffn)(struct compute *c, const struct ffn_block *b, struct error *err);
    bool (*prepare_head)(struct compute *c, const struct head_block *b, struct error *err);
    bool (*prepare_context)(struct compute *c, const struct context_block *b, struct error *err);
    uint64_t (*prepared_bytes)(const struct compute *c);
    bool (*begin)(struct compute *c, const struct compute_forward *f);
    void (*run)(struct compute *c);
    bool (*end)(struct compute *c, struct error *err);
    void (*picks)(struct compute *c, struct head_pick *out, int rows);
    void (*forget)(struct compute *c, const void *owner);
    bool (*read_logits)(struct compute *c, int row, float *out);
    unsigned (*kernels)(const struct compute *c);

    bool (*kv_new)(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                   struct kv_layer **out, struct error *err);
    void (*kv_free)(struct kv_layer *kv);
    size_t (*kv_bytes)(const struct kv_layer *kv);
    uint64_t (*kv_need)(enum activations a, int kv_heads, int head_dim, int64_t capacity);

    void (*embed)(struct compute *c, const struct weight_matrix *table, const int32_t *ids,
                  int rows);
    void (*attention)(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                      int64_t pos0, int rows);
    void (*ffn)(struct compute *c, const struct ffn_block *b, int rows);
    void (*head)(struct compute *c, const struct head_block *b, int first_row, int rows,
                 float *logits, struct head_pick *picks);

    bool (*taps_new)(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                     struct error *err);
    void (*taps_free)(struct tap_rows *t);
    size_t (*taps_bytes)(const struct tap_rows *t);
    void (*tap)(struct compute *c, struct tap_rows *t, int tap, int64_t pos0, int rows);
    void (*context)(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                    int64_t pos0, int rows);
    void (*append)(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                   int64_t pos0, int rows);
    void (*read_taps)(const struct tap_rows *t, int64_t position, float *out);
    void (*read_rows)(const struct compute *c, int first_row, int rows, float *out);

    void (*set_meter)(struct compute *c, struct compute_meter *m);
    struct compute_meter *(*get_meter)(const struct compute *c);
    double (*roofline_read)(struct compute *c, const void *data, size_t bytes);
    struct roofline_peak (*roofline_peak)(struct compute *c);
    void (*device_facts)(const struct compute *c, struct device_facts *out); /* NULL: none */
    double (*roofline_copy)(struct compute *c, size_t bytes);                /* NULL: none */
    size_t (*take_timeline)(struct compute *c, struct timeline_stamp **out); /* NULL: none */
};

extern const struct compute_backend cpu_backend;
extern const struct compute_backend cuda_backend; /* only in a build with MLXFAST_CUDA */

#endif
