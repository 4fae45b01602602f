/* Stamps of the device's clock (compute/timeline.h); nothing without CUDA_TIMELINE. Each file whose
 * kernels have marks keeps its own: a variable of the device is its file's. */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_TIMELINE_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_TIMELINE_CUH

#include "engine/compute/cuda/cuda.h"

extern "C" {
#include "engine/compute/timeline.h"
}

#ifdef CUDA_TIMELINE
struct timeline_unit {
    cudaError_t (*slots)(void **out);
    struct timeline_unit *next;
    explicit timeline_unit(cudaError_t (*of)(void **out));
};

static __device__ uint64_t timeline_slots[TIMELINE_PLACES][TIMELINE_SLOTS];
static cudaError_t timeline_slots_find(void **out)
{
    return cudaGetSymbolAddress(out, timeline_slots);
}
static struct timeline_unit timeline_this(timeline_slots_find);

#ifdef CUDA_EMULATED
uint64_t timeline_emulated_ns(void);
#endif
#endif

/* By all threads or some: the one that it is of is among them. */
static __device__ __forceinline__ void timeline_mark(enum timeline_place place)
{
#ifdef CUDA_TIMELINE
    if (threadIdx.x != 0 || blockIdx.x != 0 || blockIdx.y != 0 || blockIdx.z != 0)
        return;
#ifdef CUDA_EMULATED
    const uint64_t ns = timeline_emulated_ns();
#else
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns) : : "memory");
#endif
    timeline_slots[place][(ns >> TIMELINE_SLOT_BITS) % TIMELINE_SLOTS] = ns;
#else
    (void)place;
#endif
}

#endif
