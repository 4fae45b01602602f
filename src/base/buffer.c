/* Byte strings and UTF-8: see buffer.h. */
#include "base/buffer.h"

#include "base/arena.h"
#include "base/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buffer_reserve(struct buffer *b, size_t extra)
{
    size_t need;
    if (!size_add(b->length, extra, &need) || !size_add(need, 1, &need))
        need = SIZE_MAX; /* memory_realloc refuses it */
    if (need <= b->capacity)
        return;
    size_t grown = b->capacity < SIZE_MAX / 2 ? b->capacity * 2 : SIZE_MAX;
    if (grown < need)
        grown = need;
    if (grown < 64)
        grown = 64;
    b->data = memory_realloc(b->data, grown);
    b->capacity = grown;
    b->data[b->length] = '\0';
}

void buffer_append(struct buffer *b, const void *data, size_t length)
{
    buffer_reserve(b, length);
    if (length)
        memcpy(b->data + b->length, data, length);
    b->length += length;
    b->data[b->length] = '\0';
}

void buffer_text(struct buffer *b, const char *text)
{
    buffer_append(b, text, strlen(text));
}

void buffer_char(struct buffer *b, char c)
{
    buffer_append(b, &c, 1);
}

void buffer_printf(struct buffer *b, const char *format, ...)
{
    va_list ap, again;
    va_start(ap, format);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n >= 0) {
        buffer_reserve(b, (size_t)n);
        vsnprintf(b->data + b->length, (size_t)n + 1, format, again);
        b->length += (size_t)n;
    }
    va_end(again);
}

void buffer_clear(struct buffer *b)
{
    b->length = 0;
    if (b->data)
        b->data[0] = '\0';
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    *b = (struct buffer){0};
}

bool text_copy(char *out, size_t size, const char *text)
{
    size_t length = strlen(text);
    if (size == 0)
        return false;
    size_t n = length < size ? length : size - 1;
    memcpy(out, text, n);
    out[n] = '\0';
    return n == length;
}

bool text_starts(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool text_ends(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);
    return m <= n && memcmp(text + n - m, suffix, m) == 0;
}

void text_hex(char *out, const uint8_t *data, size_t length)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * length] = '\0';
}

bool text_is_lower_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f')))
            return false; /* the NUL of a shorter text too */
    }
    return text[n] == '\0';
}

int utf8_sequence(const uint8_t *data, size_t length)
{
    if (length == 0)
        return -1;
    uint8_t c = data[0];
    if (c < 0x80)
        return 1;
    int n;
    uint8_t low = 0x80, high = 0xbf; /* allowed second byte: no overlongs, surrogates, > U+10FFFF */
    if (c >= 0xc2 && c <= 0xdf) {
        n = 2;
    } else if (c >= 0xe0 && c <= 0xef) {
        n = 3;
        if (c == 0xe0)
            low = 0xa0;
        if (c == 0xed)
            high = 0x9f;
    } else if (c >= 0xf0 && c <= 0xf4) {
        n = 4;
        if (c == 0xf0)
            low = 0x90;
        if (c == 0xf4)
            high = 0x8f;
    } else {
        return 0;
    }
    for (int i = 1; i < n; i++) {
        if ((size_t)i >= length)
            return -1;
        if (data[i] < low || data[i] > high)
            return 0;
        low = 0x80;
        high = 0xbf;
    }
    return n;
}

bool utf8_valid(const char *data, size_t length)
{
    const uint8_t *p = (const uint8_t *)data;
    while (length > 0) {
        int n = utf8_sequence(p, length);
        if (n <= 0)
            return false;
        p += n;
        length -= (size_t)n;
    }
    return true;
}
