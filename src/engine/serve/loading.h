/* What is asked of memory when a model is loaded, from the command line and the environment, and
 * what a person sees of it. */
#ifndef MLXFAST_ENGINE_SERVE_LOADING_H
#define MLXFAST_ENGINE_SERVE_LOADING_H

#include "base/error.h"
#include "base/terminal.h"
#include "engine/memory/startup.h"

#include <jansson.h>

/* The profile of the flag (NULL: not given), else of DARKBLOOM_STARTUP_MEMORY_PROFILE, else of
 * MLXFAST_MEMORY_PROFILE, else auto. Error badValue, for either variable too. */
bool loading_choose_profile(const char *flag, enum memory_profile *out, struct error *err);

struct loading { /* zeroed; lives as long as the request is in use */
    struct progress progress;
    bool announced, begun;
};
/* A request whose announcement goes to stderr, once, and whose copying shows progress when it takes
 * more than a moment. */
struct memory_request loading_request(struct loading *l, enum memory_profile profile);

/* profile, resident_bytes, peak_bytes of this process, now. */
json_t *loading_memory_json(enum memory_profile profile);

#endif
