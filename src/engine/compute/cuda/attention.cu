/* Attention of a layer: heads normed and rotated, keys and values into their ring, softmax over the
 * keys that a row sees, in chunks, gate (numerics.md; cpu/kernels_portable.c).
 *
 * Few rows: a thread block for each chunk of a key/value head and a few of its queries. Keys of
 * earlier forwards are on their way into registers, values into shared memory, before the
 * projections are there. Chunks are put together, in their order, by the first block of a cluster,
 * or where there are too many or no clusters by a second kernel. Many rows: a kernel brings keys
 * and values into the ring, then a block goes through all chunks of its queries.
 */
#include "engine/compute/cuda/attention_few.cuh"
#include "engine/compute/cuda/fast.cuh"
#include "engine/compute/cuda/launch.cuh"
#include "engine/compute/cuda/timeline.cuh"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys, values and (for cuda_attend_fast) queries of any rows ---- */

template <int G>
__global__
__launch_bounds__(ATTEND_THREADS) static void attend_append(const struct attend_arguments a)
{
    __shared__ __align__(16) uint16_t heads[ATTEND_HALVES][G * ATTEND_WIDE];
    pdl_launch_next();
    pdl_wait();
    const int half = (int)threadIdx.x / CUDA_LANES, lane = (int)threadIdx.x % CUDA_LANES;
    const int each = a.kv_heads + (a.queries != NULL ? a.heads : 0);
    const int task = (int)blockIdx.x * ATTEND_HALVES + half;
    const bool valid = task < a.rows * each;
    const int row = valid ? task / each : 0, head = valid ? task % each : 0;
    const uint16_t *projected = a.projected + (size_t)row * a.projected_stride;
    const bool is_key = head < a.kv_heads;
    const int query = head - a.kv_heads;
    uint16_t *x = heads[half];
    struct attend_vector<G> v;
    uint16_t value[8 * G]; /* on its way with all else, not when it is its turn */
#pragma unroll
    for (int i = 0; i < 8 * G; i++) {
        const int k = i * CUDA_LANES + lane;
        value[i] = is_key && k < a.head_dim ? __ldcg(projected + a.value_at + head * a.head_dim + k)
                                            : (uint16_t)0;
    }
    attend_fetch<G>(
        a, is_key ? projected + a.key_at + head * a.head_dim : projected + query * a.head_dim, &v);
    const int position = (int)a.step->pos0 + row;
    attend_fetch_weights<G>(a, is_key ? a.k_norm : a.q_norm, position, &v);
    float normed[8 * G];
    attend_head<G>(a, &v, x, normed);
    attend_put_head<G>(normed, x);
    __syncwarp();
    if (!valid)
        return;
    if (!is_key) {
        uint16_t *to =
            a.queries + ((size_t)row * (size_t)a.heads + (size_t)query) * (size_t)a.head_dim;
        for (int k = lane; k < a.head_dim; k += CUDA_LANES)
            to[k] = x[k];
        return;
    }
    const size_t slot =
        (size_t)head * (size_t)a.capacity + (size_t)((unsigned)position % (unsigned)a.capacity);
    uint4 *key = (uint4 *)(a.keys + slot * (size_t)a.key_stride);
    uint16_t *ring = a.values + slot * (size_t)a.value_stride;
    for (int g = 0; g * ATTEND_WIDE < a.key_stride; g++)
        key[g * CUDA_LANES + lane] = attend_key_piece(x, g);
#pragma unroll
    for (int i = 0; i < 8 * G; i++)
        if (i * CUDA_LANES + lane < a.value_stride)
            ring[i * CUDA_LANES + lane] = value[i];
}

/* ---- Attention ---- */

extern __shared__ uint4 attend_shared[];

/* Few rows: QUERIES queries of a block, SET at once; heads of up to G * 128. Keys are in registers,
 * values in shared memory. */
