/* A few rows into shared memory in lanes order, normed or as they are: what linear layers and the
 * router of few rows begin with. They stand at the beginning of dynamic shared memory,
 * [rows][inputs] of bf16. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_ROWS_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_ROWS_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum { ROWS_PIECE = 8 /* elements of 16 bytes */ };

struct rows_call {
    const uint16_t *x, *norm; /* norm: its weights */
    size_t x_stride;
    int inputs; /* a multiple of 128; normed ones at most PIECES pieces for each thread */
    float eps;
    int chain_at, inverse_at; /* offsets in shared memory, for norms */
};

/* Shared memory of the rows and, normed, of what the norm needs; chain_at and inverse_at are set.
 */
static __host__ __device__ inline int rows_bytes(struct rows_call *c, int rows, bool normed)
{
    int at = rows * c->inputs * (int)sizeof(uint16_t);
    c->chain_at = at;
    at += normed ? rows * (c->inputs + CUDA_LANES * ROWS_PIECE) * (int)sizeof(uint16_t) : 0;
    c->inverse_at = at;
    return at + 16;
}

extern __shared__ uint4 rows_shared[];

/* 8 elements from 8 i on, which are of lanes 4 (i % 4) .. of block i / 4. */
static __device__ __forceinline__ void rows_put_lanes(uint32_t *row, int i, uint4 v)
{
    const int block = i / 4, lane = i % 4 * 4;
    uint32_t *to = row + (block / 4 * CUDA_LANES + lane) * 4 + block % 4;
    to[0] = v.x;
    to[4] = v.y;
    to[8] = v.z;
    to[12] = v.w;
}

static __device__ __forceinline__ uint32_t rows_norm_pair(uint32_t x, uint32_t w, float inverse)
{
    const uint32_t t = bf16_pair_of(bf16_low(x) * inverse, bf16_high(x) * inverse);
    return bf16_pair_of(bf16_low(t) * bf16_low(w), bf16_high(t) * bf16_high(w));
}

static __device__ __forceinline__ uint4 rows_norm_piece(uint4 x, uint4 w, float inverse)
{
    return make_uint4(rows_norm_pair(x.x, w.x, inverse), rows_norm_pair(x.y, w.y, inverse),
                      rows_norm_pair(x.z, w.z, inverse), rows_norm_pair(x.w, w.w, inverse));
}

/* For the sum of squares a row lies by lanes, [lane 16][inputs / 16] of bf16: lane l's are
 * x[16b+l], so that it reads eight at once. */
static __device__ __forceinline__ int rows_chain_stride(int inputs)
{
    return inputs / CUDA_LANES + ROWS_PIECE; /* lanes in different banks */
}

static __device__ __forceinline__ void rows_put_chain(uint16_t *row, int stride, int i, uint4 v)
{
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
    uint16_t *to = row + i % 2 * ROWS_PIECE * stride + i / 2;
#pragma unroll
    for (int k = 0; k < ROWS_PIECE; k++)
        to[k * stride] = (uint16_t)(word[k / 2] >> 16 * (k % 2));
}

/* 1 / root of each row's mean square. */
template <int R> static __device__ __forceinline__ void rows_inverses(const struct rows_call &c)
{
    enum { EACH = 4 };
    const int stride = rows_chain_stride(c.inputs);
    float *inverse = (float *)((uint8_t *)rows_shared + c.inverse_at);
    const int half = threadIdx.x / CUDA_LANES, lane = threadIdx.x % CUDA_LANES;
    if (half >= (R + 1) / 2 * 2) /* whole warps: they add up together */
        return;
    const uint16_t *row = (const uint16_t *)((const uint8_t *)rows_shared + c.chain_at) +
                          ((half < R ? half : 0) * CUDA_LANES + lane) * stride;
    float sum = 0.0f;
    const int count = c.inputs / CUDA_LANES;
#pragma unroll 1
    for (int first = 0; first < count; first += EACH * ROWS_PIECE) {
        uint4 v[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int b = first + j * ROWS_PIECE;
            v[j] = *(const uint4 *)(row + (b < count ? b : 0));
        }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            if (first + j * ROWS_PIECE >= count)
                break;
            const uint32_t word[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum = fmaf(bf16_low(word[k]), bf16_low(word[k]), sum);
                sum = fmaf(bf16_high(word[k]), bf16_high(word[k]), sum);
            }
        }
    }
    sum = lanes_sum(sum);
    const float mean = sum / (float)c.inputs;
    if (half < R && lane == 0)
        inverse[half] = 1.0f / sqrtf(mean + c.eps);
}

/* This thread's pieces of the norm's weights: before the rows are there. */
template <bool NORM, int PIECES>
static __device__ __forceinline__ void rows_take_norm(const struct rows_call &c, uint4 w[PIECES])
{
#pragma unroll
    for (int j = 0; NORM && j < PIECES; j++) {
        const int i = j * (int)blockDim.x + (int)threadIdx.x;
        if (i < c.inputs / ROWS_PIECE)
            w[j] = *(const uint4 *)(c.norm + (size_t)i * ROWS_PIECE);
    }
}

/* The rows into shared memory in lanes order, normed where NORM (then all of it at once). w: of
 * rows_take_norm with these PIECES. meanwhile(): done while the first loads are under way. PIECES:
 * of a row, that a thread has under way. Ends with a barrier. */
template <int R, bool NORM, int PIECES, typename Meanwhile>
static __device__ __forceinline__ void rows_stage(const struct rows_call &c, const uint4 w[PIECES],
                                                  Meanwhile meanwhile)
{
    const int pieces = c.inputs / ROWS_PIECE, words = c.inputs / 2, threads = (int)blockDim.x;
    uint32_t *rows = (uint32_t *)rows_shared;
    const float *inverse = (const float *)((const uint8_t *)rows_shared + c.inverse_at);
    for (int first = 0; first < pieces; first += PIECES * threads) {
        uint4 v[R][PIECES] = {};
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                const int i = first + j * threads + (int)threadIdx.x;
                if (i < pieces)
                    v[r][j] = load_fresh(c.x + (size_t)r * c.x_stride + (size_t)i * ROWS_PIECE);
            }
        if (first == 0)
            meanwhile();
        if (NORM) {
            const int stride = rows_chain_stride(c.inputs);
            uint16_t *chain = (uint16_t *)((uint8_t *)rows_shared + c.chain_at);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int j = 0; j < PIECES; j++) {
                    const int i = j * threads + (int)threadIdx.x;
                    if (i < pieces)
                        rows_put_chain(chain + r * CUDA_LANES * stride, stride, i, v[r][j]);
                }
            __syncthreads();
            rows_inverses<R>(c);
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                const int i = first + j * threads + (int)threadIdx.x;
                if (i < pieces)
                    rows_put_lanes(rows + r * words, i,
                                   NORM ? rows_norm_piece(v[r][j], w[j], inverse[r]) : v[r][j]);
            }
    }
    __syncthreads();
}

#endif
