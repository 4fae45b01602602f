/* What the sparse ffn's kernels share: their arguments, and the choice of a row's experts. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_EXPERTS_ROUTE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_EXPERTS_ROUTE_CUH

#include "engine/compute/cuda/arithmetic.cuh"
#include "engine/compute/cuda/experts.cuh"

/* A sparse block at work; pointers of the device. */
struct experts_run {
    struct cuda_experts gate, up, down;
    int rows, hidden, width, experts, top_k;
    int slots;   /* of a row in `inner`: its choices, then the shared expert where it is inside */
    bool shared; /* inside: expert number `experts` */
    bool normalize;
    float routed_scale;
    /* The router's: [rows, experts] keys in an order of unsigned numbers (descending is the order
     * of choice, NaN 1) and unbiased scores; the normed rows. */
    uint32_t *key;
    float *score;
    uint16_t *normed; /* bf16 [rows, hidden] */
    int *chosen;      /* [rows, top_k] */
    float *mix;       /* [rows, top_k] */
    uint16_t *inner;  /* few rows: bf16 [rows, slots, width] */
    const uint16_t
        *shared_out; /* bf16 [rows, hidden] of a shared expert that is not inside, or NULL */
    uint16_t *x;
    struct moe_exchange *exchange; /* moe.cuh */
};

/* What a block's kernels get, in its scratch (ffn.cu). */
void ffn_experts_run(const struct cuda_ffn_run *a, struct experts_run *out);

/* Few rows (experts.cu): how the two kernels lie in shared memory. False: shapes or formats that
 * they are not for. */
struct experts_few {
    /* Offsets of rows, of scales of each warp, and of lists; blocks: inputs in blocks of 32. */
    struct {
        int warps, blocks, rows_at, scales_at, lists_at, bytes;
    } up;
    struct {
        int rows_at_once, blocks, rows_at, scales_at, chosen_at, mix_at, bytes;
        bool fixed; /* slots and width are those of the kernel that has all loads under way */
    } down;
};
bool experts_few_plan(const struct cuda_launch *l, const struct experts_run *e,
                      struct experts_few *out);
/* Behind the router's kernel: chooses the experts, fills `inner` (and chosen and mix, where there
 * are several rows). Behind that: x += the mixture. */
void experts_few_up(const struct cuda_launch *l, const struct experts_run *e,
                    const struct experts_few *p);
void experts_few_down(const struct cuda_launch *l, const struct experts_run *e,
                      const struct experts_few *p);
/* Any rows (experts_many.cu): sorted, multiplied in tiles, combined. s has its buffers. */
void experts_many_run(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                      const struct experts_run *e, const struct cuda_experts_sorted *s);

/* round(round(gate * round(sigmoid(gate))) * up), all bf16. */
static __device__ __forceinline__ uint16_t silu_up(float gate, float up)
{
    const float s = rounded(elementary_sigmoid(gate));
    return bf16_of(rounded(gate * s) * up);
}

