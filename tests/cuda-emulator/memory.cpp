/* Device and pinned memory, poisoned when it is new and when it is freed; copies and fills. */
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

enum memory_kind { DEVICE_MEMORY, HOST_MEMORY, REGISTERED_MEMORY };

struct memory {
    unsigned char *p;
    size_t bytes;
    enum memory_kind kind;
};

static struct memory *memories;
static size_t memory_count, memory_room, device_bytes;

enum { BEHIND = 256 }; /* bytes behind an allocation that must stay as they are */

/* Index of the piece that holds p, or memory_count. */
static size_t memory_find(const void *p)
{
    size_t i = 0;
    while (i < memory_count && !((const unsigned char *)p >= memories[i].p &&
                                 (const unsigned char *)p - memories[i].p <
                                     (ptrdiff_t)(memories[i].bytes ? memories[i].bytes : 1)))
        i++;
    return i;
}

static bool memory_note(unsigned char *p, size_t bytes, enum memory_kind kind)
{
    if (memory_count == memory_room) {
        const size_t room = memory_room ? 2 * memory_room : 64;
        struct memory *more = (struct memory *)realloc(memories, room * sizeof *more);
        if (more == NULL)
            return false;
        memories = more;
        memory_room = room;
    }
    memories[memory_count++] = {p, bytes, kind};
    return true;
}

