/* CUDA C++ for g++: the language's words, the vector types and the launches. What a device function
 * computes is in emulator_device.h. No <<<>>>: kernels are launched by cudaLaunchKernelEx. */
#ifndef MLXFAST_CUDA_EMULATOR_RUNTIME_H
#define MLXFAST_CUDA_EMULATOR_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((void)0)
/* In a function this is a static variable, one for each host thread; and behind `extern` it is the
 * name of the dynamic shared memory, which the Makefile collects for shared_names. */
#define __shared__ thread_local

#define threadIdx emulator_thread.index
#define blockIdx emulator_block_index
#define blockDim emulator_block_size
#define gridDim emulator_grid_size
enum { warpSize = 32 };

/* type, name, alignment of 1, 2, 3 and 4 of them */
#define EMULATOR_VECTORS(X)                                                                        \
    X(signed char, char, 1, 2, 1, 4)                                                               \
    X(unsigned char, uchar, 1, 2, 1, 4)                                                            \
    X(short, short, 2, 4, 2, 8)                                                                    \
    X(unsigned short, ushort, 2, 4, 2, 8)                                                          \
    X(int, int, 4, 8, 4, 16)                                                                       \
    X(float, float, 4, 8, 4, 16)                                                                   \
    X(long long, longlong, 8, 16, 8, 16)                                                           \
    X(unsigned long long, ulonglong, 8, 16, 8, 16)                                                 \
    X(double, double, 8, 16, 8, 16)
#define X(type, name, a1, a2, a3, a4)                                                              \
    struct alignas(a1) name##1                                                                     \
    {                                                                                              \
        type x;                                                                                    \
    };                                                                                             \
    struct alignas(a2) name##2                                                                     \
    {                                                                                              \
        type x, y;                                                                                 \
    };                                                                                             \
    struct alignas(a3) name##3                                                                     \
    {                                                                                              \
        type x, y, z;                                                                              \
    };                                                                                             \
    struct alignas(a4) name##4                                                                     \
    {                                                                                              \
        type x, y, z, w;                                                                           \
    };                                                                                             \
    static inline name##1 make_##name##1(type x)                                                   \
    {                                                                                              \
        return name##1 {x};                                                                        \
    }                                                                                              \
    static inline name##2 make_##name##2(type x, type y)                                           \
    {                                                                                              \
        return name##2 {x, y};                                                                     \
    }                                                                                              \
    static inline name##3 make_##name##3(type x, type y, type z)                                   \
    {                                                                                              \
        return name##3 {x, y, z};                                                                  \
    }                                                                                              \
    static inline name##4 make_##name##4(type x, type y, type z, type w)                           \
    {                                                                                              \
        return name##4 {x, y, z, w};                                                               \
    }
EMULATOR_VECTORS(X)
#undef X
/* uint3 is emulator.h's */
struct alignas(4) uint1 {
    unsigned x;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline uint1 make_uint1(unsigned x)
{
    return uint1{x};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return uint2{x, y};
}
static inline uint3 make_uint3(unsigned x, unsigned y, unsigned z)
{
    return uint3{x, y, z};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{x, y, z, w};
}

/* ---- Launches ---- */

enum cudaLaunchAttributeID {
    cudaLaunchAttributeIgnore = 0,
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8,
    cudaLaunchAttributePreferredSharedMemoryCarveout = 14
};
union cudaLaunchAttributeValue {
    char pad[64];
    int cooperative;
    struct {
        unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
    int priority;
    unsigned sharedMemCarveout;
};
struct cudaLaunchAttribute {
    enum cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

template <typename... Parameters> struct emulator_closure {
    static_assert((std::is_trivially_copyable<Parameters>::value && ...),
                  "a kernel's arguments are copied as bytes");
    void (*kernel)(Parameters...);
    std::tuple<std::remove_cv_t<Parameters>...> arguments;

    static void invoke(const void *p)
    {
        const emulator_closure *c = (const emulator_closure *)p;
        std::apply(c->kernel, c->arguments);
    }
};

static inline emulator_launch emulator_describe(const cudaLaunchConfig_t *config)
{
    emulator_launch l = {};
    l.grid = config->gridDim;
    l.block = config->blockDim;
    l.shared = config->dynamicSmemBytes;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *a = &config->attrs[i];
        if (a->id == cudaLaunchAttributeCooperative)
            l.cooperative = a->val.cooperative != 0;
        else if (a->id == cudaLaunchAttributeProgrammaticStreamSerialization)
            l.programmatic = a->val.programmaticStreamSerializationAllowed != 0;
        else if (a->id == cudaLaunchAttributeClusterDimension)
            l.cluster = a->val.clusterDim.y == 1 && a->val.clusterDim.z == 1 ? a->val.clusterDim.x
                                                                             : ~0u; /* refused */
    }
    return l;
}

template <typename... Parameters>
static inline cudaError_t emulator_launch_closure(const char *call, emulator_launch l,
                                                  cudaStream_t stream,
                                                  const emulator_closure<Parameters...> &c)
{
    l.kernel = (const void *)c.kernel;
    l.invoke = emulator_closure<Parameters...>::invoke;
    l.closure = &c;
    l.closure_bytes = sizeof c;
    return emulator_submit(call, &l, stream);
}

template <typename... Parameters, typename... Arguments>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config,
                                             void (*kernel)(Parameters...), Arguments &&...given)
{
    const emulator_closure<Parameters...> c = {
        kernel, std::tuple<std::remove_cv_t<Parameters>...>(std::forward<Arguments>(given)...)};
    return emulator_launch_closure("cudaLaunchKernelEx", emulator_describe(config), config->stream,
                                   c);
}

template <typename... Parameters, size_t... Index>
static inline emulator_closure<Parameters...>
emulator_gather(void (*kernel)(Parameters...), void **arguments, std::index_sequence<Index...>)
{
    return {kernel, std::tuple<std::remove_cv_t<Parameters>...>(
                        *(std::remove_cv_t<Parameters> *)arguments[Index]...)};
}

/* CUDA's own takes any pointer; here the kernel's type must be known. */
template <typename... Parameters>
static inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config,
                                              void (*kernel)(Parameters...), void **arguments)
{
    return emulator_launch_closure(
        "cudaLaunchKernelExC", emulator_describe(config), config->stream,
        emulator_gather(kernel, arguments, std::index_sequence_for<Parameters...>()));
}

