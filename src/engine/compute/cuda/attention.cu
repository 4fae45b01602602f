/* Attention of a layer: heads normed and rotated, keys and values into their ring, softmax over the
 * keys that a row sees, in chunks, gate (numerics.md; cpu/kernels_portable.c).
 *
 * Few rows: one kernel, a thread block for each chunk of a key/value head and a few of its queries;
 * the block that comes last puts the chunks together, in their order. Keys and values of earlier
 * forwards are on their way into shared memory before the projections are there. Many rows: a
 * kernel brings keys and values into the ring, then a block goes through all chunks of its queries.
 */
#include "engine/compute/cuda/attention.cuh"
#include "engine/compute/cuda/fast.cuh"
#include "engine/compute/cuda/launch.cuh"

#include <math.h>
#include <stdlib.h>

enum {
    ATTEND_COUNTERS = 4096, /* at the begin of the scratch, whatever uses it; all 0 between runs */
    ATTEND_MERGE = 32,      /* chunks that are put together at once */
    ATTEND_AHEAD = 4,       /* of which so many are read at once */
    ATTEND_CLUSTER = 8,     /* blocks of a cluster that every device has */
    ATTEND_MOST_DIM = 2 * ATTEND_WIDE
};

/* ---- Keys, values and (for cuda_attend_fast) queries of any rows ---- */

template <int G>
__global__
__launch_bounds__(ATTEND_THREADS) static void attend_append(const struct attend_arguments a)
{
    __shared__ float heads[ATTEND_HALVES][G * ATTEND_WIDE];
    pdl_launch_next();
    pdl_wait();
    const int half = (int)threadIdx.x / CUDA_LANES, lane = (int)threadIdx.x % CUDA_LANES;
    const int each = a.kv_heads + (a.queries != NULL ? a.heads : 0);
    const int task = (int)blockIdx.x * ATTEND_HALVES + half;
    const bool valid = task < a.rows * each;
    const int row = valid ? task / each : 0, head = valid ? task % each : 0;
    const int position = (int)a.step->pos0 + row;
    const uint16_t *projected = a.projected + (size_t)row * a.projected_stride;
    const bool is_key = head < a.kv_heads;
    const int query = head - a.kv_heads;
    float *x = heads[half];
    struct attend_vector<G> v;
    attend_fetch_weights<G>(a, is_key ? a.k_norm : a.q_norm, position, &v);
    attend_fetch<G>(
        a, is_key ? projected + a.key_at + head * a.head_dim : projected + query * a.head_dim, &v);
    attend_head<G>(a, &v, x);
    if (!valid)
        return;
    if (!is_key) {
        uint16_t *to =
            a.queries + ((size_t)row * (size_t)a.heads + (size_t)query) * (size_t)a.head_dim;
        for (int k = lane; k < a.head_dim; k += CUDA_LANES)
            to[k] = bf16_of(x[k]);
        return;
    }
    const size_t slot =
        (size_t)head * (size_t)a.capacity + (size_t)((unsigned)position % (unsigned)a.capacity);
    uint4 *key = (uint4 *)(a.keys + slot * (size_t)a.key_stride);
    uint16_t *value = a.values + slot * (size_t)a.value_stride;
    const uint16_t *from = projected + a.value_at + head * a.head_dim;
    for (int g = 0; g * ATTEND_WIDE < a.key_stride; g++)
        key[g * CUDA_LANES + lane] = attend_key_piece(x, g);
    for (int k = lane; k < a.value_stride; k += CUDA_LANES)
        value[k] = k < a.head_dim ? from[k] : (uint16_t)0;
}

/* ---- Attention ---- */

/* What a block does: a key/value head, queries from `query` on, and one chunk of keys. */
struct attend_block {
    int kv_head, group, query;
    int first, last; /* positions that any of its queries sees */
    int chunk;
    bool active;
    int base, lo, hi; /* the chunk's first position; its keys that any query sees */
};

static __device__ __forceinline__ void attend_take_chunk(struct attend_block *b, int chunk)
{
    b->chunk = chunk;
    b->base = chunk * CUDA_CHUNK;
    b->lo = b->first > b->base ? b->first - b->base : 0;
    b->hi = b->last - b->base < CUDA_CHUNK - 1 ? b->last - b->base : CUDA_CHUNK - 1;
    b->active = b->hi >= b->lo;
}

