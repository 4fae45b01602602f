/* Reading tokenizer.json: every component is understood or refused by name. */
#include "engine/text/tokenizer_json.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static bool refuse(struct error *err, const char *name, const char *file, const char *field,
                   const char *value, const char *why)
{
    error_set(err, name, "%s", why);
    return error_at(err, file, field, value);
}

static bool invalid(struct error *err)
{
    if (err && text_starts(err->name, "JSON-"))
        text_copy(err->name, sizeof err->name, "TOKENIZER-INVALID");
    return false;
}

/* The highest id of vocabulary and added tokens; ids that are no ids are refused where they are
 * read. */
static bool count_ids(const json_t *root, const char *file, size_t *out, struct error *err)
{
    json_int_t highest = -1;
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    const char *key;
    json_t *value;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return refuse(err, "TOKENIZER-INVALID", file, "model.vocab", NULL,
                      "the vocabulary is missing, empty or not an object");
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value)
    {
        if (json_integer_value(value) > highest)
            highest = json_integer_value(value);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_int_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        if (id > highest)
            highest = id;
    }
    if (highest >= TOKEN_ID_LIMIT || highest < 0) {
        char text[32];
        snprintf(text, sizeof text, "%lld", (long long)highest);
        return refuse(err, "TOKENIZER-INVALID", file, "model.vocab", text,
                      "the highest token id is not within 0 and 1,048,575");
    }
    *out = (size_t)highest + 1;
    return true;
}

static bool optional_bool(const struct json_view *v, const char *key, bool *out, struct error *err)
{
    *out = false;
    return !json_has(v, key) || json_get_bool(v, key, out, err) || invalid(err);
}

/* One entry of added_tokens, put into the vocabulary and into its set. */
static bool read_added(struct tokenizer *t, const json_t *vocab, const struct json_view *v,
                       struct error *err)
{
    const char *content;
    int64_t id;
    bool special, normalized;
    struct added_token token = {0};
    if (!json_is_object(v->object))
        return refuse(err, "TOKENIZER-INVALID", v->file, v->path, NULL, "not an object");
    if (!json_get_string(v, "content", &content, err) ||
        !json_get_int64(v, "id", 0, (int64_t)t->token_count - 1, &id, err))
        return invalid(err);
    if (!optional_bool(v, "special", &special, err) ||
        !optional_bool(v, "normalized", &normalized, err) ||
        !optional_bool(v, "single_word", &token.single_word, err) ||
        !optional_bool(v, "lstrip", &token.left_strip, err) ||
        !optional_bool(v, "rstrip", &token.right_strip, err))
        return false;
    const json_t *known = json_object_get(vocab, content);
    struct token *entry = &t->tokens[id];
    if (!*content)
        return refuse(err, "TOKENIZER-INVALID", v->file, v->path, "", "an empty added token");
    if (entry->added || (known ? json_integer_value(known) != id : entry->bytes != NULL))
        return refuse(
            err, "TOKENIZER-INVALID", v->file, v->path, content,
            "an added token's id belongs to another token, or its content has another id");
    *entry = (struct token){
        .bytes = arena_strdup(&t->arena, content),
        .length = (uint32_t)strlen(content),
        .mapped = entry->mapped,
        .added = true,
        .special = special,
    };
    token.content = entry->bytes;
    token.length = entry->length;
    token.id = (int32_t)id;
    t->added[t->added_count++] = token;
    struct added_set *set = normalized ? &t->normalized : &t->raw;
    if (normalized) {
        struct buffer text = {0};
        const bool ok = normalizer_run(&t->normalizer, content, entry->length, &text, err);
        token.content = arena_strndup(&t->arena, text.data ? text.data : "", text.length);
        token.length = text.length;
        buffer_free(&text);
        if (!ok)
            return false;
    }
    set->items[set->count++] = token;
    return true;
}

static int compare_added(const void *a, const void *b)
{
    return strcmp(((const struct added_token *)a)->content,
                  ((const struct added_token *)b)->content);
}

static bool read_all_added(struct tokenizer *t, const json_t *root, const char *file,
                           struct error *err)
{
    const json_t *list = json_object_get(root, "added_tokens");
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    if (list && !json_is_null(list) && !json_is_array(list))
        return refuse(err, "TOKENIZER-INVALID", file, "added_tokens", NULL, "not an array");
    const size_t count = json_array_size(list);
    t->added = arena_array(&t->arena, count + 1, sizeof *t->added);
    t->raw.items = arena_array(&t->arena, count + 1, sizeof *t->raw.items);
    t->normalized.items = arena_array(&t->arena, count + 1, sizeof *t->normalized.items);
    for (size_t i = 0; i < count; i++) {
        char path[48];
        snprintf(path, sizeof path, "added_tokens[%zu]", i);
        const struct json_view v = {json_array_get(list, i), file, path};
        if (!read_added(t, vocab, &v, err))
            return false;
    }
    if (count > 0)
        qsort(t->added, count, sizeof *t->added, compare_added);
    for (size_t i = 1; i < count; i++)
        if (strcmp(t->added[i - 1].content, t->added[i].content) == 0)
            return refuse(err, "TOKENIZER-INVALID", file, "added_tokens", t->added[i].content,
                          "two added tokens have the same content");
    return added_set_finish(&t->raw, err) && added_set_finish(&t->normalized, err);
}

/* --- post-processor ---------------------------------------------------------------------------*/

