/* Growing byte strings, with the few text operations that the project needs. A zeroed struct
 * buffer is empty. data is always NUL-terminated once anything was appended. */
#ifndef MLXFAST_BASE_BUFFER_H
#define MLXFAST_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    char *data;
    size_t length;
    size_t capacity;
};

void buffer_append(struct buffer *b, const void *data, size_t length);
void buffer_text(struct buffer *b, const char *text);
void buffer_char(struct buffer *b, char c);
void buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buffer_reserve(struct buffer *b, size_t extra); /* room for extra more bytes */
void buffer_clear(struct buffer *b);                 /* length 0, keeps the memory */
void buffer_free(struct buffer *b);

/* Copies text into out[size], clipped, always terminated. Returns true when it all fitted. */
bool text_copy(char *out, size_t size, const char *text);
bool text_starts(const char *text, const char *prefix);
bool text_ends(const char *text, const char *suffix);
/* Lower-case hexadecimal; out holds 2*length+1 bytes. */
void text_hex(char *out, const uint8_t *data, size_t length);
/* Exactly n lower-case hexadecimal digits and nothing else. */
bool text_is_lower_hex(const char *text, size_t n);
/* Length of the valid UTF-8 sequence that starts at data (1..4), 0 when the bytes can never be
 * valid, -1 when they are a valid but incomplete beginning. Surrogates and overlongs are invalid.
 */
int utf8_sequence(const uint8_t *data, size_t length);
bool utf8_valid(const char *data, size_t length);

#endif
