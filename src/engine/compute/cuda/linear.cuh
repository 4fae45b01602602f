/* Products with few rows, as linear.cu and head.cu use them: a half-warp owns O outputs, a thread
 * its lane; weights stream through D 16-byte registers of each thread, the first of which are
 * loaded before the kernel waits for its rows. The rows lie in shared memory in lanes order. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_LINEAR_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_LINEAR_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/cuda.h"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum {
    LINEAR_WARP = 32,
    LINEAR_UNIT_BYTES = 256, /* of a half-warp's 16-byte load */
    LINEAR_FEW_THREADS = 256 /* of a block, at most */
};

/* The rows to be multiplied. */
struct linear_rows {
    const uint16_t *x;
    size_t stride;
    const uint16_t *norm; /* or NULL */
    float eps;
    int rows, inputs;
    bool whole; /* whole groups of 4 blocks, and two elements can be read at once */
};

/* What a kernel for few rows gets. Offsets are of dynamic shared memory. */
struct linear_few {
    struct linear_rows rows;
    struct cuda_matrix w;
    int tiles; /* a block does so many, one after the other */
    int units; /* loads of a lane for one output */
    int slab;  /* units whose inputs are in shared memory at once, a multiple of D / O */
    int norm_at, inverse_at, chain_at, sums_at, scales_at;
    int sums; /* of a row: blocks of the matrix, in whole 16s; 0: the format needs none */
    int shared;
    bool late; /* the next kernel starts when this one's weights are on their way */
};

/* Groups of 4 blocks (a 16-byte piece of a lane's bf16 inputs) that a unit of weights meets. */
static constexpr __host__ __device__ int linear_unit_groups(int format)
{
    return format == WEIGHT_BF16 ? 1 : format == WEIGHT_INT8_AFFINE32 ? 2 : 4;
}

static __host__ __device__ __forceinline__ int linear_round_up(int n, int unit)
{
    return (n + unit - 1) / unit * unit;
}

/* 4 bytes to shared memory without waiting. */
static __device__ __forceinline__ void linear_copy_pair(void *shared, const void *global)
{
#ifdef CUDA_EMULATED
    *(uint32_t *)shared = *(const uint32_t *)global;
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
#endif
}

/* A lane's piece of a row of n in lanes order, in 4 blocks: elements k and k + 1 (k even), k + 32
 * and k + 33 and so on; zero beyond. */
static __device__ __forceinline__ uint4 linear_piece(const uint16_t *row, int k, int n)
{
    uint4 q = make_uint4(0, 0, 0, 0);
    if (k < n) {
        q.x = load_fresh_word(row + k);
        q.y = load_fresh_word(row + k + CUDA_BLOCK);
        q.z = load_fresh_word(row + k + 2 * CUDA_BLOCK);
        q.w = load_fresh_word(row + k + 3 * CUDA_BLOCK);
    }
    return q;
}

