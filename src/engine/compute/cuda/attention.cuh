/* The parts of an attention kernel (attention.cu): a thread block works on one chunk of one
 * key/value head at a time, for a few queries, each a query head of a row.
 *
 * Scores: a half-warp takes 16 / HEADS keys and HEADS query heads at once, each thread its lane's
 * products of all of them. Slot s of thread l is the pair of key and head number s ^ l: so the tree
 * over the lanes needs no selection, a thread sends the half of its slots that its partner keeps,
 * and ends with the score number l. Sums are those of numerics.md: l with l + 8, then 4, 2, 1.
 *
 * Values: a thread owns a few elements of the output of one or two queries, and goes through the
 * keys in order. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_ATTENTION_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_ATTENTION_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/cuda.h"
#include "engine/compute/cuda/ptx.cuh"

enum {
    ATTEND_THREADS = 256,
    ATTEND_WARPS = ATTEND_THREADS / 32,
    ATTEND_HALVES = ATTEND_THREADS / CUDA_LANES,
    ATTEND_WIDE = CUDA_BF16_GROUP, /* elements of a head that a half-warp takes at once */
    ATTEND_P_STRIDE = CUDA_CHUNK + 4
};

struct attend_arguments {
    const struct cuda_step *step;
    const uint16_t *projected; /* row r at r * projected_stride: queries, then at.. */
    size_t projected_stride;
    int key_at, value_at, gate_at; /* elements in a row of it */
    const uint16_t *q_norm, *k_norm;
    const float *cosine, *sine;
    int rotary, positions; /* of the table */
    float eps, input_scale, scale;
    float head_part;         /* 1 / head_dim where that is exact, else 0 */
    uint16_t *keys, *values; /* the rings */
    int capacity, key_stride, value_stride;
    int rows, heads, kv_heads, head_dim;
    int window;
    int share;           /* query heads of a key/value head */
    unsigned share_part; /* 2^32 / share, rounded up; 0: share is 1 */
    uint16_t *out;
    uint16_t *queries; /* cuda_append's kernel: NULL, or where queries go, [rows, heads*head_dim] */

    int queries_each; /* of a block */
    int groups;       /* of queries, for each key/value head */
    int slots;        /* chunks that a group may have work in */
    bool clustered;   /* the slots of a group are a cluster: the first puts the chunks together */
    float *partial;   /* [kv_heads, groups, slots] of attend_record floats */
};

/* The keys that a query sees: positions; or within a chunk. */
struct key_range {
    int first, last;
};

/* The row of a query that there is: query / share. */
static __device__ __forceinline__ int attend_row(const struct attend_arguments &a, int query)
{
    return a.share_part == 0 ? query : (int)__umulhi((unsigned)query, a.share_part);
}

/* Queries behind the last are it once more. */
static __device__ __forceinline__ int attend_query(const struct attend_arguments &a, int query)
{
    const int all = a.rows * a.share;
    return query < all ? query : all - 1;
}

static __device__ __forceinline__ struct key_range attend_range(const struct attend_arguments &a,
                                                                int pos0, int query)
{
    const int position = pos0 + attend_row(a, attend_query(a, query));
    const int oldest = a.window > 0 ? position - a.window + 1 : 0;
    return {oldest > 0 ? oldest : 0, position};
}

/* Of them those of the chunk that begins at base, counted from there; none: last is below first. */
static __device__ __forceinline__ struct key_range attend_within(struct key_range r, int base)
{
    return {r.first > base ? r.first - base : 0,
            r.last - base < CUDA_CHUNK - 1 ? r.last - base : CUDA_CHUNK - 1};
}

/* Rows lo .. hi of a chunk, from a ring into shared memory, `WIDE` 16-byte pieces apart there. */
template <int PIECES>
static __device__ __forceinline__ void attend_load(uint8_t *to, const uint16_t *ring, int stride,
                                                   int capacity, int base, int lo, int hi)
{
    const int piece = (int)threadIdx.x % PIECES;
    const int slot = (int)((unsigned)(base + lo) % (unsigned)capacity);
    if (piece * 8 >= stride)
        return;
#pragma unroll 2
    for (int i = lo + (int)threadIdx.x / PIECES; i <= hi; i += ATTEND_THREADS / PIECES) {
        const int at = slot + (i - lo);
        copy_async(to + ((size_t)i * PIECES + (size_t)piece) * 16,
                   ring + (size_t)(at < capacity ? at : at - capacity) * (size_t)stride +
                       piece * 8);
    }
}

