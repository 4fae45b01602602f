#include "judge/page/html.h"

#include "base/json.h"
#include "base/sha256.h"
#include "judge/page/assets.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

void html_escape(const char *text, struct buffer *out)
{
    for (; *text; text++) {
        switch (*text) {
        case '&':
            buffer_text(out, "&amp;");
            break;
        case '<':
            buffer_text(out, "&lt;");
            break;
        case '>':
            buffer_text(out, "&gt;");
            break;
        case '"':
            buffer_text(out, "&quot;");
            break;
        case '\'':
            buffer_text(out, "&#39;");
            break;
        default:
            buffer_char(out, *text);
        }
    }
}

void html_json(const json_t *value, struct buffer *out)
{
    struct buffer plain = {0};
    json_write_canonical(value, 0, &plain);
    /* These bytes stand only inside strings, where JSON may write them as escapes. */
    for (size_t i = 0; i < plain.length; i++) {
        const unsigned char c = (unsigned char)plain.data[i];
        if (c == '<' || c == '>' || c == '&') {
            buffer_printf(out, "\\u%04x", c);
        } else if (c == 0xe2 && i + 2 < plain.length && (unsigned char)plain.data[i + 1] == 0x80 &&
                   ((unsigned char)plain.data[i + 2] & 0xfe) == 0xa8) {
            buffer_text(out, (unsigned char)plain.data[i + 2] == 0xa8 ? "\\u2028" : "\\u2029");
            i += 2;
        } else {
            buffer_char(out, (char)c);
        }
    }
    buffer_free(&plain);
}

/* 'sha256-<base64>' of an inline element's text. */
static void policy_hash(const char *data, size_t length, struct buffer *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t hash[SHA256_BYTES + 1] = {0}; /* 33 bytes: eleven threes, the last byte padding */
    sha256_bytes(data, length, hash);
    buffer_text(out, " 'sha256-");
    for (size_t i = 0; i < sizeof hash; i += 3) {
        const uint32_t three =
            (uint32_t)hash[i] << 16 | (uint32_t)hash[i + 1] << 8 | (uint32_t)hash[i + 2];
        for (int shift = 18; shift >= 0; shift -= 6)
            if (i + 3 < sizeof hash || shift > 0)
                buffer_char(out, digits[three >> shift & 63]);
    }
    buffer_text(out, "='");
}

static void put_head(const struct sheet *s, const struct buffer *library, struct buffer *out)
{
    buffer_text(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                     "base-uri 'none'; form-action 'none'; style-src");
    policy_hash(page_style, strlen(page_style), out);
    buffer_text(out, "; script-src");
    policy_hash(library->data, library->length, out);
    policy_hash(page_script, strlen(page_script), out);
    buffer_text(out, "\">\n<meta name=\"viewport\" content=\"width=device-width, "
                     "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
                     "<meta name=\"referrer\" content=\"no-referrer\">\n<title>");
    html_escape(s->title, out);
    buffer_printf(out, "</title>\n<style>%s</style>\n</head>\n<body>\n", page_style);
}

static void put_navigation(const struct sheet *s, struct buffer *out)
{
    buffer_text(out, "<a class=\"skip\" href=\"#main\">Skip to the verdict</a>\n<header>\n<h1>");
    html_escape(s->title, out);
    buffer_text(out, "</h1>\n<nav aria-label=\"Sections\"><ul>\n");
    for (size_t i = 0; i < s->count; i++) {
        buffer_printf(out, "<li><a href=\"#%s\">", s->sections[i].id);
        html_escape(s->sections[i].title, out);
        buffer_text(out, "</a></li>\n");
    }
    buffer_text(out, "</ul></nav>\n</header>\n");
}

/* Figures stand to the right; texts, digests too, to the left. */
static bool is_figure(const char *cell)
{
    size_t length = strlen(cell);
    if (length == 0 || length > 32)
        return false;
    if (strcmp(cell, "–") == 0)
        return true;
    return isdigit((unsigned char)cell[0]) || (cell[0] == '-' && isdigit((unsigned char)cell[1]));
}

/* A column of figures, dashes among them. */
static bool are_figures(const struct sheet_item *t, int column)
{
    bool all = column > 0 && t->rows > 0;
    for (size_t row = 0; all && row < t->rows; row++)
        all = is_figure(t->cells[row * (size_t)t->columns + (size_t)column]);
    return all;
}