/* `slot` chunks behind the oldest that the forward's first row sees. */
static __device__ __forceinline__ void attend_place(const struct attend_arguments &a,
                                                    struct attend_block *b, int queries, int pos0,
                                                    int slot)
{
    b->first = attend_range(a, pos0, b->query).first;
    b->last = attend_range(a, pos0, b->query + queries - 1).last;
    attend_take_chunk(b, attend_range(a, pos0, 0).first / CUDA_CHUNK + slot);
    if (pos0 < 0 || pos0 > INT32_MAX / 2)
        b->active = false; /* a step that was not filled yet */
}

/* A position as the kernels count; past L1, which may hold an older one. */
static __device__ __forceinline__ int attend_position(const struct attend_arguments &a)
{
    const long long pos0 = __ldcg((const long long *)&a.step->pos0);
    return pos0 < 0 || pos0 > INT32_MAX / 2 ? -1 : (int)pos0;
}

/* Starts to load what earlier forwards wrote. */
template <int G>
static __device__ __forceinline__ void
attend_load_old(const struct attend_arguments &a, const struct attend_block *b,
                const uint16_t *ring, int stride, int pos0, uint8_t *to)
{
    const int old = pos0 - 1 - b->base < b->hi ? pos0 - 1 - b->base : b->hi;
    if (b->active)
        attend_load<CUDA_LANES * G>(to,
                                    ring + (size_t)b->kv_head * (size_t)a.capacity * (size_t)stride,
                                    stride, a.capacity, b->base, b->lo, old);
}

/* The values of this forward's rows that lie in the chunk, by half-warps. */
template <int G>
static __device__ __forceinline__ void attend_new_values(const struct attend_arguments &a,
                                                         const struct attend_block *b, int pos0,
                                                         uint8_t *values)
{
    const int first = b->base + b->lo > pos0 ? b->base + b->lo : pos0;
    const int lane = (int)threadIdx.x % CUDA_LANES;
#pragma unroll 1
    for (int position = first + (int)threadIdx.x / CUDA_LANES; position <= b->base + b->hi;
         position += ATTEND_HALVES) {
        const uint16_t *from = a.projected + (size_t)(position - pos0) * a.projected_stride +
                               a.value_at + b->kv_head * a.head_dim;
        uint16_t *to = (uint16_t *)values + (position - b->base) * G * ATTEND_WIDE;
#pragma unroll
        for (int i = 0; i < 8 * G; i++)
            if (i * CUDA_LANES + lane < a.head_dim)
                to[i * CUDA_LANES + lane] = from[i * CUDA_LANES + lane];
    }
}

/* A half-warp's task: a query of the block, or a key of this forward's rows in the chunk. */
struct attend_task {
    bool valid, is_query;
    int row;
    const uint16_t *from; /* its projection */
};

template <int QUERIES, bool NEW_KEYS>
static __device__ __forceinline__ struct attend_task
attend_task_of(const struct attend_arguments &a, const struct attend_block *b, int pos0, int task)
{
    const int first = b->base + b->lo > pos0 ? b->base + b->lo : pos0;
    const int fresh = NEW_KEYS && b->active ? b->base + b->hi - first + 1 : 0;
    const int query = attend_query(a, b->query + task), row = attend_row(a, query);
    struct attend_task t;
    t.is_query = task < QUERIES;
    t.valid = t.is_query || task < QUERIES + fresh;
    t.row = t.is_query ? row : t.valid ? first - pos0 + task - QUERIES : 0;
    t.from = a.projected + (size_t)t.row * a.projected_stride +
             (t.is_query ? (b->kv_head * a.share + query - row * a.share) * a.head_dim
                         : a.key_at + b->kv_head * a.head_dim);
    return t;
}

/* Queries go into q; keys into shared memory, and those whose row begins in this block's queries
 * into the ring too, with their values. */
