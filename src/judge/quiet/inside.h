/* What a struct quiet holds; for the files of this folder only. */
#ifndef MLXFAST_JUDGE_QUIET_INSIDE_H
#define MLXFAST_JUDGE_QUIET_INSIDE_H

#include "judge/quiet/gates.h"
#include "judge/quiet/neighbours.h"
#include "judge/quiet/processor.h"
#include "judge/quiet/sampler.h"

struct quiet {
    const struct quiet_system *system;
    struct quiet_system *owned; /* NULL: the caller's */
    struct quiet_rules rules;
    bool ranked, silent, off; /* off: by MLXFAST_LOCAL_COOL_GATE */
    struct gpu gpu;
    struct thermometer thermometer;
    struct sampler *sampler;
    struct neighbours *neighbours;
    struct work last; /* the look before: where the next window begins */
    struct own_load own;
    json_t *records;

    bool running;  /* between quiet_before and quiet_after */
    json_t *point; /* of the phase under way; owned by records */
    struct work began;
    bool counts_throttling;
    uint64_t throttle_count;
    bool throttled, contended, brief;     /* of the last phase */
    size_t brief_phases, brief_contended; /* so far */
};

/* A quiescence_look; context: the struct quiet. The window is the time since the look before. */
void quiet_look(void *context, struct quiescence *out);
bool quiet_look_celsius(void *context, double *celsius); /* a cool_look */
void quiet_say(void *context, const char *text);         /* a gate_say: one line for people */

/* Parts of a record (docs/quiet.md); new references. */
json_t *record_quiescence(const struct quiescence_result *r);
json_t *record_temperature(const struct cool_result *r, double limit, const char *reader);
struct phase {
    double seconds, others_cpu, run_delay, stolen, sampler_share; /* NAN: not known */
    const char *clock_source;                                     /* NULL: none */
};
json_t *record_telemetry(const struct telemetry *t, const struct samples *s, const struct phase *p);

#endif
