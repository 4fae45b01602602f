/* Any bytes as a track's fetch.json; what is accepted must be safe to make folders of. */
#include "arena/fetch/settings.h"
#include "arena/fetch/track.h"
#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static bool is_path(const char *text)
{
    return !text || text[0] == '/';
}

static void look(struct arena *a, const struct fetch_track *t)
{
    struct error err = {0};
    const char *slash = strchr(t->repo, '/');
    require(slash && slash > t->repo && slash[1] && !strchr(slash + 1, '/'));
    require(!strstr(t->repo, "..") && t->repo[0] != '.');
    require(t->revision[0] && !strchr(t->revision, '/') && !strstr(t->revision, ".."));
    require(strcmp(t->id, "toy-v1") == 0 && strcmp(t->root, "/repo") == 0);
    require(t->manifest[0] == '/' && is_path(t->folder) && is_path(t->link));
    require(t->min_free_gib >= 0 && t->min_free_gib <= 1 << 20);
    const struct fetch_settings in_cache = {.hf_home = "/home"};
    const char *folder = NULL;
    require(fetch_settings_folder(a, &in_cache, t, &folder, &err));
    require(folder[0] == '/');
    require(t->folder ? text_starts(t->folder, folder) /* but for slashes at its end */
                      : text_starts(folder, "/home/hub/models--") && !strstr(folder, ".."));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > FETCH_TRACK_BYTES_MOST)
        return 0;
    for (int drafter = 0; drafter < 2; drafter++) {
        struct arena a = {0};
        struct fetch_track t;
        struct error err = {0};
        if (fetch_track_parse(&a, "/repo/tracks/toy-v1", (const char *)data, size, drafter, &t,
                              &err))
            look(&a, &t);
        else
            require(err.name[0] && err.message[0] && strstr(err.file, "fetch.json"));
        arena_free(&a);
    }
    return 0;
}
