/* Few rows past weights that stream through shared memory. A half-warp owns O outputs, a thread its
 * lane. The ring is deep (100 KB and more on a multiprocessor) and filled before the rows are
 * there: what comes before, the norm and the waiting for them are hidden behind it. From compute
 * capability 9.0 on a warp has a ring, which its first thread fills by bulk copies; before, each
 * thread has a ring of its own, which it fills by asynchronous copies and reads back itself. Either
 * way nothing but a warp's own copies is waited for. */
#include "engine/compute/cuda/ring.cuh"

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"
#include "engine/compute/cuda/ring_one.cuh"
#include "engine/compute/cuda/rows.cuh"
#include "engine/compute/cuda/timeline.cuh"

enum {
    UNIT_BYTES = 256,
    RING_THREADS = 640 /* of a block, at most */
};

struct ring_call {
    const uint8_t *w, *scales, *biases;
    size_t row_bytes, scale_bytes;
    int out, units; /* 256-byte pieces of an output */
    struct rows_call rows;
    size_t y_stride;
    uint16_t *y;
    bool add;
    /* offsets in shared memory */
    int sums_at, scales_at, barriers_at, ring_at;
};

/* Sums of the rows over groups of 32 inputs, four groups by a half-warp at once: pairs first, then
 * the tree of halves, in which each half of the lanes goes on with half of the groups. */
template <int R> static __device__ __forceinline__ void sum_groups(const ring_call &c)
{
    const int quads = c.rows.inputs / CUDA_BF16_GROUP; /* an even number */
    const int half = threadIdx.x / CUDA_LANES, lane = threadIdx.x % CUDA_LANES;
    float *sums = (float *)((uint8_t *)rows_shared + c.sums_at);
#pragma unroll 4
    for (int i = half; i < R * quads; i += (int)blockDim.x / CUDA_LANES) { /* an even number */
        const uint4 v = rows_shared[i * CUDA_LANES + lane];
        const float s[4] = {bf16_low(v.x) + bf16_high(v.x), bf16_low(v.y) + bf16_high(v.y),
                            bf16_low(v.z) + bf16_high(v.z), bf16_low(v.w) + bf16_high(v.w)};
        float a = lane & 8 ? s[2] : s[0], b = lane & 8 ? s[3] : s[1];
        a = a + __shfl_xor_sync(0xffffffffu, lane & 8 ? s[0] : s[2], 8);
        b = b + __shfl_xor_sync(0xffffffffu, lane & 8 ? s[1] : s[3], 8);
        float sum = lane & 4 ? b : a;
        sum = sum + __shfl_xor_sync(0xffffffffu, lane & 4 ? a : b, 4);
        sum = sum + __shfl_xor_sync(0xffffffffu, sum, 2);
        sum = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
        if (lane % 4 == 0)
            sums[i * 4 + lane / 4] = sum;
    }
    __syncthreads();
}

template <int BYTE> static __device__ __forceinline__ float code_float(uint32_t codes)
{
    return __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7440 + BYTE)) -
           __uint_as_float(0x4b000000u);
}

/* Two blocks: 4 codes, two pairs of inputs, two scales. */
static __device__ __forceinline__ float dot_codes(uint32_t codes, uint32_t x0, uint32_t x1,
                                                  uint32_t scales, float acc)
{
    const float t0 = fmaf(code_float<0>(codes), bf16_low(x0), code_float<1>(codes) * bf16_high(x0));
    acc = fmaf(t0, bf16_low(scales), acc);
    const float t1 = fmaf(code_float<2>(codes), bf16_low(x1), code_float<3>(codes) * bf16_high(x1));
    return fmaf(t1, bf16_high(scales), acc);
}

/* Registers are kept to what lets another kernel beside a block of one row. */
static constexpr int ring_blocks(int rows)
{
    return rows == 1 ? 2 : 1;
}

/* Where a warp's weights are on their way. O outputs each half-warp; room for GROUPS groups of B
 * units of each. */
template <int O, int B, int GROUPS> struct ring {
    const uint8_t *w; /* a thread's own lane of its first output; bulk: of the warp's first */
    size_t row_bytes;
    int outputs; /* that there are: of the half-warp; bulk: of the warp */
    uint8_t *room;
    uint64_t *barriers;
};

