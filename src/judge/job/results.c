#include "judge/job/results.h"

#include "base/buffer.h"
#include "base/stats.h"
#include "judge/seal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- sums ---- */

static size_t count_units(const struct job_inputs *in)
{
    return in->cohort_count > 0 ? in->cohort_count : in->prompt_count;
}

static double mean_length(const struct job_pair *pairs, const size_t *which, size_t count)
{
    double sum = 0, lengths = 0;
    for (size_t i = 0; i < count; i++) {
        const struct wire_u32s *l = &pairs[which[i]].candidate.acceptance_lengths;
        for (size_t k = 0; k < l->count; k++)
            sum += l->items[k];
        lengths += (double)l->count;
    }
    return lengths > 0 ? sum / lengths : NAN;
}

static void sum_unit(struct arena *a, const struct job_results_plan *p, size_t unit,
                     struct job_unit *out)
{
    const struct job_pairs *all = p->pairs;
    struct job_times *times = arena_array(a, all->accepted_count + 1, sizeof *times);
    size_t *which = arena_array(a, all->accepted_count + 1, sizeof *which);
    for (size_t i = 0; i < all->accepted_count; i++)
        if (all->accepted[i].unit == unit) {
            which[out->pairs] = i;
            times[out->pairs++] = job_pair_times(&all->accepted[i]);
        }
    out->means = job_ratio_of_means(times, out->pairs);
    out->composite =
        job_cohort_composite(times, out->pairs, p->prefill_exponent, p->decode_exponent);
    out->mean_draft_length = mean_length(all->accepted, which, out->pairs);
    out->normalised = NAN;
    if (p->inputs->cohort_count == 0 && p->inputs->prompts[unit].noop > 0)
        out->normalised = out->means.ratio / p->inputs->prompts[unit].noop;
}

void job_summarise(struct arena *a, const struct job_results_plan *p, struct job_summary *s)
{
    const struct job_pairs *all = p->pairs;
    const size_t n = count_units(p->inputs);
    const bool cohorts = p->inputs->cohort_count > 0;
    double *ratios = arena_array(a, n + 1, sizeof *ratios);
    double *normalised = arena_array(a, n + 1, sizeof *normalised);
    double *composites = arena_array(a, n + 1, sizeof *composites);
    bool every_ratio = n > 0, every_normalised = n > 0, every_composite = n > 0;
    *s = (struct job_summary){.units = arena_array(a, n + 1, sizeof *s->units), .unit_count = n};
    for (size_t u = 0; u < n; u++) {
        sum_unit(a, p, u, &s->units[u]);
        ratios[u] = s->units[u].means.ratio;
        normalised[u] = s->units[u].normalised;
        composites[u] = s->units[u].composite.score;
        every_ratio = every_ratio && isfinite(ratios[u]);
        every_normalised = every_normalised && isfinite(normalised[u]);
        every_composite = every_composite && isfinite(composites[u]);
    }
    s->serial_mean = s->candidate_mean = all->accepted_count > 0 ? 0 : NAN;
    for (size_t i = 0; i < all->accepted_count; i++) {
        const struct job_times t = job_pair_times(&all->accepted[i]);
        s->serial_mean += t.serial / (double)all->accepted_count;
        s->candidate_mean += t.candidate / (double)all->accepted_count;
    }
    s->raw_median = every_ratio ? stats_median(ratios, n) : NAN;
    s->normalised_median = every_normalised ? stats_median(normalised, n) : NAN;
    s->normalised_min = every_normalised ? stats_min(normalised, n) : NAN;
    s->score = !cohorts ? s->raw_median : every_composite ? stats_median(composites, n) : NAN;
}

bool job_judge(const struct job_results_plan *p, const struct job_summary *s, bool *stands,
               struct error *err)
{
    const size_t n = p->pairs->accepted_count;
    double *ratios = memory_alloc((n + 1) * sizeof *ratios);
    for (size_t i = 0; i < n; i++) {
        const struct job_times t = job_pair_times(&p->pairs->accepted[i]);
        ratios[i] = job_pair_ratio(&t);
    }
    const bool within = job_judge_pairs(ratios, n, err);
    free(ratios);
    *stands = within && isfinite(s->score);
    return within && job_judge_score(s->score, err);
}