template <int QUERIES, int G>
static __device__ __forceinline__ void
attend_task_finish(const struct attend_arguments &a, const struct attend_block *b, int pos0,
                   const struct attend_task *t, int task, const struct attend_vector<G> *v,
                   float *x, float *q, uint8_t *keys)
{
    const int lane = (int)threadIdx.x % CUDA_LANES;
    attend_head<G>(a, v, x);
    if (!t->valid)
        return;
    if (t->is_query) {
        for (int g = 0; g < G; g++)
            for (int i = 0; i < 2; i++) {
                const float *from = x + g * ATTEND_WIDE + i * 2 * CUDA_BLOCK + lane * 2;
                *(float4 *)(q + ((task * G + g) * CUDA_LANES + lane) * 8 + 4 * i) =
                    make_float4(from[0], from[1], from[CUDA_BLOCK], from[CUDA_BLOCK + 1]);
            }
        return;
    }
    const int position = pos0 + t->row, begin = t->row * a.share;
    const bool mine = begin >= b->query && begin < b->query + QUERIES;
    const size_t slot = (size_t)b->kv_head * (size_t)a.capacity +
                        (size_t)((unsigned)position % (unsigned)a.capacity);
    uint4 *ring = (uint4 *)(a.keys + slot * (size_t)a.key_stride);
    for (int g = 0; g < G; g++) {
        const uint4 piece = attend_key_piece(x, g);
        ((uint4 *)keys)[((position - b->base) * G + g) * CUDA_LANES + lane] = piece;
        if (mine)
            ring[g * CUDA_LANES + lane] = piece;
    }
    if (mine) {
        const uint16_t *from = a.projected + (size_t)t->row * a.projected_stride + a.value_at +
                               b->kv_head * a.head_dim;
        uint16_t *value = a.values + slot * (size_t)a.value_stride;
#pragma unroll
        for (int i = 0; i < 8 * G; i++)
            if (i * CUDA_LANES + lane < a.value_stride)
                value[i * CUDA_LANES + lane] =
                    i * CUDA_LANES + lane < a.head_dim ? from[i * CUDA_LANES + lane] : (uint16_t)0;
    }
}

static __device__ __forceinline__ float attend_gate(const struct attend_arguments &a, int row,
                                                    int head)
{
    const uint16_t logit = a.projected[(size_t)row * a.projected_stride + a.gate_at + head];
    return rounded(elementary_softplus(bf16_float(logit)));
}

static __device__ __forceinline__ uint16_t attend_finish(float o, float l, float gate)
{
    return bf16_of(rounded(o / l) * gate);
}

/* Floats of a partial result: o of each query; m, l of each query. */
static __host__ __device__ __forceinline__ int attend_record(int queries, int g)
{
    return queries * (g * ATTEND_WIDE + 2);
}

/* Puts the chunks of a block's queries together, in their order. */
template <int QUERIES, int G>
static __device__ __forceinline__ void
attend_merge(const struct attend_arguments &a, const struct attend_block *b, int pos0,
             const float *partial, float factor[QUERIES][ATTEND_MERGE][3])
{
    enum { WIDE = G * ATTEND_WIDE, EACH = QUERIES * WIDE / ATTEND_THREADS };
    const int record = attend_record(QUERIES, G);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int oldest = b->first / CUDA_CHUNK, chunks = b->last / CUDA_CHUNK - oldest + 1;
    int from[EACH], to[EACH]; /* chunks of my elements' queries */
    float o[EACH], l[EACH], carry = -INFINITY;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int query = (e * ATTEND_THREADS + (int)threadIdx.x) / WIDE;
        const struct key_range r = attend_range(a, pos0, b->query + query);
        from[e] = r.first / CUDA_CHUNK - oldest;
        to[e] = r.last / CUDA_CHUNK - oldest;
        o[e] = l[e] = 0.0f;
    }
    for (int begin = 0; begin < chunks; begin += ATTEND_MERGE) {
        const int end = begin + ATTEND_MERGE < chunks ? begin + ATTEND_MERGE : chunks;
        if (warp < QUERIES) { /* of each chunk, what was before is scaled by, and what it brings */
            const struct key_range r = attend_range(a, pos0, b->query + warp);
            const int chunk = begin + lane;
            const bool there =
                chunk >= r.first / CUDA_CHUNK - oldest && chunk <= r.last / CUDA_CHUNK - oldest;
            const float *at = partial + (size_t)chunk * (size_t)record + QUERIES * WIDE + 2 * warp;
            const float m = there ? *at : -INFINITY;
            factor[warp][lane][2] = there ? at[1] : 0.0f;
            float run = m > carry ? m : carry;
            for (int step = 1; step < 32; step *= 2) {
                const float before = __shfl_up_sync(0xffffffffu, run, step);
                run = lane >= step && before > run ? before : run;
            }
            float before = __shfl_up_sync(0xffffffffu, run, 1);
            before = lane == 0 ? carry : before;
            factor[warp][lane][0] = elementary_exp(before - run);
            factor[warp][lane][1] = elementary_exp(m - run);
            carry = __shfl_sync(0xffffffffu, run, 31);
        }
        for (int chunk = begin; chunk < end; chunk += ATTEND_AHEAD) {
            float part[ATTEND_AHEAD][EACH];
#pragma unroll
            for (int i = 0; i < ATTEND_AHEAD; i++)
#pragma unroll
                for (int e = 0; e < EACH; e++)
                    if (chunk + i >= from[e] && chunk + i <= to[e])
                        part[i][e] = partial[(size_t)(chunk + i) * (size_t)record +
                                             e * ATTEND_THREADS + (int)threadIdx.x];
            if (chunk == begin)
                __syncthreads();
#pragma unroll
            for (int i = 0; i < ATTEND_AHEAD; i++)
#pragma unroll
                for (int e = 0; e < EACH; e++) {
                    const int query = (e * ATTEND_THREADS + (int)threadIdx.x) / WIDE;
                    const float *f = factor[query][(chunk + i) % ATTEND_MERGE];
                    if (chunk + i == from[e]) {
                        o[e] = part[i][e];
                        l[e] = f[2];
                    } else if (chunk + i > from[e] && chunk + i <= to[e]) {
                        l[e] = fmaf(f[2], f[1], l[e] * f[0]);
                        o[e] = fmaf(part[i][e], f[1], o[e] * f[0]);
                    }
                }
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = e * ATTEND_THREADS + (int)threadIdx.x, d = at % WIDE;
        const int query = b->query + at / WIDE, row = attend_row(a, query);
        const int head = b->kv_head * a.share + query - row * a.share;
        if (query < a.rows * a.share && d < a.head_dim)
            a.out[((size_t)row * (size_t)a.heads + (size_t)head) * (size_t)a.head_dim + (size_t)d] =
                attend_finish(o[e], l[e], attend_gate(a, row, head));
    }
}

