/* See sampler.h. */
#include "judge/quiet/sampler.h"

#include "base/arena.h"
#include "judge/quiet/processor.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Temperature and load change slowly, and sensors are dear to read; nvidia-smi is a process. */
static const double SLOW_SECONDS = 1, SMI_SECONDS = 1;
static const double SHARE_TARGET = 0.003; /* leaves room under 0.5 % */
enum { CLOCKS_READ = 4 };                 /* of the busiest processors, in each sample */

struct sampler {
    const struct quiet_system *system;
    const struct gpu *gpu;
    const struct thermometer *thermometer;
    enum quiet_device device;
    double loaded_use;
    const char *clock_source;
    bool clock_is_cpuinfo;

    struct samples samples;
    double began, slow_at, load, celsius;
    struct cpu_times times, before;
    bool has_before;
    struct buffer text;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running, stop;
    double thread_seconds, thread_began; /* of processor; of the clock */
};

struct sampler *sampler_open(const struct quiet_system *s, const struct gpu *gpu,
                             const struct thermometer *t, enum quiet_device device,
                             double loaded_use)
{
    struct sampler *p = memory_alloc(sizeof *p);
    pthread_condattr_t attributes;
    p->system = s;
    p->gpu = gpu;
    p->thermometer = t;
    p->device = device;
    p->loaded_use = loaded_use;
    p->clock_source = device == QUIET_GPU ? gpu_name(gpu) : clocks_source(s);
    p->clock_is_cpuinfo =
        device == QUIET_CPU && p->clock_source && strcmp(p->clock_source, "cpufreq") != 0;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    return p;
}

const char *sampler_clock_source(const struct sampler *s)
{
    return s->clock_source;
}

static double busy_share(const struct sampler *p, size_t i)
{
    const struct cpu_ticks *a = &p->before.each[i], *b = &p->times.each[i];
    return b->all > a->all && b->busy >= a->busy
               ? fmin(1, (double)(b->busy - a->busy) / (double)(b->all - a->all))
               : NAN;
}

/* The busiest processors since the sample before, busiest first. Returns how many. */
static size_t find_busiest(const struct sampler *p, size_t at[CLOCKS_READ],
                           double share[CLOCKS_READ])
{
    const size_t all = p->times.count < p->before.count ? p->times.count : p->before.count;
    size_t count = 0;
    for (size_t i = 0; i < all; i++) {
        const double x = busy_share(p, i);
        if (isnan(x) || (count == CLOCKS_READ && x <= share[count - 1]))
            continue;
        size_t place = count < CLOCKS_READ ? count++ : count - 1;
        for (; place > 0 && share[place - 1] < x; place--) {
            share[place] = share[place - 1];
            at[place] = at[place - 1];
        }
        share[place] = x;
        at[place] = i;
    }
    return count;
}

/* The lowest clock of those in use from loaded on; where none is, the busiest one's. */
static void read_processors(struct sampler *p, struct sample *one)
{
    size_t at[CLOCKS_READ];
    double share[CLOCKS_READ];
    if (!quiet_system_read(p->system, "/proc/stat", &p->text) ||
        !parse_stat(p->text.data, &p->times))
        return;
    const size_t count = p->has_before ? find_busiest(p, at, share) : 0;
    p->before = p->times;
    p->has_before = true;
    const char *cpuinfo = NULL;
    if (count > 0)
        one->use = share[0];
    if (!p->clock_source)
        return;
    if (p->clock_is_cpuinfo) {
        if (!quiet_system_read(p->system, "/proc/cpuinfo", &p->text))
            return;
        cpuinfo = p->text.data;
    }
    one->clock_mhz = clock_of(p->system, count > 0 ? at[0] : 0, cpuinfo);
    for (size_t i = 1; i < count && share[i] >= p->loaded_use; i++)
        one->clock_mhz = fmin(one->clock_mhz, clock_of(p->system, at[i], cpuinfo));
}

static void read_gpus(const struct sampler *p, struct sample *one)
{
    struct gpu_reading r;
    if (!gpu_read(p->gpu, &r))
        return;
    one->use = gpu_use(&r);
    one->clock_mhz = gpu_clock(&r, p->loaded_use);
    one->celsius = gpu_celsius(&r);
    one->throttle = gpu_throttle(&r);
}

void sampler_take(struct sampler *p)
{
    const double now = p->system->now(p->system->context);
    struct sample one = {now - p->began, NAN, NAN, NAN, NAN, 0};
    if (isnan(p->slow_at) || now - p->slow_at >= SLOW_SECONDS) {
        p->slow_at = now;
        p->load = load_read(p->system);
        /* A command may be as dear as it likes: it is asked by the gate, not during a phase. */
        if (p->thermometer->kind != THERMOMETER_FILES ||
            !thermometer_read(p->thermometer, &p->celsius))
            p->celsius = NAN;
    }
    one.load = p->load;
    one.celsius = p->celsius;
    if (p->device == QUIET_GPU)
        read_gpus(p, &one);
    else
        read_processors(p, &one);
    samples_add(&p->samples, &one);
}

double sampler_interval(double period, double cost)
{
    return fmax(period, cost / SHARE_TARGET);
}

static double thread_cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Until stop or the time is over; true: stop. The lock is held on both sides. */
static bool wait_for_stop(struct sampler *p, double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const double end = (double)until.tv_nsec * 1e-9 + seconds;
    until.tv_sec += (time_t)floor(end);
    until.tv_nsec = (long)((end - floor(end)) * 1e9);
    while (!p->stop)
        if (pthread_cond_timedwait(&p->wake, &p->lock, &until) != 0)
            break;
    return p->stop;
}

static void *sampler_run(void *context)
{
    struct sampler *p = context;
    const double period = p->device == QUIET_GPU && p->gpu->source == GPU_SMI
                              ? SMI_SECONDS
                              : p->system->sample_seconds;
    double interval = period;
    size_t taken = 0;
    pthread_mutex_lock(&p->lock);
    while (!wait_for_stop(p, interval)) {
        pthread_mutex_unlock(&p->lock);
        sampler_take(p);
        p->thread_seconds = thread_cpu_seconds();
        interval = sampler_interval(period, p->thread_seconds / (double)++taken);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void sampler_start(struct sampler *p)
{
    sigset_t all, old;
    p->samples.count = 0;
    p->began = p->system->now(p->system->context);
    p->slow_at = NAN;
    p->has_before = p->stop = false;
    p->thread_seconds = 0;
    sampler_take(p);
    if (p->system->sample_seconds <= 0)
        return;
    p->thread_began = p->system->now(p->system->context);
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    p->running = pthread_create(&p->thread, NULL, sampler_run, p) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void join(struct sampler *p)
{
    if (!p->running)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    p->running = false;
}

const struct samples *sampler_stop(struct sampler *p, double *share)
{
    const bool threaded = p->running;
    const double seconds = p->system->now(p->system->context) - p->thread_began;
    join(p);
    sampler_take(p);
    *share = threaded && seconds >= 1 ? p->thread_seconds / seconds : NAN;
    return &p->samples;
}

void sampler_close(struct sampler *p)
{
    if (!p)
        return;
    join(p);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    buffer_free(&p->text);
    free(p->samples.all);
    free(p);
}
