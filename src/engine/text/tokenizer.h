/* Byte-level BPE from a Hugging Face tokenizer.json.
 *
 * Text from a user never yields an added or special id: encoding treats everything as ordinary
 * pieces unless tokenizer_encode_markup is called, which the chat template's own scaffold uses.
 * Decoding is lossless: tokens are bytes, and the streaming decoder holds back incomplete UTF-8. */
#ifndef MLXFAST_ENGINE_TEXT_TOKENIZER_H
#define MLXFAST_ENGINE_TEXT_TOKENIZER_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer; /* immutable after loading; safe to share between threads */

struct token_list {
    int32_t *ids;
    size_t count, capacity;
};
void token_list_append(struct token_list *l, int32_t id);
void token_list_free(struct token_list *l);

/* Reads <folder>/tokenizer.json. Errors: TOKENIZER-INVALID, TOKENIZER-UNSUPPORTED (a component of
 * the format that this reader does not implement, by name). */
bool tokenizer_open(const char *path, struct tokenizer **out, struct error *err);
void tokenizer_close(struct tokenizer *t);
size_t tokenizer_vocab_size(const struct tokenizer *t); /* highest id + 1, added tokens included */

/* Plain text: no added token is recognised, nothing is prepended. Error TEXT-INVALID-UTF8. */
bool tokenizer_encode(const struct tokenizer *t, const char *text, size_t length,
                      struct token_list *out, struct error *err);
/* As Hugging Face's encode(add_special_tokens=with_special): added tokens in the text are
 * recognised; with_special applies the post-processor's template. For trusted text only. */
bool tokenizer_encode_markup(const struct tokenizer *t, const char *text, size_t length,
                             bool with_special, struct token_list *out, struct error *err);

/* The bytes of one token (an added token's content, or the mapped bytes); points into t. False for
 * an id outside the vocabulary. */
bool tokenizer_token_bytes(const struct tokenizer *t, int32_t id, const char **bytes,
                           size_t *length);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);       /* flagged special */
int32_t tokenizer_find(const struct tokenizer *t, const char *content); /* added token, or -1 */

/* Whole-sequence decode; skip_special leaves out ids flagged special. */
bool tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
                      bool skip_special, struct buffer *out, struct error *err);

/* Streaming: push appends to out only complete UTF-8 characters; invalid bytes become U+FFFD as in
 * the whole-sequence decode (lossy UTF-8 decoding of the concatenated bytes); finish flushes. */
struct token_stream {
    const struct tokenizer *tokenizer;
    bool skip_special;
    uint8_t pending[4];
    size_t pending_count;
};
void token_stream_begin(struct token_stream *s, const struct tokenizer *t, bool skip_special);
bool token_stream_push(struct token_stream *s, int32_t id, struct buffer *out, struct error *err);
void token_stream_finish(struct token_stream *s, struct buffer *out);

#endif