extern __shared__ uint4 attend_shared[];

/* SETS * HEADS queries of a block; heads of up to G * 128. LOOP: all chunks, whose keys and values
 * are in the ring; else one, see above. */
template <int SETS, int HEADS, int G, bool LOOP>
__global__ __launch_bounds__(ATTEND_THREADS, 2) static void attend(const struct attend_arguments a)
{
    enum {
        QUERIES = SETS * HEADS,
        WIDE = G * ATTEND_WIDE,
        PITCH = WIDE * 2,
        P_STRIDE = CUDA_CHUNK + 32 / HEADS, /* so that scores are stored without conflicts */
        TOGETHER = QUERIES >= 4 ? 2 : 1,    /* queries whose values a thread takes at once */
        DIMS = QUERIES >= 6 || G == 2 ? 4 : 2,
        SPLIT = WIDE / (32 * DIMS), /* warps for a query's elements */
        VALUE_WARPS = QUERIES / TOGETHER * SPLIT,
        SUM_WARPS = ATTEND_WARPS - VALUE_WARPS
    };
    static_assert(VALUE_WARPS <= 4 && 2 * SUM_WARPS >= QUERIES, "warps for values and for sums");
    __shared__ float maxima[ATTEND_WARPS][QUERIES], most[QUERIES], sums[QUERIES];
    __shared__ float factor[QUERIES][ATTEND_MERGE][3];
    __shared__ unsigned arrived;
    __shared__ uint64_t gathered;
    uint8_t *keys = (uint8_t *)attend_shared, *values = keys + a.values_apart;
    float *q = (float *)(values + CUDA_CHUNK * PITCH);
    float *p = q + QUERIES * WIDE, *heads = p + QUERIES * P_STRIDE;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % CUDA_LANES;
    const bool apart = a.values_apart != 0;

    pdl_launch_next();
    if (!LOOP && a.clustered) {
        if (threadIdx.x == 0)
            cluster_gather_init(&gathered);
        cluster_begin();
    }
    struct attend_block b = {};
    const bool work = (int)blockIdx.x < a.work;
    const int item = (int)blockIdx.x / a.slots, slot = (int)blockIdx.x % a.slots;
    b.kv_head = item / a.groups;
    b.group = LOOP ? a.groups - 1 - item % a.groups : item % a.groups; /* the longest first */
    b.query = b.group * QUERIES;
    int pos0 = LOOP || !work ? -1 : attend_position(a);
    struct attend_task task;
    struct attend_vector<G> vector;
    for (bool waited = false;;) {
        attend_place(a, &b, QUERIES, pos0, slot);
        if (!LOOP) {
            attend_load_old<G>(a, &b, a.keys, a.key_stride, pos0, keys);
            copy_commit();
            if (apart)
                attend_load_old<G>(a, &b, a.values, a.value_stride, pos0, values);
            copy_commit();
        }
        task = attend_task_of<QUERIES, !LOOP>(a, &b, pos0, (int)threadIdx.x / CUDA_LANES);
        attend_fetch_weights<G>(a, task.is_query ? a.q_norm : a.k_norm, pos0 + task.row, &vector);
        if (!waited) {
            prefetch_slice(a.next, blockIdx.x, gridDim.x);
            pdl_wait();
            if (!work)
                return;
            waited = true;
        }
        attend_fetch<G>(a, task.from, &vector);
        const int now = attend_position(a);
        if (now == pos0)
            break;
        pos0 = now; /* the step was not there yet, or it was an older one */
        copy_wait<0>();
        __syncthreads();
    }
    if (!LOOP && !b.active) {
        copy_wait<0>();
        if (!a.clustered)
            return;
    }
    const int oldest = b.first / CUDA_CHUNK, newest = b.last / CUDA_CHUNK;

    /* The elements of the output that this thread sees to. */
    struct key_range value_range[TOGETHER];
    const int value_query = warp / SPLIT * TOGETHER;
    const int value_at = (warp % SPLIT * 32 + (int)threadIdx.x % 32) * DIMS;
#pragma unroll
    for (int h = 0; h < TOGETHER; h++)
        value_range[h] = attend_range(a, pos0, b.query + value_query + h);

    float *x = heads + (int)threadIdx.x / CUDA_LANES * WIDE;
    for (int number = (int)threadIdx.x / CUDA_LANES;
         __any_sync(0xffffffffu, task.valid && (LOOP || b.active)); number += ATTEND_HALVES) {
        if (number >= ATTEND_HALVES) {
            attend_fetch_weights<G>(a, a.k_norm, pos0 + task.row, &vector);
            attend_fetch<G>(a, task.from, &vector);
        }
        attend_task_finish<QUERIES, G>(a, &b, pos0, &task, number, &vector, x, q, keys);
        task = attend_task_of<QUERIES, !LOOP>(a, &b, pos0, number + ATTEND_HALVES);
    }
    if (!LOOP && apart)
        attend_new_values<G>(a, &b, pos0, values);

    float total[TOGETHER][DIMS] = {}, l_total[TOGETHER] = {}, m_total[TOGETHER] = {};
    float o[TOGETHER][DIMS] = {};
    const int last = LOOP ? newest : b.active ? b.chunk : b.chunk - 1;
    for (int chunk = LOOP ? oldest : b.chunk; chunk <= last; chunk++) {
        if (LOOP) {
            attend_take_chunk(&b, chunk);
            attend_load_old<G>(a, &b, a.keys, a.key_stride, INT32_MAX / 2, keys);
            copy_commit();
            copy_commit();
        }
        copy_wait<1>();
        __syncthreads();

#pragma unroll 1
        for (int set = 0; set < SETS; set++) {
            const struct key_range seen =
                attend_within(attend_range(a, pos0, b.query + set * HEADS + lane % HEADS), b.base);
            float m = attend_scores<HEADS, G>(keys, q + set * HEADS * WIDE, a.scale, b.lo, b.hi,
                                              seen, p + set * HEADS * P_STRIDE, P_STRIDE);
#pragma unroll
            for (int step = HEADS; step < 32; step *= 2) {
                const float other = __shfl_xor_sync(0xffffffffu, m, step);
                m = other > m ? other : m;
            }
            if ((int)threadIdx.x % 32 < HEADS)
                maxima[warp][set * HEADS + lane] = m;
        }
        __syncthreads();
        if (!apart) {
            if (LOOP) {
                attend_load_old<G>(a, &b, a.values, a.value_stride, INT32_MAX / 2, values);
            } else {
                attend_load_old<G>(a, &b, a.values, a.value_stride, pos0, values);
                attend_new_values<G>(a, &b, pos0, values);
            }
            copy_commit();
        }
#pragma unroll 1
        for (int set = 0; set < SETS; set++) {
            const int query = set * HEADS + lane % HEADS;
            const struct key_range seen =
                attend_within(attend_range(a, pos0, b.query + query), b.base);
            float m = maxima[0][query];
#pragma unroll
            for (int w = 1; w < ATTEND_WARPS; w++)
                m = maxima[w][query] > m ? maxima[w][query] : m;
            if ((int)threadIdx.x < HEADS)
                most[query] = m;
#pragma unroll 2
            for (int it = 0; it < HEADS; it++) {
                const int key = attend_key<HEADS>(it);
                float *score = p + query * P_STRIDE + key;
                *score = key >= seen.first && key <= seen.last ? elementary_exp(*score - m) : 0.0f;
            }
        }
        copy_wait<0>();
        __syncthreads();

        if (warp < VALUE_WARPS) {
            struct key_range summed[TOGETHER];
#pragma unroll
            for (int h = 0; h < TOGETHER; h++)
                summed[h] = attend_within(value_range[h], b.base);
            attend_values<TOGETHER, DIMS>(values + value_at * 2, PITCH, p + value_query * P_STRIDE,
                                          P_STRIDE, summed, o);
        } else if (warp >= ATTEND_WARPS - (QUERIES + 1) / 2) {
            const int query =
                (int)threadIdx.x / CUDA_LANES - (ATTEND_HALVES - (QUERIES + 1) / 2 * 2);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < CUDA_CHUNK / CUDA_LANES; i++)
                sum = sum + p[query * P_STRIDE + i * CUDA_LANES + lane];
            sum = lanes_sum(sum);
            if (lane == 0)
                sums[query] = sum;
        }
        __syncthreads();

        if (LOOP && warp < VALUE_WARPS) {
#pragma unroll
            for (int h = 0; h < TOGETHER; h++) {
                if (chunk < value_range[h].first / CUDA_CHUNK ||
                    chunk > value_range[h].last / CUDA_CHUNK)
                    continue;
                const float m = most[value_query + h], l = sums[value_query + h];
                const bool is_first = chunk == value_range[h].first / CUDA_CHUNK;
                const float m_new = m > m_total[h] ? m : m_total[h];
                const float old_part = elementary_exp(m_total[h] - m_new);
                const float new_part = elementary_exp(m - m_new);
                l_total[h] = is_first ? l : fmaf(l, new_part, l_total[h] * old_part);
#pragma unroll
                for (int d = 0; d < DIMS; d++)
                    total[h][d] =
                        is_first ? o[h][d] : fmaf(o[h][d], new_part, total[h][d] * old_part);
                m_total[h] = is_first ? m : m_new;
            }
        }
    }

    if (LOOP) {
        if (warp >= VALUE_WARPS)
            return;
#pragma unroll
        for (int h = 0; h < TOGETHER; h++) {
            const int query = b.query + value_query + h, row = attend_row(a, query);
            const int head = b.kv_head * a.share + query - row * a.share;
            if (query >= a.rows * a.share)
                continue;
            const float gate = attend_gate(a, row, head);
            uint16_t *to =
                a.out + ((size_t)row * (size_t)a.heads + (size_t)head) * (size_t)a.head_dim;
#pragma unroll
            for (int d = 0; d < DIMS; d++)
                if (value_at + d < a.head_dim)
                    to[value_at + d] = attend_finish(total[h][d], l_total[h], gate);
        }
        return;
    }

    const size_t record = (size_t)attend_record(QUERIES, G);
    float *partial = a.clustered ? heads + ATTEND_HALVES * WIDE
                                 : a.partial + (size_t)item * (size_t)a.slots * record;
    float *mine = partial + (size_t)(b.chunk - oldest) * record;
    if (a.clustered) {
        cluster_begun();
        if (warp < VALUE_WARPS && b.active)
#pragma unroll
            for (int h = 0; h < TOGETHER; h++)
#pragma unroll
                for (int d = 0; d < DIMS; d += 2)
                    cluster_send(mine + (value_query + h) * WIDE + value_at + d, o[h][d],
                                 o[h][d + 1], &gathered, 0);
        else if ((int)threadIdx.x >= ATTEND_THREADS - QUERIES && b.active) {
            const int query = (int)threadIdx.x - (ATTEND_THREADS - QUERIES);
            cluster_send(mine + QUERIES * WIDE + 2 * query, most[query], sums[query], &gathered, 0);
        }
        if (slot != 0)
            return;
        if (threadIdx.x == 0)
            cluster_gather_expect(
                &gathered, (unsigned)((size_t)(newest - oldest + 1) * record * sizeof(float)));
        cluster_gather_wait(&gathered);
    } else {
        if (warp < VALUE_WARPS)
#pragma unroll
            for (int h = 0; h < TOGETHER; h++)
#pragma unroll
                for (int d = 0; d < DIMS; d += 2)
                    *(float2 *)(mine + (value_query + h) * WIDE + value_at + d) =
                        make_float2(o[h][d], o[h][d + 1]);
        else if ((int)threadIdx.x >= ATTEND_THREADS - QUERIES) {
            const int query = (int)threadIdx.x - (ATTEND_THREADS - QUERIES);
            *(float2 *)(mine + QUERIES * WIDE + 2 * query) = make_float2(most[query], sums[query]);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            arrived = atomicAdd(&a.counters[item], 1u);
            __threadfence();
        }
        __syncthreads();
        if (arrived != (unsigned)(newest - oldest))
            return;
        if (threadIdx.x == 0)
            a.counters[item] = 0;
    }
    attend_merge<QUERIES, G>(a, &b, pos0, partial, factor);
}

