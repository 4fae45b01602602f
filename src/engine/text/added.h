/* Added tokens: finding them in trusted text, as the tokenizers package does. */
#ifndef MLXFAST_ENGINE_TEXT_ADDED_H
#define MLXFAST_ENGINE_TEXT_ADDED_H

#include "base/arena.h"
#include "base/error.h"
#include "engine/text/pattern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct added_token {
    const char *content; /* what is looked for: normalised where the token says so */
    size_t length;
    int32_t id;
    bool single_word, left_strip, right_strip;
};

/* Tokens of one kind (found before or after normalisation), sorted by content. */
struct added_set {
    struct added_token *items;
    size_t count;
    struct pattern *word_character; /* NULL when no token is single_word */
};

bool added_set_finish(struct added_set *set, struct error *err); /* sorts, compiles */
void added_set_free(struct added_set *set); /* the pattern; items belong to their arena */

struct added_span {
    size_t start, end;
    int32_t id; /* -1: ordinary text */
};
struct added_spans { /* zeroed: empty */
    struct added_span *items;
    size_t count, capacity;
};

/* Cuts text into ordinary spans and tokens, in order: at each place the longest token wins. */
void added_set_split(const struct added_set *set, struct matcher *m, const char *text,
                     size_t length, struct added_spans *out);

#endif
