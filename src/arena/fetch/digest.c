#include "arena/fetch/digest.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/uncached.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20 };

struct digest {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int fd;
    const char *path;
    void (*done)(void *);
    void *argument;
    uint64_t there, hashed, generation; /* below: under the mutex; there: in the file */
    struct piece *kept[PIECE_COUNT];    /* NULL or held, not hashed yet */
    bool closed, sync, stopped, ready, failed;
    struct error err;
    char hex[SHA256_HEX];
};

/* One piece from offset on into data, at most length bytes. 0: failed. */
static size_t read_piece(struct digest *d, uint8_t *data, size_t length, uint64_t offset,
                         struct error *err)
{
    ssize_t n;
    do
        n = uncached_pread(d->fd, data, length, offset);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        error_errno(err, d->path, "cannot read it back");
    else if (n == 0) {
        error_set(err, "FILE-CHANGED", "became shorter while it was read");
        error_at(err, d->path, NULL, NULL);
    }
    return n > 0 ? (size_t)n : 0;
}

/* Takes the piece that begins there, if it is in memory; else *end comes down to where one begins.
 * Under the mutex. */
static struct piece *take_piece(struct digest *d, uint64_t at, uint64_t *end)
{
    for (size_t i = 0; i < PIECE_COUNT; i++) {
        struct piece *p = d->kept[i];
        if (p && p->at == at) {
            d->kept[i] = NULL;
            return p;
        }
        if (p && p->at < *end)
            *end = p->at;
    }
    return NULL;
}

/* Under the mutex. */
static void drop_pieces(struct digest *d)
{
    for (size_t i = 0; i < PIECE_COUNT; i++)
        if (d->kept[i]) {
            piece_let_go(d->kept[i]);
            d->kept[i] = NULL;
        }
}

/* Hashes until the writer is done, or stopped; false after a failure that no restart has undone. */
static bool follow(struct digest *d, struct sha256 **hash, uint8_t *data, struct error *err)
{
    uint64_t at = 0, generation = 0;
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        if (generation != d->generation) {
            uint8_t unused[SHA256_BYTES];
            sha256_finish(*hash, unused);
            *hash = sha256_begin();
            generation = d->generation;
            at = 0;
        }
        d->hashed = at;
        if (d->stopped)
            break;
        uint64_t end = d->there;
        struct piece *piece = take_piece(d, at, &end);
        if (!piece && at >= end) {
            if (d->closed)
                break;
            pthread_cond_wait(&d->changed, &d->mutex);
            continue;
        }
        pthread_mutex_unlock(&d->mutex);
        size_t n;
        if (piece) {
            n = piece->length;
            sha256_update(*hash, piece->data, n);
            piece_let_go(piece);
        } else {
            n = read_piece(d, data, end - at < READ_BYTES ? (size_t)(end - at) : READ_BYTES, at,
                           err);
            sha256_update(*hash, data, n);
        }
        at += n;
        pthread_mutex_lock(&d->mutex);
        if (n == 0 && generation == d->generation) {
            pthread_mutex_unlock(&d->mutex);
            return false;
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return true;
}

static void *run(void *argument)
{
    struct digest *d = argument;
    struct error err = {0};
    uint8_t *data = memory_alloc(READ_BYTES), bytes[SHA256_BYTES];
    struct sha256 *hash = sha256_begin();
    bool ok = follow(d, &hash, data, &err);
    sha256_finish(hash, bytes);
    free(data);
    pthread_mutex_lock(&d->mutex);
    const bool sync = d->sync && !d->stopped;
    pthread_mutex_unlock(&d->mutex);
    if (ok && sync && fsync(d->fd) != 0)
        ok = error_errno(&err, d->path, "cannot write to the disk");
    pthread_mutex_lock(&d->mutex);
    text_hex(d->hex, bytes, SHA256_BYTES);
    d->failed = !ok;
    d->err = err;
    d->ready = true;
    drop_pieces(d);
    const bool stopped = d->stopped;
    pthread_mutex_unlock(&d->mutex);
    if (d->done && !stopped)
        d->done(d->argument);
    return NULL;
}

struct digest *digest_begin(int fd, const char *path, void (*done)(void *), void *argument)
{
    struct digest *d = memory_alloc(sizeof *d);
    d->fd = fd;
    d->path = path;
    d->done = done;
    d->argument = argument;
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->changed, NULL);
    if (pthread_create(&d->thread, NULL, run, d) != 0)
        abort(); /* as when memory is out */
    return d;
}

void digest_advance(struct digest *d, uint64_t length)
{
    pthread_mutex_lock(&d->mutex);
    const bool waits = d->there <= d->hashed; /* else it looks again by itself */
    d->there = length;
    if (waits)
        pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->mutex);
}

void digest_hand(struct digest *d, struct piece *piece)
{
    pthread_mutex_lock(&d->mutex);
    /* Else the transfer would wait for all that lies between. */
    if (!d->ready && piece->at - d->hashed <= (uint64_t)PIECE_COUNT * PIECE_BYTES)
        for (size_t i = 0; i < PIECE_COUNT; i++)
            if (!d->kept[i]) {
                d->kept[i] = piece;
                piece_hold(piece);
                pthread_cond_signal(&d->changed);
                break;
            }
    pthread_mutex_unlock(&d->mutex);
}

void digest_restart(struct digest *d)
{
    pthread_mutex_lock(&d->mutex);
    drop_pieces(d);
    d->there = d->hashed = 0;
    d->generation++;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->mutex);
}

void digest_close(struct digest *d, bool sync)
{
    pthread_mutex_lock(&d->mutex);
    d->closed = true;
    d->sync = sync;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->mutex);
}

uint64_t digest_hashed(struct digest *d)
{
    pthread_mutex_lock(&d->mutex);
    const uint64_t hashed = d->hashed;
    pthread_mutex_unlock(&d->mutex);
    return hashed;
}

bool digest_is_ready(struct digest *d)
{
    pthread_mutex_lock(&d->mutex);
    const bool ready = d->ready;
    pthread_mutex_unlock(&d->mutex);
    return ready;
}

static void end(struct digest *d)
{
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

bool digest_take(struct digest *d, char hex[SHA256_HEX], struct error *err)
{
    pthread_join(d->thread, NULL);
    const bool ok = !d->failed;
    if (ok)
        text_copy(hex, SHA256_HEX, d->hex);
    else if (err)
        *err = d->err;
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mutex);
    free(d);
    return ok;
}

void digest_abandon(struct digest *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->mutex);
    d->stopped = true;
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->mutex);
    end(d);
}
