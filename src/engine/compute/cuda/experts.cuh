/* The routed experts of many rows, sorted by expert: what experts.cu hands to fast.cu. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_EXPERTS_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_EXPERTS_CUH

#include "engine/compute/cuda/cuda.h"

enum {
    EXPERTS_TILE = 8 /* entries of one tile of the strict kernels */
};

/* Up to EXPERTS_TILE entries of one expert: entries first .. first + count - 1. */
struct cuda_experts_tile {
    int expert, first, count;
};

/* An entry is one row's use of one expert. They are sorted by expert (ascending; in no order within
 * one); where the shared expert is inside (w->shared_inside) it is number `experts`, its entries
 * are the last and in row order. All pointers are of the device. */
struct cuda_experts_sorted {
    int rows, hidden, width;
    int experts, top_k;  /* without the shared one */
    int entries;         /* rows * top_k, + rows with the shared expert inside */
    const int *start;    /* [experts + 2]: expert e has entries start[e] .. start[e + 1] - 1 */
    const int *row_of;   /* [entries] */
    const int *entry_of; /* [rows, top_k]: the entry of a row's choice, in the order of choice */
    const int *chosen;   /* [rows, top_k] experts */
    const float *mix;    /* [rows, top_k] mixture weights, already rounded to bf16 */
    const struct cuda_experts_tile *tiles;
    const int *tile_count; /* [1] */
    int most_tiles;
    const uint16_t *normed; /* bf16 [rows, hidden], natural order */
    uint16_t *inner;        /* bf16 [entries, width]: round(silu(gate) * up) */
    uint16_t *out;          /* bf16 [entries, hidden]: round(down inner), before mix */
};

/* Gate, up and down of all entries on tensor cores: fills s->inner and s->out. False, and nothing
 * launched: not for these shapes or formats; the strict kernels run (fast.cu). */
bool cuda_experts_fast(const struct cuda_launch *l, const struct cuda_ffn_run *a,
                       const struct cuda_experts_sorted *s);

#endif