/* What a half-warp's lane has of one head of one row on its way through norm and rotary. */
template <int G> struct attend_vector {
    uint16_t value[8 * G], weight[8 * G];
    float cosine[4 * G], sine[4 * G];
};

/* Loads of what may be read before anything is waited for. Where there is nothing, the first is
 * read. */
template <int G>
static __device__ __forceinline__ void attend_fetch_weights(const struct attend_arguments &a,
                                                            const uint16_t *norm, int position,
                                                            struct attend_vector<G> *x)
{
    const int lane = (int)threadIdx.x % CUDA_LANES, half = a.rotary / 2;
    const bool valid = position >= 0 && position < a.positions;
    const size_t row = valid ? (size_t)position * (size_t)half : 0;
#pragma unroll
    for (int i = 0; i < 8 * G; i++) {
        x->weight[i] =
            i * CUDA_LANES + lane < a.head_dim ? norm[i * CUDA_LANES + lane] : (uint16_t)0;
    }
#pragma unroll
    for (int i = 0; i < 4 * G; i++) {
        const int k = i * CUDA_LANES + lane;
        x->cosine[i] = k < half ? a.cosine[row + (size_t)k] : 0.0f;
        x->sine[i] = k < half ? a.sine[row + (size_t)k] : 0.0f;
    }
}

template <int G>
static __device__ __forceinline__ void
attend_fetch(const struct attend_arguments &a, const uint16_t *from, struct attend_vector<G> *x)
{
    const int lane = (int)threadIdx.x % CUDA_LANES;
    from += lane;
    if (a.head_dim == G * ATTEND_WIDE) {
#pragma unroll
        for (int i = 0; i < 8 * G; i++)
            x->value[i] = __ldcg(from + i * CUDA_LANES);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8 * G; i++)
        x->value[i] =
            i * CUDA_LANES + lane < a.head_dim ? __ldcg(from + i * CUDA_LANES) : (uint16_t)0;
}

/* Both rounded to bf16. */
static __device__ __forceinline__ void attend_round(float *x, float *y)
{
    const uint32_t pair = bf16_pair_of(*x, *y);
    *x = bf16_low(pair);
    *y = bf16_high(pair);
}

/* elementary_exp of what is not above zero, without branches. */
static __device__ __forceinline__ float attend_exp(float x)
{
    const float n = rintf(x * ELEMENTARY_LOG2_E);
    float r = fmaf(n, ELEMENTARY_LN2_HIGH, x);
    r = fmaf(n, ELEMENTARY_LN2_LOW, r);
    float p = ELEMENTARY_EXP_C6;
    p = fmaf(p, r, ELEMENTARY_EXP_C5);
    p = fmaf(p, r, ELEMENTARY_EXP_C4);
    p = fmaf(p, r, ELEMENTARY_EXP_C3);
    p = fmaf(p, r, ELEMENTARY_EXP_C2);
    p = fmaf(p, r, ELEMENTARY_EXP_C1);
    const float y = fmaf(p, r * r, r) + 1.0f;
    const float e = y * __uint_as_float((uint32_t)((int)n + 127) << 23);
    return x < ELEMENTARY_EXP_LOW ? 0.0f : e;
}

/* Rotates a pair by a position's angle, both rounded. */
static __device__ __forceinline__ void attend_rotate(float input_scale, float cosine, float sine,
                                                     float *x1, float *x2)
{
    if (input_scale != 1.0f) {
        *x1 = *x1 * input_scale;
        *x2 = *x2 * input_scale;
        attend_round(x1, x2);
    }
    const float minus = *x2 * sine, plus = *x1 * sine;
    *x1 = fmaf(*x1, cosine, -minus);
    *x2 = fmaf(*x2, cosine, plus);
    attend_round(x1, x2);
}

/* A float that is a bf16. */
static __device__ __forceinline__ uint16_t attend_bits(float x)
{
    return (uint16_t)(__float_as_uint(x) >> 16);
}

