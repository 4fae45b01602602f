/* The correctness gates of conformance.md section 3: pure judgements of replies, and the walk that
 * asks an engine for them. Trusted top logits may only widen a comparison; a malformed list makes
 * it strict. */
#ifndef MLXFAST_JUDGE_GATES_H
#define MLXFAST_JUDGE_GATES_H

#include "base/error.h"
#include "judge/client.h"
#include "judge/golden.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GATE_TIE_TOLERANCE 1e-6
enum { GATE_BASE_BUDGET_PER_THOUSAND = 100 };

/* What one case came to. On a pass checked_steps is the number of steps; on a failure the first
 * mismatch + 1, and step, expected and actual tell of that mismatch (-1: no such token). */
struct gate_outcome {
    bool passed;
    int64_t checked_steps, mismatches;
    int64_t step, expected, actual;
    double max_abs_diff; /* largest logit distance of a token that was let through by leniency */
};

/* 1..8 entries, the first is the reported token, unique tokens in the vocabulary, finite logits,
 * strictly descending with equal ones ordered by lower id. */
bool gate_top_logits_trusted(const struct wire_top_logits *t, int64_t reported, int64_t vocab_size);
/* a == reported, or trusted and within 1e-6 of the first logit. */
bool gate_tie_accepts(const struct wire_top_logits *t, int64_t reported, int64_t a,
                      int64_t vocab_size);

/* Base case, teacher-forced: begin, one call for each step, end. */
void gate_base_begin(struct gate_outcome *o);
void gate_base_step(struct gate_outcome *o, int64_t step, int64_t reported,
                    const struct wire_top_logits *t, int64_t expected, int64_t vocab_size);
void gate_base_end(struct gate_outcome *o, int64_t steps);

void gate_anchor(struct gate_outcome *o, const struct golden_anchor *a,
                 const struct wire_top_logits *t, int64_t vocab_size);
void gate_free_run(struct gate_outcome *o, const struct golden_free_run *f,
                   const struct wire_tokens *tokens);
/* Passes when an accepted sequence is a prefix of what the engine said. */
void gate_behavior(struct gate_outcome *o, const struct golden_behavior *b,
                   const struct wire_tokens *tokens);

struct gates_plan {
    const struct golden *golden;
    int64_t steps; /* of a base case: correctness_steps */
    int64_t vocab_size;
    bool all; /* anchors, free runs and behaviour as well as base cases */
    bool quiet;
};
struct gates_result {
    bool passed;
    int64_t case_count; /* declared in the golden, run or not */
    int64_t run_count, failed_count;
    int64_t semantic_count; /* behaviour cases that need a judge of meaning: counted, not run */
    int64_t checked_steps;  /* up to and with the first failing case */
    const char *first_failing_case; /* the golden's text; NULL: none */
    struct gate_outcome first_failure;
    const char *error; /* "": passed */
    double max_abs_diff;
    struct wire_expert_stats expert_stats; /* of the last barrier */
};
/* Walks every case, each in its own barrier interval. True when the walk was possible: passed says
 * how it came out. False: the engine failed (err is the client's). */
bool gates_run(struct client *c, const struct gates_plan *plan, struct gates_result *out,
               struct error *err);

#endif