static bool append_special(struct tokenizer *t, const json_t *specials, const json_t *piece,
                           struct token_list *out, const char *file, struct error *err)
{
    static const char field[] = "post_processor.special_tokens";
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
    if (!json_is_array(ids))
        return refuse(err, "TOKENIZER-INVALID", file, field, name, "no ids for this special token");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= (json_int_t)t->token_count ||
            !t->tokens[json_integer_value(id)].bytes)
            return refuse(err, "TOKENIZER-INVALID", file, field, name,
                          "an id that no token of the vocabulary has");
        token_list_append(out, (int32_t)json_integer_value(id));
    }
    return true;
}

/* The template of one text: special tokens, the text once, special tokens. What earlier processors
 * put around the text stays inside. */
static bool read_template(struct tokenizer *t, const json_t *value, const char *file,
                          struct error *err)
{
    const json_t *list = json_object_get(value, "single");
    const json_t *specials = json_object_get(value, "special_tokens");
    struct token_list before = {0}, after = {0};
    size_t texts = 0;
    bool ok = json_is_array(list) ||
              refuse(err, "TOKENIZER-INVALID", file, "post_processor.single", NULL, "not an array");
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        const json_t *piece = json_array_get(list, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        const char *which = json_string_value(json_object_get(sequence, "id"));
        if (special)
            ok = append_special(t, specials, special, texts ? &after : &before, file, err);
        else if (which && strcmp(which, "A") == 0)
            texts++;
        else
            ok = refuse(err, "TOKENIZER-INVALID", file, "post_processor.single", which,
                        "neither a special token nor the sequence A");
    }
    if (ok && texts != 1)
        ok = refuse(err, "TOKENIZER-UNSUPPORTED", file, "post_processor.single", NULL,
                    "a template must hold the text exactly once");
    if (ok) {
        for (size_t i = 0; i < t->prefix.count; i++)
            token_list_append(&before, t->prefix.ids[i]);
        for (size_t i = 0; i < after.count; i++)
            token_list_append(&t->suffix, after.ids[i]);
        token_list_free(&t->prefix);
        t->prefix = before;
        before = (struct token_list){0};
    }
    token_list_free(&before);
    token_list_free(&after);
    return ok;
}

static bool read_post_processor(struct tokenizer *t, const json_t *value, const char *file,
                                int depth, struct error *err)
{
    static const char field[] = "post_processor";
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!value || json_is_null(value))
        return true;
    if (!type || depth > 8)
        return refuse(err, "TOKENIZER-INVALID", file, field, NULL, "not a post-processor");
    if (strcmp(type, "ByteLevel") == 0) /* only moves offsets, which nobody sees here */
        return true;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, value, file, err);
    if (strcmp(type, "Sequence") != 0)
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, field, type, "unknown post-processor");
    const json_t *list = json_object_get(value, "processors");
    if (!json_is_array(list))
        return refuse(err, "TOKENIZER-INVALID", file, field, type, "no list of processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_post_processor(t, json_array_get(list, i), file, depth + 1, err))
            return false;
    return true;
}

/* --- the rest ---------------------------------------------------------------------------------*/

/* ByteLevel once, alone or in Sequences. */
static bool read_decoder(const json_t *value, const char *file, int depth, size_t *byte_levels,
                         struct error *err)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!type || depth > 8)
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, "decoder", NULL,
                      "only byte-level tokenizers, whose decoder is ByteLevel");
    if (strcmp(type, "ByteLevel") == 0)
        ++*byte_levels;
    else if (strcmp(type, "Sequence") != 0)
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, "decoder", type, "unknown decoder");
    const json_t *list = json_object_get(value, "decoders");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!read_decoder(json_array_get(list, i), file, depth + 1, byte_levels, err))
            return false;
    if (depth == 0 && *byte_levels != 1)
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, "decoder", type,
                      "the decoder must be ByteLevel, once");
    return true;
}

/* Truncation and padding change what encoding gives; a model's own file has neither. */
static bool check_absent(const json_t *root, const char *file, struct error *err)
{
    static const char *const keys[] = {"truncation", "padding"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(root, keys[i]);
        if (v && !json_is_null(v))
            return refuse(err, "TOKENIZER-UNSUPPORTED", file, keys[i], NULL, "must be null");
    }
    return true;
}

bool tokenizer_json_read(struct tokenizer *t, const json_t *root, const char *file,
                         struct error *err)
{
    const json_t *model = json_object_get(root, "model");
    size_t decoders = 0;
    if (!json_is_object(root) || !json_is_object(model))
        return refuse(err, "TOKENIZER-INVALID", file, "model", NULL,
                      "the file is not an object with a model");
    if (!check_absent(root, file, err) || !count_ids(root, file, &t->token_count, err) ||
        !bpe_new(&t->arena, model, file, t->token_count, &t->bpe, err))
        return false;
    t->tokens = bpe_tokens(t->bpe);
    return normalizer_read(json_object_get(root, "normalizer"), file, &t->normalizer, err) &&
           read_all_added(t, root, file, err) && bpe_finish(t->bpe, model, file, err) &&
           pretokenizer_new(json_object_get(root, "pre_tokenizer"), file, &t->pretokenizer, err) &&
           read_post_processor(t, json_object_get(root, "post_processor"), file, 0, err) &&
           read_decoder(json_object_get(root, "decoder"), file, 0, &decoders, err);
}
