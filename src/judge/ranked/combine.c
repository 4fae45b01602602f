#include "judge/ranked/combine.h"

#include "base/stats.h"
#include "judge/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pair_gains combine_gains(const struct contract *c, const struct ranked_pair *p)
{
    struct pair_gains g = {.prefill = score_speedup(p->control.prefill, p->candidate.prefill),
                           .decode = score_speedup(p->control.decode, p->candidate.decode)};
    g.composite =
        score_composite(g.prefill, g.decode, c->score_prefill_weight, c->score_decode_weight);
    return g;
}

void combine_composites(const struct contract *c, const struct ranked_pair *pairs, size_t count,
                        double *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = combine_gains(c, &pairs[i]).composite;
}

/* The pair whose composite is the lower median; of equal ones the earlier. A composite that is no
 * number counts as the least. */
static size_t lower_median(const struct contract *c, const struct ranked_pair *pairs, size_t count)
{
    double *x = malloc(count * sizeof *x);
    if (x == NULL)
        abort();
    combine_composites(c, pairs, count, x);
    for (size_t i = 0; i < count; i++)
        if (isnan(x[i]))
            x[i] = -INFINITY;
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        size_t below = 0; /* rank of pair i: less, or equal and earlier */
        for (size_t j = 0; j < count; j++)
            below += x[j] < x[i] || (x[j] == x[i] && j < i);
        if (below == (count - 1) / 2)
            found = i;
    }
    free(x);
    return found;
}

static void say_floor(struct combined *out, const struct contract *c, const struct pair_gains *g)
{
    out->error = "performance floor failed";
    snprintf(out->text, sizeof out->text,
             "decode_speedup=%.6f floor=%.6f prefill_speedup=%.6f floor=%.6f", g->decode,
             c->decode_speedup_floor, g->prefill, c->prefill_speedup_floor);
}

static void check_floors(const struct contract *c, const struct pair_gains *g, struct combined *out)
{
    const bool prefill = score_clears_floor(g->prefill, c->prefill_speedup_floor);
    const bool decode = score_clears_floor(g->decode, c->decode_speedup_floor);
    if (out->error == NULL && (!prefill || !decode))
        say_floor(out, c, g);
    out->prefill_floor = out->prefill_floor && prefill;
    out->decode_floor = out->decode_floor && decode;
}

/* The fast side of the bands: a candidate far below its own control leg is not believed. */
static void check_bands(const struct contract *c, struct combined *out)
{
    const struct {
        const char *axis;
        bool enabled;
        double seconds, reference, down;
    } axes[] = {{"prefill", c->prefill_band_down_enabled, out->candidate.prefill,
                 out->control.prefill, c->prefill_band_down},
                {"decode", c->decode_band_down_enabled, out->candidate.decode, out->control.decode,
                 c->decode_band_down}};
    for (size_t i = 0; c->has_bands && i < 2 && out->error == NULL; i++) {
        if (!axes[i].enabled || score_is_believed(axes[i].seconds, axes[i].reference, axes[i].down))
            continue;
        out->error = "acceptance band failed";
        snprintf(out->text, sizeof out->text, "%s_seconds_per_token=%.9g is less than %.9g",
                 axes[i].axis, axes[i].seconds, axes[i].reference * (1 - axes[i].down));
    }
}

static double tolerance(const struct contract *c)
{
    return c->has_seed_window_tolerance ? c->seed_window_tolerance : COMBINE_SEED_WINDOW_TOLERANCE;
}

/* Seconds that work outside the clock may take, beside what is as long in the control leg. */
static double let_through(const struct contract *c, const struct ranked_pair *p)
{
    const double window = p->candidate.decode * (double)c->benchmark_decode_steps;
    return fmax(COMBINE_UNTIMED_SECONDS, COMBINE_UNTIMED_DECODE * window) * (1 + tolerance(c));
}

/* Seconds that the candidate had for itself before its decode window, beyond what is let through.
 */
static double seed_excess(const struct contract *c, const struct ranked_pair *p)
{
    const double prompt = (double)c->seed_tokens, more = tolerance(c);
    const double own = fmax(1, p->control.seed_prefill_window / p->control.prefill);
    const double seed =
        prompt * (p->candidate.seed_prefill_window - p->candidate.prefill * own * (1 + more));
    const double barrier = p->candidate.prefill_barrier - p->control.prefill_barrier;
    return fmax(0, seed) + fmax(0, barrier) - let_through(c, p);
}

/* The same behind it. */
static double barrier_excess(const struct contract *c, const struct ranked_pair *p)
{
    return p->candidate.decode_barrier - p->control.decode_barrier - let_through(c, p);
}

/* Work outside the clock: of more than half of the pairs, or of any where all count. */
static void check_untimed(const struct contract *c, const struct ranked_pair *pairs, size_t count,
                          struct combined *out)
{
    static const struct {
        double (*excess)(const struct contract *c, const struct ranked_pair *p);
        const char *error, *text;
    } rules[] = {{seed_excess, "seed window failed",
                  "in pair %d the candidate took %.6f s longer before its decode window than its "
                  "timed prefill and the control leg let expect: work of the decoding, or a "
                  "prefill that is cut short where it is timed"},
                 {barrier_excess, "decode barrier failed",
                  "in pair %d the candidate took %.6f s longer for the barrier behind its decode "
                  "window than the control leg lets expect: work of tokens that were told before"}};
    for (size_t k = 0; k < sizeof rules / sizeof *rules && out->error == NULL; k++) {
        const struct ranked_pair *worst = NULL;
        size_t over = 0;
        double most = 0;
        for (size_t i = 0; i < count; i++) {
            const double excess = rules[k].excess(c, &pairs[i]);
            over += excess > 0;
            if (excess > most) {
                most = excess;
                worst = &pairs[i];
            }
        }
        if (worst == NULL || (!c->combine_mean && 2 * over <= count))
            continue;
        out->error = rules[k].error;
        snprintf(out->text, sizeof out->text, rules[k].text, worst->number, most);
    }
}

