/* Text to ids and back. */
#include "engine/text/tokenizer.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/text/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

enum { FILE_LIMIT = 256 << 20, TEXT_LIMIT = 1 << 30 };

void token_list_append(struct token_list *l, int32_t id)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 64;
        l->ids = memory_realloc(l->ids, l->capacity * sizeof *l->ids);
    }
    l->ids[l->count++] = id;
}

void token_list_free(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}

static void append_list(struct token_list *l, const struct token_list *more)
{
    for (size_t i = 0; i < more->count; i++)
        token_list_append(l, more->ids[i]);
}

bool tokenizer_open(const char *path, struct tokenizer **out, struct error *err)
{
    struct tokenizer *t = memory_alloc(sizeof *t);
    const char *file =
        file_is_directory(path) ? path_join(&t->arena, path, "tokenizer.json") : path;
    json_t *root = json_read_file(file, FILE_LIMIT, JSON_DEPTH_DEFAULT, err);
    if (!root && err && text_starts(err->name, "JSON-"))
        text_copy(err->name, sizeof err->name, "TOKENIZER-INVALID");
    const bool ok = root && tokenizer_json_read(t, root, file, err);
    json_decref(root);
    if (!ok) {
        tokenizer_close(t);
        return false;
    }
    *out = t;
    return true;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    pretokenizer_free(t->pretokenizer);
    added_set_free(&t->raw);
    added_set_free(&t->normalized);
    token_list_free(&t->prefix);
    token_list_free(&t->suffix);
    arena_free(&t->arena);
    free(t);
}

size_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->token_count;
}

/* --- encoding ---------------------------------------------------------------------------------*/

/* What one call needs besides the tokenizer. */
struct encoding {
    const struct tokenizer *tokenizer;
    struct matcher *matcher;
    struct bpe_scratch *bpe;
    struct pieces pieces;
    bool plain;
    struct token_list *out;
};

static bool encoding_begin(struct encoding *e, const struct tokenizer *t, const char *text,
                           size_t length, bool plain, struct token_list *out, struct error *err)
{
    *e = (struct encoding){.tokenizer = t, .plain = plain, .out = out};
    if (length > TEXT_LIMIT)
        return error_set(err, "TOKENIZER-LIMIT", "the text is longer than 1 GiB");
    if (!utf8_valid(text, length))
        return error_set(err, "TEXT-INVALID-UTF8", "the text is not valid UTF-8");
    e->matcher = matcher_new();
    e->bpe = bpe_scratch_new();
    return true;
}

static void encoding_end(struct encoding *e)
{
    matcher_free(e->matcher);
    bpe_scratch_free(e->bpe);
    pieces_free(&e->pieces);
}

/* Normalised text without tokens in it. */
static bool encode_pieces(struct encoding *e, const char *text, size_t length, struct error *err)
{
    const struct tokenizer *t = e->tokenizer;
    if (!pretokenizer_run(t->pretokenizer, e->matcher, text, length, &e->pieces, err))
        return false;
    for (size_t i = 0; i < e->pieces.count; i++) {
        const struct piece *p = &e->pieces.items[i];
        bpe_encode(t->bpe, e->bpe, e->pieces.text.data + p->start, p->end - p->start, e->plain,
                   e->out);
    }
    return true;
}

/* Ordinary text as it came: normalised, then searched for tokens that are found in normal form. */
static bool encode_span(struct encoding *e, const char *text, size_t length, struct error *err)
{
    const struct tokenizer *t = e->tokenizer;
    struct buffer normal = {0};
    struct added_spans spans = {0};
    bool ok = normalizer_run(&t->normalizer, text, length, &normal, err);
    if (ok && (e->plain || t->normalized.count == 0)) {
        ok = encode_pieces(e, normal.data, normal.length, err);
    } else if (ok) {
        added_set_split(&t->normalized, e->matcher, normal.data, normal.length, &spans);
        for (size_t i = 0; ok && i < spans.count; i++) {
            const struct added_span *s = &spans.items[i];
            if (s->id >= 0)
                token_list_append(e->out, s->id);
            else
                ok = encode_pieces(e, normal.data + s->start, s->end - s->start, err);
        }
    }
    buffer_free(&normal);
    free(spans.items);
    return ok;
}

bool tokenizer_encode(const struct tokenizer *t, const char *text, size_t length,
                      struct token_list *out, struct error *err)
{
    struct encoding e;
    const size_t before = out->count;
    const bool ok = encoding_begin(&e, t, text, length, true, out, err) &&
                    (length == 0 || encode_span(&e, text, length, err));
    encoding_end(&e);
    if (!ok)
        out->count = before;
    return ok;
}

