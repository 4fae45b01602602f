/* The golden of a block decoder and its plan (dflash-track.md section 8 (a)): the seed, the tokens
 * that follow it, and what the reference says of each row. A timed leg needs the seed and its token
 * only; the rows are there to be looked at and screened. Trusted side only. */
#ifndef MLXFAST_JUDGE_DFLASH_GOLDEN_H
#define MLXFAST_JUDGE_DFLASH_GOLDEN_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"
#include "base/sha256.h"
#include "judge/fidelity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dflash_row {
    int64_t sequential_argmax;
    int64_t frame_argmax[FIDELITY_BLOCK_MOST + 1]; /* by width, 1 and up; -1: not told */
    struct fidelity_readout top;
    double top1_logit;
    int64_t emitted_token;
    double emitted_token_logit;
};

struct dflash_golden {
    struct arena arena;
    const char *path;
    char sha256[SHA256_HEX];
    uint64_t bytes;
    int64_t *seed;
    size_t seed_count;
    int64_t seed_token; /* reference_seed_token */
    struct dflash_row *rows;
    size_t row_count;
    bool self_consistent;
};

struct dflash_golden_rules {
    int64_t vocab_size;
    int64_t seed_tokens;  /* exactly; 0: any number from 1 */
    int64_t maximum_rows; /* 0: no more than DFLASH_GOLDEN_ROWS_MOST */
    bool require_self_consistent;
};
enum { DFLASH_GOLDEN_ROWS_MOST = 65536, DFLASH_GOLDEN_SEED_MOST = 1 << 20 };

/* Errors: IO, GOLDEN-INVALID (file, field and value named), GOLDEN-NOT-SELF-CONSISTENT. Objects are
 * closed and every field is required. Beyond types and ranges: a row's two largest logits are
 * different tokens in descending order, ties lowest id first, its top1_logit and sequential_argmax
 * the first of them, no logit of the emitted token above it; emitted_tokens are the rows'; and
 * reference_self_consistent is not true where a row contradicts it. */
bool dflash_golden_load(const char *path, const struct dflash_golden_rules *rules,
                        struct dflash_golden **out, struct error *err);
bool dflash_golden_parse(const char *path, const char *data, size_t length,
                         const struct dflash_golden_rules *rules, struct dflash_golden **out,
                         struct error *err);
void dflash_golden_free(struct dflash_golden *g);

/* Every emitted token is its row's sequential argmax: the half of the rule of self-consistency that
 * can be seen in a file. The other half, the first round replayed bit for bit, is the maker's. */
bool dflash_golden_rows_agree(const struct dflash_golden *g);

/* The document, two spaces of indentation and a final newline. */
void dflash_golden_write(const struct dflash_golden *g, struct buffer *out);

/* The plan: {seed_tokens, emitted, rounds [{block_size, count}]}. */
struct dflash_plan_round {
    int block_size, count;
};
void dflash_plan_write(const struct dflash_golden *g, const struct dflash_plan_round *rounds,
                       size_t round_count, struct buffer *out);

#endif
