#include "judge/page/text.h"

#include "base/buffer.h"
#include "base/terminal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, CELL_MOST = 96 };

/* Characters of a UTF-8 text. */
static size_t width_of(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static void print_filled(const char *text)
{
    size_t column = 0;
    while (*text) {
        const size_t length = strcspn(text, " ");
        const size_t width = width_of(text, length);
        if (column > 0 && column + 1 + width > COLUMNS) {
            putchar('\n');
            column = 0;
        } else if (column > 0) {
            putchar(' ');
            column++;
        }
        fwrite(text, 1, length, stdout);
        column += width;
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* A cell of a table: clipped between characters. */
static const char *clip(struct arena *a, const char *cell)
{
    if (width_of(cell, strlen(cell)) <= CELL_MOST)
        return cell;
    size_t end = 0, n = 0;
    while (n < CELL_MOST - 1) {
        end++;
        n += ((unsigned char)cell[end] & 0xc0) != 0x80;
    }
    return arena_printf(a, "%.*s…", (int)end, cell);
}

static void print_table(const struct sheet_item *t)
{
    struct arena a = {0};
    struct table *table = table_new(t->columns);
    const char **cells = arena_array(&a, (size_t)t->columns, sizeof *cells);
    printf("\n%s\n", t->text);
    for (int i = 0; t->heads && i < t->columns; i++)
        cells[i] = clip(&a, t->heads[i]);
    if (t->heads)
        table_row_of(table, cells);
    for (size_t row = 0; row < t->rows; row++) {
        for (int i = 0; i < t->columns; i++)
            cells[i] = clip(&a, t->cells[row * (size_t)t->columns + (size_t)i]);
        table_row_of(table, cells);
    }
    table_print(table);
    arena_free(&a);
}

static void print_item(const struct sheet_item *item, bool colours)
{
    static const char *const inks[] = {"", "\033[32m", "\033[31m", "\033[33m"};
    switch (item->kind) {
    case SHEET_TEXT:
        if (colours)
            fputs(inks[item->tone], stdout);
        print_filled(item->text);
        if (colours && item->tone != SHEET_PLAIN)
            fputs("\033[0m", stdout);
        break;
    case SHEET_TABLE:
        if (item->use != SHEET_PAGE)
            print_table(item);
        break;
    case SHEET_PROSE:
        printf("\n%s\n", item->text);
        break;
    case SHEET_CHART:
        break;
    }
}

void text_print(const struct sheet *s, bool colours)
{
    printf(colours ? "\033[1m%s\033[0m\n" : "%s\n", s->title);
    for (size_t i = 0; i < s->count; i++) {
        printf(colours ? "\n\033[1m%s\033[0m\n" : "\n== %s\n", s->sections[i].title);
        for (size_t k = 0; k < s->sections[i].count; k++)
            print_item(&s->sections[i].items[k], colours);
    }
}