static __device__ __forceinline__ uint4 linear_piece_slowly(const uint16_t *row, int k, int n)
{
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int at = k + i / 2 * CUDA_BLOCK + i % 2;
        if (at < n)
            words[i / 2] |= (uint32_t)load_fresh_one(row + at) << 16 * (i % 2);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* round(round(x * inverse) * weight), two at a time. */
static __device__ __forceinline__ uint32_t linear_norm_pair(uint32_t x, uint32_t weight,
                                                            float inverse)
{
    const uint32_t t = bf16_pair_of(bf16_low(x) * inverse, bf16_high(x) * inverse);
    return bf16_pair_of(bf16_low(t) * bf16_low(weight), bf16_high(t) * bf16_high(weight));
}

static __device__ __forceinline__ uint4 linear_norm_quad(uint4 x, uint4 w, float inverse)
{
    return make_uint4(linear_norm_pair(x.x, w.x, inverse), linear_norm_pair(x.y, w.y, inverse),
                      linear_norm_pair(x.z, w.z, inverse), linear_norm_pair(x.w, w.w, inverse));
}

/* The chain of a lane over 4 blocks in lanes order for the sum of squares, where lane l takes
 * x[16c+l]: a is of lane l / 2, b of lane 8 + l / 2; pick takes the lane's element of a pair. */
static __device__ __forceinline__ float linear_square(float sum, uint4 a, uint4 b, unsigned pick)
{
    const uint32_t words[8] = {a.x, b.x, a.y, b.y, a.z, b.z, a.w, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float x = __uint_as_float(__byte_perm(words[i], 0, pick));
        sum = fmaf(x, x, sum);
    }
    return sum;
}

static __device__ __forceinline__ unsigned linear_pick(int lane)
{
    return lane % 2 ? 0x3244u : 0x1044u;
}

static __device__ __forceinline__ float linear_inverse(float sum, int n, float eps)
{
    const float mean = sum / (float)n;
    return 1.0f / sqrtf(mean + eps);
}

/* The tree of halves for N values at once. While there are several, each exchange leaves a lane
 * half of them; the rest of the steps are as in lanes_sum. Additions commute, so the bits are the
 * tree's. Afterwards v[0 .. linear_scatter_left(N)) are the sums of the values from the returned
 * index on. */
static constexpr __host__ __device__ int linear_scatter_left(int n)
{
    for (int step = 8; step >= 1 && n % 2 == 0; step /= 2)
        n /= 2;
    return n;
}

/* Lanes that have the same sums as a lower one: it has this bit. */
static constexpr __host__ __device__ int linear_scatter_twins(int n)
{
    int twins = 0;
    for (int step = 8; step >= 1; step /= 2) {
        if (n % 2 == 0)
            n /= 2;
        else
            twins |= step;
    }
    return twins;
}

template <int N, int STEP> static __device__ __forceinline__ int linear_scatter(float *v, int lane)
{
    if constexpr (STEP == 0) {
        return 0;
    } else if constexpr (N % 2 == 0) {
        const bool upper = lane & STEP;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = upper ? v[N / 2 + i] : v[i];
            const float give = upper ? v[i] : v[N / 2 + i];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, STEP);
        }
        return (upper ? N / 2 : 0) + linear_scatter<N / 2, STEP / 2>(v, lane);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = v[i] + __shfl_xor_sync(0xffffffffu, v[i], STEP);
        return linear_scatter<N, STEP / 2>(v, lane);
    }
}

/* Where value 0 of a lane will be after linear_scatter. */
template <int N, int STEP> static __device__ __forceinline__ int linear_scatter_first(int lane)
{
    if constexpr (STEP == 0)
        return 0;
    else if constexpr (N % 2 == 0)
        return (lane & STEP ? N / 2 : 0) + linear_scatter_first<N / 2, STEP / 2>(lane);
    else
        return linear_scatter_first<N, STEP / 2>(lane);
}

/* ---- Weights as floats ---- */

static __device__ __forceinline__ void linear_unpack(uint4 q, float f[8])
{
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[2 * i] = bf16_low(words[i]);
        f[2 * i + 1] = bf16_high(words[i]);
    }
}

/* 4 codes of INT8. */
static __device__ __forceinline__ void linear_unpack_int8(uint32_t codes, float f[4])
{
    const float base = __uint_as_float(0x4b000000u);
    f[0] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440)) - base;
    f[1] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7441)) - base;
    f[2] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7442)) - base;
    f[3] = __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7443)) - base;
}

/* 4 bytes of NVFP4: 8 codes as 4 pairs of bf16. The tables are the bytes of the magnitudes
 * 0, .5, 1, 1.5, 2, 3, 4, 6. */
static __device__ __forceinline__ void linear_nvfp4_pairs(uint32_t codes, uint32_t pairs[4])
{
    const uint32_t magnitudes = codes & 0x77777777u;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint32_t m = magnitudes >> 16 * half, c = codes >> 16 * half;
        const uint32_t high = __byte_perm(0x3f3f3f00u, 0x40404040u, m & 0xffffu);
        const uint32_t low = __byte_perm(0xc0800000u, 0xc0804000u, m & 0xffffu);
        pairs[2 * half] =
            __byte_perm(low, high, 0x5140) | (c << 12 & 0x8000u) | (c << 24 & 0x80000000u);
        pairs[2 * half + 1] =
            __byte_perm(low, high, 0x7362) | (c << 4 & 0x8000u) | (c << 16 & 0x80000000u);
    }
}

