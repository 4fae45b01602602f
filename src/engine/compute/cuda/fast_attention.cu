/* Attention of many rows on tensor cores: a block holds 64 queries of one key/value head, (row,
 * head of its group) side by side, and goes through the keys that any of them sees, 64 at a time,
 * with a running maximum. Probabilities are rounded to bf16 before they meet the values, in the sum
 * too. */
#include "engine/compute/cuda/fast.cuh"

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum {
    QUERIES = 64, /* of a block, 16 a warp */
    WARPS = QUERIES / 16,
    THREADS = 32 * WARPS,
    KEYS = 64, /* of a step */
    STAGES = 2
};

struct attend_call {
    const struct cuda_step *step;
    const uint16_t *queries; /* [rows, heads * head_dim], normed and rotated */
    const uint16_t *gates;   /* the projections' gates: row r's at r * gate_stride */
    size_t gate_stride;
    const uint16_t *keys, *values; /* the ring */
    int capacity;
    int key_stride, value_stride;
    int rows, heads, kv_heads, head_dim, window;
    float scale; /* with log2 e */
    uint16_t *out;
};

extern __shared__ uint4 fast_attention_shared[];

/* Where piece c of a key's (or value's) row of `pieces` lies. */
template <int pieces> static __device__ __forceinline__ int piece_at(int row, int c)
{
    return row * pieces + (c ^ (row & 7));
}

/* Keys and values of positions first .. first + KEYS - 1, which begin at `slot` of the ring; zeros
 * where a position is not begin .. last, so that what is not seen is at least a number. */
template <int dim>
static __device__ __forceinline__ void attend_load(const struct attend_call &a, int64_t head,
                                                   int slot, int from, int to, uint4 *stage)
{
    enum { pieces = dim / 8 };
    uint4 *keys = stage, *values = stage + KEYS * pieces;
    const int value_pieces = a.value_stride / 8;
    for (int i = threadIdx.x; i < KEYS * pieces; i += THREADS) {
        const int row = i / pieces, c = i % pieces;
        const bool there = row >= from && row <= to;
        int at = there ? slot + row : 0;
        while (at >= a.capacity)
            at -= a.capacity;
        copy_async_or_zero(keys + piece_at<pieces>(row, c),
                           a.keys + (head + at) * a.key_stride + c * 8, there);
        copy_async_or_zero(values + piece_at<pieces>(row, c),
                           a.values + (head + at) * a.value_stride + (c < value_pieces ? c * 8 : 0),
                           there && c < value_pieces);
    }
}

/* dim: head_dim, rounded up to a whole group of keys. */
template <int dim>
static __global__ void __launch_bounds__(THREADS) fast_attend_kernel(struct attend_call a)
{
    enum { pieces = dim / 8, stage_pieces = 2 * KEYS * pieces, k_steps = dim / 16 };
    pdl_launch_next();
    pdl_wait();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int kv_head = blockIdx.y, group = a.heads / a.kv_heads;
    /* the last rows see most keys: they go first */
    const int tile = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, queries = a.rows * group;
    const int64_t pos0 = a.step->pos0;

    /* this thread's two queries */
    int64_t low[2], high[2];
    const uint16_t *query[2];
    int row[2], head[2];
    bool there[2];
    for (int i = 0; i < 2; i++) {
        const int q = tile + warp * 16 + g + 8 * i;
        there[i] = q < queries;
        const int n = there[i] ? q : queries - 1;
        row[i] = n / group;
        head[i] = kv_head * group + n % group;
        high[i] = pos0 + row[i];
        low[i] = a.window > 0 && high[i] >= a.window ? high[i] - a.window + 1 : 0;
        query[i] =
            a.queries + ((size_t)row[i] * (size_t)a.heads + (size_t)head[i]) * (size_t)a.head_dim;
    }
    /* the block's keys */
    const int last_query = tile + QUERIES - 1 < queries ? tile + QUERIES - 1 : queries - 1;
    const int64_t oldest = pos0 + tile / group, last = pos0 + last_query / group;
    const int64_t begin = a.window > 0 && oldest >= a.window ? oldest - a.window + 1 : 0;
    const int64_t first = begin / KEYS * KEYS;
    const int steps = (int)((last - first) / KEYS) + 1;
    /* the warp's, to leave out what none of its queries sees */
    const int warp_first = tile + warp * 16;
    const int warp_last = warp_first + 15 < queries ? warp_first + 15 : queries - 1;
    const int64_t warp_oldest = pos0 + warp_first / group, warp_high = pos0 + warp_last / group;
    const int64_t warp_begin =
        a.window > 0 && warp_oldest >= a.window ? warp_oldest - a.window + 1 : 0;
    const int64_t warp_full = a.window > 0 && warp_high >= a.window ? warp_high - a.window + 1 : 0;

    const int64_t ring = (int64_t)kv_head * a.capacity;
    int slot = (int)(first % a.capacity);
    attend_load<dim>(a, ring, slot, (int)(begin - first), (int)(last - first),
                     fast_attention_shared);
    copy_commit();

    /* Queries as fragments, in the keys' lanes order: places 16s + 2t and 16s + 8 + 2t of a group
     * are inputs 32t + 4s and 32t + 4s + 2. */
    uint32_t q[k_steps][4];
#pragma unroll
    for (int s = 0; s < k_steps; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int k = s / 8 * CUDA_BF16_GROUP + CUDA_BLOCK * t + 4 * (s % 8) + i / 2 * 2;
            const uint16_t *from = query[i % 2] + k;
            q[s][i] = k + 1 < a.head_dim ? from[0] | (uint32_t)from[1] << 16
                      : k < a.head_dim   ? from[0]
                                         : 0;
        }

    float o[dim / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (int step = 0; step < steps; step++) {
        const int64_t key0 = first + (int64_t)step * KEYS;
        const uint4 *keys = fast_attention_shared + step % STAGES * stage_pieces;
        const uint4 *values = keys + KEYS * pieces;
        copy_wait<0>();
        __syncthreads();
        if (step + 1 < steps) {
            slot = (slot + KEYS) % a.capacity;
            attend_load<dim>(a, ring, slot, 0, (int)(last - key0) - KEYS,
                             fast_attention_shared + (step + 1) % STAGES * stage_pieces);
        }
        copy_commit();
        if (warp_first >= queries || key0 > warp_high || key0 + KEYS <= warp_begin)
            continue;

        float s[KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < k_steps; k++)
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                uint32_t b[4];
                load_tiles(b, keys + piece_at<pieces>(8 * n + lane / 16 * 8 + lane % 8,
                                                      2 * k + lane / 8 % 2));
                mma_bf16(s[n], q[k], b);
                mma_bf16(s[n + 1], q[k], b + 2);
            }
        const bool whole = key0 >= warp_full && key0 + KEYS - 1 <= warp_oldest;
        float largest[2] = {most[0], most[1]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int64_t key = key0 + 8 * n + 2 * t + i % 2;
                s[n][i] *= a.scale;
                if (!whole && (key < low[i / 2] || key > high[i / 2]))
                    s[n][i] = -INFINITY;
                largest[i / 2] = fmaxf(largest[i / 2], s[n][i]);
            }
        float base[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], 1));
            largest[i] = fmaxf(largest[i], __shfl_xor_sync(0xffffffffu, largest[i], 2));
            base[i] = largest[i] == -INFINITY ? 0.0f : largest[i]; /* nothing seen yet */
            const float old = power_of_two_fast(most[i] - base[i]);
            most[i] = largest[i];
            sum[i] *= old;
