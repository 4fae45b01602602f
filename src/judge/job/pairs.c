#include "judge/job/pairs.h"

#include <stdlib.h>
#include <string.h>

static bool is_listed(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* The quiet gates and telemetry, and the signal: nobody's engine is at fault. */
static bool is_machine(const char *name)
{
    static const char *const names[] = {
        "QUIESCENCE-TIMEOUT",   "COOL-GATE-TIMEOUT", "TEMPERATURE-READER-MISSING",
        "TELEMETRY-THROTTLED",  "TELEMETRY-MISSING", "TELEMETRY-CONTENDED",
        "QUIET-GATES-DISABLED", "Interrupted",       "INTERRUPTED",
        "SANDBOX-UNAVAILABLE",
    };
    return is_listed(names, sizeof names / sizeof *names, name);
}

bool job_may_retry(const char *name)
{
    static const char *const names[] = {"SPAWN-FAILED",      "Io",
                                        "HelloTimeout",      "ReplyTimeout",
                                        "BarrierTimeout",    "RunTimeout",
                                        "EngineExited",      "TELEMETRY-THROTTLED",
                                        "TELEMETRY-MISSING", "TELEMETRY-CONTENDED"};
    return is_listed(names, sizeof names / sizeof *names, name);
}

struct job_times job_pair_times(const struct job_pair *p)
{
    return (struct job_times){.serial = p->serial.decode_seconds_per_token,
                              .candidate = p->candidate.decode_seconds_per_token,
                              .serial_prefill = p->serial.windows.prefill,
                              .candidate_prefill = p->candidate.windows.prefill,
                              .serial_decode = p->serial.windows.decode,
                              .candidate_decode = p->candidate.windows.decode};
}

static void release_leg(struct job_leg *l)
{
    json_decref(l->cohort);
    l->cohort = NULL;
}

static bool run_leg(const struct job_pairs_plan *p, size_t unit, size_t pair, enum job_role role,
                    struct job_leg *out, struct error *err)
{
    for (int attempt = 1;; attempt++) {
        release_leg(out);
        *out = (struct job_leg){0};
        if (p->run_leg(p->context, unit, pair, role, out, err))
            return true;
        if (attempt == JOB_LEG_ATTEMPTS || !job_may_retry(err->name))
            return false;
    }
}

/* Both legs, in their order; *role is whose leg failed. */
static bool run_pair(const struct job_pairs_plan *p, size_t pair, struct job_pair *out,
                     enum job_role *role, struct error *err)
{
    const enum job_role order[] = {out->serial_first ? JOB_SERIAL : JOB_CANDIDATE,
                                   out->serial_first ? JOB_CANDIDATE : JOB_SERIAL};
    *role = JOB_CANDIDATE;
    if (p->before_pair != NULL && !p->before_pair(p->context, out->unit, pair, err))
        return false;
    for (int i = 0; i < 2; i++) {
        struct job_leg *leg = order[i] == JOB_SERIAL ? &out->serial : &out->candidate;
        *role = order[i];
        if (!run_leg(p, out->unit, pair, order[i], leg, err))
            return false;
    }
    if (!p->certify_windows)
        return true;
    *role = JOB_SERIAL;
    if (!job_windows_certify(&out->serial.windows, err))
        return false;
    *role = JOB_CANDIDATE;
    out->certified = job_windows_certify(&out->candidate.windows, err);
    return out->certified;
}

static void accept(struct job_pairs *all, const struct job_pair *pair)
{
    if (all->accepted_count == all->accepted_room) {
        all->accepted_room = all->accepted_room > 0 ? all->accepted_room * 2 : 16;
        all->accepted = memory_realloc(all->accepted, all->accepted_room * sizeof *all->accepted);
    }
    all->accepted[all->accepted_count++] = *pair;
}

static void reject(struct job_pairs *all, struct arena *a, const struct job_pair *pair,
                   enum job_role role, const struct error *err)
{
    if (all->rejected_count == all->rejected_room) {
        all->rejected_room = all->rejected_room > 0 ? all->rejected_room * 2 : 16;
        all->rejected = memory_realloc(all->rejected, all->rejected_room * sizeof *all->rejected);
    }
    const bool window = strncmp(err->name, "PREFILL-WINDOW-", 15) == 0;
    all->rejected[all->rejected_count++] = (struct job_rejection){
        .unit = pair->unit,
        .serial_first = pair->serial_first,
        .role = role,
        .class = arena_strdup(a, window ? "prefill-window-uncertified" : err->name),
        .text = arena_printf(a, "%s: %s", err->name, err->message)};
}

static enum job_end run_unit(const struct job_pairs_plan *p, size_t unit, struct arena *a,
                             struct job_pairs *all, struct error *err)
{
    const size_t most = p->local_dev ? p->target_pairs * JOB_LOCAL_PAIR_BUDGET : p->target_pairs;
    size_t accepted = 0;
    for (size_t tried = 0; tried < most && accepted < p->target_pairs; tried++) {
        struct job_pair pair = {.unit = unit, .serial_first = tried % 2 == 0};
        enum job_role role;
        if (run_pair(p, tried, &pair, &role, err)) {
            accept(all, &pair);
            accepted++;
            continue;
        }
        release_leg(&pair.serial);
        release_leg(&pair.candidate);
        if (strcmp(err->name, "TIMED-REPLAY-FAILED") == 0)
            role = JOB_SERIAL; /* the reference is the baseline's */
        reject(all, a, &pair, role, err);
        if (is_machine(err->name))
            return JOB_END_MACHINE;
        if (!p->local_dev)
            return role == JOB_SERIAL ? JOB_END_BASELINE : JOB_END_CANDIDATE;
    }
    if (accepted >= p->min_pairs)
        return JOB_END_DONE;
    const struct job_rejection *last = &all->rejected[all->rejected_count - 1];
    error_set(err, "PAIRS-TOO-FEW", "%zu of %zu pairs were accepted, %zu are needed; the last: %s",
              accepted, most, p->min_pairs, last->text);
    return last->role == JOB_SERIAL ? JOB_END_BASELINE : JOB_END_CANDIDATE;
}

enum job_end job_pairs_run(const struct job_pairs_plan *p, struct arena *a, struct job_pairs *out,
                           struct error *err)
{
    *out = (struct job_pairs){0};
    for (size_t unit = 0; unit < p->units; unit++) {
        const enum job_end end = run_unit(p, unit, a, out, err);
        if (end != JOB_END_DONE)
            return end;
    }
    return JOB_END_DONE;
}

void job_pairs_free(struct job_pairs *p)
{
    for (size_t i = 0; i < p->accepted_count; i++) {
        release_leg(&p->accepted[i].serial);
        release_leg(&p->accepted[i].candidate);
    }
    free(p->accepted);
    free(p->rejected);
    *p = (struct job_pairs){0};
}
