/* What a reply must hold besides its envelope: pure checks of decoded messages
 * (engine-protocol.md sections 5 to 7). Every failure is an error with the spec's name; for
 * FreeRunConsistency the failing equation's name stands in the error's field. */
#ifndef MLXFAST_JUDGE_REPLY_H
#define MLXFAST_JUDGE_REPLY_H

#include "base/error.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* The fields that the kind must answer: Protocol, BatchEchoDivergence, SpecEchoDivergence,
 * FreeRunConsistency. */
bool reply_check(enum wire_kind kind, const struct wire_request *request,
                 const struct wire_response *reply, struct error *err);

/* Every session of one window attaches to the same load of the same resident process, or none does
 * (engine-protocol.md section 10). One of these for a window, zeroed before its first session.
 * Error resident_identity_changed_within_window. */
struct reply_window {
    bool has_session;
    struct wire_resident resident;
};
bool reply_check_resident(struct reply_window *w, const struct wire_resident *now,
                          struct error *err);

/* The echo rule: what the engine says it runs honours what was asked. */
bool reply_check_spec_echo(const struct wire_spec *requested, const struct wire_spec *effective,
                           struct error *err);

/* Free run of one stream: TokenCount, CommittedTotal, DraftedLessThanAccepted, AcceptanceSum. */
bool reply_check_free_run(const struct wire_response *reply, uint32_t count, struct error *err);
/* Cohort form, all but what its barrier tells. */
bool reply_check_cohort(const struct wire_response *reply, uint32_t streams, uint32_t count,
                        struct error *err);

/* What is left of a free run for its barrier: RoundCounter and
 * VerifyReplayDisagreementsExceedRejected. */
struct free_run_close {
    uint64_t rounds, rejected;
    struct wire_u64 disagreements;
};
struct free_run_close reply_free_run_close(const struct wire_response *reply);
bool reply_check_free_run_close(const struct free_run_close *c, const struct wire_i64 *completed,
                                struct error *err);

#endif
