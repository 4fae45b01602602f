/* Reads and clears the stamps of all files that have some. */
#include "engine/compute/cuda/timeline.cuh"

#ifdef CUDA_TIMELINE
#include "engine/compute/cuda/instance.h"

#include <stdlib.h>

static struct timeline_unit *units;

timeline_unit::timeline_unit(cudaError_t (*of)(void **out)) : slots(of), next(units)
{
    units = this;
}

#ifdef CUDA_EMULATED
/* Two slots from mark to mark. */
uint64_t timeline_emulated_ns(void)
{
    static uint64_t now;
    return now += (uint64_t)2 << TIMELINE_SLOT_BITS;
}
#endif

size_t cuda_timeline_take(struct compute *c, struct timeline_stamp **out)
{
    enum { SLOTS = TIMELINE_PLACES * TIMELINE_SLOTS };
    struct cuda_fault *f = &c->shared->fault;
    const cudaStream_t stream = c->shared->stream;
    const size_t bytes = SLOTS * sizeof(uint64_t);
    uint64_t *slots = (uint64_t *)memory_alloc(bytes);
    size_t count = 0;
    *out = NULL;
    for (struct timeline_unit *u = units; u != NULL && !f->set; u = u->next) {
        void *from = NULL;
        if (!cuda_ok(f, u->slots(&from), "a timeline") ||
            !cuda_ok(f, cudaMemcpyAsync(slots, from, bytes, cudaMemcpyDeviceToHost, stream),
                     "a timeline") ||
            !cuda_ok(f, cudaMemsetAsync(from, 0, bytes, stream), "a timeline") ||
            !cuda_ok(f, cudaStreamSynchronize(stream), "a timeline"))
            break;
        size_t filled = 0;
        for (size_t i = 0; i < SLOTS; i++)
            filled += slots[i] != 0;
        *out = (struct timeline_stamp *)memory_realloc(*out, (count + filled + 1) * sizeof **out);
        for (size_t i = 0; i < SLOTS; i++)
            if (slots[i] != 0)
                (*out)[count++] = timeline_stamp{slots[i], (int)(i / TIMELINE_SLOTS)};
    }
    free(slots);
    return count;
}
#endif
