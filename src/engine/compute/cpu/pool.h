/* Threads that share one computation: persistent, awake for a short while between regions, asleep
 * after. How work is cut never depends on who is faster, so results do not depend on the count. */
#ifndef MLXFAST_ENGINE_COMPUTE_CPU_POOL_H
#define MLXFAST_ENGINE_COMPUTE_CPU_POOL_H

#include "base/error.h"

#include <stdbool.h>

enum { POOL_MAX_THREADS = 256 };

struct pool;

/* A region's work: thread is 0 .. threads-1, 0 being the caller. */
typedef void pool_work(void *context, int thread, int threads);

/* threads 0: one per core this process may use (memory/cores.h). More than POOL_MAX_THREADS are cut
 * to it. More than there are cores work too: they wait less and sleep sooner. Where there are
 * several memory nodes, workers are kept on one each, in turn, so that the memory that they touch
 * first stays near. Workers run with denormals as zero and take no signals. Error OUT-OF-MEMORY (a
 * thread cannot start). */
bool pool_new(int threads, struct pool **out, struct error *err);
void pool_free(struct pool *p);
int pool_choose_threads(int threads); /* what pool_new makes of it */
int pool_threads(const struct pool *p);

/* Runs work on the first `threads` threads (1: the caller alone, no hand-over) and returns when all
 * are done; what they wrote is then seen by the caller. One region at a time. */
void pool_run(struct pool *p, int threads, pool_work *work, void *context);
/* How many threads would start on a region at once: those that still look for work. wake: the
 * others are woken, for the regions after this one; to wait for it could take longer than the
 * region. Only the caller for a while after a region in which it mostly waited, and after it was
 * kept off its core: then something else wants the cores, and a shared region takes as long as the
 * slowest of its threads is kept away. Where there are more threads than cores none of this is
 * news: all of them with wake, else the caller. */
int pool_ready(struct pool *p, bool wake);
/* Inside a region: returns when every thread of the region is here; writes before it are seen by
 * all after it. */
void pool_barrier(struct pool *p, int thread);

#endif
