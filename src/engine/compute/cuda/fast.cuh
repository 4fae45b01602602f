/* ARITHMETIC_FAST: forwards of more than CUDA_RECORD_ROWS rows on tensor cores. bf16 products
 * summed in float32 in the tensor cores' own order, rounded where the strict kernels round.
 * Deterministic: no atomics on values, and what is summed in which order follows from the shape,
 * the number of rows included, never from the device. sm_80 and later.
 *
 * fast.cu: rows brought into order, linear; fast_experts.cu; fast_attention.cu. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_FAST_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_FAST_CUH

#include "engine/compute/cuda/cuda.h"
#include "engine/compute/cuda/experts.cuh" /* cuda_experts_fast */

/* As cuda_linear, for bf16 and int8 matrices. False, and nothing launched: not for this shape. */
bool cuda_linear_fast(const struct cuda_launch *l, const struct cuda_linear *a);
/* Whether cuda_attend_fast (cuda.h) takes this head. */
bool cuda_attend_fast_takes(int heads, int kv_heads, int head_dim);

/* The device memory that the above take at first use, one piece for each stream, kept until
 * cuda_fast_free. */
size_t cuda_fast_bytes(const struct compute_shape *shape);
/* That, taken now. */
bool cuda_fast_reserve(struct cuda_fault *fault, cudaStream_t stream,
                       const struct compute_shape *shape);
void cuda_fast_free(cudaStream_t stream);

/* ---- Between the three files ---- */

/* How a row of K inputs is laid out for a matrix product: lanes orders (cuda.h), in which a bf16 or
 * an int8 matrix lies, or that of the NVFP4 kernel (fast_experts.cu). */
enum fast_order { FAST_ORDER_BF16, FAST_ORDER_INT8, FAST_ORDER_EXPERTS };

/* One expert's rows that are multiplied together. */
enum { FAST_EXPERT_ROWS = 32 };
struct fast_tile {
    int expert, first, count; /* entries first .. first + count - 1 */
};

struct fast_rows {
    const uint16_t *x;
    size_t x_stride;
    const uint16_t *norm; /* or NULL */
    float eps;
    int rows, in, padded;
    enum fast_order order;
    uint16_t *out; /* [rows, padded] */
    /* for the experts, else start NULL: cuts start[0 .. experts + 1] into tiles, the last expert's
     * first */
    const int *start;
    int experts; /* with the shared one */
    struct fast_tile *tiles;
    int *tile_count;
};
void fast_rows_prepare(const struct cuda_launch *l, const struct fast_rows *a);

/* `bytes` of the stream's piece, from its begin; NULL: the fault is set. */
void *fast_scratch(const struct cuda_launch *l, size_t bytes);
size_t fast_experts_bytes(int rows, int hidden, int width, int experts, int top_k);

#endif
