#include "engine/compute/cuda/staging.h"

extern "C" {
#include "base/arena.h"
#include "base/child.h"
#include "engine/memory/cores.h"
}

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    SLOTS = 4,
    SLOT_BYTES = 16 << 20,
    UNIT_BYTES = 512 << 10, /* what a thread copies at a time */
    MOST_SEGMENTS = 256,
    MOST_UNITS = MOST_SEGMENTS + SLOT_BYTES / UNIT_BYTES,
    MOST_THREADS = 8,
    ALIGN = 256,
    AHEAD_BYTES = 128 << 20, /* of a cold file, asked for before it is needed */
    ADVICE_BYTES = 2 << 20,
    MOST_ADVICE = 2 * AHEAD_BYTES / ADVICE_BYTES,
    HEARD_FROM = 64 << 20 /* less is copied before a program could say that it was stopped */
};

/* Rows of a piece that lie in a slot. */
struct segment {
    const struct staging_piece *piece;
    size_t row, rows; /* of the piece */
    size_t offset, bytes;
};

struct slot {
    uint8_t *host, *device;
    cudaStream_t stream;
    cudaEvent_t done;
    bool used;
    struct segment segments[MOST_SEGMENTS];
    int segment_count;
    size_t bytes;
};

struct unit {
    uint8_t *to; /* NULL: only asked for, to be there later */
    const uint8_t *from;
    size_t bytes;
};

/* Where the reading ahead has come to. */
struct cursor {
    int piece, source;
    size_t at;
};

struct staging {
    struct cuda_fault *fault;
    cudaStream_t stream;
    struct slot slots[SLOTS];
    int slot;
    bool open; /* buffers and threads are there */
    unsigned kernels;
    uint64_t done, total;
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;

    struct unit units[MOST_UNITS], advice[MOST_ADVICE]; /* advice is worked through first */
    size_t unit_count, advice_count;
    size_t next_unit; /* atomic */
    bool cold;        /* atomic; the last unit had to be waited for */
    size_t page;

    const struct staging_piece *pieces; /* of this staging_copy, for reading ahead */
    int piece_count;
    struct cursor ahead;
    uint64_t ahead_bytes;  /* of this copy, before the cursor */
    uint64_t staged_bytes; /* of this copy, in slots */

    pthread_t threads[MOST_THREADS];
    int thread_count;
    pthread_mutex_t lock;
    pthread_cond_t work, finished;
    unsigned round; /* a new one for each filling */
    int active;     /* threads that copy */
    bool filling, stop;
};

/* ---- The host's side: threads that copy units ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void advise(const struct staging *s, const uint8_t *from, size_t bytes, int advice)
{
    const uintptr_t begin = (uintptr_t)from / s->page * s->page;
    madvise((void *)begin, (uintptr_t)from + bytes - begin, advice);
}

static void copy_unit(struct staging *s, const struct unit *u)
{
    const double slow = 1.5e-9; /* seconds a byte: a disk's, not memory's */
    if (u->to == NULL) {
        advise(s, u->from, u->bytes, MADV_WILLNEED);
        return;
    }
    const double begun = seconds_now();
    /* All pages at once, in place of a fault for each few. */
#ifdef MADV_POPULATE_READ
    advise(s, u->from, u->bytes, MADV_POPULATE_READ);
#endif
    memcpy(u->to, u->from, u->bytes);
    if (u->bytes >= UNIT_BYTES / 2)
        __atomic_store_n(&s->cold, seconds_now() - begun > slow * (double)u->bytes,
                         __ATOMIC_RELAXED);
}

/* False when none is left to take. */
static bool copy_next(struct staging *s)
{
    const size_t i = __atomic_fetch_add(&s->next_unit, 1, __ATOMIC_RELAXED);
    if (i >= s->advice_count + s->unit_count)
        return false;
    copy_unit(s, i < s->advice_count ? &s->advice[i] : &s->units[i - s->advice_count]);
    return true;
}