/* Norm and rotary by a half-warp: v[i] is element 16 i + lane of the G * 128, zeros behind
 * head_dim, all of them bf16. own: as many of the half-warp's own. All threads of a warp come. */
template <int G>
static __device__ __forceinline__ void attend_head(const struct attend_arguments &a,
                                                   const struct attend_vector<G> *x, uint16_t *own,
                                                   float v[8 * G])
{
    const int lane = (int)threadIdx.x % CUDA_LANES, half = a.rotary / 2;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8 * G; i++) {
        v[i] = bf16_float(x->value[i]);
        sum = fmaf(v[i], v[i], sum);
    }
    sum = lanes_sum(sum);
    const float mean = a.head_part > 0.0f ? sum * a.head_part : sum / (float)a.head_dim;
    const float inverse = 1.0f / sqrtf(mean + a.eps);
#pragma unroll
    for (int i = 0; i < 8 * G; i += 2) {
        v[i] = v[i] * inverse;
        v[i + 1] = v[i + 1] * inverse;
        attend_round(&v[i], &v[i + 1]);
        v[i] = v[i] * bf16_float(x->weight[i]);
        v[i + 1] = v[i + 1] * bf16_float(x->weight[i + 1]);
        attend_round(&v[i], &v[i + 1]);
    }
    /* The usual two: both elements of a pair are this lane's. */
    if (G == 1 && half == 4 * CUDA_LANES) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            attend_rotate(a.input_scale, x->cosine[i], x->sine[i], &v[i], &v[i + 4]);
        return;
    }
    if (G == 1 && half == 2 * CUDA_LANES) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            attend_rotate(a.input_scale, x->cosine[i], x->sine[i], &v[i], &v[i + 2]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8 * G; i++)
        own[i * CUDA_LANES + lane] = attend_bits(v[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4 * G; i++) { /* only what this lane writes below */
        const int k = i * CUDA_LANES + lane;
        if (k >= half)
            continue;
        float x1 = bf16_float(own[k]), x2 = bf16_float(own[k + half]);
        attend_rotate(a.input_scale, x->cosine[i], x->sine[i], &x1, &x2);
        own[k] = attend_bits(x1);
        own[k + half] = attend_bits(x2);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 8 * G; i++)
        v[i] = bf16_float(own[i * CUDA_LANES + lane]);
}

/* A head to shared memory, in natural order. */
template <int G>
static __device__ __forceinline__ void attend_put_head(const float *v, uint16_t *to)
{
#pragma unroll
    for (int i = 0; i < 8 * G; i++)
        to[i * CUDA_LANES + (int)threadIdx.x % CUDA_LANES] = attend_bits(v[i]);
}

/* A query to where the scores take it from: [group][2][lane][4], element 32 b + 2 l + c of a group
 * being number 2 b + c of the 8 of lane l. */
template <int G> static __device__ __forceinline__ void attend_put_query(const float *v, float *q)
{
    const int lane = (int)threadIdx.x % CUDA_LANES;
#pragma unroll
    for (int i = 0; i < 8 * G; i++)
        q[i / 4 * 64 + i % 2 * 32 + i % 4 / 2 * 2 + lane / 2 * 4 + lane % 2] = v[i];
}

/* This lane's 16 bytes of a key in lanes order, of group g. */
static __device__ __forceinline__ uint4 attend_key_piece(const uint16_t *x, int g)
{
    const uint32_t *mine = (const uint32_t *)(x + g * ATTEND_WIDE) + (int)threadIdx.x % CUDA_LANES;
    return make_uint4(mine[0], mine[CUDA_LANES], mine[2 * CUDA_LANES], mine[3 * CUDA_LANES]);
}

/* The tree over the lanes of what a thread has in its slots: its own number's sum is in the first.
 */
template <int STEP> static __device__ __forceinline__ void attend_tree(float *slot)
{
#pragma unroll
    for (int i = 0; i < STEP; i++)
        slot[i] = slot[i] + __shfl_xor_sync(0xffffffffu, slot[i + STEP], STEP);
    if (STEP > 1)
        attend_tree<(STEP > 1 ? STEP / 2 : 1)>(slot);
}

