/* One instance of the CUDA backend, as its own files see it: backend.cu makes and frees it, keys.cu
 * has what it keeps, forward.cu records and replays, stages.cu says what each block is made of. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_INSTANCE_H
#define MLXFAST_ENGINE_COMPUTE_CUDA_INSTANCE_H

#include "engine/compute/cuda/cuda.h"
#include "engine/compute/cuda/meter.h"

enum {
    RECORDINGS_MOST = 96, /* of an instance; the oldest gives way */
    LOGIT_ROWS = 64,      /* that are kept: a drafted block's, at most */
    KINDS = 4,            /* of forwards: each has an input of its own */
    BRANCHES = 4          /* of a recording, beside its stem */
};

/* What instances on one device share: the first one's, which is freed last. */
struct cuda_shared {
    struct cuda_fault fault;
    const void *untold; /* whose forward met the fault, where it could not tell of it */
    struct cuda_device device;
    cudaStream_t stream;
    struct cuda_weights *weights;
    enum arithmetic arithmetic;
    bool no_overlap, no_graphs; /* MLXFAST_CUDA_PLAIN: for debugging */
};

struct cuda_recording {
    const void *owner;
    int kind, rows, logit_rows, chunks;
    const struct head_pick *drafted;
    cudaGraphExec_t graph;
    unsigned kernels;
    uint64_t used;
};

enum cuda_mode { MODE_NONE, MODE_DIRECT, MODE_RECORD, MODE_REPLAYED };

struct compute {
    const struct compute_backend *backend;
    struct cuda_shared *shared;
    bool owns_shared;
    struct compute_shape shape;
    struct compute_meter *meter;
    struct cuda_meter *events;
    char name[192], kind[64];

    struct cuda_input *inputs[KINDS];   /* pinned */
    struct cuda_input *input;           /* of the forward that is under way */
    bool pending[KINDS];                /* its last forward was not waited for */
    cudaEvent_t ran[KINDS];             /* that forward has ended */
    cudaStream_t branch[BRANCHES];      /* what of a recording runs beside each other */
    cudaEvent_t branched[BRANCHES + 1]; /* has ended; the last: where they part from the stem */
    int branches;                       /* that are under way */
    struct head_pick *picks;            /* pinned [max(max_rows, LOGIT_ROWS)] */
    float *logits_row;                  /* pinned [vocab] */
    struct cuda_step *step;             /* device, all below too */
    uint16_t *x, *projected, *attended, *context_scratch;
    size_t projected_elements;
    float *logits; /* [LOGIT_ROWS, vocab] */
    void *head_scratch, *ffn_scratch, *attend_scratch;
    size_t attend_bytes;
    int attend_chunks; /* the most that any ring has asked for */

    enum cuda_mode mode;
    bool running;   /* the forward is on its way */
    int later_kind; /* of the last forward that was not waited for, though it gives picks */
    struct compute_forward forward;
    int chunks;
    unsigned kernels, last_kernels;
    struct cuda_recording recordings[RECORDINGS_MOST];
    uint64_t clock;
};

/* Tells the fault. An allocation that failed took nothing and left the device as it was: once it is
 * told to somebody, and the stream still works, others may go on. */
bool cuda_say(struct cuda_shared *s, struct error *err);
bool cuda_zeroed_new(struct compute *c, size_t bytes, const char *what, void **out);
uint64_t cuda_kv_need(enum activations a, int kv_heads, int head_dim, int64_t capacity);
void cuda_kv_free(struct kv_layer *kv);
bool cuda_kv_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                 struct kv_layer **out, struct error *err);
size_t cuda_kv_bytes(const struct kv_layer *kv);
void cuda_taps_free(struct tap_rows *t);
size_t cuda_taps_bytes(const struct tap_rows *t);
bool cuda_taps_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                   struct error *err);
void cuda_read_taps(const struct tap_rows *t, int64_t position, float *out);
void cuda_read_rows(const struct compute *c, int first_row, int rows, float *out);
struct cuda_launch cuda_launch_of(struct compute *c);
void cuda_forget_all(struct compute *c);
void cuda_forget(struct compute *c, const void *owner);
void cuda_recording_drop(struct cuda_recording *r);
bool cuda_begin(struct compute *c, const struct compute_forward *f);
void cuda_run(struct compute *c);
bool cuda_end(struct compute *c, struct error *err);
void cuda_picks(struct compute *c, struct head_pick *out, int rows);
/* As cuda_launch_of, for what may run beside other such: room for `elements` of its projections. A
 * launch by cuda_launch_of comes behind all of them. */
struct cuda_launch cuda_branch_of(struct compute *c, size_t elements, uint16_t **room);
const struct head_pick *cuda_drafted(const struct compute_forward *f);
bool cuda_read_logits(struct compute *c, int row, float *out);
bool cuda_alone_begin(struct compute *c, int64_t pos0, int rows);
void cuda_alone_end(struct compute *c, bool alone);
size_t cuda_timeline_take(struct compute *c, struct timeline_stamp **out);
void cuda_fill_input(struct compute *c, const int32_t *ids, int64_t pos0, int rows);
void cuda_block_embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids,
                      int rows);
void cuda_block_attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                          int64_t pos0, int rows);
void cuda_block_append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                       int64_t pos0, int rows);
void cuda_block_ffn(struct compute *c, const struct ffn_block *b, int rows);
void cuda_block_head(struct compute *c, const struct head_block *b, int first_row, int rows,
                     float *logits, struct head_pick *picks);
void cuda_block_tap(struct compute *c, struct tap_rows *t, int number, int64_t pos0, int rows);
void cuda_block_context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                        int64_t pos0, int rows);

#endif
