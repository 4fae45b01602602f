/* Runs a grid: each thread of a block is a fiber, one runs at a time, and another is taken where it
 * waits. A thread that never waits needs no fiber of its own: the next one goes on where it ended.
 * Blocks run one after the other; in a cooperative launch all of them are there at once and shared
 * memory is exchanged where the block changes. */
#include "scheduler.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const emulator_operations[] = {
    "nothing",        "__syncthreads",  "__syncthreads_count", "__syncwarp",
    "a shuffle",      "a vote",         "__reduce_sync",       "__match_any_sync",
    "a warp product", "a warp product", "a named barrier",     "the grid's barrier",
    "pdl_wait",       "a waiting loop"};

__thread struct emulator_thread emulator_thread;
__thread struct uint3 emulator_block_index;
__thread struct dim3 emulator_block_size, emulator_grid_size;
extern __thread unsigned char emulator_shared[]; /* shared_names */

__thread struct scheduler *emulator_current;
static pthread_key_t current_key;
static pthread_once_t current_once = PTHREAD_ONCE_INIT;

const void *emulator_running(void)
{
    return emulator_current != NULL && emulator_current->launch != NULL
               ? emulator_current->launch->kernel
               : NULL;
}

void emulator_abort(const char *format, ...)
{
    const struct scheduler *s = emulator_current;
    va_list list;
    fflush(stdout);
    fprintf(stderr, "cuda-emulator: ");
    if (emulator_running() != NULL) {
        const uint3 b = s->block->index, t = emulator_thread.index;
        fprintf(stderr, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ",
                emulator_kernel_name(s->launch->kernel), b.x, b.y, b.z, t.x, t.y, t.z);
    }
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    abort();
}

/* ---- Which thread is next ---- */

unsigned emulator_random(struct scheduler *s)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(s->random >> 33);
}

static int any_bit(struct scheduler *s, unsigned mask)
{
    if (s->order == EMULATOR_FORWARD)
        return __builtin_ctz(mask);
    if (s->order == EMULATOR_REVERSE)
        return 31 - __builtin_clz(mask);
    const unsigned by = emulator_random(s) & 31;
    const unsigned turned = mask >> by | (by ? mask << (32 - by) : 0);
    return (int)((__builtin_ctz(turned) + by) & 31);
}

void emulator_exchange_shared(struct scheduler *s, unsigned char *saved, bool save)
{
    memcpy(save ? saved : emulator_shared, save ? emulator_shared : saved, s->launch->shared);
    saved += s->launch->shared;
    for (size_t i = 0; i < s->range_count; i++) {
        unsigned char *at = emulator_shared + s->ranges[i].offset;
        memcpy(save ? saved : at, save ? at : saved, s->ranges[i].bytes);
        saved += s->ranges[i].bytes;
    }
}

/* Another block of a cooperative launch that can go on, after this one in number. */
static bool change_block(struct scheduler *s)
{
    const size_t own = (size_t)(s->block - s->blocks);
    for (size_t i = 1; i < s->resident; i++) {
        struct block *b = &s->blocks[(own + i) % s->resident];
        if (!b->runnable_warps)
            continue;
        emulator_exchange_shared(s, s->block->shared, true);
        emulator_exchange_shared(s, b->shared, false);
        s->block = b;
        s->warp = &b->warp[0];
        emulator_block_index = b->index;
        return true;
    }
    return false;
}

static void describe_deadlock(struct scheduler *s) __attribute__((noreturn));
static void describe_deadlock(struct scheduler *s)
{
    char text[1024];
    size_t at = 0;
    struct block *b = s->block;
    int exited = 0;
    struct {
        struct place place;
        int first, count;
    } seen[6];
    int places = 0;
    for (int t = 0; t < b->threads; t++) {
        if (b->warp[t / LANES].exited >> t % LANES & 1) {
            exited++;
            continue;
        }
        const struct place *p = &b->waits[t];
        int i = 0;
        while (i < places && (seen[i].place.line != p->line || seen[i].place.op != p->op))
            i++;
        if (i == 6)
            continue;
        if (i == places) {
            seen[places].place = *p;
            seen[places].first = t;
            seen[places++].count = 0;
        }
        seen[i].count++;
    }
    for (int i = 0; i < places && at < sizeof text; i++) {
        const uint3 t = s->places[seen[i].first].index;
        at += (size_t)snprintf(text + at, sizeof text - at,
                               "%s%d from (%u, %u, %u) on at %s (%s:%d)", i ? ", " : "",
                               seen[i].count, t.x, t.y, t.z, emulator_operations[seen[i].place.op],
                               seen[i].place.file ? seen[i].place.file : "?", seen[i].place.line);
    }
    if (places > 0) {
        s->thread = seen[0].first;
        emulator_thread = s->places[s->thread];
    }
    emulator_abort("threads wait for ever: %s; %d have ended", places ? text : "none", exited);
}

/* Takes the next runnable thread: it is the current one then. False: none goes on in the early
 * part. after: in turn behind the one that yields.
 */