/* E4M3; 0x7f is 480, as in e4m3_values. */
static __device__ __forceinline__ float linear_e4m3(uint32_t byte)
{
    const uint32_t bits = (byte & 0x80u) << 24 | (byte & 0x7fu) << 20;
    return multiply_keep(__uint_as_float(bits), __uint_as_float(0x7b800000u)); /* 2^120 */
}

/* ---- The weights' stream ---- */

template <int O, int G> struct linear_stream {
    uint4 w[G][O];     /* of the batch that comes next */
    const uint8_t *at; /* what this lane fetches next, of output 0 */
    int unit, tile;    /* where that is */
    int outputs;       /* how many of O there are in that tile */
};

static __device__ __forceinline__ int linear_half_warps(void)
{
    return (int)(blockDim.x / CUDA_LANES);
}

/* The first output of this half-warp in one of the block's tiles. */
template <int O>
static __device__ __forceinline__ int linear_few_output(const struct linear_few &p, int tile)
{
    const int half_warp = (int)(threadIdx.x / CUDA_LANES);
    return (((int)blockIdx.x * p.tiles + tile) * linear_half_warps() + half_warp) * O;
}

template <int O, int G>
static __device__ __forceinline__ void linear_stream_tile(const struct linear_few &p,
                                                          struct linear_stream<O, G> &s)
{
    const int output = linear_few_output<O>(p, s.tile);
    s.outputs = s.tile < p.tiles ? p.w.out - output : 0;
    s.at = p.w.data + (size_t)output * p.w.row_bytes + threadIdx.x % CUDA_LANES * 16;
}

/* What is not there is left as it was: its output is nobody's, or linear_stream_end clears it. */
template <int O, int G>
static __device__ __forceinline__ void linear_stream_fetch(const struct linear_few &p,
                                                           struct linear_stream<O, G> &s, int j)
{
#pragma unroll
    for (int o = 0; o < O; o++)
        if (o < s.outputs && s.unit + j < p.units)
            s.w[j][o] = load_stream(s.at + (size_t)o * p.w.row_bytes + j * LINEAR_UNIT_BYTES);
}

/* After the fetches of a batch: those behind the end of an output are zeros. */
template <int O, int G>
static __device__ __forceinline__ void linear_stream_end(const struct linear_few &p,
                                                         struct linear_stream<O, G> &s)
{
    if (s.unit + G > p.units) {
#pragma unroll
        for (int j = 1; j < G; j++)
#pragma unroll
            for (int o = 0; o < O; o++)
                if (s.unit + j >= p.units)
                    s.w[j][o] = make_uint4(0, 0, 0, 0);
    }
}

template <int O, int G>
static __device__ __forceinline__ void linear_stream_next(const struct linear_few &p,
                                                          struct linear_stream<O, G> &s)
{
    s.unit += G;
    s.at += G * LINEAR_UNIT_BYTES;
    if (s.unit >= p.units) {
        s.unit = 0;
        s.tile++;
        linear_stream_tile(p, s);
    }
}

/* ---- Rows in shared memory: [group of 4 blocks][row R][lane] of 16 bytes ---- */

/* All inputs are in shared memory at once: only the kernels for the most rows can do with less. */
template <int R> static __device__ __forceinline__ bool linear_few_one(const struct linear_few &p)
{
    return R < CUDA_RECORD_ROWS || p.slab >= p.units;
}

template <int R>
static __device__ __forceinline__ void linear_few_load(const struct linear_few &p, uint4 *x,
                                                       int group, int groups)
{
    enum { AT_ONCE = 4 };
    const unsigned count = (unsigned)groups * R * CUDA_LANES, threads = blockDim.x;
    if (!p.rows.whole) {
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < count; i += threads) {
            const int lane = (int)(i % CUDA_LANES), r = (int)(i / CUDA_LANES % R);
            const int k = (group + (int)(i / CUDA_LANES / R)) * CUDA_BF16_GROUP + 2 * lane;
            x[i] = linear_piece_slowly(p.rows.x + (size_t)r * p.rows.stride, k,
                                       r < p.rows.rows ? p.rows.inputs : 0);
        }
        return;
    }