template <int O, int B, int GROUPS>
static __device__ __forceinline__ void ring_open(const struct ring_call &c,
                                                 struct ring<O, B, GROUPS> *r)
{
    const int warp = (int)threadIdx.x / 32, half = (int)threadIdx.x / CUDA_LANES;
    const int halves = (int)blockDim.x / CUDA_LANES;
    uint8_t *shared = (uint8_t *)rows_shared;
    const int first = ((int)blockIdx.x * halves + (PTX_HOPPER ? 2 * warp : half)) * O;
    r->w = c.w + (size_t)first * c.row_bytes;
    r->row_bytes = c.row_bytes;
    r->outputs = c.out - first;
    r->barriers = (uint64_t *)(shared + c.barriers_at) + warp * GROUPS;
    if (PTX_HOPPER) {
        r->room = shared + c.ring_at + (size_t)warp * (2 * O * B * GROUPS * UNIT_BYTES);
        if (threadIdx.x % 32 == 0)
            for (int i = 0; i < GROUPS; i++)
                bytes_barrier_init(&r->barriers[i]);
        __syncwarp();
    } else {
        r->w += threadIdx.x % CUDA_LANES * 16;
        r->room = shared + c.ring_at + threadIdx.x * 16;
    }
}

/* Starts to copy group `batch`; its place has been read by all of the warp. */
template <int O, int B, int GROUPS>
static __device__ __forceinline__ void ring_fetch(const struct ring<O, B, GROUPS> &r, int batch)
{
    enum { BYTES = B * UNIT_BYTES };
    const int slot = batch % GROUPS;
    if (PTX_HOPPER) {
        const int outputs = r.outputs < 0 ? 0 : r.outputs < 2 * O ? r.outputs : 2 * O;
        const bool mine = threadIdx.x % 32 == 0;
        if (mine)
            bulk_expect(&r.barriers[slot], (unsigned)(outputs * BYTES));
#pragma unroll
        for (int o = 0; o < 2 * O; o++)
            if (mine && o < outputs)
                bulk_copy(r.room + (slot * 2 * O + o) * BYTES,
                          r.w + (size_t)o * r.row_bytes + (size_t)batch * BYTES, BYTES,
                          &r.barriers[slot]);
    } else {
#pragma unroll
        for (int j = 0; j < B; j++)
#pragma unroll
            for (int o = 0; o < O; o++)
                if (o < r.outputs)
                    copy_async(r.room + ((slot * B + j) * O + o) * (int)blockDim.x * 16,
                               r.w + (size_t)o * r.row_bytes +
                                   (size_t)(batch * B + j) * UNIT_BYTES);
    }
}

/* Until group `batch` is there: of GROUPS that are under way, counting empty ones, the oldest. */
template <int O, int B, int GROUPS>
static __device__ __forceinline__ void ring_wait(const struct ring<O, B, GROUPS> &r, int batch)
{
    if (PTX_HOPPER)
        bulk_wait(&r.barriers[batch % GROUPS], (unsigned)(batch / GROUPS));
    else
        copy_wait<GROUPS - 1>();
}

/* This lane's part of unit j of output o. */
template <int O, int B, int GROUPS>
static __device__ __forceinline__ uint4 ring_take(const struct ring<O, B, GROUPS> &r, int batch,
                                                  int j, int o)
{
    const int slot = batch % GROUPS, half = (int)threadIdx.x / CUDA_LANES % 2;
    const int lane = (int)threadIdx.x % CUDA_LANES;
    const int at = PTX_HOPPER ? ((slot * 2 * O + half * O + o) * B + j) * UNIT_BYTES + lane * 16
                              : ((slot * B + j) * O + o) * (int)blockDim.x * 16;
    return *(const uint4 *)(r.room + at);
}

