/* Runs a grid: its blocks one after the other, those of a cluster at once, or all where the launch
 * is cooperative.
 *
 * Where CUDA_EMULATOR_EARLY is set, a programmatic launch begins before the launches in front of it
 * end, as early as a device may let it: its first blocks run until each thread waits for those
 * launches (pdl_wait), and go on when they have ended. What a kernel reads too early shows. Other
 * launches begin when all before them have ended, and let the next one begin early too. */
#include "scheduler.h"

#include "engine/compute/cpu/machine.h"

#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

enum { EARLY_THREADS = 8192 /* of a launch; the system limits how many stacks there are */ };

extern __thread unsigned char emulator_shared[];

struct grid {
    struct emulator_launch launch;
    const struct emulator_range *ranges;
    size_t range_count, range_bytes;
    enum emulator_order order;
    uint64_t random;
    uint64_t count, started; /* blocks */
    uint64_t unit, at, step; /* blocks of a cluster; clusters, in the order in which they are run */
    struct block *blocks;    /* the resident ones */
    unsigned char *saved;    /* their shared memory */
    size_t resident, waited, unwaited;
    struct grid *next;
};

/* Launches that have begun early, the oldest first. */
static __thread struct grid *pending;
static __thread unsigned pending_count;
static __thread uint64_t mode;

