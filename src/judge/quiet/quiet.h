/* A quiet machine: gates before every timed phase, telemetry during it, a record of both
 * (contract-and-scoring.md section 7, dflash-track.md section 3; docs/quiet.md).
 *
 *     quiet_open -> for each phase { quiet_before -> the phase -> quiet_after } -> quiet_records
 *
 * A ranked run waits within its bounds and refuses by name; a local run reports the condition. */
#ifndef MLXFAST_JUDGE_QUIET_QUIET_H
#define MLXFAST_JUDGE_QUIET_QUIET_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

/* What the engine computes on: whose temperature, clock and use are judged. The use of a GPU that
 * can be read is judged before a phase in any case. */
enum quiet_device { QUIET_CPU, QUIET_GPU };

/* The contract's group "quiet", or the platform's defaults. */
struct quiet_rules {
    double load_max;           /* the 1-minute load without our own legs' part is below; 2.0 */
    double gpu_use_max;        /* the GPU's use is below; 0..1, 0.10 */
    double celsius_max;        /* at most: 40 mlx, 60 cuda, 60 else */
    bool temperature_required; /* a ranked run refuses without a reader; true */
    double quiescence_wait_seconds, cool_wait_seconds; /* 900 */
    double clock_floor_mhz; /* 0: none. A steady clock below it is throttling, and so is a bit */
    double window_seconds;  /* of rest before a ranked phase, over which work is seen; 2.0 */
    double
        others_cpu_max; /* processors' worth of others' work just before a phase and in it; 0.25 */
    double run_delay_max; /* threads' worth of waiting for a processor that others had; 0.1 */
    double loaded_use;    /* a telemetry sample is loaded from here on; 0.95 */
    enum quiet_device device;
    bool cool_gate; /* a local run waits for the temperature; a ranked run always does */
};
/* platform: "mlx", "cuda", or NULL (contract.h). The values above, cool_gate false. */
struct quiet_rules quiet_rules_default(const char *platform);

/* Of others_cpu_max, where run_delay_max is not declared. */
#define QUIET_RUN_DELAY 0.4

struct quiet_point {
    int pair;          /* 1 is the first; 0: a run without pairs */
    const char *leg;   /* control, candidate, null-a, null-b, calibration, ... */
    const char *phase; /* prefill, decode, block-decode */
};

struct quiet;

/* Finds the readers and says on stderr what they are, unless silent. Errors, ranked only:
 * TEMPERATURE-READER-MISSING (where required), QUIET-GATES-DISABLED (MLXFAST_LOCAL_COOL_GATE is 0;
 * locally that turns both gates off). */
bool quiet_open(const struct quiet_rules *rules, bool ranked, bool silent, struct quiet **out,
                struct error *err);

/* Waits for quiescence, then for the temperature, each within its bound; then starts the sampler.
 * The texts are copied. Errors, ranked: QUIESCENCE-TIMEOUT ("declined: contention"),
 * COOL-GATE-TIMEOUT, TEMPERATURE-READER-MISSING (it gave nothing usable); any run: Interrupted.
 * After an error the record of the point is kept, and no quiet_after is due. */
bool quiet_before(struct quiet *q, const struct quiet_point *at, struct error *err);

/* Stops the sampler and joins it. Errors, ranked: TELEMETRY-THROTTLED, TELEMETRY-MISSING. Without
 * a phase under way (it failed, or this was called before): true, nothing happens. */
bool quiet_after(struct quiet *q, struct error *err);

/* Of the last phase, for callers that reject a pair rather than fail. Contended: others, of the
 * whole machine and its host, took others_cpu_max or more while it ran, or kept the engine from a
 * processor for run_delay_max of it or more. */
bool quiet_last_was_throttled(const struct quiet *q);
bool quiet_last_was_contended(const struct quiet *q);
/* The rules themselves, of figures as they are sealed; NAN: not known, and then not judged. In a
 * brief phase a burst of a few milliseconds is contention already: of those, three or a quarter are
 * let through. */
bool quiet_is_contended(const struct quiet_rules *r, double others_cpu, double run_delay);
bool quiet_is_brief(double seconds);
bool quiet_lets_through(size_t contended, size_t brief_phases);
/* For callers that fail: quiet_after, and contention is an error as well, TELEMETRY-CONTENDED, of a
 * brief phase when no more are let through. */
bool quiet_after_alone(struct quiet *q, struct error *err);

/* metrics.gates: every point so far, in run order; a new reference. */
json_t *quiet_records(const struct quiet *q);

void quiet_close(struct quiet *q); /* NULL is allowed; ends a phase that is under way */

#endif
