/* The correctness gates of conformance.md section 3: pure judgements of replies, and the walk that
 * asks an engine for them. Trusted top logits may only widen a comparison; a malformed list makes
 * it strict. docs/gates.md tells each gate's rule in words. */
#ifndef MLXFAST_JUDGE_GATES_H
#define MLXFAST_JUDGE_GATES_H

#include "base/error.h"
#include "judge/client.h"
#include "judge/golden.h"
#include "judge/semantic.h"

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
    bool has_gap;        /* of a base case: what gate_base_demand_gap asked for */
    double gap;
    bool beyond_gap; /* a mismatch lies outside it; far_* tell of the first such one */
    int64_t far_step, far_expected, far_actual;
};

/* 1..8 entries, the first is the reported token, unique tokens in the vocabulary, finite logits,
 * strictly descending with equal ones ordered by lower id. */
bool gate_top_logits_trusted(const struct wire_top_logits *t, int64_t reported, int64_t vocab_size);
/* a == reported, or trusted and within 1e-6 of the first logit. */
bool gate_tie_accepts(const struct wire_top_logits *t, int64_t reported, int64_t a,
                      int64_t vocab_size);

/* Base case, teacher-forced: begin, one call for each step, end. With a gap demanded, the expected
 * token of every mismatch must stand in trusted top logits at most so far below the first. */
void gate_base_begin(struct gate_outcome *o);
void gate_base_demand_gap(struct gate_outcome *o, double gap);
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

/* The judge's round trips of the steps of one base case. */
struct gates_latency {
    double *seconds; /* [capacity] */
    size_t capacity, count;
};

struct gates_plan {
    const struct golden *golden;
    int64_t steps; /* of a base case: correctness_steps */
    int64_t vocab_size;
    bool all; /* anchors, free runs, behaviour and meanings as well as base cases */
    bool quiet;
    bool has_mismatch_gap; /* the contract's mismatch_logit_gap */
    double mismatch_gap;
    const struct semantic_judge *semantic; /* NULL: none */
    int64_t semantic_min_pass;             /* right answers needed; 0: every one */
    /* Told of every case with a mismatch, one inside the leniency of a base case too; NULL: nobody.
     * For a golden that is the asker's own: it hears the tokens. */
    void (*diverged)(void *context, const char *name, const struct gate_outcome *o);
    void *diverged_context;
    struct gates_latency *latency; /* of the first base case; NULL: not wanted */
};

/* What the cases that are judged by their meaning came to. Aggregates only: which answer was wrong
 * is not told, so that a hidden set cannot be learnt from failures. */
struct gates_semantic {
    int64_t case_count; /* in the golden, run or not */
    int64_t asked, pass_count, needed;
    char model[SEMANTIC_MODEL_LIMIT + 1]; /* "": nothing was asked */
    /* The judge's round trip of a request for one token, once for each case, each in a barrier
     * interval of its own. A case passes when that token is also the first of its answer. */
    int64_t ttft_count, ttft_pass_count;
    double ttft_mean_seconds, ttft_median_seconds, ttft_max_seconds;
};

struct gates_result {
    bool passed;
    int64_t case_count; /* declared in the golden, run or not */
    int64_t run_count, failed_count;
    int64_t checked_steps;          /* up to and with the first failing case */
    const char *first_failing_case; /* the golden's text, or "semantic cases"; NULL: none */
    struct gate_outcome first_failure;
    const char *error; /* "": passed */
    double max_abs_diff;
    struct wire_expert_stats expert_stats; /* of the last barrier */
    struct gates_semantic semantic;
};
/* Walks every case, each in its own barrier interval; the answers that are judged by their meaning
 * are collected on the way and judged at the end, when nothing else has failed. True when the walk
 * was possible: passed says how it came out. False: the engine or the judge of meanings failed (err
 * is the client's or semantic.h's). */
bool gates_run(struct client *c, const struct gates_plan *plan, struct gates_result *out,
               struct error *err);

/* What failed, in words without tokens: "case NAME, step N". The name is scrubbed. */
void gates_failure_text(const struct gates_result *g, struct buffer *out);

struct score_document;
/* The score's keys of correctness and meanings, but passed_correctness and correctness_seconds. */
void gates_seal(const struct gates_result *g, struct score_document *d);
/* metrics.step_seconds; nothing where no step was asked. */
void gates_seal_latency(const struct gates_latency *l, struct score_document *d);

#endif
