/* What a report says, before it is a page or a terminal's text: sections, and in them sentences,
 * tables and charts. Every text is copied and made harmless on its way in: bytes that steer a
 * terminal, and characters that reorder or hide text, are shown as what they are; long texts are
 * clipped. Escaping for HTML is the page's matter.
 *
 * A sheet is filled from top to bottom: sheet_section, then its items. Charts come with their
 * numbers in a table of the same section, for who cannot see them. */
#ifndef MLXFAST_JUDGE_PAGE_SHEET_H
#define MLXFAST_JUDGE_PAGE_SHEET_H

#include "base/arena.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum sheet_tone { SHEET_PLAIN, SHEET_GOOD, SHEET_BAD, SHEET_CAUTION };
enum sheet_kind { SHEET_TEXT, SHEET_TABLE, SHEET_CHART, SHEET_PROSE };
enum sheet_use {
    SHEET_BOTH,   /* page and terminal */
    SHEET_FOLDED, /* page and terminal; the page shows it when asked */
    SHEET_TILES,  /* both: a few facts, name and value, which the page shows large */
    SHEET_PAGE    /* folded on the page, too long for a terminal */
};

struct sheet_item {
    enum sheet_kind kind;
    enum sheet_tone tone; /* SHEET_TEXT */
    const char *text;     /* the sentence; the caption of a table or chart; PROSE: plain text */
    const char *markdown; /* SHEET_PROSE */
    enum sheet_use use;   /* SHEET_TABLE; heads NULL: none */
    int columns;
    char **heads, **cells; /* cells[row * columns + column] */
    size_t rows, capacity;
    json_t *chart; /* SHEET_CHART: see sheet_chart */
};
struct sheet_section {
    const char *id, *title;
    struct sheet_item *items;
    size_t count, capacity;
};
struct sheet {
    struct arena arena;
    const char *title;
    struct sheet_section *sections;
    size_t count, capacity;
};

struct sheet *sheet_new(const char *title);
void sheet_free(struct sheet *s);

/* A text as it may be shown: see above. Lives as long as the arena. */
const char *sheet_clean(struct arena *a, const char *text);

void sheet_begin(struct sheet *s, const char *id, const char *title); /* a section; id is ours */
void sheet_say(struct sheet *s, enum sheet_tone tone, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A text in two forms, both from explain.h: not clipped. */
void sheet_prose(struct sheet *s, const char *plain, const char *markdown);

/* A table, then its rows: columns const char * arguments each. NULL is shown as a dash. heads is
 * NULL or an array of columns. */
void sheet_table(struct sheet *s, enum sheet_use use, const char *caption, int columns,
                 const char *const *heads);
void sheet_row(struct sheet *s, ...);

/* A chart for page.js, which the sheet takes over (and fills in "alt" from the caption). Its form:
 *   {"kind": "lines"|"bars"|"intervals", "x": "axis title", "y": "axis title",
 *    "labels": [text],                            bars, intervals: the rows or columns
 *    "series": [{"name": text, "x": [number], "y": [number|null]}],          lines
 *              [{"name": text, "values": [number|null]}],                    bars
 *              [{"name": text, "low": [..], "high": [..], "at": [..]}],      intervals
 *    "marks": [{"name": text, "at": number}],     straight lines across the values' axis
 *    "across": true,  bars that lie      "joined": true,  bars of a histogram
 *    "dense": true,   lines of many      "whole": true}   x is counted */
void sheet_chart(struct sheet *s, const char *caption, json_t *chart);
json_t *sheet_chart_new(const char *kind, const char *x, const char *y);
json_t *sheet_chart_series(struct sheet *s, json_t *chart, const char *name);
void sheet_chart_label(struct sheet *s, json_t *chart, const char *label);
void sheet_chart_mark(json_t *chart, const char *name, double at);
void sheet_push(json_t *object, const char *key, double value); /* not finite: null */

#endif