/* Few blocks of many threads: a multiprocessor stages the rows once. D: units of the ring. */
template <int F, int R, int O, int D, int B, bool NORM>
static __global__ __launch_bounds__(RING_THREADS,
                                    ring_blocks(R)) void ring_linear(const ring_call c)
{
    /* Before the rows are there: all, or, where the kernel before leaves no room to be early in and
     * the rows would queue behind it, one. */
    enum { GROUPS = D / B, EARLY = NORM ? 1 : GROUPS, PIECES = NORM ? 1 : 2 };
    const int T = (int)blockDim.x, HALVES = T / CUDA_LANES;
    const int lane = threadIdx.x % CUDA_LANES, half = threadIdx.x / CUDA_LANES;
    const int first = ((int)blockIdx.x * HALVES + half) * O;
    const int batches = c.units / B, words4 = c.rows.inputs / ROWS_PIECE;
    const uint8_t *scales = (const uint8_t *)rows_shared + c.scales_at;
    struct ring<O, B, GROUPS> ring;
    timeline_mark(NORM ? TIMELINE_PROJECT_STARTS : TIMELINE_OUTPUT_STARTS);
    ring_open(c, &ring);

    if (F == WEIGHT_INT8_AFFINE32) {
        /* [output of the block][scales, biases] */
        const int each = (int)c.scale_bytes / 16, begin = (int)blockIdx.x * HALVES * O;
        for (int i = threadIdx.x; i < HALVES * O * each * 2; i += T) {
            const int o = i / (2 * each), part = i / each % 2, at = i % each;
            if (begin + o < c.out)
                copy_async((uint8_t *)rows_shared + c.scales_at + (size_t)i * 16,
                           (part ? c.biases : c.scales) + (size_t)(begin + o) * c.scale_bytes +
                               (size_t)at * 16);
        }
        copy_commit();
    }
    auto begin = [&](int first_batch, int end) {
#pragma unroll 1
        for (int batch = first_batch; batch < end; batch++) {
            if (batch < batches)
                ring_fetch(ring, batch);
            copy_commit();
        }
    };
    begin(0, EARLY);
    uint4 norm[PIECES] = {};
    rows_take_norm<NORM, PIECES>(c.rows, norm);
    timeline_mark(NORM ? TIMELINE_PROJECT_WAITS : TIMELINE_OUTPUT_WAITS);
    pdl_wait();
    /* Not before: so nothing that starts early can meet a kernel before this one's predecessor. */
    pdl_launch_next();
    timeline_mark(NORM ? TIMELINE_PROJECT_THERE : TIMELINE_OUTPUT_THERE);

    float before = 0.0f;
    const int my_row = lane / O, my_output = first + lane % O;
    const bool mine = lane < R * O && my_output < c.out;
    uint16_t *y = c.y + (size_t)my_row * c.y_stride + my_output;
    if (c.add && mine)
        before = bf16_float(load_fresh_one(y));
    rows_stage<R, NORM, PIECES>(c.rows, norm, [&]() { begin(EARLY, GROUPS); });

    timeline_mark(NORM ? TIMELINE_PROJECT_STAGED : TIMELINE_OUTPUT_STAGED);
    float acc[R][O] = {};
    if (F == WEIGHT_INT8_AFFINE32) {
        const int groups = c.rows.inputs / CUDA_BLOCK;
        const float *sums = (const float *)((const uint8_t *)rows_shared + c.sums_at);
        copy_wait<GROUPS>();
        sum_groups<R>(c); /* ends with a barrier: all scales are there too */
#pragma unroll 4
        for (int g = lane; g < groups; g += CUDA_LANES)
#pragma unroll
            for (int o = 0; o < O; o++) {
                const uint16_t *biases =
                    (const uint16_t *)(scales + ((size_t)(half * O + o) * 2 + 1) * c.scale_bytes);
#pragma unroll
                for (int r = 0; r < R; r++)
                    acc[r][o] = fmaf(bf16_float(biases[g]), sums[r * groups + g], acc[r][o]);
            }
    }
#pragma unroll 1
    for (int batch = 0; batch < batches; batch++) {
        ring_wait(ring, batch);
#pragma unroll
        for (int j = 0; j < B; j++) {
            const int unit = batch * B + j;
            uint4 w[O];
#pragma unroll
            for (int o = 0; o < O; o++)
                w[o] = ring_take(ring, batch, j, o);
            if (F == WEIGHT_BF16) {
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const uint4 x = rows_shared[r * words4 + unit * CUDA_LANES + lane];
#pragma unroll
                    for (int o = 0; o < O; o++)
                        acc[r][o] = lanes_dot(w[o], x, acc[r][o]);
                }
            } else {
                uint4 s[O];
#pragma unroll
                for (int o = 0; o < O; o++)
                    s[o] = *(const uint4 *)(scales + (size_t)(half * O + o) * 2 * c.scale_bytes +
                                            (size_t)unit * 16);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const uint4 *x = rows_shared + r * words4 + unit * 2 * CUDA_LANES + lane;
                    const uint4 a = x[0], b = x[CUDA_LANES];
#pragma unroll
                    for (int o = 0; o < O; o++) {
                        float v = acc[r][o];
                        v = dot_codes(w[o].x, a.x, a.y, s[o].x, v);
                        v = dot_codes(w[o].y, a.z, a.w, s[o].y, v);
                        v = dot_codes(w[o].z, b.x, b.y, s[o].z, v);
                        acc[r][o] = dot_codes(w[o].w, b.z, b.w, s[o].w, v);
                    }
                }
            }
        }
        if (PTX_HOPPER)
            __syncwarp();
        if (batch + GROUPS < batches)
            ring_fetch(ring, batch + GROUPS);
        copy_commit();
    }

    timeline_mark(NORM ? TIMELINE_PROJECT_MULTIPLIED : TIMELINE_OUTPUT_MULTIPLIED);
    float result = 0.0f;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int o = 0; o < O; o++) {
            const float v = lanes_sum(acc[r][o]);
            if (lane == r * O + o)
                result = v;
        }
    if (mine)
        *y = c.add ? bf16_of(before + rounded(result)) : bf16_of(result);
    timeline_mark(NORM ? TIMELINE_PROJECT_ENDS : TIMELINE_OUTPUT_ENDS);
}

