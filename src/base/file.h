/* Files: read whole with a limit, map read-only, write whole or not at all. */
#ifndef MLXFAST_BASE_FILE_H
#define MLXFAST_BASE_FILE_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads a regular file of at most limit bytes into out (cleared first). Errors: IO, FILE-TOO-LARGE,
 * NOT-A-REGULAR-FILE. */
bool file_read(const char *path, size_t limit, struct buffer *out, struct error *err);

struct file_map {
    const uint8_t *data; /* NULL when length is 0 */
    size_t length;
};
/* Maps a regular file read-only. The map must be closed with file_unmap. */
bool file_map_open(const char *path, struct file_map *out, struct error *err);
void file_unmap(struct file_map *map);

/* Whether a file could be put at path: its folder is there and may be written to, and nothing but a
 * regular file stands there: renaming over a device, a folder or a link would take it away. For a
 * program to ask before hours of work. Errors: IO, NOT-A-REGULAR-FILE. */
bool file_check_target(const char *path, struct error *err);

/* Writes to "<path>.tmp.<pid>" in the same folder, fsync, rename, fsync of the folder. On any
 * failure the temporary file is removed and the old file is untouched. Errors: as above. */
bool file_write_atomic(const char *path, const void *data, size_t length, struct error *err);

/* False only where nothing is there (links are followed); where one may not look, true, so that
 * opening it says why. */
bool file_exists(const char *path);
bool file_is_directory(const char *path); /* follows links */
/* Both names lead to one file, one that is not there yet included. */
bool file_is_same(const char *a, const char *b);
bool file_make_directories(const char *path, struct error *err);
char *path_join(struct arena *a, const char *folder, const char *name);
const char *path_basename(const char *path); /* points into path */

/* Every regular file below folder, recursively, as sorted (bytewise) relative paths with '/'.
 * Symbolic links and special files are an error (NOT-A-REGULAR-FILE naming it). */
bool file_list_recursive(struct arena *a, const char *folder, char ***out, size_t *count,
                         struct error *err);

#endif
