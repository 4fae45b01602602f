/* Errors: how every fallible call in the project says what went wrong.
 *
 * A fallible function returns false and fills the caller's struct error; it never prints or exits.
 * `name` is a stable upper-case (or spec-given) refusal name, `message` one sentence for a person.
 * Where a value from outside is at fault, file, field and value say which. The struct owns its
 * text: nothing to free. A NULL error pointer is allowed everywhere and means "do not care". */
#ifndef MLXFAST_BASE_ERROR_H
#define MLXFAST_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>

struct error {
    char name[64];
    char message[1024];
    char file[512];
    char field[256];
    char value[256];
};

/* Sets name and message (printf form), clears file, field and value. Always returns false, so that
 * `return error_set(...)` reads well. Control bytes are shown as \xNN, long text is clipped. */
bool error_set(struct error *err, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds the place: any of them may be NULL (left as it is). Returns false. */
bool error_at(struct error *err, const char *file, const char *field, const char *value);

/* As error_set from errno: "<what>: <strerror>". name IO unless given. Returns false. */
bool error_errno(struct error *err, const char *file, const char *what);

/* Writes one line without newline: "NAME: message (file F, field X, value V)"; parts that are empty
 * are left out. Returns out. */
char *error_line(const struct error *err, char *out, size_t size);

#endif