/* ---- the document ---- */

static void put(json_t *o, const char *key, json_t *value)
{
    json_object_set_new(o, key, value != NULL ? value : json_null());
}

static void put_text(json_t *o, const char *key, const char *text)
{
    put(o, key, json_string(text));
}

/* A failure's text may hold a path of the machine or a word of an engine. */
static void put_failure(json_t *o, const char *class, const char *text)
{
    struct buffer clean = {0};
    seal_scrub(text, &clean);
    put_text(o, "class", class);
    put_text(o, "error", clean.data != NULL ? clean.data : "");
    buffer_free(&clean);
}

static void put_real(json_t *o, const char *key, double x)
{
    put(o, key, isfinite(x) ? json_real(x) : NULL);
}

static void put_count(json_t *o, const char *key, size_t n)
{
    put(o, key, json_integer((json_int_t)n));
}

static const char *order_text(bool serial_first)
{
    return serial_first ? "serial-first" : "mtp-first";
}

static const char *unit_key(const struct job_inputs *in)
{
    return in->cohort_count > 0 ? "cohort_sha256" : "prompt_sha256";
}

static const char *unit_digest(const struct job_inputs *in, size_t unit)
{
    return in->cohort_count > 0 ? in->cohorts[unit].sha256 : in->prompts[unit].sha256;
}

static json_t *window_record(const struct job_pair *pair)
{
    json_t *o = json_object();
    put_real(o, "serial_prefill_window_seconds", pair->serial.windows.prefill);
    put_real(o, "candidate_prefill_window_seconds", pair->candidate.windows.prefill);
    put_real(o, "serial_decode_window_seconds", pair->serial.windows.decode);
    put_real(o, "candidate_decode_window_seconds", pair->candidate.windows.decode);
    put_count(o, "prefill_token_total", pair->candidate.windows.prefill_tokens);
    put_count(o, "decode_token_total", pair->candidate.windows.decode_tokens);
    put(o, "certified", json_boolean(pair->certified));
    put_text(o, "cross_check", pair->certified ? "agreed" : "not-observed");
    return o;
}

static json_t *pair_record(const struct job_results_plan *p, const struct job_pair *pair)
{
    const struct job_times t = job_pair_times(pair);
    const char *tag = job_series_tag(p->series);
    json_t *o = json_object();
    put(o, "parity_ok", json_true());
    put_text(o, unit_key(p->inputs), unit_digest(p->inputs, pair->unit));
    put_real(o, "serial_seconds_per_token", t.serial);
    put_real(o, "mtp_seconds_per_token", t.candidate);
    put_text(o, "order", order_text(pair->serial_first));
    put_real(o, "raw_ratio", job_pair_ratio(&t));
    put_text(o, "serial_gate_state", pair->serial.gate_state);
    put_text(o, "candidate_gate_state", pair->candidate.gate_state);
    put_text(o, "serial_timed_mode", tag);
    put_text(o, "candidate_timed_mode", tag);
    put(o, "phase_windows", window_record(pair));
    if (pair->serial.cohort != NULL)
        put(o, "serial_cohort", json_incref(pair->serial.cohort));
    if (pair->candidate.cohort != NULL)
        put(o, "candidate_cohort", json_incref(pair->candidate.cohort));
    return o;
}

