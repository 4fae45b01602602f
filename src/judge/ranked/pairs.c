#include "judge/ranked/pairs.h"

#include "base/buffer.h"

#include <string.h>

const char *ranked_role_name(enum ranked_role role)
{
    static const char *const names[] = {[RANKED_CONTROL] = "control",
                                        [RANKED_CANDIDATE] = "candidate",
                                        [RANKED_NULL_A] = "null-a",
                                        [RANKED_NULL_B] = "null-b"};
    return names[role];
}

struct loop {
    const char *const *prompt_sha256;
    size_t goldens;
    ranked_measure *measure;
    void *context;
    bool alternate;
    size_t done, planned; /* legs */
    struct ranked_runs *out;
};

static bool run_leg(struct loop *l, struct ranked_slot *slot, enum ranked_role role,
                    struct pair_times *out, struct error *err)
{
    slot->role = role;
    slot->done = l->done++;
    return l->measure(l->context, slot, out, err);
}

/* Both legs of one pair, in its order. */
static bool run_legs(struct loop *l, bool null_pair, size_t index, struct ranked_pair *out,
                     struct error *err)
{
    struct ranked_slot slot = {
        .pair = (int)index + 1, .golden = index % l->goldens, .planned = l->planned};
    const enum ranked_role a = null_pair ? RANKED_NULL_A : RANKED_CONTROL;
    const enum ranked_role b = null_pair ? RANKED_NULL_B : RANKED_CANDIDATE;
    *out = (struct ranked_pair){.number = slot.pair, .golden = slot.golden};
    text_copy(out->prompt_sha256, sizeof out->prompt_sha256, l->prompt_sha256[slot.golden]);
    if (l->alternate && index % 2 == 1)
        return run_leg(l, &slot, b, &out->candidate, err) &&
               run_leg(l, &slot, a, &out->control, err);
    return run_leg(l, &slot, a, &out->control, err) && run_leg(l, &slot, b, &out->candidate, err);
}

/* The same, until nobody was at work beside it. */
static bool run_pair(struct loop *l, bool null_pair, size_t index, struct ranked_pair *out,
                     struct error *err)
{
    struct ranked_runs *runs = l->out;
    const size_t begun = l->done;
    while (!run_legs(l, null_pair, index, out, err)) {
        if (strcmp(err->name, "TELEMETRY-CONTENDED") != 0 ||
            runs->set_aside >= RANKED_SET_ASIDE_MOST(l->planned / 2))
            return false;
        runs->set_aside++;
        l->done = begun;
        *err = (struct error){0};
    }
    return true;
}

/* The estimate of pairs: the composite is a ratio already, control against candidate. */
static bool estimate(const struct contract *c, const struct paired_rule *rule,
                     const struct ranked_pair *pairs, size_t count, struct arena *a,
                     struct paired_estimate *out, double **composites, double **ones)
{
    *composites = arena_array(a, count, sizeof(double));
    *ones = arena_array(a, count, sizeof(double));
    combine_composites(c, pairs, count, *composites);
    for (size_t i = 0; i < count; i++)
        (*ones)[i] = 1;
    return paired_estimate(*composites, *ones, count, paired_rule_confidence(rule),
                           PAIRED_BOOTSTRAP_SEED, out);
}

static enum paired_next look(const struct contract *c, const struct paired_rule *rule,
                             struct arena *a, struct ranked_runs *out)
{
    double *composites, *ones;
    out->has_statistics =
        estimate(c, rule, out->pairs, out->count, a, &out->estimate, &composites, &ones);
    if (out->null_count > 0) {
        double *x, *y;
        estimate(c, rule, out->nulls, out->null_count, a, &out->null_estimate, &x, &y);
    }
    if (!out->has_statistics) /* a time that has no logarithm: more of them help nobody */
        return PAIRED_BOUND_REACHED;
    return paired_next(rule, composites, ones, out->count);
}

bool ranked_pairs_run(const struct contract *c, const struct paired_rule *rule,
                      const char *const *prompt_sha256, size_t goldens, ranked_measure *measure,
                      void *context, struct arena *a, struct ranked_runs *out, struct error *err)
{
    const size_t least = rule->min_pairs;
    const size_t most = rule->max_pairs > least ? rule->max_pairs : least;
    struct loop l = {.prompt_sha256 = prompt_sha256,
                     .goldens = goldens,
                     .measure = measure,
                     .context = context,
                     .alternate = c->alternate_pairs,
                     .planned = 2 * (least + rule->null_pairs),
                     .out = out};
    *out = (struct ranked_runs){
        .pairs = arena_array(a, most, sizeof *out->pairs),
        .nulls = arena_array(a, rule->null_pairs > 0 ? rule->null_pairs : 1, sizeof *out->nulls)};
    for (size_t k = 0; k < least + rule->null_pairs; k++) {
        const struct schedule_step s = combine_schedule(least, rule->null_pairs, k);
        struct ranked_pair *p = s.null_pair ? &out->nulls[s.index] : &out->pairs[s.index];
        if (!run_pair(&l, s.null_pair, s.index, p, err))
            return false;
        *(s.null_pair ? &out->null_count : &out->count) += 1;
    }
    while ((out->stopped = look(c, rule, a, out)) == PAIRED_MORE) {
        if (out->count + goldens > most) {
            out->stopped = PAIRED_BOUND_REACHED;
            break;
        }
        l.planned += 2 * goldens;
        for (size_t i = 0; i < goldens; i++) {
            if (!run_pair(&l, false, out->count, &out->pairs[out->count], err))
                return false;
            out->count++;
        }
    }
    return true;
}