static void *copy_thread(void *argument)
{
    struct staging *s = (struct staging *)argument;
    unsigned seen = 0;
    pthread_mutex_lock(&s->lock);
    while (!s->stop) {
        if (!s->filling || seen == s->round) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        seen = s->round;
        s->active++;
        pthread_mutex_unlock(&s->lock);
        while (copy_next(s)) {
        }
        pthread_mutex_lock(&s->lock);
        if (--s->active == 0)
            pthread_cond_signal(&s->finished);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* Copies all units; this thread is one of those that do. */
static void copy_units(struct staging *s)
{
    const bool together = s->unit_count > 1 && s->thread_count > 0;
    s->next_unit = 0;
    if (together) {
        pthread_mutex_lock(&s->lock);
        s->round++;
        s->filling = true;
        pthread_cond_broadcast(&s->work);
        pthread_mutex_unlock(&s->lock);
    }
    while (copy_next(s)) {
    }
    if (together) {
        pthread_mutex_lock(&s->lock);
        s->filling = false;
        while (s->active > 0)
            pthread_cond_wait(&s->finished, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    s->unit_count = s->advice_count = 0;
}

/* Threads that cannot be started are not needed. */
static void start_threads(struct staging *s)
{
    sigset_t all, old;
    const int cores = cores_allowed();
    const int wanted = (cores < MOST_THREADS ? cores : MOST_THREADS) - 1;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* a file that is cut short ends the program by its own message */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (s->thread_count < wanted &&
           pthread_create(&s->threads[s->thread_count], NULL, copy_thread, s) == 0)
        s->thread_count++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void end_threads(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->thread_count; i++)
        pthread_join(s->threads[i], NULL);
    s->thread_count = 0;
    s->stop = false;
}

/* Where the files are cold, units that ask for what comes next. */
static void read_ahead(struct staging *s)
{
    if (!__atomic_load_n(&s->cold, __ATOMIC_RELAXED))
        return;
    const uint64_t until = s->staged_bytes + AHEAD_BYTES;
    while (s->ahead.piece < s->piece_count && s->ahead_bytes < until &&
           s->advice_count < MOST_ADVICE) {
        struct cursor *c = &s->ahead;
        const struct staging_piece *p = &s->pieces[c->piece];
        if (c->source == p->source_count) {
            *c = cursor{c->piece + 1, 0, 0};
            continue;
        }
        const struct staging_source *from = &p->sources[c->source];
        const size_t left = from->rows * p->row_bytes - c->at;
        if (left == 0) {
            *c = cursor{c->piece, c->source + 1, 0};
            continue;
        }
        uint64_t bytes = left;
        if (s->ahead_bytes < s->staged_bytes) { /* this was read already */
            if (bytes > s->staged_bytes - s->ahead_bytes)
                bytes = s->staged_bytes - s->ahead_bytes;
        } else {
            if (bytes > ADVICE_BYTES)
                bytes = ADVICE_BYTES;
            s->advice[s->advice_count++] = unit{NULL, from->from + c->at, (size_t)bytes};
        }
        c->at += (size_t)bytes;
        s->ahead_bytes += bytes;
    }
}

/* ---- The device's side ---- */

static bool ok(struct staging *s, cudaError_t e, const char *what)
{
    return cuda_ok(s->fault, e, what);
}

static void close_slots(struct staging *s)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &s->slots[i];
        if (slot->stream != NULL) {
            cudaStreamSynchronize(slot->stream); /* an error was or will be told by another call */
            cudaStreamDestroy(slot->stream);
        }
        if (slot->done != NULL)
            cudaEventDestroy(slot->done);
        if (slot->host != NULL)
            cudaFreeHost(slot->host);
        cuda_memory_free(slot->device);
        *slot = {};
    }
}

static bool open_slots(struct staging *s)
{
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &s->slots[i];
        if (!ok(s, cudaStreamCreateWithFlags(&slot->stream, cudaStreamNonBlocking),
                "cudaStreamCreate") ||
            !ok(s, cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming),
                "cudaEventCreate") ||
            !ok(s, cudaMallocHost((void **)&slot->host, SLOT_BYTES), "pinned memory to load by") ||
            !cuda_memory_new(s->fault, SLOT_BYTES, "loading weights", (void **)&slot->device))
            return false;
    }
    return true;
}

static bool open_all(struct staging *s)
{
    if (s->open)
        return true;
    if (!open_slots(s)) {
        close_slots(s);
        return false;
    }
    start_threads(s);
    s->slot = 0;
    s->open = true;
    return true;
}

static void close_all(struct staging *s)
{
    if (!s->open)
        return;
    end_threads(s);
    close_slots(s);
    s->open = false;
}

/* One copy for what lies side by side and goes through the device's buffer; what is plain goes to
 * its place. */
static bool send_slot(struct staging *s, struct slot *slot)
{
    for (int i = 0; i < slot->segment_count;) {
        const struct segment *g = &slot->segments[i++];
        const struct staging_piece *p = g->piece;
        uint8_t *to = slot->device + g->offset;
        size_t bytes = g->bytes;
        if (p->layout == STAGING_PLAIN)
            to = p->to + g->row * p->device_row_bytes;
        else
            while (i < slot->segment_count && slot->segments[i].piece->layout != STAGING_PLAIN) {
                bytes = slot->segments[i].offset + slot->segments[i].bytes - g->offset;
                i++;
            }
        if (!ok(s,
                cudaMemcpyAsync(to, slot->host + g->offset, bytes, cudaMemcpyHostToDevice,
                                slot->stream),
                "copying weights"))
            return false;
    }
    return true;
}

static bool repack_slot(struct staging *s, struct slot *slot)
{
    struct cuda_launch l = {};
    l.stream = slot->stream;
    l.fault = s->fault;
    l.kernels = &s->kernels;
    for (int i = 0; i < slot->segment_count; i++) {
        const struct segment *g = &slot->segments[i];
        const struct staging_piece *p = g->piece;
        if (p->layout == STAGING_PLAIN)
            continue;
        struct staging_rows r = {};
        r.layout = p->layout;
        r.in = p->in;
        r.rows = (uint32_t)g->rows;
        r.row_bytes = (uint32_t)p->row_bytes;
        r.device_row_bytes = (uint32_t)p->device_row_bytes;
        r.from = slot->device + g->offset;
        r.to = p->to + g->row * p->device_row_bytes;
        staging_repack(&l, &r);
    }
    return !s->fault->set;
}

