#include "arena/fetch/writer.h"

#include "base/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIRECT_LEAST = 256 * 1024, CACHED_PIECE = 8 << 20, BEHIND = 4 * CACHED_PIECE };

struct writer {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int fd, direct; /* direct: the same file, past the page cache; -1: it cannot */
    struct piece *queue[PIECE_COUNT]; /* below: under the mutex */
    size_t first, count;              /* the first is being written */
    struct digest *digest;
    bool ended;
    int why;         /* errno of the failure; 0: none */
    uint64_t length; /* then: of the file */
};

/* Through the page cache: what was written goes to the disk; what has been on its way for a while
 * is waited for and leaves the cache, where it would only take the room of other things. Errors
 * show in the fsync at the end. */
static void let_go(int fd, uint64_t at)
{
    sync_file_range(fd, (off_t)(at - CACHED_PIECE), CACHED_PIECE, SYNC_FILE_RANGE_WRITE);
    if (at < BEHIND)
        return;
    const off_t old = (off_t)(at - BEHIND);
    sync_file_range(fd, old, CACHED_PIECE,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                        SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(fd, old, CACHED_PIECE, POSIX_FADV_DONTNEED);
}

/* Returns errno, or 0; *at is where the file ends. */
static int write_piece(struct writer *w, const struct piece *piece, uint64_t *at)
{
    const uint8_t *p = piece->data;
    *at = piece->at;
    for (size_t left = piece->length; left > 0;) {
        const size_t beyond = (size_t)(*at % PIECE_ALIGN);
        const bool direct = w->direct >= 0 && beyond == 0 && left >= DIRECT_LEAST;
        size_t n = left;
        if (direct)
            n = left / PIECE_ALIGN * PIECE_ALIGN;
        else if (w->direct >= 0 && beyond != 0 && left > PIECE_ALIGN - beyond)
            n = PIECE_ALIGN - beyond; /* up to the block from which on it can */
        const ssize_t done = pwrite(direct ? w->direct : w->fd, p, n, (off_t)*at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && direct && (errno == EINVAL || errno == EOPNOTSUPP)) {
            close(w->direct);
            w->direct = -1;
            continue;
        }
        if (done <= 0)
            return done < 0 ? errno : EIO;
        p += done;
        left -= (size_t)done;
        *at += (uint64_t)done;
        if (!direct && *at / CACHED_PIECE > (*at - (uint64_t)done) / CACHED_PIECE)
            let_go(w->fd, *at / CACHED_PIECE * CACHED_PIECE);
    }
    return 0;
}

static void *run(void *argument)
{
    struct writer *w = argument;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (w->count == 0 && !w->ended)
            pthread_cond_wait(&w->changed, &w->mutex);
        if (w->count == 0)
            break;
        struct piece *piece = w->queue[w->first];
        const bool wanted = w->why == 0;
        uint64_t length = 0;
        pthread_mutex_unlock(&w->mutex);
        const int why = wanted ? write_piece(w, piece, &length) : 0;
        pthread_mutex_lock(&w->mutex);
        if (why) {
            w->why = why;
            w->length = length;
        }
        if (wanted && w->digest)
            digest_advance(w->digest, length);
        w->first = (w->first + 1) % PIECE_COUNT;
        w->count--;
        piece_let_go(piece);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* The same file under a descriptor of its own; -1 where it cannot be. */
static int open_direct(int fd, const char *path)
{
    struct stat one, other;
    const int direct = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    if (direct < 0 || (fstat(fd, &one) == 0 && fstat(direct, &other) == 0 &&
                       one.st_dev == other.st_dev && one.st_ino == other.st_ino))
        return direct;
    close(direct);
    return -1;
}

struct writer *writer_begin(int fd, const char *path)
{
    struct writer *w = memory_alloc(sizeof *w);
    w->fd = fd;
    w->direct = open_direct(fd, path);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, NULL);
    if (pthread_create(&w->thread, NULL, run, w) != 0)
        abort(); /* as when memory is out */
    return w;
}

void writer_put(struct writer *w, struct piece *piece)
{
    pthread_mutex_lock(&w->mutex);
    w->queue[(w->first + w->count++) % PIECE_COUNT] = piece; /* there are not more pieces */
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

void writer_tell(struct writer *w, struct digest *digest)
{
    pthread_mutex_lock(&w->mutex);
    w->digest = digest;
    pthread_mutex_unlock(&w->mutex);
}

bool writer_drain(struct writer *w, int *why, uint64_t *length)
{
    pthread_mutex_lock(&w->mutex);
    while (w->count > 0)
        pthread_cond_wait(&w->changed, &w->mutex);
    *why = w->why;
    *length = w->length;
    pthread_mutex_unlock(&w->mutex);
    return *why == 0;
}

bool writer_has_failed(struct writer *w)
{
    pthread_mutex_lock(&w->mutex);
    const bool failed = w->why != 0;
    pthread_mutex_unlock(&w->mutex);
    return failed;
}

void writer_end(struct writer *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->mutex);
    w->ended = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    if (w->direct >= 0)
        close(w->direct);
    free(w);
}