#pragma unroll 1
    for (unsigned from = threadIdx.x; from < count; from += AT_ONCE * threads) {
        uint4 q[AT_ONCE];
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) {
            const unsigned at = from + i * threads;
            const int lane = (int)(at % CUDA_LANES), r = (int)(at / CUDA_LANES % R);
            const int k = (group + (int)(at / CUDA_LANES / R)) * CUDA_BF16_GROUP + 2 * lane;
            const uint16_t *row = p.rows.x + (size_t)r * p.rows.stride;
            const int n = at < count && r < p.rows.rows ? p.rows.inputs : 0;
            q[i] = linear_piece(row, k, n);
        }
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++)
            if (from + i * threads < count)
                x[from + i * threads] = q[i];
    }
}

/* The norm's weights into lanes order; they are there after copy_wait. */
static __device__ __forceinline__ void linear_few_load_norm(const struct linear_few &p,
                                                            uint32_t *norm, int group, int groups)
{
    const unsigned count = (unsigned)groups * CUDA_LANES;
    const int n = p.rows.inputs;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        const int lane = (int)(i % CUDA_LANES);
        const int k = (group + (int)(i / CUDA_LANES)) * CUDA_BF16_GROUP + 2 * lane;
        if (p.rows.whole && k < n) {
#pragma unroll
            for (int b = 0; b < 4; b++)
                linear_copy_pair(norm + 4 * i + b, p.rows.norm + k + b * CUDA_BLOCK);
        } else {
            ((uint4 *)norm)[i] = linear_piece_slowly(p.rows.norm, k, n);
        }
    }
}

/* The sum of squares goes on over some groups: a half-warp for each row. */
template <int R>
static __device__ __forceinline__ void linear_few_square(const uint4 *x, float *chain, int groups,
                                                         bool first)
{
    const int half_warp = (int)(threadIdx.x / CUDA_LANES), lane = threadIdx.x % CUDA_LANES;
    const unsigned pick = linear_pick(lane);
#pragma unroll 1
    for (int r = half_warp; r < R; r += linear_half_warps()) {
        float sum = first ? 0.0f : chain[r * CUDA_LANES + lane];
        const uint4 *at = x + r * CUDA_LANES + lane / 2;
        uint4 a = at[0], b = at[8];
#pragma unroll 1
        for (int g = 1; g <= groups; g++) { /* the next pieces come while the chain goes on */
            const int next = (g < groups ? g : 0) * R * CUDA_LANES;
            const uint4 a1 = at[next], b1 = at[next + 8];
            sum = linear_square(sum, a, b, pick);
            a = a1;
            b = b1;
        }
        chain[r * CUDA_LANES + lane] = sum;
    }
}

/* From the chains to 1 / sqrt(mean + eps). */
template <int R>
static __device__ __forceinline__ void linear_few_inverse(const struct linear_few &p,
                                                          const float *chain, float *inverse)
{
    const int half_warp = (int)(threadIdx.x / CUDA_LANES), lane = threadIdx.x % CUDA_LANES;
#pragma unroll 1
    for (int r0 = half_warp / 2 * 2; r0 < R; r0 += linear_half_warps()) {
        const int r = r0 + half_warp % 2;
        const float sum = lanes_sum(r < R ? chain[r * CUDA_LANES + lane] : 0.0f);
        if (r < R && lane == 0)
            inverse[r] = linear_inverse(sum, p.rows.inputs, p.rows.eps);
    }
}

template <int R>
static __device__ __forceinline__ void linear_few_scale(uint4 *x, const uint4 *norm,
                                                        const float *inverse, int groups)
{
    const unsigned count = (unsigned)groups * R * CUDA_LANES;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) {
        const unsigned lane = i % CUDA_LANES, r = i / CUDA_LANES % R, g = i / CUDA_LANES / R;
        x[i] = linear_norm_quad(x[i], norm[g * CUDA_LANES + lane], inverse[r]);
    }
}