/* The key of a chunk whose score a thread ends with in iteration `it`. */
template <int HEADS> static __device__ __forceinline__ int attend_key(int it)
{
    enum { KEYS = CUDA_LANES / HEADS };
    const int lane = (int)threadIdx.x % CUDA_LANES, half = (int)threadIdx.x / CUDA_LANES % 2;
    return (it * ATTEND_WARPS + (int)threadIdx.x / 32) * 2 * KEYS + half * KEYS + lane / HEADS;
}

/* Scores of the keys lo .. hi of a chunk for HEADS queries, scaled, to s [HEADS][stride]: each
 * thread its own; those of other keys are left as they are. Returns the thread's largest, of query
 * lane % HEADS, among the keys seen. q as attend_put_query leaves it. */
template <int HEADS, int G>
static __device__ __forceinline__ float attend_scores(const uint8_t *keys, const float *q,
                                                      float scale, int lo, int hi,
                                                      struct key_range seen, float *s, int stride)
{
    enum { KEYS = CUDA_LANES / HEADS, STEP = 2 * KEYS };
    const int lane = (int)threadIdx.x % CUDA_LANES, half = (int)threadIdx.x / CUDA_LANES % 2;
    float x[HEADS][8 * G], most = -INFINITY;
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            const int query = h ^ (lane % HEADS);
            const float4 four =
                *(const float4 *)(q + ((query * G * 2 + i) * CUDA_LANES + lane) * 4);
            x[h][4 * i] = four.x;
            x[h][4 * i + 1] = four.y;
            x[h][4 * i + 2] = four.z;
            x[h][4 * i + 3] = four.w;
        }
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0); /* of all threads one */
#pragma unroll 1
    for (int it = 0; it < HEADS; it++) {
        const int first = (it * ATTEND_WARPS + warp) * STEP;
        if (first > hi || first + STEP - 1 < lo)
            continue;
        float slot[CUDA_LANES];
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const int key = first + half * KEYS + (k ^ (lane / HEADS));
            float w[8 * G];
            if (k > 0 && k % 2 == 0)
                __syncwarp(); /* no more keys on their way than there are registers for */
#pragma unroll
            for (int g = 0; g < G; g++) {
                const uint4 piece =
                    *(const uint4 *)(keys + ((key * G + g) * CUDA_LANES + lane) * 16);
                const uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
                for (int b = 0; b < 4; b++) {
                    w[8 * g + 2 * b] = bf16_low(word[b]);
                    w[8 * g + 2 * b + 1] = bf16_high(word[b]);
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 4 * G; i++)
                    sum = fmaf(w[2 * i], x[h][2 * i], fmaf(w[2 * i + 1], x[h][2 * i + 1], sum));
                slot[k * HEADS + h] = sum;
            }
        }
        attend_tree<CUDA_LANES / 2>(slot);
        const float score = slot[0] * scale;
        const int mine = attend_key<HEADS>(it);
        s[lane % HEADS * stride + mine] = score;
        if (mine >= seen.first && mine <= seen.last)
            most = score > most ? score : most;
    }
    return most;
}

/* Eight keys' parts of a thread's outputs, as they lie: values, and the p of each query. */
template <int TOGETHER, int DIMS> struct attend_eight {
    uint32_t value[8][DIMS / 2];
    float4 p[TOGETHER][2];
};

template <int TOGETHER, int DIMS>
static __device__ __forceinline__ void attend_eight_load(const uint8_t *values, int pitch,
                                                         const float *p, int p_stride, int key,
                                                         struct attend_eight<TOGETHER, DIMS> *to)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint8_t *at = values + (key + i) * pitch;
        if (DIMS == 2) {
            to->value[i][0] = *(const uint32_t *)at;
        } else {
            const uint2 two = *(const uint2 *)at;
            to->value[i][0] = two.x;
            to->value[i][DIMS / 2 - 1] = two.y;
        }
    }
#pragma unroll
    for (int h = 0; h < TOGETHER; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            to->p[h][i] = *(const float4 *)(p + h * p_stride + key + 4 * i);
}

