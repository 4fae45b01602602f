/* Pairs, their intervals, and noise. */
#include "judge/page/parts.h"

#include "judge/page/pairs.h"
#include "judge/page/units.h"

#include "base/stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *pair_name(struct arena *a, const struct report_pair *p)
{
    return arena_printf(a, "%" PRId64, p->number);
}

/* One axis of the legs: points per pair, control and candidate. */
static void legs_chart(struct sheet *s, const struct report_pairs *pairs, bool decode,
                       const char *const names[2], const char *caption)
{
    double largest = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        const struct report_pair *p = &pairs->items[i];
        if (!p->counts)
            continue;
        largest = fmax(largest, decode ? fmax(p->control_decode, p->candidate_decode)
                                       : fmax(p->control_prefill, p->candidate_prefill));
    }
    if (!(largest > 0))
        return;
    const struct unit unit = unit_of_seconds(largest);
    const char *y = arena_printf(&s->arena, "%s per token", unit.name);
    json_t *chart = sheet_chart_new("lines", "pair", y);
    for (int leg = 0; leg < 2; leg++) {
        json_t *series = sheet_chart_series(s, chart, names[leg]);
        for (size_t i = 0; i < pairs->count; i++) {
            const struct report_pair *p = &pairs->items[i];
            if (!p->counts)
                continue;
            const double value = decode ? (leg ? p->candidate_decode : p->control_decode)
                                        : (leg ? p->candidate_prefill : p->control_prefill);
            sheet_push(series, "x", (double)p->number);
            sheet_push(series, "y", value * unit.factor);
        }
    }
    json_object_set_new(chart, "whole", json_true());
    sheet_chart(s, caption, chart);
}

static void ratio_series(struct sheet *s, json_t *chart, const struct report_pairs *pairs,
                         const char *name, int which)
{
    json_t *series = sheet_chart_series(s, chart, name);
    for (size_t i = 0; i < pairs->count; i++) {
        const struct report_pair *p = &pairs->items[i];
        if (!p->counts)
            continue;
        sheet_push(series, "x", (double)p->number);
        sheet_push(series, "y",
                   which == 0   ? p->prefill_ratio
                   : which == 1 ? p->decode_ratio
                                : p->composite);
    }
}

static void ratio_chart(struct sheet *s, const json_t *m, const struct report_pairs *pairs,
                        bool composite, const char *caption)
{
    json_t *chart = sheet_chart_new("lines", "pair", "control / candidate");
    if (!pairs->blocks)
        ratio_series(s, chart, pairs, "prefill", 0);
    ratio_series(s, chart, pairs, "decode", 1);
    if (composite)
        ratio_series(s, chart, pairs, "composite", 2);
    sheet_chart_mark(chart, "1.0", 1);
    const double floor = source_real(m, "decode_speedup_floor");
    if (floor > 0)
        sheet_chart_mark(chart, "decode floor", floor);
    json_object_set_new(chart, "whole", json_true());
    sheet_chart(s, caption, chart);
}

/* Every attempt, those that were rejected too. */
static void attempts_table(struct sheet *s, const struct report_pairs *pairs, const char *caption,
                           const char *const names[2])
{
    struct arena *a = &s->arena;
    const char *const heads[] = {"pair",
                                 "attempt",
                                 "order",
                                 arena_printf(a, "%s, per token", names[0]),
                                 arena_printf(a, "%s, per token", names[1]),
                                 "ratio",
                                 "counts"};
    sheet_table(s, SHEET_BOTH, caption, 7, heads);
    for (size_t i = 0; i < pairs->count; i++) {
        const struct report_pair *p = &pairs->items[i];
        sheet_row(s, pair_name(a, p), arena_printf(a, "%" PRId64, p->attempt), p->order,
                  unit_seconds(a, p->control_decode), unit_seconds(a, p->candidate_decode),
                  unit_ratio(a, p->decode_ratio),
                  p->counts ? "yes" : arena_printf(a, "no: %s", p->rejection));
    }
}

