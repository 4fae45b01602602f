/* The CUDA backend's insides: what its files share. Host side, C++; kernels' helpers are in *.cuh.
 *
 * One stream. A forward of up to CUDA_RECORD_ROWS rows is recorded once as a graph and replayed;
 * its kernels read the position and the ids from device memory (struct cuda_step), so that a
 * recording serves every position of its span (cuda_chunks). Between stages all activations are
 * bf16 in device memory, row-major in natural order; a kernel that multiplies brings its rows into
 * lanes order in shared memory.
 *
 * Lanes order of K inputs (numerics.md: lane l of 16 takes elements 32b+2l and 32b+2l+1 of block
 * b): so that a half-warp owns an output, each thread its lane, and every load is 16 bytes. bf16:
 * per output, groups of 4 blocks: [group][lane 16][block 4][2] bf16   (256 B a group) int8:  per
 * output, groups of 8 blocks: [group][lane 16][block 8][2] codes  (256 B a group) nvfp4: per
 * output, groups of 16 blocks: [group][lane 16][block 16] bytes   (256 B a group), a byte holding
 * the lane's two codes of a block, element 2l in its low half K is padded with zeros to whole
 * groups (CUDA_*_GROUP). A zero block leaves every sum as it is. nvfp4 scales: per output [half
 * 2][blocks] E4M3 bytes: half 0 is of lanes 0-7, half 1 of 8-15; blocks as in the padded K int8
 * scales, biases: per output [blocks] bf16 each; blocks as in the padded K */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_CUDA_H
#define MLXFAST_ENGINE_COMPUTE_CUDA_CUDA_H

extern "C" {
#include "base/error.h"
#include "engine/compute/backend.h"
}

#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_LANES = 16,
    CUDA_BLOCK = 32,       /* inputs of one step of a dot product */
    CUDA_BF16_GROUP = 128, /* inputs of one 16-byte load of a half-warp */
    CUDA_INT8_GROUP = 256,
    CUDA_NVFP4_GROUP = 512,
    CUDA_CHUNK = 256, /* attention: keys of a chunk, aligned to absolute positions */
    CUDA_RECORD_ROWS =
        16, /* forwards of more rows are not recorded; kernels for few rows end here */
    CUDA_MOST_TOP_K = 16,
    CUDA_MOST_EXPERTS = 512
};

/* ---- Device, errors, memory (device.cu) ---- */

/* The first error of an instance and its likes; every later call of the backend does nothing, until
 * one that was an allocation's has been told (cuda_say). */
struct cuda_fault {
    bool set;
    struct error error;
};
/* Notes a failed call (CUDA-FAILED, what and CUDA's own name and sentence;
 * cudaErrorMemoryAllocation is OUT-OF-MEMORY). True when e is cudaSuccess. */
bool cuda_ok(struct cuda_fault *fault, cudaError_t e, const char *what);

struct cuda_device {
    int index, major, minor, multiprocessors;
    size_t shared_most; /* bytes of dynamic shared memory that a block may have */
    size_t l2_bytes;
    char name[128];
    int driver, runtime; /* 1000 * major + 10 * minor */
};
/* The device that CUDA_VISIBLE_DEVICES leaves first. Errors: CUDA-NO-DEVICE (no driver, no device),
 * CUDA-DRIVER-TOO-OLD (12.4 at least: programmatic launches inside graphs), CUDA-ARCHITECTURE
 * (below 8.0), CUDA-FAILED. */
bool cuda_device_open(struct cuda_device *out, struct error *err);
size_t cuda_capabilities(const int **out);
bool cuda_device_memory(const struct compute_options *options, uint64_t *available,
                        char source[96]);

/* A piece of device memory, plain cudaMalloc, filled with 0xff when MLXFAST_CUDA_POISON is set.
 * OUT-OF-MEMORY names the bytes. */
bool cuda_memory_new(struct cuda_fault *fault, size_t bytes, const char *what, void **out);
void cuda_memory_free(void *p);

/* ---- Weights on the device (upload.cu) ---- */

struct cuda_matrix {
    enum weight_format format;
    int out, in;
    int padded; /* in, in whole groups of its format */
    const uint8_t *data, *scales, *biases;
    size_t row_bytes, scale_bytes; /* of one output: in data; in scales (and in biases) */
};
/* `count` matrices of one shape, one after the other: expert e at data + e * data_stride. */
struct cuda_experts {
    struct cuda_matrix first;
    int count;
    size_t data_stride, scale_stride;
};