static cudaError_t memory_new(void **out, size_t bytes, enum memory_kind kind)
{
    const size_t whole =
        (bytes + BEHIND + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    cudaError_t e = cudaErrorMemoryAllocation;
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    pthread_mutex_lock(&runtime_lock);
    if (whole >= bytes && (kind != DEVICE_MEMORY || bytes <= runtime.memory - device_bytes)) {
#ifdef __SANITIZE_ADDRESS__
        void *p = NULL;
        if (posix_memalign(&p, DEVICE_ALIGNMENT, bytes) != 0)
            p = NULL;
        const size_t filled = bytes;
#else
        void *p = aligned_alloc(DEVICE_ALIGNMENT, whole);
        const size_t filled = bytes + BEHIND;
#endif
        if (p != NULL && memory_note((unsigned char *)p, bytes, kind)) {
            memset(p, 0xff, filled);
            if (kind == DEVICE_MEMORY)
                device_bytes += bytes;
            *out = p;
            e = cudaSuccess;
        } else {
            free(p);
        }
    }
    pthread_mutex_unlock(&runtime_lock);
    return e;
}

static cudaError_t memory_release(void *p, enum memory_kind kind)
{
    cudaError_t e = cudaErrorInvalidValue;
    if (p == NULL)
        return cudaSuccess;
    pthread_mutex_lock(&runtime_lock);
    const size_t i = memory_find(p);
    if (i < memory_count && memories[i].p == p && memories[i].kind == kind) {
        const size_t bytes = memories[i].bytes;
#ifndef __SANITIZE_ADDRESS__
        for (size_t b = 0; b < BEHIND && kind != REGISTERED_MEMORY; b++)
            if (memories[i].p[bytes + b] != 0xff)
                emulator_abort("something wrote behind a piece of %s memory of %zu bytes",
                               kind == DEVICE_MEMORY ? "device" : "pinned", bytes);
        if (kind == DEVICE_MEMORY)
            memset(p, 0xff, bytes);
#endif
        if (kind != REGISTERED_MEMORY)
            free(p);
        if (kind == DEVICE_MEMORY)
            device_bytes -= bytes;
        memories[i] = memories[--memory_count];
        e = cudaSuccess;
    }
    pthread_mutex_unlock(&runtime_lock);
    return e;
}

extern "C" char __data_start[], _end[];

/* Whether a copy may take `bytes` at p as the device's, or as the host's. The program's own
 * variables count as both: device symbols are among them. */
static bool memory_fits(const void *p, size_t bytes, bool device)
{
    pthread_mutex_lock(&runtime_lock);
    const size_t i = memory_find(p);
    bool fits = !device || ((const char *)p >= __data_start && (const char *)p < _end);
    if (i < memory_count) {
        fits = (const unsigned char *)p - memories[i].p + bytes <= memories[i].bytes;
        if (device ? memories[i].kind == REGISTERED_MEMORY : memories[i].kind == DEVICE_MEMORY)
            fits = false;
    }
    pthread_mutex_unlock(&runtime_lock);
    return fits;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    ENTER("cudaMalloc", cudaErrorMemoryAllocation, NOT_CAPTURING);
    return runtime_result(memory_new(p, bytes, DEVICE_MEMORY));
}

cudaError_t cudaFree(void *p)
{
    ENTER("cudaFree", cudaErrorUnknown, NOT_CAPTURING);
    return runtime_result(memory_release(p, DEVICE_MEMORY));
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER("cudaHostAlloc", cudaErrorMemoryAllocation, NOT_CAPTURING);
    return runtime_result(memory_new(p, bytes, HOST_MEMORY));
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    ENTER("cudaMallocHost", cudaErrorMemoryAllocation, NOT_CAPTURING);
    return runtime_result(memory_new(p, bytes, HOST_MEMORY));
}

cudaError_t cudaFreeHost(void *p)
{
    ENTER("cudaFreeHost", cudaErrorUnknown, NOT_CAPTURING);
    return runtime_result(memory_release(p, HOST_MEMORY));
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    ENTER("cudaHostGetDevicePointer", cudaErrorInvalidValue, ANYWHERE);
    pthread_mutex_lock(&runtime_lock);
    const size_t i = memory_find(host);
    const bool known = i < memory_count && memories[i].kind != DEVICE_MEMORY;
    pthread_mutex_unlock(&runtime_lock);
    if (flags != 0 || !known)
        return runtime_result(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    (void)flags;
    ENTER("cudaHostRegister", cudaErrorMemoryAllocation, NOT_CAPTURING);
    cudaError_t e = cudaErrorInvalidValue;
    pthread_mutex_lock(&runtime_lock);
    if (p != NULL && bytes > 0)
        e = memory_find(p) < memory_count
                ? cudaErrorHostMemoryAlreadyRegistered
                : (memory_note((unsigned char *)p, bytes, REGISTERED_MEMORY)
                       ? cudaSuccess
                       : cudaErrorMemoryAllocation);
    pthread_mutex_unlock(&runtime_lock);
    return runtime_result(e);
}

cudaError_t cudaHostUnregister(void *p)
{
    ENTER("cudaHostUnregister", cudaErrorUnknown, NOT_CAPTURING);
    return runtime_result(p != NULL && memory_release(p, REGISTERED_MEMORY) == cudaSuccess
                              ? cudaSuccess
                              : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    ENTER("cudaMemGetInfo", cudaErrorUnknown, ANYWHERE);
    pthread_mutex_lock(&runtime_lock);
    *total = runtime.memory;
    *available = runtime.memory - device_bytes;
    pthread_mutex_unlock(&runtime_lock);
    return cudaSuccess;
}

struct copy {
    void *to;
    const void *from;
    size_t width, height, to_pitch, from_pitch;
};
static void run_copy(const void *payload)
{
    const struct copy *c = (const struct copy *)payload;
    for (size_t row = 0; row < c->height; row++)
        memmove((char *)c->to + row * c->to_pitch, (const char *)c->from + row * c->from_pitch,
                c->width);
}

static cudaError_t copy_async(const char *call, const struct copy *c, enum cudaMemcpyKind kind,
                              cudaStream_t stream, int flags)
{
    ENTER(call, cudaErrorUnknown, flags);
    if (c->width == 0 || c->height == 0)
        return cudaSuccess;
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return runtime_result(cudaErrorInvalidMemcpyDirection);
    const size_t to_bytes = (c->height - 1) * c->to_pitch + c->width;
    const size_t from_bytes = (c->height - 1) * c->from_pitch + c->width;
    if (c->to == NULL || c->from == NULL || (c->height > 1 && c->to_pitch < c->width) ||
        (kind != cudaMemcpyDefault &&
         (!memory_fits(c->to, to_bytes,
                       kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) ||
          !memory_fits(c->from, from_bytes,
                       kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice))))
        return runtime_result(cudaErrorInvalidValue);
    return runtime_result(runtime_submit(stream, cudaGraphNodeTypeMemcpy, run_copy, c, sizeof *c));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    const struct copy c = {to, from, bytes, 1, bytes, bytes};
    return copy_async("cudaMemcpy", &c, kind, NULL, NOT_CAPTURING);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const struct copy c = {to, from, bytes, 1, bytes, bytes};
    return copy_async("cudaMemcpyAsync", &c, kind, stream, ANYWHERE);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    const struct copy c = {to, from, width, height, to_pitch, from_pitch};
    return copy_async("cudaMemcpy2DAsync", &c, kind, stream, ANYWHERE);
}

cudaError_t emulator_copy_symbol(const char *call, void *symbol, size_t size, const void *host,
                                 size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                                 cudaStream_t stream, bool from)
{
    ENTER(call, cudaErrorUnknown, ANYWHERE);
    if (offset > size || bytes > size - offset ||
        (from ? kind == cudaMemcpyHostToDevice : kind == cudaMemcpyDeviceToHost))
        return runtime_result(cudaErrorInvalidValue);
    char *at = (char *)symbol + offset;
    const struct copy c = {from ? (void *)host : at, from ? at : host, bytes, 1, bytes, bytes};
    return runtime_result(runtime_submit(stream, cudaGraphNodeTypeMemcpy, run_copy, &c, sizeof c));
}

struct fill {
    void *p;
    int value;
    size_t bytes;
};
static void run_fill(const void *payload)
{
    const struct fill *f = (const struct fill *)payload;
    memset(f->p, f->value, f->bytes);
}

static cudaError_t fill_async(const char *call, const struct fill *f, cudaStream_t stream,
                              int flags)
{
    ENTER(call, cudaErrorUnknown, flags);
    if (f->bytes == 0)
        return cudaSuccess;
    if (!memory_fits(f->p, f->bytes, true))
        return runtime_result(cudaErrorInvalidValue);
    return runtime_result(runtime_submit(stream, cudaGraphNodeTypeMemset, run_fill, f, sizeof *f));
}

cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    const struct fill f = {p, value, bytes};
    return fill_async("cudaMemset", &f, NULL, NOT_CAPTURING);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    const struct fill f = {p, value, bytes};
    return fill_async("cudaMemsetAsync", &f, stream, ANYWHERE);
}
