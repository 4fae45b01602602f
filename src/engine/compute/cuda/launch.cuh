/* One way to launch a kernel: counted, checked, and where the launch says so programmatically
 * dependent, so that it may start while the last one ends (see pdl_wait in ptx.cuh). */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH

#include "engine/compute/cuda/cuda.h"

/* Every kernel asks for the largest part of L1 as shared memory: kernels that ask for different
 * parts never share a multiprocessor, and one that could start early waits until it is empty. Above
 * 48 KB a kernel has to be allowed its shared memory first. */
static inline cudaError_t cuda_launch_prepare(const void *kernel, size_t shared)
{
#ifndef CUDA_EMULATED
    const cudaError_t e = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess)
        return e;
#endif
    return shared > 48 * 1024
               ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared)
               : cudaSuccess;
}

/* name: for messages. shared: bytes of dynamic shared memory. cluster: thread blocks that run
 * together, neighbours in x; above 1 from compute capability 9.0 on, not emulated. */
template <typename... Parameters, typename... Arguments>
static inline void cuda_launch_cluster(const struct cuda_launch *l, const char *name,
                                       void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                       size_t shared, unsigned cluster, Arguments... arguments)
{
    if (l->fault->set)
        return;
    if (!cuda_ok(l->fault, cuda_launch_prepare((const void *)kernel, shared), name))
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
