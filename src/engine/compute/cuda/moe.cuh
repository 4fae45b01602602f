/* The sparse ffn of one to four rows of the sizes that models have: ffn.cu asks here first. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_MOE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_MOE_CUH

#include "engine/compute/cuda/experts_route.cuh"

/* As cuda_ffn_forward, of a sparse block; e is what ffn_experts_run gives. False, and nothing
 * launched: not these rows, these formats or these sizes. */
bool cuda_moe(const struct cuda_launch *l, const struct cuda_ffn_run *a,
              const struct experts_run *e);

#endif
