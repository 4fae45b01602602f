/* Linear layers: few rows stream the weights once past all rows (linear.cuh); many rows are cut
 * into tiles of rows and outputs in shared memory. Both are the sums of numerics.md, so the bits
 * are the CPU's whatever the number of rows. */
#include "engine/compute/cuda/fast.cuh"
#include "engine/compute/cuda/linear.cuh"
#include "engine/compute/cuda/ring.cuh"

/* ---- Few rows ---- */

struct linear_rows linear_rows_of(const struct cuda_linear *a)
{
    struct linear_rows rows = {};
    rows.x = a->x;
    rows.stride = a->x_stride;
    rows.norm = a->norm;
    rows.eps = a->eps;
    rows.rows = a->rows;
    rows.inputs = a->w->in;
    rows.whole = a->w->in % CUDA_BF16_GROUP == 0 && a->x_stride % 2 == 0 &&
                 (uintptr_t)a->x % 4 == 0 && (uintptr_t)a->norm % 4 == 0;
    return rows;
}

enum {
    /* So that two blocks or more are on a multiprocessor. */
    LINEAR_SHARED_SOFT = 98 * 1024
};

static int linear_few_sizes(const struct cuda_linear *a, int r, const struct linear_plan *plan,
                            struct linear_few *p)
{
    const int group_bytes = CUDA_LANES * 16, slab = p->slab * linear_unit_groups(a->w->format);
    const int outputs = p->tiles * plan->warps * 2 * plan->outputs;
    int at = slab * r * group_bytes;
    p->norm_at = at;
    at += a->norm ? slab * group_bytes : 0;
    p->inverse_at = at;
    at += r * (int)sizeof(float);
    p->chain_at = at;
    at += r * CUDA_LANES * (int)sizeof(float);
    p->sums_at = at;
    at += r * p->sums * (int)sizeof(float);
    at = linear_round_up(at, 16);
    p->scales_at = at;
    if (a->w->format != WEIGHT_BF16)
        at += outputs * (int)a->w->scale_bytes * (a->w->format == WEIGHT_NVFP4 ? 1 : 2);
    return at;
}

bool linear_few_fill(const struct cuda_launch *l, const struct cuda_linear *a, int r,
                     const struct linear_plan *plan, struct linear_few *p)
{
    const int batch = plan->depth / plan->outputs;
    *p = {};
    p->rows = linear_rows_of(a);
    p->w = *a->w;
    p->tiles = plan->tiles;
    p->late = plan->late;
    p->units = (int)(a->w->row_bytes / LINEAR_UNIT_BYTES);
    if (a->w->format == WEIGHT_INT8_AFFINE32)
        p->sums = linear_round_up(a->w->padded / CUDA_BLOCK, CUDA_LANES);
    p->slab = linear_round_up(p->units, batch);
    p->shared = linear_few_sizes(a, r, plan, p);
    const size_t hard = l->device->shared_most;
    const size_t most = hard < LINEAR_SHARED_SOFT ? hard : (size_t)LINEAR_SHARED_SOFT;
    if (r < CUDA_RECORD_ROWS)
        return (size_t)p->shared <= hard;
    for (int parts = 2; (size_t)p->shared > most && p->slab > batch; parts++) {
        p->slab = linear_round_up((p->units + parts - 1) / parts, batch);
        p->shared = linear_few_sizes(a, r, plan, p);
    }
    return true;
}

template <int F, int R>
static bool linear_few_shape(const struct cuda_launch *l, const struct cuda_linear *a,
                             const struct linear_plan *plan)
{
    if constexpr (F == WEIGHT_BF16) {
        if (plan->outputs == 1)
            return linear_few_launch<F, R, 1, 16>(l, a, plan);
        else
            return linear_few_launch<F, R, 2, 8>(l, a, plan);
    } else if constexpr (F == WEIGHT_INT8_AFFINE32) {
        if (plan->outputs == 1)
            return linear_few_launch<F, R, 1, 8>(l, a, plan);
        else
            return linear_few_launch<F, R, 2, 8>(l, a, plan);
    } else {
        return linear_few_launch<F, R, 1, 4>(l, a, plan);
    }
}

