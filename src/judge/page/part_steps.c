/* Latency of each decode step by the judge's clock: a line, a histogram, and what they come to. */
#include "judge/page/parts.h"

#include "judge/page/pairs.h"
#include "judge/page/units.h"

#include "base/stats.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum {
    POINTS_MOST = 4000, /* of a line; more are no more to be seen */
    BINS = 32
};

static void line_of(struct sheet *s, const double *x, size_t n, struct unit unit)
{
    struct arena *a = &s->arena;
    const char *y = arena_printf(a, "%s", unit.name);
    const char *const heads[] = {"step", y};
    const size_t stride = (n + POINTS_MOST - 1) / POINTS_MOST;
    json_t *chart = sheet_chart_new("lines", "step", y);
    json_t *series = sheet_chart_series(s, chart, "step");
    for (size_t i = 0; i < n; i += stride) {
        sheet_push(series, "x", (double)(i + 1));
        sheet_push(series, "y", x[i] * unit.factor);
    }
    sheet_chart_mark(chart, "median", stats_median(x, n) * unit.factor);
    json_object_set_new(chart, "dense", json_true());
    sheet_chart(s, "Time of each decode step", chart);
    if (stride > 1)
        sheet_say(s, SHEET_PLAIN, "Of %zu steps, every %zuth is drawn and listed.", n, stride);
    sheet_table(s, SHEET_PAGE, "Each step", 2, heads);
    for (size_t i = 0; i < n; i += stride)
        sheet_row(s, arena_printf(a, "%zu", i + 1), unit_scaled(a, x[i], unit));
}

/* From the least to the 99th percentile in equal steps; the last bin takes what is above. */
static void histogram_of(struct sheet *s, const double *x, size_t n, struct unit unit)
{
    struct arena *a = &s->arena;
    static const char *const heads[] = {"time", "steps"};
    const double low = stats_min(x, n), top = stats_quantile(x, n, 0.99), most = stats_max(x, n);
    const double width = (top - low) / BINS;
    if (!(width > 0) || !isfinite(width)) {
        sheet_say(s, SHEET_PLAIN, "Nearly all steps took the same time: there is no histogram.");
        return;
    }
    size_t bins[BINS + 1] = {0};
    for (size_t i = 0; i < n; i++) {
        const double at = floor((x[i] - low) / width);
        bins[at >= BINS ? (x[i] <= top ? BINS - 1 : BINS) : (size_t)fmax(at, 0)]++;
    }
    json_t *chart =
        sheet_chart_new("bars", arena_printf(a, "time of a step, %s", unit.name), "steps");
    json_t *series = sheet_chart_series(s, chart, "steps");
    json_object_set_new(chart, "joined", json_true());
    for (size_t b = 0; b < BINS + 1; b++) {
        if (b == BINS && bins[b] == 0)
            continue;
        const char *label = unit_scaled(a, low + width * (double)b, unit);
        sheet_chart_label(s, chart, b == BINS ? arena_printf(a, "> %s", label) : label);
        sheet_push(series, "values", (double)bins[b]);
    }
    sheet_chart(s, "How many steps took how long", chart);
    sheet_table(s, SHEET_PAGE, "How many steps took how long", 2, heads);
    for (size_t b = 0; b < BINS + 1; b++)
        sheet_row(s,
                  arena_printf(a, "%s to %s", unit_seconds(a, low + width * (double)b),
                               unit_seconds(a, b == BINS ? most : low + width * (double)(b + 1))),
                  arena_printf(a, "%zu", bins[b]));
}

/* Of block decoding: the median and the longest request of each leg, in every pair that counts. */
static void requests_of(struct sheet *s, const struct report_pairs *pairs)
{
    static const char *const heads[] = {"pair", "control, median request", "control, longest",
                                        "candidate, median request", "candidate, longest"};
    static const char *const names[] = {"control, median", "control, longest", "candidate, median",
                                        "candidate, longest"};
    struct arena *a = &s->arena;
    double longest = 0;
    for (size_t i = 0; i < pairs->count; i++)
        longest =
            fmax(longest, fmax(pairs->items[i].control_longest, pairs->items[i].candidate_longest));
    const struct unit unit = unit_of_seconds(longest);
    json_t *chart = sheet_chart_new("lines", "pair", arena_printf(a, "%s per request", unit.name));
    for (int which = 0; which < 4; which++) {
        json_t *series = sheet_chart_series(s, chart, names[which]);
        for (size_t i = 0; i < pairs->count; i++) {
            const struct report_pair *p = &pairs->items[i];
            const double values[] = {p->control_median, p->control_longest, p->candidate_median,
                                     p->candidate_longest};
            if (!p->counts)
                continue;
            sheet_push(series, "x", (double)p->number);
            sheet_push(series, "y", values[which] * unit.factor);
        }
    }
    json_object_set_new(chart, "whole", json_true());
    sheet_say(s, SHEET_PLAIN,
              "The judge's clock around each request: a token of the control, a round of the "
              "candidate.");
    sheet_chart(s, "Requests of each pair: median and longest", chart);
    sheet_table(s, SHEET_BOTH, "Requests of each pair that counts", 5, heads);
    for (size_t i = 0; i < pairs->count; i++) {
        const struct report_pair *p = &pairs->items[i];
        if (p->counts)
            sheet_row(s, arena_printf(a, "%" PRId64, p->number), unit_seconds(a, p->control_median),
                      unit_seconds(a, p->control_longest), unit_seconds(a, p->candidate_median),
                      unit_seconds(a, p->candidate_longest));
    }
}

void part_steps(struct sheet *s, const struct report_source *r)
{
    static const char *const heads[] = {"over all steps", "time"};
    static const struct {
        const char *name;
        double quantile;
    } rows[] = {{"least", 0},
                {"median", 0.5},
                {"95th percentile", 0.95},
                {"99th percentile", 0.99},
                {"longest", 1}};
    struct arena *a = &s->arena;
    const json_t *list = json_object_get(r->score.metrics, "step_seconds");
    const size_t count = json_array_size(list);
    const bool blocks = *source_text(r->score.metrics, "mode") != '\0';
    double *x = memory_alloc((count + 1) * sizeof *x);
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(list, i);
        const double value = json_number_value(item);
        if (json_is_number(item) && value >= 0)
            x[n++] = value;
    }
    sheet_begin(s, "steps", "Latency of each decode step");
    const struct report_pairs pairs = pairs_of(a, r->score.metrics, "paired_legs", NULL);
    if (pairs.blocks && pairs.count > 0)
        requests_of(s, &pairs);
    else if (n == 0) {
        sheet_say(s, SHEET_PLAIN, "No step was timed on its own (metrics.step_seconds is %s).",
                  list ? "empty" : "not there");
    }
    if (n > 0) {
        sheet_say(s, SHEET_PLAIN, "The judge's clock around each %s: request, engine and answer.",
                  blocks ? "request of block decoding"
                         : "teacher-forced step of the first base case");
        sheet_table(s, SHEET_BOTH, arena_printf(a, "%zu steps", n), 2, heads);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            sheet_row(s, rows[i].name, unit_seconds(a, stats_quantile(x, n, rows[i].quantile)));
        sheet_row(s, "mean", unit_seconds(a, stats_mean(x, n)));
        sheet_row(s, "standard deviation", n > 1 ? unit_seconds(a, stats_sample_sd(x, n)) : NULL);
        const struct unit unit = unit_of_seconds(stats_median(x, n));
        line_of(s, x, n, unit);
        histogram_of(s, x, n, unit);
    }
    free(x);
}