template <int F, int R, int O, int D, int B, bool NORM>
static bool ring_launch(const struct cuda_launch *l, const struct cuda_linear *a, int threads)
{
    const bool codes = F == WEIGHT_INT8_AFFINE32;
    const int outputs = threads / CUDA_LANES * O, inputs = a->w->in;
    struct ring_call c = {};
    c.w = a->w->data;
    c.scales = a->w->scales;
    c.biases = a->w->biases;
    c.row_bytes = a->w->row_bytes;
    c.scale_bytes = a->w->scale_bytes;
    c.out = a->w->out;
    c.units = (int)(a->w->row_bytes / UNIT_BYTES);
    c.rows.x = a->x;
    c.rows.norm = a->norm;
    c.rows.x_stride = a->x_stride;
    c.y_stride = a->y_stride;
    c.rows.inputs = inputs;
    c.rows.eps = a->eps;
    c.y = a->y;
    c.add = a->add;
    int at = rows_bytes(&c.rows, R, NORM);
    c.sums_at = at;
    at += codes ? R * inputs / CUDA_BLOCK * (int)sizeof(float) : 0;
    at = (at + 15) / 16 * 16;
    c.scales_at = at;
    at += codes ? outputs * 2 * (int)c.scale_bytes : 0;
    at = (at + 15) / 16 * 16;
    c.barriers_at = at;
    at += threads / 32 * (D / B) * (int)sizeof(uint64_t);
    at = (at + 127) / 128 * 128;
    c.ring_at = at;
    at += D * O * threads * 16;
    /* Of two blocks on the first multiprocessors that are free, others would stand idle. */
    const int alone = (int)(l->device->shared_most / 2) + 1;
    at = at < alone ? alone : at;
    if (c.units % B != 0 || (size_t)at > l->device->shared_most ||
        (NORM && inputs > threads * ROWS_PIECE))
        return false;
    cuda_launch(l, "ring_linear", ring_linear<F, R, O, D, B, NORM>,
                dim3((unsigned)((c.out + outputs - 1) / outputs)), dim3((unsigned)threads),
                (size_t)at, c);
    return true;
}

/* Threads with which the outputs are one wave of blocks, one on each multiprocessor. */
static int ring_threads(const struct cuda_launch *l, int out, int outputs)
{
    const int blocks = l->device->multiprocessors, warp = 2 * outputs;
    const int warps = (out + blocks * warp - 1) / (blocks * warp);
    const int threads = warps * 32 < 128 ? 128 : warps * 32;
    return threads < RING_THREADS ? threads : RING_THREADS;
}

/* Long rows: a half-warp has one output. Rings are as deep as leaves room for a block of attention
 * beside them. */
template <int F, int R, bool NORM>
static bool ring_shape(const struct cuda_launch *l, const struct cuda_linear *a)
{
    enum { LONG = 4096, HALF = 320 };
    if (a->w->in >= LONG)
        return !NORM && (F == WEIGHT_BF16 ? ring_launch<F, R, 1, 32, 4, NORM>(l, a, 256)
                                          : ring_launch<F, R, 1, 24, 2, NORM>(l, a, 256));
    const int least = NORM ? (a->w->in / ROWS_PIECE + 31) / 32 * 32 : 0;
    const int wave = ring_threads(l, a->w->out, 2), threads = wave < least ? least : wave;
    if (threads <= HALF)
        return ring_launch<F, R, 2, 12, 2, NORM>(l, a, threads);
    return ring_launch<F, R, 2, 6, 2, NORM>(l, a, threads);
}

template <int F, int R>
static bool ring_norm(const struct cuda_launch *l, const struct cuda_linear *a)
{
    return a->norm != NULL ? ring_shape<F, R, true>(l, a) : ring_shape<F, R, false>(l, a);
}

template <int F> static bool ring_rows(const struct cuda_launch *l, const struct cuda_linear *a)
{
    switch (a->rows) {
    case 1:
        return (F == WEIGHT_BF16 && a->norm == NULL && ring_one_launch(l, a)) ||
               ring_norm<F, 1>(l, a);
    case 2:
        return ring_norm<F, 2>(l, a);
    case 3:
        return ring_norm<F, 3>(l, a);
    case 4:
        return ring_norm<F, 4>(l, a);
    default:
        return false;
    }
}

bool cuda_linear_ring(const struct cuda_launch *l, const struct cuda_linear *a)
{
    const int group = a->w->format == WEIGHT_BF16 ? CUDA_BF16_GROUP : CUDA_INT8_GROUP;
    if (a->w->format == WEIGHT_NVFP4 || a->w->in % group != 0 || a->x_stride % ROWS_PIECE != 0 ||
        (uintptr_t)a->x % 16 != 0 || (uintptr_t)a->norm % 16 != 0)
        return false;
    return a->w->format == WEIGHT_BF16 ? ring_rows<WEIGHT_BF16>(l, a)
                                       : ring_rows<WEIGHT_INT8_AFFINE32>(l, a);
}
