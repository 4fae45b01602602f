/* Merging by rank with a heap over a linked list: n log n for a piece of n bytes, however long. */
#include "engine/text/bpe.h"
#include "base/buffer.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct merge {
    uint64_t pair; /* left id << 32 | right id; EMPTY: free slot */
    uint32_t rank;
    int32_t id; /* what the pair becomes */
};
static const uint64_t EMPTY = UINT64_MAX;

struct bpe {
    struct arena *arena;
    struct token *tokens;
    size_t token_count;
    int32_t *words; /* open addressing: bytes of a mapped token -> id; -1 is free */
    size_t word_slots;
    struct merge *merges; /* open addressing */
    size_t merge_slots;
    int32_t byte_ids[256];
    bool ignore_merges;
};

/* --- reading ----------------------------------------------------------------------------------*/

static bool refuse(struct error *err, const char *name, const char *file, const char *field,
                   const char *value, const char *why)
{
    error_set(err, name, "%s", why);
    return error_at(err, file, field, value);
}

/* GPT-2's map: printable bytes are themselves, the others stand at U+0100 and above in order. */
static int byte_of_character(uint32_t c)
{
    static const struct {
        uint8_t first, last;
    } moved[] = {{0x00, 0x20}, {0x7F, 0xA0}, {0xAD, 0xAD}};
    if (c < 0x100) {
        for (size_t i = 0; i < 3; i++)
            if (c >= moved[i].first && c <= moved[i].last)
                return -1;
        return (int)c;
    }
    uint32_t left = c - 0x100;
    for (size_t i = 0; i < 3; i++) {
        const uint32_t n = moved[i].last - moved[i].first + 1u;
        if (left < n)
            return (int)(moved[i].first + left);
        left -= n;
    }
    return -1;
}

/* text is valid UTF-8 of at most two bytes a character where it is mapped at all. */
static bool map_to_bytes(const char *text, size_t length, char *out, uint32_t *out_length)
{
    uint32_t n = 0;
    for (size_t i = 0; i < length;) {
        const uint8_t c = (uint8_t)text[i];
        uint32_t point = c;
        if (c >= 0x80) {
            if (c >= 0xE0 || i + 1 == length)
                return false;
            point = (uint32_t)(c & 0x1F) << 6 | ((uint8_t)text[i + 1] & 0x3F);
        }
        i += c < 0x80 ? 1 : 2;
        const int byte = byte_of_character(point);
        if (byte < 0)
            return false;
        out[n++] = (char)byte;
    }
    *out_length = n;
    return true;
}

static bool read_vocab(struct bpe *b, const json_t *vocab, const char *file, struct error *err)
{
    const char *text;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        const json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || (size_t)id >= b->token_count)
            return refuse(err, "TOKENIZER-INVALID", file, "model.vocab", text,
                          "a token's id is not an integer from 0 to 1,048,575");
        struct token *t = &b->tokens[id];
        if (t->bytes)
            return refuse(err, "TOKENIZER-INVALID", file, "model.vocab", text,
                          "two tokens have the same id");
        if (!*text)
            return refuse(err, "TOKENIZER-INVALID", file, "model.vocab", "", "an empty token");
        const size_t length = strlen(text);
        char *bytes = arena_alloc(b->arena, length + 1);
        t->mapped = map_to_bytes(text, length, bytes, &t->length);
        if (!t->mapped) {
            memcpy(bytes, text, length);
            t->length = (uint32_t)length;
        }
        t->bytes = bytes;
    }
    return true;
}

static bool read_switch(const json_t *model, const char *key, const char *file, bool *out,
                        struct error *err)
{
    const struct json_view v = {model, file, "model"};
    const json_t *value = json_object_get(model, key);
    *out = false;
    if (!value || json_is_null(value) || json_get_bool(&v, key, out, err))
        return true;
    if (err)
        text_copy(err->name, sizeof err->name, "TOKENIZER-INVALID");
    return false;
}

/* Settings that change the result: only what byte-level BPE without them means passes. */
static bool check_settings(struct bpe *b, const json_t *model, const char *file, struct error *err)
{
    static const struct {
        const char *key, *field;
    } empty[] = {{"continuing_subword_prefix", "model.continuing_subword_prefix"},
                 {"end_of_word_suffix", "model.end_of_word_suffix"}};
    const json_t *type = json_object_get(model, "type");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, "model.type", json_string_value(type),
                      "the model is not BPE");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, empty[i].key);
        if (v && !json_is_null(v) && (!json_is_string(v) || json_string_length(v) > 0))
            return refuse(err, "TOKENIZER-UNSUPPORTED", file, empty[i].field, json_string_value(v),
                          "must be absent, null or empty");
    }
    bool byte_fallback;
    if (!read_switch(model, "byte_fallback", file, &byte_fallback, err) ||
        !read_switch(model, "ignore_merges", file, &b->ignore_merges, err))
        return false;
    if (byte_fallback)
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, "model.byte_fallback", "true",
                      "byte fallback is not implemented");
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return refuse(err, "TOKENIZER-UNSUPPORTED", file, "model.dropout", NULL,
                      "dropout is not implemented");
    return true;
}