template <int F>
static void linear_few_format(const struct cuda_launch *l, const struct cuda_linear *a,
                              const struct linear_plan *plan)
{
    bool done;
    if (a->rows == 1)
        done = linear_few_shape<F, 1>(l, a, plan);
    else if (a->rows == 2)
        done = linear_few_shape<F, 2>(l, a, plan);
    else if (a->rows == 3)
        done = linear_few_shape<F, 3>(l, a, plan);
    else if (a->rows == 4)
        done = linear_few_shape<F, 4>(l, a, plan);
    else if (a->rows <= 6)
        done = linear_few_shape<F, 6>(l, a, plan);
    else if (a->rows <= 8)
        done = linear_few_shape<F, 8>(l, a, plan);
    else
        done = false;
    if (!done)
        linear_few_shape<F, CUDA_RECORD_ROWS>(l, a, plan);
}

/* Two outputs a half-warp share the unpacking of a row; where that leaves a multiprocessor too few
 * warps to keep its memory busy, one output with twice the loads under way. */
static struct linear_plan linear_few_plan(const struct cuda_launch *l, const struct cuda_linear *a)
{
    struct linear_plan plan = {};
    const int format = a->w->format;
    plan.tiles = 1;
    plan.warps = 4;
    plan.late = true; /* after its own wait: what starts early meets no kernel before the last */
    plan.outputs = a->w->out >= 40 * l->device->multiprocessors && format != WEIGHT_NVFP4 ? 2 : 1;
    if (plan.outputs == 1 && a->rows > 1)
        plan.warps = 8; /* fewer copies of the rows */
    if (format == WEIGHT_BF16)
        plan.depth = plan.outputs == 1 ? 16 : 8;
    else
        plan.depth = format == WEIGHT_NVFP4 ? 4 : 8;
    return plan;
}

/* ---- Many rows ---- */

/* A block of 16 warps makes 64 outputs of 32 rows; a half-warp 8 outputs of 8 rows. Shared memory
 * holds 4 blocks of inputs of both, twice: [row or output][half][lane] of 8 bytes, where half h is
 * of blocks 2h and 2h+1, so that 16 lanes read 128 bytes that follow each other. */
enum {
    MANY_THREADS = 512,
    MANY_OUTPUTS = 64,
    MANY_ROWS = 32,
    MANY_PART = 8, /* outputs and rows of a half-warp */
    MANY_HALF = CUDA_LANES,
    MANY_PIECES = 2 * CUDA_LANES /* of 8 bytes, of a row or an output */
};

struct linear_many_call {
    struct linear_rows rows;
    struct cuda_matrix w;
    uint16_t *y;
    size_t y_stride;
    float *logits; /* instead of y */
    bool add;
    int groups; /* of 4 blocks of inputs */
    int sums;   /* of a row: INT8 */
};

struct linear_many_shared {
    uint2 x[2][MANY_ROWS * MANY_PIECES];
    uint2 w[2][MANY_OUTPUTS * MANY_PIECES];
    float scale[2][MANY_OUTPUTS][2][4]; /* [half of the lanes][block] */
    float inverse[MANY_ROWS];
};

static __device__ __forceinline__ void many_copy8(void *shared, const void *global)
{
#ifdef CUDA_EMULATED
    *(uint2 *)shared = *(const uint2 *)global;
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
#endif
}

/* A thread's piece of some inputs of a row, and of the norm's weights. */
static __device__ __forceinline__ uint4 many_load_row(const struct linear_rows &rows, int r,
                                                      int group)
{
    const int k = group * CUDA_BF16_GROUP + 2 * (threadIdx.x % CUDA_LANES);
    const int n = r < rows.rows ? rows.inputs : 0;
    const uint16_t *row = rows.x + (size_t)r * rows.stride;
    return rows.whole ? linear_piece(row, k, n) : linear_piece_slowly(row, k, n);
}

static __device__ __forceinline__ uint4 many_load_norm(const struct linear_rows &rows, int group)
{
    const int k = group * CUDA_BF16_GROUP + 2 * (threadIdx.x % CUDA_LANES);
    return rows.whole ? linear_piece(rows.norm, k, rows.inputs)
                      : linear_piece_slowly(rows.norm, k, rows.inputs);
}

