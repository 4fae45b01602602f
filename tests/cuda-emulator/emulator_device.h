/* The device functions that kernels call, with CUDA's results; part of cuda_runtime.h. Only those
 * whose bits IEEE fixes: an approximation (__expf, rsqrtf) is not here, so that using one does not
 * compile. */
#ifndef MLXFAST_CUDA_EMULATOR_DEVICE_H
#define MLXFAST_CUDA_EMULATOR_DEVICE_H

#define EMULATOR_FUNCTION static inline __attribute__((always_inline))

/* ---- Bits ---- */

template <typename To, typename From> EMULATOR_FUNCTION To emulator_bits(From v)
{
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To out;
    memcpy(&out, &v, sizeof out);
    return out;
}

EMULATOR_FUNCTION unsigned __float_as_uint(float v)
{
    return emulator_bits<unsigned>(v);
}
EMULATOR_FUNCTION int __float_as_int(float v)
{
    return emulator_bits<int>(v);
}
EMULATOR_FUNCTION float __uint_as_float(unsigned v)
{
    return emulator_bits<float>(v);
}
EMULATOR_FUNCTION float __int_as_float(int v)
{
    return emulator_bits<float>(v);
}
EMULATOR_FUNCTION long long __double_as_longlong(double v)
{
    return emulator_bits<long long>(v);
}
EMULATOR_FUNCTION double __longlong_as_double(long long v)
{
    return emulator_bits<double>(v);
}

EMULATOR_FUNCTION unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++)
        out |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}
EMULATOR_FUNCTION unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
EMULATOR_FUNCTION unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift)
{
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
EMULATOR_FUNCTION unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift)
{
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
EMULATOR_FUNCTION unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift)
{
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
EMULATOR_FUNCTION int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
EMULATOR_FUNCTION int __popcll(unsigned long long v)
{
    return __builtin_popcountll(v);
}
EMULATOR_FUNCTION int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}
EMULATOR_FUNCTION int __clzll(long long v)
{
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}
EMULATOR_FUNCTION int __ffs(int v)
{
    return __builtin_ffs(v);
}
EMULATOR_FUNCTION int __ffsll(long long v)
{
    return __builtin_ffsll(v);
}
EMULATOR_FUNCTION unsigned __brev(unsigned v)
{
    v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
    v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
    v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(v);
}
EMULATOR_FUNCTION unsigned long long __brevll(unsigned long long v)
{
    return (unsigned long long)__brev((unsigned)v) << 32 | __brev((unsigned)(v >> 32));
}

/* ---- Integers ---- */

EMULATOR_FUNCTION int __dp4a(int a, int b, int sum)
{
    unsigned out = (unsigned)sum;
    for (int i = 0; i < 32; i += 8)
        out += (unsigned)((int8_t)((unsigned)a >> i) * (int8_t)((unsigned)b >> i));
    return (int)out;
}
EMULATOR_FUNCTION unsigned __dp4a(unsigned a, unsigned b, unsigned sum)
{
    for (int i = 0; i < 32; i += 8)
        sum += (a >> i & 0xff) * (b >> i & 0xff);
    return sum;
}
EMULATOR_FUNCTION int __mulhi(int a, int b)
{
    return (int)((int64_t)a * b >> 32);
}
EMULATOR_FUNCTION unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)((uint64_t)a * b >> 32);
}
EMULATOR_FUNCTION unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}

/* ---- Floats. A NaN gives way to a number, and -0 is less than 0. ---- */

EMULATOR_FUNCTION float emulator_max(float a, float b)
{
    if (a != a || b != b)
        return a != a ? (b != b ? __uint_as_float(0x7fffffffu) : b) : a;
    return a == b ? (__builtin_signbit(a) ? b : a) : a > b ? a : b;
}
EMULATOR_FUNCTION float emulator_min(float a, float b)
{
    if (a != a || b != b)
        return a != a ? (b != b ? __uint_as_float(0x7fffffffu) : b) : a;
    return a == b ? (__builtin_signbit(a) ? a : b) : a < b ? a : b;
}
#define fmaxf emulator_max
#define fminf emulator_min

