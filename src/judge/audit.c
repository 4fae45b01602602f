#include "judge/audit.h"

#include "base/arena.h"
#include "base/stats.h"

#include <stdio.h>

struct audit_speculation audit_of_run(const struct wire_response *r, uint32_t count)
{
    const size_t rounds = r->acceptance_lengths.count;
    struct audit_speculation s = {.verified_token_count = count,
                                  .rounds = rounds,
                                  .drafted_total = r->drafted_total.value,
                                  .accepted_total = r->accepted_total.value};
    if (rounds > 0) {
        struct arena a = {0};
        double *lengths = arena_array(&a, rounds, sizeof *lengths);
        for (size_t i = 0; i < rounds; i++) {
            lengths[i] = r->acceptance_lengths.items[i];
            s.non_drafting_round_count += r->acceptance_lengths.items[i] <= 1;
        }
        s.mean_acceptance_length = stats_mean(lengths, rounds);
        s.median_acceptance_length = stats_median(lengths, rounds);
        s.tokens_per_forward = (double)count / (double)rounds;
        arena_free(&a);
    }
    s.has_acceptance_rate = s.drafted_total > 0;
    if (s.has_acceptance_rate)
        s.acceptance_rate = (double)s.accepted_total / (double)s.drafted_total;
    return s;
}

struct audit_cohort audit_of_cohort(const struct wire_response *r, uint32_t streams)
{
    struct audit_cohort c = {.batch_size = streams, .committed_total = r->committed_total.value};
    const size_t rounds = r->acceptance_lengths.count;
    double natural = 0;
    for (size_t i = 0; i < rounds; i++) {
        uint32_t further = 0;
        for (uint32_t s = 0; s < streams; s++) {
            const uint32_t walked = r->natural_accepted_by_stream.items[s].items[i];
            natural += walked;
            further += walked > r->acceptance_lengths.items[i];
        }
        c.throttled_round_count += further > 0;
        c.budget_truncated_round_count += streams > 0 && further == streams;
        const uint32_t active = r->active_streams_by_round.items[i];
        if (i == 0 || active < c.min_active_streams)
            c.min_active_streams = active;
    }
    if (rounds > 0 && streams > 0)
        c.mean_natural_accepted_length = natural / ((double)rounds * streams);
    for (size_t i = 0; i < r->depth_clamp_reasons.count; i++)
        c.depth_clamp_total += r->depth_clamp_reasons.values[i];
    return c;
}

static void set_int(json_t *o, const char *key, uint64_t value)
{
    json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void set_real(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(value));
}

json_t *audit_flat(const struct audit_speculation *s, const struct audit_cohort *c)
{
    json_t *o = json_object();
    set_real(o, "audit_spec_mean_acceptance_length", s->mean_acceptance_length);
    set_real(o, "audit_spec_median_acceptance_length", s->median_acceptance_length);
    set_int(o, "audit_spec_verified_token_count", s->verified_token_count);
    set_int(o, "audit_spec_rounds", s->rounds);
    set_int(o, "audit_spec_drafted_total", s->drafted_total);
    set_int(o, "audit_spec_accepted_total", s->accepted_total);
    set_real(o, "audit_spec_effective_tokens_per_forward", s->tokens_per_forward);
    /* The spec gives the mean two names. */
    set_real(o, "audit_spec_effective_mean_draft_len", s->mean_acceptance_length);
    set_int(o, "audit_spec_non_drafting_round_count", s->non_drafting_round_count);
    if (s->has_acceptance_rate)
        set_real(o, "audit_spec_acceptance_rate", s->acceptance_rate);
    if (c == NULL)
        return o;
    set_int(o, "audit_cohort_batch_size", c->batch_size);
    set_int(o, "audit_cohort_committed_total", c->committed_total);
    set_real(o, "audit_cohort_mean_natural_accepted_length", c->mean_natural_accepted_length);
    set_int(o, "audit_cohort_throttled_round_count", c->throttled_round_count);
    set_int(o, "audit_cohort_budget_truncated_round_count", c->budget_truncated_round_count);
    set_int(o, "audit_cohort_min_active_streams", c->min_active_streams);
    set_int(o, "audit_cohort_depth_clamp_total", c->depth_clamp_total);
    return o;
}

char *audit_series_tag(bool free_run, uint32_t cohort_width, char out[AUDIT_TAG_SIZE])
{
    if (!free_run)
        snprintf(out, AUDIT_TAG_SIZE, "teacher_forced_v1");
    else if (cohort_width == 0)
        snprintf(out, AUDIT_TAG_SIZE, "free_run_v1_1");
    else
        snprintf(out, AUDIT_TAG_SIZE, "batched_free_run_v1_2_b%u", cohort_width);
    return out;
}
