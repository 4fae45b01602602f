/* What CUDA C++ has no words for. In emulated builds (tests/cuda-emulator) the same in plain C++.
 */
#ifndef MLXFAST_ENGINE_COMPUTE_CUDA_PTX_CUH
#define MLXFAST_ENGINE_COMPUTE_CUDA_PTX_CUH

#include "engine/compute/cuda/cuda.h"

/* A function that stays one: what is in several places of a kernel, once, since instructions that
 * are not in the cache come slower than they run. */
#ifdef CUDA_EMULATED
#define CUDA_CALLED __attribute__((noinline))
#else
#define CUDA_CALLED __noinline__
#endif

/* Whether bulk copies, clusters and programmatic launches are there; in emulated builds a variable,
 * which the preprocessor takes for 0. */
#ifdef CUDA_EMULATED
#define PTX_HOPPER emulator_hopper
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PTX_HOPPER 1
#else
#define PTX_HOPPER 0
#endif

/* Lets the next kernel of the stream start as soon as every block of this one has come here: behind
 * pdl_wait, so that nothing that starts early can meet a kernel before this one's predecessor, and
 * where what the next one reads ahead does not delay this one. */
static __device__ __forceinline__ void pdl_launch_next(void)
{
#if PTX_HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#elif defined(CUDA_EMULATED)
    emulator_dependents_launch();
#endif
}

/* Waits until all that the kernels before this one wrote is there. */
static __device__ __forceinline__ void pdl_wait(void)
{
#if PTX_HOPPER
    asm volatile("griddepcontrol.wait;" ::: "memory");
#elif defined(CUDA_EMULATED)
    emulator_dependency_wait();
#endif
}

/* WARPS_BARRIERS barriers of some whole warps of a block, by number; the number of threads is of
 * all that wait there or arrive. counters: [barriers] in shared memory, for emulated builds; 0
 * by warps_barriers_init and a barrier of the block. */
enum { WARPS_BARRIERS = 15 };
static __device__ __forceinline__ void warps_barriers_init(unsigned *counters, int barriers)
{
#ifdef CUDA_EMULATED
    for (int i = (int)threadIdx.x; i < barriers; i += (int)blockDim.x)
        counters[i] = 0;
#else
    (void)counters;
    (void)barriers;
#endif
}
static __device__ __forceinline__ void warps_barrier(unsigned *counters, int number, int threads)
{
#ifdef CUDA_EMULATED
    const unsigned end = (counters[number]++ / threads + 1) * threads;
    while (*(volatile unsigned *)&counters[number] < end)
        emulator_yield();
#else
    (void)counters;
    asm volatile("bar.sync %0, %1;" : : "r"(number + 1), "r"(threads) : "memory");
#endif
}
/* Without waiting for the others. */
static __device__ __forceinline__ void warps_arrive(unsigned *counters, int number, int threads)
{
#ifdef CUDA_EMULATED
    (void)threads;
    counters[number]++;
#else
    (void)counters;
    asm volatile("bar.arrive %0, %1;" : : "r"(number + 1), "r"(threads) : "memory");
#endif
}

/* ---- Values that say themselves whether they are there: blocks of a launch whose blocks are all
 * there at once (cuda_launch_together) give them to each other, and nothing else by them ---- */

static __device__ __forceinline__ void value_put(uint64_t *p, uint64_t v)
{
#ifdef CUDA_EMULATED
    *(volatile uint64_t *)p = v;
#else
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(p), "l"(v) : "memory");
#endif
}

static __device__ __forceinline__ void value_put(uint16_t *p, uint16_t v)
{
#ifdef CUDA_EMULATED
    *(volatile uint16_t *)p = v;
#else
    asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" : : "l"(p), "h"(v) : "memory");
#endif
}

/* The same within a block: an int in shared memory, VALUE_NONE until it has come; put by a volatile
 * store. */
enum { VALUE_NONE = -1 };
static __device__ __forceinline__ int value_wait(const int *p)
{
    for (;;) {
        const int v = *(const volatile int *)p;
        if (v != VALUE_NONE)
            return v;
#ifdef CUDA_EMULATED
        emulator_yield();
#endif
    }
}

/* A barrier in shared memory that counts bytes, for what follows: by one thread, before anyone
 * waits. From compute capability 9.0 on. */
static __device__ __forceinline__ void bytes_barrier_init(uint64_t *barrier)
{
#if PTX_HOPPER
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\t"
                 "fence.mbarrier_init.release.cluster;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(barrier))
                 : "memory");
