/* Logits of every position. The file may be far larger than memory, so it is written as it is
 * made, under a temporary name, and given its own name only when it is whole. */
#include "engine/serve/logits.h"

#include "base/arena.h"
#include "base/child.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/number.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void to_little_endian(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits = htole32(bits);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

static bool write_rows(struct model *m, struct model_state *state, const int64_t *tokens,
                       size_t count, FILE *file, const char *path,
                       void (*on_progress)(void *context, size_t done), void *context,
                       struct error *err)
{
    const struct model_info *info = model_get_info(m);
    size_t vocab = (size_t)info->vocab, most = (size_t)info->max_rows, values;
    if (!size_multiply(vocab, most, &values))
        return error_set(err, "ROWS-INVALID", "the rows do not fit memory");
    float *logits = memory_alloc(values * sizeof *logits);
    int32_t *ids = memory_alloc(most * sizeof *ids);
    bool ok = true;
    for (size_t done = 0; ok && done < count;) {
        size_t rows = count - done < most ? count - done : most;
        for (size_t r = 0; r < rows; r++)
            ids[r] = (int32_t)tokens[done + r];
        if (interrupt_requested())
            ok = error_set(err, "INTERRUPTED", "interrupted after %zu positions", done);
        ok = ok && model_forward(m, state, ids, (int)rows, (int)rows, logits, NULL, err);
        if (ok) {
            to_little_endian(logits, rows * vocab);
            if (fwrite(logits, sizeof *logits * vocab, rows, file) != rows)
                ok = error_errno(err, path, "writing logits");
        }
        done += rows;
        if (ok && on_progress)
            on_progress(context, done);
    }
    free(logits);
    free(ids);
    return ok;
}

bool logits_write(struct model *m, const int64_t *tokens, size_t count, const char *path,
                  void (*on_progress)(void *context, size_t done), void *context, struct error *err)
{
    struct arena arena = {0};
    char *temporary = arena_printf(&arena, "%s.tmp.%ld", path, (long)getpid());
    struct model_state *state = NULL;
    if (!file_check_target(path, err)) {
        arena_free(&arena);
        return false;
    }
    interrupt_partial_file(temporary);
    FILE *file = fopen(temporary, "wb");
    bool ok = file != NULL || error_errno(err, path, "creating the file");
    ok = ok && model_state_new(m, &state, err) &&
         write_rows(m, state, tokens, count, file, path, on_progress, context, err);
    if (ok && (fflush(file) != 0 || fsync(fileno(file)) != 0))
        ok = error_errno(err, path, "writing logits");
    if (file && fclose(file) != 0 && ok)
        ok = error_errno(err, path, "writing logits");
    if (ok && rename(temporary, path) != 0)
        ok = error_errno(err, path, "giving the file its name");
    if (!ok && file)
        unlink(temporary);
    interrupt_partial_file(NULL);
    model_state_free(state);
    arena_free(&arena);
    return ok;
}
