/* Expected against found, told in words, and the canonical hash of an inventory. */
#include "engine/checkpoint/inventory.h"
#include "base/buffer.h"
#include "base/json.h"
#include "base/sha256.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_PER_CLASS = 4,
    RENAME_SEARCH_LIMIT = 2048 /* of each side: keeps the pairing bounded for hostile files */
};

void inventory_add(struct inventory *inv, const char *name, enum dtype dtype, int rank,
                   const int64_t *shape)
{
    if (inv->count == inv->capacity) {
        const size_t capacity = inv->capacity ? 2 * inv->capacity : 256;
        struct tensor_spec *items = arena_array(inv->arena, capacity, sizeof *items);
        if (inv->count)
            memcpy(items, inv->items, inv->count * sizeof *items);
        inv->items = items;
        inv->capacity = capacity;
    }
    struct tensor_spec *t = &inv->items[inv->count++];
    t->name = arena_strdup(inv->arena, name);
    t->dtype = dtype;
    t->rank = rank;
    for (int i = 0; i < rank; i++)
        t->shape[i] = shape[i];
}

static int compare_specs(const void *a, const void *b)
{
    return strcmp((*(const struct tensor_spec *const *)a)->name,
                  (*(const struct tensor_spec *const *)b)->name);
}

static bool same_shape(const struct tensor_spec *e, const struct tensor *f)
{
    if (e->rank != f->rank)
        return false;
    for (int i = 0; i < e->rank; i++)
        if (e->shape[i] != f->shape[i])
            return false;
    return true;
}

/* Equal but for exactly one of the parts between dots. */
static bool one_component_differs(const char *a, const char *b)
{
    int different = 0;
    for (;;) {
        const size_t n = strcspn(a, "."), m = strcspn(b, ".");
        different += n != m || memcmp(a, b, n) != 0;
        if (different > 1 || (a[n] == '\0') != (b[m] == '\0'))
            return false;
        if (a[n] == '\0')
            return different == 1;
        a += n + 1;
        b += m + 1;
    }
}

/* One class of difference: how many, and text for the first few. */
struct difference {
    size_t count;
    struct buffer text;
};

static struct buffer *difference_add(struct difference *d)
{
    static const char separator[] = ", ";
    d->count++;
    if (d->count > SHOWN_PER_CLASS)
        return NULL;
    if (d->count > 1)
        buffer_text(&d->text, separator);
    return &d->text;
}

static void write_shape(struct buffer *b, int rank, const int64_t *shape)
{
    buffer_char(b, '[');
    for (int i = 0; i < rank; i++)
        buffer_printf(b, "%s%" PRId64, i ? "," : "", shape[i]);
    buffer_char(b, ']');
}

static void add_name(struct difference *d, const char *name)
{
    struct buffer *b = difference_add(d);
    if (b)
        buffer_text(b, name);
}

struct comparison {
    const struct tensor_spec **missing;
    const struct tensor **extra;
    size_t missing_count, extra_count;
    struct difference renamed, missing_text, extra_text, retyped, reshaped;
    const char *first; /* the first name at fault, for error.field */
};

static void compare_pair(struct comparison *c, const struct tensor_spec *e, const struct tensor *f)
{
    struct buffer *b;
    if (e->dtype != f->dtype) {
        if ((b = difference_add(&c->retyped)))
            buffer_printf(b, "%s is %s, expected %s", e->name, dtype_name(f->dtype),
                          dtype_name(e->dtype));
    } else if (!same_shape(e, f)) {
        if ((b = difference_add(&c->reshaped))) {
            buffer_printf(b, "%s is ", e->name);
            write_shape(b, f->rank, f->shape);
            buffer_text(b, ", expected ");
            write_shape(b, e->rank, e->shape);
        }
    } else {
        return;
    }
    if (!c->first)
        c->first = e->name;
}

/* Pairs each missing tensor with an extra one that only carries another name. */
static void pair_renamed(struct comparison *c)
{
    const size_t limit =
        c->missing_count < RENAME_SEARCH_LIMIT ? c->missing_count : RENAME_SEARCH_LIMIT;
    const size_t extra_limit =
        c->extra_count < RENAME_SEARCH_LIMIT ? c->extra_count : RENAME_SEARCH_LIMIT;
    for (size_t i = 0; i < limit; i++)
        for (size_t j = 0; j < extra_limit; j++) {
            const struct tensor_spec *e = c->missing[i];
            const struct tensor *f = c->extra[j];
            if (!f || e->dtype != f->dtype || !same_shape(e, f) ||
                !one_component_differs(e->name, f->name))
                continue;
            struct buffer *b = difference_add(&c->renamed);
            if (b)
                buffer_printf(b, "%s is called %s", e->name, f->name);
            c->missing[i] = NULL;
            c->extra[j] = NULL;
            break;
        }
}

