/* URLs of files: where they are, who may see credentials, and how they are shown. */
#ifndef MLXFAST_ARENA_FETCH_URL_H
#define MLXFAST_ARENA_FETCH_URL_H

#include "base/arena.h"
#include "base/error.h"

#include <stdbool.h>

/* http or https with a host, no query, no fragment. Error USAGE with name as field. */
bool fetch_url_check_base(const char *name, const char *url, struct error *err);
/* base/path with the path's bytes escaped; the hub's URLs get ?download=true, as it wants. */
const char *fetch_url_of_file(struct arena *a, const char *base, const char *path);
/* The same scheme, host and port. */
bool fetch_url_same_origin(const char *a, const char *b);
/* Whether a redirect may be followed: http or https, and never from https to http. */
bool fetch_url_may_follow(const char *from, const char *to);
/* For messages: without user, password, query and fragment. */
const char *fetch_url_shown(struct arena *a, const char *url);

#endif
