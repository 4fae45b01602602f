/* Errors: see error.h. Text from outside is made safe to print on a terminal here, once. */
#include "base/error.h"

#include "base/buffer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Copies text into out[size]: control bytes (C0, DEL, C1) and bytes that are not UTF-8 become \xNN;
 * what does not fit is cut at a character and marked with "...". */
static void copy_printable(char *out, size_t size, const char *text)
{
    const uint8_t *in = (const uint8_t *)text;
    size_t left = strlen(text);
    size_t used = 0, room = size - 4; /* "..." and the NUL always fit */
    size_t mark = 0;                  /* where a clipped text ends */
    while (left > 0) {
        char piece[8];
        size_t piece_length;
        int n = utf8_sequence(in, left);
        bool control = in[0] < 0x20 || in[0] == 0x7f || (n == 2 && in[0] == 0xc2 && in[1] < 0xa0);
        if (n <= 0 || control) {
            snprintf(piece, sizeof piece, "\\x%02X", in[0]);
            piece_length = 4;
            n = 1;
        } else {
            memcpy(piece, in, (size_t)n);
            piece_length = (size_t)n;
        }
        if (used + piece_length > size - 1) {
            memcpy(out + mark, "...", 4);
            return;
        }
        memcpy(out + used, piece, piece_length);
        used += piece_length;
        if (used <= room)
            mark = used;
        in += n;
        left -= (size_t)n;
    }
    out[used] = '\0';
}

bool error_set(struct error *err, const char *name, const char *format, ...)
{
    if (!err)
        return false;
    /* The arguments may point into *err: everything is formatted before anything is overwritten. */
    char text[4096], label[sizeof err->name];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    text_copy(label, sizeof label, name);
    memcpy(err->name, label, sizeof label);
    copy_printable(err->message, sizeof err->message, text);
    err->file[0] = err->field[0] = err->value[0] = '\0';
    return false;
}

bool error_at(struct error *err, const char *file, const char *field, const char *value)
{
    if (!err)
        return false;
    if (file && file != err->file)
        copy_printable(err->file, sizeof err->file, file);
    if (field && field != err->field)
        copy_printable(err->field, sizeof err->field, field);
    if (value && value != err->value)
        copy_printable(err->value, sizeof err->value, value);
    return false;
}

bool error_errno(struct error *err, const char *file, const char *what)
{
    int code = errno;
    char text[128];
    error_set(err, "IO", "%s: %s", what, strerror_r(code, text, sizeof text));
    errno = code;
    return error_at(err, file, NULL, NULL);
}

char *error_line(const struct error *err, char *out, size_t size)
{
    if (size == 0)
        return out;
    struct buffer b = {0};
    if (err->name[0])
        buffer_printf(&b, "%s: ", err->name);
    buffer_text(&b, err->message);
    const char *const labels[] = {"file", "field", "value"};
    const char *const parts[] = {err->file, err->field, err->value};
    bool open = false;
    for (size_t i = 0; i < 3; i++) {
        if (!parts[i][0])
            continue;
        buffer_printf(&b, "%s%s %s", open ? ", " : " (", labels[i], parts[i]);
        open = true;
    }
    if (open)
        buffer_char(&b, ')');
    text_copy(out, size, b.data ? b.data : "");
    buffer_free(&b);
    return out;
}
