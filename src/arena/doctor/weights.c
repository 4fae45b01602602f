/* A track's weights: where they are, what is missing, and what a preflight says of them. */
#include "arena/doctor/examine.h"

#include "arena/fetch/manifest.h"
#include "arena/fetch/settings.h"
#include "base/file.h"

#include <string.h>
#include <sys/stat.h>

static uint64_t missing_of(struct arena *a, const struct fetch_manifest *manifest,
                           const char *folder)
{
    uint64_t missing = 0;
    for (size_t i = 0; i < manifest->count; i++) {
        struct stat s;
        const struct fetch_file *f = &manifest->files[i];
        if (stat(path_join(a, folder, f->path), &s) != 0 || (uint64_t)s.st_size != f->bytes)
            missing += f->bytes;
    }
    return missing;
}

bool patient_find_weights(struct patient *p, const char *track, const char *weights,
                          struct error *err)
{
    const char *named = machine_variable(p->m, "MLXFAST_WEIGHTS_PATH");
    const char *here = p->m->repository ? p->m->repository : ".";
    p->track = track;
    p->weights = weights ? weights : named ? named : here;
    p->weights_named = weights || named;
    if (!track)
        return true;
    struct fetch_settings s;
    struct fetch_track t;
    struct fetch_manifest manifest;
    const char *folder;
    /* From anywhere: an id is meant from the repository that was found. */
    const char *path =
        strchr(track, '/') ? track : path_join(p->a, path_join(p->a, here, "tracks"), track);
    char *argv[] = {arena_strdup(p->a, path), NULL};
    if (fetch_settings_parse(p->a, 1, argv, &s, err) != OPTIONS_OK ||
        !fetch_track_read(p->a, path, false, &t, err) ||
        !fetch_settings_folder(p->a, &s, &t, &folder, err) ||
        !fetch_manifest_read(p->a, s.manifest ? s.manifest : t.manifest, &manifest, err))
        return false;
    if (!p->weights_named)
        p->weights = folder;
    p->track = t.id;
    p->pinned_bytes = manifest.bytes;
    p->missing_bytes = missing_of(p->a, &manifest, p->weights);
    return true;
}

bool examine_weights(const struct patient *p)
{
    struct weights_report r = {0};
    struct error err = {0};
    char line[2048];
    if (!p->track)
        return true;
    if (!file_is_directory(p->weights)) {
        finding_add(p->f, "weights", FINDING_FIX,
                    p->weights_named
                        ? arena_printf(p->a, "MLXFAST_REFERENCE_DIR=%s ./setup.sh %s",
                                       shell_word(p->a, p->weights), shell_word(p->a, p->track))
                        : arena_printf(p->a, "./setup.sh %s", shell_word(p->a, p->track)),
                    "%s: %s is not there", p->track, p->weights);
        return true;
    }
    if (!p->m->preflight(p->m->context, p->a, p->weights, p->track, &r, &err)) {
        if (strcmp(err.name, "INTERRUPTED") == 0)
            return false;
        finding_add(p->f, "weights", FINDING_FIX, NULL, "%s: %s", p->track,
                    error_line(&err, line, sizeof line));
    } else if (r.faults > 0) {
        finding_add(p->f, "weights", FINDING_FIX, r.mend, "%s: %zu fault%s: %s", p->track, r.faults,
                    r.faults == 1 ? "" : "s, the first", r.first);
    } else {
        finding_add(
            p->f, "weights", FINDING_OK, NULL,
            "%s: %llu files, %s in %s, sound by their headers; ./setup.sh %s proves every byte",
            p->track, (unsigned long long)r.files, bytes_text(p->a, (double)r.bytes), p->weights,
            p->track);
    }
    return true;
}