static void pairs_table(struct sheet *s, const struct report_pairs *pairs, const char *caption,
                        const char *const names[2])
{
    struct arena *a = &s->arena;
    if (pairs->blocks) {
        attempts_table(s, pairs, caption, names);
        return;
    }
    const char *const heads[] = {"pair",
                                 arena_printf(a, "%s, prefill per token", names[0]),
                                 arena_printf(a, "%s, prefill per token", names[1]),
                                 "prefill ratio",
                                 arena_printf(a, "%s, decode per token", names[0]),
                                 arena_printf(a, "%s, decode per token", names[1]),
                                 "decode ratio",
                                 "composite"};
    sheet_table(s, SHEET_BOTH, caption, 8, heads);
    for (size_t i = 0; i < pairs->count; i++) {
        const struct report_pair *p = &pairs->items[i];
        sheet_row(s, pair_name(a, p), unit_seconds(a, p->control_prefill),
                  unit_seconds(a, p->candidate_prefill), unit_ratio(a, p->prefill_ratio),
                  unit_seconds(a, p->control_decode), unit_seconds(a, p->candidate_decode),
                  unit_ratio(a, p->decode_ratio), unit_ratio(a, p->composite));
    }
}

static double first_real(const json_t *m, const char *key, const char *other)
{
    const double value = source_real(m, key);
    return isfinite(value) ? value : source_real(m, other);
}

/* The means of block decoding; a local score tells no single pair. */
static void block_means(struct sheet *s, const json_t *m, bool alone)
{
    static const char *const heads[] = {"of the accepted pairs", "value"};
    struct arena *a = &s->arena;
    if (alone)
        sheet_say(s, SHEET_PLAIN,
                  "This score of block decoding seals what its pairs come to, not each of them.");
    sheet_table(s, SHEET_BOTH, "What the pairs come to", 2, heads);
    sheet_row(s, "accepted pairs, of those wanted",
              arena_printf(a, "%.0f of %.0f", source_real(m, "accepted_pair_count"),
                           source_real(m, "target_pair_count")));
    sheet_row(s, "serial decoding, mean per token",
              unit_seconds(a, first_real(m, "serial_seconds_per_token",
                                         "baseline_serial_seconds_per_token_mean")));
    sheet_row(s, "block decoding, mean per token",
              unit_seconds(a, first_real(m, "dflash_seconds_per_token",
                                         "candidate_dflash_seconds_per_token_mean")));
    sheet_row(s, "ratio of means",
              unit_ratio(a, source_real(m, "dflash_decode_speedup_ratio_of_means")));
    sheet_row(s, "median of the pairs' ratios",
              unit_ratio(a, source_real(m, "dflash_decode_speedup_median")));
    sheet_row(s, "least of the pairs' ratios",
              unit_ratio(a, source_real(m, "dflash_decode_speedup_min")));
    sheet_row(s, "normalised ratio",
              unit_ratio(a, source_real(m, "dflash_decode_speedup_normalized")));
    json_t *chart = sheet_chart_new("bars", "", "serial / block decoding");
    json_t *series = sheet_chart_series(s, chart, "speedup");
    static const struct {
        const char *name, *key;
    } bars[] = {{"ratio of means", "dflash_decode_speedup_ratio_of_means"},
                {"median", "dflash_decode_speedup_median"},
                {"least", "dflash_decode_speedup_min"}};
    for (size_t i = 0; i < sizeof bars / sizeof bars[0]; i++) {
        sheet_chart_label(s, chart, bars[i].name);
        sheet_push(series, "values", source_real(m, bars[i].key));
    }
    sheet_chart_mark(chart, "1.0", 1);
    sheet_chart_mark(chart, "floor", source_real(m, "ranked_decode_speedup_floor"));
    sheet_chart(s, "Speedup of block decoding over serial decoding", chart);
}

