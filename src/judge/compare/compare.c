#include "judge/compare/compare.h"

#include "base/child.h"
#include "base/terminal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void decline(struct compare_outcome *o, const char *kind, const struct error *err)
{
    char line[1024];
    o->declined = true;
    snprintf(o->why, sizeof o->why, "%s: %s", kind, error_line(err, line, sizeof line));
}

/* A leg that failed: its own comparison is declined, or all of them. */
static void decline_setting(struct compare_run *r, size_t setting, const struct error *err)
{
    const char *kind =
        strcmp(err->name, "TokenMismatch") == 0 ? "tokens differ" : "the engine failed";
    char text[64 + sizeof kind];
    snprintf(text, sizeof text, "%s%s", kind, setting == 0 ? " in what is compared with" : "");
    for (size_t i = 1; i < r->plan->count; i++)
        if ((setting == 0 || i == setting) && !r->outcomes[i].declined)
            decline(&r->outcomes[i], text, err);
}

static size_t pairs_most(const struct compare_plan *p)
{
    return paired_rule_is_sequential(&p->rounds.rule) ? p->rounds.rule.max_pairs
                                                      : p->rounds.rule.min_pairs;
}

static bool wants_more(const struct compare_run *r, size_t i)
{
    return !r->outcomes[i].declined && r->outcomes[i].stopped == PAIRED_MORE &&
           !rounds_is_hopeless(&r->plan->rounds, &r->outcomes[i].pairs);
}

static bool anyone_wants_more(const struct compare_run *r)
{
    for (size_t i = 1; i < r->plan->count; i++)
        if (wants_more(r, i))
            return true;
    return false;
}

/* False: the run is over. */
static bool run_leg(struct compare_run *r, size_t setting, size_t round, struct bench_times *times,
                    bool *measured, struct error *err)
{
    struct error failed = {0};
    *measured = bench_leg(r->bench, &r->plan->settings[setting], (int)round, times, &failed);
    if (*measured) {
        r->records[r->record_count++] = (struct compare_record){round, setting, *times};
        return true;
    }
    if (interrupt_is_cause(&failed)) {
        *err = failed;
        return false;
    }
    decline_setting(r, setting, &failed);
    return true;
}

/* The pairs that a round has brought. */
static void take_round(struct compare_run *r, const struct bench_times *times, const bool *measured)
{
    for (size_t i = 1; i < r->plan->count; i++) {
        struct compare_outcome *o = &r->outcomes[i];
        if (!wants_more(r, i) || !measured[0] || !measured[i])
            continue;
        const struct rounds_times control = {times[0].prefill, times[0].decode},
                                  candidate = {times[i].prefill, times[i].decode};
        rounds_add(&o->pairs, &control, &candidate,
                   r->plan->allow_contention ||
                       (bench_is_clean(&times[0]) && bench_is_clean(&times[i])));
        o->stopped = rounds_next(&r->plan->rounds, &o->pairs);
    }
}

static bool run_round(struct compare_run *r, size_t round, struct progress *p, uint64_t *legs,
                      struct error *err)
{
    size_t order[ROUNDS_SETTINGS_MOST];
    struct bench_times times[ROUNDS_SETTINGS_MOST];
    bool measured[ROUNDS_SETTINGS_MOST] = {false};
    rounds_order(r->plan->count, round - 1, order);
    for (size_t k = 0; k < r->plan->count && anyone_wants_more(r); k++) {
        const size_t s = order[k];
        if (s != 0 && !wants_more(r, s))
            continue;
        if (!run_leg(r, s, round, &times[s], &measured[s], err))
            return false;
        progress_update(p, ++*legs);
    }
    take_round(r, times, measured);
    return true;
}

/* Each setting once, not counted: pages of the weights come into memory, and what fails does so
 * before the long part. */
static bool warm_up(struct compare_run *r, struct progress *p, uint64_t *legs, struct error *err)
{
    for (size_t s = 0; s < r->plan->count && anyone_wants_more(r); s++) {
        struct bench_times times;
        bool measured;
        if (!run_leg(r, s, 0, &times, &measured, err))
            return false;
        progress_update(p, ++*legs);
    }
    return true;
}

static void conclude(struct compare_run *r)
{
    const struct compare_plan *plan = r->plan;
    for (size_t i = 1; i < plan->count; i++) {
        struct compare_outcome *o = &r->outcomes[i];
        if (o->declined)
            continue;
        o->declined = true;
        if (o->stopped == PAIRED_MORE)
            snprintf(o->why, sizeof o->why,
                     "contention: others used the machine, or it slowed itself down, in %zu of %zu "
                     "pairs; --allow-contention counts them",
                     o->pairs.set_aside, o->pairs.set_aside + o->pairs.count);
        else if (!rounds_judge(&plan->rounds, &o->pairs, &o->result))
            snprintf(o->why, sizeof o->why, "a leg has no time above 0");
        else
            o->declined = false;
    }
}

bool compare_run(struct compare_run *r, struct error *err)
{
    const struct compare_plan *plan = r->plan;
    const size_t most = 2 * pairs_most(plan) + plan->rounds.rule.min_pairs; /* rounds_is_hopeless */
    struct progress p = {.quiet = r->bench->flags->quiet};
    uint64_t legs = 0;
    r->records = memory_alloc((most + 1) * plan->count * sizeof *r->records);
    r->outcomes = memory_alloc(plan->count * sizeof *r->outcomes);
    progress_begin(&p, "compare", "legs", (pairs_most(plan) + 1) * plan->count);
    bool ok = warm_up(r, &p, &legs, err);
    while (ok && anyone_wants_more(r))
        ok = run_round(r, ++r->rounds, &p, &legs, err);
    progress_end(&p);
    for (size_t s = 0; ok && s < plan->count; s++)
        ok = bench_check_unchanged(&plan->settings[s], err);
    if (ok)
        conclude(r);
    return ok;
}

void compare_free(struct compare_run *r)
{
    free(r->records);
    free(r->outcomes);
    r->records = NULL;
    r->outcomes = NULL;
}

bool compare_is_declined(const struct compare_run *r)
{
    for (size_t i = 1; i < r->plan->count; i++)
        if (r->outcomes[i].declined)
            return true;
    return false;
}
