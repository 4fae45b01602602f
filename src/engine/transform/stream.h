/* Bytes of a source's files on their way to a file that is being made: in pieces, so that memory
 * does not grow with the file. Nothing is mapped. */
#ifndef MLXFAST_ENGINE_TRANSFORM_STREAM_H
#define MLXFAST_ENGINE_TRANSFORM_STREAM_H

#include "base/arena.h"
#include "base/error.h"
#include "base/folder.h"
#include "base/terminal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct stream_source {
    int fd;
    const char *path; /* the caller's */
    uint64_t bytes;
};
/* A regular file; a link to one is followed (caches of downloads hold links). */
bool stream_open(const char *path, struct stream_source *out, struct error *err);
void stream_close(struct stream_source *s);
/* All of it. Error SOURCE-CHANGED where the file ends before. */
bool stream_read(const struct stream_source *s, uint64_t at, void *out, size_t length,
                 struct error *err);

/* Where bytes go, and who is told of them. */
struct stream {
    struct progress *progress;
    uint64_t done; /* bytes of the whole job */
    struct error *err;
};
/* From memory. */
bool stream_write(struct stream *t, struct folder_file *to, const void *data, uint64_t length);
/* A range of a source. Errors also SOURCE-CHANGED. */
bool stream_copy(struct stream *t, const struct stream_source *from, uint64_t at, uint64_t length,
                 struct folder_file *to);
/* All of a source, into a file that is empty: its blocks shared where the file system can (never a
 * link: either may change without the other), copied otherwise. */
bool stream_clone(struct stream *t, const struct stream_source *from, struct folder_file *to);
/* Whether a clone of the file into that folder takes no room. */
bool stream_shares_blocks(const char *path, const char *folder);

/* What the system says of files: a change between two moments shows, without reading them. */
struct stream_stamp {
    uint64_t device, inode, bytes;
    int64_t modified_ns, changed_ns;
};
bool stream_stamp_take(const char *path, struct stream_stamp *out, struct error *err);
/* Error SOURCE-CHANGED: what was expected and what is there. */
bool stream_stamp_check(const char *path, const struct stream_stamp *before, struct error *err);

#endif
