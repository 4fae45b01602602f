/* Filling a sheet, and making texts from outside harmless. */
#include "judge/page/sheet.h"

#include "base/buffer.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 2000 }; /* bytes of a text that are shown */

/* One more element of an array that doubles. */
static void *grow(void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    const size_t more = *capacity ? *capacity * 2 : 8;
    array = memory_realloc(array, more * size);
    memset((char *)array + *capacity * size, 0, (more - *capacity) * size);
    *capacity = more;
    return array;
}

struct sheet *sheet_new(const char *title)
{
    struct sheet *s = memory_alloc(sizeof *s);
    s->title = sheet_clean(&s->arena, title);
    return s;
}

void sheet_free(struct sheet *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->count; i++) {
        for (size_t k = 0; k < s->sections[i].count; k++) {
            free(s->sections[i].items[k].cells);
            json_decref(s->sections[i].items[k].chart);
        }
        free(s->sections[i].items);
    }
    free(s->sections);
    arena_free(&s->arena);
    free(s);
}

static uint32_t code_point(const uint8_t *p, int n)
{
    if (n == 2)
        return (uint32_t)(p[0] & 0x1f) << 6 | (p[1] & 0x3f);
    if (n == 3)
        return (uint32_t)(p[0] & 0x0f) << 12 | (uint32_t)(p[1] & 0x3f) << 6 | (p[2] & 0x3f);
    if (n == 4)
        return (uint32_t)(p[0] & 0x07) << 18 | (uint32_t)(p[1] & 0x3f) << 12 |
               (uint32_t)(p[2] & 0x3f) << 6 | (p[3] & 0x3f);
    return p[0];
}

/* What steers a terminal, ends a line, is not seen, or turns the order of text round. */
static bool is_treacherous(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {{0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},      {0x061c, 0x061c},
                  {0x180e, 0x180e}, {0x200b, 0x200f}, {0x2028, 0x202e},  {0x2060, 0x206f},
                  {0xfeff, 0xfeff}, {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}

/* lines: ends of lines are kept. */
static const char *clean(struct arena *a, const char *text, size_t most, bool lines)
{
    const size_t length = strlen(text);
    struct buffer out = {0};
    buffer_reserve(&out, 16);
    size_t i = 0;
    while (i < length && out.length < most) {
        const uint8_t *p = (const uint8_t *)text + i;
        const int n = utf8_sequence(p, length - i);
        const uint32_t c = n > 0 ? code_point(p, n) : 0;
        if (n <= 0)
            buffer_printf(&out, "\\x%02x", p[0]);
        else if (is_treacherous(c) && !(lines && c == '\n'))
            buffer_printf(&out, c < 0x100 ? "\\x%02x" : "\\u%04x", (unsigned)c);
        else
            buffer_append(&out, p, (size_t)n);
        i += n > 0 ? (size_t)n : 1;
    }
    if (i < length)
        buffer_printf(&out, "… (%zu bytes)", length);
    const char *copy = arena_strdup(a, out.data ? out.data : "");
    buffer_free(&out);
    return copy;
}

const char *sheet_clean(struct arena *a, const char *text)
{
    return clean(a, text, TEXT_MOST, false);
}

void sheet_begin(struct sheet *s, const char *id, const char *title)
{
    s->sections = grow(s->sections, s->count, &s->capacity, sizeof *s->sections);
    s->sections[s->count++] = (struct sheet_section){.id = id, .title = title};
}

static struct sheet_item *add_item(struct sheet *s, enum sheet_kind kind)
{
    struct sheet_section *section = &s->sections[s->count - 1];
    section->items =
        grow(section->items, section->count, &section->capacity, sizeof *section->items);
    struct sheet_item *item = &section->items[section->count++];
    *item = (struct sheet_item){.kind = kind};
    return item;
}

void sheet_say(struct sheet *s, enum sheet_tone tone, const char *format, ...)
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    const int length = vsnprintf(NULL, 0, format, ap);
    char *text = memory_alloc((size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(ap);
    struct sheet_item *item = add_item(s, SHEET_TEXT);
    item->tone = tone;
    item->text = sheet_clean(&s->arena, text);
    free(text);
}

void sheet_prose(struct sheet *s, const char *plain, const char *markdown)
{
    struct sheet_item *item = add_item(s, SHEET_PROSE);
    item->text = clean(&s->arena, plain, SIZE_MAX, true);
    item->markdown = clean(&s->arena, markdown, SIZE_MAX, true);
}

void sheet_table(struct sheet *s, enum sheet_use use, const char *caption, int columns,
                 const char *const *heads)
{
    struct sheet_item *item = add_item(s, SHEET_TABLE);
    item->use = use;
    item->text = sheet_clean(&s->arena, caption);
    item->columns = columns;
    if (!heads)
        return;
    item->heads = arena_array(&s->arena, (size_t)columns, sizeof *item->heads);
    for (int i = 0; i < columns; i++)
        item->heads[i] = (char *)sheet_clean(&s->arena, heads[i]);
}

void sheet_row(struct sheet *s, ...)
{
    struct sheet_section *section = &s->sections[s->count - 1];
    struct sheet_item *item = &section->items[section->count - 1];
    item->cells =
        grow(item->cells, item->rows, &item->capacity, (size_t)item->columns * sizeof *item->cells);
    va_list ap;
    va_start(ap, s);
    for (int i = 0; i < item->columns; i++) {
        const char *cell = va_arg(ap, const char *);
        item->cells[item->rows * (size_t)item->columns + (size_t)i] =
            (char *)sheet_clean(&s->arena, cell ? cell : "–");
    }
    va_end(ap);
    item->rows++;
}

json_t *sheet_chart_new(const char *kind, const char *x, const char *y)
{
    return json_pack("{s:s, s:s, s:s, s:[], s:[], s:[]}", "kind", kind, "x", x, "y", y, "labels",
                     "series", "marks");
}

json_t *sheet_chart_series(struct sheet *s, json_t *chart, const char *name)
{
    json_t *series = json_pack("{s:s}", "name", sheet_clean(&s->arena, name));
    json_array_append_new(json_object_get(chart, "series"), series);
    return series;
}

void sheet_chart_label(struct sheet *s, json_t *chart, const char *label)
{
    json_array_append_new(json_object_get(chart, "labels"),
                          json_string(sheet_clean(&s->arena, label)));
}

void sheet_chart_mark(json_t *chart, const char *name, double at)
{
    if (isfinite(at))
        json_array_append_new(json_object_get(chart, "marks"),
                              json_pack("{s:s, s:f}", "name", name, "at", at));
}

void sheet_push(json_t *object, const char *key, double value)
{
    json_t *list = json_object_get(object, key);
    if (!list) {
        list = json_array();
        json_object_set_new(object, key, list);
    }
    json_array_append_new(list, isfinite(value) ? json_real(value) : json_null());
}

void sheet_chart(struct sheet *s, const char *caption, json_t *chart)
{
    struct sheet_item *item = add_item(s, SHEET_CHART);
    item->text = sheet_clean(&s->arena, caption);
    item->chart = chart;
    json_object_set_new(chart, "alt", json_string(item->text));
}
