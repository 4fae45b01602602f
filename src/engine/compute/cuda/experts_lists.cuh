/* What both ways of multiplying few rows share (experts.cu, experts_tensor.cu): whose rows chose
 * which experts, and what is asked into L2 for the kernel behind. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_EXPERTS_LISTS_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_EXPERTS_LISTS_CUH

#include "engine/compute/cuda/experts_route.cuh"
#include "engine/compute/cuda/ptx.cuh"

enum {
    DOWN_OUTPUTS = 16, /* of a block of the second kernel: as many half-warps for each row */
    DOWN_SLOTS = 9     /* its kernels whose loads are all under way at once */
};

/* Few rows with products on tensor cores (experts_tensor.cu). False, and nothing filled: not for
 * these shapes or this device. */
bool experts_tensor_plan_up(const struct cuda_launch *l, const struct experts_run *e,
                            struct experts_few *p);
bool experts_tensor_plan_down(const struct cuda_launch *l, const struct experts_run *e);
void experts_tensor_up(const struct cuda_launch *l, const struct experts_run *e,
                       const struct experts_few *p);
void experts_tensor_down(const struct cuda_launch *l, const struct experts_run *e);

/* Whose rows chose an expert: where in the lists of shared memory. */
struct up_lists {
    int *chosen;  /* [rows * top_k] */
    int *leader;  /* [rows * top_k]: the first entry with the same expert */
    int *tile_of; /* [rows * top_k]: of a leader */
    int *expert;  /* [tiles] */
    int *count;   /* [tiles] */
    int *member;  /* [tiles][rows]: row << 16 | its slot */
};

static __device__ __forceinline__ struct up_lists up_lists_at(int *at, int entries)
{
    struct up_lists s;
    s.chosen = at;
    s.leader = s.chosen + entries;
    s.tile_of = s.leader + entries;
    s.expert = s.tile_of + entries;
    s.count = s.expert + entries + 1;
    s.member = s.count + entries + 1;
    return s;
}

static inline int up_lists_bytes(const struct experts_run *e)
{
    const int entries = e->rows * e->top_k;
    return (int)sizeof(int) * (3 * entries + (entries + 1) * (2 + e->rows));
}

/* The distinct experts in the order in which entries first name them, behind the shared one; the
 * same in every block. Returns how many. */
static __device__ __forceinline__ int up_group(const struct experts_run *e, struct up_lists s)
{
    const int entries = e->rows * e->top_k, thread = (int)threadIdx.x, threads = (int)blockDim.x;
    const int shared = e->shared ? 1 : 0;
    int distinct = 0;
    for (int t = thread; t < entries; t += threads) {
        int leader = t;
        for (int i = t - 1; i >= 0; i--)
            leader = s.chosen[i] == s.chosen[t] ? i : leader;
        s.leader[t] = leader;
    }
    __syncthreads();
    for (int t = thread; t < entries; t += threads) {
        int before = 0;
        for (int i = 0; i < t; i++)
            before += s.leader[i] == i;
        s.tile_of[t] = shared + before;
    }
    __syncthreads();
    for (int i = 0; i < entries; i++)
        distinct += s.leader[i] == i;
    for (int t = thread; t < entries; t += threads) {
        const int leader = s.leader[t], tile = s.tile_of[leader];
        int place = 0, count = 0;
        for (int i = 0; i < entries; i++) {
            count += s.leader[i] == leader;
            place += i < t && s.leader[i] == leader;
        }
        s.member[tile * e->rows + place] =
            t / e->top_k << 16 | (t / e->top_k * e->slots + t % e->top_k);
        s.expert[tile] = s.chosen[t];
        s.count[tile] = count;
    }
    for (int r = thread; shared && r < e->rows; r += threads) {
        s.member[r] = r << 16 | (r * e->slots + e->top_k);
        s.expert[0] = e->experts;
        s.count[0] = e->rows;
    }
    __syncthreads();
    return shared + distinct;
}

static __device__ __forceinline__ void ask_piece(const uint8_t *p, uint32_t bytes)
{
#if PTX_HOPPER
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes));
#elif !defined(CUDA_EMULATED)
    for (uint32_t at = 0; at < bytes; at += 128)
        asm volatile("prefetch.global.L2 [%0];" : : "l"(p + at));
#else
    (void)p;
    (void)bytes;
#endif
}

/* Down of the chosen experts into L2: a piece for a warp. */
static __device__ __forceinline__ void up_ask_down(const struct experts_run *e, bool one, int tiles,
                                                   struct up_lists lists, int warp, int warps)
{
    enum { PIECE = 4096 };
    const uint32_t codes = (uint32_t)(e->down.data_stride / PIECE);
    const uint32_t pieces = codes + (uint32_t)(e->down.scale_stride / PIECE);
    const uint32_t step = gridDim.x * (uint32_t)warps;
    if (threadIdx.x % 32 != 0)
        return;
    for (uint32_t i = blockIdx.x * (uint32_t)warps + (uint32_t)warp; i < pieces * (uint32_t)tiles;
         i += step) {
        const uint32_t tile = i / pieces, piece = i % pieces;
        const int shared = e->shared ? 1 : 0;
        const size_t expert = (size_t)(!one                 ? lists.expert[tile]
                                       : (int)tile < shared ? e->experts
                                                            : lists.chosen[(int)tile - shared]);
        ask_piece(piece < codes ? e->down.first.data + expert * e->down.data_stride + piece * PIECE
                                : e->down.first.scales + expert * e->down.scale_stride +
                                      (piece - codes) * PIECE,
                  PIECE);
    }
}

/* What the rows chose, for the next kernel. */
static __device__ __forceinline__ void up_keep(const struct experts_run *e, struct up_lists lists,
                                               int warps)
{
    const int lane = (int)threadIdx.x % 32;
    for (int r = (int)threadIdx.x / 32; r < e->rows; r += warps) {
        const int at = r * e->top_k;
        route_mix(e->score + (size_t)r * (size_t)e->experts, lists.chosen + at, e->top_k,
                  e->normalize, lane, e->mix + at);
        if (lane < e->top_k)
            e->chosen[at + lane] = lists.chosen[at + lane];
    }
}

#endif
