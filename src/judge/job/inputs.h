/* What a job is timed on: its prompts, each a tape or a golden, what the contract's pool pins of
 * them, and the cohorts they form. */
#ifndef MLXFAST_JUDGE_JOB_INPUTS_H
#define MLXFAST_JUDGE_JOB_INPUTS_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"
#include "judge/contract.h"
#include "judge/golden.h"
#include "judge/tape.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JOB_COHORT_STREAMS = 8 };

struct job_prompt {
    const char *path, *name;
    const char *sha256; /* of the raw bytes: what the pool pins */
    struct golden *golden;
    struct tape *tape; /* one of the two */
    const int64_t *seed;
    size_t seed_count;
    int64_t seed_token;
    double noop; /* the pool's noop_decode_speedup; 0: none */
};
/* The tokens that follow the seed's, steps of them. Error GOLDEN-INVALID or TAPE-INVALID: it holds
 * fewer. */
bool job_prompt_tokens(struct arena *a, const struct job_prompt *p, int64_t steps,
                       const int64_t **out, struct error *err);

struct job_cohort {
    const struct job_prompt *members[JOB_COHORT_STREAMS]; /* in slot order */
    char sha256[SHA256_HEX]; /* of the members' digests, each with a line break */
};

struct job_inputs {
    struct job_prompt *prompts;
    size_t prompt_count;
    struct job_cohort *cohorts;
    size_t cohort_count; /* 0: each prompt by itself */
};

/* Loads each file, by its own rules. Errors: the loaders', and GOLDEN-REPEATED: two files have the
 * same bytes. */
bool job_inputs_load(struct arena *a, const struct contract *c, const char *const *paths,
                     size_t count, struct job_inputs *out, struct error *err);
void job_inputs_free(struct job_inputs *in);

/* Each prompt is pinned by exactly one entry of the pool, with a no-op speedup above 0 where
 * need_noop (GOLDEN-NOT-POOLED), of the same length where declared (GOLDEN-PIN-MISMATCH). */
bool job_inputs_check_pins(struct job_inputs *in, const struct contract *c, bool need_noop,
                           struct error *err);
/* Takes what the pool says of them, and refuses nothing. */
void job_inputs_take_pins(struct job_inputs *in, const struct contract *c);
/* Error POOL-NOT-COVERED: an entry of the pool is no prompt of the job. */
bool job_inputs_check_cover(const struct job_inputs *in, const struct contract *c,
                            struct error *err);

/* The contract's exponents: declared flat, or nested as older fixtures do, or as the weights of
 * newer ones. Errors: SCORED-EXPONENTS-CONFLICT, SCORED-REGIME-PENDING-DECLARATION. */
bool job_contract_exponents(const struct contract *c, double *prefill, double *decode,
                            struct error *err);

/* Cohorts of eight, in the pool's order; prompts that it does not pin come after, as given. Error
 * COHORT-MEMBERSHIP-INVALID: the prompts are no multiple of eight, or a cohort's seeds differ in
 * length. */
bool job_inputs_form_cohorts(struct job_inputs *in, const struct contract *c, struct arena *a,
                             struct error *err);

/* A captured request of the timed prompt: token ids, an array or a text of numbers. Its SHA-256 is
 * the given one (PROMPT-DIGEST-MISMATCH), and they are the seed of exactly one prompt
 * (PROMPT-WIRE-MISMATCH). Other errors: IO and its like. */
bool job_wire_check_digest(const char *path, const char *sha256, struct error *err);
bool job_wire_check_seed(const struct job_inputs *in, const char *path, struct error *err);

#endif