/* ---- Host ---- */

typedef void (*attend_kernel)(struct attend_arguments);

/* The forms of the kernel, by how many queries a block has. */
struct attend_form {
    int queries, heads, groups; /* groups: of 128 elements of a head */
    bool loop;
    attend_kernel kernel;
};
static const struct attend_form attend_forms[] = {
    {2, 2, 1, false, attend<1, 2, 1, false>}, {4, 4, 1, false, attend<1, 4, 1, false>},
    {6, 2, 1, false, attend<3, 2, 1, false>}, {8, 4, 1, false, attend<2, 4, 1, false>},
    {2, 2, 2, false, attend<1, 2, 2, false>}, {8, 4, 1, true, attend<2, 4, 1, true>},
    {2, 2, 2, true, attend<1, 2, 2, true>}};

static int attend_groups(int head_dim)
{
    return (head_dim + ATTEND_WIDE - 1) / ATTEND_WIDE;
}

static size_t attend_bytes(const struct attend_form *f, bool apart)
{
    const size_t wide = (size_t)f->groups * ATTEND_WIDE, queries = (size_t)f->queries;
    return (apart ? 2 : 1) * CUDA_CHUNK * wide * sizeof(uint16_t) +
           (queries * wide + queries * (size_t)(CUDA_CHUNK + 32 / f->heads) +
            ATTEND_HALVES * wide) *
               sizeof(float);
}

