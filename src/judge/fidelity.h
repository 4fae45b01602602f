/* Token fidelity of block decoding (dflash-track.md sections 4, 6 and 7): what each answer of a
 * block engine must hold, and how a finished run is judged against a reference that has walked the
 * same chain. Pure judgements of recorded rounds; block_run.h records them, fidelity_replay.h asks
 * the reference. docs/fidelity.md tells the rules in words.
 *
 * A violation is an error whose name is the published one, "dflash_" and the kind in snake case.
 * Messages carry the kind, the round (from 0) and counts, never token ids or logits. */
#ifndef MLXFAST_JUDGE_FIDELITY_H
#define MLXFAST_JUDGE_FIDELITY_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIDELITY_BLOCK_MOST = 16 };

/* X(kind, published name, meaning): the one table from which the enum, the names, the redaction and
 * the rows of refusals.h are made. */
#define FIDELITY_VIOLATIONS(X)                                                                     \
    X(emptyBlock, "dflash_empty_block", "A round gave no token.")                                  \
    X(oversizedBlock, "dflash_oversized_block", "A round gave more tokens than its width.")        \
    X(outOfVocabularyToken, "dflash_out_of_vocabulary_token",                                      \
      "A token, draft or readout is outside the vocabulary.")                                      \
    X(tokenNotAdmissible, "dflash_token_not_admissible",                                           \
      "A token that no rule of the ladder admits.")                                                \
    X(residualBudgetExhausted, "dflash_residual_budget_exhausted",                                 \
      "More near ties or residuals than the run's budget.")                                        \
    X(rowAccountingMismatch, "dflash_row_accounting_mismatch",                                     \
      "Rows, drafts and acceptances do not add up.")                                               \
    X(declaredRowsMissing, "dflash_declared_rows_missing",                                         \
      "Fewer rows were declared than tokens given.")                                               \
    X(workBindingMissing, "dflash_work_binding_missing", "A declared row without its readout.")    \
    X(workBindingLogitMismatch, "dflash_work_binding_logit_mismatch",                              \
      "A row's readout is not of its token, or not the reference's.")                              \
    X(draftTokenBindingMismatch, "dflash_draft_token_binding_mismatch",                            \
      "An accepted draft is not the token given.")                                                 \
    X(rejectedRowReadoutMismatch, "dflash_rejected_row_readout_mismatch",                          \
      "The readout of a row behind the tokens is not the reference's.")                            \
    X(fabricatedRejection, "dflash_fabricated_rejection",                                          \
      "A draft was rejected that the reference would have accepted.")                              \
    X(cacheOffsetDiverged, "dflash_cache_offset_diverged",                                         \
      "The cache does not stand at the seed and the tokens given.")                                \
    X(incompleteRun, "dflash_incomplete_run",                                                      \
      "The rounds do not give the configured number of tokens.")

enum fidelity_violation {
#define FIDELITY_ENUM(kind, published, meaning) FIDELITY_##kind,
    FIDELITY_VIOLATIONS(FIDELITY_ENUM)
#undef FIDELITY_ENUM
        FIDELITY_VIOLATION_COUNT
};
const char *fidelity_violation_name(enum fidelity_violation v);      /* "emptyBlock" */
const char *fidelity_violation_meaning(enum fidelity_violation v);   /* the table's words */
const char *fidelity_violation_published(enum fidelity_violation v); /* "dflash_empty_block" */
/* False with the published name as the error's; the text is the meaning, "round=N" and the format,
 * which holds nothing but further "key=count". */
bool fidelity_fail(enum fidelity_violation v, size_t round, struct error *err, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));

/* ---- What is published of a failure on a hidden prompt ---- */

/* X(category, meaning): the published categories that are no violation (section 7). */
#define FIDELITY_CATEGORIES(X)                                                                     \
    X(no_score, "The run ended before it had a score.")                                            \
    X(invalid_score, "The score was not finite, or its document not valid.")                       \
    X(floor_failed, "The score is below the floor.")                                               \
    X(acceptance_band_failed, "A time is not believed.")                                           \
    X(prefill_token_mismatch, "The prefill's token is not the golden's.")                          \
    X(decode_seed_token_mismatch, "The seed's token is not the golden's.")                         \
    X(decode_token_mismatch, "A decoded token is not the golden's.")                               \
    X(semantic_gpqa_infra_failed, "The judge of meanings could not judge.")                        \
    X(semantic_gpqa_failed, "Too few answers are right.")                                          \
    X(correctness_failed, "A gate of the correctness golden failed.")                              \
    X(runtime_error, "Anything else: the engine, the machine, the inputs.")                        \
    X(score_present_validation_failed, "A sealed score did not pass its check.")                   \
    X(public_gate_worker_crash, "The engine ended in the public gate.")                            \
    X(public_gate_token_mismatch, "A token of the public gate is not its golden's.")               \
    X(public_gate_failed, "The public gate failed otherwise.")

/* failure: a score's error, "<class>: <text>", or a class alone. Appends the category and, of a
 * violation, its counts: "dflash_empty_block round=3 tokens=0 width=4". A class that is none of the
 * published categories becomes one; nothing of any other text remains. */
