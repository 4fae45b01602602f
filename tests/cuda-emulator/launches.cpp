/* Launches of kernels, their attributes, and what the device says of itself. */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What cudaFuncSetAttribute has allowed. */
struct allowance {
    const void *kernel;
    size_t shared;
    struct allowance *next;
};
static struct allowance *allowances;

static size_t shared_allowed(const void *kernel)
{
    size_t bytes = SHARED_DEFAULT;
    pthread_mutex_lock(&runtime_lock);
    for (const struct allowance *a = allowances; a != NULL; a = a->next)
        if (a->kernel == kernel)
            bytes = a->shared;
    pthread_mutex_unlock(&runtime_lock);
    return bytes;
}

static cudaError_t image_error(void)
{
    return runtime.major < 8 ? cudaErrorNoKernelImageForDevice : cudaSuccess;
}

cudaError_t emulator_set_attribute(const void *kernel, enum cudaFuncAttribute a, int value)
{
    ENTER("cudaFuncSetAttribute", cudaErrorInvalidValue, GOES_ON);
    if (image_error() != cudaSuccess)
        return runtime_result(image_error());
    if (a == cudaFuncAttributePreferredSharedMemoryCarveout)
        return value >= -1 && value <= 100 ? cudaSuccess : runtime_result(cudaErrorInvalidValue);
    if (a != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value + emulator_kernel_own(kernel) > EMULATOR_SHARED_MOST)
        return runtime_result(cudaErrorInvalidValue);
    pthread_mutex_lock(&runtime_lock);
    struct allowance *found = allowances;
    while (found != NULL && found->kernel != kernel)
        found = found->next;
    if (found == NULL) {
        found = (struct allowance *)calloc(1, sizeof *found);
        if (found != NULL) {
            found->kernel = kernel;
            found->next = allowances;
            allowances = found;
        }
    }
    if (found != NULL)
        found->shared = (size_t)value;
    pthread_mutex_unlock(&runtime_lock);
    return found != NULL ? cudaSuccess : runtime_result(cudaErrorMemoryAllocation);
}

cudaError_t emulator_get_attributes(struct cudaFuncAttributes *out, const void *kernel)
{
    ENTER("cudaFuncGetAttributes", cudaErrorInvalidDeviceFunction, ANYWHERE);
    if (image_error() != cudaSuccess)
        return runtime_result(image_error());
    memset(out, 0, sizeof *out);
    out->sharedSizeBytes = emulator_kernel_own(kernel);
    out->maxThreadsPerBlock = MOST_THREADS;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = runtime.major * 10 + runtime.minor;
    out->maxDynamicSharedSizeBytes = (int)shared_allowed(kernel);
    return cudaSuccess;
}

static size_t occupancy(const void *kernel, size_t threads, size_t shared)
{
    const size_t bytes = shared + emulator_kernel_own(kernel) + SHARED_RESERVED;
    const size_t by_shared = SHARED_PER_MULTIPROCESSOR / bytes, each = BLOCKS_PER_MULTIPROCESSOR;
    const size_t by_threads = THREADS_PER_MULTIPROCESSOR / ((threads + 31) / 32 * 32);
    const size_t most = by_threads < by_shared ? by_threads : by_shared;
    return most < each ? most : each;
}

cudaError_t emulator_occupancy(int *blocks, const void *kernel, int threads, size_t shared)
{
    ENTER("cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaErrorInvalidDeviceFunction,
          ANYWHERE);
    if (threads < 1 || threads > MOST_THREADS)
        return runtime_result(cudaErrorInvalidValue);
    *blocks = (int)occupancy(kernel, (size_t)threads, shared);
    return cudaSuccess;
}

static void run_launch(const void *payload)
{
    struct emulator_launch l;
    memcpy(&l, payload, sizeof l);
    l.closure = (const unsigned char *)payload + sizeof l;
    __atomic_add_fetch(&runtime.launches, 1, __ATOMIC_RELAXED);
    emulator_run(&l, runtime.order, runtime.seed, runtime.early);
}

