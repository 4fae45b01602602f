/* Progress and tables for people: see terminal.h. */
#include "base/terminal.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int64_t TERMINAL_NS = 200000000;   /* five times a second */
static const int64_t ELSEWHERE_NS = 5000000000; /* a log wants fewer lines */

static void write_amount(struct buffer *b, double amount, const char *unit)
{
    if (strcmp(unit, "bytes") != 0)
        buffer_printf(b, amount < 100 && amount != (double)(uint64_t)amount ? "%.1f %s" : "%.0f %s",
                      amount, unit);
    else if (amount >= 1e9)
        buffer_printf(b, "%.2f GB", amount / 1e9);
    else if (amount >= 1e6)
        buffer_printf(b, "%.1f MB", amount / 1e6);
    else
        buffer_printf(b, "%.0f bytes", amount);
}

static void show(struct progress *p, const char *text, bool last)
{
    if (p->is_terminal)
        fprintf(stderr, "\r%s\033[K%s", text, last ? "\n" : "");
    else
        fprintf(stderr, "%s\n", text);
    fflush(stderr);
    p->shown = true;
}

void progress_begin(struct progress *p, const char *phase, const char *unit, uint64_t total)
{
    const char *terminal = getenv("TERM");
    *p = (struct progress){.phase = phase, .unit = unit, .total = total, .quiet = p->quiet};
    p->is_terminal = isatty(STDERR_FILENO) && !(terminal && strcmp(terminal, "dumb") == 0);
    p->started_ns = p->last_shown_ns = clock_now_ns();
}

void progress_update(struct progress *p, uint64_t done)
{
    p->done = done;
    if (p->quiet)
        return;
    int64_t now = clock_now_ns();
    if (now - p->last_shown_ns < (p->is_terminal ? TERMINAL_NS : ELSEWHERE_NS))
        return;
    p->last_shown_ns = now;
    double seconds = (double)(now - p->started_ns) * 1e-9;
    double rate = seconds > 0 ? (double)done / seconds : 0;
    struct buffer line = {0};
    buffer_printf(&line, "%s: ", p->phase);
    write_amount(&line, (double)done, p->unit);
    if (p->total > 0) {
        buffer_text(&line, " of ");
        write_amount(&line, (double)p->total, p->unit);
        buffer_printf(&line, " (%.0f%%)", 100.0 * (double)done / (double)p->total);
    }
    buffer_text(&line, ", ");
    write_amount(&line, rate, p->unit);
    buffer_text(&line, "/s");
    if (p->total > done && rate > 0)
        buffer_printf(&line, ", %.0f s left", (double)(p->total - done) / rate);
    show(p, line.data, false);
    buffer_free(&line);
}

void progress_end(struct progress *p)
{
    if (p->quiet)
        return;
    double seconds = clock_seconds(p->started_ns);
    struct buffer line = {0};
    buffer_printf(&line, "%s: ", p->phase);
    write_amount(&line, (double)p->done, p->unit);
    buffer_printf(&line, " in %.2f s", seconds);
    if (seconds > 0 && p->done > 0) {
        buffer_text(&line, ", ");
        write_amount(&line, (double)p->done / seconds, p->unit);
        buffer_text(&line, "/s");
    }
    show(p, line.data, true);
    buffer_free(&line);
}

struct table {
    int columns;
    size_t rows, capacity; /* in cells of columns each */
    char **cells;
    struct arena arena;
};

struct table *table_new(int columns)
{
    struct table *t = memory_alloc(sizeof *t);
    t->columns = columns;
    return t;
}

/* The cells of one more row, to be filled. */
static char **add_row(struct table *t)
{
    if (t->rows == t->capacity) {
        t->capacity = t->capacity ? t->capacity * 2 : 16;
        t->cells = memory_realloc(t->cells, t->capacity * (size_t)t->columns * sizeof *t->cells);
    }
    return &t->cells[t->rows++ * (size_t)t->columns];
}

void table_row(struct table *t, ...)
{
    char **row = add_row(t);
    va_list ap;
    va_start(ap, t);
    for (int i = 0; i < t->columns; i++)
        row[i] = arena_strdup(&t->arena, va_arg(ap, const char *));
    va_end(ap);
}

void table_row_of(struct table *t, const char *const *cells)
{
    char **row = add_row(t);
    for (int i = 0; i < t->columns; i++)
        row[i] = arena_strdup(&t->arena, cells[i]);
}

/* Characters, not bytes; wide ones are counted as one. */
static int text_width(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

void table_print(struct table *t)
{
    int *widths = memory_alloc((size_t)(t->columns + 1) * sizeof *widths);
    for (size_t k = 0; k < t->rows * (size_t)t->columns; k++) {
        int *w = &widths[k % (size_t)t->columns];
        int n = text_width(t->cells[k]);
        *w = n > *w ? n : *w;
    }
    for (size_t r = 0; r < t->rows; r++) {
        for (int i = 0; i < t->columns; i++) {
            const char *cell = t->cells[r * (size_t)t->columns + (size_t)i];
            int pad = widths[i] - text_width(cell);
            if (i == 0)
                printf("%s%*s", cell, t->columns > 1 ? pad : 0, "");
            else
                printf("  %*s%s", pad, "", cell);
        }
        putchar('\n');
    }
    free(widths);
    free(t->cells);
    arena_free(&t->arena);
    free(t);
}