void part_pairs(struct sheet *s, const struct report_source *r)
{
    static const char *const names[2] = {"control", "candidate"};
    const json_t *m = r->score.metrics;
    const struct report_pairs pairs = pairs_of(&s->arena, m, "paired_legs", r->contract);
    sheet_begin(s, "pairs", "Pairs");
    if (*source_text(m, "mode"))
        block_means(s, m, pairs.count == 0);
    if (pairs.count == 0) {
        if (!*source_text(m, "mode"))
            sheet_say(s, SHEET_PLAIN,
                      "There are no pairs: this run had no control leg beside the candidate's.");
        return;
    }
    const bool composite = !pairs.blocks && r->contract && r->contract->has_weights;
    sheet_say(s, SHEET_PLAIN,
              "Each pair is a leg of the control and one of the candidate on the same prompt, one "
              "after the other. A ratio is control over candidate: above 1, the candidate is "
              "faster.%s%s",
              *source_text(m, "official_pair_combine") ? " The pairs are combined by " : "",
              *source_text(m, "official_pair_combine")
                  ? arena_printf(&s->arena, "%s.", source_text(m, "official_pair_combine"))
                  : "");
    if (!composite && !pairs.blocks)
        sheet_say(s, SHEET_PLAIN,
                  "The composite of each pair needs the contract's weights: "
                  "--contract FILE.");
    legs_chart(s, &pairs, true, names, "Decode: time per token of each pair");
    legs_chart(s, &pairs, false, names, "Prefill: time per token of each pair");
    ratio_chart(s, m, &pairs, composite, "Ratio of each pair");
    pairs_table(s, &pairs, "The pairs", names);
}

static void interval_row(struct sheet *s, json_t *chart, json_t *series, const char *name,
                         double ratio, double low, double high)
{
    struct arena *a = &s->arena;
    sheet_row(s, name, unit_ratio(a, ratio), unit_interval(a, low, high),
              unit_percent(a, (high - low) / 2));
    if (!isfinite(ratio) && !(isfinite(low) && isfinite(high)))
        return;
    sheet_chart_label(s, chart, name);
    sheet_push(series, "low", isfinite(low) ? low : ratio);
    sheet_push(series, "high", isfinite(high) ? high : ratio);
    sheet_push(series, "at", ratio);
}

void part_intervals(struct sheet *s, const struct report_source *r)
{
    static const char *const heads[] = {"estimate", "ratio", "interval", "half its width"};
    const json_t *m = r->score.metrics;
    struct arena *a = &s->arena;
    const struct report_statistics t = statistics_of(m);
    sheet_begin(s, "intervals", "Intervals");
    if (!t.there) {
        sheet_say(s, SHEET_PLAIN, "No interval is sealed: it takes a ranked run's pairs.");
        return;
    }
    sheet_say(s, SHEET_PLAIN, "Method: %s, on the %s axis; quoted is %s at confidence %s.",
              *t.method ? t.method : "not told", *t.axis ? t.axis : "scored",
              *t.quoted ? t.quoted : "a method not told",
              isfinite(t.confidence) ? unit_number(a, t.confidence, NULL) : "not told");
    if (t.computed_confidence > t.confidence)
        sheet_say(
            s, SHEET_PLAIN,
            "Since the rule looks at the width after each pair, the intervals are computed at "
            "%s: what is quoted then holds at the confidence above.",
            unit_number(a, t.computed_confidence, NULL));
    if (isfinite(t.min_pairs))
        sheet_say(
            s, SHEET_PLAIN,
            "The rule: %.0f pairs at least, then more, up to %.0f, until half the interval of "
            "the log ratio is %s or less; it looks at the width alone. It ended so: %s.",
            t.min_pairs, t.max_pairs, unit_number(a, t.half_width, NULL), t.stopped);
    json_t *chart = sheet_chart_new("intervals", "control / candidate", "");
    json_t *series = sheet_chart_series(s, chart, "interval");
    sheet_table(s, SHEET_BOTH, "The estimates", 4, heads);
    interval_row(s, chart, series, "pairs (paired t)", t.ratio, t.low, t.high);
    interval_row(s, chart, series, "pairs (bootstrap)", t.ratio, t.boot_low, t.boot_high);
    interval_row(s, chart, series, "null (control twice)", t.null_ratio, t.null_low, t.null_high);
    sheet_chart_mark(chart, "1.0", 1);
    const double floor = source_real(m, "decode_speedup_floor");
    if (floor > 0)
        sheet_chart_mark(chart, "decode floor", floor);
    sheet_chart(s, "Intervals of the pairs and of the null", chart);
}