#pragma unroll
            for (int n = 0; n < dim / 8; n++) {
                o[n][2 * i] *= old;
                o[n][2 * i + 1] *= old;
            }
        }
        uint32_t p[KEYS / 8][2];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                p[n][i] = bf16_pair_of(power_of_two_fast(s[n][2 * i] - base[i]),
                                       power_of_two_fast(s[n][2 * i + 1] - base[i]));
                sum[i] += bf16_low(p[n][i]) + bf16_high(p[n][i]);
            }
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const uint32_t fp[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
#pragma unroll
            for (int n = 0; n < dim / 8; n += 2) {
                uint32_t b[4];
                load_tiles_transposed(b,
                                      values + piece_at<pieces>(16 * k + lane % 16, n + lane / 16));
                mma_bf16(o[n], fp, b);
                mma_bf16(o[n + 1], fp, b + 2);
            }
        }
    }
    copy_wait<0>();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
        sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
        if (!there[i])
            continue;
        const float gate = rounded(elementary_softplus(
            bf16_float(a.gates[(size_t)row[i] * a.gate_stride + (size_t)head[i]])));
        uint16_t *out =
            a.out + ((size_t)row[i] * (size_t)a.heads + (size_t)head[i]) * (size_t)a.head_dim;
        const float part = 1.0f / sum[i];
#pragma unroll
        for (int n = 0; n < dim / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int d = 8 * n + 2 * t + j;
                if (d < a.head_dim)
                    out[d] = bf16_of(rounded(o[n][2 * i + j] * part) * gate);
            }
    }
}

bool cuda_attend_fast_takes(int heads, int kv_heads, int head_dim)
{
    return kv_heads > 0 && heads % kv_heads == 0 && head_dim > 0 && head_dim <= 256;
}

template <int dim>
static void attend_launch(const struct cuda_launch *l, const struct attend_call *c)
{
    const int queries = c->rows * (c->heads / c->kv_heads);
    const dim3 grid((queries + QUERIES - 1) / QUERIES, c->kv_heads), block(THREADS);
    cuda_launch(l, "fast attention", fast_attend_kernel<dim>, grid, block,
                (size_t)STAGES * 2 * KEYS * dim * sizeof(uint16_t), *c);
}

void cuda_attend_fast(const struct cuda_launch *l, const struct cuda_attend *a,
                      const uint16_t *queries)
{
    const struct attention_block *b = a->w->block;
    const int heads = b->heads, dim = b->head_dim;
    struct attend_call c = {};
    c.step = l->step;
    c.queries = queries;
    c.gates = a->projected + (size_t)(heads + 2 * b->kv_heads) * (size_t)dim;
    c.gate_stride = a->projected_stride;
    c.keys = a->kv->keys;
    c.values = a->kv->values;
    c.capacity = (int)a->kv->capacity;
    c.key_stride = a->kv->key_stride;
    c.value_stride = a->kv->value_stride;
    c.rows = a->rows;
    c.heads = heads;
    c.kv_heads = b->kv_heads;
    c.head_dim = dim;
    c.window = b->window;
    c.scale = (float)(1.4426950408889634 / sqrt((double)dim));
    c.out = a->out;
    if (dim <= CUDA_BF16_GROUP)
        attend_launch<128>(l, &c);
    else
        attend_launch<256>(l, &c);
}
