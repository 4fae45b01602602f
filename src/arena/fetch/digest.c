#include "arena/fetch/digest.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/uncached.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { PIECE = 1 << 20, WRITTEN_PIECE = 8 << 20, BEHIND = 4 * WRITTEN_PIECE };

struct digest {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int fd;
    const char *path;
    void (*done)(void *);
    void *argument;
    uint64_t there, hashed, generation; /* below: under the mutex */
    bool written;                       /* by somebody else, meanwhile */
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
        n = d->written ? pread(d->fd, data, length, (off_t)offset)
                       : uncached_pread(d->fd, data, length, offset);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        error_errno(err, d->path, "cannot read it back");
    else if (n == 0) {
        error_set(err, "FILE-CHANGED", "became shorter while it was read");
        error_at(err, d->path, NULL, NULL);
    }
    return n > 0 ? (size_t)n : 0;
}

/* What was hashed up to here goes to the disk; what has been on its way for a while is waited for
 * and leaves the page cache, where it would only take the room of other things: fresh pages for
 * gigabytes cost more than the disk. Errors show in the fsync at the end. */
static void let_go(const struct digest *d, uint64_t at)
{
    sync_file_range(d->fd, (off_t)(at - WRITTEN_PIECE), WRITTEN_PIECE, SYNC_FILE_RANGE_WRITE);
    if (at < BEHIND)
        return;
    const off_t old = (off_t)(at - BEHIND);
    sync_file_range(d->fd, old, WRITTEN_PIECE,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                        SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(d->fd, old, WRITTEN_PIECE, POSIX_FADV_DONTNEED);
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
        if (d->stopped || (d->closed && at >= d->there))
            break;
        if (at >= d->there) {
            pthread_cond_wait(&d->changed, &d->mutex);
            continue;
        }
        const uint64_t left = d->there - at;
        pthread_mutex_unlock(&d->mutex);
        const size_t n = read_piece(d, data, left < PIECE ? (size_t)left : PIECE, at, err);
        sha256_update(*hash, data, n);
        at += n;
        if (d->written && at / WRITTEN_PIECE > (at - n) / WRITTEN_PIECE)
            let_go(d, at / WRITTEN_PIECE * WRITTEN_PIECE);
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
    uint8_t *data = memory_alloc(PIECE), bytes[SHA256_BYTES];
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
    const bool stopped = d->stopped;
    pthread_mutex_unlock(&d->mutex);
    if (d->done && !stopped)
        d->done(d->argument);
    return NULL;
}

struct digest *digest_begin(int fd, const char *path, bool written, void (*done)(void *),
                            void *argument)
{
    struct digest *d = memory_alloc(sizeof *d);
    d->fd = fd;
    d->path = path;
    d->written = written;
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

void digest_restart(struct digest *d)
{
    pthread_mutex_lock(&d->mutex);
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