template <int QUERIES, int SET, int G>
__global__ __launch_bounds__(ATTEND_THREADS,
                             G == 1 ? 2 : 1) static void attend_few(const struct attend_arguments a)
{
    enum {
        WIDE = G * ATTEND_WIDE,
        KEYS = CUDA_LANES / SET,
        EACH = QUERIES * WIDE / ATTEND_THREADS,
        VALUE_QUERIES = QUERIES > 2 ? 2 : 1, /* that a thread sums values for at once, */
        DIMS = QUERIES > 4 ? 4 : 2,          /* and elements */
        VALUE_THREADS = QUERIES / VALUE_QUERIES * WIDE / DIMS
    };
    static_assert((G == 2 || (int)VALUE_THREADS <= (int)ATTEND_THREADS / 2) &&
                      2 * QUERIES <= (int)CUDA_LANES,
                  "threads for values");
    __shared__ float maxima[QUERIES][ATTEND_WARPS], gates[QUERIES];
    __shared__ struct attend_facts facts[QUERIES];
    __shared__ uint64_t gathered, values_there;
    __shared__ int position, position_now;
    uint8_t *values = (uint8_t *)attend_shared;
    float *q = (float *)(values + CUDA_CHUNK * WIDE * 2);
    float *p = q + QUERIES * WIDE;
    uint16_t *heads = (uint16_t *)(p + QUERIES * ATTEND_P_STRIDE);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % CUDA_LANES;
    const int half = (int)threadIdx.x / CUDA_LANES;

    timeline_mark(TIMELINE_ATTEND_STARTS);
    if (threadIdx.x == 0)
        position = attend_position(a);
    if (threadIdx.x == ATTEND_THREADS - 1)
        bytes_barrier_init(&values_there);
    if (a.clustered) {
        if (threadIdx.x == 0)
            bytes_barrier_init(&gathered);
        __syncwarp();
        cluster_begin();
    }
    struct attend_block b = {};
    const int slot = (int)blockIdx.x, item = (int)(blockIdx.z * gridDim.y + blockIdx.y);
    b.kv_head = (int)blockIdx.z;
    b.query = (int)blockIdx.y * QUERIES;
    __syncthreads();
    unsigned turn = 0;   /* of values_there */
    int pos0 = position; /* of all threads one: the step may be written meanwhile */
    for (bool waited = false;;) {
        uint4 key[CUDA_LANES * G];
        attend_place(a, &b, QUERIES, pos0, slot);
        attend_load_keys<G>(a, &b, pos0, key);
        const bool bulk = attend_values_in_bulk<G>(a, &b, pos0);
        if (!bulk)
            attend_load_old<G>(a, &b, a.values, a.value_stride, pos0, values);
        else if (threadIdx.x == ATTEND_THREADS - 1)
            attend_copy_values<G>(a, &b, pos0, values, &values_there);
        copy_commit();
        if ((int)threadIdx.x < QUERIES)
            facts[threadIdx.x] = attend_facts_of(a, &b, pos0, (int)threadIdx.x);
        /* The warp of the first new key comes first, then queries; from the last one back, what
         * else there is to do. */
        const int other = ((pos0 >> 1) - 1 - warp) & (ATTEND_WARPS - 1);
        const uint16_t *gate = attend_gate_of(a, &b, (int)threadIdx.x % 32 % QUERIES);
        const struct attend_task task = attend_task_of<QUERIES>(a, &b, pos0);
        uint16_t *own = heads + half * WIDE;
        struct attend_vector<G> vector;
        attend_fetch_weights<G>(a, task.has_key ? a.k_norm : a.q_norm,
                                pos0 + (task.has_key ? task.key_row : task.query_row), &vector);
        if (!waited) {
            __syncwarp();
            if (a.clustered)
                cluster_begun();
            attend_warm(task.has_key ? task.key : task.query);
            attend_warm(a.step);
            attend_warm(a.out);
            timeline_mark(TIMELINE_ATTEND_WAITS);
            pdl_wait();
            /* Not before: the next kernel's weights would take the bandwidth of the last one's. */
            pdl_launch_next();
            timeline_mark(TIMELINE_ATTEND_THERE);
            waited = true;
        }
#pragma unroll 1
        for (int second = 0; second < 2; second++) { /* where there are many rows */
            const bool both = task.has_key && task.has_query;
            if (!__any_sync(0xffffffffu, second == 0 ? task.has_key || task.has_query : both))
                break;
            const bool is_key = second == 0 && task.has_key;
            if (second == 1) {
                attend_fetch_weights<G>(a, a.q_norm, pos0 + task.query_row, &vector);
                own = (uint16_t *)(p + task.number * ATTEND_P_STRIDE); /* the key stays */
            }
            float normed[8 * G];
            attend_fetch<G>(a, is_key ? task.key : task.query, &vector);
            attend_head<G>(a, &vector, own, normed);
            if (is_key)
                attend_put_head<G>(normed, own);
            else if (second == 0 ? task.has_query : both)
                attend_put_query<G>(normed, q + task.number * WIDE);
        }
        if (other == 0) {
            uint32_t logit = __ldcg(gate);
            attend_unknown(&logit); /* on its way before the position is waited for */
            if ((int)threadIdx.x % 32 == 0)
                position_now = attend_position(a);
            const float opened = rounded(elementary_softplus(bf16_low(logit)));
            if ((int)threadIdx.x % 32 < QUERIES)
                gates[threadIdx.x % 32] = opened;
        }
        attend_put_values<G>(a, &b, pos0, (other - 1) & (ATTEND_WARPS - 1), values);
        __syncthreads();
        timeline_mark(TIMELINE_ATTEND_HEADS);
        /* Here, where the other warps need not wait for it. */
        attend_put_key<G>(task.has_key ? (pos0 + task.key_row - b.base) / CUDA_LANES : -1,
                          heads + half * WIDE, key);
        float score[SET];
#pragma unroll 1
        for (int set = 0; b.active && set < QUERIES; set += SET) {
            const int query = set + lane / KEYS;
            float m = attend_register_scores<SET, G, QUERIES == SET>(
                key, q + set * WIDE, a.scale, b.lo, b.hi, facts[query].seen, score);
            if (QUERIES > SET) {
                float *scores = p + query * ATTEND_P_STRIDE + lane % KEYS * CUDA_LANES + half;
#pragma unroll
                for (int batch = 0; batch < SET; batch++)
                    scores[batch * KEYS * CUDA_LANES] = score[batch];
            }
#pragma unroll
            for (int step = 1; step < KEYS; step *= 2)
                m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, step));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, CUDA_LANES));
            if ((int)threadIdx.x % 32 < CUDA_LANES && lane % KEYS == 0)
                maxima[query][warp] = m;
        }
        copy_wait<0>();
        if (bulk)
            bulk_wait(&values_there, turn++);
        __syncthreads();
        timeline_mark(TIMELINE_ATTEND_SCORED);
        const int now = position_now;