static cudaError_t launch_error(const struct emulator_launch *l)
{
    const uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    const uint64_t blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    if (image_error() != cudaSuccess)
        return image_error();
    if (threads == 0 || threads > MOST_THREADS || l->block.z > 64 || blocks == 0 ||
        l->grid.x > 0x7fffffffu || l->grid.y > 65535 || l->grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (l->shared > shared_allowed(l->kernel) ||
        l->shared + emulator_kernel_own(l->kernel) > EMULATOR_SHARED_MOST)
        return cudaErrorInvalidValue;
    if (l->cluster > 1 && (l->cluster > CLUSTER_MOST || l->grid.x % l->cluster != 0 ||
                           runtime.major < 9 || l->cooperative))
        return cudaErrorInvalidConfiguration;
    if (l->cooperative && blocks > occupancy(l->kernel, threads, l->shared) * MULTIPROCESSORS)
        return cudaErrorCooperativeLaunchTooLarge;
    return cudaSuccess;
}

cudaError_t emulator_submit(const char *call, const struct emulator_launch *l, cudaStream_t stream)
{
    ENTER(call, cudaErrorLaunchFailure, GOES_ON);
    const cudaError_t e = launch_error(l);
    if (e != cudaSuccess)
        return runtime_result(e);
    if (!runtime_is_captured(stream)) {
        __atomic_add_fetch(&runtime.launches, 1, __ATOMIC_RELAXED);
        emulator_run(l, runtime.order, runtime.seed, runtime.early);
        return cudaSuccess;
    }
    static_assert(sizeof *l % alignof(max_align_t) == 0, "a closure lies behind the launch");
    const size_t bytes = sizeof *l + l->closure_bytes;
    unsigned char *payload = (unsigned char *)malloc(bytes);
    if (payload == NULL)
        return runtime_result(cudaErrorMemoryAllocation);
    memcpy(payload, l, sizeof *l);
    memcpy(payload + sizeof *l, l->closure, l->closure_bytes);
    const cudaError_t kept =
        runtime_submit(stream, cudaGraphNodeTypeKernel, run_launch, payload, bytes);
    free(payload);
    return runtime_result(kept);
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    ENTER("cudaGetDeviceCount", cudaErrorUnknown, ANYWHERE);
    *count = runtime.devices;
    return cudaSuccess;
}

static cudaError_t known_device(int device)
{
    return device >= 0 && device < runtime.devices ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaSetDevice(int device)
{
    ENTER("cudaSetDevice", cudaErrorInitializationError, ANYWHERE);
    return runtime_result(known_device(device));
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags)
{
    (void)device_flags;
    (void)flags;
    ENTER("cudaInitDevice", cudaErrorInitializationError, ANYWHERE);
    return runtime_result(known_device(device));
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER("cudaGetDevice", cudaErrorUnknown, ANYWHERE);
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    (void)flags;
    ENTER("cudaSetDeviceFlags", cudaErrorUnknown, ANYWHERE);
    return cudaSuccess;
}

cudaError_t cudaDeviceReset(void)
{
    ENTER("cudaDeviceReset", cudaErrorUnknown, NOT_CAPTURING);
    return cudaSuccess;
}

/* As CUDA's: without a driver the version is 0. */
cudaError_t cudaDriverGetVersion(int *version)
{
    ENTER("cudaDriverGetVersion", cudaErrorUnknown, NO_DEVICE);
    *version = runtime.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    ENTER("cudaRuntimeGetVersion", cudaErrorUnknown, NO_DEVICE);
    *version = RUNTIME;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    ENTER("cudaGetDeviceProperties", cudaErrorUnknown, ANYWHERE);
    if (known_device(device) != cudaSuccess)
        return runtime_result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated");
    p->totalGlobalMem = runtime.memory;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->warpSize = 32;
    p->maxThreadsPerBlock = MOST_THREADS;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = MOST_THREADS;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 0x7fffffff;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->major = runtime.major;
    p->minor = runtime.minor;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->canMapHostMemory = 1;
    p->concurrentKernels = 1;
    p->asyncEngineCount = 1;
    p->unifiedAddressing = 1;
    p->memoryBusWidth = 64;
    p->l2CacheSize = L2_BYTES;
    p->maxThreadsPerMultiProcessor = THREADS_PER_MULTIPROCESSOR;
    p->sharedMemPerMultiprocessor = SHARED_PER_MULTIPROCESSOR;
    p->cooperativeLaunch = 1;
    p->sharedMemPerBlockOptin = EMULATOR_SHARED_MOST;
    p->maxBlocksPerMultiProcessor = BLOCKS_PER_MULTIPROCESSOR;
    p->reservedSharedMemPerBlock = SHARED_RESERVED;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER("cudaDeviceGetAttribute", cudaErrorUnknown, ANYWHERE);
    if (known_device(device) != cudaSuccess)
        return runtime_result(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = MOST_THREADS;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = SHARED_DEFAULT;
        return cudaSuccess;
    case cudaDevAttrWarpSize:
        *value = 32;
        return cudaSuccess;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
        *value = REGISTERS;
        return cudaSuccess;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
        *value = 1000000; /* kHz */
        return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
        *value = 64;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = MULTIPROCESSORS;
        return cudaSuccess;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrAsyncEngineCount:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCooperativeLaunch:
        *value = 1;
        return cudaSuccess;
    case cudaDevAttrEccEnabled:
    case cudaDevAttrMaxPersistingL2CacheSize:
        *value = 0;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = L2_BYTES;
        return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        *value = THREADS_PER_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = runtime.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = runtime.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = SHARED_PER_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = EMULATOR_SHARED_MOST;
        return cudaSuccess;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
        *value = BLOCKS_PER_MULTIPROCESSOR;
        return cudaSuccess;
    case cudaDevAttrReservedSharedMemoryPerBlock:
        *value = SHARED_RESERVED;
        return cudaSuccess;
    }
    return runtime_result(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device)
{
    ENTER("cudaDeviceGetPCIBusId", cudaErrorUnknown, ANYWHERE);
    if (known_device(device) != cudaSuccess)
        return runtime_result(cudaErrorInvalidDevice);
    snprintf(text, (size_t)size, "0000:00:00.0");
    return cudaSuccess;
}
