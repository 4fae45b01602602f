#include "judge/blocks/document.h"

#include <stdio.h>

static void set(json_t *o, const char *key, json_t *value)
{
    json_object_set_new(o, key, value);
}

/* null for a leg that was not run, as for a time that is none. Request times say nothing that is
 * scored, and could carry a prompt's bits: two figures, as every diagnostic (dflash-track.md
 * section 11). */
static void set_leg(json_t *o, const char *side, const struct blocks_leg *leg)
{
    const struct {
        const char *what;
        double value;
    } times[] = {{"seconds_per_token", leg->report.seconds_per_token},
                 {"p50_request_seconds", score_coarsen(leg->median_request)},
                 {"max_request_seconds", score_coarsen(leg->longest_request)}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s_%s", side, times[i].what);
        set(o, key, leg->measured ? json_real(times[i].value) : NULL);
        if (json_object_get(o, key) == NULL) /* not run, or not finite */
            set(o, key, json_null());
    }
}

static json_t *record(const struct blocks_attempt *t)
{
    const bool counts = t->rejection == BLOCK_REJECTION_COUNT;
    json_t *o = json_object();
    set(o, "pair", json_integer(t->pair));
    set(o, "attempt", json_integer(t->attempt));
    set(o, "order", json_string(t->control_first ? "control-first" : "candidate-first"));
    set_leg(o, "control", &t->control);
    set_leg(o, "candidate", &t->candidate);
    set(o, "accepted", json_boolean(counts));
    set(o, "rejection", counts ? json_null() : json_string(block_rejection_name(t->rejection)));
    return o;
}

json_t *blocks_pair_records(const struct blocks_runs *runs, bool null_pairs)
{
    json_t *list = json_array();
    for (size_t i = 0; i < runs->count; i++)
        if (runs->attempts[i].null_pair == null_pairs && !runs->attempts[i].unfinished)
            json_array_append_new(list, record(&runs->attempts[i]));
    return list;
}

void blocks_seal_runs(const struct blocks_runs *runs, const struct paired_rule *rule,
                      struct score_document *d)
{
    score_set_json(d, "block_pairs", blocks_pair_records(runs, false));
    score_set_json(d, "block_null_pairs", blocks_pair_records(runs, true));
    if (runs->has_statistics)
        score_set_json(d, "statistics",
                       paired_seal(&runs->estimate, &runs->null_estimate, rule, runs->stopped));
}

static double number(const struct score_document *d, const char *key)
{
    return json_number_value(json_object_get(d->metrics, key));
}

static void print_pair(const struct blocks_attempt *t)
{
    const bool counts = t->rejection == BLOCK_REJECTION_COUNT;
    const double serial = t->control.report.seconds_per_token;
    const double blocks = t->candidate.report.seconds_per_token;
    printf("%-5s%3d.%d ", t->null_pair ? "null" : "pair", t->pair, t->attempt);
    if (t->control.measured && t->candidate.measured)
        printf(" %10.3f %10.3f ms/token  %7.4f  ", serial * 1e3, blocks * 1e3, serial / blocks);
    else
        printf(" %10s %10s           %7s  ", "-", "-", "-");
    printf("%s\n", counts ? "counts" : block_rejection_name(t->rejection));
}

void blocks_print_table(const struct blocks_runs *runs, const struct score_document *d)
{
    printf("%-11s %10s %10s           %7s\n", "", "control", "candidate", "ratio");
    for (size_t i = 0; i < runs->count; i++)
        if (!runs->attempts[i].unfinished)
            print_pair(&runs->attempts[i]);
    if (runs->has_statistics && runs->accepted > 1)
        printf("ratio of the pairs %.4f, interval %.4f to %.4f\n", runs->estimate.ratio,
               runs->estimate.t_low, runs->estimate.t_high);
    if (number(d, "dflash_decode_speedup_normalized") > 0)
        printf("raw speedup %.4f / no-op %.4f = %.4f, floor %.4f\n",
               number(d, "dflash_decode_speedup_ratio_of_means"),
               number(d, "noop_reference_decode_speedup"),
               number(d, "dflash_decode_speedup_normalized"), number(d, "decode_speedup_floor"));
    if (d->passed)
        printf("PASSED, score %.4f\n", d->score);
    else
        printf("NOT PASSED: %s\n", json_string_value(json_object_get(d->metrics, "error")));
}
