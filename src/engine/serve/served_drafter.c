#include "engine/serve/served_drafter.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/number.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static int is_shard(const struct dirent *entry)
{
    static const char ending[] = ".safetensors";
    const size_t length = strlen(entry->d_name), tail = sizeof ending - 1;
    return length > tail && strcmp(entry->d_name + length - tail, ending) == 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool hash_file(struct sha256 *hash, const char *path, struct served_drafter *d,
                      struct error *err)
{
    struct file_map map;
    if (!file_map_open(path, &map, err))
        return false;
    sha256_update(hash, map.data, map.length);
    d->bytes += map.length;
    d->file_count++;
    file_unmap(&map);
    return true;
}

static bool read_provenance(const char *folder, struct served_drafter *d, struct error *err)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, is_shard, by_name);
    if (count < 0)
        return error_errno(err, folder, "reading the drafter's folder");
    struct arena arena = {0};
    struct sha256 *hash = sha256_begin();
    bool ok = true;
    for (int i = 0; i < count; i++) {
        ok = ok && hash_file(hash, path_join(&arena, folder, entries[i]->d_name), d, err);
        free(entries[i]);
    }
    free(entries);
    uint8_t digest[SHA256_BYTES];
    sha256_finish(hash, digest);
    text_hex(d->sha256, digest, sizeof digest);
    arena_free(&arena);
    return ok;
}

bool served_drafter_open(const char *folder, struct model *m, struct served_drafter *out,
                         struct error *err)
{
    const struct dflash_target target = dflash_target_of(m);
    *out = (struct served_drafter){0};
    if (!dflash_open(folder, &target, &out->dflash, err))
        return false;
    out->config = dflash_get_config(out->dflash);
    out->weight_bytes = dflash_weight_bytes(out->dflash);
    if (read_provenance(folder, out, err))
        return true;
    served_drafter_close(out);
    return false;
}

void served_drafter_close(struct served_drafter *d)
{
    dflash_close(d->dflash);
    *d = (struct served_drafter){0};
}
