#include "judge/dflash_report.h"

#include "base/arena.h"
#include "base/json.h"
#include "base/stats.h"
#include "judge/block_score.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void set_count(json_t *o, const char *key, int64_t value)
{
    json_object_set_new(o, key, json_integer(value));
}

static void set_real(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(value));
}

static json_t *begin(const struct dflash_leg *leg)
{
    json_t *o = json_object();
    json_object_set_new(o, "track_id", json_string(leg->track_id));
    json_object_set_new(o, "official_score_produced", json_false());
    return o;
}

static void finish(json_t *o, struct buffer *out)
{
    json_write_ordered(o, 2, out);
    buffer_char(out, '\n');
    json_decref(o);
}

static void set_tokens(json_t *o, const struct dflash_leg *leg, const struct block_run_result *r,
                       const struct fidelity_counts *c, const struct fidelity_latency *latency)
{
    const int64_t drafted = c->accepted + c->rejected;
    /* Each token is the reference's argmax, in its chain or in a frame of the round's width. */
    const bool matched = c->exact + c->declared_frame == c->emitted;
    json_object_set_new(o, "all_tokens_matched", json_boolean(matched));
    set_real(o, "parent_measured_seconds_per_token", r->decode_seconds / (double)leg->tokens);
    set_count(o, "decode_token_count", leg->tokens);
    set_count(o, "block_size", leg->block_size);
    json_object_set_new(o, "uses_trained_drafter", json_boolean(leg->block_size > 1));
    set_real(o, "max_block_request_seconds", latency->longest);
    set_real(o, "p50_block_request_seconds", latency->median);
    set_real(o, "decode_seconds", r->decode_seconds);
    set_real(o, "accepted_draft_rate", drafted > 0 ? (double)c->accepted / (double)drafted : 0);
    set_count(o, "residual_divergence_count", c->residual);
    set_count(o, "admissible_exact_count", c->exact);
    set_count(o, "admissible_declared_frame_count", c->declared_frame);
    set_count(o, "admissible_near_tie_count", c->near_tie);
}

static void set_rows(json_t *o, const struct dflash_leg *leg, const struct block_run_result *r,
                     const struct fidelity_counts *c)
{
    set_count(o, "emitted_token_total", c->emitted);
    set_count(o, "declared_rows_total", c->declared_rows);
    set_count(o, "reference_checked_row_total", c->checked_rows);
    set_count(o, "rejected_rows_reference_checked", c->checked_rejected_rows);
    set_count(o, "verify_block_replayed_round_count", c->replayed_blocks);
    set_count(o, "rejected_tail_comparison_count", c->tail_comparisons);
    set_real(o, "max_rejected_tail_logit_delta", c->max_tail_delta);
    set_count(o, "accepted_draft_total", c->accepted);
    set_count(o, "rejected_draft_total", c->rejected);
    set_count(o, "target_tail_total", c->target_tail);
    set_count(o, "round_count", c->rounds);
    set_count(o, "seed_token_count", (int64_t)r->run.seed_count);
    /* A last round may give more than was asked for: the offset is that of what counts. */
    set_count(o, "target_cache_offset_final", (int64_t)r->run.seed_count + leg->tokens);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* sorted[n / 2] and sorted[99 n / 100], as the latencies' p50. */
struct spread {
    double most, mean, p50, p99;
};
static struct spread spread_of(const double *values, size_t n)
{
    if (n == 0)
        return (struct spread){0};
    double *sorted = memory_alloc(n * sizeof *sorted);
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, compare);
    const struct spread s = {.most = sorted[n - 1],
                             .mean = stats_mean(values, n),
                             .p50 = sorted[n / 2],
                             .p99 = sorted[n * 99 / 100]};
    free(sorted);
    return s;
}

static void set_binding(json_t *o, const struct dflash_leg *leg, const struct fidelity_judgement *j)
{
    const size_t n = (size_t)j->counts.binding_comparisons;
    const struct spread deltas = spread_of(j->deltas, n);
    const struct spread relative = spread_of(j->relative_deltas, n);
    set_count(o, "work_binding_comparison_count", (int64_t)n);
    set_real(o, "max_top2_logit_delta", deltas.most);
    set_real(o, "mean_top2_logit_delta", deltas.mean);
    set_real(o, "p50_top2_logit_delta", deltas.p50);
    set_real(o, "p99_top2_logit_delta", deltas.p99);
    set_real(o, "max_top2_logit_relative_delta", relative.most);
    set_real(o, "p99_top2_logit_relative_delta", relative.p99);
    set_real(o, "work_binding_tolerance_absolute", leg->limits->absolute);
    set_real(o, "work_binding_tolerance_relative", leg->limits->relative);
    if (!leg->widened)
        return;
    json_t *list = json_array(), *widths = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_real(j->deltas[i]));
        json_array_append_new(widths, json_integer(j->delta_widths[i]));
    }
    json_object_set_new(o, "work_binding_logit_deltas", list);
    json_object_set_new(o, "work_binding_comparison_widths", widths);
}

void dflash_report(const struct dflash_leg *leg, const struct block_run_result *r,
                   const struct fidelity_judgement *j, struct buffer *out)
{
    struct arena a = {0};
    const struct fidelity_latency latency = fidelity_latency_of(&r->run, leg->stall_factor, &a);
    json_t *o = begin(leg);
    set_tokens(o, leg, r, &j->counts, &latency);
    set_rows(o, leg, r, &j->counts);
    set_binding(o, leg, j);
    if (latency.median > 0)
        set_real(o, "max_over_median_round_latency", latency.longest / latency.median);
    json_object_set_new(
        o, "reference_engine",
        json_string(leg->own_reference ? BLOCK_OWN_REFERENCE : BLOCK_OTHER_REFERENCE));
    json_object_set_new(o, "golden_sha256", json_string(leg->golden_sha256));
    json_object_set_new(o, "weights_sha256", json_string(leg->weights_sha256));
    json_object_set_new(o, "drafter_sha256", json_string(leg->drafter_sha256));
    finish(o, out);
    arena_free(&a);
}

void dflash_report_failure(const struct dflash_leg *leg, const char *error, struct buffer *out)
{
    json_t *o = begin(leg);
    json_object_set_new(o, "error", json_string(error));
    set_count(o, "decode_token_count", leg->tokens);
    set_count(o, "block_size", leg->block_size);
    finish(o, out);
}