#elif defined(CUDA_EMULATED)
    if (PTX_HOPPER)
        emulator_bytes_init(barrier);
#else
    (void)barrier;
#endif
}

/* By one thread, once a turn: how many bytes it has in all. */
static __device__ __forceinline__ void bytes_barrier_expect(uint64_t *barrier, unsigned bytes)
{
#if PTX_HOPPER
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(bytes)
                 : "memory");
#elif defined(CUDA_EMULATED)
    emulator_bytes_expect(barrier, bytes);
#else
    (void)barrier;
    (void)bytes;
#endif
}

/* ---- Clusters (launch.cuh), from compute capability 9.0 on ----
 *
 * A block gathers what the blocks of its cluster send into its shared memory: each sends some
 * pairs, which count themselves in at the gatherer's barrier (bytes_barrier_init, as the kernel
 * begins), a uint64_t beside them. */

/* All threads of all blocks of the cluster: here after the above, and there before the first is
 * sent. */
static __device__ __forceinline__ void cluster_begin(void)
{
#if PTX_HOPPER
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#elif defined(CUDA_EMULATED)
    emulator_cluster_arrive();
#endif
}

static __device__ __forceinline__ void cluster_begun(void)
{
#if PTX_HOPPER
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif defined(CUDA_EMULATED)
    emulator_cluster_wait();
#endif
}

/* To where block `rank` has p; aligned to 8. */
static __device__ __forceinline__ void cluster_send(float *p, float a, float b, uint64_t *barrier,
                                                    unsigned rank)
{
#if PTX_HOPPER
    asm volatile("{\n\t"
                 ".reg .b32 to, at;\n\t"
                 "mapa.shared::cluster.u32 to, %0, %4;\n\t"
                 "mapa.shared::cluster.u32 at, %1, %4;\n\t"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%2, %3}, "
                 "[at];\n\t"
                 "}"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(p)),
                   "r"((unsigned)__cvta_generic_to_shared(barrier)), "f"(a), "f"(b), "r"(rank)
                 : "memory");
#elif defined(CUDA_EMULATED)
    const float pair[2] = {a, b};
    emulator_cluster_send(p, pair, barrier, rank);
#else
    (void)barrier;
    (void)rank;
    p[0] = a;
    p[1] = b;
#endif
}

/* Any thread of the gatherer: all has come. */
static __device__ __forceinline__ void cluster_gather_wait(uint64_t *barrier)
{
#if PTX_HOPPER
    unsigned done;
    do
        asm volatile("{\n\t"
                     ".reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t"
                     "}"
                     : "=r"(done)
                     : "r"((unsigned)__cvta_generic_to_shared(barrier))
                     : "memory");
    while (!done);
#elif defined(CUDA_EMULATED)
    emulator_bytes_wait(barrier, 0);
#else
    (void)barrier;
#endif
}

/* For what is read once a forward: first out of L2. Weights would else drive out of it what each
 * layer needs again: rows, keys, and the kernels' instructions, which then come from memory. */
static __device__ __forceinline__ uint64_t stream_policy(void)
{
#ifdef CUDA_EMULATED
    return 0;
#else
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
#endif
}

/* 16 bytes that are read once: past L1, first out of L2. */
static __device__ __forceinline__ uint4 load_stream(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint4 *)p;
#else
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(p), "l"(stream_policy()));
    return v;
#endif
}

static __device__ __forceinline__ uint2 load_stream8(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint2 *)p;
#else
    uint2 v;
    asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#endif
}

/* Past L1, which may be older than what an overlapping kernel wrote. */
static __device__ __forceinline__ uint4 load_fresh(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint4 *)p;
#else
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
#endif
}

/* 16 bytes of values, two loads of 8 to those who gave them; in emulated builds others have their
 * turn before. */
static __device__ __forceinline__ uint4 values_look(const void *p)
{
#ifdef CUDA_EMULATED
    emulator_yield();
    return load_fresh(p);
#else
    uint64_t v, w;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(v), "=l"(w)
                 : "l"(p)
                 : "memory");
    return make_uint4((uint32_t)v, (uint32_t)(v >> 32), (uint32_t)w, (uint32_t)(w >> 32));
#endif
}

static __device__ __forceinline__ uint32_t load_fresh_word(const void *p)
{
#ifdef CUDA_EMULATED
    return *(const uint32_t *)p;
#else
    uint32_t v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#endif
}

