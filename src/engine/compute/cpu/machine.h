/* The few things about a processor that C cannot say: denormals as zero, and a pause for spinning.
 * Every other file of this folder is plain C or one instruction set. */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_MACHINE_H
#define MLXFAST_ENGINE_COMPUTE_CPU_MACHINE_H

#include <stdint.h>

#if defined(__x86_64__)

#include <immintrin.h>

/* Round to nearest, exceptions masked, flush to zero (bit 15), denormals are zero (bit 6). */
enum { MACHINE_MXCSR = 0x1f80 | 0x8000 | 0x0040 };

/* Sets the float mode of numerics.md on this thread; returns the old one for machine_float_leave.
 */
static inline uint64_t machine_float_enter(void)
{
    const uint64_t old = _mm_getcsr();
    _mm_setcsr(MACHINE_MXCSR);
    return old;
}

static inline void machine_float_leave(uint64_t old)
{
    _mm_setcsr((unsigned)old);
}

static inline void machine_relax(void)
{
    _mm_pause();
}

#elif defined(__aarch64__)

enum { MACHINE_FPCR_FZ = 1 << 24 };

static inline uint64_t machine_float_enter(void)
{
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)MACHINE_FPCR_FZ) : "memory");
    return old;
}

static inline void machine_float_leave(uint64_t old)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(old) : "memory");
}

static inline void machine_relax(void)
{
    __asm__ volatile("yield");
}

#else /* no such mode known: results with denormals may differ there */

static inline uint64_t machine_float_enter(void)
{
    return 0;
}

static inline void machine_float_leave(uint64_t old)
{
    (void)old;
}

static inline void machine_relax(void)
{
}

#endif

#endif