static void report(struct buffer *out, const char *what, struct difference *d)
{
    if (d->count == 0)
        return;
    buffer_printf(out, "%s%zu %s (%s", out->length ? "; " : "", d->count, what, d->text.data);
    if (d->count > SHOWN_PER_CLASS)
        buffer_printf(out, " and %zu more", d->count - SHOWN_PER_CLASS);
    buffer_char(out, ')');
}

static bool conclude(struct comparison *c, const struct checkpoint *found, struct error *err)
{
    for (size_t i = 0; i < c->missing_count; i++)
        if (!c->first)
            c->first = c->missing[i]->name;
    for (size_t i = 0; i < c->extra_count; i++)
        if (!c->first)
            c->first = c->extra[i]->name;
    pair_renamed(c);
    for (size_t i = 0; i < c->missing_count; i++)
        if (c->missing[i])
            add_name(&c->missing_text, c->missing[i]->name);
    for (size_t i = 0; i < c->extra_count; i++)
        if (c->extra[i])
            add_name(&c->extra_text, c->extra[i]->name);
    struct buffer message = {0};
    report(&message, "missing", &c->missing_text);
    report(&message, "extra", &c->extra_text);
    report(&message, "renamed", &c->renamed);
    report(&message, "re-typed", &c->retyped);
    report(&message, "re-shaped", &c->reshaped);
    const bool ok = message.length == 0;
    if (!ok) {
        error_set(err, "INVENTORY-MISMATCH", "%s", message.data);
        error_at(err, found->folder, c->first, NULL);
    }
    buffer_free(&message);
    buffer_free(&c->missing_text.text);
    buffer_free(&c->extra_text.text);
    buffer_free(&c->renamed.text);
    buffer_free(&c->retyped.text);
    buffer_free(&c->reshaped.text);
    return ok;
}

bool inventory_check(const struct inventory *expected, const struct checkpoint *found,
                     struct error *err)
{
    struct arena scratch = {0};
    const struct tensor_spec **order = arena_array(&scratch, expected->count + 1, sizeof *order);
    for (size_t i = 0; i < expected->count; i++)
        order[i] = &expected->items[i];
    qsort(order, expected->count, sizeof *order, compare_specs);
    struct comparison c = {
        .missing = arena_array(&scratch, expected->count + 1, sizeof *c.missing),
        .extra = arena_array(&scratch, found->tensor_count + 1, sizeof *c.extra),
    };
    size_t i = 0, j = 0;
    while (i < expected->count || j < found->tensor_count) {
        int way;
        if (i == expected->count)
            way = 1;
        else if (j == found->tensor_count)
            way = -1;
        else
            way = strcmp(order[i]->name, found->tensors[j].name);
        if (way < 0)
            c.missing[c.missing_count++] = order[i++];
        else if (way > 0)
            c.extra[c.extra_count++] = &found->tensors[j++];
        else
            compare_pair(&c, order[i++], &found->tensors[j++]);
    }
    const bool ok = conclude(&c, found, err);
    arena_free(&scratch);
    return ok;
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp((*(const struct inventory_line *const *)a)->tensor.name,
                  (*(const struct inventory_line *const *)b)->tensor.name);
}

void inventory_canonical_sha256_list(const struct inventory_line *lines, size_t count, char *hex)
{
    struct arena scratch = {0};
    const struct inventory_line **order = arena_array(&scratch, count + 1, sizeof *order);
    for (size_t i = 0; i < count; i++)
        order[i] = &lines[i];
    qsort(order, count, sizeof *order, compare_lines);
    struct sha256 *hash = sha256_begin();
    struct buffer line = {0};
    for (size_t i = 0; i < count; i++) {
        const struct tensor_spec *t = &order[i]->tensor;
        buffer_clear(&line);
        buffer_char(&line, '[');
        json_write_string(t->name, strlen(t->name), &line);
        buffer_printf(&line, ",\"%s\",", dtype_name(t->dtype));
        write_shape(&line, t->rank, t->shape);
        buffer_char(&line, ',');
        json_write_string(order[i]->shard, strlen(order[i]->shard), &line);
        buffer_text(&line, "]\n");
        sha256_update(hash, line.data, line.length);
    }
    uint8_t digest[SHA256_BYTES];
    sha256_finish(hash, digest);
    text_hex(hex, digest, sizeof digest);
    buffer_free(&line);
    arena_free(&scratch);
}

void inventory_canonical_sha256(const struct checkpoint *found, char *hex)
{
    struct arena scratch = {0};
    struct inventory_line *lines = arena_array(&scratch, found->tensor_count + 1, sizeof *lines);
    for (size_t i = 0; i < found->tensor_count; i++) {
        const struct tensor *t = &found->tensors[i];
        lines[i].tensor.name = t->name;
        lines[i].tensor.dtype = t->dtype;
        lines[i].tensor.rank = t->rank;
        memcpy(lines[i].tensor.shape, t->shape, sizeof t->shape);
        lines[i].shard = found->shards[t->shard].file_name;
    }
    inventory_canonical_sha256_list(lines, found->tensor_count, hex);
    arena_free(&scratch);
}
