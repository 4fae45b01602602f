/* What a device says of itself, and how fast it copies its memory: for measurements. */
#include "engine/compute/cuda/facts.h"

#include <stdio.h>

static int ask(const struct cuda_device *d, enum cudaDeviceAttr attribute)
{
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, d->index) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return value;
}

void cuda_facts_read(const struct cuda_device *d, struct device_facts *out)
{
    size_t left = 0, total = 0;
    if (cudaMemGetInfo(&left, &total) != cudaSuccess)
        cudaGetLastError();
    snprintf(out->name, sizeof out->name, "%s", d->name);
    out->major = d->major;
    out->minor = d->minor;
    out->multiprocessors = d->multiprocessors;
    out->driver = d->driver;
    out->runtime = d->runtime;
    out->clock_khz = ask(d, cudaDevAttrClockRate);
    out->memory_clock_khz = ask(d, cudaDevAttrMemoryClockRate);
    out->bus_bits = ask(d, cudaDevAttrGlobalMemoryBusWidth);
    out->memory_bytes = total;
    out->memory_free = left;
    out->cache_bytes = d->l2_bytes;
}

double cuda_facts_copy_seconds(struct cuda_fault *fault, cudaStream_t stream, size_t bytes)
{
    enum { PASSES = 6 }; /* the first is not warm */
    void *from = NULL, *to = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    double best = 0;
    if (cuda_memory_new(fault, bytes, "a buffer to copy", &from) &&
        cuda_memory_new(fault, bytes, "a buffer to copy", &to) &&
        cuda_ok(fault, cudaMemsetAsync(from, 1, bytes, stream), "a buffer to copy") &&
        cuda_ok(fault, cudaEventCreate(&begin), "an event") &&
        cuda_ok(fault, cudaEventCreate(&end), "an event")) {
        for (int i = 0; i < PASSES && !fault->set; i++) {
            float ms = 0;
            cuda_ok(fault, cudaEventRecord(begin, stream), "an event");
            cuda_ok(fault, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream),
                    "copying device memory");
            cuda_ok(fault, cudaEventRecord(end, stream), "an event");
            if (!cuda_ok(fault, cudaEventSynchronize(end), "copying device memory") ||
                !cuda_ok(fault, cudaEventElapsedTime(&ms, begin, end), "an event"))
                break;
            if (i > 0 && (best == 0 || ms * 1e-3 < best))
                best = ms * 1e-3;
        }
    }
    if (begin != NULL)
        cudaEventDestroy(begin);
    if (end != NULL)
        cudaEventDestroy(end);
    cuda_memory_free(from);
    cuda_memory_free(to);
    return best;
}