#pragma unroll 1
        for (int set = 0; b.active && set < QUERIES; set += SET) {
            const int query = set + lane / KEYS;
            float *scores = p + query * ATTEND_P_STRIDE + lane % KEYS * CUDA_LANES + half;
            const struct key_range seen = facts[query].seen;
            const float m = attend_most(maxima[query]);
#pragma unroll
            for (int batch = 0; batch < SET; batch++) {
                const int at = batch * KEYS * CUDA_LANES;
                const int number = at + lane % KEYS * CUDA_LANES + half;
                const float e = attend_exp((QUERIES > SET ? scores[at] : score[batch]) - m);
                scores[at] = number >= seen.first && number <= seen.last ? e : 0.0f;
            }
        }
        if (now == pos0)
            break;
        pos0 = now; /* the step was not there yet, or it was an older one */
        __syncthreads();
    }
    const int oldest = b.first / CUDA_CHUNK, newest = b.last / CUDA_CHUNK;
    const int record = attend_record(QUERIES, G);
    float *together = (float *)(heads + ATTEND_HALVES * WIDE); /* of the cluster's blocks */
    struct attend_result mine = {a.clustered, together, &gathered, NULL,
                                 (b.chunk - oldest) * record};
    if (b.active) {
        const int value_query = (int)threadIdx.x % VALUE_THREADS / (WIDE / DIMS) * VALUE_QUERIES;
        const int value_at = (int)threadIdx.x % (WIDE / DIMS) * DIMS;
        struct key_range value_seen[VALUE_QUERIES];
#pragma unroll
        for (int h = 0; h < VALUE_QUERIES; h++)
            value_seen[h] = facts[value_query + h].seen;
        __syncthreads();
        if (!a.clustered)
            mine.partial = a.partial + (size_t)item * (size_t)a.slots * (size_t)record;
        if ((int)threadIdx.x < VALUE_THREADS) {
            float o[VALUE_QUERIES][DIMS];
            attend_sum_values<VALUE_QUERIES, DIMS, WIDE>(
                values + value_at * 2, p + value_query * ATTEND_P_STRIDE, value_seen, o);
#pragma unroll
            for (int h = 0; h < VALUE_QUERIES; h++)
#pragma unroll
                for (int d = 0; d < DIMS; d += 2)
                    attend_give(&mine, (value_query + h) * WIDE + value_at + d, o[h][d],
                                o[h][d + 1]);
        }
        if (G == 2 ? half < QUERIES : half >= CUDA_LANES / 2) {
            const int query = G == 2 ? half : (half - CUDA_LANES / 2) % QUERIES;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < CUDA_CHUNK / CUDA_LANES; i++)
                sum = sum + p[query * ATTEND_P_STRIDE + i * CUDA_LANES + lane];
            sum = lanes_sum(sum);
            if (lane == 0 && (G == 2 || half - CUDA_LANES / 2 < QUERIES))
                attend_give(&mine, QUERIES * WIDE + 2 * query, attend_most(maxima[query]), sum);
        }
        if (G == 2)
            attend_store_new<QUERIES, G>(a, &b, pos0, heads, values, 0, CUDA_LANES);
        else if (half >= CUDA_LANES / 2)
            attend_store_new<QUERIES, G>(a, &b, pos0, heads, values, CUDA_LANES / 2,
                                         CUDA_LANES / 2);
    }
    timeline_mark(TIMELINE_ATTEND_SUMMED);
    if (!a.clustered || slot != 0)
        return; /* attend_together follows, or the first of the cluster goes on */
    if (threadIdx.x == ATTEND_THREADS - 1)
        bytes_barrier_expect(&gathered,
                             (unsigned)((newest - oldest + 1) * record) * (unsigned)sizeof(float));
    cluster_gather_wait(&gathered);
    attend_merge_gathered<QUERIES, G>(a, &b, together, gates, facts);
    timeline_mark(TIMELINE_ATTEND_ENDS);
}

