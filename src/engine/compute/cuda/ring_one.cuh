/* One row past weights that stream through shared memory. A half-warp has up to T outputs, which
 * follow each other in memory, one after the other. The first UNITS units of its first output come
 * through registers, the rest through PLACES places of B units, filled by bulk copies; before
 * compute capability 9.0 each thread fills its own part. All of that is under way before the row is
 * there, and leaves room for the kernel before on the multiprocessor. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_RING_ONE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_RING_ONE_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"
#include "engine/compute/cuda/rows.cuh"
#include "engine/compute/cuda/timeline.cuh"

enum {
    ONE_UNIT = 256,
    ONE_PIECES = 4 /* of the row, that a thread has under way */
};

struct one_call {
    const uint8_t *w, *scales, *biases;
    size_t row_bytes, scale_bytes;
    int out, units, outputs; /* units of an output; outputs of a block */
    struct rows_call rows;
    uint16_t *y;
    bool add;
    int ahead; /* places that are under way at once while the row is awaited */
    int sums_at, scales_at, barriers_at, ring_at; /* in shared memory */
};

/* Nothing that is made of it is made before: there are no registers for that. */
static __device__ __forceinline__ void one_keep(uint4 &v)
{
#ifndef CUDA_EMULATED
    asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w) : : "memory");
#else
    (void)v;
#endif
}

/* 16 bytes that are read once, now: whatever waits behind it. */
static __device__ __forceinline__ uint4 one_load(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint4 *)p;
#else
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(stream_policy()));
    return v;
#endif
}

/* A half-warp's outputs. The first ones of a block have one more. */
struct one_part {
    int first, most, there; /* most: of the two of its warp; there: that there are */
};

template <int HALVES>
static __device__ __forceinline__ struct one_part one_part_of(const one_call &c, int half)
{
    const int each = c.outputs / HALVES, more = c.outputs % HALVES;
    const int mine = each + (half < more ? 1 : 0);
    struct one_part p;
    p.first = (int)blockIdx.x * c.outputs + half * each + (half < more ? half : more);
    p.most = each + (half / 2 * 2 < more ? 1 : 0);
    const int left = c.out - p.first;
    p.there = left < 0 ? 0 : left < mine ? left : mine;
    return p;
}

/* Of a half-warp; the scales of two neighbours begin in different banks. */
template <int T> static __device__ __forceinline__ uint8_t *one_scales(const one_call &c, int half)
{
    return (uint8_t *)rows_shared + c.scales_at + (size_t)half * (T * c.scale_bytes + 16);
}

/* ---- The row ---- */

/* INT8: the row as floats, [unit][word 4][lane] of the two blocks that a word of codes has. A
 * warp's stores turn their lanes, so that they are in different banks. */
static __device__ __forceinline__ void one_put_floats(float *row, int i, uint4 v)
{
    const int block = i / 4, part = i % 4, turn = block / 2 % 2 + part / 2 * 2;
    const uint32_t a[4] = {v.x, v.y, v.z, v.w};
    const uint32_t b[4] = {turn & 1 ? a[1] : a[0], turn & 1 ? a[2] : a[1], turn & 1 ? a[3] : a[2],
                           turn & 1 ? a[0] : a[3]};
    float2 *to = (float2 *)row + (size_t)(block / 2 * CUDA_LANES + part * 4) * 2 + block % 2;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t word = turn & 2 ? b[(k + 2) % 4] : b[k];
        to[(k + turn) % 4 * 2] = make_float2(bf16_low(word), bf16_high(word));
    }
}

/* The sum of a block of 32 inputs, 8 of which each of 4 neighbouring threads has: pairs first, then
 * the tree of halves. */
