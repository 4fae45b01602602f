/* Figures derived from a free run's counters (engine-protocol.md section 7, "Derived audit
 * values"): recorded, never scored. Pure functions of replies that reply.h has accepted. */
#ifndef MLXFAST_JUDGE_AUDIT_H
#define MLXFAST_JUDGE_AUDIT_H

#include "wire/wire.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct audit_speculation {
    double mean_acceptance_length, median_acceptance_length;
    uint64_t verified_token_count; /* of one stream: N */
    uint64_t rounds, drafted_total, accepted_total;
    double tokens_per_forward;         /* N / rounds; 0 without a round */
    uint64_t non_drafting_round_count; /* rounds that committed at most one token */
    bool has_acceptance_rate;          /* only when something was drafted */
    double acceptance_rate;
};
struct audit_cohort {
    uint32_t batch_size;
    uint64_t committed_total;
    double mean_natural_accepted_length;
    uint64_t throttled_round_count;        /* a row walked further than was committed */
    uint64_t budget_truncated_round_count; /* every row did */
    uint32_t min_active_streams;
    uint64_t depth_clamp_total;
};
struct audit_speculation audit_of_run(const struct wire_response *r, uint32_t count);
struct audit_cohort audit_of_cohort(const struct wire_response *r, uint32_t streams);

/* The flat audit_spec_* names, and audit_cohort_* where cohort is not NULL. A new reference. */
json_t *audit_flat(const struct audit_speculation *s, const struct audit_cohort *cohort);

/* Two numbers may be compared only when their tags are equal. cohort_width 0: a single stream.
 * Returns out. */
enum { AUDIT_TAG_SIZE = 48 };
char *audit_series_tag(bool free_run, uint32_t cohort_width, char out[AUDIT_TAG_SIZE]);

#endif
