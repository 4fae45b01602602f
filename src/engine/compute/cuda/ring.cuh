/* Linear layers of one to four rows of the sizes that models have: linear.cu asks here first. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_RING_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_RING_CUH

#include "engine/compute/cuda/cuda.h"

/* As cuda_linear. False, and nothing launched: not these rows, this format or these sizes. */
bool cuda_linear_ring(const struct cuda_launch *l, const struct cuda_linear *a);

#endif