static __device__ __forceinline__ float one_block_sum(uint4 v)
{
    float s[4] = {bf16_low(v.x) + bf16_high(v.x), bf16_low(v.y) + bf16_high(v.y),
                  bf16_low(v.z) + bf16_high(v.z), bf16_low(v.w) + bf16_high(v.w)};
#pragma unroll
    for (int k = 0; k < 4; k++)
        s[k] = s[k] + __shfl_xor_sync(0xffffffffu, s[k], 2);
#pragma unroll
    for (int k = 0; k < 4; k++)
        s[k] = s[k] + __shfl_xor_sync(0xffffffffu, s[k], 1);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Ends with a barrier. */
template <int F, bool NORM>
static __device__ __forceinline__ void one_stage(const one_call &c, const uint4 w[ROWS_PIECES])
{
    enum { PIECES = NORM ? (int)ROWS_PIECES : (int)ONE_PIECES };
    const int pieces = c.rows.inputs / ROWS_PIECE, threads = (int)blockDim.x;
    float *sums = (float *)((uint8_t *)rows_shared + c.sums_at);
#pragma unroll 1
    for (int first = 0; first < pieces; first += PIECES * threads) {
        uint4 v[PIECES];
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const int i = first + j * threads + (int)threadIdx.x;
            v[j] = make_uint4(0, 0, 0, 0);
            if (i < pieces)
                v[j] = load_fresh(c.rows.x + (size_t)i * ROWS_PIECE);
        }
        float inverse = 0.0f;
        if (NORM) {
            uint16_t *chain = (uint16_t *)((uint8_t *)rows_shared + c.rows.chain_at);
#pragma unroll
            for (int j = 0; j < PIECES; j++) {
                const int i = j * threads + (int)threadIdx.x;
                if (i < pieces)
                    rows_put_chain(chain, rows_chain_stride(c.rows.inputs), i, v[j]);
            }
            __syncthreads();
            rows_inverses<1>(c.rows);
            __syncthreads();
            inverse = *(const float *)((const uint8_t *)rows_shared + c.rows.inverse_at);
        }
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const int i = first + j * threads + (int)threadIdx.x;
            const uint4 piece = NORM ? rows_norm_piece(v[j], w[j % ROWS_PIECES], inverse) : v[j];
            if (F == WEIGHT_BF16) {
                if (i < pieces)
                    rows_put_lanes((uint32_t *)rows_shared, i, piece);
            } else {
                const float sum = one_block_sum(piece);
                if (i < pieces) {
                    one_put_floats((float *)rows_shared, i, piece);
                    if (i % 4 == 0)
                        sums[i / 4] = sum;
                }
            }
        }
    }
    __syncthreads();
}

/* ---- Products ---- */

/* A byte as a float: the lowest by the unit for conversions, which can do no more than a quarter of
 * them, the others as the mantissas of floats of 2^23 and more. */
template <int BYTE> static __device__ __forceinline__ float one_code(uint32_t codes)
{
#ifndef CUDA_EMULATED
    if (BYTE == 0) {
        float f;
        asm("{\n\t"
            ".reg .b8 a, b, c, d;\n\t"
            "mov.b32 {a, b, c, d}, %1;\n\t"
            "cvt.rn.f32.u8 %0, a;\n\t"
            "}"
            : "=f"(f)
            : "r"(codes));
        return f;
    }
#endif
    return __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440 + BYTE)) -
           __uint_as_float(0x4b000000u);
}

/* Two blocks: 4 codes, their inputs, two scales. */
static __device__ __forceinline__ float one_codes(uint32_t codes, float4 x, uint32_t scales,
                                                  float acc)
{
    const float t0 = fmaf(one_code<0>(codes), x.x, one_code<1>(codes) * x.y);
    const float t1 = fmaf(one_code<2>(codes), x.z, one_code<3>(codes) * x.w);
    acc = fmaf(t0, bf16_low(scales), acc);
    return fmaf(t1, bf16_high(scales), acc);
}

/* acc goes on by one unit. scales: of this output. */
template <int F>
static __device__ __forceinline__ float one_unit(uint4 w, int unit, int lane, const uint4 *scales,
                                                 float acc)
{
    if (F == WEIGHT_BF16)
        return lanes_dot(w, rows_shared[unit * CUDA_LANES + lane], acc);
    const float4 *x = (const float4 *)rows_shared + unit * 4 * CUDA_LANES + lane;
    const uint4 s = scales[unit];
    acc = one_codes(w.x, x[0], s.x, acc);
    acc = one_codes(w.y, x[CUDA_LANES], s.y, acc);
    acc = one_codes(w.z, x[2 * CUDA_LANES], s.z, acc);
    return one_codes(w.w, x[3 * CUDA_LANES], s.w, acc);
}

/* BIASES: pairs of biases that a lane has of an output. Registers: 96 beside the sparse ffn's
 * kernel, 128 beside attention. */
