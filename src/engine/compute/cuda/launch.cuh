/* One way to launch a kernel: counted, checked, and where the launch says so programmatically
 * dependent, so that it may start while the last one ends (see pdl_wait in ptx.cuh). */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_LAUNCH_CUH

#include "engine/compute/cuda/cuda.h"

/* Every kernel asks for the largest part of L1 as shared memory: kernels that ask for different
 * parts never share a multiprocessor, and one that could start early waits until it is empty. Above
 * 48 KB, what it has by itself included, a kernel has to be allowed its shared memory first. */
static inline cudaError_t cuda_launch_prepare(const void *kernel, size_t shared)
{
#ifndef CUDA_EMULATED
    const cudaError_t e = cudaFuncSetAttribute(
        kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (e != cudaSuccess)
        return e;
#endif
    return shared > 32 * 1024
               ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      (int)shared)
               : cudaSuccess;
}

/* How a kernel lies on the device. shared: bytes of dynamic shared memory. cluster: thread blocks
 * that run together, neighbours in x; above 1 from compute capability 9.0 on. together: all blocks
 * are there at once, or the launch fails. */
struct cuda_grid {
    dim3 grid, block;
    size_t shared;
    unsigned cluster;
    bool together;
};

/* name: for messages. */
template <typename... Parameters, typename... Arguments>
static inline void cuda_launch_grid(const struct cuda_launch *l, const char *name,
                                    void (*kernel)(Parameters...), const struct cuda_grid *g,
                                    Arguments... arguments)
{
    if (l->fault->set)
        return;
    if (!cuda_ok(l->fault, cuda_launch_prepare((const void *)kernel, g->shared), name))
        return;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute[3] = {};
    config.gridDim = g->grid;
    config.blockDim = g->block;
    config.dynamicSmemBytes = g->shared;
    config.stream = l->stream;
    config.attrs = attribute;
    if (l->overlap) {
        attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (g->together) {
        attribute[config.numAttrs].id = cudaLaunchAttributeCooperative;
        attribute[config.numAttrs++].val.cooperative = 1;
    }
    if (g->cluster > 1) {
        attribute[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attribute[config.numAttrs].val.clusterDim.x = g->cluster;
        attribute[config.numAttrs].val.clusterDim.y = 1;
        attribute[config.numAttrs++].val.clusterDim.z = 1;
    }
    ++*l->kernels;
    cuda_ok(l->fault, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...),
            name);
}

template <typename... Parameters, typename... Arguments>
static inline void cuda_launch_cluster(const struct cuda_launch *l, const char *name,
                                       void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                       size_t shared, unsigned cluster, Arguments... arguments)
{
    const struct cuda_grid g = {grid, block, shared, cluster, false};
    cuda_launch_grid(l, name, kernel, &g, arguments...);
}

template <typename... Parameters, typename... Arguments>
static inline void cuda_launch_together(const struct cuda_launch *l, const char *name,
                                        void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                        size_t shared, Arguments... arguments)
{
    const struct cuda_grid g = {grid, block, shared, 1, true};
    cuda_launch_grid(l, name, kernel, &g, arguments...);
}

template <typename... Parameters, typename... Arguments>
static inline void cuda_launch(const struct cuda_launch *l, const char *name,
                               void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
                               Arguments... arguments)
{
    const struct cuda_grid g = {grid, block, shared, 1, false};
    cuda_launch_grid(l, name, kernel, &g, arguments...);
}

#endif
