/* Blocks: what a model is written against, and what a backend (cpu, cuda) implements whole.
 *
 * The backend holds the residual stream x: R rows of `hidden` values at absolute positions
 * pos0 .. pos0+R-1 (1 <= R <= max_rows). Each block reads and updates it in place. One arithmetic
 * is law (numerics.md): a row's result is the same bits for any R, any number of threads, any
 * instruction set. Nothing here allocates after compute_new and kv_layer_new.
 *
 * Weights stay where the checkpoint has them (mapped, possibly unaligned); a backend with memory of
 * its own copies them, and may repack them, at compute_prepare_* time, values unchanged. */
#ifndef MLXFAST_ENGINE_COMPUTE_BLOCKS_H
#define MLXFAST_ENGINE_COMPUTE_BLOCKS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum activations {
    ACTIVATIONS_BF16, /* the model's arithmetic: rounded to bf16 where laguna.md section 8 says */
    ACTIVATIONS_F32   /* no rounding to bf16 anywhere: for comparison with float32 oracles */
};

enum weight_format { WEIGHT_BF16, WEIGHT_NVFP4, WEIGHT_INT8_AFFINE32 };

/* A linear layer y = x W^T, W is [out, in], row-major. */
struct weight_matrix {
    enum weight_format format;
    int out, in;
    const void *data;      /* bf16: uint16 [out, in]; nvfp4: packed codes, uint32 [out, in/8]; int8:
                              codes [out, in], in a multiple of 32 */
    const uint8_t *scales; /* nvfp4: E4M3 [out, in/16]; int8: bf16 [out, in/32] */
    const uint8_t *biases; /* int8: bf16 [out, in/32]; w = scale * code + bias */
};

/* Rotary table for one kind of layer. dim rotary dimensions (even, <= head_dim), pairs
 * (i, i + dim/2). cosine and sine are [positions, dim/2] float32. input_scale multiplies the rotary
 * dimensions of q and k, rounded to bf16, before rotation (the "derived" YaRN magnitude); 1 = none.
 */
struct rope_table {
    int dim;
    int64_t positions;
    const float *cosine, *sine;
    float input_scale;
};

struct attention_block {
    int heads, kv_heads, head_dim;
    int window; /* keys p-window+1 .. p; 0 = full */
    float eps;
    const uint16_t *input_norm;      /* bf16 [hidden] */
    const uint16_t *q_norm, *k_norm; /* bf16 [head_dim] */
    struct weight_matrix q, k, v,
        o;                     /* q: [heads*head_dim, hidden] ... o: [hidden, heads*head_dim] */
    struct weight_matrix gate; /* [heads, hidden]: softplus gate per head */
    const struct rope_table *rope;
};

struct mlp_weights { /* down( silu(gate(m)) * up(m) ) */
    struct weight_matrix gate, up, down;
};

struct ffn_block {
    float eps;
    const uint16_t *norm; /* bf16 [hidden]: post-attention norm */
    bool sparse;
    struct mlp_weights dense; /* when !sparse */
    /* when sparse */
    int experts, top_k;
    bool normalize_top_k;
    float routed_scale;
    struct weight_matrix router;      /* bf16 [experts, hidden] */
    const float *selection_bias;      /* [experts], used for selection only; may be unaligned */
    const struct mlp_weights *expert; /* [experts] */
    bool has_shared;
    struct mlp_weights shared;
};

struct head_block {
    float eps;
    const uint16_t *norm;        /* bf16 [hidden] */
    struct weight_matrix output; /* [vocab, hidden] */
};

/* How sums are taken. Strict: the bits of numerics.md, for any number of rows. Fast: where a
 * backend has quicker ways for many rows (tensor cores in prefill), it takes them; deterministic,
 * and its drift is measured (docs/cuda.md). The CPU backend knows no other arithmetic than the
 * strict one. */
enum arithmetic { ARITHMETIC_STRICT, ARITHMETIC_FAST };

struct compute_options {
    const char *backend; /* "cpu", "cuda"; NULL: cpu */
    enum arithmetic arithmetic;
    int threads;     /* 0: one per available core */
    const char *cpu; /* "portable", "avx2", "avx512", "neon"; NULL: MLXFAST_CPU, else the best */
    enum activations activations;
    bool
        small_pages; /* ordinary pages, taken as they are touched: slower, never more than needed */
};

/* The largest sizes the blocks will have: scratch is allocated once from them. */
struct compute_shape {
    int max_rows, hidden, vocab;
    int max_heads, max_kv_heads, head_dim;
    int max_ffn_width; /* dense, shared and expert widths */
    int max_experts, max_top_k;
    int max_expert_width;  /* routed and shared experts; 0: max_ffn_width */
    int max_context_width; /* inputs of a context block's fc; 0: no context block */
    /* Positions of the longest kv_layer, for compute_scratch_bytes; 0: no more than max_rows. */
    int64_t max_positions;
};

