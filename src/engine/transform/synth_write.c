#include "engine/transform/synth_write.h"

#include "base/arena.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MOST_THREADS = 64 };

struct writing {
    const struct synth_piece *pieces;
    size_t count;
    _Atomic size_t next;
    _Atomic uint64_t done;
    _Atomic bool stop;
    pthread_mutex_t lock; /* of error */
    struct error error;
    bool failed;
};

static void write_piece(struct writing *w, const struct synth_piece *p, uint8_t *bytes)
{
    struct error err = {0};
    synth_fill(p->recipe, p->first, bytes, p->bytes);
    if (folder_write_file_at(p->file, bytes, p->bytes, p->at, &err)) {
        atomic_fetch_add(&w->done, p->bytes);
        return;
    }
    pthread_mutex_lock(&w->lock);
    if (!w->failed)
        w->error = err;
    w->failed = true;
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->stop, true);
}

static bool write_next(struct writing *w, uint8_t *bytes)
{
    const size_t i = atomic_fetch_add(&w->next, 1);
    if (i >= w->count || atomic_load(&w->stop))
        return false;
    write_piece(w, &w->pieces[i], bytes);
    return true;
}

static void *write_thread(void *argument)
{
    uint8_t *bytes = memory_alloc(SYNTH_PIECE);
    while (write_next(argument, bytes)) {
    }
    free(bytes);
    return NULL;
}

/* Threads that cannot be started are not needed. Signals are the caller's. */
static int start_threads(struct writing *w, int wanted, pthread_t *threads)
{
    int n = 0;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (n < wanted && pthread_create(&threads[n], NULL, write_thread, w) == 0)
        n++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return n;
}

bool synth_write(const struct synth_piece *pieces, size_t count, int threads,
                 struct progress *progress, struct error *err)
{
    pthread_t started[MOST_THREADS];
    struct writing w = {.pieces = pieces, .count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    const int most = threads < MOST_THREADS ? threads : MOST_THREADS;
    const int n = start_threads(&w,
                                ((size_t)most < count ? most
                                 : count > 0          ? (int)count
                                                      : 1) -
                                    1,
                                started);
    uint8_t *bytes = memory_alloc(SYNTH_PIECE);
    while (write_next(&w, bytes))
        progress_update(progress, atomic_load(&w.done));
    for (int i = 0; i < n; i++)
        pthread_join(started[i], NULL);
    free(bytes);
    if (w.failed && err)
        *err = w.error;
    return !w.failed;
}
