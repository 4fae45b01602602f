/* Leftmost-longest search over a sorted list, then the rules of single_word, lstrip and rstrip. */
#include "engine/text/added.h"
#include "base/arena.h"
#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

static int compare_tokens(const void *a, const void *b)
{
    return strcmp(((const struct added_token *)a)->content,
                  ((const struct added_token *)b)->content);
}

bool added_set_finish(struct added_set *set, struct error *err)
{
    bool words = false;
    for (size_t i = 0; i < set->count; i++)
        words |= set->items[i].single_word;
    if (set->count > 0)
        qsort(set->items, set->count, sizeof *set->items, compare_tokens);
    /* A word's characters, as Unicode's annex on regular expressions has them. */
    static const char word[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u200c\\u200d]";
    return !words || pattern_new(word, false, &set->word_character, err);
}

void added_set_free(struct added_set *set)
{
    pattern_free(set->word_character);
    set->word_character = NULL;
}

/* The longest token that text begins with, or NULL: the range of the sorted list whose entries
 * share the first n bytes shrinks as n grows. */
static const struct added_token *longest(const struct added_set *set, const char *text,
                                         size_t length)
{
    size_t low = 0, high = set->count;
    const struct added_token *best = NULL;
    for (size_t n = 0; n < length && low < high; n++) {
        const uint8_t c = (uint8_t)text[n];
        size_t a = low, b = high; /* first entry whose byte n is >= c (an ended one counts as 0) */
        while (a < b) {
            const size_t middle = a + (b - a) / 2;
            if ((uint8_t)set->items[middle].content[n] < c)
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) { /* first entry whose byte n is > c */
            const size_t middle = a + (b - a) / 2;
            if ((uint8_t)set->items[middle].content[n] <= c)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
        if (low < high && c != 0 && set->items[low].length == n + 1)
            best = &set->items[low]; /* the shortest of the range comes first */
        if (c == 0)
            break; /* contents hold no NUL */
    }
    return best;
}

static size_t space_length(const char *text, size_t length)
{
    const int n = utf8_sequence((const uint8_t *)text, length);
    if (n <= 0)
        return 0;
    const uint8_t *u = (const uint8_t *)text;
    uint32_t c = u[0];
    if (n == 2)
        c = (uint32_t)(u[0] & 0x1F) << 6 | (u[1] & 0x3F);
    else if (n == 3)
        c = (uint32_t)(u[0] & 0x0F) << 12 | (uint32_t)(u[1] & 0x3F) << 6 | (u[2] & 0x3F);
    else if (n == 4)
        return 0;
    const bool space = (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
                       (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
                       c == 0x205F || c == 0x3000;
    return space ? (size_t)n : 0;
}

static size_t character_before(const char *text, size_t end)
{
    do
        end--;
    while (end > 0 && ((uint8_t)text[end] & 0xC0) == 0x80);
    return end;
}

static size_t skip_spaces_back(const char *text, size_t start, size_t floor)
{
    while (start > floor) {
        const size_t at = character_before(text, start);
        if (at < floor || space_length(text + at, start - at) == 0)
            break;
        start = at;
    }
    return start;
}

static size_t skip_spaces(const char *text, size_t length, size_t at)
{
    size_t n;
    while (at < length && (n = space_length(text + at, length - at)) > 0)
        at += n;
    return at;
}

static bool is_word_at(const struct added_set *set, struct matcher *m, const char *text,
                       size_t start, size_t end)
{
    size_t from, to;
    return start < end && pattern_find(set->word_character, m, text + start, end - start, 0, &from,
                                       &to) == PATTERN_FOUND;
}

/* Neither neighbour is a character of a word. */
static bool stands_alone(const struct added_set *set, struct matcher *m, const char *text,
                         size_t length, size_t start, size_t end)
{
    if (start > 0 && is_word_at(set, m, text, character_before(text, start), start))
        return false;
    if (end == length)
        return true;
    const int n = utf8_sequence((const uint8_t *)text + end, length - end);
    return !is_word_at(set, m, text, end, end + (size_t)(n > 0 ? n : 0));
}

static void spans_add(struct added_spans *s, size_t start, size_t end, int32_t id)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 16;
        s->items = memory_realloc(s->items, s->capacity * sizeof *s->items);
    }
    s->items[s->count++] = (struct added_span){start, end, id};
}

void added_set_split(const struct added_set *set, struct matcher *m, const char *text,
                     size_t length, struct added_spans *out)
{
    size_t done = 0; /* text before it is in a span */
    for (size_t at = 0; set->count > 0 && at < length;) {
        const struct added_token *t = longest(set, text + at, length - at);
        if (!t) {
            at++;
            continue;
        }
        size_t start = at, end = at + t->length;
        at = end; /* a match that is turned down below is passed over all the same */
        if (t->single_word && !stands_alone(set, m, text, length, start, end))
            continue;
        if (t->left_strip)
            start = skip_spaces_back(text, start, done);
        if (t->right_strip)
            end = skip_spaces(text, length, end);
        if (done < start)
            spans_add(out, done, start, -1);
        spans_add(out, start, end, t->id);
        done = end;
    }
    if (done < length)
        spans_add(out, done, length, -1);
}
