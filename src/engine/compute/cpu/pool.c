#include "engine/compute/cpu/pool.h"
#include "base/clock.h"
#include "engine/compute/cpu/machine.h"
#include "engine/memory/cores.h"
#include "engine/memory/nodes.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Looks at a word before sleeping: a hundred microseconds or two, the gap between two decode steps;
 * few when there are more threads than cores, where the one waited for may need this core. */
enum { SPIN_LOOKS = 4000, SPIN_LOOKS_CROWDED = 50, LINE = 64 };

/* How long the caller goes on alone after a region in which it mostly waited: a worker whose core
 * something else wants is away for milliseconds at a time. Doubled while that goes on. */
static const int64_t first_pause = 100000000, longest_pause = 3200000000;
/* The same after the caller itself was kept off its core for a tenth of some milliseconds. */
static const int64_t pushed_pause = 100000000, look_every = 10000000;

/* A word that one side changes and the other waits on. */
struct gate {
    _Alignas(LINE) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
};

struct worker {
    struct gate start; /* one more for each region that this worker takes part in */
    struct pool *pool;
    pthread_t thread;
    int index;
    _Atomic bool awake; /* looking for work, or working */
};

struct pool {
    struct gate done;    /* workers still in the region */
    struct gate barrier; /* how many barriers have opened */
    _Alignas(LINE) _Atomic uint32_t arrived;
    _Alignas(LINE) pool_work *work; /* NULL: stop */
    void *context;
    int active; /* threads of the region */
    int threads, spin;
    struct worker *workers; /* [threads - 1] */
    /* The caller's: nanoseconds asleep in this region; when it may share regions again (0: at any
     * time), and the last pause. */
    int64_t waited, alone_until, pause;
    int64_t looked, ran; /* when its times were looked at; its processor time then */
    long pushed, slept;  /* and its switches, against its will and not */
};

