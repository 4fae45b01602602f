/* The sparse ffn of one to four rows of the sizes that models have: ffn.cu asks here first. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_MOE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_MOE_CUH

#include "engine/compute/cuda/experts_route.cuh"

/* What its blocks give each other, in a block's scratch: zeros before the first launch. What is not
 * there yet is 0, so that a value says itself that it has come. There are two of each: a launch
 * uses one and clears the other, which the launch before has used. */
enum { MOE_ROWS = 4, MOE_EXPERTS = 256, MOE_INNER = 9 * 512, MOE_BLOCKS = 512 };
struct moe_values {
    uint64_t key[MOE_ROWS][MOE_EXPERTS];  /* the score's bits, above them its key: moe_key_place */
    uint16_t inner[MOE_ROWS * MOE_INNER]; /* bf16 [entries, width], their bits inverted */
};
struct moe_exchange {
    uint32_t turn[MOE_BLOCKS]; /* of a thread block: which of the two; it changes it as it ends */
    struct moe_values values[2];
};

/* As cuda_ffn_forward, of a sparse block; e is what ffn_experts_run gives. False, and nothing
 * launched: not these rows, these formats or these sizes. */
bool cuda_moe(const struct cuda_launch *l, const struct cuda_ffn_run *a,
              const struct experts_run *e);

#endif
