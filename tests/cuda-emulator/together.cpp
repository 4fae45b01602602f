/* What the threads of a warp, a block and a grid do together. The last of them to come does the
 * work for all and lets the others go on. */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

static struct scheduler *running(const char *what)
{
    if (emulator_current == NULL || emulator_current->launch == NULL)
        emulator_abort("%s outside of a kernel", what);
    return emulator_current;
}

static bool elsewhere(const struct place *p, enum operation op, const char *file, int line)
{
    return p->op != op || p->line != line || (p->file != file && strcmp(p->file, file) != 0);
}

/* True for the last of the mask's lanes, which does the work for all of them and calls release;
 * false after it has. */
static bool arrive(struct scheduler *s, unsigned mask, enum operation op, const char *file,
                   int line)
{
    struct warp *warp = s->warp;
    const unsigned bit = 1u << s->lane;
    struct group *g = NULL;
    if (!(mask & bit))
        emulator_abort("%s (%s:%d): mask %08x lacks the calling lane %d", emulator_operations[op],
                       file, line, mask, s->lane);
    for (int i = 0; i < warp->groups && g == NULL; i++)
        if (warp->group[i].mask == mask)
            g = &warp->group[i];
    if (g == NULL) {
        if (mask & ~warp->existing || mask & warp->exited)
            emulator_abort("%s (%s:%d): mask %08x names lanes that %s", emulator_operations[op],
                           file, line, mask,
                           mask & ~warp->existing ? "do not exist" : "have ended");
        g = &warp->group[warp->groups++];
        g->mask = mask;
        g->arrived = 0;
        g->place = {file, line, op};
    } else if (elsewhere(&g->place, op, file, line)) {
        emulator_abort("is at %s (%s:%d), others of its mask %08x wait at %s (%s:%d)",
                       emulator_operations[op], file, line, mask, emulator_operations[g->place.op],
                       g->place.file, g->place.line);
    }
    g->arrived |= bit;
    if (g->arrived == mask) {
        *g = warp->group[--warp->groups];
        return true;
    }
    emulator_wait(s, op, file, line);
    return false;
}

static void release(struct scheduler *s, unsigned mask)
{
    const unsigned others = mask & ~(1u << s->lane);
    s->yields = 0;
    if (!others)
        return;
    s->warp->runnable |= others;
    s->block->runnable_warps |= 1u << (s->warp - s->block->warp);
}

uint64_t emulator_shuffle(unsigned mask, uint64_t value, unsigned from, const char *file, int line)
{
    struct scheduler *s = running("a shuffle");
    struct warp *warp = s->warp;
    const int lane = s->lane;
    if (!(mask >> from & 1))
        emulator_abort("a shuffle (%s:%d) reads lane %u, which is not of its mask %08x", file, line,
                       from, mask);
    warp->value[lane] = value;
    warp->source[lane] = (unsigned char)from;
    if (arrive(s, mask, OP_SHUFFLE, file, line)) {
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1)
                warp->result[l] = warp->value[warp->source[l]];
        release(s, mask);
    }
    return warp->result[lane];
}

void emulator_syncwarp(unsigned mask, const char *file, int line)
{
    struct scheduler *s = running("__syncwarp");
    if (arrive(s, mask, OP_SYNCWARP, file, line))
        release(s, mask);
}

unsigned emulator_ballot(unsigned mask, bool value, const char *file, int line)
{
    struct scheduler *s = running("a vote");
    struct warp *warp = s->warp;
    const int lane = s->lane;
    warp->value[lane] = value;
    if (arrive(s, mask, OP_BALLOT, file, line)) {
        unsigned all = 0;
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1)
                all |= (unsigned)warp->value[l] << l;
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1)
                warp->result[l] = all;
        release(s, mask);
    }
    return (unsigned)warp->result[lane];
}

unsigned emulator_match_any(unsigned mask, uint64_t value, const char *file, int line)
{
    struct scheduler *s = running("__match_any_sync");
    struct warp *warp = s->warp;
    const int lane = s->lane;
    warp->value[lane] = value;
    if (arrive(s, mask, OP_MATCH, file, line)) {
        for (int l = 0; l < LANES; l++) {
            unsigned same = 0;
            for (int other = 0; other < LANES; other++)
                if (mask >> l & mask >> other & 1 && warp->value[l] == warp->value[other])
                    same |= 1u << other;
            if (mask >> l & 1)
                warp->result[l] = same;
        }
        release(s, mask);
    }
    return (unsigned)warp->result[lane];
}

