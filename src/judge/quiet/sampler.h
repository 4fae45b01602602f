/* The sampler: reads clock, temperature, use and throttle bits during a phase, ten times a second
 * on a thread of its own. A machine on which a sample is dear is sampled less often, so that the
 * thread stays under SAMPLER_SHARE_MOST of a core (issue: 0.5 %). */
#ifndef MLXFAST_JUDGE_QUIET_SAMPLER_H
#define MLXFAST_JUDGE_QUIET_SAMPLER_H

#include "judge/quiet/telemetry.h"
#include "judge/quiet/thermometer.h"

struct sampler;
/* All of them must outlive the sampler. */
struct sampler *sampler_open(const struct quiet_system *s, const struct gpu *gpu,
                             const struct thermometer *t, enum quiet_device device,
                             double loaded_use);
const char *sampler_clock_source(const struct sampler *s); /* NULL: no clock can be read */
/* One sample now, another at the stop, and between them the thread's. */
void sampler_start(struct sampler *s);
void sampler_take(struct sampler *s); /* one more now; for the thread, and for tests without it */
/* Joins the thread. The samples stay the sampler's until the next start. share: of a core, what
 * the thread took; NAN for less than a second. */
const struct samples *sampler_stop(struct sampler *s, double *share);
void sampler_close(struct sampler *s); /* stops it; NULL is allowed */

/* Seconds to the next sample, from what one costs in seconds of processor. */
double sampler_interval(double period, double cost);

#endif
