/* Stages of cutting, each over the pieces of the one before. The behaviours are those of the
 * tokenizers package; its order of cases is kept. */
#include "engine/text/pretokenize.h"
#include "base/arena.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS, BEHAVIORS };
static const char *const behavior_names[BEHAVIORS] = {"Removed", "Isolated", "MergedWithPrevious",
                                                      "MergedWithNext", "Contiguous"};

/* What ByteLevel itself cuts by: GPT-2's pattern. */
static const char GPT2_PATTERN[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct stage {
    bool prefix_space;       /* before the cut: a piece that does not begin with a space gets one */
    struct pattern *pattern; /* NULL: no cut */
    enum behavior behavior;
    bool invert;
};

enum { MAX_STAGES = 32 };
struct pretokenizer {
    struct stage stages[MAX_STAGES];
    size_t count;
    bool ends; /* ByteLevel was seen */
};

void pieces_free(struct pieces *p)
{
    buffer_free(&p->text);
    free(p->items);
    *p = (struct pieces){0};
}

static void pieces_add(struct pieces *p, size_t start, size_t end)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->items = memory_realloc(p->items, p->capacity * sizeof *p->items);
    }
    p->items[p->count++] = (struct piece){start, end};
}

/* --- reading ----------------------------------------------------------------------------------*/

static bool refuse(struct error *err, const char *name, const struct json_view *v, const char *key,
                   const char *value, const char *why)
{
    struct buffer field = {0};
    buffer_printf(&field, "%s%s%s", v->path, *key ? "." : "", key);
    error_set(err, name, "%s", why);
    error_at(err, v->file, field.data, value);
    buffer_free(&field);
    return false;
}

static bool invalid(struct error *err)
{
    if (err && text_starts(err->name, "JSON-"))
        text_copy(err->name, sizeof err->name, "TOKENIZER-INVALID");
    return false;
}

static bool optional_bool(const struct json_view *v, const char *key, bool *out, struct error *err)
{
    return !json_has(v, key) || json_get_bool(v, key, out, err) || invalid(err);
}

static bool add_stage(struct pretokenizer *p, const struct json_view *v, const struct stage *stage,
                      const char *pattern, bool literal, struct error *err)
{
    if (p->count == MAX_STAGES)
        return refuse(err, "TOKENIZER-UNSUPPORTED", v, "", NULL, "more than 32 stages");
    struct stage *s = &p->stages[p->count];
    *s = *stage;
    if (pattern && !pattern_new(pattern, literal, &s->pattern, err)) {
        struct buffer field = {0};
        buffer_printf(&field, "%s.pattern", v->path);
        error_at(err, v->file, field.data, NULL);
        buffer_free(&field);
        return false;
    }
    p->count++;
    return true;
}

static bool read_split(struct pretokenizer *p, const struct json_view *v, struct error *err)
{
    struct stage stage = {.behavior = BEHAVIORS};
    const json_t *pattern;
    const char *behavior;
    if (!json_get_object(v, "pattern", &pattern, err) ||
        !json_get_string(v, "behavior", &behavior, err))
        return invalid(err);
    if (!optional_bool(v, "invert", &stage.invert, err))
        return false;
    for (int i = 0; i < BEHAVIORS; i++)
        if (strcmp(behavior, behavior_names[i]) == 0)
            stage.behavior = (enum behavior)i;
    if (stage.behavior == BEHAVIORS)
        return refuse(err, "TOKENIZER-UNSUPPORTED", v, "behavior", behavior, "unknown behaviour");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *string = json_string_value(json_object_get(pattern, "String"));
    if (!regex == !string)
        return refuse(err, "TOKENIZER-INVALID", v, "pattern", NULL,
                      "a pattern is {\"Regex\": text} or {\"String\": text}");
    return add_stage(p, v, &stage, regex ? regex : string, string != NULL, err);
}

static bool read_digits(struct pretokenizer *p, const struct json_view *v, struct error *err)
{
    bool individual = false;
    if (!optional_bool(v, "individual_digits", &individual, err))
        return false;
    const struct stage stage = {.behavior = individual ? ISOLATED : CONTIGUOUS};
    return add_stage(p, v, &stage, "\\p{N}", false, err);
}