EMULATOR_FUNCTION float __fadd_rn(float a, float b)
{
    return a + b;
}
EMULATOR_FUNCTION float __fsub_rn(float a, float b)
{
    return a - b;
}
EMULATOR_FUNCTION float __fmul_rn(float a, float b)
{
    return a * b;
}
EMULATOR_FUNCTION float __fdiv_rn(float a, float b)
{
    return a / b;
}
EMULATOR_FUNCTION float __frcp_rn(float a)
{
    return 1.0f / a;
}
EMULATOR_FUNCTION float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
EMULATOR_FUNCTION float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
EMULATOR_FUNCTION float __saturatef(float a)
{
    return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f;
}

/* Conversions saturate; a NaN is 0. */
EMULATOR_FUNCTION int emulator_to_int(float rounded)
{
    return rounded != rounded         ? 0
           : rounded >= 2147483648.0f ? 2147483647
           : rounded < -2147483648.0f ? -2147483647 - 1
                                      : (int)rounded;
}
EMULATOR_FUNCTION unsigned emulator_to_uint(float rounded)
{
    return !(rounded > 0.0f) ? 0 : rounded >= 4294967296.0f ? 0xffffffffu : (unsigned)rounded;
}
EMULATOR_FUNCTION int __float2int_rn(float v)
{
    return emulator_to_int(rintf(v));
}
EMULATOR_FUNCTION int __float2int_rz(float v)
{
    return emulator_to_int(truncf(v));
}
EMULATOR_FUNCTION int __float2int_rd(float v)
{
    return emulator_to_int(floorf(v));
}
EMULATOR_FUNCTION int __float2int_ru(float v)
{
    return emulator_to_int(ceilf(v));
}
EMULATOR_FUNCTION unsigned __float2uint_rn(float v)
{
    return emulator_to_uint(rintf(v));
}
EMULATOR_FUNCTION unsigned __float2uint_rz(float v)
{
    return emulator_to_uint(truncf(v));
}
EMULATOR_FUNCTION float __int2float_rn(int v)
{
    return (float)v;
}
EMULATOR_FUNCTION float __uint2float_rn(unsigned v)
{
    return (float)v;
}
EMULATOR_FUNCTION float __ll2float_rn(long long v)
{
    return (float)v;
}
EMULATOR_FUNCTION float __double2float_rn(double v)
{
    return (float)v;
}

#define EMULATOR_ORDERED(type)                                                                     \
    EMULATOR_FUNCTION type min(type a, type b)                                                     \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }                                                                                              \
    EMULATOR_FUNCTION type max(type a, type b)                                                     \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }
EMULATOR_ORDERED(int)
EMULATOR_ORDERED(unsigned)
EMULATOR_ORDERED(long)
EMULATOR_ORDERED(unsigned long)
EMULATOR_ORDERED(long long)
EMULATOR_ORDERED(unsigned long long)
/* As CUDA has it: of a signed and an unsigned the result is unsigned. */
#define EMULATOR_ORDERED_MIXED(a, b, type)                                                         \
    EMULATOR_FUNCTION type min(a x, b y)                                                           \
    {                                                                                              \
        return min((type)x, (type)y);                                                              \
    }                                                                                              \
    EMULATOR_FUNCTION type max(a x, b y)                                                           \
    {                                                                                              \
        return max((type)x, (type)y);                                                              \
    }
EMULATOR_ORDERED_MIXED(int, unsigned, unsigned)
EMULATOR_ORDERED_MIXED(unsigned, int, unsigned)
EMULATOR_ORDERED_MIXED(long, unsigned long, unsigned long)
EMULATOR_ORDERED_MIXED(unsigned long, long, unsigned long)
EMULATOR_FUNCTION float min(float a, float b)
{
    return emulator_min(a, b);
}
EMULATOR_FUNCTION float max(float a, float b)
{
    return emulator_max(a, b);
}
EMULATOR_FUNCTION double min(double a, double b)
{
    return fmin(a, b);
}
EMULATOR_FUNCTION double max(double a, double b)
{
    return fmax(a, b);
}