/* The chunks that positions of `rows` rows may reach into. */
static int attend_slots(int window, int rows, int chunks)
{
    const int keys = window + rows - 1;
    const int most = keys > 1 ? (keys - 2) / CUDA_CHUNK + 2 : 1;
    return window > 0 && most < chunks + 1 ? most : chunks;
}

/* The fewest queries with which all blocks run at once, that share their rows' heads evenly; else
 * the most: keys are read once for all of a block's queries. */
static const struct attend_form *attend_choose(const struct attend_arguments *a,
                                               int multiprocessors)
{
    const bool loop = a->rows > CUDA_RECORD_ROWS;
    const int all = a->rows * a->share;
    const struct attend_form *best = NULL;
    for (size_t i = 0; i < sizeof attend_forms / sizeof *attend_forms; i++) {
        const struct attend_form *f = &attend_forms[i];
        if (f->loop != loop || f->groups != attend_groups(a->head_dim))
            continue;
        if (best != NULL && all % f->queries != 0 && all % best->queries == 0)
            continue;
        best = f;
        if (a->kv_heads * ((all + f->queries - 1) / f->queries) * a->slots <= multiprocessors)
            break;
    }
    return best;
}

static struct attend_arguments attend_arguments_of(const struct cuda_launch *l,
                                                   const struct cuda_attend *c)
{
    const struct attention_block *b = c->w->block;
    struct attend_arguments a = {};
    a.step = l->step;
    a.projected = c->projected;
    a.projected_stride = c->projected_stride;
    a.q_norm = c->w->q_norm;
    a.k_norm = c->w->k_norm;
    a.cosine = c->w->cosine;
    a.sine = c->w->sine;
    a.rotary = c->w->rotary;
    a.positions = b->rope->positions < INT32_MAX / 2 ? (int)b->rope->positions : INT32_MAX / 2;
    a.input_scale = c->w->input_scale;
    a.eps = b->eps;
    a.scale = (float)(1.0 / sqrt((double)b->head_dim));
    a.keys = c->kv->keys;
    a.values = c->kv->values;
    a.capacity = (int)c->kv->capacity;
    a.key_stride = c->kv->key_stride;
    a.value_stride = c->kv->value_stride;
    a.rows = c->rows;
    a.heads = b->heads;
    a.kv_heads = b->kv_heads;
    a.head_dim = b->head_dim;
    a.window = b->window;
    a.share = b->heads / b->kv_heads;
    a.share_part = a.share == 1 ? 0 : UINT32_MAX / (unsigned)a.share + 1;
    return a;
}

