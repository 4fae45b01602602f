#include "judge/explain_quiet.h"

#include <inttypes.h>

void explain_quiet(const struct page *p, const struct contract *c)
{
    const struct quiet_rules *q = &c->quiet;
    page_heading(p, 2, "The machine");
    page_item(
        p,
        "Before each timed phase of a ranked run the machine must be quiet%s: others' part of "
        "the 1-minute load below %.6g, their work just before below %.6g of a processor, the "
        "GPU's use below %.6g. After %.6g s: `QUIESCENCE-TIMEOUT`, declined: contention.",
        c->has_quiet ? "" : " (`quiet` is not declared: these are the platform's values)",
        q->load_max, q->others_cpu_max, q->gpu_use_max, q->quiescence_wait_seconds);
    page_item(p,
              "Then it must be cool: the %s at %.6g C at most, within %.6g s and without standing "
              "still above it: `COOL-GATE-TIMEOUT`. Without a reader of the temperature %s.",
              q->device == QUIET_GPU ? "GPU" : "processor", q->celsius_max, q->cool_wait_seconds,
              q->temperature_required ? "the run is refused, `TEMPERATURE-READER-MISSING`"
                                      : "the gate is skipped, and the seal says so");
    page_item(
        p,
        "Others' work in the phase itself stays below as much, and an engine that waits for a "
        "processor, for %.6g of the phase or more, does not wait for theirs: "
        "`TELEMETRY-CONTENDED`. Of phases below 0.2 s three or a quarter are let through.",
        q->run_delay_max);
    if (c->rewarm_runs > 0)
        page_item(p,
                  "Between the gates and the clock the engine is warmed by %" PRId64
                  " run%s of other tokens than the phase's, not judged; before a decode whose seed "
                  "it knows already, by none.",
                  c->rewarm_runs, c->rewarm_runs == 1 ? "" : "s");
    if (q->clock_floor_mhz > 0)
        page_item(p,
                  "A clock below %.6g MHz in two loaded samples running (use from %.6g on), or a "
                  "throttle bit, fails the phase: `TELEMETRY-THROTTLED`.",
                  q->clock_floor_mhz, q->loaded_use);
    else
        page_item(p, "A throttle bit during a phase fails it: `TELEMETRY-THROTTLED`. No floor of "
                     "the clock is declared.");
    if (q->clock_floor_mhz > 0 || q->device == QUIET_GPU)
        page_item(p, "A phase of 2 s or more in which no steady clock was read fails: "
                     "`TELEMETRY-MISSING`.");
    page_item(p, "What was found is sealed point by point in `metrics.gates`. A local run is never "
                 "refused for it.");
}
