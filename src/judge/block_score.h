/* The score of block decoding from the reports of its legs (dflash-track.md sections 2 and 11):
 * reports read strictly, the ratio of means, the normaliser, the plausibility bounds, the floor,
 * and the score document. The ranked loop fills the same document from its accepted pairs. */
#ifndef MLXFAST_JUDGE_BLOCK_SCORE_H
#define MLXFAST_JUDGE_BLOCK_SCORE_H

#include "base/arena.h"
#include "base/error.h"
#include "judge/block_pairs.h"
#include "judge/contract.h"
#include "judge/fidelity.h"
#include "judge/score.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Reports of legs (the objects that dflash_report.h writes) ---- */

/* reference_engine, where the reference's program is the candidate's, byte for byte, or another. */
#define BLOCK_OWN_REFERENCE "the engine itself"
#define BLOCK_OTHER_REFERENCE "another engine"

struct block_report {
    const char *error; /* a leg that failed: nothing below but tokens and block_size is told */
    int64_t tokens, block_size;
    double seconds_per_token, decode_seconds;
    int64_t seed_count, rounds, accepted, rejected, residual;
    double accepted_rate, longest; /* of its requests, in seconds */
    bool has_latency;              /* the next is told: it is not where the median is 0 */
    double max_over_median;        /* latency of its rounds */
    bool all_matched, trained_drafter;
    bool own_reference;  /* the engine was judged by itself */
    const char *drafter; /* digests of what ran */
    const char *weights;
};
/* What a report must agree with. */
struct block_report_rules {
    const char *track_id;
    int64_t tokens;                            /* configured */
    int64_t least_block_size, most_block_size; /* 1, 1: the serial control */
    int64_t seed_count;                        /* the golden's */
    const char *golden_sha256;
    struct fidelity_limits limits; /* the contract's: tolerances not widened, budgets */
};
/* Closed objects, every key there, types, finite numbers; whatever follows from other members, the
 * rules or the limits is worked out again. Errors: BLOCK-REPORT-INVALID (file
 * and field), DECODE-TOKENS-MISMATCH. Texts are copied to the arena. */
bool block_report_parse(const char *path, const char *data, size_t length,
                        const struct block_report_rules *rules, struct arena *a,
                        struct block_report *out, struct error *err);
bool block_report_load(const char *path, const struct block_report_rules *rules, struct arena *a,
                       struct block_report *out, struct error *err);

/* The object that `benchd correctness --report` writes. A base case may have diverged within its
 * leniency and passed. */
struct block_tripwire_report {
    bool passed;
    int64_t case_count;
    json_t *diverged; /* a new reference */
};
bool block_tripwire_parse(const char *path, const char *data, size_t length,
                          struct block_tripwire_report *out, struct error *err);
bool block_tripwire_load(const char *path, struct block_tripwire_report *out, struct error *err);

/* ---- Arithmetic ---- */

/* The speedup of the unmodified engine that the contract pins for a golden; 0: it pins none. */
double block_score_normaliser(const struct contract *c, const char *golden_sha256);
/* The same where a score must be normalised: none is NOOP-SPEEDUP-UNPINNED. */
bool block_score_require_normaliser(const struct contract *c, const char *golden_sha256,
                                    double *out, struct error *err);
/* The contract's bounds, both included. Error RAW-SPEEDUP-IMPLAUSIBLE. */
bool block_score_check_raw(const struct contract_block_decode *b, double raw, struct error *err);

/* ---- The document ---- */

/* The guardrail that has a ranked pair measured again (block_pairs.h), of a local run's legs: it
 * tells, and decides nothing. */
struct block_stall {
    bool failed;           /* a leg did, and tells nothing */
    bool known;            /* every leg tells its latency, or one that does is stalled */
    bool stalled;          /* a leg's longest round above stall_factor times its median one */
    double worst;          /* the largest ratio told; of pair and side */
    size_t pair;           /* from 0 */
    bool of_the_benchmark; /* else of the probe */
};

enum block_mode { BLOCK_LOCAL_ITERATE, BLOCK_LOCAL_SUBMIT, BLOCK_OFFICIAL };
bool block_mode_parse(const char *text, enum block_mode *out); /* a local one */
const char *block_mode_name(enum block_mode mode);
int64_t block_mode_tokens(const struct contract_block_decode *b, enum block_mode mode);

enum block_tripwire { BLOCK_TRIPWIRE_NOT_RUN, BLOCK_TRIPWIRE_PASSED, BLOCK_TRIPWIRE_DRIFTED };

struct block_score_inputs {
    const struct contract *contract; /* with block_decode and a decode floor */
    enum block_mode mode;
    int64_t tokens;
    const char *golden_sha256;
    const struct block_report *probes, *benchmarks; /* [pair_count], in order */
    size_t pair_count;                              /* 1 or more */
    enum block_tripwire tripwire;
    int64_t tripwire_cases;
    json_t *diverged; /* what drifted; NULL: not told. Borrowed */
    /* BLOCK_OFFICIAL alone. The golden above is the hidden prompt's: it finds the normaliser and is
     * not told. pair_count may be 0 where the run has failed. */
    const char *correctness_sha256; /* of the correctness golden; NULL: not read yet */
    const char *drafter_sha256;     /* likewise */
    bool passed_correctness;
    const struct error
        *failure; /* what ended the run: its category is told, and no time; or NULL */
};
struct block_stall block_score_stall(const struct block_score_inputs *in);
/* Fills a document that score_document_init made. What fails the run is in it: a leg's own failure,
 * the tripwire, the bounds, the floor (on the normalised number, where there is one). An official
 * score must be normalised, and tells of a failure by its published category alone. */
void block_score_fill(struct score_document *d, const struct block_score_inputs *in);

#endif
