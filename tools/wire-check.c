/* What the decoder makes of lines: `wire-check request|response` reads lines on stdin and prints,
 * for each, "ok <the line encoded again>" or "ERR <name> <field>". */
#include "wire/wire.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

static void check_line(bool is_request, const char *line, size_t length)
{
    struct arena arena = {0};
    struct buffer again = {0};
    struct error err;
    bool ok;
    if (is_request) {
        struct wire_request m;
        ok = wire_request_decode(&arena, line, length, &m, &err);
        if (ok)
            wire_request_encode(&m, &again);
        wire_request_free(&m);
    } else {
        struct wire_response m;
        ok = wire_response_decode(&arena, line, length, &m, &err);
        if (ok)
            wire_response_encode(&m, &again);
        wire_response_free(&m);
    }
    if (ok)
        printf("ok %s", again.data);
    else
        printf("ERR %s %s\n", err.name, err.field);
    buffer_free(&again);
    arena_free(&arena);
}

int main(int argc, char **argv)
{
    bool is_request = argc == 2 && strcmp(argv[1], "request") == 0;
    if (!is_request && !(argc == 2 && strcmp(argv[1], "response") == 0)) {
        fputs("usage: wire-check request|response < lines\n", stderr);
        return 2;
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) >= 0) {
        size_t length = (size_t)n;
        if (length > 0 && line[length - 1] == '\n')
            length--;
        check_line(is_request, line, length);
    }
    free(line);
    return fflush(stdout) == 0 ? 0 : 1;
}