/* The lane's element of pair `from` and of its neighbours, in the order of the norm's chain. */
static __device__ __forceinline__ float many_square(float sum, uint4 q)
{
    const int lane = threadIdx.x % CUDA_LANES;
    const unsigned pick = linear_pick(lane);
    const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const uint32_t pair = __shfl_sync(0xffffffffu, words[i], c * 8 + lane / 2, CUDA_LANES);
            const float x = __uint_as_float(__byte_perm(pair, 0, pick));
            sum = fmaf(x, x, sum);
        }
    }
    return sum;
}

/* Weights of one group of blocks: what has to be decoded goes through registers. */
template <int F> struct many_weights {
    uint2 codes[2];
    uint32_t scales[2];
};

template <int F>
static __device__ __forceinline__ void
many_fetch_weights(const struct linear_many_call &p, struct linear_many_shared *s, int buffer,
                   int first, int group, struct many_weights<F> &m)
{
    if constexpr (F == WEIGHT_BF16) {
#pragma unroll
        for (int i = 0; i < MANY_OUTPUTS * MANY_PIECES / MANY_THREADS; i++) {
            const int piece = i * MANY_THREADS + (int)threadIdx.x;
            const int half = piece % 2, lane = piece / 2 % CUDA_LANES, o = piece / MANY_PIECES;
            uint2 *to = &s->w[buffer][o * MANY_PIECES + half * MANY_HALF + lane];
            if (first + o < p.w.out)
                many_copy8(to, p.w.data + (size_t)(first + o) * p.w.row_bytes +
                                   (size_t)group * 256 + lane * 16 + half * 8);
            else
                *to = make_uint2(0, 0);
        }
        copy_commit();
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int o = i * (MANY_OUTPUTS / 2) + (int)(threadIdx.x / CUDA_LANES);
            const int lane = threadIdx.x % CUDA_LANES;
            m.codes[i] = make_uint2(0, 0);
            m.scales[i] = 0;
            if (first + o >= p.w.out)
                continue;
            const uint8_t *row = p.w.data + (size_t)(first + o) * p.w.row_bytes;
            const uint8_t *scales = p.w.scales + (size_t)(first + o) * p.w.scale_bytes;
            if constexpr (F == WEIGHT_INT8_AFFINE32) {
                m.codes[i] = *(const uint2 *)(row + group / 2 * 256 + lane * 16 + group % 2 * 8);
                if (lane < 4)
                    m.scales[i] = ((const uint16_t *)scales)[group * 4 + lane];
            } else {
                m.codes[i].x =
                    *(const uint32_t *)(row + group / 4 * 256 + lane * 16 + group % 4 * 4);
                if (lane < 8)
                    m.scales[i] =
                        scales[lane / 4 * (p.w.padded / CUDA_BLOCK) + group * 4 + lane % 4];
            }
        }
    }
}

template <int F>
static __device__ __forceinline__ void many_store_weights(struct linear_many_shared *s, int buffer,
                                                          const struct many_weights<F> &m)
{
    if constexpr (F != WEIGHT_BF16) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int o = i * (MANY_OUTPUTS / 2) + (int)(threadIdx.x / CUDA_LANES);
            const int lane = threadIdx.x % CUDA_LANES;
            uint32_t pairs[4];
            if constexpr (F == WEIGHT_INT8_AFFINE32) {
                float f[8]; /* codes are exact in bf16 */
                linear_unpack_int8(m.codes[i].x, f);
                linear_unpack_int8(m.codes[i].y, f + 4);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    pairs[j] = __float_as_uint(f[2 * j]) >> 16 |
                               (__float_as_uint(f[2 * j + 1]) & 0xffff0000u);
                if (lane < 4)
                    s->scale[buffer][o][0][lane] = s->scale[buffer][o][1][lane] =
                        bf16_float((uint16_t)m.scales[i]);
            } else {
                linear_nvfp4_pairs(m.codes[i].x, pairs);
                if (lane < 8)
                    s->scale[buffer][o][lane / 4][lane % 4] = linear_e4m3(m.scales[i]);
            }
            uint2 *to = &s->w[buffer][o * MANY_PIECES + lane];
            to[0] = make_uint2(pairs[0], pairs[1]);
            to[MANY_HALF] = make_uint2(pairs[2], pairs[3]);
        }
    }
}