template <typename... Parameters>
static inline cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                           void **arguments, size_t shared = 0,
                                           cudaStream_t stream = NULL)
{
    emulator_launch l = {};
    l.grid = grid;
    l.block = block;
    l.shared = shared;
    return emulator_launch_closure(
        "cudaLaunchKernel", l, stream,
        emulator_gather(kernel, arguments, std::index_sequence_for<Parameters...>()));
}

template <typename... Parameters>
static inline cudaError_t cudaLaunchCooperativeKernel(void (*kernel)(Parameters...), dim3 grid,
                                                      dim3 block, void **arguments,
                                                      size_t shared = 0, cudaStream_t stream = NULL)
{
    emulator_launch l = {};
    l.grid = grid;
    l.block = block;
    l.shared = shared;
    l.cooperative = true;
    return emulator_launch_closure(
        "cudaLaunchCooperativeKernel", l, stream,
        emulator_gather(kernel, arguments, std::index_sequence_for<Parameters...>()));
}

template <typename T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute a, int value)
{
    return emulator_set_attribute((const void *)kernel, a, value);
}

template <typename T>
static inline cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, T *kernel)
{
    return emulator_get_attributes(out, (const void *)kernel);
}

template <typename T>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, T *kernel,
                                                                        int threads, size_t shared)
{
    return emulator_occupancy(blocks, (const void *)kernel, threads, shared);
}

template <typename T>
static inline cudaError_t cudaMemcpyToSymbol(const T &symbol, const void *from, size_t bytes,
                                             size_t offset = 0,
                                             enum cudaMemcpyKind kind = cudaMemcpyHostToDevice)
{
    return emulator_copy_symbol("cudaMemcpyToSymbol", (void *)&symbol, sizeof symbol, from, bytes,
                                offset, kind, NULL, false);
}

template <typename T>
static inline cudaError_t cudaMemcpyToSymbolAsync(const T &symbol, const void *from, size_t bytes,
                                                  size_t offset, enum cudaMemcpyKind kind,
                                                  cudaStream_t stream = NULL)
{
    return emulator_copy_symbol("cudaMemcpyToSymbolAsync", (void *)&symbol, sizeof symbol, from,
                                bytes, offset, kind, stream, false);
}

template <typename T>
static inline cudaError_t cudaMemcpyFromSymbol(void *to, const T &symbol, size_t bytes,
                                               size_t offset = 0,
                                               enum cudaMemcpyKind kind = cudaMemcpyDeviceToHost)
{
    return emulator_copy_symbol("cudaMemcpyFromSymbol", (void *)&symbol, sizeof symbol, to, bytes,
                                offset, kind, NULL, true);
}

template <typename T> static inline cudaError_t cudaGetSymbolAddress(void **out, const T &symbol)
{
    *out = (void *)&symbol;
    return cudaSuccess;
}

/* CUDA has these for pointers of any type. */
template <typename T> static inline cudaError_t cudaMalloc(T **p, size_t bytes)
{
    return cudaMalloc((void **)p, bytes);
}
template <typename T>
static inline cudaError_t cudaMallocHost(T **p, size_t bytes, unsigned flags = 0)
{
    return cudaHostAlloc((void **)p, bytes, flags);
}
template <typename T> static inline cudaError_t cudaHostAlloc(T **p, size_t bytes, unsigned flags)
{
    return cudaHostAlloc((void **)p, bytes, flags);
}
template <typename T>
static inline cudaError_t cudaHostGetDevicePointer(T **device, void *host, unsigned flags)
{
    return cudaHostGetDevicePointer((void **)device, host, flags);
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *out, unsigned flags)
{
    return cudaEventCreateWithFlags(out, flags);
}

#include "emulator_device.h"

#endif

#endif
