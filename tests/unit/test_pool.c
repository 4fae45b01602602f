/* pool.h: every thread of a region runs once, barriers hold, sleepers wake, shutdown is clean. */
#include "base/clock.h"
#include "engine/compute/cpu/machine.h"
#include "engine/compute/cpu/pool.h"

#include <float.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 9 };

struct counting {
    struct pool *pool;
    int ran[MOST], threads;
    atomic_int total;
};

static void count_work(void *context, int thread, int threads)
{
    struct counting *c = context;
    c->ran[thread]++;
    if (thread == 0)
        c->threads = threads;
    atomic_fetch_add(&c->total, 1);
}

static void regions_run_on_the_threads_asked_for(void **state)
{
    (void)state;
    for (int threads = 1; threads <= MOST; threads += 2) {
        struct error err;
        struct counting c = {0};
        assert_true(pool_new(threads, &c.pool, &err));
        assert_int_equal(pool_threads(c.pool), threads);
        int expected[MOST] = {0}, total = 0;
        for (int round = 0; round < 300; round++) {
            const int wanted = 1 + round * 7 % (threads + 2); /* sometimes more than there are */
            const int used = wanted < threads ? wanted : threads;
            pool_run(c.pool, wanted, count_work, &c);
            assert_int_equal(c.threads, used);
            for (int t = 0; t < used; t++)
                expected[t]++;
            total += used;
            assert_memory_equal(c.ran, expected, sizeof expected);
            assert_int_equal(atomic_load(&c.total), total);
        }
        pool_free(c.pool);
    }
    pool_free(NULL);
}

struct steps {
    struct pool *pool;
    int rounds, step[MOST];
    atomic_int wrong;
};

/* After each barrier every thread must see every other at the same step. More threads than cores,
 * so that waiting ends in sleep, and thread 0 is late, so that the others fall asleep. */
static void step_work(void *context, int thread, int threads)
{
    struct steps *s = context;
    for (int i = 1; i <= s->rounds; i++) {
        if (thread == 0 && i % 50 == 0)
            for (volatile int late = 0; late < 200000; late++)
                ;
        s->step[thread] = i;
        pool_barrier(s->pool, thread);
        for (int t = 0; t < threads; t++)
            if (s->step[t] != i)
                atomic_fetch_add(&s->wrong, 1);
        pool_barrier(s->pool, thread);
    }
}

static void barriers_hold(void **state)
{
    (void)state;
    for (int threads = 1; threads <= MOST; threads++) {
        struct error err;
        struct steps s = {.rounds = 200};
        assert_true(pool_new(threads, &s.pool, &err));
        for (int region = 0; region < 3; region++) {
            memset(s.step, 0, sizeof s.step);
            pool_run(s.pool, threads, step_work, &s);
            assert_int_equal(atomic_load(&s.wrong), 0);
            for (int t = 0; t < threads; t++)
                assert_int_equal(s.step[t], s.rounds);
        }
        pool_free(s.pool);
    }
}

static void flush_work(void *context, int thread, int threads)
{
    (void)threads;
    volatile float tiny = FLT_MIN;
    ((float *)context)[thread] = tiny * 0.5f;
}

static void workers_flush_denormals(void **state)
{
    (void)state;
    struct error err;
    struct pool *p;
    assert_true(pool_new(4, &p, &err));
    const uint64_t mode = machine_float_enter();
    float results[4] = {1, 1, 1, 1};
    pool_run(p, 4, flush_work, results);
    machine_float_leave(mode);
    for (int i = 0; i < 4; i++)
        assert_true(results[i] == 0.0f);
    flush_work(results, 0, 1); /* the caller's own mode is back */
    assert_true(results[0] > 0.0f);
    pool_free(p);
}

static void automatic_count(void **state)
{
    (void)state;
    struct error err;
    struct pool *p;
    assert_true(pool_new(0, &p, &err));
    assert_in_range(pool_threads(p), 1, POOL_MAX_THREADS);
    pool_free(p);
    assert_true(pool_new(POOL_MAX_THREADS + 50, &p, &err));
    assert_int_equal(pool_threads(p), POOL_MAX_THREADS);
    pool_free(p);
}

/* Thread 1 is at it for some milliseconds, as if something else had its core. */
static void late_work(void *context, int thread, int threads)
{
    (void)context;
    (void)threads;
    const int64_t start = clock_now_ns();
    while (thread == 1 && clock_now_ns() - start < 5000000)
        machine_relax();
}

static void a_late_worker_is_left_alone_for_a_while(void **state)
{
    (void)state;
    struct error err;
    struct pool *p;
    struct counting c = {0};
    assert_true(pool_new(2, &p, &err));
    c.pool = p;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) < 2) {
        pool_free(p); /* two threads of one core always wait: no reason to stop sharing */
        skip();
    }
    /* Once is enough, unless this thread is kept away itself. */
    bool left_alone = false;
    for (int i = 0; i < 50 && !left_alone; i++) {
        pool_run(p, 2, late_work, NULL);
        left_alone = true; /* although the worker still looks for work */
        for (int j = 0; j < 2000; j++)
            left_alone = left_alone && pool_ready(p, j % 2) == 1;
    }
    assert_true(left_alone);
    pool_run(p, 2, count_work, &c); /* a region that insists is shared all the same */
    assert_int_equal(c.threads, 2);
    while (pool_ready(p, true) == 1) /* the pause ends, and the worker hears that it is wanted */
        ;
    pool_free(p);
    assert_true(pool_new(1, &p, &err));
    assert_int_equal(pool_ready(p, true), 1);
    assert_int_equal(pool_ready(p, false), 1);
    pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_run_on_the_threads_asked_for),
        cmocka_unit_test(barriers_hold),
        cmocka_unit_test(workers_flush_denormals),
        cmocka_unit_test(automatic_count),
        cmocka_unit_test(a_late_worker_is_left_alone_for_a_while),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
