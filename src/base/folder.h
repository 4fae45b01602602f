/* A folder of files that appears whole or not at all: made beside its place under another name,
 * brought to the disk, renamed. */
#ifndef MLXFAST_BASE_FOLDER_H
#define MLXFAST_BASE_FOLDER_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct folder_build {
    struct arena *arena;
    const char *out;       /* without slashes at its end */
    const char *parent;    /* the folder it will lie in */
    const char *temporary; /* "<out>.tmp.<pid>": files are made in here */
};

/* Names the places and refuses what stands in the way; makes nothing yet. Errors: OUT-EXISTS
 * (whatever it is; it is left alone), IO (no such parent, or it may not be written to). */
bool folder_plan(struct arena *a, const char *out, struct folder_build *b, struct error *err);
/* Whether the file system of the parent has room for so many bytes. Error NO-SPACE. */
bool folder_check_space(const struct folder_build *b, uint64_t bytes, struct error *err);
bool folder_begin(struct folder_build *b, struct error *err);
/* Syncs the folder and puts it in place, never onto something that came to stand there meanwhile.
 * The caller has synced the files. After an error the folder is still the temporary one. */
bool folder_commit(struct folder_build *b, struct error *err);
/* Removes the temporary folder and the files in it. */
void folder_abandon(struct folder_build *b);

#endif