template <int TOGETHER, int DIMS>
static __device__ __forceinline__ void
attend_eight_add(const struct attend_eight<TOGETHER, DIMS> *from, float o[TOGETHER][DIMS])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int h = 0; h < TOGETHER; h++) {
            const float4 four = from->p[h][i / 4];
            const float p = i % 4 == 0   ? four.x
                            : i % 4 == 1 ? four.y
                            : i % 4 == 2 ? four.z
                                         : four.w;
#pragma unroll
            for (int d = 0; d < DIMS; d += 2) {
                o[h][d] = fmaf(p, bf16_low(from->value[i][d / 2]), o[h][d]);
                o[h][d + 1] = fmaf(p, bf16_high(from->value[i][d / 2]), o[h][d + 1]);
            }
        }
}

/* Keys one by one, each only for the queries that see it. */
template <int TOGETHER, int DIMS>
static __device__ __forceinline__ void
attend_value_steps(const uint8_t *values, int pitch, const float *p, int p_stride,
                   const struct key_range seen[TOGETHER], int from, int to, float o[TOGETHER][DIMS])
{
#pragma unroll 1
    for (int key = from; key < to; key++)
#pragma unroll
        for (int h = 0; h < TOGETHER; h++)
            if (key >= seen[h].first && key <= seen[h].last)
#pragma unroll
                for (int d = 0; d < DIMS; d += 2) {
                    const uint32_t pair = *(const uint32_t *)(values + key * pitch + d * 2);
                    o[h][d] = fmaf(p[h * p_stride + key], bf16_low(pair), o[h][d]);
                    o[h][d + 1] = fmaf(p[h * p_stride + key], bf16_high(pair), o[h][d + 1]);
                }
}

/* o[h] goes on with p v over the keys seen[h], ascending. values: this thread's elements of key 0;
 * p: of the first query, the next p_stride behind it. */
template <int TOGETHER, int DIMS>
static __device__ __forceinline__ void
attend_values(const uint8_t *values, int pitch, const float *p, int p_stride,
              const struct key_range seen[TOGETHER], float o[TOGETHER][DIMS])
{
    int low = seen[0].first, high = seen[0].last, low_all = low, high_all = high;
#pragma unroll
    for (int h = 0; h < TOGETHER; h++) {
        low = seen[h].first > low ? seen[h].first : low;
        high = seen[h].last < high ? seen[h].last : high;
        low_all = seen[h].first < low_all ? seen[h].first : low_all;
        high_all = seen[h].last > high_all ? seen[h].last : high_all;
    }
    /* Eights of keys that every query sees, from a multiple of four on; what is before and behind,
     * one by one. */
    int from = (low + 3) / 4 * 4;
    const int eights = high + 1 > from ? (high + 1 - from) / 8 : 0;
    from = eights > 0 ? from : low_all;
    const int to = from + 8 * eights;
    struct attend_eight<TOGETHER, DIMS> even, odd;
    if (eights > 0)
        attend_eight_load<TOGETHER, DIMS>(values, pitch, p, p_stride, from, &even);
#pragma unroll 1
    for (int part = 0; part < 2; part++) {
        attend_value_steps<TOGETHER, DIMS>(values, pitch, p, p_stride, seen,
                                           part == 0 ? low_all : to,
                                           part == 0 ? from : high_all + 1, o);
#pragma unroll 1
        for (int key = part == 0 ? from : to; key < to; key += 16) {
            if (key + 8 < to)
                attend_eight_load<TOGETHER, DIMS>(values, pitch, p, p_stride, key + 8, &odd);
            attend_eight_add<TOGETHER, DIMS>(&even, o);
            if (key + 8 >= to)
                break;
            if (key + 16 < to)
                attend_eight_load<TOGETHER, DIMS>(values, pitch, p, p_stride, key + 16, &even);
            attend_eight_add<TOGETHER, DIMS>(&odd, o);
        }
    }
}

/* ---- Of few rows: keys in registers, key k of a half-warp is number 16 k + half ---- */

/* Floats of shared memory for scores and for heads on their way. */
static __host__ __device__ __forceinline__ int attend_few_floats(int queries, int g)
{
    return queries * ATTEND_P_STRIDE + ATTEND_HALVES * g * ATTEND_WIDE / 2;
}

/* The tree over the lanes of 16 slots, [SET queries][KEYS keys] each. The queries of a thread's
 * slots are permuted by its lane, so that it keeps the first half of them; of keys it chooses. */
