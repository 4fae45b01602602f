#include "judge/explain_page.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PLAIN_COLUMNS = 80, MARKDOWN_COLUMNS = 100 };

void page_quote(struct buffer *out, const char *text)
{
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f)
            buffer_printf(out, "\\x%02x", c);
        else
            buffer_char(out, c == '`' ? '\'' : (char)c);
    }
}

/* At the beginning of a line Markdown would read these as the start of something else. */
static bool must_not_lead(const char *word, size_t length)
{
    static const char *const words[] = {"-", "+", "*", "#", ">", "=", "1."};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i]) == length && strncmp(words[i], word, length) == 0)
            return true;
    return false;
}

/* Fills lines; the first begins with `lead`, the others with as many spaces. */
static void put_filled(const struct page *p, const char *lead, const char *text)
{
    const size_t columns = p->markdown ? MARKDOWN_COLUMNS : PLAIN_COLUMNS;
    const size_t indent = strlen(lead);
    size_t column = indent;
    bool at_start = true;
    buffer_text(p->out, lead);
    while (*text) {
        const size_t length = strcspn(text, " ");
        size_t width = length;
        for (size_t i = 0; i < length; i++)
            if (!p->markdown && text[i] == '`')
                width--;
        if (!at_start && column + 1 + width > columns && !must_not_lead(text, length)) {
            buffer_printf(p->out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!at_start) {
            buffer_char(p->out, ' ');
            column++;
        }
        for (size_t i = 0; i < length; i++)
            if (p->markdown || text[i] != '`')
                buffer_char(p->out, text[i]);
        column += width;
        at_start = false;
        text += length;
        text += strspn(text, " ");
    }
    buffer_char(p->out, '\n');
}

static void put_formatted(const struct page *p, const char *lead, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    struct buffer text = {0};
    buffer_reserve(&text, (size_t)length + 1);
    vsnprintf(text.data, (size_t)length + 1, format, again);
    va_end(again);
    put_filled(p, lead, text.data);
    buffer_free(&text);
}

void page_heading(const struct page *p, int level, const char *text)
{
    if (p->out->length > 0)
        buffer_char(p->out, '\n');
    if (p->markdown)
        for (int i = 0; i < level; i++)
            buffer_char(p->out, '#');
    put_filled(p, p->markdown ? " " : "", text);
    if (p->markdown)
        buffer_char(p->out, '\n');
}

void page_paragraph(const struct page *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put_formatted(p, "", format, args);
    va_end(args);
}

void page_item(const struct page *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put_formatted(p, "- ", format, args);
    va_end(args);
}
