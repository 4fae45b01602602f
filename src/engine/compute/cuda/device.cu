/* The device: which one, whether this program can run on it, its errors and its memory. */
#include "engine/compute/cuda/cuda.h"

extern "C" {
#include "base/buffer.h"
#include "engine/memory/limits.h"
}

#include <stdlib.h>
#include <string.h>

/* Programmatic launches that a graph records came with 12.4; a runtime of a later major version
 * needs a driver of its own. */
enum { OLDEST_DRIVER = 12040, OLDEST_MAJOR = 8, DEVICE = 0 };

static int major_of(int version)
{
    return version / 1000;
}

static int minor_of(int version)
{
    return version % 1000 / 10;
}

static bool fail(struct error *err, cudaError_t e, const char *what)
{
    cudaGetLastError(); /* what can be forgotten is not met again by a later call */
    if (e == cudaErrorMemoryAllocation)
        return error_set(err, "OUT-OF-MEMORY", "%s: the device has no memory left (%s)", what,
                         cudaGetErrorName(e));
    if (e == cudaErrorNoKernelImageForDevice)
        return error_set(err, "CUDA-ARCHITECTURE",
                         "%s: this program holds no code for the device (%s)", what,
                         cudaGetErrorName(e));
    return error_set(err, "CUDA-FAILED", "%s: %s: %s", what, cudaGetErrorName(e),
                     cudaGetErrorString(e));
}

bool cuda_ok(struct cuda_fault *fault, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return true;
    if (fault->set)
        cudaGetLastError();
    else
        fail(&fault->error, e, what);
    fault->set = true;
    return false;
}

/* Its code is looked for before any other kernel's: all are compiled for the same architectures. */
static __global__ void device_probe(void)
{
}

/* The emulated device is no card's. */
size_t cuda_capabilities(const int **out)
{
#ifdef __CUDA_ARCH_LIST__
    enum { TIMES = 10 }; /* that nvcc's are larger */
    static const int held[] = {__CUDA_ARCH_LIST__};
    static int capabilities[sizeof held / sizeof *held];
    for (size_t i = 0; i < sizeof held / sizeof *held; i++)
        capabilities[i] = held[i] / TIMES;
    *out = capabilities;
    return sizeof held / sizeof *held;
#else
    *out = NULL;
    return 0;
#endif
}

static int needed_driver(int runtime)
{
    const int own = runtime / 1000 * 1000;
    return own > OLDEST_DRIVER ? own : OLDEST_DRIVER;
}

static bool check_driver(const struct cuda_device *d, cudaError_t e, struct error *err)
{
    if (d->driver == 0)
        return error_set(err, "CUDA-NO-DEVICE",
                         "there is no NVIDIA driver here (libcuda.so.1 cannot be loaded); it needs "
                         "one for CUDA %d.%d or later",
                         major_of(needed_driver(d->runtime)), minor_of(needed_driver(d->runtime)));
    if (d->driver < OLDEST_DRIVER || e == cudaErrorInsufficientDriver)
        return error_set(err, "CUDA-DRIVER-TOO-OLD",
                         "the NVIDIA driver is one for CUDA %d.%d, and this program needs one for "
                         "CUDA %d.%d or later",
                         major_of(d->driver), minor_of(d->driver),
                         major_of(needed_driver(d->runtime)), minor_of(needed_driver(d->runtime)));
    return true;
}

static bool no_device(const struct cuda_device *d, struct error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    error_set(err, "CUDA-NO-DEVICE",
              "the NVIDIA driver (for CUDA %d.%d) shows no GPU; one of compute capability %d.0 or "
              "later is needed",
              major_of(d->driver), minor_of(d->driver), OLDEST_MAJOR);
    return error_at(err, NULL, visible != NULL ? "CUDA_VISIBLE_DEVICES" : NULL, visible);
}

static bool read_attribute(int *out, enum cudaDeviceAttr attribute, struct error *err)
{
    const cudaError_t e = cudaDeviceGetAttribute(out, attribute, DEVICE);
    return e == cudaSuccess || fail(err, e, "cudaDeviceGetAttribute");
}