static bool take(struct scheduler *s, bool after)
{
    struct block *b = s->block;
    int w = (int)(s->warp - b->warp), lane;
    if (after && s->order != EMULATOR_SHUFFLE) {
        const unsigned later = s->lane < 31 ? s->warp->runnable & ~0u << (s->lane + 1) : 0;
        const unsigned warps = w < 31 ? b->runnable_warps & ~0u << (w + 1) : 0;
        if (later) {
            lane = __builtin_ctz(later);
        } else {
            if (!warps && s->resident > 1 && change_block(s)) {
                b = s->block;
                w = __builtin_ctz(b->runnable_warps);
            } else {
                w = __builtin_ctz(warps ? warps : b->runnable_warps);
            }
            lane = __builtin_ctz(b->warp[w].runnable);
        }
    } else {
        if (after && s->resident > 1 && emulator_random(s) % 4 == 0 && change_block(s))
            b = s->block;
        if (!b->runnable_warps) {
            if (s->resident <= 1 || !change_block(s)) {
                if (s->early && s->parked > 0)
                    return false;
                describe_deadlock(s);
            }
            b = s->block;
            w = any_bit(s, b->runnable_warps);
        } else if (s->order == EMULATOR_SHUFFLE || !(b->runnable_warps >> w & 1)) {
            w = any_bit(s, b->runnable_warps);
        }
        lane = any_bit(s, b->warp[w].runnable);
    }
    struct warp *warp = &b->warp[w];
    warp->runnable &= ~(1u << lane);
    if (!warp->runnable)
        b->runnable_warps &= ~(1u << w);
    s->warp = warp;
    s->lane = lane;
    s->thread = w * LANES + lane;
    emulator_thread = s->places[s->thread];
    return true;
}

static void fiber_run(void);

static struct fiber *take_fiber(struct scheduler *s)
{
    struct fiber *f = s->free;
    if (f != NULL) {
        s->free = f->next;
        return f;
    }
    f = fiber_new(fiber_run, s->fibers++);
    if (f == NULL)
        emulator_abort("no memory for the stack of a thread");
    return f;
}

/* Goes on with another thread; returns when this one's turn has come again, or, on a fiber whose
 * thread has ended, with a new thread to run. */
static void go_on(struct scheduler *s, bool ended, bool after)
{
    struct fiber *self = s->fiber, *to;
    if (!take(s, after))
        to = &s->host;
    else if (s->warp->started >> s->lane & 1)
        to = s->block->fiber[s->thread];
    else {
        to = ended ? self : take_fiber(s);
        s->warp->started |= 1u << s->lane;
        s->block->fiber[s->thread] = to;
    }
    if (to == self)
        return;
    if (ended) {
        self->next = s->free;
        s->free = self;
    }
    s->fiber = to;
    fiber_switch(self, to);
}

void emulator_wait(struct scheduler *s, enum operation op, const char *file, int line)
{
    s->block->waits[s->thread] = {file, line, op};
    s->yields = 0;
    go_on(s, false, false);
}

void emulator_give_way(struct scheduler *s)
{
    go_on(s, false, true);
}

static void thread_ended(struct scheduler *s)
{
    struct block *b = s->block;
    struct warp *warp = s->warp;
    const unsigned bit = 1u << s->lane;
    warp->exited |= bit;
    b->live--;
    s->fiber->copy_count = s->fiber->group = 0; /* nobody waited for them */
    s->yields = 0;
    if (b->dependency[s->thread])
        s->waited++;
    else
        s->unwaited++;
    if (s->waited && s->unwaited)
        emulator_abort("some threads wait for the launches before (pdl_wait), others end without");
    if (b->arrived > 0)
        emulator_abort("ends while others wait at __syncthreads (%s:%d)", b->barrier.file,
                       b->barrier.line);
    for (int i = 0; i < warp->groups; i++)
        if (warp->group[i].mask & bit)
            emulator_abort("ends while others of its warp wait for it at %s (%s:%d)",
                           emulator_operations[warp->group[i].place.op], warp->group[i].place.file,
                           warp->group[i].place.line);
    if (b->live == 0) {
        bool more = false;
        if (b->bulk_count > 0)
            emulator_abort("ends while %u copies into its block's shared memory are under way",
                           b->bulk_count);
        for (size_t i = 0; i < s->resident; i++)
            more = more || s->blocks[i].live > 0;
        if (!more) {
            struct fiber *self = s->fiber;
            self->next = s->free;
            s->free = self;
            s->fiber = &s->host;
            fiber_switch(self, &s->host);
            return;
        }
    }
    go_on(s, true, false);
}

static void fiber_run(void)
{
    fiber_begin(&emulator_current->host);
    for (;;) {
        struct scheduler *s = emulator_current;
        s->launch->invoke(s->launch->closure);
        thread_ended(s);
    }
}

void emulator_schedule(struct scheduler *s)
{
    s->warp = &s->block->warp[0];
    emulator_block_index = s->block->index;
    s->warp = &s->block->warp[any_bit(s, s->block->runnable_warps)];
    take(s, false);
    if (!(s->warp->started >> s->lane & 1)) {
        s->block->fiber[s->thread] = take_fiber(s);
        s->warp->started |= 1u << s->lane;
    }
    s->fiber = s->block->fiber[s->thread];
    fiber_switch(&s->host, s->fiber);
}

static void scheduler_free(void *p)
{
    struct scheduler *s = (struct scheduler *)p;
    while (s->free != NULL) {
        struct fiber *f = s->free;
        s->free = f->next;
        fiber_free(f);
    }
    free(s->blocks);
    free(s);
}

static void make_key(void)
{
    pthread_key_create(&current_key, scheduler_free);
}

struct scheduler *emulator_scheduler(void)
{
    if (emulator_current != NULL)
        return emulator_current;
    struct scheduler *s = (struct scheduler *)calloc(1, sizeof *s);
    if (s != NULL)
        s->blocks = (struct block *)calloc(1, sizeof *s->blocks);
    if (s == NULL || s->blocks == NULL)
        emulator_abort("no memory for the scheduler");
    s->block = s->blocks;
    s->resident = 1;
    pthread_once(&current_once, make_key);
    pthread_setspecific(current_key, s);
    emulator_current = s;
    return s;
}