template <int KEYS, int STEP> static __device__ __forceinline__ void attend_tree_keys(float *slot)
{
    const bool upper = ((int)threadIdx.x & STEP) != 0;
#pragma unroll
    for (int i = 0; i < STEP; i++) {
        const float keep = STEP < KEYS && upper ? slot[i + STEP] : slot[i];
        const float send = STEP < KEYS && upper ? slot[i] : slot[i + STEP];
        slot[i] = keep + __shfl_xor_sync(0xffffffffu, send, STEP);
    }
    if (STEP > 1)
        attend_tree_keys<KEYS, (STEP > 1 ? STEP / 2 : 1)>(slot);
}

/* What is made of it is made here, not ahead of a loop, where there are no registers for it. */
static __device__ __forceinline__ void attend_unknown(uint32_t *word)
{
#ifndef CUDA_EMULATED
    asm volatile("" : "+r"(*word));
#else
    (void)word;
#endif
}

/* Scores of the keys of a chunk for SET queries, scaled: lane's are of query lane / KEYS, in each
 * batch of KEYS keys of the half-warp number lane % KEYS, to s[batch]. Returns the largest among
 * the keys seen. q as attend_put_query leaves it. LAST: keys are not needed any more. */
template <int SET, int G, bool LAST>
static __device__ __forceinline__ float
attend_register_scores(uint4 key[CUDA_LANES * G], const float *q, float scale, int lo, int hi,
                       struct key_range seen, float s[SET])
{
    enum { KEYS = CUDA_LANES / SET, BATCH = KEYS * CUDA_LANES };
    const int lane = (int)threadIdx.x % CUDA_LANES, half = (int)threadIdx.x / CUDA_LANES;
    float x[SET][8 * G], most = -INFINITY;
#pragma unroll
    for (int h = 0; h < SET; h++)
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            const int query = h ^ (lane / KEYS);
            const float4 four =
                *(const float4 *)(q + ((query * G * 2 + i) * CUDA_LANES + lane) * 4);
            x[h][4 * i] = four.x;
            x[h][4 * i + 1] = four.y;
            x[h][4 * i + 2] = four.z;
            x[h][4 * i + 3] = four.w;
        }
    /* Of `batch`, whose keys are from key[from] on. */
    auto take = [&](int batch, int from) {
        float slot[CUDA_LANES];
#pragma unroll
        for (int k = 0; k < KEYS; k++) {
            float w[8 * G];
#pragma unroll
            for (int g = 0; g < G; g++) {
                const uint4 piece = key[(from + k) * G + g];
                uint32_t word[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    attend_unknown(&word[i]);
                    w[8 * g + 2 * i] = bf16_low(word[i]);
                    w[8 * g + 2 * i + 1] = bf16_high(word[i]);
                }
            }
#pragma unroll
            for (int h = 0; h < SET; h++) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 4 * G; i++)
                    sum = fmaf(w[2 * i], x[h][2 * i], fmaf(w[2 * i + 1], x[h][2 * i + 1], sum));
                slot[h * KEYS + k] = sum;
            }
        }
        attend_tree_keys<KEYS, CUDA_LANES / 2>(slot);
        const float score = slot[0] * scale;
        const int mine = batch * BATCH + lane % KEYS * CUDA_LANES + half;
#pragma unroll
        for (int i = 0; i < SET; i++)
            s[i] = i == batch ? score : s[i];
        if (mine >= seen.first && mine <= seen.last)
            most = fmaxf(most, score);
    };
#pragma unroll
    for (int batch = 0; batch < SET; batch++)
        s[batch] = 0.0f;
    if (LAST) { /* the next batch's keys take the places of the last one's */
#pragma unroll 1
        for (int batch = 0; batch < SET && batch * BATCH <= hi; batch++) {
            if (batch * BATCH + BATCH - 1 >= lo)
                take(batch, 0);
#pragma unroll
            for (int k = 0; k + KEYS * G < CUDA_LANES * G; k++)
                key[k] = key[k + KEYS * G];
        }
    } else {
#pragma unroll
        for (int batch = 0; batch < SET; batch++)
            if (batch * BATCH <= hi && batch * BATCH + BATCH - 1 >= lo)
                take(batch, batch * KEYS);
    }
    return most;
}

static __device__ __forceinline__ float attend_most(const float maxima[ATTEND_WARPS])
{
    float m = maxima[0];
#pragma unroll
    for (int w = 1; w < ATTEND_WARPS; w++)
        m = fmaxf(m, maxima[w]);
    return m;
}

