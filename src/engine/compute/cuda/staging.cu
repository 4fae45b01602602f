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
    FILLING = 2,            /* slots that are filled at a time, while the others are on their way */
    UNIT_BYTES = 512 << 10, /* what a thread copies at a time */
    MOST_SEGMENTS = 256,
    MOST_THREADS = 8,
    ALIGN = 256,
    AHEAD_BYTES = 128 << 20, /* of a cold file, asked for before it is needed */
    ADVICE_BYTES = 2 << 20,
    MOST_ADVICE = AHEAD_BYTES / ADVICE_BYTES, /* for one slot */
    MOST_UNITS = MOST_SEGMENTS + SLOT_BYTES / UNIT_BYTES + MOST_ADVICE,
    HEARD_FROM = 64 << 20 /* less is copied before a program could say that it was stopped */
};

/* Rows of a piece that lie in a slot. */
struct segment {
    const struct staging_piece *piece;
    size_t row, rows; /* of the piece */
    size_t offset, bytes;
};

struct unit {
    uint8_t *to; /* NULL: only asked for, to be there later */
    const uint8_t *from;
    size_t bytes;
};

/* A slot is planned, filled by the threads, sent, and free again when its event has happened. While
 * one is filled the next is planned, so that the threads always have work. */
struct slot {
    uint8_t *host, *device;
    cudaStream_t stream;
    cudaEvent_t sent;
    struct segment segments[MOST_SEGMENTS];
    int segment_count;
    size_t bytes;
    struct unit units[MOST_UNITS];
    int units_end, units_taken, units_done; /* taken and done under the lock */
};

/* Where the reading ahead has come to. */
struct cursor {
    int piece, source;
    size_t at;
};

struct staging {
    struct cuda_fault *fault;
    cudaStream_t stream;
    bool open; /* buffers and threads are there */
    unsigned kernels;
    uint64_t done, total;
    void (*progress)(void *context, uint64_t done, uint64_t total);
    void *context;

    /* Slot n % SLOTS is the n-th; those from sent to filling may be filled, that one is planned. */
    struct slot slots[SLOTS];
    uint64_t sent, filling;

    const struct staging_piece *pieces; /* of this staging_copy */
    int piece_count;
    struct cursor ahead;
    uint64_t ahead_bytes;   /* of this copy, before the cursor */
    uint64_t planned_bytes; /* of this copy */
    bool cold;              /* atomic; the last unit had to be waited for */
    size_t page;

    pthread_t threads[MOST_THREADS];
    int thread_count;
    pthread_mutex_t lock;
    pthread_cond_t work, filled;
    bool stop;
};

static struct slot *slot_of(struct staging *s, uint64_t n)
{
    return &s->slots[n % SLOTS];
}

/* ---- The host's side: threads that copy units ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void copy_unit(struct staging *s, const struct unit *u)
{
    const double slow = 1.5e-9; /* seconds a byte: a disk's, not memory's */
    if (u->to == NULL) {
        const uintptr_t begin = (uintptr_t)u->from / s->page * s->page;
        madvise((void *)begin, (uintptr_t)u->from + u->bytes - begin, MADV_WILLNEED);
        return;
    }
    const double begun = seconds_now();
    memcpy(u->to, u->from, u->bytes);
    if (u->bytes >= UNIT_BYTES / 2)
        __atomic_store_n(&s->cold, seconds_now() - begun > slow * (double)u->bytes,
                         __ATOMIC_RELAXED);
}

/* Copies one unit of the oldest slot that has any left; false when none has. Under the lock, which
 * is let go of meanwhile. */
static bool copy_next(struct staging *s)
{
    for (uint64_t n = s->sent; n < s->filling; n++) {
        struct slot *slot = slot_of(s, n);
        if (slot->units_taken == slot->units_end)
            continue;
        const struct unit u = slot->units[slot->units_taken++];
        pthread_mutex_unlock(&s->lock);
        copy_unit(s, &u);
        pthread_mutex_lock(&s->lock);
        if (++slot->units_done == slot->units_end)
            pthread_cond_signal(&s->filled);
        return true;
    }
    return false;
}