static void attend_append_launch(const struct cuda_launch *l, struct attend_arguments *a)
{
    const int tasks = a->rows * (a->kv_heads + (a->queries != NULL ? a->heads : 0));
    const dim3 grid((unsigned)((tasks + ATTEND_HALVES - 1) / ATTEND_HALVES));
    cuda_launch(l, "attend_append",
                attend_groups(a->head_dim) == 1 ? attend_append<1> : attend_append<2>, grid,
                dim3(ATTEND_THREADS), 0, *a);
}

static bool attend_takes(const struct cuda_launch *l, const struct attention_block *b)
{
    return b->head_dim <= ATTEND_MOST_DIM ||
           cuda_ok(l->fault, cudaErrorNotSupported, "attention: heads of more than 256 elements");
}

void cuda_append(const struct cuda_launch *l, const struct cuda_attend *c)
{
    struct attend_arguments a = attend_arguments_of(l, c);
    a.value_at = a.kv_heads * a.head_dim;
    if (attend_takes(l, c->w->block))
        attend_append_launch(l, &a);
}

/* Scratch: counters; then partial results of few rows, or queries of many. */
size_t cuda_attend_scratch(int heads, int kv_heads, int head_dim, int rows, int chunks)
{
    const size_t few = (size_t)(rows < CUDA_RECORD_ROWS ? rows : CUDA_RECORD_ROWS);
    const size_t queries = few * (size_t)heads + 8 * (size_t)kv_heads;
    const size_t wide = (size_t)attend_groups(head_dim) * ATTEND_WIDE;
    const size_t partial = queries * (size_t)(chunks + 1) * (wide + 2) * sizeof(float);
    const size_t many = (size_t)rows * (size_t)heads * (size_t)head_dim * sizeof(uint16_t);
    return ATTEND_COUNTERS * sizeof(unsigned) + (partial > many ? partial : many);
}