bool bpe_new(struct arena *a, const json_t *model, const char *file, size_t id_count,
             struct bpe **out, struct error *err)
{
    struct bpe *b = arena_alloc(a, sizeof *b);
    b->arena = a;
    b->token_count = id_count;
    b->tokens = arena_array(a, id_count, sizeof *b->tokens);
    if (!check_settings(b, model, file, err) ||
        !read_vocab(b, json_object_get(model, "vocab"), file, err))
        return false;
    *out = b;
    return true;
}

struct token *bpe_tokens(struct bpe *b)
{
    return b->tokens;
}

/* --- the two tables ---------------------------------------------------------------------------*/

static uint64_t hash_bytes(const char *data, size_t length)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a, then mixed */
    for (size_t i = 0; i < length; i++)
        h = (h ^ (uint8_t)data[i]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

static uint64_t hash_pair(uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

static size_t slots_for(size_t count)
{
    size_t slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    return slots;
}

static int32_t find_word(const struct bpe *b, const char *bytes, size_t length)
{
    for (size_t i = hash_bytes(bytes, length);; i++) {
        const int32_t id = b->words[i & (b->word_slots - 1)];
        if (id < 0)
            return -1;
        const struct token *t = &b->tokens[id];
        if (t->length == length && memcmp(t->bytes, bytes, length) == 0)
            return id;
    }
}

static void index_words(struct bpe *b)
{
    b->word_slots = slots_for(b->token_count);
    b->words = arena_array(b->arena, b->word_slots, sizeof *b->words);
    for (size_t i = 0; i < b->word_slots; i++)
        b->words[i] = -1;
    for (size_t id = 0; id < b->token_count; id++) {
        const struct token *t = &b->tokens[id];
        if (!t->bytes || !t->mapped)
            continue;
        size_t i = hash_bytes(t->bytes, t->length);
        while (b->words[i & (b->word_slots - 1)] >= 0)
            i++;
        b->words[i & (b->word_slots - 1)] = (int32_t)id;
    }
}

static struct merge *merge_slot(const struct bpe *b, uint64_t pair)
{
    size_t i = hash_pair(pair) & (b->merge_slots - 1);
    while (b->merges[i].pair != pair && b->merges[i].pair != EMPTY)
        i = (i + 1) & (b->merge_slots - 1);
    return &b->merges[i];
}

static const struct merge *find_merge(const struct bpe *b, int32_t left, int32_t right, bool plain)
{
    const struct merge *m = merge_slot(b, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return m->pair == EMPTY || (plain && b->tokens[m->id].added) ? NULL : m;
}

/* One merge is ["a", "b"] or, in older files, "a b". */
static bool merge_texts(const json_t *value, struct buffer *left, const char **right)
{
    buffer_clear(left);
    if (json_is_array(value) && json_array_size(value) == 2) {
        const char *a = json_string_value(json_array_get(value, 0));
        *right = json_string_value(json_array_get(value, 1));
        if (!a || !*right)
            return false;
        buffer_text(left, a);
        return true;
    }
    const char *text = json_string_value(value);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return false;
    buffer_append(left, text, (size_t)(space - text));
    *right = space + 1;
    return true;
}

static bool index_merges(struct bpe *b, const json_t *model, const char *file, struct error *err)
{
    const json_t *vocab = json_object_get(model, "vocab"), *list = json_object_get(model, "merges");
    b->merge_slots = slots_for(json_array_size(list));
    b->merges = arena_array(b->arena, b->merge_slots, sizeof *b->merges);
    for (size_t i = 0; i < b->merge_slots; i++)
        b->merges[i].pair = EMPTY;
    struct buffer text = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        char field[48];
        snprintf(field, sizeof field, "model.merges[%zu]", i);
        const char *right = NULL;
        if (!merge_texts(json_array_get(list, i), &text, &right)) {
            ok = refuse(err, "TOKENIZER-INVALID", file, field, NULL, "a merge is not two texts");
            break;
        }
        const json_t *a = json_object_get(vocab, text.data ? text.data : "");
        const json_t *c = json_object_get(vocab, right);
        buffer_text(&text, right);
        const json_t *joined = json_object_get(vocab, text.data ? text.data : "");
        if (!a || !c || !joined) {
            ok = refuse(err, "TOKENIZER-INVALID", file, field, text.data,
                        "a part of the merge, or what it makes, is not in the vocabulary");
            break;
        }
        const uint64_t pair =
            (uint64_t)json_integer_value(a) << 32 | (uint64_t)json_integer_value(c);
        /* A pair that is listed twice has its last rank. */
        *merge_slot(b, pair) =
            (struct merge){pair, (uint32_t)i, (int32_t)json_integer_value(joined)};
    }
    buffer_free(&text);
    return ok;
}

/* Every byte that valid UTF-8 can hold needs a token of its own that is not an added one. */
static bool index_bytes(struct bpe *b, const char *file, struct error *err)
{
    for (int byte = 0; byte < 256; byte++) {
        const char c = (char)byte;
        const int32_t id = find_word(b, &c, 1);
        b->byte_ids[byte] = id;
        const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
        if (in_utf8 && (id < 0 || b->tokens[id].added)) {
            char value[8];
            snprintf(value, sizeof value, "0x%02X", byte);
            return refuse(err, "TOKENIZER-UNSUPPORTED", file, "model.vocab", value,
                          "a byte has no ordinary token of its own");
        }
    }
    return true;
}

bool bpe_finish(struct bpe *b, const json_t *model, const char *file, struct error *err)
{
    if (!json_is_array(json_object_get(model, "merges")))
        return refuse(err, "TOKENIZER-INVALID", file, "model.merges", NULL,
                      "the merges are missing or not an array");
    index_words(b);
    return index_merges(b, model, file, err) && index_bytes(b, file, err);
}

/* --- merging ----------------------------------------------------------------------------------*/

enum { NONE = -1 };

struct symbol {
    int32_t id; /* NONE: swallowed by its left neighbour */
    int32_t previous, next;
};

struct candidate {
    uint32_t rank;
    int32_t position; /* of the left symbol */
    int32_t id;       /* what the pair would become */
};

struct bpe_scratch {
    struct symbol *symbols;
    size_t symbol_capacity;
    struct candidate *heap;
    size_t heap_count, heap_capacity;
};

struct bpe_scratch *bpe_scratch_new(void)
{
    return memory_alloc(sizeof(struct bpe_scratch));
}

void bpe_scratch_free(struct bpe_scratch *s)
{
    if (!s)
        return;
    free(s->symbols);
    free(s->heap);
    free(s);
}

static bool comes_first(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct bpe_scratch *s, struct candidate c)
{
    if (s->heap_count == s->heap_capacity) {
        s->heap_capacity = s->heap_capacity ? 2 * s->heap_capacity : 64;
        s->heap = memory_realloc(s->heap, s->heap_capacity * sizeof *s->heap);
    }
    size_t i = s->heap_count++;
    while (i > 0 && comes_first(&c, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = c;
}

static struct candidate heap_pop(struct bpe_scratch *s)
{
    const struct candidate top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_count)
            break;
        if (child + 1 < s->heap_count && comes_first(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!comes_first(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static void consider(const struct bpe *b, struct bpe_scratch *s, int32_t left, bool plain)
{
    const int32_t right = left == NONE ? NONE : s->symbols[left].next;
    if (right == NONE)
        return;
    const struct merge *m = find_merge(b, s->symbols[left].id, s->symbols[right].id, plain);
    if (m)
        heap_push(s, (struct candidate){m->rank, left, m->id});
}

void bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *piece, size_t length,
                bool plain, struct token_list *out)
{
    if (b->ignore_merges) {
        const int32_t id = find_word(b, piece, length);
        if (id >= 0 && !(plain && b->tokens[id].added)) {
            token_list_append(out, id);
            return;
        }
    }
    if (length > s->symbol_capacity) {
        s->symbol_capacity = length;
        s->symbols = memory_realloc(s->symbols, length * sizeof *s->symbols);
    }
    for (size_t i = 0; i < length; i++)
        s->symbols[i] = (struct symbol){b->byte_ids[(uint8_t)piece[i]], (int32_t)i - 1,
                                        i + 1 < length ? (int32_t)i + 1 : NONE};
    s->heap_count = 0;
    for (size_t i = 0; i + 1 < length; i++)
        consider(b, s, (int32_t)i, plain);
    while (s->heap_count > 0) {
        const struct candidate c = heap_pop(s);
        struct symbol *left = &s->symbols[c.position];
        if (left->id == NONE || left->next == NONE)
            continue;
        /* An old entry: its pair has changed since. The test is by what it makes, as in the
         * original, not by rank. */
        const struct merge *m = find_merge(b, left->id, s->symbols[left->next].id, plain);
        if (!m || m->id != c.id)
            continue;
        struct symbol *right = &s->symbols[left->next];
        left->id = c.id;
        right->id = NONE;
        left->next = right->next;
        if (left->next != NONE)
            s->symbols[left->next].previous = c.position;
        consider(b, s, left->previous, plain);
        consider(b, s, c.position, plain);
    }
    for (int32_t i = 0; i != NONE && length > 0; i = s->symbols[i].next)
        token_list_append(out, s->symbols[i].id);
}
