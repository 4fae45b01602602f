/* Attention of few rows (attention.cu): which keys a block has, the queries and keys it makes, and
 * how chunks are put together. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_ATTENTION_FEW_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_ATTENTION_FEW_CUH

#include "engine/compute/cuda/attention.cuh"

enum {
    ATTEND_MERGE = 32,  /* chunks that are put together at once */
    ATTEND_CLUSTER = 8, /* blocks of a cluster that every device has */
    ATTEND_MOST_DIM = 2 * ATTEND_WIDE
};

/* What a block does: a key/value head, queries from `query` on, and one chunk of keys. */
struct attend_block {
    int kv_head, query;
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

/* `keys` keys of a block's chunk, from number `from` on. */
static __device__ __forceinline__ struct attend_block attend_part(struct attend_block b, int from,
                                                                  int keys)
{
    b.base += from;
    b.lo = b.lo > from ? b.lo - from : 0;
    b.hi = b.hi - from < keys - 1 ? b.hi - from : keys - 1;
    b.active = b.hi >= b.lo;
    return b;
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

/* Before the wait: so that the first load behind it need not look for its page too. Nothing of it
 * is read. */
static __device__ __forceinline__ void attend_warm(const void *p)
{
#ifdef CUDA_EMULATED
    (void)p;
#else
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
#endif
}

/* Of a block's keys the last that an earlier forward wrote. */
static __device__ __forceinline__ int attend_last_old(const struct attend_block *b, int pos0)
{
    return pos0 - 1 - b->base < b->hi ? pos0 - 1 - b->base : b->hi;
}

/* Starts to load what earlier forwards wrote. */
template <int G>
static __device__ __forceinline__ void
attend_load_old(const struct attend_arguments &a, const struct attend_block *b,
                const uint16_t *ring, int stride, int pos0, uint8_t *to)
{
    const int old = attend_last_old(b, pos0);
    if (b->active)
        attend_load<CUDA_LANES * G>(to,
                                    ring + (size_t)b->kv_head * (size_t)a.capacity * (size_t)stride,
                                    stride, a.capacity, b->base, b->lo, old);
}

/* Whether values of earlier forwards come by attend_copy_values: there are some, and the ring's
 * rows lie as shared memory's do. */
template <int G>
static __device__ __forceinline__ bool attend_values_in_bulk(const struct attend_arguments &a,
                                                             const struct attend_block *b, int pos0)
{
    return PTX_HOPPER && a.value_stride == G * ATTEND_WIDE && b->active &&
           attend_last_old(b, pos0) >= b->lo;
}

/* By one thread: in one piece or two, past the threads' own way to memory, which is the keys'. */
template <int G>
static __device__ __forceinline__ void attend_copy_values(const struct attend_arguments &a,
                                                          const struct attend_block *b, int pos0,
                                                          uint8_t *to, uint64_t *barrier)
{
    enum { ROW = G * ATTEND_WIDE * 2 };
    const unsigned lo = (unsigned)b->lo, end = (unsigned)a.capacity;
    const unsigned rows = (unsigned)attend_last_old(b, pos0) + 1 - lo;
    const unsigned slot = ((unsigned)b->base + lo) % end;
    const unsigned first = rows < end - slot ? rows : end - slot;
    const uint8_t *ring = (const uint8_t *)a.values + (size_t)b->kv_head * end * ROW;
    bulk_expect(barrier, rows * ROW);
    bulk_copy(to + lo * ROW, ring + (size_t)slot * ROW, first * ROW, barrier);
    if (first < rows)
        bulk_copy(to + (lo + first) * ROW, ring, (rows - first) * ROW, barrier);
}

/* What a half-warp brings through norm and rotary: a query of the block, a position of this
 * forward whose key lies in the chunk, or both. */
struct attend_task {
    bool has_query, has_key;
    int number, query_row, key_row; /* number: of the query in the block */
    const uint16_t *query, *key;    /* their projections */
};

/* A half-warp has the keys of a chunk whose number is its own mod 16: at most one of them is new.
 * Queries are behind the half-warps that have new keys, from an even one on. */
template <int QUERIES>
static __device__ __forceinline__ struct attend_task
attend_task_of(const struct attend_arguments &a, const struct attend_block *b, int pos0)
{
    const int half = (int)threadIdx.x / CUDA_LANES;
    const int first = b->base + b->lo > pos0 ? b->base + b->lo : pos0;
    const int position = first + ((half - first) & (CUDA_LANES - 1));
    struct attend_task t;
    t.has_key = b->active && position <= b->base + b->hi;
    t.key_row = t.has_key ? position - pos0 : 0;
    t.key =
        a.projected + (size_t)t.key_row * a.projected_stride + a.key_at + b->kv_head * a.head_dim;
    t.number = (half - ((pos0 + a.rows + 1) & ~1)) & (CUDA_LANES - 1);
    t.has_query = t.number < QUERIES;
    const int query = attend_query(a, b->query + (t.has_query ? t.number : 0));
    t.query_row = attend_row(a, query);
    t.query = a.projected + (size_t)t.query_row * a.projected_stride +
              (b->kv_head * a.share + query - t.query_row * a.share) * a.head_dim;
    return t;
}

/* The old keys of a half-warp into registers: key k of it is number 16 k + half. */
template <int G>
static __device__ __forceinline__ void attend_load_keys(const struct attend_arguments &a,
                                                        const struct attend_block *b, int pos0,
                                                        uint4 key[CUDA_LANES * G])
{
    const int half = (int)threadIdx.x / CUDA_LANES, lane = (int)threadIdx.x % CUDA_LANES;
    const int old = attend_last_old(b, pos0);
    const unsigned row_bytes = (unsigned)a.key_stride * sizeof *a.keys, end = (unsigned)a.capacity;
    const unsigned slot = (unsigned)(b->base + b->lo) % end - (unsigned)b->lo;
    const uint8_t *ring =
        (const uint8_t *)(a.keys + (size_t)b->kv_head * end * (size_t)a.key_stride) + lane * 16;
    if (!b->active || old < b->lo) {
#pragma unroll
        for (int k = 0; k < CUDA_LANES * G; k++)
            key[k] = make_uint4(0, 0, 0, 0);
        return;
    }
#pragma unroll
    for (int k = 0; k < CUDA_LANES; k++) {
        /* What is not there is another, and not looked at. */
        const unsigned i = (unsigned)min(max(k * CUDA_LANES + half, b->lo), old);
        const unsigned at = min(slot + i, slot + i - end); /* the one that is not below 0 */
#pragma unroll
        for (int g = 0; g < G; g++)
            key[k * G + g] =
                __ldcg((const uint4 *)(ring + (size_t)at * row_bytes) + g * CUDA_LANES);
    }
}

/* New values of the chunk into shared memory: every eighth from a warp's own on, counted from the
 * first. */
template <int G>
static __device__ __forceinline__ void attend_put_values(const struct attend_arguments &a,
                                                         const struct attend_block *b, int pos0,
                                                         int own, uint8_t *values)
{
    const int thread = (int)threadIdx.x % 32;
    const int first = b->base + b->lo > pos0 ? b->base + b->lo : pos0;
#pragma unroll 1
    for (int position = first + own; b->active && position <= b->base + b->hi;
         position += ATTEND_WARPS) {
        const uint16_t *from = a.projected + (size_t)(position - pos0) * a.projected_stride +
                               a.value_at + b->kv_head * a.head_dim + thread;
        uint16_t *to = (uint16_t *)values + (position - b->base) * G * ATTEND_WIDE + thread;
#pragma unroll
        for (int i = 0; i < 4 * G; i++)
            to[i * 32] = i * 32 + thread < a.head_dim ? __ldcg(from + i * 32) : (uint16_t)0;
    }
}

/* A new key into this half-warp's registers, number `at` of them; -1: none. Without branches: it
 * costs less than instructions that do not come in a row. */
template <int G>
static __device__ __forceinline__ void attend_put_key(int at, const uint16_t *x,
                                                      uint4 key[CUDA_LANES * G])
{
#pragma unroll
    for (int g = 0; g < G; g++) {
        const uint4 piece = attend_key_piece(x, g);
#pragma unroll
        for (int k = 0; k < CUDA_LANES; k++)
            key[k * G + g] = k == at ? piece : key[k * G + g];
    }
}

/* New keys and values into the ring, by the block whose queries begin with their row; by `halves`
 * half-warps from `from` on. */
template <int QUERIES, int G>
static __device__ __forceinline__ void
attend_store_new(const struct attend_arguments &a, const struct attend_block *b, int pos0,
                 const uint16_t *heads, const uint8_t *values, int from, int halves)
{
    const int lane = (int)threadIdx.x % CUDA_LANES, half = (int)threadIdx.x / CUDA_LANES;
    const int first = b->base + b->lo > pos0 ? b->base + b->lo : pos0;
#pragma unroll 1
    for (int position = first + half - from; position <= b->base + b->hi; position += halves) {
        const int begin = (position - pos0) * a.share;
        if (begin < b->query || begin >= b->query + QUERIES)
            continue;
        const uint16_t *x = heads + position % CUDA_LANES * G * ATTEND_WIDE;
        const uint16_t *value = (const uint16_t *)values + (position - b->base) * G * ATTEND_WIDE;
        const size_t slot = (size_t)b->kv_head * (size_t)a.capacity +
                            (size_t)((unsigned)position % (unsigned)a.capacity);
        uint16_t *ring = a.values + slot * (size_t)a.value_stride;
#pragma unroll
        for (int g = 0; g < G; g++)
            ((uint4 *)(a.keys + slot * (size_t)a.key_stride))[g * CUDA_LANES + lane] =
                attend_key_piece(x, g);
#pragma unroll 1
        for (int d = lane; d < a.value_stride; d += CUDA_LANES)
            ring[d] = d < a.head_dim ? value[d] : (uint16_t)0;
    }
}

static __device__ __forceinline__ float attend_gate(const struct attend_arguments &a, int row,
                                                    int head)
{
    const uint16_t logit =
        __ldcg(a.projected + (size_t)row * a.projected_stride + a.gate_at + head);
    return rounded(elementary_softplus(bf16_float(logit)));
}

/* Where the gate of a query of the block is. */
static __device__ __forceinline__ const uint16_t *
attend_gate_of(const struct attend_arguments &a, const struct attend_block *b, int number)
{
    const int query = attend_query(a, b->query + number), row = attend_row(a, query);
    return a.projected + (size_t)row * a.projected_stride + a.gate_at + b->kv_head * a.share +
           query - row * a.share;
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

/* Where a block's partial result goes: its record begins `record` floats on. */
struct attend_result {
    bool clustered;
    float *together; /* in the first of the cluster's shared memory */
    uint64_t *gathered;
    float *partial; /* or in device memory */
    int record;
};

static __device__ __forceinline__ void attend_give(const struct attend_result *result, int at,
                                                   float x, float y)
{
    at += result->record;
    if (result->clustered)
        cluster_send(result->together + at, x, y, result->gathered, 0);
    else
        *(float2 *)(result->partial + at) = make_float2(x, y);
}

/* What there is to know of a query of a block, once for all: in shared memory. */
struct attend_facts {
    struct key_range seen; /* of the chunk */
    int from, to;          /* its chunks, counted from the oldest of the block's queries */
    long long out;         /* where its output begins; -1: there is none */
};

static __device__ __forceinline__ struct attend_facts
attend_facts_of(const struct attend_arguments &a, const struct attend_block *b, int pos0,
                int number)
{
    const struct key_range r = attend_range(a, pos0, b->query + number);
    const int oldest = b->first / CUDA_CHUNK, query = b->query + number;
    const int row = attend_row(a, query), head = b->kv_head * a.share + query - row * a.share;
    struct attend_facts f;
    f.seen = attend_within(r, b->base);
    f.from = r.first / CUDA_CHUNK - oldest;
    f.to = r.last / CUDA_CHUNK - oldest;
    f.out = query < a.rows * a.share ? ((long long)row * a.heads + head) * a.head_dim : -1;
    return f;
}

/* Puts the chunks of a block's queries together, out of shared memory. */
template <int QUERIES, int G>
static __device__ __forceinline__ void
attend_merge_gathered(const struct attend_arguments &a, const struct attend_block *b,
                      const float *partial, const float *gates, const struct attend_facts *facts)
{
    enum { WIDE = G * ATTEND_WIDE, EACH = QUERIES * WIDE / ATTEND_THREADS };
    const float *elements[EACH], *pairs[EACH];
    int from[EACH], to[EACH]; /* chunks of my elements' queries */
    float l[EACH], o[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = e * ATTEND_THREADS + (int)threadIdx.x;
        from[e] = facts[at / WIDE].from;
        to[e] = facts[at / WIDE].to;
        elements[e] = partial + at;
        pairs[e] = partial + QUERIES * WIDE + 2 * (at / WIDE);
    }
    attend_merge<EACH, false>(elements, pairs, attend_record(QUERIES, G),
                              b->last / CUDA_CHUNK - b->first / CUDA_CHUNK + 1, from, to, o, l);
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = e * ATTEND_THREADS + (int)threadIdx.x, d = at % WIDE;
        const long long out = facts[at / WIDE].out;
        if (out >= 0 && d < a.head_dim)
            a.out[out + d] = attend_finish(o[e], l[e], gates[at / WIDE]);
    }
}

#endif