static unsigned reduced(unsigned a, unsigned b, enum emulator_reduction r)
{
    switch (r) {
    case EMULATOR_ADD:
        return a + b;
    case EMULATOR_MIN:
        return a < b ? a : b;
    case EMULATOR_MAX:
        return a > b ? a : b;
    case EMULATOR_MIN_SIGNED:
        return (int)a < (int)b ? a : b;
    case EMULATOR_MAX_SIGNED:
        return (int)a > (int)b ? a : b;
    case EMULATOR_AND:
        return a & b;
    case EMULATOR_OR:
        return a | b;
    case EMULATOR_XOR:
        break;
    }
    return a ^ b;
}

unsigned emulator_reduce(unsigned mask, unsigned value, enum emulator_reduction r, const char *file,
                         int line)
{
    struct scheduler *s = running("__reduce_sync");
    struct warp *warp = s->warp;
    const int lane = s->lane;
    warp->value[lane] = value;
    if (arrive(s, mask, OP_REDUCE, file, line)) {
        unsigned all = value; /* this lane's again below: only add and xor would mind */
        for (int l = 0; l < LANES; l++)
            if (l != lane && mask >> l & 1)
                all = reduced(all, (unsigned)warp->value[l], r);
        for (int l = 0; l < LANES; l++)
            if (mask >> l & 1)
                warp->result[l] = all;
        release(s, mask);
    }
    return (unsigned)warp->result[lane];
}

unsigned emulator_active(void)
{
    const struct warp *warp = running("__activemask")->warp;
    return warp->existing & ~warp->exited;
}

void emulator_warp_exchange(const void *mine, size_t bytes, void *all, const char *file, int line)
{
    struct scheduler *s = running("a warp product");
    struct warp *warp = s->warp;
    warp->mine[s->lane] = (void *)mine;
    warp->all[s->lane] = all;
    if (arrive(s, ~0u, OP_EXCHANGE, file, line)) {
        unsigned char *first = (unsigned char *)warp->all[0];
        for (int l = 0; l < LANES; l++)
            memcpy(first + l * bytes, warp->mine[l], bytes);
        for (int l = 1; l < LANES; l++)
            memcpy(warp->all[l], first, LANES * bytes);
        release(s, ~0u);
    }
}

void emulator_warp_together(void *mine, void (*body)(void *const mine[32]), const char *file,
                            int line)
{
    struct scheduler *s = running("a warp product");
    s->warp->mine[s->lane] = mine;
    if (arrive(s, ~0u, OP_TOGETHER, file, line)) {
        body(s->warp->mine);
        release(s, ~0u);
    }
}

/* True for the last of the block's threads, which releases them all. */
static bool arrive_block(struct scheduler *s, enum operation op, const char *file, int line)
{
    struct block *b = s->block;
    if (b->live != b->threads)
        emulator_abort("is at __syncthreads (%s:%d), where %d threads of the block have ended",
                       file, line, b->threads - b->live);
    if (b->arrived == 0)
        b->barrier = {file, line, op};
    else if (elsewhere(&b->barrier, op, file, line))
        emulator_abort("is at __syncthreads (%s:%d), others wait at the one of %s:%d", file, line,
                       b->barrier.file, b->barrier.line);
    if (++b->arrived == b->threads)
        return true;
    emulator_wait(s, op, file, line);
    return false;
}

static void release_block(struct scheduler *s)
{
    struct block *b = s->block;
    b->arrived = 0;
    s->yields = 0;
    for (int w = 0; w < b->warps; w++) {
        b->warp[w].runnable = b->warp[w].existing;
        b->runnable_warps |= 1u << w;
    }
    s->warp->runnable &= ~(1u << s->lane);
    if (!s->warp->runnable)
        b->runnable_warps &= ~(1u << (s->warp - b->warp));
}

void emulator_syncthreads(const char *file, int line)
{
    struct scheduler *s = running("__syncthreads");
    if (arrive_block(s, OP_SYNCTHREADS, file, line))
        release_block(s);
}

void emulator_syncthreads_reduce(int value, int *count, const char *file, int line)
{
    struct scheduler *s = running("__syncthreads");
    struct block *b = s->block;
    b->sum += value;
    if (arrive_block(s, OP_SYNCTHREADS_REDUCE, file, line)) {
        b->sum_result = b->sum;
        b->sum = 0;
        release_block(s);
    }
    *count = b->sum_result;
}

