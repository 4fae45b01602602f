/* Barriers that count bytes, the copies that they count, and what blocks of a cluster send to each
 * other: as compute capability 9.0 has them. */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

extern __thread unsigned char emulator_shared[]; /* shared_names */

enum { BARRIER_MARK = 0xb17e };

/* In the barrier's 8 bytes. A turn ends when its one arrival and all bytes have come. */
struct bytes_barrier {
    uint16_t mark;
    uint8_t turns; /* that have ended */
    uint8_t arrived;
    int32_t bytes; /* that are still to come */
};

static struct scheduler *running(const char *what)
{
    if (emulator_current == NULL || emulator_current->launch == NULL)
        emulator_abort("%s outside of a kernel", what);
    if (!emulator_hopper)
        emulator_abort("%s before compute capability 9.0", what);
    return emulator_current;
}

/* All of p's bytes are shared memory of a block. */
static bool is_shared(const struct scheduler *s, const void *p, size_t bytes)
{
    const ptrdiff_t at = (const unsigned char *)p - emulator_shared;
    const ptrdiff_t end = at + (ptrdiff_t)bytes;
    bool inside = at >= 0 && end <= (ptrdiff_t)s->launch->shared;
    for (size_t i = 0; i < s->range_count; i++)
        inside = inside || (at >= s->ranges[i].offset &&
                            end <= s->ranges[i].offset + (ptrdiff_t)s->ranges[i].bytes);
    return inside;
}

static struct bytes_barrier barrier_of(const struct scheduler *s, const uint64_t *p,
                                       const char *what)
{
    struct bytes_barrier b;
    static_assert(sizeof b == sizeof *p, "as large as the device's");
    if ((uintptr_t)p % 8 != 0 || !is_shared(s, p, sizeof *p))
        emulator_abort("%s: its barrier is not in shared memory, or not aligned", what);
    memcpy(&b, p, sizeof b);
    if (b.mark != BARRIER_MARK)
        emulator_abort("%s: nothing has set up its barrier", what);
    return b;
}

static void barrier_put(struct scheduler *s, uint64_t *p, struct bytes_barrier b)
{
    if (b.arrived && b.bytes == 0) {
        b.turns++;
        b.arrived = 0;
    }
    memcpy(p, &b, sizeof b);
    s->yields = 0;
}

void emulator_bytes_init(uint64_t *barrier)
{
    struct scheduler *s = running("mbarrier.init");
    const struct bytes_barrier b = {BARRIER_MARK, 0, 0, 0};
    if ((uintptr_t)barrier % 8 != 0 || !is_shared(s, barrier, sizeof *barrier))
        emulator_abort("mbarrier.init: not in shared memory, or not aligned");
    memcpy(barrier, &b, sizeof b);
}

void emulator_bytes_expect(uint64_t *barrier, unsigned bytes)
{
    struct scheduler *s = running("mbarrier.arrive");
    struct bytes_barrier b = barrier_of(s, barrier, "mbarrier.arrive");
    if (b.arrived)
        emulator_abort("mbarrier.arrive: a second time in turn %u", b.turns);
    b.arrived = 1;
    b.bytes += (int32_t)bytes;
    barrier_put(s, barrier, b);
}

/* To the end of a block's list; now: takes what is there now. */
static void put_under_way(struct block *to, void *p, const void *from, unsigned bytes,
                          uint64_t *barrier, bool now)
{
    if (to->bulk_count == to->bulk_room) {
        const unsigned room = to->bulk_room ? 2 * to->bulk_room : 64;
        struct bulk_under_way *more =
            (struct bulk_under_way *)realloc(to->bulk, room * sizeof *more);
        if (more == NULL)
            emulator_abort("no memory for a copy");
        to->bulk = more;
        to->bulk_room = room;
    }
    struct bulk_under_way *c = &to->bulk[to->bulk_count++];
    *c = {p, from, barrier, bytes, {}, NULL};
    if (!now)
        return;
    c->from = NULL;
    if (bytes > sizeof c->taken) {
        c->more = (unsigned char *)malloc(bytes);
        if (c->more == NULL)
            emulator_abort("no memory for a copy");
    }
    memcpy(c->more ? c->more : c->taken, from, bytes);
}

