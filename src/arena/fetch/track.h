/* What a track says about getting its files: tracks/<id>/fetch.json, an object with "target" and
 * perhaps "drafter", each of them
 *   manifest       file in the track's folder
 *   repo, revision the repository of the hub and its pinned revision: the cache's layout
 *   base_url       the mirror; optional
 *   fallback_url   the hub at that revision; optional
 *   folder         where the repository itself has the files (bundled models); optional
 *   link           compatibility link to make; optional
 *   min_free_gib   free space to ask for before a download; optional
 * Relative folder and link are meant from the repository (two folders above the track's). */
#ifndef MLXFAST_ARENA_FETCH_TRACK_H
#define MLXFAST_ARENA_FETCH_TRACK_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FETCH_TRACK_BYTES_MOST = 1 << 16 }; /* of fetch.json */

struct fetch_track {
    const char *file;                                    /* fetch.json */
    const char *id, *root;                               /* root: the repository */
    const char *manifest, *repo, *revision;              /* manifest: a path that can be opened */
    const char *base_url, *fallback_url, *folder, *link; /* NULL: none */
    int64_t min_free_gib;
};

/* track is an id below tracks/, or a folder's path (with '/'). Errors: TRACK-UNKNOWN, the names of
 * json.h, TRACK-INVALID. What the URLs are nobody has looked at yet. */
bool fetch_track_read(struct arena *a, const char *track, bool drafter, struct fetch_track *out,
                      struct error *err);
/* The same of fetch.json's text; folder: the track's, an absolute path. */
bool fetch_track_parse(struct arena *a, const char *folder, const char *text, size_t length,
                       bool drafter, struct fetch_track *out, struct error *err);

#endif
