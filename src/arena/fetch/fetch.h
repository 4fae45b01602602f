/* The door: a track's files, from wherever they are to a folder where every one is right. */
#ifndef MLXFAST_ARENA_FETCH_FETCH_H
#define MLXFAST_ARENA_FETCH_FETCH_H

#include "arena/fetch/settings.h"
#include "base/sha256.h"

struct fetch_result {
    const char *track, *folder, *repo, *revision, *link; /* link: NULL where none was made */
    char manifest_sha256[SHA256_HEX];
    size_t files, fetched;
    uint64_t bytes, fetched_bytes;
    bool skipped; /* nothing was looked at */
    bool by_lock; /* sizes and times agree with the last full pass */
    bool hashed;  /* every file was hashed in this run */
    double seconds;
};

/* Errors: those of track.h, manifest.h, plan.h, lock.h, transfer.h; FETCH-NO-SOURCE where something
 * is missing and no URL is known. In verify-only runs each fault is told on stderr by the caller's
 * note function, and the error is the first. The result's texts live in a. */
bool fetch(struct arena *a, const struct fetch_settings *s, void (*note)(const struct error *fault),
           struct fetch_result *r, struct error *err);
/* Only where the files are or would be. */
bool fetch_folder(struct arena *a, const struct fetch_settings *s, const char **folder,
                  struct error *err);

#endif
