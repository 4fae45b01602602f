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
    char line[400];  /* the announcement, until it was said */
    char phase[128]; /* "loading to NVIDIA H200"; empty: weights are copied in memory */
    bool announced, begun;
};
/* A request whose copying shows progress on stderr when it takes more than a moment. */
struct memory_request loading_request(struct loading *l, enum memory_profile profile);
/* Says the profile on stderr, once: when copying takes more than a moment, else when the program
 * calls this because all went well, so that a refusal stays one line. */
void loading_say(struct loading *l);

/* profile, resident_bytes, peak_bytes of this process, now. */
json_t *loading_memory_json(enum memory_profile profile);

#endif