bool tokenizer_encode_markup(const struct tokenizer *t, const char *text, size_t length,
                             bool with_special, struct token_list *out, struct error *err)
{
    struct encoding e;
    struct added_spans spans = {0};
    const size_t before = out->count;
    bool ok = encoding_begin(&e, t, text, length, false, out, err);
    if (ok) {
        if (with_special)
            append_list(out, &t->prefix);
        added_set_split(&t->raw, e.matcher, text, length, &spans);
    }
    for (size_t i = 0; ok && i < spans.count; i++) {
        const struct added_span *s = &spans.items[i];
        if (s->id >= 0)
            token_list_append(out, s->id);
        else
            ok = encode_span(&e, text + s->start, s->end - s->start, err);
    }
    if (ok && with_special)
        append_list(out, &t->suffix);
    encoding_end(&e);
    free(spans.items);
    if (!ok)
        out->count = before;
    return ok;
}

/* --- decoding ---------------------------------------------------------------------------------*/

static const struct token *find_token(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || (size_t)id >= t->token_count || !t->tokens[id].bytes)
        return NULL;
    return &t->tokens[id];
}

bool tokenizer_token_bytes(const struct tokenizer *t, int32_t id, const char **bytes,
                           size_t *length)
{
    const struct token *token = find_token(t, id);
    if (!token)
        return false;
    *bytes = token->bytes;
    *length = token->length;
    return true;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    const struct token *token = find_token(t, id);
    return token && token->special;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *content)
{
    size_t low = 0, high = t->added_count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(t->added[middle].content, content);
        if (order == 0)
            return t->added[middle].id;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* How many bytes one U+FFFD stands for: the longest beginning of a character, or one byte. */
static size_t invalid_length(const uint8_t *data, size_t length)
{
    size_t n = 1;
    for (size_t k = 2; k <= 3 && k <= length; k++)
        if (utf8_sequence(data, k) < 0)
            n = k;
    return n;
}

/* Appends what is complete of data and returns how much of it was used; the rest, at most three
 * bytes, may become a character yet. */
static size_t append_complete(const uint8_t *data, size_t length, struct buffer *out)
{
    size_t at = 0;
    while (at < length) {
        const int n = utf8_sequence(data + at, length - at);
        if (n < 0)
            break;
        if (n > 0) {
            buffer_append(out, data + at, (size_t)n);
            at += (size_t)n;
        } else {
            buffer_text(out, REPLACEMENT);
            at += invalid_length(data + at, length - at);
        }
    }
    return at;
}

void token_stream_begin(struct token_stream *s, const struct tokenizer *t, bool skip_special)
{
    *s = (struct token_stream){.tokenizer = t, .skip_special = skip_special};
}

bool token_stream_push(struct token_stream *s, int32_t id, struct buffer *out, struct error *err)
{
    const struct token *token = find_token(s->tokenizer, id);
    if (!token) {
        char value[16];
        snprintf(value, sizeof value, "%d", id);
        error_set(err, "TOKEN-UNKNOWN", "no token of the vocabulary has this id");
        return error_at(err, NULL, "id", value);
    }
    if (s->skip_special && token->special)
        return true;
    const uint8_t *bytes = (const uint8_t *)token->bytes;
    size_t at = 0;
    /* The held bytes first: one by one, until they are a character or cannot be one. */
    while (s->pending_count > 0 && at < token->length) {
        s->pending[s->pending_count++] = bytes[at++];
        const size_t used = append_complete(s->pending, s->pending_count, out);
        s->pending_count -= used;
        memmove(s->pending, s->pending + used, s->pending_count);
    }
    if (at < token->length) {
        at += append_complete(bytes + at, token->length - at, out);
        s->pending_count = token->length - at;
        memcpy(s->pending, bytes + at, s->pending_count);
    }
    return true;
}

void token_stream_finish(struct token_stream *s, struct buffer *out)
{
    if (s->pending_count > 0)
        buffer_text(out, REPLACEMENT);
    s->pending_count = 0;
}

bool tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count,
                      bool skip_special, struct buffer *out, struct error *err)
{
    struct token_stream s;
    token_stream_begin(&s, t, skip_special);
    for (size_t i = 0; i < count; i++)
        if (!token_stream_push(&s, ids[i], out, err))
            return false;
    token_stream_finish(&s, out);
    return true;
}