void emulator_bulk_copy(void *shared, const void *global, unsigned bytes, uint64_t *barrier)
{
    struct scheduler *s = running("cp.async.bulk");
    struct bytes_barrier b = barrier_of(s, barrier, "cp.async.bulk");
    if (((uintptr_t)shared | (uintptr_t)global | bytes) % 16 != 0 || bytes == 0)
        emulator_abort("cp.async.bulk of %u bytes from %p to %p: not aligned", bytes, global,
                       shared);
    if (!is_shared(s, shared, bytes))
        emulator_abort("cp.async.bulk of %u bytes to %p: not within shared memory", bytes, shared);
    if (!emulator_copies_early) {
        put_under_way(s->block, shared, global, bytes, barrier, s->early);
        return;
    }
    memcpy(shared, global, bytes);
    b.bytes -= (int32_t)bytes;
    barrier_put(s, barrier, b);
}

/* Makes the copies of the running block that `barrier` counts; false: there were none. */
static bool make_copies(struct scheduler *s, uint64_t *barrier)
{
    struct block *own = s->block;
    unsigned kept = 0;
    const unsigned before = own->bulk_count;
    for (unsigned i = 0; i < before; i++) {
        const struct bulk_under_way *c = &own->bulk[i];
        if (c->barrier != barrier) {
            own->bulk[kept++] = *c;
            continue;
        }
        memcpy(c->to, c->from ? c->from : c->more ? c->more : c->taken, c->bytes);
        free(c->more);
        struct bytes_barrier b = barrier_of(s, barrier, "a copy");
        b.bytes -= (int32_t)c->bytes;
        barrier_put(s, barrier, b);
    }
    own->bulk_count = kept;
    return kept < before;
}

void emulator_bytes_wait(uint64_t *barrier, unsigned turn)
{
    struct scheduler *s = running("mbarrier.try_wait");
    while (((barrier_of(s, barrier, "mbarrier.try_wait").turns ^ turn) & 1) == 0)
        if (!make_copies(s, barrier))
            emulator_yield();
}

/* ---- Clusters ---- */

/* The first of the running block's cluster; *blocks: how many. */
static struct block *cluster_of(const struct scheduler *s, size_t *blocks)
{
    const size_t n = s->launch->cluster > 1 ? s->launch->cluster : 1;
    *blocks = n;
    return s->blocks + (size_t)(s->block - s->blocks) / n * n;
}

void emulator_cluster_arrive(void)
{
    struct scheduler *s = running("barrier.cluster.arrive");
    s->block->cluster_arrived++;
    s->block->cluster_turns[s->thread]++;
    s->yields = 0;
}

void emulator_cluster_wait(void)
{
    struct scheduler *s = running("barrier.cluster.wait");
    size_t blocks;
    const struct block *first = cluster_of(s, &blocks);
    const unsigned wanted = s->block->cluster_turns[s->thread] * (unsigned)s->block->threads;
    if (wanted == 0)
        emulator_abort("waits for its cluster without having arrived");
    for (size_t i = 0; i < blocks;) {
        if (first[i].cluster_arrived >= wanted)
            i++;
        else
            emulator_yield();
    }
}

void emulator_cluster_send(void *p, const void *value, uint64_t *barrier, unsigned rank)
{
    struct scheduler *s = running("st.async");
    size_t blocks, i = 0;
    struct block *first = cluster_of(s, &blocks);
    while (i < blocks && first[i].index.x % blocks != rank)
        i++;
    if (i == blocks)
        emulator_abort("st.async to block %u of a cluster of %zu", rank, blocks);
    const struct block *to = &first[i];
    if (to != s->block && to->cluster_arrived < (unsigned)to->threads)
        emulator_abort("st.async to block %u of its cluster, which may not have begun", rank);
    if (to->live == 0)
        emulator_abort("st.async to block %u of its cluster, which has ended", rank);
    if ((uintptr_t)p % 8 != 0 || !is_shared(s, p, 8) || !is_shared(s, barrier, 8))
        emulator_abort("st.async to %p: not within shared memory, or not aligned", p);
    put_under_way(&first[i], p, value, 8, barrier, true);
}