/* acc[r * 8 + o] goes on by 2 blocks of inputs. */
template <int F>
static __device__ __forceinline__ void many_multiply(const struct linear_many_shared *s, int buffer,
                                                     int half, int row, int output, int lane,
                                                     float acc[MANY_PART * MANY_PART])
{
    uint2 w[MANY_PART], x[MANY_PART];
#pragma unroll
    for (int i = 0; i < MANY_PART; i++) {
        w[i] = s->w[buffer][(output + i) * MANY_PIECES + half * MANY_HALF + lane];
        x[i] = s->x[buffer][(row + i) * MANY_PIECES + half * MANY_HALF + lane];
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float low[MANY_PART], high[MANY_PART], scale[MANY_PART];
#pragma unroll
        for (int o = 0; o < MANY_PART; o++) {
            low[o] = bf16_low(i ? w[o].y : w[o].x);
            high[o] = bf16_high(i ? w[o].y : w[o].x);
            if constexpr (F != WEIGHT_BF16)
                scale[o] = s->scale[buffer][output + o][lane / 8][half * 2 + i];
        }
#pragma unroll
        for (int r = 0; r < MANY_PART; r++) {
            const float a = bf16_low(i ? x[r].y : x[r].x), b = bf16_high(i ? x[r].y : x[r].x);
#pragma unroll
            for (int o = 0; o < MANY_PART; o++) {
                float *sum = &acc[r * MANY_PART + o];
                if constexpr (F == WEIGHT_BF16) {
                    *sum = fmaf(low[o], a, fmaf(high[o], b, *sum));
                } else {
                    const float odd = high[o] * b;
                    *sum = fmaf(fmaf(low[o], a, odd), scale[o], *sum);
                }
            }
        }
    }
}

template <int F>
static __global__ void __launch_bounds__(MANY_THREADS, 1)
    linear_many_kernel(const struct linear_many_call p)
{
    extern __shared__ uint4 linear_shared[];
    struct linear_many_shared *s = (struct linear_many_shared *)linear_shared;
    float *sums = (float *)(s + 1); /* [row][block] */
    const int lane = threadIdx.x % CUDA_LANES, half_warp = (int)(threadIdx.x / CUDA_LANES);
    const int first = (int)blockIdx.x * MANY_OUTPUTS, row0 = (int)blockIdx.y * MANY_ROWS;
    const int mine = row0 + half_warp; /* the row whose pieces this thread brings */
    struct many_weights<F> weights;

    pdl_launch_next();
    many_fetch_weights<F>(p, s, 0, first, 0, weights);
    pdl_wait();

    float inverse = 1.0f;
    if (p.rows.norm) {
        float sum = 0.0f;
#pragma unroll 4
        for (int g = 0; g < p.groups; g++)
            sum = many_square(sum, many_load_row(p.rows, mine, g));
        inverse = linear_inverse(lanes_sum(sum), p.rows.inputs, p.rows.eps);
    }
    if constexpr (F == WEIGHT_INT8_AFFINE32) {
        for (int g = 0; g < p.groups; g++) {
            uint4 q = many_load_row(p.rows, mine, g);
            if (p.rows.norm)
                q = linear_norm_quad(q, many_load_norm(p.rows, g), inverse);
            float f[8];
            linear_unpack(q, f);
            float v[4] = {f[0] + f[1], f[2] + f[3], f[4] + f[5], f[6] + f[7]};
            const int block = linear_scatter<4, 8>(v, lane);
            if (!(lane & linear_scatter_twins(4)))
                sums[half_warp * p.sums + g * 4 + block] = v[0];
        }
    }

    /* 32 half-warps: 4 parts of the rows, 8 of the outputs; the two of a warp share their rows */
    const int row = half_warp / 8 * MANY_PART, output = half_warp % 8 * MANY_PART;
    float acc[MANY_PART * MANY_PART];
#pragma unroll
    for (int i = 0; i < MANY_PART * MANY_PART; i++)
        acc[i] = 0.0f;
    if constexpr (F == WEIGHT_INT8_AFFINE32) {
        __syncthreads();
        for (int b = lane; b < p.w.padded / CUDA_BLOCK; b += CUDA_LANES) {
            float bias[MANY_PART];
#pragma unroll
            for (int o = 0; o < MANY_PART; o++) {
                const int out = first + output + o;
                bias[o] = 0.0f;
                if (out < p.w.out)
                    bias[o] = bf16_float(
                        ((const uint16_t *)(p.w.biases + (size_t)out * p.w.scale_bytes))[b]);
            }
#pragma unroll
            for (int i = 0; i < MANY_PART * MANY_PART; i++)
                acc[i] =
                    fmaf(bias[i % MANY_PART], sums[(row + i / MANY_PART) * p.sums + b], acc[i]);
        }
    }

    uint4 x = many_load_row(p.rows, mine, 0);
    for (int g = 0; g < p.groups; g++) {
        const int buffer = g % 2;
        if (p.rows.norm)
            x = linear_norm_quad(x, many_load_norm(p.rows, g), inverse);
        uint2 *to = &s->x[buffer][half_warp * MANY_PIECES + lane];
        to[0] = make_uint2(x.x, x.y);
        to[MANY_HALF] = make_uint2(x.z, x.w);
        many_store_weights<F>(s, buffer, weights);
        copy_wait<0>();
        __syncthreads();
        if (g + 1 < p.groups) {
            x = many_load_row(p.rows, mine, g + 1);
            many_fetch_weights<F>(p, s, 1 - buffer, first, g + 1, weights);
        }
        many_multiply<F>(s, buffer, 0, row, output, lane, acc);
        many_multiply<F>(s, buffer, 1, row, output, lane, acc);
    }

    constexpr int LEFT = linear_scatter_left(MANY_PART * MANY_PART);
    const int at = linear_scatter<MANY_PART * MANY_PART, 8>(acc, lane);
#pragma unroll
    for (int i = 0; i < LEFT; i++) {
        const int r = row0 + row + (at + i) / MANY_PART, o = first + output + (at + i) % MANY_PART;
        if (r >= p.rows.rows || o >= p.w.out)
            continue;
        uint16_t y = bf16_of(acc[i]);
        if (p.logits) {
            p.logits[(size_t)r * p.y_stride + o] = bf16_float(y);
            continue;
        }
        uint16_t *old = p.y + (size_t)r * p.y_stride + o;
        if (p.add)
            y = bf16_of(bf16_float(load_fresh_one(old)) + bf16_float(y));
        *old = y;
    }
}

