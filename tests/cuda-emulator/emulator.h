/* What the emulator offers beyond CUDA's own names: to ptx.cuh, to tests, and between its files. */
#ifndef MLXFAST_CUDA_EMULATOR_EMULATOR_H
#define MLXFAST_CUDA_EMULATOR_EMULATOR_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <string.h>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
};

/* ---- For ptx.cuh: what a warp does together. All 32 threads of a full warp come here. ---- */

#define EMULATOR_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* all[lane] gets the `bytes` bytes of every lane's `mine`. */
void emulator_warp_exchange(const void *mine, size_t bytes, void *all, EMULATOR_PLACE);
/* body runs once, with the `mine` of every lane: it may read and write them all. Cheaper than an
 * exchange where the result is of the warp. */
void emulator_warp_together(void *mine, void (*body)(void *const mine[32]), EMULATOR_PLACE);
/* A barrier of `threads` threads of the block with a number of its own, as bar.sync has. */
void emulator_named_barrier(int number, int threads, EMULATOR_PLACE);
/* griddepcontrol.wait. In a launch with programmatic serialization every thread must come here
 * exactly once, or not at all in the whole launch; anything else aborts. */
void emulator_dependency_wait(void);
/* griddepcontrol.launch_dependents: the next launch but this one may begin. */
void emulator_dependents_launch(void);
/* Compute capability 9.0 or later (CUDA_EMULATOR_CC). */
extern bool emulator_hopper;
/* cp.async: the copy is made when its thread waits for its group, so that a wait that is missing or
 * too short shows; of what is there as it is asked for, where that is before pdl_wait of a launch
 * that began early. With CUDA_EMULATOR_COPIES=early it is made at once, so that it shows where its
 * place is still read. commit ends a group; wait is for all but the last `left` groups. */
void emulator_copy_async(void *shared, const void *global, unsigned bytes);
void emulator_copy_commit(void);
void emulator_copy_wait(unsigned left);
/* A barrier of one arrival (mbarrier) that counts bytes, in shared memory. expect arrives, once a
 * turn. wait is for the end of turn `turn`, of which only the parity is known. */
void emulator_bytes_init(uint64_t *barrier);
void emulator_bytes_expect(uint64_t *barrier, unsigned bytes);
void emulator_bytes_wait(uint64_t *barrier, unsigned turn);
/* cp.async.bulk: like the above made when somebody waits for its barrier. A block that ends with
 * copies under way aborts. */
void emulator_bulk_copy(void *shared, const void *global, unsigned bytes, uint64_t *barrier);
/* barrier.cluster, and st.async of 8 bytes to where block `rank` of the cluster has p, counted by
 * its barrier, where they come when they are waited for. */
void emulator_cluster_arrive(void);
void emulator_cluster_wait(void);
void emulator_cluster_send(void *p, const void *value, uint64_t *barrier, unsigned rank);
/* Lets the other threads of the block (of all that are there, where blocks run together) go on: for
 * loops that wait for memory. Aborts where nothing else moves. */
void emulator_yield(void);
/* All threads of all blocks of a cooperative launch. */
void emulator_grid_barrier(EMULATOR_PLACE);
/* Exact, of a denormal too, which launches otherwise take for zero. */
static inline double emulator_double(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (u & 0x7f800000u)
        return (double)f;
    return __builtin_copysign((double)(u & 0x7fffffu) * 0x1p-149, (double)f);
}
/* Rounded once, to a denormal too. */
static inline float emulator_float(double d)
{
    const double size = __builtin_fabs(d);
    if (!(size < 0x1p-126))
        return (float)d;
    float f;
    const uint32_t u =
        (uint32_t)__builtin_rint(size * 0x1p149) | (__builtin_signbit(d) ? 0x80000000u : 0u);
    memcpy(&f, &u, sizeof f);
    return f;
}
/* a * b with denormals kept. */
static inline float emulator_multiply_keep(float a, float b)
{
    return emulator_float(emulator_double(a) * emulator_double(b));
}

