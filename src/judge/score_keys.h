/* The keys of metrics: which are always there, which may be, and what type each has
 * (sealing-and-digests.md 1.1 and 1.2). */
#ifndef MLXFAST_JUDGE_SCORE_KEYS_H
#define MLXFAST_JUDGE_SCORE_KEYS_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum score_kind { SCORE_INT, SCORE_REAL, SCORE_BOOL, SCORE_TEXT, SCORE_OBJECT, SCORE_ARRAY };

struct score_key {
    const char *key;
    enum score_kind kind;
    bool nullable;
};

const struct score_key *score_keys_required(size_t *count); /* 56 */
const struct score_key *score_keys_optional(size_t *count);

/* Every required key there, every key on a list, every value of its type, nested records closed.
 * Error SCORE-INVALID naming the key. */
bool score_keys_check(const json_t *metrics, struct error *err);

#endif