static void put_tiles(const struct sheet_item *t, struct buffer *out)
{
    buffer_text(out, "<dl class=\"tiles\">\n");
    for (size_t row = 0; row < t->rows; row++) {
        buffer_text(out, "<div><dt>");
        html_escape(t->cells[row * 2], out);
        buffer_text(out, "</dt><dd>");
        html_escape(t->cells[row * 2 + 1], out);
        buffer_text(out, "</dd></div>\n");
    }
    buffer_text(out, "</dl>\n");
}

static void put_table(const struct sheet_item *t, struct buffer *out)
{
    const bool folded = t->use == SHEET_FOLDED || t->use == SHEET_PAGE;
    if (folded) {
        buffer_printf(out, "<details class=\"%s\"><summary>",
                      t->use == SHEET_PAGE ? "data" : "folded");
        html_escape(t->text, out);
        buffer_text(out, ", as a table</summary>\n");
    }
    buffer_text(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
    html_escape(t->text, out);
    buffer_printf(out, "\"><table%s>\n<caption>", t->columns <= 2 ? " class=\"narrow\"" : "");
    html_escape(t->text, out);
    buffer_text(out, "</caption>\n");
    if (t->heads) {
        buffer_text(out, "<thead><tr>");
        for (int i = 0; i < t->columns; i++) {
            buffer_text(out, are_figures(t, i) ? "<th scope=\"col\" class=\"n\">"
                                               : "<th scope=\"col\">");
            html_escape(t->heads[i], out);
            buffer_text(out, "</th>");
        }
        buffer_text(out, "</tr></thead>\n");
    }
    buffer_text(out, "<tbody>\n");
    bool figures[32] = {0};
    for (int i = 0; i < t->columns && i < 32; i++)
        figures[i] = are_figures(t, i);
    for (size_t row = 0; row < t->rows; row++) {
        buffer_text(out, "<tr>");
        for (int i = 0; i < t->columns; i++) {
            const char *cell = t->cells[row * (size_t)t->columns + (size_t)i];
            buffer_text(out, i == 0       ? "<th scope=\"row\">"
                             : figures[i] ? "<td class=\"n\">"
                                          : "<td>");
            html_escape(cell, out);
            buffer_text(out, i == 0 ? "</th>" : "</td>");
        }
        buffer_text(out, "</tr>\n");
    }
    buffer_text(out, "</tbody></table></div>\n");
    if (folded)
        buffer_text(out, "</details>\n");
}

static void put_chart(const struct sheet_item *chart, size_t index, struct buffer *out)
{
    buffer_printf(out, "<figure><figcaption id=\"caption-%zu\">", index);
    html_escape(chart->text, out);
    buffer_printf(out,
                  "</figcaption>\n<div class=\"plot\"><canvas id=\"chart-%zu\" role=\"img\" "
                  "tabindex=\"0\" aria-labelledby=\"caption-%zu\" aria-describedby=\"keys\">"
                  "The numbers of this chart are in a table of this section.</canvas></div>"
                  "</figure>\n",
                  index, index);
}

/* A line with `code` in it. */
static void put_inline(const char *text, size_t length, struct buffer *out)
{
    bool code = false;
    char one[2] = {0};
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '`') {
            buffer_text(out, code ? "</code>" : "<code>");
            code = !code;
        } else {
            one[0] = text[i];
            html_escape(one, out);
        }
    }
}

/* The Markdown that explain.h writes: headings, paragraphs, items, lines that go on. What stands
 * before the first heading of the second level is for the file that it usually is. */