/* What a block drafter makes of its target's hidden rows (dflash.md section 3): each tap normed by
 * its own weights, side by side through fc, normed again. */
struct context_block {
    float eps;
    int taps;
    const uint16_t *const *tap_norm; /* [taps] bf16 [hidden] */
    struct weight_matrix fc;         /* [hidden, taps * hidden] */
    const uint16_t *hidden_norm;     /* bf16 [hidden] */
};

struct compute;  /* a backend instance: threads, scratch, the stream x */
struct kv_layer; /* keys and values of one layer; slot of position p is p % capacity */
struct tap_rows; /* stream rows kept after some layers; the row of position p is p % capacity */
struct head_pick;

/* Is the backend there, and can this machine run it? Nothing is loaded yet. Errors:
 * BACKEND-UNKNOWN, BACKEND-NOT-BUILT, ACTIVATIONS-UNSUPPORTED, CUDA-NO-DEVICE, CUDA-DRIVER-TOO-OLD,
 * CUDA-ARCHITECTURE, CUDA-FAILED. */
bool compute_check(const struct compute_options *options, struct error *err);
/* GPUs that a backend holds code for: compute capabilities, ten times (90 is 9.0), ascending; the
 * last one's runs on all later ones too. 0: there is none in this build. */
size_t compute_capabilities(const char *backend, const int **out);
/* The memory that a backend keeps weights, keys and values in, where it is not the machine's:
 * false, and nothing written, for one that works in the machine's own. */
bool compute_device_memory(const struct compute_options *options, uint64_t *available,
                           char source[96]);
/* Bytes that a matrix takes there; 0: nothing, it is read where the checkpoint has it. */
uint64_t compute_matrix_bytes(const struct compute_options *options, enum weight_format format,
                              int out, int in);

/* Errors: those of compute_check, CPU-UNSUPPORTED (an instruction set that this machine lacks or an
 * unknown name), OUT-OF-MEMORY. */
bool compute_new(const struct compute_options *options, const struct compute_shape *shape,
                 struct compute **out, struct error *err);
/* The bytes of scratch that compute_new would take. */
bool compute_scratch_bytes(const struct compute_options *options, const struct compute_shape *shape,
                           uint64_t *out, struct error *err);
/* An instance of other sizes that shares the threads of `owner`, its instruction set and its
 * activations: only one of them works at a time, and the owner is freed last. */
bool compute_new_beside(struct compute *owner, const struct compute_shape *shape,
                        struct compute **out, struct error *err);
void compute_free(struct compute *c);
const char *compute_name(const struct compute *c); /* "cpu avx512, 2 threads" */
/* What the work runs on: "avx512"; "sm_90, strict". */
const char *compute_cpu_name(const struct compute *c);
int compute_threads(const struct compute *c);
const char *compute_backend_name(const struct compute *c); /* "cpu" */
/* "NVIDIA H200"; NULL: the machine's processor. */
const char *compute_device_name(const struct compute *c);
enum arithmetic compute_arithmetic(const struct compute *c);

/* Each block that will run, and the embedding table, once, after compute_new and before the first
 * forward: a backend with memory of its own takes its copy here (of data that it has not got yet:
 * a table that two instances share is copied once). Blocks and what they point to outlive the
 * instance. Errors: OUT-OF-MEMORY, CUDA-FAILED, INTERRUPTED. */
struct attention_block;
struct ffn_block;
struct head_block;
struct context_block;
/* Around them. progress (or NULL) hears how many of `total` bytes of the checkpoint were copied. */
void compute_prepare_begin(struct compute *c,
                           void (*progress)(void *context, uint64_t done, uint64_t total),
                           void *context, uint64_t total);
bool compute_prepare_end(struct compute *c, struct error *err);
bool compute_prepare_embedding(struct compute *c, const struct weight_matrix *table,
                               struct error *err);
bool compute_prepare_attention(struct compute *c, const struct attention_block *b,
                               struct error *err);
bool compute_prepare_ffn(struct compute *c, const struct ffn_block *b, struct error *err);
bool compute_prepare_head(struct compute *c, const struct head_block *b, struct error *err);
bool compute_prepare_context(struct compute *c, const struct context_block *b, struct error *err);
/* What all of the above took so far, as the backend reads it; 0: it reads the checkpoint's. */
uint64_t compute_prepared_bytes(const struct compute *c);

/* capacity must be at least window + max_rows - 1 for sliding layers, the context for full ones. */
bool kv_layer_new(struct compute *c, int kv_heads, int head_dim, int64_t capacity,
                  struct kv_layer **out, struct error *err);
void kv_layer_free(struct kv_layer *kv);
size_t kv_layer_bytes(const struct kv_layer *kv);
/* The same before there is one, in that backend (NULL: cpu); UINT64_MAX: more than can be. */
uint64_t kv_layer_need(const char *backend, enum activations a, int kv_heads, int head_dim,
                       int64_t capacity);

