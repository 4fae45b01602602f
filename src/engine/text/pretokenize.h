/* The pre-tokenizer of tokenizer.json: cuts text into the pieces that BPE works on, one by one.
 *
 * Split, Digits and ByteLevel, alone or in a Sequence that ends with ByteLevel. Pieces stay plain
 * UTF-8: the byte-to-character map of ByteLevel is undone in the vocabulary instead. */
#ifndef MLXFAST_ENGINE_TEXT_PRETOKENIZE_H
#define MLXFAST_ENGINE_TEXT_PRETOKENIZE_H

#include "base/buffer.h"
#include "base/error.h"
#include "engine/text/pattern.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct piece {
    size_t start, end; /* in the text of struct pieces */
};

struct pieces { /* zeroed: empty */
    struct buffer text;
    struct piece *items;
    size_t count, capacity;
};
void pieces_free(struct pieces *p);

struct pretokenizer;
/* value: the pre_tokenizer of file. Errors: TOKENIZER-INVALID, TOKENIZER-UNSUPPORTED. */
bool pretokenizer_new(const json_t *value, const char *file, struct pretokenizer **out,
                      struct error *err);
void pretokenizer_free(struct pretokenizer *p);

/* Cuts text (valid UTF-8) into out, which is emptied first. Error TOKENIZER-LIMIT. */
bool pretokenizer_run(const struct pretokenizer *p, struct matcher *m, const char *text,
                      size_t length, struct pieces *out, struct error *err);

#endif
