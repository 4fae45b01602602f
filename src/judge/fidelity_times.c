/* The widths that are asked for, and how long the rounds took (dflash-track.md sections 2 and 4).
 */
#include "judge/fidelity.h"

#include <math.h>
#include <stdlib.h>

struct fidelity_schedule fidelity_schedule_begin(uint64_t seed, int minimum, int maximum)
{
    return (struct fidelity_schedule){.state = seed, .minimum = minimum, .maximum = maximum};
}

/* Steele, Lea and Flood's SplitMix64. */
uint64_t fidelity_splitmix64(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int fidelity_schedule_next(struct fidelity_schedule *s)
{
    const uint64_t span = (uint64_t)(s->maximum - s->minimum) + 1;
    return s->minimum + (int)(fidelity_splitmix64(&s->state) % span);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct fidelity_latency fidelity_latency_of(const struct fidelity_run *run, double stall_factor,
                                            struct arena *a)
{
    struct fidelity_latency out = {0};
    const size_t n = run->round_count;
    if (n == 0)
        return out;
    double *seconds = arena_array(a, n, sizeof *seconds);
    for (size_t i = 0; i < n; i++) {
        seconds[i] = run->rounds[i].seconds;
        if (!isfinite(seconds[i])) {
            out.stalled = true;
            return out;
        }
    }
    qsort(seconds, n, sizeof *seconds, by_value);
    out.median = seconds[n / 2];
    out.longest = seconds[n - 1];
    out.stalled = out.longest > stall_factor * out.median;
    return out;
}
