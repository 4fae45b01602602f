#include "judge/evidence/findings.h"

#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool findings_add(struct findings *f, enum finding_state state, const char *subject,
                  const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (f->count == f->capacity) {
        f->capacity = f->capacity ? 2 * f->capacity : 32;
        f->items = memory_realloc(f->items, f->capacity * sizeof *f->items);
    }
    f->items[f->count++] =
        (struct finding){state, arena_strdup(&f->arena, subject), arena_strdup(&f->arena, text)};
    f->of[state]++;
    return state != FINDING_FAILED;
}

bool findings_check(struct findings *f, bool holds, const char *subject, const char *proved,
                    const char *failed)
{
    return findings_add(f, holds ? FINDING_OK : FINDING_FAILED, subject, "%s",
                        holds ? proved : failed);
}

bool findings_error(struct findings *f, const char *subject, const struct error *err)
{
    return findings_add(f, FINDING_FAILED, subject, "%s: %s%s%s%s%s", err->name, err->message,
                        *err->field ? ", field " : "", err->field, *err->value ? ", value " : "",
                        err->value);
}

const struct finding *findings_first_failure(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->items[i].state == FINDING_FAILED)
            return &f->items[i];
    return NULL;
}

void findings_free(struct findings *f)
{
    arena_free(&f->arena);
    free(f->items);
    *f = (struct findings){0};
}
