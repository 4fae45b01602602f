/* How tokenizer.json is held after reading; shared by the reader and the coder. */
#ifndef MLXFAST_ENGINE_TEXT_TOKENIZER_JSON_H
#define MLXFAST_ENGINE_TEXT_TOKENIZER_JSON_H

#include "engine/text/added.h"
#include "engine/text/bpe.h"
#include "engine/text/normalize.h"
#include "engine/text/pretokenize.h"
#include "engine/text/tokenizer.h"

struct tokenizer {
    struct arena arena;
    struct token *tokens; /* [token_count], by id */
    size_t token_count;
    struct bpe *bpe;
    struct normalizer normalizer;
    struct pretokenizer *pretokenizer;
    struct added_set raw, normalized; /* found before and after normalisation */
    struct added_token *added;        /* all, sorted by content as it stands in the file */
    size_t added_count;
    struct token_list prefix, suffix; /* the post-processor's template around a text */
};

/* Fills t from the parsed file; on failure t may be half-filled and is closed as usual. */
bool tokenizer_json_read(struct tokenizer *t, const json_t *root, const char *file,
                         struct error *err);

#endif
