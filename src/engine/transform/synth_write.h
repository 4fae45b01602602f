/* Made-up weights into files, by several threads: a piece's bytes depend on its place alone. */
#ifndef MLXFAST_ENGINE_TRANSFORM_SYNTH_WRITE_H
#define MLXFAST_ENGINE_TRANSFORM_SYNTH_WRITE_H

#include "base/error.h"
#include "base/folder.h"
#include "base/terminal.h"
#include "engine/transform/synth_fill.h"

#include <stddef.h>
#include <stdint.h>

enum { SYNTH_PIECE = 4 << 20 }; /* what a thread holds; a multiple of SYNTH_UNIT */

struct synth_piece {
    const struct folder_file *file;
    uint64_t at; /* in the file */
    const struct synth_recipe *recipe;
    uint64_t first; /* byte of the tensor */
    size_t bytes;   /* at most SYNTH_PIECE */
};

/* threads: at least 1, the caller is one of them. Errors: INTERRUPTED, IO. */
bool synth_write(const struct synth_piece *pieces, size_t count, int threads,
                 struct progress *progress, struct error *err);

#endif