void fidelity_publish(const char *failure, struct buffer *out);

/* ---- Tolerances: from the contract's "fidelity", never from code ---- */

struct fidelity_limits {
    int64_t vocab_size;
    double near_tie_logits;        /* a token so far below the reference's top is a near tie */
    int64_t near_tie_per_thousand; /* budget, of the tokens given */
    int64_t residual_per_thousand; /* budget of tokens that are the reference's second only */
    double absolute, relative;     /* a readout may differ by both at most, not by either */
    bool has_mean;
    double mean; /* of all scored rows' absolute differences, from FIDELITY_MEAN_LEAST on, and of
                  * the first FIDELITY_MEAN_FIRST */
};
/* Comparisons, two a token. Fewer are too few for a mean to be told from chance
 * (docs/calibration.md: how far the mean of a short run swings). */
enum { FIDELITY_MEAN_LEAST = 128 };
/* Of a longer run the first so many have a mean of their own, held to the same limit: what was left
 * out of the prompt shows at the beginning, and a long run would thin it (docs/cheats.md). */
enum { FIDELITY_MEAN_FIRST = 256 };
/* max(1, ceil(tokens * per_thousand / 1000)); 0 when per_thousand is 0. */
int64_t fidelity_budget(int64_t per_thousand, int64_t tokens);

/* ---- The widths that the judge asks for ---- */

/* SplitMix64; width = minimum + next % (maximum - minimum + 1). Never cut to what remains. */
struct fidelity_schedule {
    uint64_t state;
    int minimum, maximum;
};
uint64_t fidelity_splitmix64(uint64_t *state);
struct fidelity_schedule fidelity_schedule_begin(uint64_t seed, int minimum, int maximum);
int fidelity_schedule_next(struct fidelity_schedule *s);

/* ---- What a candidate did ---- */

struct fidelity_readout { /* of one row: its two largest logits, descending */
    int64_t token[2];
    double logit[2];
};
struct fidelity_round {
    int width;       /* asked for */
    int64_t token;   /* fed to row 0 */
    int64_t *tokens; /* [count] given out */
    int count;
    int scored; /* of these, within the configured number of tokens */
    int rows;   /* declared */
    int64_t accepted, rejected;
    int64_t *drafts; /* [draft_count] */
    int draft_count;
    struct fidelity_readout *readouts; /* [readout_count] */
    int readout_count;
    int64_t offset; /* target_cache_offset */
    double seconds; /* the judge's, of this request */
};
struct fidelity_run {
    const int64_t *seed;
    size_t seed_count;
    int64_t seed_token;
    int64_t wanted; /* configured tokens */
    int block_size; /* widest width of the schedule */
    struct fidelity_round *rounds;
    size_t round_count;
};

/* One answer on its own, the moment it comes (section 6). given: tokens of the rounds before. */
bool fidelity_check_round(const struct fidelity_limits *l, const struct fidelity_round *r,
                          size_t round, size_t seed_count, int64_t given, struct error *err);
/* A finished run: row accounting, the number of tokens. */
bool fidelity_check_run(const struct fidelity_run *run, struct error *err);

/* ---- What a reference says of it ---- */

struct fidelity_reference_round {
    int count;                             /* rows of the chain: the round's scored tokens */
    const int64_t *k1_argmax;              /* [count] */
    const int64_t *declared_argmax;        /* [count] in a frame of the round's width */
    const struct fidelity_readout *top;    /* [count] */
    const double *top1_logit;              /* [count] */
    const int64_t *emitted;                /* [count] as echoed; NULL: not told */
    const double *emitted_logit;           /* [count]; NULL: not told */
    const struct fidelity_readout *verify; /* [verify_count] of the frame as the candidate ran it */
    int verify_count;                      /* 0: not replayed */
};

struct fidelity_counts {
    int64_t exact, declared_frame, near_tie, residual; /* of the scored tokens, which are emitted */
    int64_t emitted, declared_rows, accepted, rejected, target_tail, rounds;
    int64_t checked_rows, checked_rejected_rows, replayed_blocks;
    int64_t binding_comparisons, tail_comparisons;
    double max_tail_delta;
};
struct fidelity_judgement {
    struct fidelity_counts counts;
    double *deltas, *relative_deltas; /* [counts.binding_comparisons], in the order of the rows */
    int *delta_widths;                /* the width of each one's round */
};
/* Judges round after round: the structure once more, the ladder, work binding, the rejected tail;
 * then the mean and the budgets. The first violation ends it. references [run->round_count]. Deltas
 * are two a row. Everything that it makes is in the arena. A reference that contradicts itself or
 * is not finite is no violation: ReferenceInvalid. */
bool fidelity_judge(const struct fidelity_limits *l, const struct fidelity_run *run,
                    const struct fidelity_reference_round *references, struct arena *a,
                    struct fidelity_judgement *out, struct error *err);

/* ---- Timing ---- */

/* p50 is sorted[n / 2]. A time that is not finite is a stall. */
struct fidelity_latency {
    double median, longest; /* seconds */
    bool stalled;           /* longest > factor x median */
};
struct fidelity_latency fidelity_latency_of(const struct fidelity_run *run, double stall_factor,
                                            struct arena *a);

#endif