/* INT8: the sums of the inputs of each block. */
template <int R>
static __device__ __forceinline__ void linear_few_sums(const struct linear_few &p, const uint4 *x,
                                                       float *sums, int group, int groups)
{
    const int half_warp = (int)(threadIdx.x / CUDA_LANES), lane = threadIdx.x % CUDA_LANES;
    const int count = groups * R;
#pragma unroll 1
    for (int base = half_warp / 2 * 2; base < count; base += linear_half_warps()) {
        const int i = base + half_warp % 2;
        float f[8] = {};
        if (i < count)
            linear_unpack(x[i * CUDA_LANES + lane], f);
        float v[4] = {f[0] + f[1], f[2] + f[3], f[4] + f[5], f[6] + f[7]};
        const int first = linear_scatter<4, 8>(v, lane);
        const int block = (group + i / R) * 4 + first;
        if (i < count && !(lane & linear_scatter_twins(4)) && block < p.sums)
            sums[i % R * p.sums + block] = v[0];
    }
}

/* One slab of rows, normed; all threads come here, and may read it afterwards. */
template <int R>
static __device__ __forceinline__ void linear_few_slab(const struct linear_few &p, uint4 *shared,
                                                       int group, int groups, bool norm_loaded)
{
    uint8_t *bytes = (uint8_t *)shared;
    linear_few_load<R>(p, shared, group, groups);
    if (p.rows.norm && !norm_loaded) {
        linear_few_load_norm(p, (uint32_t *)(bytes + p.norm_at), group, groups);
        copy_commit();
    }
    copy_wait<0>();
    __syncthreads();
}

/* Everything that the products need before the first: the rows, the norm's factor of each row, the
 * sums of blocks. */
template <int F, int R>
static __device__ __forceinline__ void linear_few_rows(const struct linear_few &p, uint4 *shared)
{
    uint8_t *bytes = (uint8_t *)shared;
    float *inverse = (float *)(bytes + p.inverse_at), *chain = (float *)(bytes + p.chain_at);
    float *sums = (float *)(bytes + p.sums_at);
    const int groups = p.slab * linear_unit_groups(F);
    if (F == WEIGHT_INT8_AFFINE32)
        for (int i = (int)threadIdx.x; i < R * p.sums; i += (int)blockDim.x)
            sums[i] = 0.0f;
    linear_few_slab<R>(p, shared, 0, groups, true);
    if (p.rows.norm) {
        linear_few_square<R>(shared, chain, groups, true);
        linear_few_inverse<R>(p, chain, inverse);
        __syncthreads();
        linear_few_scale<R>(shared, (const uint4 *)(bytes + p.norm_at), inverse, groups);
        __syncthreads();
    }
    if (F == WEIGHT_INT8_AFFINE32) {
        linear_few_sums<R>(p, shared, sums, 0, groups);
        __syncthreads();
    }
}

/* The same, but for the rows, when they are not in shared memory at once. */
template <int F, int R>
static __device__ void linear_few_rows_of_slabs(const struct linear_few &p, uint4 *shared)
{
    uint8_t *bytes = (uint8_t *)shared;
    const uint4 *norm = (const uint4 *)(bytes + p.norm_at);
    float *inverse = (float *)(bytes + p.inverse_at), *chain = (float *)(bytes + p.chain_at);
    float *sums = (float *)(bytes + p.sums_at);
    const int groups = p.slab * linear_unit_groups(F), all = p.units * linear_unit_groups(F);
    for (int group = 0; p.rows.norm && group < all; group += groups) {
        linear_few_slab<R>(p, shared, group, groups, false);
        linear_few_square<R>(shared, chain, groups, group == 0);
        __syncthreads();
    }
    if (p.rows.norm)
        linear_few_inverse<R>(p, chain, inverse);
    if (F == WEIGHT_INT8_AFFINE32) {
        for (int i = (int)threadIdx.x; i < R * p.sums; i += (int)blockDim.x)
            sums[i] = 0.0f;
        for (int group = 0; group < all; group += groups) {
            linear_few_slab<R>(p, shared, group, groups, false);
            if (p.rows.norm) {
                linear_few_scale<R>(shared, norm, inverse, groups);
                __syncthreads();
            }
            linear_few_sums<R>(p, shared, sums, group, groups);
            __syncthreads();
        }
    }
    copy_wait<0>(); /* scales */
    __syncthreads();
}

