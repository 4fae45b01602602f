/* One way to launch a kernel: counted, checked, and where the launch says so programmatically
 * dependent, so that it may start while the last one ends (see pdl_wait in ptx.cuh). */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH

#include "engine/compute/cuda/cuda.h"

/* name: for messages. shared: bytes of dynamic shared memory; above 48 KB the kernel is allowed
 * them first. cluster: thread blocks that run together, neighbours in x; above 1 from compute
 * capability 9.0 on, not emulated. */
template <typename... Parameters, typename... Arguments>
static inline void cuda_launch_cluster(const struct cuda_launch *l, const char *name,
                                       void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                       size_t shared, unsigned cluster, Arguments... arguments)
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
    cudaLaunchAttribute attribute[2] = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = l->stream;
    config.attrs = attribute;
    if (l->overlap) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
#ifndef CUDA_EMULATED
    if (cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = cluster;
        attribute[config.numAttrs].val.clusterDim.y = 1;
        attribute[config.numAttrs++].val.clusterDim.z = 1;
    }
#else
    (void)cluster;
#endif
    ++*l->kernels;
    cuda_ok(l->fault, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
            name);
}

template <typename... Parameters, typename... Arguments>
static inline void cuda_launch(const struct cuda_launch *l, const char *name,
                               void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                               Arguments... arguments)
{
    cuda_launch_cluster(l, name, kernel, grid, block, shared, 1, arguments...);
}

#endif
