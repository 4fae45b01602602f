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
    enum { pieces = dim / 8, rows = THREADS / pieces };
    const int c = threadIdx.x % pieces;
    const bool value = c < a.value_stride / 8;
    const uint16_t *key_at = a.keys + c * 8, *value_at = a.values + (value ? c * 8 : 0);
#pragma unroll
    for (int i = 0; i < KEYS / rows; i++) {
        const int row = threadIdx.x / pieces + i * rows;
        const bool there = row >= from && row <= to;
        int at = there ? slot + row : slot;
        if (at >= a.capacity)
            at = a.capacity >= KEYS ? at - a.capacity : at % a.capacity;
        uint4 *to_key = stage + piece_at<pieces>(row, c);
        copy_async_or_zero(to_key, key_at + (head + at) * a.key_stride, there);
        copy_async_or_zero(to_key + KEYS * pieces, value_at + (head + at) * a.value_stride,
                           there && value);
    }
}

/* The first position that the query at `position` sees. */
static __device__ __forceinline__ int oldest_seen(int window, int position)
{
    return window > 0 && position >= window ? position - window + 1 : 0;
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
    const int pos0 = (int)a.step->pos0;

    /* this thread's two queries: what they see, and where they are */
    int low[2], high[2], row[2], head[2];
    const uint16_t *query[2];
    bool there[2];
    for (int i = 0; i < 2; i++) {
        const int q = tile + warp * 16 + g + 8 * i;
        there[i] = q < queries;
        const int n = there[i] ? q : queries - 1;
        row[i] = n / group;
        head[i] = kv_head * group + n % group;
        high[i] = pos0 + row[i];
        low[i] = oldest_seen(a.window, high[i]);
        query[i] =
            a.queries + ((size_t)row[i] * (size_t)a.heads + (size_t)head[i]) * (size_t)a.head_dim;
    }
    /* the block's keys */
    const int last_query = tile + QUERIES - 1 < queries ? tile + QUERIES - 1 : queries - 1;
    const int last = pos0 + last_query / group;
    const int begin = oldest_seen(a.window, pos0 + tile / group), first = begin / KEYS * KEYS;
    /* the warp's: keys before warp_begin and behind warp_high are seen by none of its queries,
     * those from warp_full to warp_low by all */
    const int warp_first = tile + warp * 16;
    const int warp_last = warp_first + 15 < queries ? warp_first + 15 : queries - 1;
    const int warp_low = pos0 + warp_first / group, warp_high = pos0 + warp_last / group;
    const int warp_begin = oldest_seen(a.window, warp_low);
    const int warp_full = oldest_seen(a.window, warp_high);

    const int64_t ring = (int64_t)kv_head * a.capacity;
    int slot = first % a.capacity;
    attend_load<dim>(a, ring, slot, begin - first, last - first, fast_attention_shared);
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
    int step = 0;
    for (int key0 = first; key0 <= last; key0 += KEYS, step++) {
        const uint4 *keys = fast_attention_shared + step % STAGES * stage_pieces;
        const uint4 *values = keys + KEYS * pieces;
        copy_wait<0>();
        __syncthreads();
        if (key0 + KEYS <= last) {
            slot = (slot + KEYS) % a.capacity;
            attend_load<dim>(a, ring, slot, 0, last - key0 - KEYS,
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
        if (key0 < warp_full || key0 + KEYS - 1 > warp_low) {
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int key = key0 + 8 * n + 2 * t + i % 2;
                    if (key < low[i / 2] || key > high[i / 2])
                        s[n][i] = -INFINITY;
                }
        }
        uint32_t p[KEYS / 8][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float largest = most[i];
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++)
                largest = fmaxf(largest, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const float base = largest == -INFINITY ? 0.0f : -largest * a.scale; /* nothing yet */
            const float old = power_of_two_fast(fmaf(most[i], a.scale, base));
            most[i] = largest;
            sum[i] *= old;
#pragma unroll
            for (int n = 0; n < dim / 8; n++) {
                o[n][2 * i] *= old;
                o[n][2 * i + 1] *= old;
            }
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                p[n][i] = bf16_pair_of(power_of_two_fast(fmaf(s[n][2 * i], a.scale, base)),
                                       power_of_two_fast(fmaf(s[n][2 * i + 1], a.scale, base)));
                sum[i] += bf16_low(p[n][i]) + bf16_high(p[n][i]);
            }
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