/* ---- Memory ---- */

#define EMULATOR_LOAD(name)                                                                        \
    template <typename T> EMULATOR_FUNCTION T name(const T *p)                                     \
    {                                                                                              \
        return *p;                                                                                 \
    }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
#define EMULATOR_STORE(name)                                                                       \
    template <typename T> EMULATOR_FUNCTION void name(T *p, T v)                                   \
    {                                                                                              \
        *p = v;                                                                                    \
    }
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwt)

EMULATOR_FUNCTION void __threadfence(void)
{
    __asm__ volatile("" : : : "memory");
}
EMULATOR_FUNCTION void __threadfence_block(void)
{
    __asm__ volatile("" : : : "memory");
}
EMULATOR_FUNCTION void __threadfence_system(void)
{
    __asm__ volatile("" : : : "memory");
}

/* One thread runs at a time, so these need no more than to be done. */
#define EMULATOR_ATOMIC(name, type, result)                                                        \
    EMULATOR_FUNCTION type name(type *p, type v)                                                   \
    {                                                                                              \
        volatile type *const at = p;                                                               \
        const type old = *at;                                                                      \
        *at = (type)(result);                                                                      \
        return old;                                                                                \
    }
#define EMULATOR_ATOMICS(name, result)                                                             \
    EMULATOR_ATOMIC(name, int, result)                                                             \
    EMULATOR_ATOMIC(name, unsigned, result)                                                        \
    EMULATOR_ATOMIC(name, unsigned long long, result)
EMULATOR_ATOMICS(atomicMax, old > v ? old : v)
EMULATOR_ATOMICS(atomicMin, old < v ? old : v)
EMULATOR_ATOMICS(atomicAnd, old &v)
EMULATOR_ATOMICS(atomicOr, old | v)
EMULATOR_ATOMICS(atomicXor, old ^ v)
EMULATOR_ATOMICS(atomicExch, v)
EMULATOR_ATOMIC(atomicExch, float, v)
EMULATOR_ATOMIC(atomicAdd, unsigned, old + v)
EMULATOR_ATOMIC(atomicAdd, unsigned long long, old + v)
EMULATOR_ATOMIC(atomicAdd, float, old + v)
EMULATOR_ATOMIC(atomicAdd, double, old + v)
EMULATOR_ATOMIC(atomicAdd, int, (unsigned)old + (unsigned)v)
EMULATOR_ATOMIC(atomicSub, int, (unsigned)old - (unsigned)v)
EMULATOR_ATOMIC(atomicSub, unsigned, old - v)
EMULATOR_ATOMIC(atomicInc, unsigned, old >= v ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, unsigned, old == 0 || old > v ? v : old - 1)
#define EMULATOR_EXCHANGE(type)                                                                    \
    EMULATOR_FUNCTION type atomicCAS(type *p, type compare, type v)                                \
    {                                                                                              \
        volatile type *const at = p;                                                               \
        const type old = *at;                                                                      \
        if (old == compare)                                                                        \
            *at = v;                                                                               \
        return old;                                                                                \
    }
EMULATOR_EXCHANGE(int)
EMULATOR_EXCHANGE(unsigned)
EMULATOR_EXCHANGE(unsigned long long)
EMULATOR_EXCHANGE(unsigned short)

/* ---- Threads together ---- */

EMULATOR_FUNCTION void __syncthreads(EMULATOR_PLACE)
{
    emulator_syncthreads(file, line);
}
EMULATOR_FUNCTION int __syncthreads_count(int predicate, EMULATOR_PLACE)
{
    int count;
    emulator_syncthreads_reduce(predicate != 0, &count, file, line);
    return count;
}
EMULATOR_FUNCTION int __syncthreads_or(int predicate, EMULATOR_PLACE)
{
    return __syncthreads_count(predicate, file, line) != 0;
}
EMULATOR_FUNCTION int __syncthreads_and(int predicate, EMULATOR_PLACE)
{
    return __syncthreads_count(predicate == 0, file, line) == 0;
}
EMULATOR_FUNCTION void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_PLACE)
{
    emulator_syncwarp(mask, file, line);
}