struct cuda_attention {
    const struct attention_block *block; /* the sizes; its weights are the checkpoint's */
    /* q, k, v and gate: outputs one after the other; matrices that follow each other in one format
     * are one. */
    struct cuda_matrix project[4];
    int projects;
    struct cuda_matrix output;
    struct cuda_matrix
        append[2]; /* k and v alone: the same memory; one where they are in one format
                    */
    int appends;
    const uint16_t *input_norm, *q_norm, *k_norm; /* bf16 */
    const float *cosine, *sine;                   /* [positions, dim/2] */
    int rotary;                                   /* dim */
    float input_scale;
};
struct cuda_ffn {
    const struct ffn_block *block;
    const uint16_t *norm;
    struct cuda_matrix dense_gate, dense_up, dense_down; /* when !sparse */
    struct cuda_matrix router;
    const float *selection_bias;        /* [experts] */
    struct cuda_experts gate, up, down; /* [experts], and the shared one behind them when its shape
                                           is the same */
    bool shared_inside;                 /* expert number `experts` of the three is the shared one */
    struct cuda_matrix shared_gate, shared_up, shared_down; /* when it is not */
};
struct cuda_head {
    const struct head_block *block;
    const uint16_t *norm;
    struct cuda_matrix output;
};
struct cuda_context {
    const struct context_block *block;
    const uint16_t *tap_norm; /* [taps, hidden] */
    const uint16_t *hidden_norm;
    struct cuda_matrix fc;
};

/* All that has been copied, shared by the instances of a device: found again by the host's
 * pointers. Copies go through pinned buffers (staging.h) and are brought into lanes order by a
 * kernel on the device; a block has one allocation, without what is shared. */
struct cuda_weights;
bool cuda_weights_new(struct cuda_fault *fault, cudaStream_t stream, struct cuda_weights **out);
void cuda_weights_free(struct cuda_weights *w);
bool cuda_weights_take_embedding(struct cuda_weights *w, const struct weight_matrix *table);
bool cuda_weights_take_attention(struct cuda_weights *w, const struct attention_block *b);
bool cuda_weights_take_ffn(struct cuda_weights *w, const struct ffn_block *b);
bool cuda_weights_take_head(struct cuda_weights *w, const struct head_block *b);
bool cuda_weights_take_context(struct cuda_weights *w, const struct context_block *b);
/* NULL: not taken. The embedding table stays in natural order. */
const uint16_t *cuda_weights_embedding(const struct cuda_weights *w, const void *host);
const struct cuda_attention *cuda_weights_attention(const struct cuda_weights *w,
                                                    const struct attention_block *b);
const struct cuda_ffn *cuda_weights_ffn(const struct cuda_weights *w, const struct ffn_block *b);
const struct cuda_head *cuda_weights_head(const struct cuda_weights *w, const struct head_block *b);
const struct cuda_context *cuda_weights_context(const struct cuda_weights *w,
                                                const struct context_block *b);
uint64_t cuda_weights_bytes(const struct cuda_weights *w); /* on the device */
/* What is taken from now on is the owner's (at first NULL's), until it lets go of all of its own:
 * before the host's weights go, whose pointers may come again for others. Data that two owners
 * share stays while one of them has it. Recordings that use it are forgotten before. */
void cuda_weights_owner(struct cuda_weights *w, const void *owner);
void cuda_weights_release(struct cuda_weights *w, const void *owner);
/* Told bytes of the host's weights as they are copied, from this thread; `total` by
 * cuda_weights_finish. */
void cuda_weights_progress(struct cuda_weights *w,
                           void (*progress)(void *context, uint64_t done, uint64_t total),
                           void *context, uint64_t total);
/* After the last take, before the first forward: waits for the copies and gives back what they went
 * through. Without it they end by themselves before what is done on the stream after them. */
bool cuda_weights_finish(struct cuda_weights *w);
/* Bytes that a matrix takes there. */
uint64_t cuda_matrix_bytes(enum weight_format format, int out, int in);

/* ---- One instance (backend.cu) ---- */

/* What a forward's kernels read of where it is; in device memory, filled by the first kernel. */
struct cuda_step {
    int64_t pos0;
    int32_t rows;
};

/* How many chunks of keys a recording's full attention has room for: 2, 4, 8 .. doubling, at least
 * as many as pos0 + rows - 1 reaches. */
int cuda_chunks(int64_t pos0, int rows);

struct kv_layer {
    const struct compute_backend *backend;
    struct compute *owner;
    int kv_heads, head_dim;
    int64_t capacity;
    /* bf16 [kv_heads, capacity, head_dim_padded]: keys in lanes order (head_dim padded to
     * CUDA_BF16_GROUP: groups as a bf16 matrix row has), values in natural order, padded to 8. */
    uint16_t *keys, *values;
    int key_stride, value_stride; /* elements of one position */
    size_t bytes;
};