static struct pair_times times_mean(const struct ranked_pair *pairs, size_t count, bool control)
{
    struct pair_times sum = {0};
    for (size_t i = 0; i < count; i++) {
        const struct pair_times *t = control ? &pairs[i].control : &pairs[i].candidate;
        sum.prefill += t->prefill;
        sum.decode += t->decode;
        sum.seed_prefill_window += t->seed_prefill_window;
    }
    const double n = (double)count;
    return (struct pair_times){.prefill = sum.prefill / n,
                               .decode = sum.decode / n,
                               .seed_prefill_window = sum.seed_prefill_window / n};
}

static void take_means(const struct contract *c, const struct ranked_pair *pairs, size_t count,
                       struct combined *out)
{
    const double n = (double)count;
    out->control = times_mean(pairs, count, true);
    out->candidate = times_mean(pairs, count, false);
    for (size_t i = 0; i < count; i++) {
        const struct pair_gains g = combine_gains(c, &pairs[i]);
        out->gains.prefill += g.prefill;
        out->gains.decode += g.decode;
        out->gains.composite += g.composite;
    }
    out->gains = (struct pair_gains){out->gains.prefill / n, out->gains.decode / n,
                                     out->gains.composite / n};
}

void combine_pairs(const struct contract *c, const struct ranked_pair *pairs, size_t count,
                   struct combined *out)
{
    *out = (struct combined){.prefill_floor = true, .decode_floor = true};
    out->enforced = lower_median(c, pairs, count);
    if (c->combine_mean) {
        take_means(c, pairs, count, out);
    } else {
        out->control = pairs[out->enforced].control;
        out->candidate = pairs[out->enforced].candidate;
        out->gains = combine_gains(c, &pairs[out->enforced]);
    }
    out->score = out->gains.composite;
    if (!isfinite(out->score)) {
        out->error = "score";
        snprintf(out->text, sizeof out->text, "computed score was not finite");
    }
    for (size_t i = 0; c->combine_mean && i < count; i++) {
        const struct pair_gains g = combine_gains(c, &pairs[i]);
        check_floors(c, &g, out);
    }
    if (!c->combine_mean)
        check_floors(c, &out->gains, out);
    check_bands(c, out);
    check_untimed(c, pairs, count, out);
}

static void set_real(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(isfinite(value) ? value : 0));
}

json_t *combine_seal(const struct ranked_pair *pairs, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        const struct ranked_pair *p = &pairs[i];
        json_t *o = json_object();
        json_object_set_new(o, "pair", json_integer(p->number));
        json_object_set_new(o, "prompt_sha256", json_string(p->prompt_sha256));
        set_real(o, "control_prefill_seconds_per_token", p->control.prefill);
        set_real(o, "control_decode_seconds_per_token", p->control.decode);
        set_real(o, "candidate_prefill_seconds_per_token", p->candidate.prefill);
        set_real(o, "candidate_decode_seconds_per_token", p->candidate.decode);
        set_real(o, "control_seed_prefill_window_seconds_per_token",
                 p->control.seed_prefill_window);
        set_real(o, "control_decode_window_seconds_per_token", p->control.decode);
        set_real(o, "candidate_seed_prefill_window_seconds_per_token",
                 p->candidate.seed_prefill_window);
        set_real(o, "candidate_decode_window_seconds_per_token", p->candidate.decode);
        set_real(o, "control_prefill_barrier_seconds", p->control.prefill_barrier);
        set_real(o, "control_decode_barrier_seconds", p->control.decode_barrier);
        set_real(o, "candidate_prefill_barrier_seconds", p->candidate.prefill_barrier);
        set_real(o, "candidate_decode_barrier_seconds", p->candidate.decode_barrier);
        if (p->tokens.judged) {
            const struct pair_tokens *t = &p->tokens;
            json_object_set_new(o, "token_mismatch_count", json_integer(t->mismatches));
            if (t->first_step >= 0)
                json_object_set_new(o, "token_mismatch_first_step", json_integer(t->first_step));
            json_object_set_new(o, "token_mismatch_near_tie_count", json_integer(t->near_ties));
            json_object_set_new(o, "token_mismatch_second_choice_count",
                                json_integer(t->second_choices));
            set_real(o, "token_mismatch_second_choice_max_relative_gap",
                     t->largest_second_choice_gap);
        }
        json_array_append_new(list, o);
    }
    return list;
}

struct schedule_step combine_schedule(size_t pairs, size_t nulls, size_t step)
{
    size_t proper = 0, null_done = 0;
    for (size_t k = 0;; k++) {
        /* A null pair is due once its share of the pairs before it has been measured. */
        const bool due = null_done < nulls &&
                         (proper == pairs || proper * (nulls + 1) >= (null_done + 1) * pairs);
        if (k == step)
            return (struct schedule_step){due, due ? null_done : proper};
        if (due)
            null_done++;
        else
            proper++;
    }
}
