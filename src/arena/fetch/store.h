/* The folder of a model's files. A file under its own name has been hashed and brought to the disk;
 * what is under way lies in .mlxfast-fetch/<sha256>-*.part inside it and is continued by a later
 * run. */
#ifndef MLXFAST_ARENA_FETCH_STORE_H
#define MLXFAST_ARENA_FETCH_STORE_H

#include "arena/fetch/manifest.h"

struct digest;
struct piece;
struct piece_ring;
struct writer;

struct fetch_store {
    struct arena *arena;
    const char *folder, *parts;
};

enum { FETCH_ETAG_MOST = 256 };

struct fetch_part {
    int fd; /* -1: not open */
    const char *path, *etag_path;
    uint64_t length;         /* with what is held, or under way to the file */
    struct piece *piece;     /* what comes in small pieces is written in large ones; or NULL */
    size_t held;             /* bytes in it */
    struct piece_ring *ring; /* made with the first byte that comes */
    struct writer *writer;   /* likewise */
    struct digest *digest;   /* that gets the same bytes; or NULL */
};

/* Makes the folder and the one of the parts. Error IO. */
bool fetch_store_open(struct arena *a, const char *folder, struct fetch_store *s,
                      struct error *err);
/* Opens or makes the part; one that is longer than the file is cut to nothing. */
bool fetch_part_open(struct fetch_store *s, const struct fetch_file *f, struct fetch_part *part,
                     struct error *err);
/* Who hashes the part from now on; NULL before the digest is freed. */
void fetch_part_hash(struct fetch_part *part, struct digest *digest);
/* Errors: FETCH-DISK-FULL, IO; both name the part's path. One of bytes that were written before may
 * come with later ones; part->length is then what the file has. */
bool fetch_part_write(struct fetch_part *part, const void *data, size_t length, struct error *err);
bool fetch_part_flush(struct fetch_part *part, struct error *err); /* all of it is in the file */
/* The digest starts over, and has the file as it is then. */
bool fetch_part_cut(struct fetch_part *part, uint64_t length, struct error *err);
/* The ETag that the bytes of the part had at that base URL; "" where none is kept. */
void fetch_part_keep_etag(struct fetch_part *part, const char *base, const char *etag);
void fetch_part_etag(const struct fetch_part *part, const char *base, char out[FETCH_ETAG_MOST]);
/* The part, hashed and on the disk, becomes the file. */
bool fetch_part_commit(struct fetch_store *s, const struct fetch_file *f, struct fetch_part *part,
                       struct error *err);
void fetch_part_close(struct fetch_part *part); /* flushes; an empty one goes */
/* A file that is known to be wrong loses its name: a short one becomes the part (its beginning may
 * be right; the hash will tell), another is removed. */
bool fetch_store_retire(struct fetch_store *s, const struct fetch_file *f, const char *path,
                        uint64_t length, struct error *err);
/* What parts hold of these files already, for the free space to ask for. Needs no open store. */
uint64_t fetch_store_part_bytes(struct arena *a, const char *folder, const struct fetch_file *f);
/* Removes the folder of the parts, if empty; all: and every part in it, when nothing is to come. */
void fetch_store_clean(struct fetch_store *s, bool all);

/* A symbolic link at path to the folder; one that is there is turned, anything else refused
 * (LINK-IN-THE-WAY). */
bool fetch_store_link(struct arena *a, const char *path, const char *folder, struct error *err);

#endif