struct tap_rows {
    const struct compute_backend *backend;
    struct compute *owner;
    int64_t capacity;
    int taps, hidden;
    uint16_t *rows; /* bf16 [capacity, taps * hidden] */
};

/* How the kernels of a stage are launched. */
struct cuda_launch {
    cudaStream_t stream;
    struct cuda_fault *fault;
    const struct cuda_device *device;
    const struct cuda_step *step; /* device */
    bool overlap;      /* programmatic launches: kernels start before the last has ended */
    bool fast;         /* ARITHMETIC_FAST */
    unsigned *kernels; /* counts launches; never NULL */
};

/* ---- Stages. Each only launches kernels; errors go to l->fault. rows >= 1. ---- */

/* Fills the step and x (embed.cu). ids and pos0 are read from the host's pinned `from` by the
 * kernel, so that a replay sees new ones; row r's id that is -1 from drafted[r - 1], pinned too
 * (NULL: there is none). */
struct cuda_input {
    int64_t pos0;
    int32_t rows;
    int32_t ids[1]; /* [rows] */
};
void cuda_embed(const struct cuda_launch *l, const struct cuda_input *from, struct cuda_step *step,
                const uint16_t *table, int hidden, int rows, uint16_t *x,
                const struct head_pick *drafted);
/* Fills only the step. */
void cuda_set_step(const struct cuda_launch *l, const struct cuda_input *from,
                   struct cuda_step *step);

/* y[r] = round(W n(x[r])) for r < rows, n the RMS norm with the weights `norm`, or nothing when it
 * is NULL (linear.cu). add: y = round(y + round(..)). Any rows: beyond
 * CUDA_RECORD_ROWS tiles of rows; with l->fast tensor cores (fast.cu). */
struct cuda_linear {
    const struct cuda_matrix *w;
    const uint16_t *x;
    size_t x_stride; /* elements from row to row */
    const uint16_t *norm;
    float eps;
    int rows;
    uint16_t *y;
    size_t y_stride;
    bool add;
};
void cuda_linear(const struct cuda_launch *l, const struct cuda_linear *a);

/* The head: logits float32 [rows, vocab] (values are bf16), picks [rows], scratch of
 * cuda_head_scratch bytes (head.cu). */
void cuda_head_run(const struct cuda_launch *l, const struct cuda_head *h, const uint16_t *x,
                   int hidden, int rows, float *logits, struct head_pick *picks, void *scratch);
size_t cuda_head_scratch(int vocab, int rows);

/* From projections [rows, heads*head_dim + 2*kv_heads*head_dim + heads] (q, k, v, gate; before
 * their norms) to attention output [rows, heads*head_dim], gated, rounded (attention.cu): per-head
 * norms, rotary, keys and values into the ring, chunks, merge, gate. chunks as cuda_chunks gives.
 */
struct cuda_attend {
    const struct cuda_attention *w;
    struct kv_layer *kv;
    const uint16_t *projected;
    size_t projected_stride;
    int rows, chunks;
    uint16_t *out; /* [rows, heads*head_dim] */
    void *scratch; /* of cuda_attend_scratch bytes, zeroed once before its first use */
};
void cuda_attend(const struct cuda_launch *l, const struct cuda_attend *a);
size_t cuda_attend_scratch(int heads, int kv_heads, int head_dim, int rows, int chunks);
/* Keys and values only: projected is [rows, 2*kv_heads*head_dim] (k, v). */
void cuda_append(const struct cuda_launch *l, const struct cuda_attend *a);
/* Tensor cores, rows > CUDA_RECORD_ROWS, after the keys and values are in the ring (fast.cu). */
void cuda_attend_fast(const struct cuda_launch *l, const struct cuda_attend *a,
                      const uint16_t *queries);

/* x += ffn(norm(x)), dense or sparse (ffn.cu, experts.cu). */
struct cuda_ffn_run {
    const struct cuda_ffn *w;
    uint16_t *x; /* [rows, hidden] */
    int hidden, rows;
    void *scratch; /* cuda_ffn_scratch bytes, zeroed once before its first use */
};
void cuda_ffn_forward(const struct cuda_launch *l, const struct cuda_ffn_run *a);
size_t cuda_ffn_scratch(const struct compute_shape *shape, int rows);

/* Taps and context (taps.cu). */
void cuda_tap(const struct cuda_launch *l, const uint16_t *x, struct tap_rows *t, int tap,
              int rows);
/* x[r] = norm(fc(taps of step.pos0 + r, each normed)); scratch [rows, taps * hidden + hidden] bf16
 */
void cuda_context_run(const struct cuda_launch *l, const struct cuda_context *w,
                      const struct tap_rows *t, int rows, uint16_t *x, uint16_t *scratch);

#endif
