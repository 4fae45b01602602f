/* The vocabulary and the merges of a byte-level BPE: pieces of bytes to ids.
 *
 * tokenizer.json writes bytes as printable characters (GPT-2's map); here tokens are the bytes
 * themselves. A vocabulary entry with a character outside the map stands for its own UTF-8 and is
 * never the result of encoding. */
#ifndef MLXFAST_ENGINE_TEXT_BPE_H
#define MLXFAST_ENGINE_TEXT_BPE_H

#include "base/arena.h"
#include "base/error.h"
#include "engine/text/tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOKEN_ID_LIMIT = 1 << 20 }; /* ids are below it: bounds what a bad id can make us allocate */

struct token {
    const char *bytes; /* NULL: no token has this id */
    uint32_t length;
    bool mapped;  /* made of mapped bytes, so encoding can reach it */
    bool added;   /* in added_tokens */
    bool special; /* and flagged special */
};

struct bpe;
/* model: the model of file; id_count: highest id + 1 over vocabulary and added tokens. Everything
 * is put into the arena. Errors: TOKENIZER-INVALID, TOKENIZER-UNSUPPORTED. */
bool bpe_new(struct arena *a, const json_t *model, const char *file, size_t id_count,
             struct bpe **out, struct error *err);
struct token *bpe_tokens(struct bpe *b); /* [id_count]; the caller marks added tokens, then: */
/* Indexes the tokens and the merges. Error TOKENIZER-UNSUPPORTED: a byte without a token. */
bool bpe_finish(struct bpe *b, const json_t *model, const char *file, struct error *err);

struct bpe_scratch; /* of one thread */
struct bpe_scratch *bpe_scratch_new(void);
void bpe_scratch_free(struct bpe_scratch *s);

/* Appends the ids of one piece. plain: no id of an added token comes out. */
void bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *piece, size_t length,
                bool plain, struct token_list *out);

#endif