/* A key as an unsigned number: its order, -0 as 0, NaN 1 and so last. */
static __device__ __forceinline__ uint32_t route_key(float key)
{
    const uint32_t u = __float_as_uint(key);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return 1;
    if ((u & 0x7fffffffu) == 0)
        return 0x80000000u;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* This lane's keys, experts per * lane on. Past L1: another kernel's, which may have written them
 * while this one was there already. */
template <int per>
static __device__ __forceinline__ void route_load(const uint32_t *key, int experts, int lane,
                                                  uint32_t k[per])
{
    if (experts == 32 * per) {
#pragma unroll
        for (int j = 0; j < per; j += 4) {
            const uint4 v = __ldcg((const uint4 *)(key + per * lane + j));
            k[j] = v.x;
            k[j + 1] = v.y;
            k[j + 2] = v.z;
            k[j + 3] = v.w;
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < per; j++)
        k[j] = per * lane + j < experts ? __ldcg(key + per * lane + j) : 0;
}

/* The top_k largest, ties to the lower index, by a warp: each lane sorts its own, then the largest
 * first one of all lanes is taken top_k times. chosen: shared memory. */
template <int per>
static __device__ __forceinline__ void route_choose(uint32_t k[per], int top_k, int lane,
                                                    int *chosen)
{
    static_assert(per % 2 == 0, "two phases at once");
    int index[per];
#pragma unroll
    for (int j = 0; j < per; j++)
        index[j] = per * lane + j;
#pragma unroll 1
    for (int phase = 0; phase < per; phase += 2) {
#pragma unroll
        for (int i = 0; i < per - 1; i++) { /* of even j, of odd ones */
            const int j = i < per / 2 ? 2 * i : 2 * (i - per / 2) + 1;
            const bool swap = k[j] < k[j + 1];
            const uint32_t high = swap ? k[j + 1] : k[j], low = swap ? k[j] : k[j + 1];
            const int first = swap ? index[j + 1] : index[j];
            const int second = swap ? index[j] : index[j + 1];
            k[j] = high;
            k[j + 1] = low;
            index[j] = first;
            index[j + 1] = second;
        }
    }
#pragma unroll 1
    for (int i = 0; i < top_k; i++) {
        const uint32_t largest = __reduce_max_sync(0xffffffffu, k[0]);
        const unsigned who = __ballot_sync(0xffffffffu, k[0] == largest);
        const bool mine = lane == __ffs((int)who) - 1;
        if (mine)
            *(volatile int *)&chosen[i] = index[0]; /* some wait for it (moe.cu) */
#pragma unroll
        for (int j = 0; j < per; j++) {
            k[j] = mine ? (j + 1 < per ? k[j + 1] : 0) : k[j];
            if (j + 1 < per)
                index[j] = mine ? index[j + 1] : index[j];
        }
    }
    __syncwarp();
}

enum { ROUTE_PER = 8 /* keys of a lane: up to 256 experts */ };

/* Both of the above, for any number of experts. */
static __device__ __forceinline__ void route_row(const uint32_t *key, int experts, int top_k,
                                                 int lane, int *chosen)
{
    if (experts <= 32 * ROUTE_PER) {
        uint32_t k[ROUTE_PER];
        route_load<ROUTE_PER>(key, experts, lane, k);
        route_choose<ROUTE_PER>(k, top_k, lane, chosen);
        return;
    }
    const int per = (experts + 31) / 32;
    uint32_t taken = 0;
    for (int i = 0; i < top_k; i++) {
        uint32_t best = 0;
        int at = 0;
#pragma unroll 1
        for (int j = 0; j < per; j++) {
            const uint32_t k = per * lane + j < experts ? __ldcg(key + per * lane + j) : 0;
            if (!(taken >> j & 1) && k > best) {
                best = k;
                at = j;
            }
        }
        const uint32_t largest = __reduce_max_sync(0xffffffffu, best);
        if (lane == __ffs((int)__ballot_sync(0xffffffffu, best == largest)) - 1) {
            chosen[i] = per * lane + at;
            taken |= 1u << at;
        }
    }
    __syncwarp();
}

/* The score of this lane's choice, past L1 as well; of lanes above top_k 0. */
static __device__ __forceinline__ float route_score(const float *score, const int *chosen,
                                                    int top_k, int lane)
{
    return lane < top_k ? __ldcg(score + chosen[lane]) : 0.0f;
}

/* Mixture weights of a row's choices, by a warp: the sum goes in the order of choice. mine: the
 * score of this lane's choice. */
static __device__ __forceinline__ void route_mix(float mine, int top_k, bool normalize, int lane,
                                                 float *mix)
{
    float sum = 0.0f;
#pragma unroll 1
    for (int i = 0; i < top_k; i++)
        sum = sum + __shfl_sync(0xffffffffu, mine, i);
    if (lane < top_k)
        mix[lane] = rounded(normalize ? mine / sum : mine);
}

#endif