/* ---- For tests. ---- */

/* Reads the environment anew and counts calls from zero; last errors are forgotten. */
void emulator_reset(void);
/* Launches since the start, replays of graphs included. */
uint64_t emulator_launches(void);

/* ---- Between cuda_runtime.h and the emulator. ---- */

/* The thread that runs now. */
struct emulator_thread {
    uint3 index;
    unsigned lane;
};
extern __thread struct emulator_thread emulator_thread;
extern __thread struct uint3 emulator_block_index;
extern __thread struct dim3 emulator_block_size, emulator_grid_size;

/* A launch: invoke(closure) is what one thread does. */
struct alignas(16) emulator_launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    bool cooperative, programmatic;
    unsigned cluster; /* blocks of one, in x; 0 and 1: none */
    void (*invoke)(const void *closure);
    const void *closure;
    size_t closure_bytes;
};
cudaError_t emulator_submit(const char *call, const struct emulator_launch *l, cudaStream_t stream);
cudaError_t emulator_set_attribute(const void *kernel, enum cudaFuncAttribute a, int value);
cudaError_t emulator_get_attributes(struct cudaFuncAttributes *out, const void *kernel);
cudaError_t emulator_occupancy(int *blocks, const void *kernel, int threads, size_t shared);
cudaError_t emulator_copy_symbol(const char *call, void *symbol, size_t size, const void *host,
                                 size_t bytes, size_t offset, enum cudaMemcpyKind kind,
                                 cudaStream_t stream, bool from);

void emulator_syncthreads(const char *file, int line);
/* The sum and the or of every thread's `value`. */
void emulator_syncthreads_reduce(int value, int *count, const char *file, int line);
uint64_t emulator_shuffle(unsigned mask, uint64_t value, unsigned from, const char *file, int line);
void emulator_syncwarp(unsigned mask, const char *file, int line);
unsigned emulator_ballot(unsigned mask, bool value, const char *file, int line);
unsigned emulator_match_any(unsigned mask, uint64_t value, const char *file, int line);
enum emulator_reduction {
    EMULATOR_ADD,
    EMULATOR_MIN,
    EMULATOR_MAX,
    EMULATOR_MIN_SIGNED,
    EMULATOR_MAX_SIGNED,
    EMULATOR_AND,
    EMULATOR_OR,
    EMULATOR_XOR
};
unsigned emulator_reduce(unsigned mask, unsigned value, enum emulator_reduction r, const char *file,
                         int line);
unsigned emulator_active(void);
[[noreturn]] void emulator_abort(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- Between the emulator's files. ---- */

enum {
    EMULATOR_SHARED_MOST = 227 * 1024, /* dynamic, of a block */
    EMULATOR_SHARED_GUARD = 512        /* bytes behind it that must stay as they are */
};

/* How threads and blocks are ordered. */
enum emulator_order { EMULATOR_FORWARD, EMULATOR_REVERSE, EMULATOR_SHUFFLE };

/* Runs a grid on this thread, to its end; early > 0: a programmatic one may stay behind, begun,
 * with at most early - 1 others (grid.cpp). */
void emulator_run(const struct emulator_launch *l, enum emulator_order order, uint64_t seed,
                  unsigned early);
/* Ends those that stayed behind. */
void emulator_finish(void);
/* The running kernel, or NULL. */
const void *emulator_running(void);

/* From the program's own symbol table (symbols.cpp), "?" and nothing where there is none: a
 * kernel's name; the static shared variables that it may use, as offsets from emulator_shared: its
 * own and those of functions that became part of others; the bytes of its own. */
struct emulator_range {
    ptrdiff_t offset;
    size_t bytes;
};
const char *emulator_kernel_name(const void *kernel);
size_t emulator_kernel_shared(const void *kernel, const struct emulator_range **ranges,
                              size_t *bytes);
size_t emulator_kernel_own(const void *kernel);

#endif
