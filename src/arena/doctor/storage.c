/* The disk that weights lie on, or will. */
#include "arena/doctor/examine.h"

#include "base/file.h"

#include <string.h>

/* Weights that were not fetched yet have no folder: what will hold it. */
static const char *nearest_folder(const struct patient *p)
{
    char *folder = arena_strdup(p->a, p->weights);
    while (!file_is_directory(folder)) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            return ".";
        if (slash == folder)
            return "/";
        *slash = '\0';
    }
    return folder;
}

void examine_space(const struct patient *p)
{
    const uint64_t work = (uint64_t)1 << 30; /* a build, logs, scores */
    const char *folder = nearest_folder(p);
    struct error err = {0};
    uint64_t left;
    if (!p->m->space(p->m->context, folder, &left, &err)) {
        finding_add(p->f, "disk-space", FINDING_WARN, NULL, "%s: %s", folder, err.message);
        return;
    }
    const char *text = bytes_text(p->a, (double)left);
    const char *look =
        arena_printf(p->a, "du -xh --max-depth=2 %s | sort -h | tail shows what is large",
                     shell_word(p->a, folder));
    if (p->missing_bytes > 0 && left < p->missing_bytes)
        finding_add(p->f, "disk-space", FINDING_FIX,
                    arena_printf(p->a, "make room, or name another disk: export "
                                       "MLXFAST_REFERENCE_DIR=FOLDER"),
                    "%s free in %s, and %s of %s are still to be fetched", text, folder,
                    bytes_text(p->a, (double)p->missing_bytes), p->track);
    else if (left < work)
        finding_add(p->f, "disk-space", FINDING_FIX, look,
                    "%s free in %s: too little to build and to write scores", text, folder);
    else
        finding_add(p->f, "disk-space", FINDING_OK, NULL, "%s free in %s", text, folder);
}

bool examine_disk_rate(const struct patient *p)
{
    enum { SLOW = 200 };           /* MB/s: weights of 21.6 GB take more than 100 s */
    const double example = 21.6e9; /* Laguna XS 2.1 */
    const char *folder = nearest_folder(p);
    struct disk_rate r;
    struct error err = {0};
    if (!p->m->read_disk(p->m->context, p->a, folder, 1.2, &r, &err)) {
        if (strcmp(err.name, "INTERRUPTED") == 0)
            return false;
        finding_add(p->f, "disk-read", FINDING_OK, NULL, "not measured: %s (%s)", err.message,
                    folder);
        return true;
    }
    const double rate = r.bytes_per_second / 1e6;
    const double bytes = p->pinned_bytes ? (double)p->pinned_bytes : example;
    const char *what = arena_printf(
        p->a, "%.0f MB/s past the page cache, %s of %s in %s: %s take %.1f s from the disk", rate,
        bytes_text(p->a, (double)r.bytes), r.file ? r.file : "a temporary file", folder,
        p->pinned_bytes ? arena_printf(p->a, "the track's %s", bytes_text(p->a, bytes))
                        : "21.6 GB (Laguna XS 2.1)",
        bytes / r.bytes_per_second);
    if (rate < SLOW)
        finding_add(p->f, "disk-read", FINDING_WARN,
                    "put weights on a faster disk: export MLXFAST_REFERENCE_DIR=FOLDER, or "
                    "MLXFAST_WEIGHTS_PATH=FOLDER",
                    "%s", what);
    else
        finding_add(p->f, "disk-read", FINDING_OK, NULL, "%s", what);
    return true;
}