static __device__ __forceinline__ uint16_t load_fresh_one(const uint16_t *p)
{
#ifdef CUDA_EMULATED
    return *p;
#else
    uint16_t v;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
#endif
}

/* 16 bytes from device to shared memory, without waiting; both aligned to 16. */
static __device__ __forceinline__ void copy_async(void *shared, const void *global)
{
#ifdef CUDA_EMULATED
    emulator_copy_async(shared, global, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global)
                 : "memory");
#endif
}

static __device__ __forceinline__ void copy_commit(void)
{
#ifdef CUDA_EMULATED
    emulator_copy_commit();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Until at most `left` of this thread's groups are still under way. */
template <int left> static __device__ __forceinline__ void copy_wait(void)
{
#ifdef CUDA_EMULATED
    emulator_copy_wait(left);
#else
    asm volatile("cp.async.wait_group %0;" : : "n"(left) : "memory");
#endif
}

/* ---- Bulk copies, from compute capability 9.0 on ----
 *
 * They go past the threads' own path to memory, which loads and stores of a block share. A barrier
 * (bytes_barrier_init; of each turn first what it expects) counts the bytes that have come. */

/* bytes_barrier_expect where the place was used before: what the block did with it, and this thread
 * knows of, comes first. */
static __device__ __forceinline__ void bulk_expect(uint64_t *barrier, unsigned bytes)
{
#if PTX_HOPPER
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    bytes_barrier_expect(barrier, bytes);
}

/* Weights, and attention's values: first out of L2. bytes: a multiple of 16; both addresses too. */
static __device__ __forceinline__ void bulk_copy(void *shared, const void *global, unsigned bytes,
                                                 uint64_t *barrier)
{
#if PTX_HOPPER
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes),
                   "r"((unsigned)__cvta_generic_to_shared(barrier)), "l"(stream_policy())
                 : "memory");
#elif defined(CUDA_EMULATED)
    emulator_bulk_copy(shared, global, bytes, barrier);
#else
    (void)shared;
    (void)global;
    (void)bytes;
    (void)barrier;
#endif
}

/* Until the copies of turn `turn` have come. */
static __device__ __forceinline__ void bulk_wait(uint64_t *barrier, unsigned turn)
{
#if PTX_HOPPER
    unsigned done;
    do
        asm volatile("{\n\t"
                     ".reg .pred p;\n\t"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t"
                     "}"
                     : "=r"(done)
                     : "r"((unsigned)__cvta_generic_to_shared(barrier)), "r"(turn & 1)
                     : "memory");
    while (!done);
#elif defined(CUDA_EMULATED)
    emulator_bytes_wait(barrier, turn);
#else
    (void)barrier;
    (void)turn;
#endif
}

#ifdef CUDA_EMULATED
struct mma_fragments {
    uint32_t a[4], b[2];
    float d[4];
};
/* Denormals are values here, as they are to tensor cores. */
static inline double mma_value(uint32_t pair, int half)
{
    const uint32_t bits = pair >> 16 * half & 0xffffu;
    const double mantissa = bits & 0x7fu, sign = bits & 0x8000u ? -1.0 : 1.0;
    return (bits & 0x7f80u) == 0 ? sign * mantissa * 0x1p-133 : (double)__uint_as_float(bits << 16);
}
/* Tensor cores do not round: what does not fit is cut off. */
static inline float mma_cut(double sum)
{
    const float f = (float)sum;
    const bool above = sum < 0 ? (double)f < sum : (double)f > sum;
    return above && !isinf(f) ? __uint_as_float(__float_as_uint(f) - 1) : f;
}
/* For mma_bf16, of all lanes; sums in ascending order. */
static inline void mma_emulated(void *const mine[32])
{
    double a[16][16], b[16][8];
    float d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const struct mma_fragments *f = (const struct mma_fragments *)mine[lane];
        const int g = lane / 4, t = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            double *const pair = &a[g + i % 2 * 8][t + i / 2 * 8];
            pair[0] = mma_value(f->a[i], 0);
            pair[1] = mma_value(f->a[i], 1);
            d[g + i / 2 * 8][t + i % 2] = f->d[i];
        }
        for (int i = 0; i < 2; i++) {
            b[t + i * 8][g] = mma_value(f->b[i], 0);
            b[t + i * 8 + 1][g] = mma_value(f->b[i], 1);
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                d[row][column] = mma_cut(a[row][k] * b[k][column] + (double)d[row][column]);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            ((struct mma_fragments *)mine[lane])->d[i] =
                d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}
