/* Token ids from a file: a JSON array of integers, or integers between spaces, commas and line
 * breaks. */
#ifndef MLXFAST_ENGINE_SERVE_TOKEN_FILE_H
#define MLXFAST_ENGINE_SERVE_TOKEN_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct token_file {
    int64_t *ids;
    size_t count;
};
/* Errors: IO, FILE-TOO-LARGE, JSON-INVALID, TOKENS-INVALID (index and value), EMPTY-PROMPT. */
bool token_file_read(const char *path, struct token_file *out, struct error *err);
void token_file_free(struct token_file *t);
/* Error TOKEN-OUT-OF-RANGE naming the file, the index and the value. */
bool tokens_check_range(const int64_t *ids, size_t count, int vocab, const char *path,
                        struct error *err);

#endif