static bool read_byte_level(struct pretokenizer *p, const struct json_view *v, struct error *err)
{
    struct stage stage = {.behavior = ISOLATED, .prefix_space = true};
    bool use_regex = true, trim_offsets;
    if (!optional_bool(v, "add_prefix_space", &stage.prefix_space, err) ||
        !optional_bool(v, "use_regex", &use_regex, err) ||
        !optional_bool(v, "trim_offsets", &trim_offsets, err))
        return false;
    p->ends = true;
    return add_stage(p, v, &stage, use_regex ? GPT2_PATTERN : NULL, false, err);
}

static bool read_stage(struct pretokenizer *p, const struct json_view *v, int depth,
                       struct error *err);

static bool read_sequence(struct pretokenizer *p, const struct json_view *v, int depth,
                          struct error *err)
{
    const json_t *list;
    if (!json_get_array(v, "pretokenizers", &list, err))
        return invalid(err);
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(list); i++) {
        struct buffer path = {0};
        buffer_printf(&path, "%s.pretokenizers[%zu]", v->path, i);
        const struct json_view inner = {json_array_get(list, i), v->file, path.data};
        ok = read_stage(p, &inner, depth + 1, err);
        buffer_free(&path);
    }
    return ok;
}

static bool read_stage(struct pretokenizer *p, const struct json_view *v, int depth,
                       struct error *err)
{
    const char *type;
    if (!json_is_object(v->object) || depth > 8)
        return refuse(err, "TOKENIZER-INVALID", v, "", NULL, "not a pre-tokenizer");
    if (!json_get_string(v, "type", &type, err))
        return invalid(err);
    if (p->ends)
        return refuse(err, "TOKENIZER-UNSUPPORTED", v, "type", type,
                      "a pre-tokenizer behind ByteLevel");
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(p, v, depth, err);
    if (strcmp(type, "Split") == 0)
        return read_split(p, v, err);
    if (strcmp(type, "Digits") == 0)
        return read_digits(p, v, err);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(p, v, err);
    return refuse(err, "TOKENIZER-UNSUPPORTED", v, "type", type, "unknown pre-tokenizer");
}

bool pretokenizer_new(const json_t *value, const char *file, struct pretokenizer **out,
                      struct error *err)
{
    const struct json_view v = {value, file, "pre_tokenizer"};
    struct pretokenizer *p = memory_alloc(sizeof *p);
    bool ok = !value || json_is_null(value) || read_stage(p, &v, 0, err);
    if (ok && !p->ends)
        ok = refuse(err, "TOKENIZER-UNSUPPORTED", &v, "", NULL,
                    "only byte-level tokenizers, whose pre_tokenizer ends with ByteLevel");
    if (!ok) {
        pretokenizer_free(p);
        return false;
    }
    *out = p;
    return true;
}

void pretokenizer_free(struct pretokenizer *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->count; i++)
        pattern_free(p->stages[i].pattern);
    free(p);
}

/* --- cutting ----------------------------------------------------------------------------------*/

struct cut {
    size_t start, end;
    bool match;
};

struct cuts {
    struct cut *items;
    size_t count, capacity;
};

static void cuts_add(struct cuts *c, size_t start, size_t end, bool match)
{
    if (c->count == c->capacity) {
        c->capacity = c->capacity ? 2 * c->capacity : 64;
        c->items = memory_realloc(c->items, c->capacity * sizeof *c->items);
    }
    c->items[c->count++] = (struct cut){start, end, match};
}

static size_t next_character(const char *text, size_t length, size_t at)
{
    do
        at++;
    while (at < length && ((unsigned char)text[at] & 0xC0) == 0x80);
    return at;
}

/* Matches and what lies between them, in order. An empty match cuts too, but not directly behind
 * another match. */