template <typename T>
EMULATOR_FUNCTION T emulator_shuffle_value(unsigned mask, T v, unsigned from, const char *file,
                                           int line)
{
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "a shuffle's value");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    bits = emulator_shuffle(mask, bits, from, file, line);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <typename T>
EMULATOR_FUNCTION T __shfl_sync(unsigned mask, T v, int from, int width = 32, EMULATOR_PLACE)
{
    const unsigned lane = emulator_thread.lane, inside = (unsigned)width - 1;
    return emulator_shuffle_value(mask, v, (lane & ~inside) | ((unsigned)from & inside), file,
                                  line);
}
template <typename T>
EMULATOR_FUNCTION T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, EMULATOR_PLACE)
{
    const unsigned lane = emulator_thread.lane, last = lane | ((unsigned)width - 1);
    const unsigned from = lane ^ (unsigned)with;
    return emulator_shuffle_value(mask, v, from <= last ? from : lane, file, line);
}
template <typename T>
EMULATOR_FUNCTION T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32,
                                     EMULATOR_PLACE)
{
    const unsigned lane = emulator_thread.lane, last = lane | ((unsigned)width - 1);
    return emulator_shuffle_value(mask, v, delta <= last - lane ? lane + delta : lane, file, line);
}
template <typename T>
EMULATOR_FUNCTION T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32,
                                   EMULATOR_PLACE)
{
    const unsigned lane = emulator_thread.lane, first = lane & ~((unsigned)width - 1);
    return emulator_shuffle_value(mask, v, delta <= lane - first ? lane - delta : lane, file, line);
}

EMULATOR_FUNCTION unsigned __activemask(void)
{
    return emulator_active();
}
EMULATOR_FUNCTION unsigned __ballot_sync(unsigned mask, int predicate, EMULATOR_PLACE)
{
    return emulator_ballot(mask, predicate != 0, file, line);
}
EMULATOR_FUNCTION int __any_sync(unsigned mask, int predicate, EMULATOR_PLACE)
{
    return emulator_ballot(mask, predicate != 0, file, line) != 0;
}
EMULATOR_FUNCTION int __all_sync(unsigned mask, int predicate, EMULATOR_PLACE)
{
    return emulator_ballot(mask, predicate == 0, file, line) == 0;
}
template <typename T>
EMULATOR_FUNCTION unsigned __match_any_sync(unsigned mask, T v, EMULATOR_PLACE)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a match's value");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof v);
    return emulator_match_any(mask, bits, file, line);
}
#define EMULATOR_REDUCED(name, type, reduction)                                                    \
    EMULATOR_FUNCTION type name(unsigned mask, type v, EMULATOR_PLACE)                             \
    {                                                                                              \
        return (type)emulator_reduce(mask, (unsigned)v, reduction, file, line);                    \
    }
EMULATOR_REDUCED(__reduce_add_sync, unsigned, EMULATOR_ADD)
EMULATOR_REDUCED(__reduce_add_sync, int, EMULATOR_ADD)
EMULATOR_REDUCED(__reduce_min_sync, unsigned, EMULATOR_MIN)
EMULATOR_REDUCED(__reduce_min_sync, int, EMULATOR_MIN_SIGNED)
EMULATOR_REDUCED(__reduce_max_sync, unsigned, EMULATOR_MAX)
EMULATOR_REDUCED(__reduce_max_sync, int, EMULATOR_MAX_SIGNED)
EMULATOR_REDUCED(__reduce_and_sync, unsigned, EMULATOR_AND)
EMULATOR_REDUCED(__reduce_or_sync, unsigned, EMULATOR_OR)
EMULATOR_REDUCED(__reduce_xor_sync, unsigned, EMULATOR_XOR)

EMULATOR_FUNCTION long long clock64(void)
{
    static __thread long long ticks; /* only forwards */
    return ++ticks;
}
EMULATOR_FUNCTION void __nanosleep(unsigned)
{
    emulator_yield();
}
EMULATOR_FUNCTION void __trap(void)
{
    emulator_abort("__trap()");
}

#endif