template <int F>
static void linear_many_launch(const struct cuda_launch *l, const struct linear_many_call *p)
{
    const size_t shared =
        sizeof(struct linear_many_shared) + (size_t)p->sums * MANY_ROWS * sizeof(float);
    const dim3 grid((unsigned)((p->w.out + MANY_OUTPUTS - 1) / MANY_OUTPUTS),
                    (unsigned)((p->rows.rows + MANY_ROWS - 1) / MANY_ROWS));
    cuda_launch(l, "linear layer of many rows", linear_many_kernel<F>, grid, dim3(MANY_THREADS),
                shared, *p);
}

void linear_many(const struct cuda_launch *l, const struct cuda_linear *a, float *logits)
{
    struct linear_many_call p = {};
    p.rows = linear_rows_of(a);
    p.w = *a->w;
    p.y = a->y;
    p.y_stride = a->y_stride;
    p.logits = logits;
    p.add = a->add;
    p.groups = a->w->padded / CUDA_BF16_GROUP;
    if (a->w->format == WEIGHT_BF16) {
        linear_many_launch<WEIGHT_BF16>(l, &p);
    } else if (a->w->format == WEIGHT_INT8_AFFINE32) {
        p.sums = linear_round_up(a->w->padded / CUDA_BLOCK, CUDA_LANES);
        linear_many_launch<WEIGHT_INT8_AFFINE32>(l, &p);
    } else {
        linear_many_launch<WEIGHT_NVFP4>(l, &p);
    }
}

/* ---- The stage ---- */

void cuda_linear(const struct cuda_launch *l, const struct cuda_linear *a)
{
    if (a->rows > CUDA_RECORD_ROWS) {
        if (l->fast && a->w->format != WEIGHT_NVFP4 && cuda_linear_fast(l, a))
            return;
        linear_many(l, a, NULL);
        return;
    }
    if (cuda_linear_ring(l, a))
        return;
    const struct linear_plan plan = linear_few_plan(l, a);
    if (a->w->format == WEIGHT_BF16)
        linear_few_format<WEIGHT_BF16>(l, a, &plan);
    else if (a->w->format == WEIGHT_INT8_AFFINE32)
        linear_few_format<WEIGHT_INT8_AFFINE32>(l, a, &plan);
    else
        linear_few_format<WEIGHT_NVFP4>(l, a, &plan);
}