template <int F, int HALVES, int T, int B, int PLACES, int UNITS, int BIASES, bool NORM>
static __global__ __launch_bounds__(HALVES *(CUDA_LANES + (NORM ? 2 : 0)),
                                    2) void ring_one(const one_call c)
{
    enum { BYTES = B * ONE_UNIT };
    const int lane = threadIdx.x % CUDA_LANES, half = threadIdx.x / CUDA_LANES;
    const struct one_part part = one_part_of<HALVES>(c, half);
    const int first = part.first, there = part.there, groups = c.rows.inputs / CUDA_BLOCK;
    uint8_t *shared = (uint8_t *)rows_shared;
    uint8_t *room = shared + c.ring_at + (size_t)half * (PLACES * BYTES);
    const uint8_t *next = c.w + (size_t)first * c.row_bytes;
    uint64_t *barriers = (uint64_t *)(shared + c.barriers_at) + half * (PLACES + 1);
    int left = there > 0 ? (there * c.units - UNITS) / B : 0; /* pieces to be fetched */

    auto fetch = [&](int place) {
        if (left > 0) {
            if (!PTX_HOPPER) {
#pragma unroll
                for (int j = 0; j < B; j++)
                    copy_async(room + (place * B + j) * ONE_UNIT + lane * 16,
                               next + j * ONE_UNIT + lane * 16);
            } else if (lane == 0) {
                bulk_expect(&barriers[place], BYTES);
                bulk_copy(room + place * BYTES, next, BYTES, &barriers[place]);
            }
        }
        left--;
        next += BYTES;
        if (!PTX_HOPPER)
            copy_commit();
    };
    timeline_mark(NORM ? TIMELINE_PROJECT_STARTS : TIMELINE_OUTPUT_STARTS);
    uint4 begin[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; i++)
        begin[i] = one_load((there > 0 ? next : c.w) + i * ONE_UNIT + lane * 16);
    next += UNITS * ONE_UNIT;
    if (PTX_HOPPER && lane == 0)
#pragma unroll 1
        for (int i = 0; i < PLACES + 1; i++)
            bytes_barrier_init(&barriers[i]);
    if (F == WEIGHT_INT8_AFFINE32) {
        const uint8_t *from = c.scales + (size_t)first * c.scale_bytes;
        const int bytes = there * (int)c.scale_bytes;
        if (!PTX_HOPPER) {
            for (int i = lane * 16; i < bytes; i += ONE_UNIT)
                copy_async(one_scales<T>(c, half) + i, from + i);
            copy_commit();
        } else if (lane == 0 && there > 0) {
            bulk_expect(&barriers[PLACES], (unsigned)bytes);
            bulk_copy(one_scales<T>(c, half), from, (unsigned)bytes, &barriers[PLACES]);
        }
    }
    /* The kernel before is at work: what it reads, instructions too, would queue behind all of it.
     */
#pragma unroll 1
    for (int i = 0; i < PLACES; i++) {
        if (PTX_HOPPER && lane == 0 && i >= c.ahead && left > 0)
            bulk_wait(&barriers[i - c.ahead], 0);
        fetch(i);
    }
    uint32_t biases[T][BIASES];
    if (F == WEIGHT_INT8_AFFINE32)
#pragma unroll
        for (int t = 0; t < T; t++)
#pragma unroll
            for (int k = 0; k < BIASES; k++) {
                const uint16_t *from =
                    (const uint16_t *)(c.biases + (size_t)(first + t) * c.scale_bytes);
                const int g = lane + 2 * k * CUDA_LANES;
                biases[t][k] = g < groups && t < there ? from[g] : 0;
                if (g + CUDA_LANES < groups && t < there)
                    biases[t][k] |= (uint32_t)from[g + CUDA_LANES] << 16;
            }
    uint4 norm[ROWS_PIECES];
    rows_take_norm<NORM>(c.rows, norm);
    timeline_mark(NORM ? TIMELINE_PROJECT_WAITS : TIMELINE_OUTPUT_WAITS);
    pdl_wait();
    /* Not before: so nothing that starts early can meet a kernel before this one's predecessor. */
    pdl_launch_next();
    timeline_mark(NORM ? TIMELINE_PROJECT_THERE : TIMELINE_OUTPUT_THERE);

    float before = 0.0f;
    if (c.add && lane < there)
        before = bf16_float(load_fresh_one(c.y + first + lane));
    if (F == WEIGHT_INT8_AFFINE32 && !PTX_HOPPER)
        copy_wait<PLACES>(); /* the scales, seen behind the barrier */
    one_stage<F, NORM>(c, norm);
    timeline_mark(NORM ? TIMELINE_PROJECT_STAGED : TIMELINE_OUTPUT_STAGED);
    if (F == WEIGHT_INT8_AFFINE32 && PTX_HOPPER && there > 0)
        bulk_wait(&barriers[PLACES], 0);

    float start[T] = {};
    if (F == WEIGHT_INT8_AFFINE32) {
        const float *sums = (const float *)(shared + c.sums_at);
#pragma unroll
        for (int k = 0; k < 2 * BIASES; k++) {
            const int g = lane + k * CUDA_LANES;
            if (g < groups)
#pragma unroll
                for (int t = 0; t < T; t++)
                    start[t] =
                        fmaf(k % 2 ? bf16_high(biases[t][k / 2]) : bf16_low(biases[t][k / 2]),
                             sums[g], start[t]);
        }
    }
    const uint4 *scales = (const uint4 *)one_scales<T>(c, half);
    float result = 0.0f;
    int place = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int t = 0; t < part.most; t++) {
        float acc = start[0];
#pragma unroll
        for (int u = 1; u < T; u++)
            acc = t == u ? start[u] : acc;
        int unit = 0;
        if (t == 0) {
#pragma unroll
            for (int i = 0; i < UNITS; i++) {
                one_keep(begin[i]);
                acc = one_unit<F>(begin[i], i, lane, scales, acc);
            }
            unit = UNITS;
        }
#pragma unroll 1
        for (; unit < c.units; unit += B) {
            if (!PTX_HOPPER)
                copy_wait<PLACES - 1>();
            else if (t < there)
                bulk_wait(&barriers[place], turn);
#pragma unroll
            for (int j = 0; j < B; j++)
                acc = one_unit<F>(*(const uint4 *)(room + (place * B + j) * ONE_UNIT + lane * 16),
                                  unit + j, lane, scales, acc);
            if (PTX_HOPPER)
                __syncwarp();
            fetch(place);
            if (++place == PLACES) {
                place = 0;
                turn++;
            }
        }
        scales += c.scale_bytes / 16;
        acc = lanes_sum(acc);
        result = lane == t ? acc : result;
    }
    timeline_mark(NORM ? TIMELINE_PROJECT_MULTIPLIED : TIMELINE_OUTPUT_MULTIPLIED);
    if (lane < there)
        c.y[first + lane] = c.add ? bf16_of(before + rounded(result)) : bf16_of(result);
    timeline_mark(NORM ? TIMELINE_PROJECT_ENDS : TIMELINE_OUTPUT_ENDS);
}

