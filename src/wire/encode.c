/* Structs to canonical lines: keys in table order, absent fields left out, no spaces, shortest
 * doubles (number.h), text escaped as in json.h. */
#include "base/json.h"
#include "base/number.h"
#include "wire/objects.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void write_unsigned(struct buffer *b, uint64_t value)
{
    char digits[24];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    buffer_append(b, digits + at, sizeof digits - at);
}

static void write_signed(struct buffer *b, int64_t value)
{
    if (value < 0)
        buffer_char(b, '-');
    write_unsigned(b, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

/* JSON has no NaN: null, which a reader refuses by the field's name. */
static void write_double(struct buffer *b, double value)
{
    char text[40];
    buffer_text(b, isfinite(value) ? number_format_double(value, text, sizeof text) : "null");
}

/* Bytes that are not UTF-8 become U+FFFD each: a line must always decode. */
static void write_string(struct buffer *b, const char *text)
{
    size_t length = text ? strlen(text) : 0;
    if (utf8_valid(text ? text : "", length)) {
        json_write_string(text ? text : "", length, b);
        return;
    }
    struct buffer clean = {0};
    for (size_t i = 0; i < length;) {
        int n = utf8_sequence((const uint8_t *)text + i, length - i);
        if (n > 0)
            buffer_append(&clean, text + i, (size_t)n);
        else
            buffer_text(&clean, "\xef\xbf\xbd");
        i += n > 0 ? (size_t)n : 1;
    }
    json_write_string(clean.data, clean.length, b);
    buffer_free(&clean);
}

static void write_key(struct buffer *b, const char *name, bool *first)
{
    buffer_char(b, *first ? '{' : ',');
    *first = false;
    buffer_char(b, '"');
    buffer_text(b, name);
    buffer_text(b, "\":");
}

static void write_object(struct buffer *b, const struct object_table *table, const void *from)
{
    bool first = true;
    for (size_t i = 0; i < table->count; i++) {
        const struct object_member *m = &table->members[i];
        const void *value = (const char *)from + m->offset;
        write_key(b, m->name, &first);
        switch (m->kind) {
        case MEMBER_I64:
            write_signed(b, *(const int64_t *)value);
            break;
        case MEMBER_U32:
            write_unsigned(b, *(const uint32_t *)value);
            break;
        case MEMBER_U64:
            write_unsigned(b, *(const uint64_t *)value);
            break;
        case MEMBER_F64:
            write_double(b, *(const double *)value);
            break;
        case MEMBER_TEXT:
        case MEMBER_HASH:
            write_string(b, *(const char *const *)value);
            break;
        }
    }
    buffer_char(b, '}');
}

#define WRITE_ARRAY(type, write_item)                                                              \
    static void write_##type(struct buffer *b, const struct wire_##type *f)                        \
    {                                                                                              \
        buffer_char(b, '[');                                                                       \
        for (size_t i = 0; i < f->count; i++) {                                                    \
            if (i)                                                                                 \
                buffer_char(b, ',');                                                               \
            write_item;                                                                            \
        }                                                                                          \
        buffer_char(b, ']');                                                                       \
    }
WRITE_ARRAY(tokens, write_signed(b, f->items[i]))
WRITE_ARRAY(u32s, write_unsigned(b, f->items[i]))
WRITE_ARRAY(u64s, write_unsigned(b, f->items[i]))
WRITE_ARRAY(texts, write_string(b, f->items[i]))
WRITE_ARRAY(top_logits, write_object(b, &object_top_logit, &f->items[i]))
WRITE_ARRAY(f64s, write_double(b, f->items[i]))
WRITE_ARRAY(token_lists, write_tokens(b, &f->items[i]))
WRITE_ARRAY(f64_lists, write_f64s(b, &f->items[i]))
WRITE_ARRAY(u32_lists, write_u32s(b, &f->items[i]))
#undef WRITE_ARRAY

static void write_i64(struct buffer *b, const struct wire_i64 *f)
{
    write_signed(b, f->value);
}
static void write_u32(struct buffer *b, const struct wire_u32 *f)
{
    write_unsigned(b, f->value);
}
static void write_u64(struct buffer *b, const struct wire_u64 *f)
{
    write_unsigned(b, f->value);
}
static void write_f64(struct buffer *b, const struct wire_f64 *f)
{
    write_double(b, f->value);
}
static void write_flag(struct buffer *b, const struct wire_flag *f)
{
    buffer_text(b, f->value ? "true" : "false");
}
static void write_text(struct buffer *b, const struct wire_text *f)
{
    write_string(b, f->text);
}
static void write_expert_stats(struct buffer *b, const struct wire_expert_stats *f)
{
    write_object(b, &object_expert_stats, f);
}
static void write_head_provenance(struct buffer *b, const struct wire_head_provenance *f)
{
    write_object(b, &object_head_provenance, f);
}
static void write_runner(struct buffer *b, const struct wire_runner *f)
{
    write_object(b, &object_runner, f);
}
static void write_resident(struct buffer *b, const struct wire_resident *f)
{
    write_object(b, &object_resident, f);
}
static void write_replay(struct buffer *b, const struct wire_replay *f)
{
    json_write_ordered(f->report, 0, b);
}

struct counted {
    const char *key;
    uint32_t value;
};

static int compare_counted(const void *a, const void *b)
{
    return strcmp(((const struct counted *)a)->key, ((const struct counted *)b)->key);
}

static void write_counts(struct buffer *b, const struct wire_counts *f)
{
    struct counted *sorted = memory_alloc(f->count * sizeof *sorted);
    for (size_t i = 0; i < f->count; i++)
        sorted[i] = (struct counted){f->keys[i], f->values[i]};
    qsort(sorted, f->count, sizeof *sorted, compare_counted);
    buffer_char(b, '{');
    for (size_t i = 0; i < f->count; i++) {
        if (i)
            buffer_char(b, ',');
        write_string(b, sorted[i].key);
        buffer_char(b, ':');
        write_unsigned(b, sorted[i].value);
    }
    buffer_char(b, '}');
    free(sorted);
}

static void write_spec(struct buffer *b, const struct wire_spec *s)
{
    bool first = true;
    write_key(b, "mode", &first);
    write_string(b, s->mode);
    if (s->has_mtp) {
        write_key(b, "mtp", &first);
        buffer_char(b, '{');
        if (s->mtp_depth.present) {
            buffer_text(b, "\"depth\":");
            write_unsigned(b, s->mtp_depth.value);
        }
        buffer_char(b, '}');
    }
    if (s->dflash) {
        write_key(b, "dflash", &first);
        json_write_ordered(s->dflash, 0, b);
    }
    if (s->dspark) {
        write_key(b, "dspark", &first);
        json_write_ordered(s->dspark, 0, b);
    }
    buffer_char(b, '}');
}

void wire_spec_encode(const struct wire_spec *s, struct buffer *out)
{
    write_spec(out, s);
}

/* Whether a field is set: text has no flag of its own. */
#define has_text(f) ((f)->text != NULL)
#define has_i64(f) ((f)->present)
#define has_u32(f) ((f)->present)
#define has_u64(f) ((f)->present)
#define has_f64(f) ((f)->present)
#define has_flag(f) ((f)->present)
#define has_tokens(f) ((f)->present)
#define has_token_lists(f) ((f)->present)
#define has_f64s(f) ((f)->present)
#define has_f64_lists(f) ((f)->present)
#define has_u32s(f) ((f)->present)
#define has_u32_lists(f) ((f)->present)
#define has_u64s(f) ((f)->present)
#define has_texts(f) ((f)->present)
#define has_top_logits(f) ((f)->present)
#define has_counts(f) ((f)->present)
#define has_expert_stats(f) ((f)->present)
#define has_head_provenance(f) ((f)->present)
#define has_runner(f) ((f)->present)
#define has_resident(f) ((f)->present)
#define has_spec(f) ((f)->present)
#define has_replay(f) ((f)->present)

#define WRITE_FIELD(type, name, required)                                                          \
    if ((required) || has_##type(&m->name)) {                                                      \
        write_key(out, #name, &first);                                                             \
        write_##type(out, &m->name);                                                               \
    }

void wire_request_encode(const struct wire_request *m, struct buffer *out)
{
    bool first = true;
    WIRE_REQUEST_FIELDS(WRITE_FIELD)
    WIRE_BLOCK_REQUEST_FIELDS(WRITE_FIELD)
    buffer_text(out, "}\n");
}

void wire_response_encode(const struct wire_response *m, struct buffer *out)
{
    bool first = true;
    WIRE_RESPONSE_FIELDS(WRITE_FIELD)
    WIRE_BLOCK_RESPONSE_FIELDS(WRITE_FIELD)
    buffer_text(out, "}\n");
}