static bool read_properties(struct cuda_device *d, struct error *err)
{
    cudaDeviceProp p;
    int shared = 0, l2 = 0;
    const cudaError_t e = cudaGetDeviceProperties(&p, DEVICE);
    if (e != cudaSuccess)
        return fail(err, e, "cudaGetDeviceProperties");
    if (!read_attribute(&d->major, cudaDevAttrComputeCapabilityMajor, err) ||
        !read_attribute(&d->minor, cudaDevAttrComputeCapabilityMinor, err) ||
        !read_attribute(&d->multiprocessors, cudaDevAttrMultiProcessorCount, err) ||
        !read_attribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, err) ||
        !read_attribute(&l2, cudaDevAttrL2CacheSize, err))
        return false;
    d->shared_most = (size_t)shared;
    d->l2_bytes = (size_t)l2;
    text_copy(d->name, sizeof d->name, p.name);
    return true;
}

static bool check_architecture(const struct cuda_device *d, struct error *err)
{
    cudaFuncAttributes attributes;
    if (d->major < OLDEST_MAJOR)
        return error_set(err, "CUDA-ARCHITECTURE",
                         "%s has compute capability %d.%d, and %d.0 or later is needed", d->name,
                         d->major, d->minor, OLDEST_MAJOR);
    cudaError_t e = cudaSetDevice(DEVICE);
    if (e != cudaSuccess)
        return fail(err, e, "cudaSetDevice");
    e = cudaFuncGetAttributes(&attributes, device_probe);
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction) {
        cudaGetLastError();
        return error_set(err, "CUDA-ARCHITECTURE",
                         "this program holds no code for %s (compute capability %d.%d); build it "
                         "with `make CUDA=1 CUDA_ARCH=%d%d`",
                         d->name, d->major, d->minor, d->major, d->minor);
    }
    return e == cudaSuccess || fail(err, e, "the first kernel");
}

bool cuda_device_open(struct cuda_device *out, struct error *err)
{
    int count = 0;
    memset(out, 0, sizeof *out);
    out->index = DEVICE;
    /* 0 where there is no driver: not an error of these two */
    cudaError_t e = cudaDriverGetVersion(&out->driver);
    if (e != cudaSuccess)
        return fail(err, e, "cudaDriverGetVersion");
    e = cudaRuntimeGetVersion(&out->runtime);
    if (e != cudaSuccess)
        return fail(err, e, "cudaRuntimeGetVersion");
    e = out->driver == 0 ? cudaErrorInsufficientDriver : cudaGetDeviceCount(&count);
    if (!check_driver(out, e, err)) {
        cudaGetLastError();
        return false;
    }
    if (e == cudaErrorNoDevice || (e == cudaSuccess && count == 0)) {
        cudaGetLastError();
        return no_device(out, err);
    }
    if (e != cudaSuccess)
        return fail(err, e, "cudaGetDeviceCount");
    return read_properties(out, err) && check_architecture(out, err);
}

bool cuda_device_memory(const struct compute_options *options, uint64_t *available, char source[96])
{
    struct cuda_device d;
    size_t left = 0, total = 0;
    (void)options;
    if (!cuda_device_open(&d, NULL))
        return false;
    if (cudaMemGetInfo(&left, &total) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    *available = left;
    text_copy(source, 96, d.name);
    return true;
}

/* A number that is not a number, in every format that is kept: what is read before it was written
 * is seen. */
static bool poisons(void)
{
    const char *value = getenv("MLXFAST_CUDA_POISON");
    return value != NULL && value[0] != '\0' && strcmp(value, "0") != 0;
}

bool cuda_memory_new(struct cuda_fault *fault, size_t bytes, const char *what, void **out)
{
    enum { POISON = 0xff };
    *out = NULL;
    if (fault->set)
        return false;
    const cudaError_t e = cudaMalloc(out, bytes > 0 ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        size_t left = 0, total = 0;
        char needed[32], free_text[32];
        cudaGetLastError();
        *out = NULL;
        if (cudaMemGetInfo(&left, &total) != cudaSuccess)
            cudaGetLastError();
        fault->set = true;
        return error_set(&fault->error, "OUT-OF-MEMORY",
                         "no device memory of %s for %s; %s of it are free",
                         memory_text(bytes, needed), what, memory_text(left, free_text));
    }
    if (!cuda_ok(fault, e, what))
        return false;
    /* Before any stream may write there: a memset is on a stream of its own. */
    if (poisons() && (!cuda_ok(fault, cudaMemset(*out, POISON, bytes), "poisoning") ||
                      !cuda_ok(fault, cudaDeviceSynchronize(), "poisoning"))) {
        cuda_memory_free(*out);
        *out = NULL;
        return false;
    }
    return true;
}

void cuda_memory_free(void *p)
{
    if (p != NULL && cudaFree(p) != cudaSuccess)
        cudaGetLastError(); /* the device failed before, which was told */
}