/* T: outputs of a half-warp at most. False, and nothing launched: these sizes do not fit. */
template <int F, int HALVES, int T, int B, int PLACES, int UNITS, int BIASES, bool NORM>
static bool ring_one_launch(const struct cuda_launch *l, const struct cuda_linear *a, int ahead)
{
    const bool codes = F == WEIGHT_INT8_AFFINE32;
    const int inputs = a->w->in, blocks = l->device->multiprocessors;
    struct one_call c = {};
    c.w = a->w->data;
    c.scales = a->w->scales;
    c.biases = a->w->biases;
    c.row_bytes = a->w->row_bytes;
    c.scale_bytes = codes ? a->w->scale_bytes : 0;
    c.out = a->w->out;
    c.units = (int)(a->w->row_bytes / ONE_UNIT);
    c.outputs = (c.out + blocks - 1) / blocks;
    c.rows.x = a->x;
    c.rows.norm = a->norm;
    c.rows.inputs = inputs;
    c.rows.eps = a->eps;
    c.y = a->y;
    c.add = a->add;
    c.ahead = ahead;
    if (c.outputs > HALVES * T || c.units < UNITS || c.units % B != 0 || UNITS % B != 0 ||
        (NORM && inputs > ROWS_PIECES * HALVES * CUDA_LANES * ROWS_PIECE) ||
        (codes && inputs > 2 * BIASES * CUDA_LANES * CUDA_BLOCK))
        return false;
    /* The norm's chain is read before the row is written. */
    const int row = inputs * (codes ? (int)sizeof(float) : (int)sizeof(uint16_t));
    const int chain = NORM ? (inputs + CUDA_LANES * ROWS_PIECE) * (int)sizeof(uint16_t) : 0;
    int at = row < chain ? chain : row;
    c.rows.inverse_at = at;
    at += 16;
    c.sums_at = at;
    at += codes ? inputs / CUDA_BLOCK * (int)sizeof(float) : 0;
    at = (at + 15) / 16 * 16;
    c.scales_at = at;
    at += codes ? HALVES * (T * (int)c.scale_bytes + 16) : 0;
    c.barriers_at = at;
    at += HALVES * (PLACES + 1) * (int)sizeof(uint64_t);
    at = (at + 127) / 128 * 128;
    c.ring_at = at;
    at += HALVES * PLACES * B * ONE_UNIT;
    if ((size_t)at > l->device->shared_most)
        return false;
    cuda_launch(l, "ring_one", ring_one<F, HALVES, T, B, PLACES, UNITS, BIASES, NORM>,
                dim3((unsigned)((c.out + c.outputs - 1) / c.outputs)), dim3(HALVES * CUDA_LANES),
                (size_t)at, c);
    return true;
}

#endif
