/* What one block needs on the device, planned whole before anything is done: so that it is there
 * whole, in one allocation, or not at all; and what is there, for whoever needs the same. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_ORDER_H
#define MLXFAST_ENGINE_COMPUTE_CUDA_ORDER_H

#include "engine/compute/cuda/staging.h"

enum { ORDER_MOST_PIECES = 24 }; /* of a block: attention with four runs, a sparse ffn */

enum block_kind { BLOCK_EMBEDDING, BLOCK_ATTENTION, BLOCK_FFN, BLOCK_HEAD, BLOCK_CONTEXT };

struct order {
    struct cuda_weights *w;
    struct staging_piece pieces[ORDER_MOST_PIECES]; /* `to` is there after order_fetch */
    struct staging_source *sources[ORDER_MOST_PIECES];
    uint64_t key[ORDER_MOST_PIECES];
    struct holding *in[ORDER_MOST_PIECES]; /* NULL: is to be copied */
    int count;
    struct holding *own;
};

/* Matrices of one format and input, one after the other on the device. */
struct run {
    int piece; /* codes; then scales, then biases where the format has them */
    int out;   /* of all */
    int in;
    enum weight_format format;
};

/* False after an error of before. */
bool order_begin(struct cuda_weights *w, struct order *o);
void order_end(struct order *o); /* in any case; what was not entered is given back */
/* Notes CUDA-FAILED: weights that this backend cannot have. False. */
bool order_refuse(struct cuda_weights *w, const char *what);
bool order_check(struct cuda_weights *w, const struct weight_matrix *m);

/* Planning. A piece's number; rows that follow the last ones in memory are one source with them. */
int order_piece(struct order *o, enum staging_layout layout, int in, size_t row_bytes,
                size_t device_row_bytes, int sources);
void order_add_rows(struct order *o, int piece, const void *from, size_t rows);
int order_plain(struct order *o, const void *from, size_t rows, size_t row_bytes);
bool order_run(struct order *o, const struct weight_matrix *const *matrices, int count,
               struct run *out);
bool order_matrix(struct order *o, const struct weight_matrix *m, struct run *out);

/* Every piece gets its address, where it is already or in a new allocation, and is copied. `what`
 * is for messages. */
bool order_fetch(struct order *o, const char *what);
/* After that: where things are. `out` outputs of a run, the first of them number `from`; piece -1:
 * NULL. */
struct cuda_matrix order_bind_rows(const struct order *o, const struct run *r, int from, int out);
struct cuda_matrix order_bind(const struct order *o, const struct run *r);
const void *order_bind_plain(const struct order *o, int piece);
/* From here on the block is there; `block` (allocated, or NULL) is the list's. */
void order_enter(struct order *o, enum block_kind kind, const void *host, void *block);
/* By the owner of what is taken now. */
bool order_is_taken(const struct cuda_weights *w, enum block_kind kind, const void *host);

#endif
