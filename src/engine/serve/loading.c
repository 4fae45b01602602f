#include "engine/serve/loading.h"

#include "base/buffer.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool loading_choose_profile(const char *flag, enum memory_profile *out, struct error *err)
{
    static const char *const variables[] = {"MLXFAST_MEMORY_PROFILE",
                                            "DARKBLOOM_STARTUP_MEMORY_PROFILE"};
    *out = MEMORY_AUTO;
    for (size_t i = 0; i <= sizeof variables / sizeof *variables; i++) { /* the last one wins */
        const bool is_flag = i == sizeof variables / sizeof *variables;
        const char *from = is_flag ? "--memory-profile" : variables[i];
        const char *value = is_flag ? flag : getenv(from);
        if (value != NULL && !memory_profile_parse(value, out)) {
            error_set(err, "badValue", "badValue(%s): it is full, low or auto", from);
            return error_at(err, NULL, from, value);
        }
    }
    return true;
}

void loading_say(struct loading *l)
{
    if (!l->announced && l->line[0])
        fprintf(stderr, "bench-worker: %s\n", l->line);
    l->announced = l->line[0] != '\0';
}

static void announce(void *context, const char *line)
{
    struct loading *l = context;
    text_copy(l->line, sizeof l->line, line);
}

static void name_device(void *context, const char *device)
{
    struct loading *l = context;
    snprintf(l->phase, sizeof l->phase, "loading to %s", device);
}

static void show_copied(void *context, uint64_t done, uint64_t total)
{
    struct loading *l = context;
    const double moment = 0.2;
    if (!l->begun)
        progress_begin(&l->progress, l->phase[0] ? l->phase : "copying weights", "bytes", total);
    l->begun = done < total;
    if (clock_seconds(l->progress.started_ns) > moment)
        loading_say(l);
    progress_update(&l->progress, done);
    if (done == total && l->progress.shown)
        progress_end(&l->progress);
}

struct memory_request loading_request(struct loading *l, enum memory_profile profile)
{
    return (struct memory_request){.profile = profile,
                                   .announce = announce,
                                   .destination = name_device,
                                   .progress = show_copied,
                                   .context = l};
}

json_t *loading_memory_json(enum memory_profile profile)
{
    struct memory_use use;
    json_t *o = json_object();
    memory_use_read(&use, false);
    json_object_set_new(o, "profile", json_string(memory_profile_name(profile)));
    json_object_set_new(o, "resident_bytes", json_integer((json_int_t)use.resident));
    json_object_set_new(o, "peak_bytes", json_integer((json_int_t)use.peak));
    return o;
}
