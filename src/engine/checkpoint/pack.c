#include "engine/checkpoint/pack.h"

#include "base/child.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Copied at a time: short enough to hear an interrupt, long enough to be read ahead. */
enum { PIECE = 4 << 20, MOST_THREADS = 64 };
/* Less is copied before a program could say that it was stopped. */
enum { HEARD_FROM = 64 << 20 };

static uint64_t place_after(uint64_t used, const struct tensor *t)
{
    return (used + t->bytes + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
}

uint64_t checkpoint_packed_bytes(const struct checkpoint *c)
{
    uint64_t used = 0;
    for (size_t i = 0; i < c->tensor_count; i++)
        used = place_after(used, &c->tensors[i]);
    return used;
}

struct piece {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
};

struct packing {
    struct piece *pieces;
    size_t count;
    _Atomic size_t next;
    _Atomic uint64_t done;
    _Atomic bool stop;
    size_t page;
};

static void copy_piece(struct packing *p, const struct piece *piece)
{
    const uintptr_t page = p->page, from = (uintptr_t)piece->from;
    uint8_t *begin = (uint8_t *)(from / page * page);
    const size_t bytes = (from + piece->bytes + page - 1) / page * page - (uintptr_t)begin;
    /* All at once in place of a fault for each few pages; given back, so that memory never holds
     * two of everything. Pages that a neighbour shares come again. */
#ifdef MADV_POPULATE_READ
    madvise(begin, bytes, MADV_POPULATE_READ);
#endif
    memcpy(piece->to, piece->from, piece->bytes);
    madvise(begin, bytes, MADV_DONTNEED);
    atomic_fetch_add(&p->done, piece->bytes);
}

static bool copy_next(struct packing *p)
{
    const size_t i = atomic_fetch_add(&p->next, 1);
    if (i >= p->count || atomic_load(&p->stop))
        return false;
    copy_piece(p, &p->pieces[i]);
    return true;
}

static void *copy_thread(void *argument)
{
    while (copy_next(argument)) {
    }
    return NULL;
}

static int by_place(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a,
                        *y = *(const struct tensor *const *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return (x->data > y->data) - (x->data < y->data);
}

static void cut(struct packing *p, uint8_t *to, const struct tensor *t)
{
    for (uint64_t at = 0; at < t->bytes; at += PIECE) {
        const uint64_t left = t->bytes - at;
        p->pieces[p->count++] =
            (struct piece){to + at, t->data + at, left < PIECE ? (size_t)left : PIECE};
    }
}

/* Threads that cannot be started are not needed. */
static int start_threads(struct packing *p, int wanted, pthread_t *threads)
{
    int n = 0;
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a shard that is cut short ends the program by its own message */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (n < wanted && pthread_create(&threads[n], NULL, copy_thread, p) == 0)
        n++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n;
}

static bool copy_all(struct packing *p, const struct pack_options *o, uint64_t total,
                     struct error *err)
{
    pthread_t threads[MOST_THREADS];
    const int most = o->threads < MOST_THREADS ? o->threads : MOST_THREADS;
    const int wanted = (size_t)most < p->count ? most : (int)p->count;
    const int n = start_threads(p, wanted - 1, threads);
    bool ok = true;
    do {
        if (total >= HEARD_FROM && interrupt_requested())
            ok = error_set(err, "INTERRUPTED", "stopped by a signal");
        atomic_store(&p->stop, !ok);
        if (ok && o->progress)
            o->progress(o->context, atomic_load(&p->done), total);
    } while (copy_next(p));
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    if (ok && o->progress)
        o->progress(o->context, total, total);
    return ok;
}

bool checkpoint_pack(struct checkpoint *c, const struct pack_options *o, struct error *err)
{
    struct pages room;
    const uint64_t bytes = checkpoint_packed_bytes(c);
    if (bytes > SIZE_MAX || !pages_new((size_t)bytes, PAGES_HUGE, &room))
        return error_set(err, "OUT-OF-MEMORY", "no memory for %llu bytes of weights",
                         (unsigned long long)bytes);
    /* In the order of the files, which is how they are read fastest. */
    struct tensor **order = memory_alloc((c->tensor_count + 1) * sizeof *order);
    uint64_t *places = memory_alloc((c->tensor_count + 1) * sizeof *places);
    struct packing p = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    p.pieces = memory_alloc((c->tensor_count + c->tensor_bytes / PIECE + 1) * sizeof *p.pieces);
    for (size_t i = 0; i < c->tensor_count; i++)
        order[i] = &c->tensors[i];
    qsort(order, c->tensor_count, sizeof *order, by_place);
    uint64_t used = 0;
    for (size_t i = 0; i < c->tensor_count; i++) {
        places[i] = used;
        cut(&p, (uint8_t *)room.data + used, order[i]);
        used = place_after(used, order[i]);
    }
    const bool ok = copy_all(&p, o, c->tensor_bytes, err);
    for (size_t i = 0; ok && i < c->tensor_count; i++)
        order[i]->data = (uint8_t *)room.data + places[i];
    for (size_t i = 0; ok && i < c->shard_count; i++)
        file_unmap(&c->shards[i].map);
    if (ok)
        c->packed = room;
    else
        pages_free(&room);
    free(p.pieces);
    free(order);
    free(places);
    return ok;
}