template <int F, int R>
static __device__ __forceinline__ void linear_few_begin(const struct linear_few &p, uint4 *shared)
{
    if (linear_few_one<R>(p))
        linear_few_rows<F, R>(p, shared);
    else if constexpr (R == CUDA_RECORD_ROWS)
        linear_few_rows_of_slabs<F, R>(p, shared);
}

/* ---- Products ---- */

/* acc[r * O + o] goes on by one unit; x is this lane's, scales the half-warp's O outputs'. */
template <int F, int R, int O>
static __device__ __forceinline__ void linear_few_unit(const struct linear_few &p, const uint4 *w,
                                                       const uint4 *x, const uint8_t *scales,
                                                       float *acc)
{
    constexpr int GROUPS = linear_unit_groups(F);
    uint4 scale[O];
    if constexpr (F != WEIGHT_BF16) {
#pragma unroll
        for (int o = 0; o < O; o++)
            scale[o] = *(const uint4 *)(scales + (size_t)o * p.w.scale_bytes);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        float f[O][8];
        float s[O][4];
#pragma unroll
        for (int o = 0; o < O; o++) {
            if constexpr (F == WEIGHT_BF16) {
                linear_unpack(w[o], f[o]);
            } else if constexpr (F == WEIGHT_INT8_AFFINE32) {
                linear_unpack_int8(g == 0 ? w[o].x : w[o].z, f[o]);
                linear_unpack_int8(g == 0 ? w[o].y : w[o].w, f[o] + 4);
                const uint32_t low = g == 0 ? scale[o].x : scale[o].z;
                const uint32_t high = g == 0 ? scale[o].y : scale[o].w;
                s[o][0] = bf16_low(low);
                s[o][1] = bf16_high(low);
                s[o][2] = bf16_low(high);
                s[o][3] = bf16_high(high);
            } else {
                const uint32_t codes[4] = {w[o].x, w[o].y, w[o].z, w[o].w};
                const uint32_t bytes[4] = {scale[o].x, scale[o].y, scale[o].z, scale[o].w};
                uint32_t pairs[4];
                linear_nvfp4_pairs(codes[g], pairs);
                linear_unpack(make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]), f[o]);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[o][i] = linear_e4m3(bytes[g] >> 8 * i & 0xffu);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            float e[8];
            linear_unpack(x[(g * R + r) * CUDA_LANES], e);
#pragma unroll
            for (int o = 0; o < O; o++) {
                float a = acc[r * O + o];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if constexpr (F == WEIGHT_BF16) {
                        a = fmaf(f[o][2 * i], e[2 * i], fmaf(f[o][2 * i + 1], e[2 * i + 1], a));
                    } else {
                        const float odd = f[o][2 * i + 1] * e[2 * i + 1];
                        const float t = fmaf(f[o][2 * i], e[2 * i], odd);
                        a = fmaf(t, s[o][i], a);
                    }
                }
                acc[r * O + o] = a;
            }
        }
    }
}

/* What a half-warp's outputs are with each row, before rounding: value r * O + o is in the lanes
 * that linear_scatter_first says. Tiles in ascending order. */
