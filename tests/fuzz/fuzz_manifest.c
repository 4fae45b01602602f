/* Any bytes as a manifest of pinned files; what is accepted must be safe to make files of. */
#include "arena/fetch/manifest.h"
#include "base/buffer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    struct fetch_manifest m;
    struct error err = {0};
    if (!fetch_manifest_parse(&a, "target.sha256", (const char *)data, size, &m, &err)) {
        require(err.name[0] && err.message[0]);
        arena_free(&a);
        return 0;
    }
    require(m.count > 0 && m.count <= FETCH_MANIFEST_FILES_MOST);
    uint64_t bytes = 0;
    for (size_t i = 0; i < m.count; i++) {
        const char *p = m.files[i].path;
        const size_t n = strlen(p);
        require(n > 0 && n <= FETCH_MANIFEST_PATH_MOST && p[0] != '/' && p[n - 1] != '/');
        require(!strstr(p, "//") && strcmp(p, "..") != 0 && strncmp(p, "../", 3) != 0);
        require(!strstr(p, "/../") && (n < 3 || strcmp(p + n - 3, "/..") != 0));
        require(strncmp(p, ".mlxfast-", 9) != 0 && !strstr(p, "/.mlxfast-"));
        require(text_is_lower_hex(m.files[i].sha256, SHA256_HEX - 1));
        for (size_t k = 0; k < i && i < 64; k++)
            require(strcmp(m.files[k].path, p) != 0);
        bytes += m.files[i].bytes;
    }
    require(bytes == m.bytes);
    arena_free(&a);
    return 0;
}