static void gate_sleep(struct gate *g, uint32_t seen)
{
    atomic_fetch_add(&g->sleepers, 1);
    if (atomic_load(&g->word) == seen)
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

/* Waits until the word is no longer `seen`; returns what it is. */
static uint32_t gate_wait(struct gate *g, uint32_t seen, int spin)
{
    for (int i = 0; i < spin; i++) {
        const uint32_t now = atomic_load_explicit(&g->word, memory_order_acquire);
        if (now != seen)
            return now;
        machine_relax();
    }
    for (;;) {
        const uint32_t now = atomic_load(&g->word);
        if (now != seen)
            return now;
        gate_sleep(g, seen);
    }
}

/* After a change of the word (sequentially consistent, so that a sleeper is seen here or sees the
 * change there). */
static void gate_wake(struct gate *g)
{
    if (atomic_load(&g->sleepers) != 0)
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* The caller's waiting, with the time that it slept taken down. */
static uint32_t caller_wait(struct pool *p, struct gate *g, uint32_t seen)
{
    for (int i = 0; i < p->spin; i++) {
        const uint32_t now = atomic_load_explicit(&g->word, memory_order_acquire);
        if (now != seen)
            return now;
        machine_relax();
    }
    const int64_t start = clock_now_ns();
    const uint32_t now = gate_wait(g, seen, 0);
    p->waited += clock_now_ns() - start;
    return now;
}

/* Woken without work (pool_ready), it looks for some as long as after a region. */
static uint32_t worker_wait(struct worker *w, uint32_t seen)
{
    struct gate *g = &w->start;
    for (;;) {
        for (int i = 0; i < w->pool->spin; i++) {
            const uint32_t now = atomic_load_explicit(&g->word, memory_order_acquire);
            if (now != seen)
                return now;
            machine_relax();
        }
        atomic_store_explicit(&w->awake, false, memory_order_relaxed);
        gate_sleep(g, seen);
        atomic_store_explicit(&w->awake, true, memory_order_relaxed);
    }
}

static void *worker_main(void *argument)
{
    struct worker *w = argument;
    struct pool *p = w->pool;
    machine_float_enter();
    nodes_settle(w->index);
    for (uint32_t seen = 0;;) {
        seen = worker_wait(w, seen);
        if (p->work == NULL)
            return NULL;
        p->work(p->context, w->index, p->active);
        if (atomic_fetch_sub(&p->done.word, 1) == 1)
            gate_wake(&p->done);
    }
}

int pool_choose_threads(int threads)
{
    if (threads <= 0)
        threads = cores_allowed();
    return threads < POOL_MAX_THREADS ? threads : POOL_MAX_THREADS;
}

static bool start_worker(struct worker *w)
{
    /* Signals are for the program's own thread, but a mapped file that was cut short is met where
     * it is read. */
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int failed = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return failed == 0;
}

bool pool_new(int threads, struct pool **out, struct error *err)
{
    *out = NULL;
    threads = pool_choose_threads(threads);
    struct pool *p = aligned_alloc(LINE, sizeof *p);
    struct worker *workers = aligned_alloc(LINE, sizeof *workers * (size_t)threads);
    if (p == NULL || workers == NULL) {
        free(p);
        free(workers);
        return error_set(err, "OUT-OF-MEMORY", "no memory for %d threads", threads);
    }
    memset(p, 0, sizeof *p);
    memset(workers, 0, sizeof *workers * (size_t)threads);
    p->workers = workers;
    p->threads = 1;
    p->spin = threads <= cores_allowed() ? SPIN_LOOKS : SPIN_LOOKS_CROWDED;
    for (int i = 1; i < threads; i++) {
        struct worker *w = &workers[i - 1];
        w->pool = p;
        w->index = i;
        if (!start_worker(w)) {
            pool_free(p);
            return error_set(err, "OUT-OF-MEMORY", "cannot start thread %d of %d", i + 1, threads);
        }
        p->threads = i + 1;
    }
    *out = p;
    return true;
}

static void wake_workers(struct pool *p, int threads)
{
    for (int i = 1; i < threads; i++) {
        atomic_fetch_add(&p->workers[i - 1].start.word, 1);
        gate_wake(&p->workers[i - 1].start);
    }
}

void pool_free(struct pool *p)
{
    if (p == NULL)
        return;
    p->work = NULL;
    wake_workers(p, p->threads);
    for (int i = 1; i < p->threads; i++)
        pthread_join(p->workers[i - 1].thread, NULL);
    free(p->workers);
    free(p);
}

int pool_threads(const struct pool *p)
{
    return p->threads;
}

/* Where the caller has to share its core, a worker has to as well. Some switches are nothing: what
 * counts is the time that they took; a caller that slept (for a request, for a worker) tells
 * nothing. */
static void look_for_others(struct pool *p, int64_t now)
{
    struct rusage u;
    const int64_t since = now - p->looked;
    if (p->spin != SPIN_LOOKS || since < look_every || getrusage(RUSAGE_THREAD, &u) != 0)
        return;
    const int64_t ran = 1000 * (1000000 * ((int64_t)u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                                u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    const bool pushed = p->looked != 0 && u.ru_nivcsw != p->pushed && u.ru_nvcsw == p->slept &&
                        10 * (since - (ran - p->ran)) > since;
    p->looked = now;
    p->ran = ran;
    p->pushed = u.ru_nivcsw;
    p->slept = u.ru_nvcsw;
    if (pushed && p->alone_until < now + pushed_pause)
        p->alone_until = now + pushed_pause;
}

int pool_ready(struct pool *p, bool wake)
{
    if (p->spin != SPIN_LOOKS)
        return wake ? p->threads : 1;
    const int64_t now = clock_now_ns();
    look_for_others(p, now);
    if (now < p->alone_until)
        return 1;
    int n = 1;
    while (n < p->threads && atomic_load_explicit(&p->workers[n - 1].awake, memory_order_relaxed))
        n++;
    for (int i = n; wake && i < p->threads; i++)
        gate_wake(&p->workers[i - 1].start);
    return n;
}

/* After a region: was it spent in waiting for a worker that had no core? Where there are more
 * threads than cores that is no news. */
static void judge_region(struct pool *p, int64_t start)
{
    const int64_t now = clock_now_ns();
    if (p->spin != SPIN_LOOKS || 2 * p->waited < now - start)
        return;
    const bool again = p->pause > 0 && now - p->alone_until < p->pause;
    p->pause = !again ? first_pause : p->pause < longest_pause ? 2 * p->pause : longest_pause;
    p->alone_until = now + p->pause;
}

void pool_run(struct pool *p, int threads, pool_work *work, void *context)
{
    if (threads > p->threads)
        threads = p->threads;
    p->active = threads;
    if (threads <= 1) {
        p->active = 1;
        work(context, 0, 1);
        return;
    }
    p->work = work;
    p->context = context;
    p->waited = 0;
    const int64_t start = clock_now_ns();
    atomic_store(&p->done.word, (uint32_t)(threads - 1));
    wake_workers(p, threads);
    work(context, 0, threads);
    for (;;) {
        const uint32_t left = atomic_load_explicit(&p->done.word, memory_order_acquire);
        if (left == 0)
            break;
        caller_wait(p, &p->done, left);
    }
    if (p->waited > 0)
        judge_region(p, start);
}

void pool_barrier(struct pool *p, int thread)
{
    if (p->active <= 1)
        return;
    const uint32_t seen = atomic_load_explicit(&p->barrier.word, memory_order_relaxed);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == (uint32_t)p->active) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&p->barrier.word, 1);
        gate_wake(&p->barrier);
        return;
    }
    if (thread == 0)
        caller_wait(p, &p->barrier, seen);
    else
        gate_wait(&p->barrier, seen, p->spin);
}