template <int F, int R, int O, int D>
static __device__ __forceinline__ void linear_few_tile(const struct linear_few &p, uint4 *shared,
                                                       struct linear_stream<O, D / O> &s, int tile,
                                                       float acc[R * O])
{
    constexpr int G = D / O, GROUPS = linear_unit_groups(F);
    const int half_warp = (int)(threadIdx.x / CUDA_LANES), lane = threadIdx.x % CUDA_LANES;
    const uint8_t *bytes = (const uint8_t *)shared;
    const int local = (tile * linear_half_warps() + half_warp) * O;
    const uint8_t *scales = bytes + p.scales_at + (size_t)local * p.w.scale_bytes;
    const bool one = linear_few_one<R>(p);
#pragma unroll
    for (int i = 0; i < R * O; i++)
        acc[i] = 0.0f;
    if constexpr (F == WEIGHT_INT8_AFFINE32) {
        const float *sums = (const float *)(bytes + p.sums_at);
        const size_t to_biases = (size_t)p.tiles * linear_half_warps() * O * p.w.scale_bytes;
        const int blocks = p.w.padded / CUDA_BLOCK;
#pragma unroll 1
        for (int b = lane; b < blocks; b += CUDA_LANES)
#pragma unroll
            for (int o = 0; o < O; o++) {
                const uint8_t *biases = scales + to_biases + (size_t)o * p.w.scale_bytes;
                const float bias = bf16_float(((const uint16_t *)biases)[b]);
#pragma unroll
                for (int r = 0; r < R; r++)
                    acc[r * O + o] = fmaf(bias, sums[r * p.sums + b], acc[r * O + o]);
            }
    }
    if constexpr (F == WEIGHT_NVFP4)
        scales += lane / 8 * (p.w.padded / CUDA_BLOCK);
#pragma unroll 1
    for (int from = 0; from < p.units; from += p.slab) {
        if (!one) {
            __syncthreads();
            linear_few_slab<R>(p, shared, from * GROUPS, p.slab * GROUPS, false);
            if (p.rows.norm) {
                linear_few_scale<R>(shared, (const uint4 *)(bytes + p.norm_at),
                                    (const float *)(bytes + p.inverse_at), p.slab * GROUPS);
                __syncthreads();
            }
        }
        const int end = from + p.slab < p.units ? from + p.slab : p.units;
#pragma unroll 1
        for (int unit = from; unit < end; unit += G) {
            const uint4 *x = shared + (unit - from) * GROUPS * R * CUDA_LANES + lane;
#pragma unroll
            for (int j = 0; j < G; j++) {
                /* behind the end weights and inputs are zeros, and any scale will do */
                const int there = F == WEIGHT_BF16 || unit + j < p.units ? unit + j : unit;
                linear_few_unit<F, R, O>(p, s.w[j], x + j * GROUPS * R * CUDA_LANES,
                                         scales + there * 16, acc);
                linear_stream_fetch<O, G>(p, s, j);
            }
            linear_stream_end<O, G>(p, s);
            linear_stream_next<O, G>(p, s);
        }
    }
    if (p.late && tile + 1 == p.tiles)
        pdl_launch_next();
    linear_scatter<R * O, 8>(acc, lane);
}

/* All that a kernel may do before what it waits for: the first weights, its scales, the norm's
 * weights are under way when this returns, and the rows there. */
template <int F, int O, int D>
static __device__ __forceinline__ void linear_few_open(const struct linear_few &p, uint4 *shared,
                                                       struct linear_stream<O, D / O> &s)
{
    constexpr int G = D / O;
    uint8_t *bytes = (uint8_t *)shared;
    if (!p.late)
        pdl_launch_next();
#pragma unroll
    for (int j = 0; j < G; j++)
#pragma unroll
        for (int o = 0; o < O; o++)
            s.w[j][o] = make_uint4(0, 0, 0, 0);
    s.unit = 0;
    s.tile = 0;
    linear_stream_tile<O, G>(p, s);
#pragma unroll
    for (int j = 0; j < G; j++)
        linear_stream_fetch<O, G>(p, s, j);
    linear_stream_next<O, G>(p, s);
    if constexpr (F != WEIGHT_BF16) {
        const int outputs = p.tiles * linear_half_warps() * O;
        const int first = (int)blockIdx.x * outputs;
        const int pieces = (int)(p.w.scale_bytes / 16);
        const int there = p.w.out - first < outputs ? p.w.out - first : outputs;
        uint8_t *to = bytes + p.scales_at;
        for (int i = (int)threadIdx.x; i < there * pieces; i += (int)blockDim.x) {
            copy_async(to + (size_t)i * 16,
                       p.w.scales + (size_t)first * p.w.scale_bytes + (size_t)i * 16);
            if constexpr (F == WEIGHT_INT8_AFFINE32)
                copy_async(to + (size_t)outputs * p.w.scale_bytes + (size_t)i * 16,
                           p.w.biases + (size_t)first * p.w.scale_bytes + (size_t)i * 16);
        }
    }
    if (p.rows.norm && p.slab >= p.units)
        linear_few_load_norm(p, (uint32_t *)(bytes + p.norm_at), 0, p.slab * linear_unit_groups(F));
    copy_commit();
    pdl_wait();
}