static void *copy_thread(void *argument)
{
    struct staging *s = (struct staging *)argument;
    pthread_mutex_lock(&s->lock);
    while (!s->stop)
        if (!copy_next(s))
            pthread_cond_wait(&s->work, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* The planned slot is the threads' now. */
static void hand_over(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    s->filling++;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
}

/* Until the oldest slot is filled; this thread is one of those that do. */
static void wait_filled(struct staging *s)
{
    const struct slot *slot = slot_of(s, s->sent);
    pthread_mutex_lock(&s->lock);
    while (slot->units_done < slot->units_end)
        if (!copy_next(s))
            pthread_cond_wait(&s->filled, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* What no thread has begun is left; what one has, is waited for. */
static void drop_slots(struct staging *s)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < SLOTS; i++) {
        struct slot *slot = &s->slots[i];
        slot->units_end = slot->units_taken;
        while (slot->units_done < slot->units_end)
            pthread_cond_wait(&s->filled, &s->lock);
        slot->units_end = slot->units_taken = slot->units_done = slot->segment_count = 0;
        slot->bytes = 0;
    }
    s->sent = s->filling = 0;
    pthread_mutex_unlock(&s->lock);
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
static void plan_ahead(struct staging *s, struct slot *slot)
{
    if (!__atomic_load_n(&s->cold, __ATOMIC_RELAXED))
        return;
    const uint64_t until = s->planned_bytes + AHEAD_BYTES;
    int most = MOST_ADVICE;
    while (s->ahead.piece < s->piece_count && s->ahead_bytes < until && most > 0) {
        struct cursor *c = &s->ahead;
        const struct staging_piece *p = &s->pieces[c->piece];
        if (c->source == p->source_count) {
            *c = cursor{c->piece + 1, 0, 0};
            continue;
        }
        const struct staging_source *from = &p->sources[c->source];
        uint64_t bytes = from->rows * p->row_bytes - c->at;
        if (bytes == 0) {
            *c = cursor{c->piece, c->source + 1, 0};
            continue;
        }
        const bool behind = s->ahead_bytes < s->planned_bytes; /* it is read already */
        uint64_t step = ADVICE_BYTES;
        if (behind)
            step = s->planned_bytes - s->ahead_bytes;
        if (bytes > step)
            bytes = step;
        if (!behind) {
            slot->units[slot->units_end++] = unit{NULL, from->from + c->at, (size_t)bytes};
            most--;
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
        if (slot->sent != NULL)
            cudaEventDestroy(slot->sent);
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
            !ok(s, cudaEventCreateWithFlags(&slot->sent, cudaEventDisableTiming),
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
    s->open = true;
    return true;
}

static void close_all(struct staging *s)
{
    if (!s->open)
        return;
    drop_slots(s);
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

/* Sends the oldest slot as soon as it is filled. */
static bool send_next(struct staging *s)
{
    struct slot *slot = slot_of(s, s->sent);
    wait_filled(s);
    if (interrupted(s) || !send_slot(s, slot) || !repack_slot(s, slot) ||
        !ok(s, cudaEventRecord(slot->sent, slot->stream), "cudaEventRecord") ||
        !ok(s, cudaStreamWaitEvent(s->stream, slot->sent, 0), "cudaStreamWaitEvent"))
        return false;
    for (int i = 0; i < slot->segment_count; i++)
        s->done += slot->segments[i].bytes;
    if (s->progress != NULL)
        s->progress(s->context, s->done < s->total ? s->done : s->total, s->total);
    pthread_mutex_lock(&s->lock);
    slot->units_end = slot->units_taken = slot->units_done = slot->segment_count = 0;
    slot->bytes = 0;
    s->sent++;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* Hands the planned slot over, and waits for another one to be free. */
static bool turn(struct staging *s)
{
    if (slot_of(s, s->filling)->segment_count == 0)
        return true;
    hand_over(s);
    while (s->filling - s->sent >= FILLING)
        if (!send_next(s))
            return false;
    return ok(s, cudaEventSynchronize(slot_of(s, s->filling)->sent), "copying weights");
}

static bool send_all(struct staging *s)
{
    if (!turn(s))
        return false;
    while (s->sent < s->filling)
        if (!send_next(s))
            return false;
    return true;
}

static void add_units(struct slot *slot, uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += UNIT_BYTES) {
        const size_t left = bytes - at, most = UNIT_BYTES;
        slot->units[slot->units_end++] = unit{to + at, from + at, left < most ? left : most};
    }
}

static bool copy_source(struct staging *s, const struct staging_piece *p,
                        const struct staging_source *source, size_t row)
{
    for (size_t at = 0; at < source->rows;) {
        struct slot *slot = slot_of(s, s->filling);
        const size_t offset = (slot->bytes + ALIGN - 1) / ALIGN * ALIGN;
        size_t rows = offset < SLOT_BYTES ? (SLOT_BYTES - offset) / p->row_bytes : 0;
        if (rows == 0 || slot->segment_count == MOST_SEGMENTS) {
            if (!turn(s))
                return false;
            continue;
        }
        if (rows > source->rows - at)
            rows = source->rows - at;
        const size_t bytes = rows * p->row_bytes;
        if (slot->segment_count == 0)
            plan_ahead(s, slot);
        slot->segments[slot->segment_count++] = segment{p, row + at, rows, offset, bytes};
        slot->bytes = offset + bytes;
        s->planned_bytes += bytes;
        add_units(slot, slot->host + offset, source->from + at * p->row_bytes, bytes);
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
    return send_all(s);
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
    s->ahead_bytes = s->planned_bytes = 0;
    if (copy_pieces(s))
        return true;
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
    pthread_cond_init(&s->filled, NULL);
    return s;
}

void staging_free(struct staging *s)
{
    if (s == NULL)
        return;
    close_all(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->filled);
    free(s);
}
