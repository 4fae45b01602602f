/* A folder of files that appears whole or not at all: made beside its place under another name,
 * brought to the disk, renamed. */
#ifndef MLXFAST_BASE_FOLDER_H
#define MLXFAST_BASE_FOLDER_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct folder_build {
    struct arena *arena;
    const char *out;       /* without slashes at its end */
    const char *parent;    /* the folder it will lie in */
    const char *temporary; /* "<out>.tmp.<pid>": files are made in here */
    bool scratch;          /* never to be put in place: nothing is brought to the disk */
    int lock;              /* while it is made: 1 + a descriptor of it, locked; 0: none */
};

/* Names the places and refuses what stands in the way; makes nothing yet. What a run that was
 * killed left under such a temporary name is removed: its lock is free. Errors: OUT-EXISTS
 * (whatever it is; it is left alone), IO (no such parent, or it may not be written to). */
bool folder_plan(struct arena *a, const char *out, struct folder_build *b, struct error *err);
/* Whether the file system of the parent has room for so many bytes. Error NO-SPACE. */
bool folder_check_space(const struct folder_build *b, uint64_t bytes, struct error *err);
bool folder_begin(struct folder_build *b, struct error *err);
/* A file of the folder, made anew. path lives in the build's arena. A name may have folders before
 * it; they are made. */
struct folder_file {
    int fd;
    const char *path;
    bool scratch;
};
bool folder_create_file(const struct folder_build *b, const char *name, struct folder_file *f,
                        struct error *err);
/* All of it, or an error: IO, or INTERRUPTED where a signal has asked for the end. What is written
 * starts on its way to the disk, so that the sync at the end is short. */
bool folder_write_file(struct folder_file *f, const void *data, size_t length, struct error *err);
/* The same at a place in the file, which need not be its end; several threads may. */
bool folder_write_file_at(const struct folder_file *f, const void *data, size_t length, uint64_t at,
                          struct error *err);
/* Syncs and closes. ok is what came before; the file is closed either way. */
bool folder_close_file(struct folder_file *f, bool ok, struct error *err);

/* Syncs the folder and puts it in place, never onto something that came to stand there meanwhile.
 * The files have been closed (or written atomically). After an error the folder is still the
 * temporary one. */
bool folder_commit(struct folder_build *b, struct error *err);
/* Removes the temporary folder and all that is in it. */
void folder_abandon(struct folder_build *b);

#endif
