/* What the judge makes of a cohort's run besides the equations of reply.h: the replay's verdict on
 * its tokens, the near-tie record, and the check of the engine's own per-stream times
 * (contract-and-scoring.md section 5). Pure functions of decoded messages; the ranked path that
 * drives cohorts calls them.
 *
 * Refusals carry the spec's names: StreamCountMismatch, StreamLengthMismatch, EmptyStream,
 * CohortEchoDivergence, GateRejected; NoStreams, UnusableEnvelope; CapabilityAbsent, VectorMissing,
 * VectorLength, TokensLenByStreamWidth, ZeroDuration, NonPositiveWindow, ZeroRounds. field is the
 * stream. */
#ifndef MLXFAST_JUDGE_COHORT_H
#define MLXFAST_JUDGE_COHORT_H

#include "base/arena.h"
#include "base/error.h"
#include "wire/wire.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { COHORT_BUDGET_PER_THOUSAND = 100, COHORT_NEAR_TIE_GAP_INDEX = 1 };

/* The trusted replay's report (engine-protocol.md section 3), the parts that are read. */
struct cohort_position {
    int64_t committed_token, sequential_argmax;
    bool has_near_gap; /* ranked_relative_gaps[1] */
    double near_gap;
    bool has_committed_gap;
    double committed_gap;
};
struct cohort_stream {
    size_t count;
    struct cohort_position *positions;
};
struct cohort_report {
    size_t count;
    struct cohort_stream *streams; /* in slot order */
    bool has_envelope;
    double envelope;
};
/* Error Protocol: no such shape, or the streams are not in slot order from 0. */
bool cohort_report_read(struct arena *a, const struct wire_replay *replay,
                        struct cohort_report *out, struct error *err);

/* Every committed token must be echoed (structure, then CohortEchoDivergence, on all streams
 * first), and no stream may differ from the replay's argmax in more than 10 % of its tokens
 * (GateRejected). mismatches (may be NULL) receives one count for each stream. */
bool cohort_gate(const struct cohort_report *report, const struct wire_token_lists *committed,
                 int64_t *mismatches, struct error *err);

/* The near-tie record of a replay: report only, no verdict. A new reference; NULL with NoStreams,
 * EmptyStream or UnusableEnvelope (absent, negative, not finite). */
json_t *cohort_near_ties(const struct cohort_report *report, struct error *err);

/* What the engine says about its streams' times, next to the judge's windows. */
struct cohort_times {
    bool capability; /* per_stream_timing is advertised */
    uint32_t batch_size;
    const struct wire_u64s *prefill_ns, *decode_ns;
    const uint64_t *tokens_by_stream; /* tokens of each stream */
    size_t tokens_count;              /* streams of that vector */
    int64_t prefill_window_ns, decode_window_ns;
    uint64_t rounds;
};
/* Refuses on structure alone; ratios are reported and flagged at tolerance zero, which fails
 * nothing. A new reference; NULL with a refusal. */
json_t *cohort_attest_times(const struct cohort_times *t, struct error *err);

#endif
