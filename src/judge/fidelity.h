/* Token fidelity of block decoding (dflash-track.md sections 4, 6 and 7): what each answer of a
 * block engine must hold, and how a finished run is judged against a reference that has walked the
 * same chain. Pure judgements of recorded rounds; block_run.h records them, fidelity_replay.h asks
 * the reference. docs/fidelity.md tells the rules in words.
 *
 * A violation is an error whose name is the published one, "dflash_" and the kind in snake case.
 * Messages carry the kind, the round and counts, never token ids or logits. */
#ifndef MLXFAST_JUDGE_FIDELITY_H
#define MLXFAST_JUDGE_FIDELITY_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FIDELITY_BLOCK_MOST = 16 };

/* X(kind, meaning): the enum from which names, the redaction table and the docs are made. */
#define FIDELITY_VIOLATIONS(X)                                                                     \
    X(emptyBlock, "a round gave no token")                                                         \
    X(oversizedBlock, "a round gave more tokens than its width")                                   \
    X(outOfVocabularyToken, "a token, draft or readout is outside the vocabulary")                 \
    X(tokenNotAdmissible, "a token that no rule of the ladder admits")                             \
    X(residualBudgetExhausted, "more near ties or residuals than the run's budget")                \
    X(rowAccountingMismatch, "rows, drafts and acceptances do not add up")                         \
    X(declaredRowsMissing, "fewer rows declared than tokens given")                                \
    X(workBindingMissing, "a declared row without its readout")                                    \
    X(workBindingLogitMismatch, "a row's top two logits are not the reference's")                  \
    X(draftTokenBindingMismatch, "an accepted draft is not the token given")                       \
    X(rejectedRowReadoutMismatch, "the readout of a row behind the tokens is not the reference's") \
    X(fabricatedRejection, "a draft was rejected that the reference would have accepted")          \
    X(cacheOffsetDiverged, "the cache does not stand at the seed and the tokens given")            \
    X(incompleteRun, "the rounds do not give the configured number of tokens")

enum fidelity_violation {
#define FIDELITY_ENUM(kind, meaning) FIDELITY_##kind,
    FIDELITY_VIOLATIONS(FIDELITY_ENUM)
#undef FIDELITY_ENUM
        FIDELITY_VIOLATION_COUNT
};
const char *fidelity_violation_name(enum fidelity_violation v);      /* "emptyBlock" */
const char *fidelity_violation_meaning(enum fidelity_violation v);   /* the table's words */
const char *fidelity_violation_published(enum fidelity_violation v); /* "dflash_empty_block" */
/* False with the published name as the error's, and a text of kind, round and counts. */
bool fidelity_fail(enum fidelity_violation v, size_t round, struct error *err, const char *format,
                   ...) __attribute__((format(printf, 4, 5)));

/* ---- Tolerances: from the contract's "fidelity", never from code ---- */

struct fidelity_limits {
    int64_t vocab_size;
    double near_tie_logits;        /* a token so far below the reference's top is a near tie */
    int64_t near_tie_per_thousand; /* budget, of the tokens given */
    int64_t residual_per_thousand; /* budget of tokens that are the reference's second only */
    double absolute, relative;     /* a readout may differ by both at most, not by either */
};
/* max(1, ceil(tokens * per_thousand / 1000)); 0 when per_thousand is 0. */
int64_t fidelity_budget(int64_t per_thousand, int64_t tokens);

/* ---- The widths that the judge asks for ---- */

/* SplitMix64; width = minimum + next % (maximum - minimum + 1). Never cut to what remains. */
struct fidelity_schedule {
    uint64_t state;
    int minimum, maximum;
};
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
    int64_t exact, declared_frame, near_tie, residual;
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
/* Judges round after round: the ladder, work binding, the rejected tail; then the budgets. The
 * first violation ends it. references [run->round_count]. Everything that it makes is in the arena.
 */
bool fidelity_judge(const struct fidelity_limits *l, const struct fidelity_run *run,
                    const struct fidelity_reference_round *references, struct arena *a,
                    struct fidelity_judgement *out, struct error *err);

/* ---- Timing ---- */

/* p50 is sorted[n / 2]. */
struct fidelity_latency {
    double median, longest; /* seconds */
    bool stalled;           /* longest > factor x median */
};
struct fidelity_latency fidelity_latency_of(const struct fidelity_run *run, double stall_factor,
                                            struct arena *a);

#endif
