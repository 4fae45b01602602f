/* One way to launch a kernel: counted, checked, and where the launch says so programmatically
 * dependent, so that it may start while the last one ends (see pdl_wait in ptx.cuh). */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH

#include "engine/compute/cuda/cuda.h"

/* name: for messages. shared: bytes of dynamic shared memory; above 48 KB the kernel is allowed
 * them first. */
template <typename... Parameters, typename... Arguments>
static inline void cuda_launch(const struct cuda_launch *l, const char *name,
                               void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                               Arguments... arguments)
{
    if (l->fault->set)
        return;
    if (shared > 48 * 1024 &&
        !cuda_ok(
            l->fault,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
            name))
        return;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = l->stream;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = l->overlap ? 1 : 0;
    ++*l->kernels;
    cuda_ok(l->fault, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
            name);
}

#endif