/* Eight keys of a thread, and what they add; where not all queries see all of them, each asks. */
template <int QUERIES, int DIMS> struct attend_step {
    uint32_t value[8][DIMS / 2];
    float4 p[QUERIES][2];
};

/* Shared memory read where it is written here, not where it is needed: the compiler would wait. */
static __device__ __forceinline__ uint32_t attend_shared_word(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint32_t *)p;
#else
    uint32_t v;
    asm volatile("ld.volatile.shared.u32 %0, [%1];"
                 : "=r"(v)
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
    return v;
#endif
}

static __device__ __forceinline__ uint2 attend_shared_pair(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint2 *)p;
#else
    uint2 v;
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(v.x), "=r"(v.y)
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
    return v;
#endif
}

static __device__ __forceinline__ float4 attend_shared_four(const float *p)
{
#ifdef CUDA_EMULATED
    return *(const float4 *)p;
#else
    float4 v;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"((unsigned)__cvta_generic_to_shared(p))
                 : "memory");
    return v;
#endif
}

template <int QUERIES, int DIMS, int WIDE>
static __device__ __forceinline__ void attend_step_load(const uint8_t *values, const float *p,
                                                        int key,
                                                        struct attend_step<QUERIES, DIMS> *to)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint8_t *at = values + (key + i) * WIDE * 2;
        if (DIMS == 2) {
            to->value[i][0] = attend_shared_word(at);
        } else {
            const uint2 two = attend_shared_pair(at);
            to->value[i][0] = two.x;
            to->value[i][DIMS / 2 - 1] = two.y;
        }
    }
#pragma unroll
    for (int h = 0; h < QUERIES; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            to->p[h][i] = attend_shared_four(p + h * ATTEND_P_STRIDE + key + 4 * i);
}

template <int QUERIES, int DIMS, bool ALL>
static __device__ __forceinline__ void
attend_step_add(const struct attend_step<QUERIES, DIMS> *from, int key,
                const struct key_range *seen, float o[QUERIES][DIMS])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int h = 0; h < QUERIES; h++) {
            const float4 four = from->p[h][i / 4];
            const float p = i % 4 == 0   ? four.x
                            : i % 4 == 1 ? four.y
                            : i % 4 == 2 ? four.z
                                         : four.w;
            const bool is_seen = ALL || (key + i >= seen[h].first && key + i <= seen[h].last);
#pragma unroll
            for (int d = 0; d < DIMS; d += 2) {
                const float low = fmaf(p, bf16_low(from->value[i][d / 2]), o[h][d]);
                const float high = fmaf(p, bf16_high(from->value[i][d / 2]), o[h][d + 1]);
                o[h][d] = is_seen ? low : o[h][d];
                o[h][d + 1] = is_seen ? high : o[h][d + 1];
            }
        }
}

/* `eights` eights of keys, one or more, seen by all queries; the next ones are on their way
 * meanwhile, and as many behind the last. */
template <int QUERIES, int DIMS, int WIDE>
static __device__ __forceinline__ void attend_sum_seen(const uint8_t *values, const float *p,
                                                       int eights, float o[QUERIES][DIMS])
{
    enum { AHEAD = QUERIES == 1 ? 2 : 1, PLACES = AHEAD + 1 };
    struct attend_step<QUERIES, DIMS> step[PLACES];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        attend_step_load<QUERIES, DIMS, WIDE>(values, p, 8 * i, &step[i]);
#pragma unroll 1
    for (;;) {
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            attend_step_load<QUERIES, DIMS, WIDE>(values, p, 8 * (i + AHEAD),
                                                  &step[(i + AHEAD) % PLACES]);
            attend_step_add<QUERIES, DIMS, true>(&step[i], 0, NULL, o);
            if (--eights == 0)
                return;
        }
        values += 8 * PLACES * WIDE * 2;
        p += 8 * PLACES;
    }
}

/* o[h] = sum of p v over the keys seen[h] of a chunk, ascending. values: this thread's elements of
 * key 0; p: of the first query. Reads up to 16 keys behind the chunk. */
