/* The page that explain.c writes on: headings, paragraphs and list items, as Markdown or as plain
 * text. Texts are given in Markdown's form; plain text loses the back quotes. */
#ifndef MLXFAST_JUDGE_EXPLAIN_PAGE_H
#define MLXFAST_JUDGE_EXPLAIN_PAGE_H

#include "base/buffer.h"

#include <stdbool.h>

struct page {
    bool markdown;
    struct buffer *out;
};

void page_heading(const struct page *p, int level, const char *text);
void page_paragraph(const struct page *p, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void page_item(const struct page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A text from a contract, safe to stand between back quotes: control bytes are shown as \xNN, back
 * quotes become apostrophes. Appended to out. */
void page_quote(struct buffer *out, const char *text);

#endif