static bool find_cuts(const struct stage *s, struct matcher *m, const char *text, size_t length,
                      struct cuts *cuts, struct error *err)
{
    size_t from = 0, behind = 0;
    bool any = false;
    cuts->count = 0;
    while (from <= length) {
        size_t start, end;
        const enum pattern_result found =
            pattern_find(s->pattern, m, text, length, from, &start, &end);
        if (found == PATTERN_LIMIT)
            return error_set(err, "TOKENIZER-LIMIT",
                             "a pattern of the pre-tokenizer backtracks without end on this text");
        if (found == PATTERN_NONE)
            break;
        if (start == end && any && end == behind) {
            from = next_character(text, length, from);
            continue;
        }
        if (start > behind)
            cuts_add(cuts, behind, start, s->invert);
        cuts_add(cuts, start, end, !s->invert);
        from = behind = end;
        any = true;
    }
    if (behind < length)
        cuts_add(cuts, behind, length, s->invert);
    return true;
}

static void keep(struct pieces *out, size_t base, size_t start, size_t end)
{
    if (end > start)
        pieces_add(out, base + start, base + end);
}

/* A match joins its neighbour unless the one before it in the walk was a match too. */
static void merge_with_previous(const struct cuts *c, size_t base, struct pieces *out)
{
    for (size_t i = 0; i < c->count;) {
        const size_t first = i++;
        if (i < c->count && c->items[i].match && !c->items[first].match)
            i++;
        keep(out, base, c->items[first].start, c->items[i - 1].end);
    }
}

static void merge_with_next(const struct cuts *c, size_t base, struct pieces *out)
{
    for (size_t i = 0; i < c->count;) {
        const size_t first = i++;
        if (i < c->count && c->items[first].match && !c->items[i].match)
            i++;
        keep(out, base, c->items[first].start, c->items[i - 1].end);
    }
}

static void merge_equal(const struct cuts *c, size_t base, struct pieces *out)
{
    for (size_t i = 0; i < c->count;) {
        const size_t first = i++;
        while (i < c->count && c->items[i].match == c->items[first].match)
            i++;
        keep(out, base, c->items[first].start, c->items[i - 1].end);
    }
}

static void apply_behavior(const struct stage *s, const struct cuts *c, size_t base,
                           struct pieces *out)
{
    switch (s->behavior) {
    case MERGED_WITH_PREVIOUS:
        merge_with_previous(c, base, out);
        break;
    case MERGED_WITH_NEXT:
        merge_with_next(c, base, out);
        break;
    case CONTIGUOUS:
        merge_equal(c, base, out);
        break;
    default:
        for (size_t i = 0; i < c->count; i++)
            if (s->behavior == ISOLATED || !c->items[i].match)
                keep(out, base, c->items[i].start, c->items[i].end);
    }
}

/* The pieces of out with a space before those that have none; the text is written anew. */
static void add_prefix_spaces(struct pieces *out)
{
    struct buffer text = {0};
    for (size_t i = 0; i < out->count; i++) {
        struct piece *p = &out->items[i];
        const char *data = out->text.data + p->start;
        const size_t length = p->end - p->start;
        p->start = text.length;
        if (data[0] != ' ')
            buffer_char(&text, ' ');
        buffer_append(&text, data, length);
        p->end = text.length;
    }
    buffer_free(&out->text);
    out->text = text;
}

static bool run_stage(const struct stage *s, struct matcher *m, struct pieces *out,
                      struct error *err)
{
    if (s->prefix_space)
        add_prefix_spaces(out);
    if (!s->pattern)
        return true;
    struct pieces next = {0};
    struct cuts cuts = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < out->count; i++) {
        const struct piece *p = &out->items[i];
        ok = find_cuts(s, m, out->text.data + p->start, p->end - p->start, &cuts, err);
        if (ok)
            apply_behavior(s, &cuts, p->start, &next);
    }
    free(cuts.items);
    free(out->items);
    out->items = next.items;
    out->count = next.count;
    out->capacity = next.capacity;
    return ok;
}

bool pretokenizer_run(const struct pretokenizer *p, struct matcher *m, const char *text,
                      size_t length, struct pieces *out, struct error *err)
{
    buffer_clear(&out->text);
    out->count = 0;
    if (length == 0)
        return true;
    buffer_append(&out->text, text, length);
    pieces_add(out, 0, length);
    for (size_t i = 0; i < p->count; i++)
        if (!run_stage(&p->stages[i], m, out, err))
            return false;
    return true;
}