/* Puts the chunks of a head of a row together, in their order; a thread has an element. */
template <int G>
__global__
__launch_bounds__(G *ATTEND_WIDE) static void attend_together(const struct attend_arguments a)
{
    enum { WIDE = G * ATTEND_WIDE };
    __shared__ float factor[ATTEND_MERGE][3];
    pdl_launch_next();
    const int row = (int)blockIdx.x / a.heads, head = (int)blockIdx.x % a.heads;
    const int kv_head = head / a.share, query = row * a.share + head - kv_head * a.share;
    const int group = query / a.queries_each, number = query % a.queries_each;
    const int record = attend_record(a.queries_each, G), d = (int)threadIdx.x;
    const float *partial =
        a.partial + (size_t)(kv_head * a.groups + group) * (size_t)a.slots * (size_t)record;
    pdl_wait();
    timeline_mark(TIMELINE_TOGETHER_THERE);
    const int pos0 = attend_position(a);
    const float gate = attend_gate(a, row, head);
    const int oldest = attend_range(a, pos0, group * a.queries_each).first / CUDA_CHUNK;
    const struct key_range seen = attend_range(a, pos0, query);
    const int from = seen.first / CUDA_CHUNK - oldest, to = seen.last / CUDA_CHUNK - oldest;
    float o = 0.0f, l = 0.0f, carry = -INFINITY;
    if (to - from < ATTEND_CLUSTER) { /* as in a cluster */
        const float *at = partial + (size_t)from * (size_t)record;
        const float *element = at + number * WIDE + d;
        const float *pair = at + a.queries_each * WIDE + 2 * number;
        const int first = 0, last = to - from;
        attend_merge<1, true>(&element, &pair, record, last + 1, &first, &last, &o, &l);
        if (d < a.head_dim)
            a.out[((size_t)row * (size_t)a.heads + (size_t)head) * (size_t)a.head_dim + (size_t)d] =
                attend_finish(o, l, gate);
        return;
    }
    for (int begin = from; begin <= to; begin += ATTEND_MERGE) {
        const float *at = partial + (size_t)begin * (size_t)record;
        float part[ATTEND_MERGE];
#pragma unroll
        for (int i = 0; i < ATTEND_MERGE; i++)
            part[i] = begin + i <= to ? __ldcg(at + (size_t)i * (size_t)record + number * WIDE + d)
                                      : 0.0f;
        if (d < 32) { /* of each chunk, what was before is scaled by, and what it brings */
            const bool there = begin + d <= to;
            const float2 pair = there ? __ldcg((const float2 *)(at + (size_t)d * (size_t)record +
                                                                a.queries_each * WIDE + 2 * number))
                                      : make_float2(-INFINITY, 0.0f);
            float run = pair.x > carry ? pair.x : carry;
            for (int step = 1; step < 32; step *= 2) {
                const float before = __shfl_up_sync(0xffffffffu, run, step);
                run = d >= step && before > run ? before : run;
            }
            float before = __shfl_up_sync(0xffffffffu, run, 1);
            before = d == 0 ? carry : before;
            factor[d][0] = attend_exp(before - run);
            factor[d][1] = attend_exp(pair.x - run);
            factor[d][2] = pair.y;
            carry = __shfl_sync(0xffffffffu, run, 31);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ATTEND_MERGE; i++) {
            if (begin + i > to)
                break;
            const float *f = factor[i];
            const bool first = i == 0 && begin == from;
            l = first ? f[2] : fmaf(f[2], f[1], l * f[0]);
            o = first ? part[i] : fmaf(part[i], f[1], o * f[0]);
        }
        __syncthreads();
    }
    if (d < a.head_dim)
        a.out[((size_t)row * (size_t)a.heads + (size_t)head) * (size_t)a.head_dim + (size_t)d] =
            attend_finish(o, l, gate);
}