#endif

/* d += a b of a warp: a is 16x16, b 16x8, both bf16; the fragments are those of mma.m16n8k16:
 * with g = lane / 4, t = lane % 4, a[0] = A[g][2t..], a[1] = A[g+8][2t..], a[2] = A[g][2t+8..],
 * a[3] = A[g+8][2t+8..], b[0] = B[2t..][g], b[1] = B[2t+8..][g], d = {D[g][2t], D[g][2t+1],
 * D[g+8][2t], D[g+8][2t+1]}. */
static __device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
#ifdef CUDA_EMULATED
    struct mma_fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {d[0], d[1], d[2], d[3]}};
    emulator_warp_together(&mine, mma_emulated);
    for (int i = 0; i < 4; i++)
        d[i] = mine.d[i];
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/* d = a b, as above. */
static __device__ __forceinline__ void mma_bf16_product(float d[4], const uint32_t a[4],
                                                        const uint32_t b[2])
{
#ifdef CUDA_EMULATED
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    mma_bf16(d, a, b);
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#endif
}

/* Four 8x8 tiles of 2-byte elements out of shared memory. Lane 8i + r names row r (16 bytes,
 * aligned) of tile i; d[i] is of tile i: row lane / 4, elements 2 (lane % 4) and the next. */
static __device__ __forceinline__ void load_tiles(uint32_t d[4], const void *row)
{
#ifdef CUDA_EMULATED
    const char *rows[32];
    emulator_warp_exchange(&row, sizeof row, rows);
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++)
        d[i] = *(const uint32_t *)(rows[8 * i + lane / 4] + lane % 4 * 4);
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#endif
}

/* The same, each tile transposed: column lane / 4, its elements 2 (lane % 4) and the next. */
static __device__ __forceinline__ void load_tiles_transposed(uint32_t d[4], const void *row)
{
#ifdef CUDA_EMULATED
    const uint16_t *rows[32];
    emulator_warp_exchange(&row, sizeof row, rows);
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++)
        d[i] = rows[8 * i + lane % 4 * 2][lane / 4] |
               (uint32_t)rows[8 * i + lane % 4 * 2 + 1][lane / 4] << 16;
#else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row)));
#endif
}

/* As copy_async, or 16 zero bytes and nothing read. */
static __device__ __forceinline__ void copy_async_or_zero(void *shared, const void *global,
                                                          bool copy)
{
#ifdef CUDA_EMULATED
    static const uint4 zero = {};
    emulator_copy_async(shared, copy ? global : &zero, 16);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(shared)), "l"(global),
                   "r"(copy ? 16u : 0u)
                 : "memory");
#endif
}

/* Pairs of bf16: a b + c, each rounded once; denormals are kept. */
static __device__ __forceinline__ uint32_t bf16_pairs_fma(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef CUDA_EMULATED
    uint32_t out = 0;
    for (int i = 0; i < 32; i += 16) {
        const float fa = __uint_as_float(a >> i << 16), fb = __uint_as_float(b >> i << 16);
        const float fc = __uint_as_float(c >> i << 16);
        uint32_t u = __float_as_uint(emulator_multiply_keep(fa, fb));
        if (fc != 0.0f)
            u = __float_as_uint((float)((double)fa * (double)fb + (double)fc));
        u += 0x7fffu + (u >> 16 & 1u);
        out |= u >> 16 << i;
    }
    return out;
#else
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#endif
}

/* Two floats rounded to a pair of bf16. */
static __device__ __forceinline__ uint32_t bf16_pair_of(float low, float high)
{
#ifdef CUDA_EMULATED
    uint32_t u = __float_as_uint(low), v = __float_as_uint(high);
    u += 0x7fffu + (u >> 16 & 1u);
    v += 0x7fffu + (v >> 16 & 1u);
    return u >> 16 | (v & 0xffff0000u);
#else
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
#endif
}

/* 2^x to about 2 ulp, -Inf gives 0. Only for fast mode. */
static __device__ __forceinline__ float power_of_two_fast(float x)
{
#ifdef CUDA_EMULATED
    return exp2f(x);
#else
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#endif
}

/* A product that keeps denormals, where the rest of the code flushes them: for values made of bits.
 */
static __device__ __forceinline__ float multiply_keep(float a, float b)
{
#ifdef CUDA_EMULATED
    return emulator_multiply_keep(a, b);
#else
    float r;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
#endif
}

#endif