void cuda_attend(const struct cuda_launch *l, const struct cuda_attend *c)
{
    struct attend_arguments a = attend_arguments_of(l, c);
    const bool many = a.rows > CUDA_RECORD_ROWS;
    if (!attend_takes(l, c->w->block))
        return;
    a.key_at = a.heads * a.head_dim;
    a.value_at = a.key_at + a.kv_heads * a.head_dim;
    a.gate_at = a.value_at + a.kv_heads * a.head_dim;
    a.out = c->out;
    a.counters = (unsigned *)c->scratch;
    a.partial = (float *)((unsigned *)c->scratch + ATTEND_COUNTERS);
    if (many) {
        const bool fast = l->fast && cuda_attend_fast_takes(a.heads, a.kv_heads, a.head_dim);
        a.queries = fast ? (uint16_t *)a.partial : NULL;
        attend_append_launch(l, &a);
        if (fast) {
            cuda_attend_fast(l, c, a.queries);
            return;
        }
    }
    a.slots = many ? 1 : attend_slots(a.window, a.rows, c->chunks);
    const struct attend_form *f = attend_choose(&a, l->device->multiprocessors);
    a.groups = (a.rows * a.share + f->queries - 1) / f->queries;
    a.work = a.kv_heads * a.groups * a.slots;
    a.next = l->next[1];
    const bool apart = !many && a.work <= l->device->multiprocessors &&
                       attend_bytes(f, true) + 8192 <= l->device->shared_most;
    a.values_apart =
        apart ? (size_t)CUDA_CHUNK * (size_t)f->groups * ATTEND_WIDE * sizeof(uint16_t) : 0;
    if (a.kv_heads * a.groups > ATTEND_COUNTERS) {
        cuda_ok(l->fault, cudaErrorNotSupported, "attention: more heads than it has counters for");
        return;
    }
    size_t shared = attend_bytes(f, apart);
    const size_t gathered =
        (size_t)a.slots * (size_t)attend_record(f->queries, f->groups) * sizeof(float);
#ifndef CUDA_EMULATED
    a.clustered = getenv("MLXFAST_CUDA_CLUSTERS") != NULL && !many && l->device->major >= 9 &&
                  a.slots > 1 && a.slots <= ATTEND_CLUSTER &&
                  shared + gathered + 8192 <= l->device->shared_most;
#endif
    shared += a.clustered ? gathered : 0;
    int idle = a.next.bytes > 0 && !many ? l->device->multiprocessors - a.work : 0;
    idle = idle > 0 ? (idle + a.slots - 1) / a.slots * a.slots : 0;
    cuda_launch_cluster(l, "attend", f->kernel, dim3((unsigned)(a.work + idle)),
                        dim3(ATTEND_THREADS), shared, a.clustered ? (unsigned)a.slots : 1, a);
}
