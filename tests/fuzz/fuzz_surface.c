/* Any bytes as a manifest of the editable surface; what is accepted must hold the rules. */
#include "judge/surface/surface.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Relative, and never above where it starts. */
static void require_entry(const char *path)
{
    require(*path != '\0' && *path != '/' && *path != ':' && strchr(path, '\\') == NULL);
    require(strstr(path, "//") == NULL && path[strlen(path) - 1] != '/');
    require(strcmp(path, "..") != 0 && strncmp(path, "../", 3) != 0 &&
            strstr(path, "/../") == NULL);
    require(strlen(path) < 3 || strcmp(path + strlen(path) - 3, "/..") != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    struct surface s;
    struct error err = {0};
    if (!surface_parse(&a, "benchmark.json", (const char *)data, size, &s, &err)) {
        require(err.name[0] && err.message[0]);
        arena_free(&a);
        return 0;
    }
    require(s.entry_count > 0 && s.scope_count > 0);
    require(s.file_max > 0 && s.file_max <= s.total_max && s.growth_max > 0);
    require(s.exempt_file_max > 0 && s.exempt_file_max <= s.exempt_total_max);
    for (size_t i = 0; i < s.entry_count; i++) {
        require_entry(s.entries[i].path);
        require(surface_find(&s, s.entries[i].path) == &s.entries[i]);
    }
    for (size_t i = 0; i < s.exempt_count; i++)
        require_entry(s.exempt[i]);
    require(surface_find(&s, "/") == NULL);
    arena_free(&a);
    return 0;
}