/* Many rows, whose keys and values are in the ring: a block goes through all chunks of its SETS *
 * HEADS queries, each in G parts, so that shared memory has room for wide heads. */
template <int SETS, int HEADS, int G>
__global__ __launch_bounds__(ATTEND_THREADS,
                             2) static void attend_many(const struct attend_arguments a)
{
    enum {
        QUERIES = SETS * HEADS,
        WIDE = G * ATTEND_WIDE,
        PITCH = WIDE * 2,
        PART = CUDA_CHUNK / G,              /* keys in shared memory */
        P_STRIDE = CUDA_CHUNK + 32 / HEADS, /* so that scores are stored without conflicts */
        TOGETHER = QUERIES >= 4 ? 2 : 1,    /* queries whose values a thread takes at once */
        DIMS = QUERIES >= 6 || G == 2 ? 4 : 2,
        SPLIT = WIDE / (32 * DIMS), /* warps for a query's elements */
        VALUE_WARPS = QUERIES / TOGETHER * SPLIT
    };
    static_assert((int)VALUE_WARPS <= (int)ATTEND_WARPS &&
                      (int)TOGETHER * DIMS * VALUE_WARPS * 32 <= (int)ATTEND_HALVES * WIDE,
                  "warps for values, and room for what they have so far");
    static_assert((int)QUERIES <= (int)ATTEND_HALVES && QUERIES % 2 == 0, "half-warps for queries");
    __shared__ float maxima[ATTEND_WARPS][QUERIES], most[QUERIES];
    __shared__ struct key_range ranges[QUERIES];
    __shared__ float m_total[QUERIES], l_total[QUERIES]; /* of the chunks so far */
    __shared__ float2 parts[QUERIES]; /* what they, and what this chunk brings, is scaled by */
    uint8_t *tile = (uint8_t *)attend_shared; /* of keys, then of values */
    float *q = (float *)(tile + PART * PITCH);
    float *p = q + QUERIES * WIDE, *heads = p + QUERIES * P_STRIDE;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % CUDA_LANES;
    const int half = (int)threadIdx.x / CUDA_LANES;

    pdl_launch_next();
    struct attend_block b = {};
    b.kv_head = (int)blockIdx.x / a.groups;
    b.query = (a.groups - 1 - (int)blockIdx.x % a.groups) * QUERIES; /* the longest first */
    pdl_wait();
    const int pos0 = attend_position(a);
    attend_place(a, &b, QUERIES, pos0, 0);
    const int oldest = b.first / CUDA_CHUNK, newest = b.last / CUDA_CHUNK;

    /* The elements of the output that this thread sees to. */
    const int value_query = warp / SPLIT * TOGETHER;
    const int value_at = (warp % SPLIT * 32 + (int)threadIdx.x % 32) * DIMS;
    if ((int)threadIdx.x < QUERIES)
        ranges[threadIdx.x] = attend_range(a, pos0, b.query + (int)threadIdx.x);

    struct attend_vector<G> vector;
    const int prepared = attend_query(a, b.query + (half < QUERIES ? half : 0));
    const int prepared_row = attend_row(a, prepared);
    attend_fetch_weights<G>(a, a.q_norm, pos0 + prepared_row, &vector);
    attend_fetch<G>(a,
                    a.projected + (size_t)prepared_row * a.projected_stride +
                        (b.kv_head * a.share + prepared - prepared_row * a.share) * a.head_dim,
                    &vector);
    float normed[8 * G];
    attend_head<G>(a, &vector, (uint16_t *)(heads + half * WIDE), normed);
    if (half < QUERIES)
        attend_put_query<G>(normed, q + half * WIDE);

    /* Outputs so far are in shared memory: there are no registers for them. */
    float *total = heads + (int)threadIdx.x;
    for (int chunk = oldest; chunk <= newest; chunk++) {
        attend_take_chunk(&b, chunk);
#pragma unroll
        for (int part = 0; part < CUDA_CHUNK; part += PART) {
            const struct attend_block t = attend_part(b, part, PART);
            if (part > 0)
                __syncthreads();
            attend_load_old<G>(a, &t, a.keys, a.key_stride, INT32_MAX / 2, tile);
            copy_commit();
            copy_wait<0>();
            __syncthreads();
#pragma unroll 1
            for (int set = 0; set < SETS; set++) {
                const struct key_range seen =
                    attend_within(ranges[set * HEADS + lane % HEADS], t.base);
                float m =
                    attend_scores<HEADS, G>(tile, q + set * HEADS * WIDE, a.scale, t.lo, t.hi, seen,
                                            p + set * HEADS * P_STRIDE + part, P_STRIDE);
#pragma unroll
                for (int step = HEADS; step < 32; step *= 2) {
                    const float other = __shfl_xor_sync(0xffffffffu, m, step);
                    m = other > m ? other : m;
                }
                if ((int)threadIdx.x % 32 < HEADS) {
                    float *most_of = &maxima[warp][set * HEADS + lane];
                    *most_of = part > 0 && *most_of > m ? *most_of : m;
                }
            }
        }
        __syncthreads();
        struct attend_block t = attend_part(b, 0, PART);
        attend_load_old<G>(a, &t, a.values, a.value_stride, INT32_MAX / 2, tile);
        copy_commit();
#pragma unroll 1
        for (int set = 0; set < SETS; set++) {
            const int query = set * HEADS + lane % HEADS;
            const struct key_range seen = attend_within(ranges[query], b.base);
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
                *score = key >= seen.first && key <= seen.last ? attend_exp(*score - m) : 0.0f;
            }
        }
        copy_wait<0>();
        __syncthreads();

        float o[TOGETHER][DIMS] = {};
        if (half >= ATTEND_HALVES - QUERIES) {
            const int query = half - (ATTEND_HALVES - QUERIES);
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < CUDA_CHUNK / CUDA_LANES; i++)
                sum = sum + p[query * P_STRIDE + i * CUDA_LANES + lane];
            sum = lanes_sum(sum);
            const struct key_range r = ranges[query];
            if (lane == 0 && chunk >= r.first / CUDA_CHUNK && chunk <= r.last / CUDA_CHUNK) {
                const bool is_first = chunk == r.first / CUDA_CHUNK;
                const float m = most[query], m_old = is_first ? m : m_total[query];
                const float m_new = m > m_old ? m : m_old;
                const float old_part = attend_exp(m_old - m_new), new_part = attend_exp(m - m_new);
                l_total[query] = is_first ? sum : fmaf(sum, new_part, l_total[query] * old_part);
                m_total[query] = m_new;
                parts[query] = make_float2(old_part, new_part);
            }
        }