static bool interrupted(struct staging *s)
{
    if (s->done < HEARD_FROM || !interrupt_requested())
        return false;
    s->fault->set = true;
    error_set(&s->fault->error, "INTERRUPTED", "stopped by a signal");
    return true;
}

/* Fills the slot and sends it off; the next one is free then. */
static bool submit(struct staging *s)
{
    struct slot *slot = &s->slots[s->slot];
    if (slot->segment_count == 0)
        return true;
    read_ahead(s);
    copy_units(s);
    if (interrupted(s) || !send_slot(s, slot) || !repack_slot(s, slot) ||
        !ok(s, cudaEventRecord(slot->done, slot->stream), "cudaEventRecord") ||
        !ok(s, cudaStreamWaitEvent(s->stream, slot->done, 0), "cudaStreamWaitEvent"))
        return false;
    for (int i = 0; i < slot->segment_count; i++)
        s->done += slot->segments[i].bytes;
    if (s->progress != NULL)
        s->progress(s->context, s->done < s->total ? s->done : s->total, s->total);
    slot->segment_count = 0;
    slot->bytes = 0;
    s->slot = (s->slot + 1) % SLOTS;
    return ok(s, cudaEventSynchronize(s->slots[s->slot].done), "copying weights");
}

static void add_units(struct staging *s, uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += UNIT_BYTES) {
        const size_t left = bytes - at, most = UNIT_BYTES;
        s->units[s->unit_count++] = unit{to + at, from + at, left < most ? left : most};
    }
}

static bool copy_source(struct staging *s, const struct staging_piece *p,
                        const struct staging_source *source, size_t row)
{
    for (size_t at = 0; at < source->rows;) {
        struct slot *slot = &s->slots[s->slot];
        const size_t offset = (slot->bytes + ALIGN - 1) / ALIGN * ALIGN;
        size_t rows = offset < SLOT_BYTES ? (SLOT_BYTES - offset) / p->row_bytes : 0;
        if (rows == 0 || slot->segment_count == MOST_SEGMENTS) {
            if (!submit(s))
                return false;
            continue;
        }
        if (rows > source->rows - at)
            rows = source->rows - at;
        const size_t bytes = rows * p->row_bytes;
        slot->segments[slot->segment_count++] = segment{p, row + at, rows, offset, bytes};
        slot->bytes = offset + bytes;
        s->staged_bytes += bytes;
        add_units(s, slot->host + offset, source->from + at * p->row_bytes, bytes);
        at += rows;
    }
    return true;
}

static bool copy_pieces(struct staging *s)
{
    for (int i = 0; i < s->piece_count; i++) {
        const struct staging_piece *p = &s->pieces[i];
        size_t row = 0;
        for (int j = 0; j < p->source_count; j++) {
            if (!copy_source(s, p, &p->sources[j], row))
                return false;
            row += p->sources[j].rows;
        }
    }
    return submit(s);
}

bool staging_copy(struct staging *s, const struct staging_piece *pieces, int count)
{
    if (s->fault->set)
        return false;
    for (int i = 0; i < count; i++)
        if (pieces[i].row_bytes > SLOT_BYTES) {
            s->fault->set = true;
            return error_set(&s->fault->error, "CUDA-FAILED",
                             "a row of weights of %zu bytes is wider than %d", pieces[i].row_bytes,
                             SLOT_BYTES);
        }
    if (!open_all(s))
        return false;
    s->pieces = pieces;
    s->piece_count = count;
    s->ahead = cursor{0, 0, 0};
    s->ahead_bytes = s->staged_bytes = 0;
    if (copy_pieces(s))
        return true;
    s->unit_count = s->advice_count = 0;
    close_all(s);
    return false;
}

bool staging_finish(struct staging *s)
{
    bool all = !s->fault->set;
    for (int i = 0; i < SLOTS && s->open; i++)
        all = ok(s, cudaStreamSynchronize(s->slots[i].stream), "copying weights") && all;
    close_all(s);
    if (all && s->progress != NULL && s->done > 0)
        s->progress(s->context, s->total, s->total);
    return all;
}

void staging_progress(struct staging *s,
                      void (*progress)(void *context, uint64_t done, uint64_t total), void *context,
                      uint64_t total)
{
    s->progress = progress;
    s->context = context;
    s->total = total;
    s->done = 0;
}

uint64_t staging_device_bytes(void)
{
    return (uint64_t)SLOTS * SLOT_BYTES;
}

struct staging *staging_new(struct cuda_fault *fault, cudaStream_t stream)
{
    struct staging *s = (struct staging *)memory_alloc(sizeof *s);
    s->fault = fault;
    s->stream = stream;
    s->page = (size_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    pthread_cond_init(&s->finished, NULL);
    return s;
}

void staging_free(struct staging *s)
{
    if (s == NULL)
        return;
    close_all(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->finished);
    free(s);
}
