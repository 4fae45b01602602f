#include "arena/doctor/finding.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* One line, and nothing in it that a terminal obeys. */
static const char *plain(struct arena *a, const char *text)
{
    const size_t length = strlen(text);
    char *out = arena_strdup(a, text);
    for (size_t i = 0; i < length;) {
        const int n = utf8_sequence((const uint8_t *)text + i, length - i);
        const unsigned char c = (unsigned char)text[i];
        /* C1 controls are two bytes in UTF-8: 0xc2 0x80 to 0x9f */
        const bool control =
            c < 0x20 || c == 0x7f || (n == 2 && c == 0xc2 && (unsigned char)text[i + 1] < 0xa0);
        for (int k = 0; (n <= 0 || control) && k < (n > 0 ? n : 1); k++)
            out[i + (size_t)k] = '?';
        i += n > 0 ? (size_t)n : 1;
    }
    return out;
}

void finding_add(struct findings *f, const char *id, enum finding_state state, const char *fix,
                 const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (f->count == FINDINGS_MOST)
        return;
    struct finding *item = &f->items[f->count++];
    *item = (struct finding){arena_strdup(&f->arena, id), state, plain(&f->arena, text),
                             fix ? plain(&f->arena, fix) : NULL};
    f->of[state]++;
    if (f->tell)
        f->tell(f->context, item);
}

const struct finding *finding_find(const struct findings *f, const char *id)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->items[i].id, id) == 0)
            return &f->items[i];
    return NULL;
}

const char *finding_state_name(enum finding_state s)
{
    static const char *const names[FINDING_STATES] = {"ok", "warn", "FIX"};
    return names[s];
}

void finding_write_line(const struct finding *f, struct buffer *out)
{
    buffer_printf(out, "%-4s  %-25s  %s", finding_state_name(f->state), f->id, f->what);
    if (f->fix)
        buffer_printf(out, "; to mend: %s", f->fix);
}

json_t *finding_list_to_json(const struct findings *f)
{
    json_t *all = json_array();
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *one = &f->items[i];
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s?}", "id", one->id, "state",
                                             finding_state_name(one->state), "what", one->what,
                                             "fix", one->fix));
    }
    return all;
}

void finding_list_free(struct findings *f)
{
    arena_free(&f->arena);
    *f = (struct findings){0};
}

const char *shell_word(struct arena *a, const char *text)
{
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                               "0123456789_-./=:,+@%";
    if (text[0] && text[strspn(text, safe)] == '\0')
        return text;
    struct buffer out = {0};
    buffer_char(&out, '\'');
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            buffer_text(&out, "'\\''");
        else
            buffer_char(&out, *p);
    }
    buffer_char(&out, '\'');
    const char *word = arena_strdup(a, out.data);
    buffer_free(&out);
    return word;
}

const char *bytes_text(struct arena *a, double bytes)
{
    if (bytes >= 1e9)
        return arena_printf(a, "%.1f GB", bytes / 1e9);
    return bytes >= 1e6 ? arena_printf(a, "%.1f MB", bytes / 1e6)
                        : arena_printf(a, "%.0f kB", bytes / 1e3);
}
