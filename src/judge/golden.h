/* Goldens: the strict loader of goldens.md. Trusted side only. */
#ifndef MLXFAST_JUDGE_GOLDEN_H
#define MLXFAST_JUDGE_GOLDEN_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct golden_tokens {
    int64_t *items;
    size_t count;
};
struct golden_case {
    const char *name;
    struct golden_tokens prompt, expected;
};
struct golden_anchor {
    const char *name;
    struct golden_tokens context;
    int64_t expected_token;
    struct golden_tokens accepted; /* count 0: absent */
    bool has_rank;
    int64_t max_expected_rank;
    bool has_delta;
    double max_top_logit_delta;
};
struct golden_free_run {
    const char *name;
    struct golden_tokens prompt, expected;
    size_t exact_prefix; /* resolved: all of expected when absent */
};
struct golden_behavior {
    const char *name;
    struct golden_tokens prompt;
    struct golden_tokens *accepted;
    size_t accepted_count;
    int64_t max_new_tokens;
    const char *semantic_prompt, *semantic_answer_key, *semantic_reference_answer, *semantic_domain,
        *semantic_subdomain; /* NULL: absent */
};
struct golden_benchmark {
    bool present;
    struct golden_tokens prefill_prompt, decode_seed, expected_decode;
    int64_t expected_prefill_token, expected_decode_seed_token;
    bool has_baseline;
    double baseline_prefill, baseline_decode; /* seconds per token */
};

struct golden {
    struct arena arena;
    const char *path, *prompt_name; /* file name minus .golden.json (or .json) */
    char sha256[SHA256_HEX];
    uint64_t bytes;
    const char *model_type;                                  /* NULL: absent */
    const char *provenance_repository, *provenance_revision; /* NULL: absent */
    struct golden_case *cases;
    size_t case_count;
    bool has_gates;
    struct golden_anchor *anchors;
    size_t anchor_count;
    struct golden_free_run *free_runs;
    size_t free_run_count;
    struct golden_behavior *behaviors;
    size_t behavior_count;
    struct golden_benchmark benchmark;
};

struct golden_rules {
    int64_t required_steps, required_prompt_tokens, vocab_size;
    int64_t required_decode_steps;   /* minimum length of expected_decode_tokens; 0: 128 */
    const char *required_model_type; /* NULL: not required */
    const char *pin_sha256;          /* NULL: no pin; else with pin_bytes */
    uint64_t pin_bytes;
    const char *pin_repository, *pin_revision; /* NULL: no reference-model pin */
    bool require_benchmark;
    bool refuse_stored_baseline; /* GOLDEN-CARRIES-STORED-BASELINE on live-control tracks */
};

/* Errors: IO, GOLDEN-PIN-MISMATCH, GOLDEN-INVALID (decode or semantic; texts of goldens.md),
 * GOLDEN-CARRIES-STORED-BASELINE. Checks run in the spec's order. */
bool golden_load(const char *path, const struct golden_rules *rules, struct golden **out,
                 struct error *err);
/* The same on bytes (the recorder validates before it writes; the fuzzer). */
bool golden_parse(const char *path, const char *data, size_t length,
                  const struct golden_rules *rules, struct golden **out, struct error *err);
void golden_free(struct golden *g);
size_t golden_gate_case_count(const struct golden *g); /* base + anchors + free runs + behaviour */

#endif