static uint64_t greatest_common(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void set_places(struct scheduler *s, dim3 shape)
{
    int at = 0;
    if (s->shape.x == shape.x && s->shape.y == shape.y && s->shape.z == shape.z)
        return;
    for (unsigned z = 0; z < shape.z; z++)
        for (unsigned y = 0; y < shape.y; y++)
            for (unsigned x = 0; x < shape.x; x++, at++)
                s->places[at] = {{x, y, z}, (unsigned)at % LANES};
    s->shape = shape;
}

static void grid_enter(struct scheduler *s, const struct grid *g)
{
    if (s->launch != NULL)
        emulator_abort("launches a kernel from a kernel");
    set_places(s, g->launch.block);
    s->launch = &g->launch;
    s->order = g->order;
    s->random = g->random;
    s->ranges = g->ranges;
    s->range_count = g->range_count;
    s->range_bytes = g->range_bytes;
    s->waited = g->waited;
    s->unwaited = g->unwaited;
    s->grid_arrived = 0;
    s->yields = 0;
    emulator_block_size = g->launch.block;
    emulator_grid_size = g->launch.grid;
    mode = machine_float_enter();
    memset(emulator_shared + g->launch.shared, 0xff, EMULATOR_SHARED_GUARD);
#ifdef __SANITIZE_ADDRESS__
    __asan_poison_memory_region(emulator_shared + (g->launch.shared + 7) / 8 * 8,
                                EMULATOR_SHARED_GUARD - 8);
#endif
}

static void grid_leave(struct scheduler *s, struct grid *g)
{
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(emulator_shared + (g->launch.shared + 7) / 8 * 8,
                                  EMULATOR_SHARED_GUARD - 8);
#endif
    machine_float_leave(mode);
    g->random = s->random;
    g->waited = s->waited;
    g->unwaited = s->unwaited;
    s->launch = NULL;
}

static void poison_shared(struct scheduler *s)
{
    memset(emulator_shared, 0xff, s->launch->shared);
    for (size_t i = 0; i < s->range_count; i++)
        memset(emulator_shared + s->ranges[i].offset, 0xff, s->ranges[i].bytes);
}

/* The sanitizer sees a write there itself. */
static void check_shared(struct scheduler *s)
{
#ifndef __SANITIZE_ADDRESS__
    for (size_t i = 0; i < EMULATOR_SHARED_GUARD; i += 8) {
        uint64_t v;
        memcpy(&v, emulator_shared + s->launch->shared + i, 8);
        if (~v != 0)
            emulator_abort("wrote behind its %zu bytes of dynamic shared memory",
                           s->launch->shared);
    }
#else
    (void)s;
#endif
}

/* The next block in order. */
static void block_begin(struct grid *g, struct block *b)
{
    const struct emulator_launch *l = &g->launch;
    const uint64_t plane = (uint64_t)l->grid.x * l->grid.y, inside = g->started % g->unit;
    const uint64_t number =
        g->at * g->unit + (g->order == EMULATOR_REVERSE ? g->unit - 1 - inside : inside);
    b->index.x = (unsigned)(number % l->grid.x);
    b->index.y = (unsigned)(number % plane / l->grid.x);
    b->index.z = (unsigned)(number / plane);
    b->threads = (int)(l->block.x * l->block.y * l->block.z);
    b->warps = (b->threads + LANES - 1) / LANES;
    b->live = b->threads;
    b->arrived = 0;
    b->sum = 0;
    b->runnable_warps = b->warps == 32 ? ~0u : (1u << b->warps) - 1;
    for (int w = 0; w < b->warps; w++) {
        struct warp *warp = &b->warp[w];
        const int lanes = b->threads - w * LANES;
        warp->existing = lanes >= LANES ? ~0u : (1u << lanes) - 1;
        warp->runnable = warp->existing;
        warp->started = warp->exited = warp->parked = 0;
        warp->groups = 0;
    }
    for (int i = 0; i < NAMED_BARRIERS; i++)
        b->named[i].arrived = 0;
    memset(b->dependency, 0, (size_t)b->threads);
    memset(b->cluster_turns, 0, (size_t)b->threads);
    b->cluster_arrived = b->bulk_count = 0;
    b->lets_next = false;
    if (++g->started % g->unit == 0)
        g->at = (g->at + g->step) % (g->count / g->unit);
}

static void grid_begin(struct grid *g, const struct emulator_launch *l, enum emulator_order order,
                       struct scheduler *s)
{
    g->launch = *l;
    g->order = order;
    g->random = s->random;
    g->count = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    g->unit = l->cluster > 1 ? l->cluster : 1;
    g->started = g->at = 0;
    g->step = 1;
    const uint64_t clusters = g->count / g->unit;
    if (order == EMULATOR_REVERSE) {
        g->step = g->at = clusters - 1;
    } else if (order == EMULATOR_SHUFFLE) {
        g->at = emulator_random(s) % clusters;
        do
            g->step = emulator_random(s) % clusters + 1;
        while (greatest_common(g->step, clusters) != 1);
        g->random = s->random;
    }
    g->range_count = emulator_kernel_shared(l->kernel, &g->ranges, &g->range_bytes);
}

/* Makes the next `count` blocks resident. */
static void resident_begin(struct scheduler *s, struct grid *g, uint64_t count)
{
    const size_t bytes = g->launch.shared + g->range_bytes + 1;
    g->blocks = (struct block *)calloc(count, sizeof *g->blocks);
    g->saved = (unsigned char *)malloc(count * bytes);
    if (g->blocks == NULL || g->saved == NULL)
        emulator_abort("no memory for %llu blocks at once", (unsigned long long)count);
    g->resident = count;
    poison_shared(s);
    for (uint64_t i = 0; i < count; i++) {
        block_begin(g, &g->blocks[i]);
        g->blocks[i].shared = g->saved + i * bytes;
        emulator_exchange_shared(s, g->blocks[i].shared, true);
    }
}

/* Runs the resident blocks until they have ended or, in the early part, none goes on. */
static void resident_run(struct scheduler *s, struct grid *g)
{
    struct block *const own = s->blocks;
    s->blocks = g->blocks;
    s->resident = g->resident;
    s->parked = 0;
    for (size_t i = 0; i < g->resident; i++) {
        struct block *b = &g->blocks[i];
        for (int w = 0; w < b->warps; w++) {
            if (b->warp[w].parked)
                b->runnable_warps |= 1u << w;
            b->warp[w].runnable |= b->warp[w].parked;
            b->warp[w].parked = 0;
        }
    }
    for (size_t i = 0; i < g->resident; i++) {
        struct block *b = &g->blocks[i];
        if (!b->runnable_warps)
            continue;
        s->block = b;
        emulator_exchange_shared(s, b->shared, false);
        emulator_schedule(s);
        emulator_exchange_shared(s, s->block->shared, true);
        check_shared(s);
        break;
    }
    s->blocks = s->block = own;
    s->resident = 1;
}

static void resident_end(struct grid *g)
{
    for (size_t i = 0; i < g->resident; i++)
        free(g->blocks[i].bulk);
    free(g->blocks);
    free(g->saved);
}

/* The blocks that have not begun yet. */
static void run_in_turn(struct scheduler *s, struct grid *g)
{
    while (g->started < g->count) {
        if (g->unit > 1) {
            resident_begin(s, g, g->unit);
            resident_run(s, g);
            resident_end(g);
            continue;
        }
        block_begin(g, s->block);
        poison_shared(s);
        emulator_schedule(s);
        check_shared(s);
    }
}

/* ---- Launches that begin early ---- */

static void end_oldest(struct scheduler *s)
{
    struct grid *g = pending;
    pending = g->next;
    pending_count--;
    grid_enter(s, g);
    resident_run(s, g);
    resident_end(g);
    run_in_turn(s, g);
    grid_leave(s, g);
    free(g);
}

static const struct grid *newest(void)
{
    const struct grid *g = pending;
    while (g->next != NULL)
        g = g->next;
    return g;
}

/* Whether each block of the launch that is parked has let the next one begin: that one does not
 * wait for what is in front of this one either. */
static bool lets_next(const struct grid *g)
{
    for (size_t i = 0; i < g->resident; i++)
        if (!g->blocks[i].lets_next && g->blocks[i].live > 0)
            return false;
    return true;
}

static void begin_early(struct scheduler *s, const struct emulator_launch *l,
                        enum emulator_order order)
{
    struct grid *g = (struct grid *)calloc(1, sizeof *g + l->closure_bytes), **last = &pending;
    while (pending_count > 1 && !lets_next(newest()))
        end_oldest(s);
    const uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    if (g == NULL)
        emulator_abort("no memory for a launch");
    static_assert(sizeof *g % 16 == 0, "a closure lies behind the grid");
    grid_begin(g, l, order, s);
    g->launch.closure = memcpy(g + 1, l->closure, l->closure_bytes);
    const uint64_t fit = EARLY_THREADS / threads / g->unit * g->unit;
    const uint64_t some = fit > 0 ? fit : g->unit;
    grid_enter(s, g);
    resident_begin(s, g, g->count < some ? g->count : some);
    s->early = true;
    resident_run(s, g);
    s->early = false;
    grid_leave(s, g);
    while (*last != NULL)
        last = &(*last)->next;
    *last = g;
    pending_count++;
}

void emulator_finish(void)
{
    while (pending != NULL)
        end_oldest(emulator_scheduler());
}

void emulator_run(const struct emulator_launch *l, enum emulator_order order, uint64_t seed,
                  unsigned early)
{
    struct scheduler *s = emulator_scheduler();
    if (s->seed != seed)
        s->random = s->seed = seed;
    if (early > 0 && !l->cooperative) {
        if (!l->programmatic)
            emulator_finish();
        begin_early(s, l, order);
        while (pending_count > early)
            end_oldest(s);
        return;
    }
    emulator_finish();
    struct grid g = {};
    grid_begin(&g, l, order, s);
    grid_enter(s, &g);
    if (l->cooperative) {
        resident_begin(s, &g, g.count);
        resident_run(s, &g);
        resident_end(&g);
    } else {
        run_in_turn(s, &g);
    }
    grid_leave(s, &g);
}
