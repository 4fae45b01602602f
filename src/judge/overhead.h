/* What the judge itself adds to a decode round trip: its calls against a bare ping-pong over the
 * same pipes of the same engine, taken in turns in one run. A developer's measurement. */
#ifndef MLXFAST_JUDGE_OVERHEAD_H
#define MLXFAST_JUDGE_OVERHEAD_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct overhead_result { /* nanoseconds; arrays of p50, p99 */
    double raw[2];       /* write(2) of a ready line, read(2) of its answer */
    double timed[2];     /* what the judge's clock saw: the figure that scores */
    double whole[2];     /* the whole call with encoding, parsing and checks */
};
/* sandbox: in the engine's sandbox; error SANDBOX-UNAVAILABLE. */
bool overhead_measure(const char *engine, int64_t steps, bool sandbox, struct overhead_result *out,
                      struct error *err);
void overhead_report(const struct overhead_result *r, int64_t steps); /* a table on stdout */

#endif
