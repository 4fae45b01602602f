/* bfloat16 as CUDA's header has it: the type and its conversions, no arithmetic. */
#ifndef MLXFAST_CUDA_EMULATOR_BF16_H
#define MLXFAST_CUDA_EMULATOR_BF16_H

#include <cuda_runtime.h>

struct alignas(2) __nv_bfloat16 {
    unsigned short bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v)
{
    return v.bits;
}
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits)
{
    return __nv_bfloat16{bits};
}
static inline float __bfloat162float(__nv_bfloat16 v)
{
    return __uint_as_float((unsigned)v.bits << 16);
}
/* Nearest even; every NaN is 0x7fff. */
static inline __nv_bfloat16 __float2bfloat16_rn(float v)
{
    const unsigned u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return __nv_bfloat16{0x7fff};
    return __nv_bfloat16{(unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16)};
}
static inline __nv_bfloat16 __float2bfloat16(float v)
{
    return __float2bfloat16_rn(v);
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return __nv_bfloat162{__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
static inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return make_float2(__bfloat162float(v.x), __bfloat162float(v.y));
}
static inline float __low2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.x);
}
static inline float __high2float(__nv_bfloat162 v)
{
    return __bfloat162float(v.y);
}

#endif
