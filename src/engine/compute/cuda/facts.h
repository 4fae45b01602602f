/* What a device says of itself, and how fast it copies its memory: for measurements. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_FACTS_H
#define MLXFAST_ENGINE_COMPUTE_CUDA_FACTS_H

#include "engine/compute/cuda/cuda.h"

void cuda_facts_read(const struct cuda_device *d, struct device_facts *out);
/* Of so many bytes from one place of device memory to another, the best of several; 0: it failed.
 */
double cuda_facts_copy_seconds(struct cuda_fault *fault, cudaStream_t stream, size_t bytes);

#endif
