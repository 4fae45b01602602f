/* The state of a running grid: shared by scheduler.cpp, which chooses the thread that runs, and
 * together.cpp, where threads wait for each other. */
#ifndef MLXFAST_CUDA_EMULATOR_SCHEDULER_H
#define MLXFAST_CUDA_EMULATOR_SCHEDULER_H

#include "emulator.h"
#include "fiber.h"

enum {
    LANES = 32,
    MOST_THREADS = 1024,
    MOST_WARPS = MOST_THREADS / LANES,
    MOST_GROUPS = LANES,
    NAMED_BARRIERS = 16,
    MOST_YIELDS = 20 * 1000 * 1000 /* in a row, before they count as standing still */
};

enum operation {
    OP_NONE,
    OP_SYNCTHREADS,
    OP_SYNCTHREADS_REDUCE,
    OP_SYNCWARP,
    OP_SHUFFLE,
    OP_BALLOT,
    OP_REDUCE,
    OP_MATCH,
    OP_EXCHANGE,
    OP_TOGETHER,
    OP_NAMED,
    OP_GRID,
    OP_DEPENDENCY,
    OP_YIELD
};
extern const char *const emulator_operations[];

struct place {
    const char *file;
    int line;
    enum operation op;
};

/* Lanes that do one thing together. */
struct group {
    unsigned mask, arrived;
    struct place place;
};

struct warp {
    unsigned existing, runnable, started, exited;
    unsigned parked; /* at emulator_dependency_wait, until the launches before have ended */
    int groups;
    struct group group[MOST_GROUPS];
    uint64_t value[LANES], result[LANES];
    unsigned char source[LANES];
    void *mine[LANES], *all[LANES];
};

struct barrier {
    int arrived, expected;
    struct place place;
    unsigned waiting[MOST_WARPS];
};

/* A bulk copy, or what a block of the cluster sent, that nobody has waited for. */
struct bulk_under_way {
    void *to;
    const void *from; /* NULL: in `taken`, or `more`, already */
    uint64_t *barrier;
    unsigned bytes;
    unsigned char taken[16], *more;
};

struct block {
    uint3 index;
    unsigned runnable_warps;
    int threads, warps, live;
    int arrived, sum, sum_result; /* at __syncthreads */
    struct place barrier;
    struct barrier named[NAMED_BARRIERS];
    struct warp warp[MOST_WARPS];
    struct fiber *fiber[MOST_THREADS];
    struct place waits[MOST_THREADS];
    unsigned char dependency[MOST_THREADS];
    struct bulk_under_way *bulk; /* in the order in which they were asked for */
    unsigned bulk_count, bulk_room;
    unsigned cluster_arrived; /* its threads, in all turns */
    unsigned char cluster_turns[MOST_THREADS];
    bool lets_next;        /* a thread came to emulator_dependents_launch */
    unsigned char *shared; /* its shared memory while another block runs */
};

struct scheduler {
    struct fiber host;
    struct fiber *fiber, *free;
    unsigned fibers;

    const struct emulator_launch *launch;
    enum emulator_order order;
    uint64_t seed, random;
    struct block *block, *blocks;
    size_t resident; /* blocks that are there at once: behind `blocks` */
    int thread, lane;
    struct warp *warp;

    dim3 shape; /* of places */
    struct emulator_thread places[MOST_THREADS];

    const struct emulator_range *ranges;
    size_t range_count, range_bytes;
    uint64_t grid_arrived;
    int64_t yields;
    bool early;              /* threads park at emulator_dependency_wait */
    size_t parked;           /* how many have */
    size_t waited, unwaited; /* threads that came to emulator_dependency_wait, or ended without */
};

extern __thread struct scheduler *emulator_current;
extern bool emulator_copies_early;

/* Other threads run until this one is runnable and its turn comes. */
void emulator_wait(struct scheduler *s, enum operation op, const char *file, int line);
/* Lets the others of the block that can go on have a turn. */
void emulator_give_way(struct scheduler *s);

/* ---- For grid.cpp ---- */

struct scheduler *emulator_scheduler(void);
/* From the host: runs threads of s->block, and of the other resident ones, until all have ended, or
 * in the early part until none goes on. */
void emulator_schedule(struct scheduler *s);
/* Between a block's own memory and the shared memory that kernels see. */
void emulator_exchange_shared(struct scheduler *s, unsigned char *saved, bool save);
unsigned emulator_random(struct scheduler *s);

#endif
