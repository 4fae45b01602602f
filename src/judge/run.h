/* What every run of the judge shares, local or ranked: the candidate's speculation, and the parts
 * of a score that do not depend on how it was measured. */
#ifndef MLXFAST_JUDGE_RUN_H
#define MLXFAST_JUDGE_RUN_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/contract.h"
#include "judge/gates.h"
#include "judge/golden.h"
#include "judge/score.h"
#include "wire/wire.h"

#include <stdbool.h>
#include <stdint.h>

/* candidate_spec as JSON (NULL: none), or a depth of mtp (0: none); out->present tells whether
 * there is one. Texts in the arena; run_free_spec afterwards. Errors: USAGE, and
 * SPEC-MODE-NOT-ALLOWED-FOR-TRACK. */
bool run_resolve_spec(struct arena *a, const struct contract *c, const char *candidate_spec,
                      int64_t mtp_depth, struct wire_spec *out, struct error *err);
void run_free_spec(struct wire_spec *spec);

/* What a golden of a run must be, its pins left to the caller: with an oracle of so many decode
 * tokens after the seed's. */
struct golden_rules run_golden_rules(const struct contract *c, int64_t steps);
/* The same of a golden that is walked for correctness alone. */
struct golden_rules run_correctness_rules(const struct contract *c);
/* Its base cases with the contract's limits; the rest is left to the caller. */
struct gates_plan run_gates_plan(const struct contract *c, const struct golden *g,
                                 const struct semantic_judge *semantic);
/* Room for the steps of one base case. */
struct gates_latency run_latency(const struct contract *c, struct arena *a);

/* Error ENGINE-MISSING: no executable file. */
bool run_check_engine(const char *engine, struct error *err);

/* commit and harness_hash of the working folder. Away from a checkout there is no harness to speak
 * of, which is an error (HARNESS-EMPTY) only where it is required. COMMIT-INVALID. */
bool run_seal_source(bool required, struct score_document *d, struct error *err);
/* What is told of the contract: its digest and sources, the floors, the layers; and the time. */
void run_seal_contract(const struct contract *c, struct score_document *d);
void run_seal_experts(const struct wire_expert_stats *s, int64_t tokens, struct score_document *d);
/* A failure under its name, its message scrubbed. */
void run_seal_failure(const struct error *why, struct score_document *d);

/* This program's own file, in the arena; NULL: not known. */
const char *run_own_path(struct arena *a);

#endif