/* ---- The kernel ---- */

struct linear_out {
    uint16_t *y;
    size_t stride;
    bool add;
};

template <int F, int R, int O, int D>
static __global__ void __launch_bounds__(LINEAR_FEW_THREADS)
    linear_few_kernel(const struct linear_few p, const struct linear_out out)
{
    extern __shared__ uint4 linear_shared[];
    constexpr int LEFT = linear_scatter_left(R * O);
    struct linear_stream<O, D / O> s;
    linear_few_open<F, O, D>(p, linear_shared, s);
    const int lane = threadIdx.x % CUDA_LANES, first = linear_scatter_first<R * O, 8>(lane);
    const bool twin = lane & linear_scatter_twins(R * O);
#pragma unroll 1
    for (int tile = 0; tile < p.tiles; tile++) {
        const int output = linear_few_output<O>(p, tile);
        uint16_t old[LEFT];
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            const int r = (first + i) / O, o = output + (first + i) % O;
            old[i] = 0;
            if (out.add && !twin && r < p.rows.rows && o < p.w.out)
                old[i] = load_fresh_one(out.y + (size_t)r * out.stride + o);
        }
        if (tile == 0)
            linear_few_begin<F, R>(p, linear_shared);
        float v[R * O];
        linear_few_tile<F, R, O, D>(p, linear_shared, s, tile, v);
#pragma unroll
        for (int i = 0; i < LEFT; i++) {
            const int r = (first + i) / O, o = output + (first + i) % O;
            uint16_t y = bf16_of(v[i]);
            if (out.add)
                y = bf16_of(bf16_float(old[i]) + bf16_float(y));
            if (!twin && r < p.rows.rows && o < p.w.out)
                out.y[(size_t)r * out.stride + o] = y;
        }
    }
}

/* ---- Host ---- */

/* How few rows are cut: see linear_few_plan. */
struct linear_plan {
    int outputs; /* O */
    int depth;   /* D */
    int warps, tiles;
    bool late;
};

struct linear_rows linear_rows_of(const struct cuda_linear *a);
/* The arguments of a kernel with R rows; p->shared: its dynamic shared memory. False: only the
 * kernel for the most rows can do with the device's. */
bool linear_few_fill(const struct cuda_launch *l, const struct cuda_linear *a, int r,
                     const struct linear_plan *plan, struct linear_few *p);
/* More than CUDA_RECORD_ROWS rows, strictly; logits not NULL: results go there as float32 instead
 * of a->y, y_stride apart. */
void linear_many(const struct cuda_launch *l, const struct cuda_linear *a, float *logits);

template <int F, int R, int O, int D>
static bool linear_few_launch(const struct cuda_launch *l, const struct cuda_linear *a,
                              const struct linear_plan *plan)
{
    struct linear_few p;
    if (!linear_few_fill(l, a, R, plan, &p))
        return false;
    const struct linear_out out = {a->y, a->y_stride, a->add};
    const int outputs = plan->warps * 2 * O * plan->tiles;
    cuda_launch(l, "linear layer", linear_few_kernel<F, R, O, D>,
                dim3((unsigned)((a->w->out + outputs - 1) / outputs)),
                dim3((unsigned)plan->warps * LINEAR_WARP), (size_t)p.shared, p, out);
    return true;
}

#endif