template <int QUERIES, int DIMS, int WIDE>
static __device__ __forceinline__ void attend_sum_values(const uint8_t *values, const float *p,
                                                         const struct key_range seen[QUERIES],
                                                         float o[QUERIES][DIMS])
{
    int low = 0, high = CUDA_CHUNK - 1, first = high, last = low;
#pragma unroll
    for (int h = 0; h < QUERIES; h++) {
        low = seen[h].first > low ? seen[h].first : low;
        high = seen[h].last < high ? seen[h].last : high;
        first = seen[h].first < first ? seen[h].first : first;
        last = seen[h].last > last ? seen[h].last : last;
#pragma unroll
        for (int d = 0; d < DIMS; d++)
            o[h][d] = 0.0f;
    }
#pragma unroll 1
    for (int key = first & ~7; key <= last;) {
        const int eights = key >= low ? (high + 1 - key) / 8 : 0;
        if (eights > 0) {
            attend_sum_seen<QUERIES, DIMS, WIDE>(values + key * WIDE * 2, p + key, eights, o);
            key += 8 * eights;
        } else {
            struct attend_step<QUERIES, DIMS> step;
            attend_step_load<QUERIES, DIMS, WIDE>(values, p, key, &step);
            attend_step_add<QUERIES, DIMS, false>(&step, key, seen, o);
            key += 8;
        }
    }
}

/* ---- Chunks put together ---- */

/* An element of a chunk's result, its query's maximum and sum. GLOBAL: past L1. */
template <bool GLOBAL>
static __device__ __forceinline__ void attend_partial(const float *elements, const float *pairs,
                                                      int at, float *o, float *m, float *l)
{
    const float2 pair =
        GLOBAL ? __ldcg((const float2 *)(pairs + at)) : *(const float2 *)(pairs + at);
    *o = GLOBAL ? __ldcg(elements + at) : elements[at];
    *m = pair.x;
    *l = pair.y;
}

/* Puts chunks 0 .. count - 1 together, in their order, for EACH elements of a thread, from[e] ..
 * to[e] being those that its query sees. An element is elements[e][chunk * record], its query's
 * maximum and sum are pairs[e][chunk * record] and the next. GLOBAL: written by the kernel before,
 * read past L1. */
template <int EACH, bool GLOBAL>
static __device__ __forceinline__ void
attend_merge(const float *const elements[EACH], const float *const pairs[EACH], int record,
             int count, const int from[EACH], const int to[EACH], float o[EACH], float l[EACH])
{
    enum { TOGETHER = 2 };
    float m[EACH];
    int begin = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++)
        m[e] = l[e] = o[e] = 0.0f;
    if (EACH == 1) { /* from its own first chunk on, which is taken as it is */
        attend_partial<GLOBAL>(elements[0], pairs[0], from[0] * record, &o[0], &m[0], &l[0]);
        begin = from[0] + 1;
        count = to[0] + 1;
    }
#pragma unroll 1
    for (; begin < count; begin += TOGETHER) {
        float o_new[EACH][TOGETHER], l_new[EACH][TOGETHER], old_part[EACH][TOGETHER];
#pragma unroll
        for (int e = 0; e < EACH; e++)
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                attend_partial<GLOBAL>(elements[e], pairs[e],
                                       (begin + i < count ? begin + i : count - 1) * record,
                                       &o_new[e][i], &old_part[e][i], &l_new[e][i]);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            float new_part[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const float mine = old_part[e][i];
                const bool is_more = mine > m[e] || (EACH > 1 && begin + i <= from[e]);
                const float most = is_more ? mine : m[e];
                old_part[e][i] = attend_exp(m[e] - most);
                new_part[i] = attend_exp(mine - most);
                m[e] = most;
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int chunk = begin + i;
                const float l_next = fmaf(l_new[e][i], new_part[i], l[e] * old_part[e][i]);
                const float o_next = fmaf(o_new[e][i], new_part[i], o[e] * old_part[e][i]);
                const bool is_first = EACH > 1 && chunk == from[e];
                const bool is_next = (EACH == 1 || chunk > from[e]) && chunk <= to[e];
                l[e] = is_first ? l_new[e][i] : is_next ? l_next : l[e];
                o[e] = is_first ? o_new[e][i] : is_next ? o_next : o[e];
            }
        }
    }
}

#endif