#pragma unroll
        for (int part = 0; part < CUDA_CHUNK; part += PART) {
            if (part > 0) {
                __syncthreads();
                t = attend_part(b, part, PART);
                attend_load_old<G>(a, &t, a.values, a.value_stride, INT32_MAX / 2, tile);
                copy_commit();
                copy_wait<0>();
                __syncthreads();
            }
            if (warp < VALUE_WARPS) {
                struct key_range summed[TOGETHER];
#pragma unroll
                for (int h = 0; h < TOGETHER; h++) {
                    summed[h] = attend_within(ranges[value_query + h], t.base);
                    summed[h].last = summed[h].last < PART - 1 ? summed[h].last : PART - 1;
                }
                attend_values<TOGETHER, DIMS>(tile + value_at * 2, PITCH,
                                              p + value_query * P_STRIDE + part, P_STRIDE, summed,
                                              o);
            }
        }
        __syncthreads();

        if (warp < VALUE_WARPS) {
#pragma unroll
            for (int h = 0; h < TOGETHER; h++) {
                const struct key_range r = ranges[value_query + h];
                if (chunk < r.first / CUDA_CHUNK || chunk > r.last / CUDA_CHUNK)
                    continue;
                const bool is_first = chunk == r.first / CUDA_CHUNK;
                const float2 part = parts[value_query + h];
#pragma unroll
                for (int d = 0; d < DIMS; d++) {
                    float *sum = total + (h * DIMS + d) * VALUE_WARPS * 32;
                    *sum = is_first ? o[h][d] : fmaf(o[h][d], part.y, *sum * part.x);
                }
            }
        }
    }
    if (warp >= VALUE_WARPS)
        return;