/* Of a file without statistics: what its pairs' logarithms say. */
static void estimate_plain(const struct report_pairs *pairs, struct report_statistics *t)
{
    size_t n = 0;
    double *logs = memory_alloc((pairs->count + 1) * sizeof *logs);
    for (size_t i = 0; i < pairs->count; i++)
        if (isfinite(pairs->items[i].decode_ratio))
            logs[n++] = log(pairs->items[i].decode_ratio);
    t->pairs = n > 0 ? (double)n : NAN;
    t->ratio = n > 0 ? exp(stats_mean(logs, n)) : NAN;
    t->sd = n > 1 ? stats_sample_sd(logs, n) : NAN;
    free(logs);
}

static void noise_row(struct sheet *s, const struct source_score *file, json_t *chart,
                      json_t *series)
{
    struct arena *a = &s->arena;
    struct report_statistics t = statistics_of(file->metrics);
    const struct report_pairs pairs = pairs_of(a, file->metrics, "paired_legs", NULL);
    const struct report_pairs nulls = pairs_of(a, file->metrics, "null_pairs", NULL);
    if (!t.there)
        estimate_plain(&pairs, &t);
    struct report_statistics of_null = {.sd = NAN};
    estimate_plain(&nulls, &of_null);
    if (!t.null_there)
        t.null_ratio = of_null.ratio;
    sheet_row(s, file->name,
              t.there       ? t.axis
              : pairs.count ? "decode"
                            : NULL,
              unit_number(a, t.pairs, NULL), unit_ratio(a, t.ratio),
              unit_interval(a, t.low, t.high), unit_percent(a, t.sd),
              unit_percent(a, t.smallest_effect), unit_number(a, of_null.pairs, NULL),
              unit_ratio(a, t.null_ratio), unit_interval(a, t.null_low, t.null_high),
              unit_percent(a, of_null.sd));
    if (!isfinite(t.ratio))
        return;
    sheet_chart_label(s, chart, file->name);
    sheet_push(series, "low", isfinite(t.low) ? t.low : t.ratio);
    sheet_push(series, "high", isfinite(t.high) ? t.high : t.ratio);
    sheet_push(series, "at", t.ratio);
}

void part_noise(struct sheet *s, const struct report_source *r)
{
    static const char *const names[2] = {"control, first", "control, second"};
    static const char *const heads[] = {"score file",      "axis",        "pairs",
                                        "ratio",           "interval",    "sd of a pair",
                                        "smallest effect", "null pairs",  "null ratio",
                                        "null interval",   "sd of a null"};
    const json_t *m = r->score.metrics;
    const struct report_pairs nulls = pairs_of(&s->arena, m, "null_pairs", r->contract);
    sheet_begin(s, "noise", "Noise");
    if (nulls.count == 0 && r->other_count == 0 &&
        pairs_of(&s->arena, m, "paired_legs", NULL).count == 0) {
        sheet_say(s, SHEET_PLAIN,
                  "Nothing here tells of noise: no pair and no null pair was "
                  "measured, and no other score is beside it (--pairs FILE).");
        return;
    }
    sheet_say(s, SHEET_PLAIN,
              "sd is of the logarithm of a pair's ratio, so about a relative difference; of null "
              "pairs it is the decode axis. The smallest effect is what a run of so many pairs "
              "would see four times in five.");
    json_t *chart = sheet_chart_new("intervals", "control / candidate", "");
    json_t *series = sheet_chart_series(s, chart, "interval");
    sheet_table(s, SHEET_BOTH, "Runs side by side", 11, heads);
    noise_row(s, &r->score, chart, series);
    for (size_t i = 0; i < r->other_count; i++)
        noise_row(s, &r->others[i], chart, series);
    sheet_chart_mark(chart, "1.0", 1);
    if (r->other_count > 0 && source_size(chart, "labels") > 0)
        sheet_chart(s, "The runs' intervals side by side", chart);
    else
        json_decref(chart);
    if (nulls.count == 0) {
        sheet_say(s, SHEET_PLAIN, "No null pair was measured in %s.", r->score.name);
        return;
    }
    ratio_chart(s, m, &nulls, false, "Null pairs: the control against itself");
    pairs_table(s, &nulls, "The null pairs", names);
}