void emulator_named_barrier(int number, int threads, const char *file, int line)
{
    struct scheduler *s = running("a named barrier");
    struct block *b = s->block;
    if (number < 0 || number >= NAMED_BARRIERS || threads < 1 || threads > b->threads)
        emulator_abort("named barrier %d of %d threads (%s:%d)", number, threads, file, line);
    struct barrier *n = &b->named[number];
    const int w = (int)(s->warp - b->warp);
    if (n->arrived == 0) {
        memset(n->waiting, 0, sizeof n->waiting);
        n->expected = threads;
    } else if (n->expected != threads) {
        emulator_abort("named barrier %d (%s:%d) of %d threads, others came for %d", number, file,
                       line, threads, n->expected);
    }
    if (++n->arrived < threads) {
        n->waiting[w] |= 1u << s->lane;
        emulator_wait(s, OP_NAMED, file, line);
        return;
    }
    n->arrived = 0;
    s->yields = 0;
    for (int i = 0; i < b->warps; i++) {
        b->warp[i].runnable |= n->waiting[i];
        if (n->waiting[i])
            b->runnable_warps |= 1u << i;
    }
}

void emulator_grid_barrier(const char *file, int line)
{
    struct scheduler *s = running("the grid's barrier");
    if (!s->launch->cooperative)
        emulator_abort("the grid's barrier (%s:%d) in a launch that is not cooperative", file,
                       line);
    if (++s->grid_arrived < (uint64_t)s->block->threads * s->resident) {
        emulator_wait(s, OP_GRID, file, line);
        return;
    }
    s->grid_arrived = 0;
    for (size_t i = 0; i < s->resident; i++) {
        struct block *b = &s->blocks[i];
        for (int w = 0; w < b->warps; w++) {
            b->warp[w].runnable = b->warp[w].existing;
            b->runnable_warps |= 1u << w;
        }
    }
    s->warp->runnable &= ~(1u << s->lane);
    if (!s->warp->runnable)
        s->block->runnable_warps &= ~(1u << (s->warp - s->block->warp));
}

void emulator_yield(void)
{
    struct scheduler *s = running("a waiting loop");
    struct block *b = s->block;
    if (++s->yields > MOST_YIELDS)
        emulator_abort("a loop waits for ever");
    b->waits[s->thread] = {NULL, 0, OP_YIELD};
    s->warp->runnable |= 1u << s->lane;
    b->runnable_warps |= 1u << (s->warp - b->warp);
    emulator_give_way(s);
}

void emulator_dependency_wait(void)
{
    struct scheduler *s = running("griddepcontrol.wait");
    if (s->block->dependency[s->thread])
        emulator_abort("waits twice for the launches before (pdl_wait)");
    s->block->dependency[s->thread] = 1;
    if (!s->early)
        return;
    s->warp->parked |= 1u << s->lane;
    s->parked++;
    emulator_wait(s, OP_DEPENDENCY, NULL, 0);
}

void emulator_dependents_launch(void)
{
    running("griddepcontrol.launch_dependents")->block->lets_next = true;
}

void emulator_copy_async(void *shared, const void *global, unsigned bytes)
{
    struct fiber *f = running("cp.async")->fiber;
    if ((bytes != 4 && bytes != 8 && bytes != 16) ||
        ((uintptr_t)shared | (uintptr_t)global) % bytes != 0)
        emulator_abort("cp.async of %u bytes from %p to %p: not aligned", bytes, global, shared);
    if (emulator_copies_early) {
        memcpy(shared, global, bytes);
        return;
    }
    if (f->copy_count == f->copy_room) {
        const unsigned room = f->copy_room ? 2 * f->copy_room : 16;
        struct copy_under_way *more =
            (struct copy_under_way *)realloc(f->copies, room * sizeof *more);
        if (more == NULL)
            emulator_abort("no memory for a copy");
        f->copies = more;
        f->copy_room = room;
    }
    struct copy_under_way *c = &f->copies[f->copy_count++];
    *c = {shared, global, bytes, f->group, {}};
    if (emulator_current->early) {
        memcpy(c->taken, global, bytes);
        c->from = NULL;
    }
}

void emulator_copy_commit(void)
{
    running("cp.async.commit_group")->fiber->group++;
}

void emulator_copy_wait(unsigned left)
{
    struct fiber *f = running("cp.async.wait_group")->fiber;
    unsigned kept = 0;
    for (unsigned i = 0; i < f->copy_count; i++) {
        const struct copy_under_way *c = &f->copies[i];
        if (c->group + left < f->group)
            memcpy(c->to, c->from ? c->from : c->taken, c->bytes);
        else
            f->copies[kept++] = *c;
    }
    f->copy_count = kept;
}