#pragma unroll
    for (int h = 0; h < TOGETHER; h++) {
        const int query = b.query + value_query + h, row = attend_row(a, query);
        const int head = b.kv_head * a.share + query - row * a.share;
        if (query >= a.rows * a.share)
            continue;
        const float gate = attend_gate(a, row, head);
        uint16_t *to = a.out + ((size_t)row * (size_t)a.heads + (size_t)head) * (size_t)a.head_dim;
#pragma unroll
        for (int d = 0; d < DIMS; d++)
            if (value_at + d < a.head_dim)
                to[value_at + d] = attend_finish(total[(h * DIMS + d) * VALUE_WARPS * 32],
                                                 l_total[value_query + h], gate);
    }
}

/* ---- Host ---- */

enum { ATTEND_STATIC = 8192 }; /* what a kernel has of shared memory besides, at most */

typedef void (*attend_kernel)(struct attend_arguments);

/* The forms of the kernels, by how many queries a block has. */
struct attend_form {
    int queries, heads, groups; /* heads: at once; groups: of 128 elements of a head */
    bool many;
    attend_kernel kernel;
};
static const struct attend_form attend_forms[] = {
    {2, 2, 1, false, attend_few<2, 2, 1>}, {4, 4, 1, false, attend_few<4, 4, 1>},
    {6, 2, 1, false, attend_few<6, 2, 1>}, {8, 4, 1, false, attend_few<8, 4, 1>},
    {2, 2, 2, false, attend_few<2, 2, 2>}, {16, 4, 1, true, attend_many<4, 4, 1>},
    {2, 2, 2, true, attend_many<1, 2, 2>}};

static int attend_groups(int head_dim)
{
    return (head_dim + ATTEND_WIDE - 1) / ATTEND_WIDE;
}

static size_t attend_bytes(const struct attend_form *f)
{
    const size_t wide = (size_t)f->groups * ATTEND_WIDE, queries = (size_t)f->queries;
    const size_t scores = queries * (size_t)(CUDA_CHUNK + 32 / f->heads) + ATTEND_HALVES * wide;
    const size_t floats =
        queries * wide + (f->many ? scores : (size_t)attend_few_floats(f->queries, f->groups));
    const size_t keys = (size_t)CUDA_CHUNK / (f->many ? (size_t)f->groups : 1);
    return keys * wide * sizeof(uint16_t) + floats * sizeof(float);
}

/* Few rows of wide heads need more shared memory than small devices have. */
static bool attend_few_fit(const struct cuda_device *device, int head_dim)
{
    const struct attend_form *least = NULL;
    for (size_t i = 0; i < sizeof attend_forms / sizeof *attend_forms; i++) {
        const struct attend_form *f = &attend_forms[i];
        if (!f->many && f->groups == attend_groups(head_dim) &&
            (least == NULL || attend_bytes(f) < attend_bytes(least)))
            least = f;
    }
    return least != NULL && attend_bytes(least) + ATTEND_STATIC <= device->shared_most;
}

/* The chunks that positions of `rows` rows may reach into. A ring that has room for `chunks` may
 * lie in one more. */
static int attend_slots(int window, int rows, int chunks)
{
    const int keys = window + rows - 1;
    const int most = keys > 1 ? (keys - 2) / CUDA_CHUNK + 2 : 1;
    return window > 0 && most <= chunks + 1 ? most : chunks;
}

/* With which the busiest multiprocessor has the fewest queries, each of a chunk; of such the fewest
 * of a block where no multiprocessor has more than two blocks, else the most, which reads keys once
 * for all of them. */