static void put_prose(const char *markdown, struct buffer *out)
{
    enum { NOTHING, ITEM, PARAGRAPH } open = NOTHING;
    bool in_list = false;
    const char *line = strstr(markdown, "\n## ");
    struct buffer text = {0};
    buffer_text(out, "<div class=\"prose\">\n");
    line = line ? line + 1 : markdown;
    while (true) {
        const size_t length = strcspn(line, "\n");
        const bool item = text_starts(line, "- "), heading = *line == '#';
        const bool goes_on = length > 0 && !item && !heading && open != NOTHING;
        if (goes_on) {
            const size_t skip = strspn(line, " ");
            buffer_char(&text, ' ');
            if (skip < length)
                buffer_append(&text, line + skip, length - skip);
        } else {
            if (open != NOTHING) {
                buffer_text(out, open == ITEM ? "<li>" : "<p>");
                put_inline(text.data, text.length, out);
                buffer_text(out, open == ITEM ? "</li>\n" : "</p>\n");
                open = NOTHING;
            }
            if (in_list && length > 0 && !item) {
                buffer_text(out, "</ul>\n");
                in_list = false;
            }
            buffer_clear(&text);
            if (item && !in_list) {
                buffer_text(out, "<ul>\n");
                in_list = true;
            }
            if (heading) {
                const size_t skip = strspn(line, "# ");
                buffer_text(out, "<h3>");
                put_inline(line + skip, skip < length ? length - skip : 0, out);
                buffer_text(out, "</h3>\n");
            } else if (length > 0) {
                open = item ? ITEM : PARAGRAPH;
                buffer_append(&text, line + (item ? 2 : 0), length - (item ? 2 : 0));
            }
        }
        if (line[length] == '\0')
            break;
        line += length + 1;
    }
    if (open != NOTHING) {
        buffer_text(out, open == ITEM ? "<li>" : "<p>");
        put_inline(text.data, text.length, out);
        buffer_text(out, open == ITEM ? "</li>\n" : "</p>\n");
    }
    buffer_text(out, in_list ? "</ul>\n</div>\n" : "</div>\n");
    buffer_free(&text);
}

static void put_section(const struct sheet_section *section, size_t *chart, struct buffer *out)
{
    static const char *const tones[] = {"plain", "good", "bad", "caution"};
    buffer_printf(out, "<section id=\"%s\" aria-labelledby=\"h-%s\">\n<h2 id=\"h-%s\">",
                  section->id, section->id, section->id);
    html_escape(section->title, out);
    buffer_text(out, "</h2>\n");
    for (size_t i = 0; i < section->count; i++) {
        const struct sheet_item *item = &section->items[i];
        const bool before = i > 0 && section->items[i - 1].kind == SHEET_CHART;
        const bool after = i + 1 < section->count && section->items[i + 1].kind == SHEET_CHART;
        switch (item->kind) {
        case SHEET_TEXT:
            buffer_printf(out, "<p class=\"%s\">", tones[item->tone]);
            html_escape(item->text, out);
            buffer_text(out, "</p>\n");
            break;
        case SHEET_TABLE:
            if (item->use == SHEET_TILES)
                put_tiles(item, out);
            else
                put_table(item, out);
            break;
        case SHEET_CHART: /* those that follow one another share a grid */
            if (!before)
                buffer_text(out, "<div class=\"charts\">\n");
            put_chart(item, (*chart)++, out);
            if (!after)
                buffer_text(out, "</div>\n");
            break;
        case SHEET_PROSE:
            put_prose(item->markdown, out);
            break;
        }
    }
    buffer_text(out, "</section>\n");
}

static void put_charts_data(const struct sheet *s, struct buffer *out)
{
    json_t *all = json_array();
    for (size_t i = 0; i < s->count; i++)
        for (size_t k = 0; k < s->sections[i].count; k++)
            if (s->sections[i].items[k].kind == SHEET_CHART)
                json_array_append(all, s->sections[i].items[k].chart);
    buffer_text(out, "<script type=\"application/json\" id=\"charts\">");
    html_json(all, out);
    buffer_text(out, "</script>\n");
    json_decref(all);
}

void html_write(const struct sheet *s, const struct buffer *library, const char *notice,
                struct buffer *out)
{
    size_t chart = 0;
    put_head(s, library, out);
    put_navigation(s, out);
    buffer_text(out, "<main id=\"main\">\n<noscript><p class=\"caution\">Scripts are off, so the "
                     "charts are not drawn; the tables hold their numbers.</p></noscript>\n");
    for (size_t i = 0; i < s->count; i++)
        put_section(&s->sections[i], &chart, out);
    buffer_text(out, "</main>\n<footer>\n<p id=\"keys\">In a chart, the arrow keys walk from point "
                     "to point; Escape leaves it.</p>\n"
                     "<details class=\"data\"><summary>Chart.js is in this page; its "
                     "licence</summary>\n<pre>");
    html_escape(notice, out);
    buffer_text(out, "</pre></details>\n</footer>\n"
                     "<p id=\"live\" class=\"unseen\" aria-live=\"polite\"></p>\n");
    put_charts_data(s, out);
    buffer_text(out, "<script>");
    buffer_append(out, library->data, library->length);
    buffer_printf(out, "</script>\n<script>%s</script>\n</body>\n</html>\n", page_script);
}
