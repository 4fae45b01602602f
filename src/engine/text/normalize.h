/* The normalizer of tokenizer.json: none, or Unicode's normal forms (through utf8proc). */
#ifndef MLXFAST_ENGINE_TEXT_NORMALIZE_H
#define MLXFAST_ENGINE_TEXT_NORMALIZE_H

#include "base/buffer.h"
#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum normal_form { NORMAL_NFC, NORMAL_NFD, NORMAL_NFKC, NORMAL_NFKD, NORMAL_FORMS };
enum { MAX_NORMALIZERS = 8 };

struct normalizer { /* forms, one after the other */
    enum normal_form forms[MAX_NORMALIZERS];
    size_t count;
};

/* value: the normalizer of file, NULL and null included. Errors: TOKENIZER-INVALID,
 * TOKENIZER-UNSUPPORTED. */
bool normalizer_read(const json_t *value, const char *file, struct normalizer *out,
                     struct error *err);
/* Appends the normal form of valid UTF-8. Error TOKENIZER-LIMIT: text beyond 2 GiB. */
bool normalizer_run(const struct normalizer *n, const char *text, size_t length, struct buffer *out,
                    struct error *err);

#endif
