/* Timed-prompt tapes: the older form of a golden, a prompt with the tokens of its greedy
 * continuation, accepted by measure-job only (goldens.md section 5). No version, no prefill oracle:
 * only a decode window can be timed from one. */
#ifndef MLXFAST_JUDGE_TAPE_H
#define MLXFAST_JUDGE_TAPE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tape_row {
    int64_t sequential_argmax; /* the token emitted at index i + 1 */
    bool has_top2_tokens, has_top2_logits, has_top1_logit;
    int64_t top2_tokens[2];
    double top2_logits[2], top1_logit;
};

struct tape {
    struct arena arena;
    const char *path, *prompt_name; /* file name minus .golden.json (or .json) */
    char sha256[SHA256_HEX];        /* of the raw bytes: what the contract's pool pins */
    uint64_t bytes;
    const int64_t *seed_tokens; /* the prompt */
    size_t seed_count;
    int64_t reference_seed_token; /* argmax after the seed: the first emitted token */
    const struct tape_row *rows;
    size_t row_count;
    bool has_self_consistent; /* then it is true: false is refused */
    bool has_emitted_tokens;  /* then they are the rows' argmaxes */
};

/* What a --golden of measure-job is, by its required keys alone: a broken tape is a tape. */
enum timed_input { TIMED_INPUT_TAPE, TIMED_INPUT_GOLDEN };

/* Errors: IO; TIMED-INPUT-UNKNOWN, no strict JSON or "--golden ... matches NEITHER accepted shape".
 */
bool timed_input_route(const char *path, enum timed_input *out, struct error *err);
bool timed_input_route_bytes(const char *path, const char *data, size_t length,
                             enum timed_input *out, struct error *err);

/* Errors: IO; TAPE-INVALID with the field and its value; TAPE-NOT-SELF-CONSISTENT, the operator's
 * fault: the reference did not agree with itself when the tape was made. */
bool tape_load(const char *path, int64_t vocab_size, struct tape **out, struct error *err);
/* The same on bytes; path only names the source. */
bool tape_parse(const char *path, const char *data, size_t length, int64_t vocab_size,
                struct tape **out, struct error *err);
void tape_free(struct tape *t);

#endif