static const struct attend_form *attend_choose(const struct attend_arguments *a,
                                               int multiprocessors, bool many)
{
    const int all = a->rows * a->share;
    const struct attend_form *best = NULL;
    int least = INT_MAX, best_blocks = 0;
    for (size_t i = 0; i < sizeof attend_forms / sizeof *attend_forms; i++) {
        const struct attend_form *f = &attend_forms[i];
        if (f->many != many || f->groups != attend_groups(a->head_dim))
            continue;
        const int blocks = a->kv_heads * ((all + f->queries - 1) / f->queries) * a->slots;
        const int busiest = (blocks + multiprocessors - 1) / multiprocessors * f->queries;
        if (busiest < least || (busiest == least && best_blocks > 2 * multiprocessors)) {
            best = f;
            best_blocks = blocks;
            least = busiest;
        }
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
    a.head_part = (b->head_dim & (b->head_dim - 1)) == 0 ? 1.0f / (float)b->head_dim : 0.0f;
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

/* Scratch: partial results of few rows, or queries of many. */
size_t cuda_attend_scratch(int heads, int kv_heads, int head_dim, int rows, int chunks)
{
    const size_t few = (size_t)(rows < CUDA_RECORD_ROWS ? rows : CUDA_RECORD_ROWS);
    const size_t queries = few * (size_t)heads + 8 * (size_t)kv_heads;
    const size_t wide = (size_t)attend_groups(head_dim) * ATTEND_WIDE;
    const size_t partial = queries * (size_t)(chunks + 1) * (wide + 2) * sizeof(float);
    const size_t many = (size_t)rows * (size_t)heads * (size_t)head_dim * sizeof(uint16_t);
    return partial > many ? partial : many;
}

static bool attend_clusters_wanted(void)
{
    const char *asked = getenv("MLXFAST_CUDA_CLUSTERS");
    return asked == NULL || strcmp(asked, "0") != 0;
}

void cuda_attend(const struct cuda_launch *l, const struct cuda_attend *c)
{
    struct attend_arguments a = attend_arguments_of(l, c);
    if (!attend_takes(l, c->w->block))
        return;
    const bool many = a.rows > CUDA_RECORD_ROWS || !attend_few_fit(l->device, a.head_dim);
    a.key_at = a.heads * a.head_dim;
    a.value_at = a.key_at + a.kv_heads * a.head_dim;
    a.gate_at = a.value_at + a.kv_heads * a.head_dim;
    a.out = c->out;
    a.partial = (float *)c->scratch;
    if (many) {
        const bool fast = l->fast && a.rows > CUDA_RECORD_ROWS &&
                          cuda_attend_fast_takes(a.heads, a.kv_heads, a.head_dim);
        a.queries = fast ? (uint16_t *)a.partial : NULL;
        attend_append_launch(l, &a);
        if (fast) {
            cuda_attend_fast(l, c, a.queries);
            return;
        }
    }
    a.slots = many ? 1 : attend_slots(a.window, a.rows, c->chunks);
    const struct attend_form *f = attend_choose(&a, l->device->multiprocessors, many);
    a.groups = (a.rows * a.share + f->queries - 1) / f->queries;
    a.queries_each = f->queries;
    size_t shared = attend_bytes(f);
    const size_t gathered =
        (size_t)a.slots * (size_t)attend_record(f->queries, f->groups) * sizeof(float);
    static const bool wanted = attend_clusters_wanted();
    a.clustered = wanted && !many && l->device->major >= 9 && a.slots > 1 &&
                  a.slots <= ATTEND_CLUSTER &&
                  shared + gathered + ATTEND_STATIC <= l->device->shared_most;
    shared += a.clustered ? gathered : 0;
    const dim3 all((unsigned)(a.kv_heads * a.groups));
    const dim3 few((unsigned)a.slots, (unsigned)a.groups, (unsigned)a.kv_heads);
    cuda_launch_cluster(l, "attend", f->kernel, many ? all : few, dim3(ATTEND_THREADS), shared,
                        a.clustered ? (unsigned)a.slots : 1, a);
    if (!many && !a.clustered)
        cuda_launch(l, "attend_together", f->groups == 1 ? attend_together<1> : attend_together<2>,
                    dim3((unsigned)(a.rows * a.heads)), dim3((unsigned)(f->groups * ATTEND_WIDE)),
                    0, a);
}