/* ---- A forward: blocks between a begin and an end ---- */

/* Two forwards of the same owner, kind, rows and logit_rows run the same blocks on the same keys,
 * values and taps, wherever in the sequence they are. */
struct compute_forward {
    const void *owner;  /* whose keys and values */
    int kind;           /* tells the owner's kinds of forwards apart */
    const int32_t *ids; /* [rows], or NULL: nothing is embedded */
    int64_t pos0;
    int rows;
    int logit_rows;          /* of the head; 0: there is none */
    float *logits;           /* [logit_rows, vocab] or NULL: not wanted */
    struct head_pick *picks; /* [logit_rows] or NULL */
    /* Where compute_follows: ids[r] may be -1, for what this instance's last forward picked in its
     * row r - 1 (none: any token). */
    const struct compute *drafted;
    bool later; /* compute_end does not wait: picks are those of compute_picks */
};
/* True: the backend has recorded such a forward before and runs that now; the caller leaves its
 * blocks out and goes on with compute_end. */
bool compute_begin(struct compute *c, const struct compute_forward *f);
/* All blocks have been called. What was recorded runs now; forwards of instances beside this one
 * may begin before compute_end, which waits for this one only. Left out, compute_end does it. */
void compute_run(struct compute *c);
/* Ends it: logits and picks are there now. Always true on the CPU; error CUDA-FAILED. */
bool compute_end(struct compute *c, struct error *err);
/* Whether forwards of instances beside each other may follow one another without being waited for:
 * drafted, later, and compute_picks, which gives the picks [rows] of such a forward, and waits
 * where it has not ended. */
bool compute_follows(const struct compute *c);
void compute_picks(struct compute *c, struct head_pick *out, int rows);
/* The owner is going away, or its forwards will not be what they were. */
void compute_forget(struct compute *c, const void *owner);
/* A backend that keeps logits on its device: row `row` of the last forward's, float32 [vocab].
 * False: it does not keep them (the CPU), or a fault has been noted. */
bool compute_keeps_logits(const struct compute *c);
bool compute_read_logits(struct compute *c, int row, float *out);
/* Kernels that the last forward launched; 0: it has none (the CPU). */
unsigned compute_kernels(const struct compute *c);

/* x[r] = table[ids[r]]; ids are checked by the caller. table is bf16. */
void compute_embed(struct compute *c, const struct weight_matrix *table, const int32_t *ids,
                   int rows);
/* x += attention(norm(x)); writes the rows' keys and values at pos0.. of kv. */
void compute_attention(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                       int64_t pos0, int rows);
/* x += ffn(norm(x)). */
void compute_ffn(struct compute *c, const struct ffn_block *b, int rows);
/* The largest and the second largest logit of a row: ties lowest id first, a NaN is never one of
 * them, +Inf is an ordinary largest value. token -1 (its logit -Inf): there is none. */
struct head_pick {
    int32_t token[2];
    float logit[2];
};

/* logits[i] = head(norm(x[first_row + i])), i = 0 .. rows-1, float32 [rows, vocab] (values are bf16
 * in ACTIVATIONS_BF16). picks [rows], or NULL, are taken in the same pass. Within a forward both
 * are those of its compute_forward; the CPU needs logits (not NULL). */
void compute_head(struct compute *c, const struct head_block *b, int first_row, int rows,
                  float *logits, struct head_pick *picks);

/* Rows of `taps` times `hidden` values (of c's shape). May be read by another instance of the same
 * backend and hidden size. */
bool tap_rows_new(struct compute *c, int taps, int64_t capacity, struct tap_rows **out,
                  struct error *err);
void tap_rows_free(struct tap_rows *t);
size_t tap_rows_bytes(const struct tap_rows *t);
/* Keeps stream rows 0 .. rows-1 as tap number `tap` of positions pos0 .. */
void compute_tap(struct compute *c, struct tap_rows *t, int tap, int64_t pos0, int rows);
/* x[r] = the context row of position pos0 + r, made from its taps. */
void compute_context(struct compute *c, const struct context_block *b, const struct tap_rows *t,
                     int64_t pos0, int rows);
/* Writes keys and values of the context rows in x, normed by the layer's own input norm, at pos0..
 * of kv; x stays as it is. Only the norms, k, v and rope of the block are used. */
void compute_append(struct compute *c, const struct attention_block *b, struct kv_layer *kv,
                    int64_t pos0, int rows);
/* Copies the taps of one position out, side by side as float32 [taps * hidden]. The caller knows
 * that they are held. */
void compute_read_taps(const struct tap_rows *t, int64_t position, float *out);
/* Copies stream rows out as float32 [rows, hidden] (tests). */
void compute_read_rows(const struct compute *c, int first_row, int rows, float *out);

#endif
