/* libFuzzer: tokenizer.json, then a text through what was accepted. The input is the file's text
 * up to the first FF byte and the text to encode after it. No plain text may give a
 * special id, and streamed and whole decoding must agree. */
#include "base/buffer.h"
#include "engine/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char path[64];

static int file;

/* The file lives in memory only, so that nothing is left behind however the run ends. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    file = memfd_create("tokenizer.json", MFD_CLOEXEC);
    if (file < 0)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return 0;
}

/* Writes the file; the first "@":0 in it becomes the tokens of all bytes, ids 0 to 255, so that
 * inputs can be short. */
static void write_input(const uint8_t *data, size_t length)
{
    static const char mark[] = "\"@\":0";
    const uint8_t *at = memmem(data, length, mark, sizeof mark - 1);
    struct buffer text = {0};
    buffer_append(&text, data, at ? (size_t)(at - data) : length);
    for (int byte = 0, moved = 0x100; at && byte < 256; byte++) {
        const bool printable =
            (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        buffer_printf(&text, "%s\"\\u%04x\":%d", byte ? "," : "", printable ? byte : moved, byte);
        moved += !printable;
    }
    if (at)
        buffer_append(&text, at + sizeof mark - 1, length - (size_t)(at + sizeof mark - 1 - data));
    if (ftruncate(file, 0) != 0 || pwrite(file, text.data, text.length, 0) != (ssize_t)text.length)
        abort();
    buffer_free(&text);
}

static void use(const struct tokenizer *t, const char *text, size_t length)
{
    struct token_list plain = {0}, markup = {0};
    struct buffer whole = {0}, streamed = {0};
    struct error err = {0};
    if (tokenizer_encode(t, text, length, &plain, &err)) {
        for (size_t i = 0; i < plain.count; i++)
            if (tokenizer_is_special(t, plain.ids[i]))
                abort();
        if (!tokenizer_decode(t, plain.ids, plain.count, false, &whole, &err))
            abort();
    }
    if (tokenizer_encode_markup(t, text, length, true, &markup, &err)) {
        struct token_stream s;
        token_stream_begin(&s, t, false);
        for (size_t i = 0; i < markup.count; i++)
            if (!token_stream_push(&s, markup.ids[i], &streamed, &err) ||
                !utf8_valid(streamed.data ? streamed.data : "", streamed.length))
                abort();
        token_stream_finish(&s, &streamed);
        buffer_clear(&whole);
        if (!tokenizer_decode(t, markup.ids, markup.count, false, &whole, &err) ||
            whole.length != streamed.length ||
            (whole.length && memcmp(whole.data, streamed.data, whole.length) != 0))
            abort();
    }
    token_list_free(&plain);
    token_list_free(&markup);
    buffer_free(&whole);
    buffer_free(&streamed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = memchr(data, 0xFF, size);
    const size_t length = cut ? (size_t)(cut - data) : size;
    const char *text = cut ? (const char *)cut + 1 : "";
    const size_t text_length = cut ? size - length - 1 : 0;
    write_input(data, length);
    struct tokenizer *t = NULL;
    struct error err = {0};
    if (tokenizer_open(path, &t, &err)) {
        use(t, text, text_length);
        tokenizer_close(t);
    } else if (!text_starts(err.name, "TOKENIZER-") || !*err.message) {
        abort();
    }
    return 0;
}
