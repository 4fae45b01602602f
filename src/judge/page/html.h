/* A sheet as one HTML page that needs nothing else: style, Chart.js, our script and the charts'
 * numbers are in it, and its policy lets nothing else run or load. Every text of a sheet is
 * escaped; the charts' numbers are JSON in which no byte can end its element. */
#ifndef MLXFAST_JUDGE_PAGE_HTML_H
#define MLXFAST_JUDGE_PAGE_HTML_H

#include "base/buffer.h"
#include "judge/page/sheet.h"

/* library: the text of Chart.js; notice: what must travel with it. */
void html_write(const struct sheet *s, const struct buffer *library, const char *notice,
                struct buffer *out);

void html_escape(const char *text, struct buffer *out);  /* in an element or a quoted attribute */
void html_json(const json_t *value, struct buffer *out); /* inside a script element */

#endif