static json_t *rejection_records(const struct job_results_plan *p)
{
    json_t *list = json_array();
    for (size_t i = 0; i < p->pairs->rejected_count; i++) {
        const struct job_rejection *r = &p->pairs->rejected[i];
        json_t *o = json_object();
        put_text(o, unit_key(p->inputs), unit_digest(p->inputs, r->unit));
        put_text(o, "order", order_text(r->serial_first));
        put_text(o, "leg", r->role == JOB_SERIAL ? "serial" : "candidate");
        put_failure(o, r->class, r->text);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *series_record(const struct job_results_plan *p)
{
    json_t *o = json_object();
    put_text(o, "serial_leg_timed_mode", job_series_tag(p->series));
    put_text(o, "candidate_leg_timed_mode", job_series_tag(p->series));
    put_text(o, "serial_leg_timed_regime", job_series_regime(p->series));
    put_text(o, "candidate_leg_timed_regime", job_series_regime(p->series));
    put(o, "homogeneous", json_true());
    put(o, "legs_comparable", json_true());
    return o;
}

static json_t *aggregate_record(const struct job_summary *s)
{
    json_t *o = json_object();
    put_real(o, "baseline_serial_seconds_per_token_mean", s->serial_mean);
    put_real(o, "candidate_mtp_seconds_per_token_mean", s->candidate_mean);
    put_real(o, "mtp_decode_speedup_median", s->normalised_median);
    put_real(o, "mtp_decode_speedup_min", s->normalised_min);
    put_real(o, "raw_decode_speedup_median", s->raw_median);
    return o;
}

/* What the candidate ran on its first accepted pair of the unit; NULL: no pair. */
static const struct job_leg *first_candidate(const struct job_results_plan *p, size_t unit)
{
    for (size_t i = 0; i < p->pairs->accepted_count; i++)
        if (p->pairs->accepted[i].unit == unit)
            return &p->pairs->accepted[i].candidate;
    return NULL;
}

static json_t *prompt_record(const struct job_results_plan *p, const struct job_summary *s,
                             size_t unit)
{
    const struct job_unit *u = &s->units[unit];
    const struct job_leg *leg = first_candidate(p, unit);
    json_t *o = json_object();
    put_text(o, "prompt_sha256", p->inputs->prompts[unit].sha256);
    put(o, "parity_ok", json_boolean(u->pairs > 0));
    put_count(o, "accepted_pair_count", u->pairs);
    put_real(o, "serial_seconds_per_token_mean", u->means.serial);
    put_real(o, "mtp_seconds_per_token_mean", u->means.candidate);
    put_real(o, "raw_ratio_of_means", u->means.ratio);
    put_real(o, "noop_reference_decode_speedup",
             p->inputs->prompts[unit].noop > 0 ? p->inputs->prompts[unit].noop : NAN);
    if (leg != NULL && leg->spec_mode != NULL) {
        json_t *spec = json_object();
        put_text(spec, "mode", leg->spec_mode);
        put(spec, "depth", json_integer(leg->spec_depth));
        put(o, "effective_spec", spec);
    }
    if (isfinite(u->mean_draft_length))
        put_real(o, "effective_mean_draft_len", u->mean_draft_length);
    return o;
}

static json_t *cohort_record(const struct job_results_plan *p, const struct job_summary *s,
                             size_t unit)
{
    const struct job_unit *u = &s->units[unit];
    const struct job_cohort *cohort = &p->inputs->cohorts[unit];
    json_t *o = json_object(), *members = json_array(), *exponents = json_object();
    for (size_t i = 0; i < JOB_COHORT_STREAMS; i++) {
        json_t *m = json_object();
        put_count(m, "slot_index", i);
        put_text(m, "prompt_sha256", cohort->members[i]->sha256);
        json_array_append_new(members, m);
    }
    put_text(o, "cohort_sha256", cohort->sha256);
    put(o, "members", members);
    put_count(o, "batch_size", JOB_COHORT_STREAMS);
    put(o, "parity_ok", json_boolean(u->pairs > 0));
    put_count(o, "accepted_pair_count", u->pairs);
    put_real(o, "serial_seconds_per_token_mean", u->means.serial);
    put_real(o, "candidate_seconds_per_token_mean", u->means.candidate);
    put_real(o, "raw_ratio_of_means", u->means.ratio);
    put_real(exponents, "prefill_gain_exponent", p->prefill_exponent);
    put_real(exponents, "decode_gain_exponent", p->decode_exponent);
    put(o, "composite_scored_exponents", exponents);
    if (!isfinite(u->composite.score)) {
        put_text(o, "composite_absent_reason",
                 u->pairs > 0 ? "the composite has no finite value" : "no pair was accepted");
        return o;
    }
    json_t *composite = json_object();
    put_real(composite, "prefill_gain", u->composite.prefill_gain);
    put_real(composite, "decode_gain", u->composite.decode_gain);
    put_real(composite, "composite_score", u->composite.score);
    put_real(composite, "composite_speedup_floor", JOB_SPEEDUP_FLOOR);
    put(composite, "composite_speedup_floor_met",
        json_boolean(u->composite.score >= JOB_SPEEDUP_FLOOR));
    put(o, "composite", composite);
    return o;
}

static json_t *provenance_record(const struct job_results_plan *p)
{
    json_t *o = json_object();
    put_text(o, "candidate_executable", p->candidate_executable);
    put_text(o, "baseline_executable", p->baseline_executable);
    put_text(o, "sandbox", p->sandbox);
    put(o, "thermal", json_incref(p->thermal));
    return o;
}

static void put_outcome(json_t *o, const struct job_results_plan *p)
{
    put(o, "candidate_accepted", json_boolean(p->accepted));
    if (p->rejected == NULL)
        return;
    json_t *why = json_object();
    put_failure(why, p->rejected->name, p->rejected->message);
    put(o, p->accepted ? "score_refused" : "rejection", why);
}

json_t *job_results_build(const struct job_results_plan *p, const struct job_summary *s)
{
    const bool cohorts = p->inputs->cohort_count > 0;
    json_t *o = json_object(), *pairs = json_array(), *units = json_array();
    for (size_t i = 0; i < p->pairs->accepted_count; i++)
        json_array_append_new(pairs, pair_record(p, &p->pairs->accepted[i]));
    for (size_t u = 0; u < s->unit_count; u++)
        json_array_append_new(units, cohorts ? cohort_record(p, s, u) : prompt_record(p, s, u));
    put_text(o, "track_id", p->contract->track_id);
    if (p->contract->track_name != NULL)
        put_text(o, "track_name", p->contract->track_name);
    put_text(o, "tag", p->tag);
    put_text(o, "mode",
             cohorts ? "batched-cohort-paired-decode-only" : "qwen-native-mtp-paired-decode-only");
    put_text(o, "timed_mode", job_series_tag(p->series));
    put_text(o, "timed_regime", job_series_regime(p->series));
    put(o, "parity_all_ok",
        json_boolean(p->accepted && p->pairs->rejected_count == 0 && s->unit_count > 0));
    put_count(o, "accepted_pair_count", p->pairs->accepted_count);
    put_outcome(o, p);
    put_count(o, "min_pairs", p->min_pairs);
    put_count(o, "target_pairs", p->target_pairs);
    put_count(o, "prompt_count", p->inputs->prompt_count);
    put(o, "serial_control_depth", json_integer(0));
    put(o, "mtp_depth", json_integer(p->mtp_depth));
    put_text(o, "prefill_component", cohorts ? "shared-window" : "none");
    put(o, "scored_batch_size", json_integer(cohorts ? JOB_COHORT_STREAMS : 1));
    put(o, "rejected_pairs", rejection_records(p));
    put_text(o, "commit", p->commit);
    put_text(o, "weights_hash", p->weights_hash);
    put_text(o, "contract_sha256", p->contract->sha256);
    put(o, "local_dev", json_boolean(p->local_dev));
    put(o, "calibration_bootstrap", json_boolean(p->bootstrap));
    put(o, "timed_series", series_record(p));
    put(o, "pairs", pairs);
    put(o, "aggregate", aggregate_record(s));
    put(o, cohorts ? "per_cohort" : "per_prompt", units);
    put(o, "provenance", provenance_record(p));
    if (p->probes != NULL)
        put(o, "exactness_probe", json_incref(p->probes));
    if (p->gates != NULL)
        put(o, "gates", json_incref(p->gates));
    return o;
}
