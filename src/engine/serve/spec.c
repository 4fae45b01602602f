#include "engine/serve/spec.h"

#include <string.h>

enum { MOST_DECODERS = 8 };

size_t spec_loaded_modes(const struct runner_manifest *m, const struct served_drafter *drafter,
                         const char **modes)
{
    size_t count = 0;
    for (size_t i = 0; i < m->decoder_count; i++)
        if (strcmp(m->decoders[i].drafter, "none") == 0 || drafter->dflash)
            modes[count++] = m->decoders[i].mode;
    return count;
}

static const struct manifest_decoder *find_decoder(const struct runner_manifest *m,
                                                   const struct served_drafter *drafter,
                                                   const char *mode, struct error *err)
{
    const char *modes[MOST_DECODERS];
    const size_t count = spec_loaded_modes(m, drafter, modes);
    for (size_t i = 0; i < count; i++)
        if (strcmp(modes[i], mode) == 0)
            for (size_t j = 0; j < m->decoder_count; j++)
                if (strcmp(m->decoders[j].mode, mode) == 0)
                    return &m->decoders[j];
    error_set(err, "DECODER-NOT-LOADED", "spec mode %s is not among the loaded decoders (%s)", mode,
              drafter->dflash ? "serial, dflash" : "serial");
    error_at(err, NULL, "spec.mode", NULL);
    return NULL;
}

static bool refuse(struct error *err, const char *name, const char *field, const char *message)
{
    error_set(err, name, "%s", message);
    return error_at(err, NULL, field, NULL);
}

/* draft {artifact, sha256}: the drafter that must be the loaded one. The artifact is a name for
 * people; the digest decides. */
static bool check_draft(const json_t *draft, const struct served_drafter *drafter,
                        struct error *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(draft))
        return refuse(err, "SPEC-INVALID", "spec.dflash.draft", "draft is an object");
    json_object_foreach((json_t *)draft, key, value)
    {
        if (strcmp(key, "artifact") != 0 && strcmp(key, "sha256") != 0)
            return refuse(err, "SPEC-INVALID", "spec.dflash.draft",
                          "draft holds artifact and sha256, and no other key");
        if (!json_is_string(value))
            return refuse(err, "SPEC-INVALID", "spec.dflash.draft",
                          "artifact and sha256 are strings");
    }
    const char *wanted = json_string_value(json_object_get(draft, "sha256"));
    if (!wanted)
        return refuse(err, "SPEC-INVALID", "spec.dflash.draft.sha256",
                      "a draft without sha256 names no drafter");
    return strcmp(wanted, drafter->sha256) == 0 ||
           refuse(err, "DRAFTER-MISMATCH", "spec.dflash.draft.sha256",
                  "the loaded drafter has another digest (hello, head_provenance)");
}

static bool resolve_dflash(const json_t *block, const struct manifest_decoder *decoder,
                           const struct served_drafter *drafter, int *width, struct error *err)
{
    const char *key;
    json_t *value;
    const json_t *depth = json_object_get(block, "depth");
    int most = drafter->config->block - 1;
    if (most > decoder->depth_high)
        most = decoder->depth_high;
    if (!depth)
        return refuse(err, "DEPTH-MISSING", "spec.dflash.depth",
                      "mode dflash needs its depth: no other is chosen for it");
    if (!json_is_integer(depth) || json_integer_value(depth) < decoder->depth_low ||
        json_integer_value(depth) > most) {
        error_set(err, "DEPTH-INVALID", "a depth is an integer from %d to %d", decoder->depth_low,
                  most);
        return error_at(err, NULL, "spec.dflash.depth", NULL);
    }
    json_object_foreach((json_t *)block, key, value)
    {
        if (strcmp(key, "depth") == 0)
            continue;
        if (strcmp(key, "draft") != 0)
            return refuse(err, "SPEC-INVALID", "spec.dflash",
                          "dflash holds depth and draft, and no other key");
        if (!check_draft(value, drafter, err))
            return false;
    }
    *width = (int)json_integer_value(depth) + 1;
    return true;
}

bool spec_resolve(const struct wire_spec *spec, const struct runner_manifest *m,
                  const struct served_drafter *drafter, struct wire_spec *effective, int *width,
                  struct error *err)
{
    *width = 1;
    if (!spec->present)
        return true;
    const struct manifest_decoder *decoder = find_decoder(m, drafter, spec->mode, err);
    if (!decoder)
        return false;
    const bool dflash = strcmp(spec->mode, "dflash") == 0;
    if (spec->has_mtp || spec->dspark || (spec->dflash && !dflash)) {
        error_set(err, "SPEC-INVALID", "spec mode %s takes no block of another mode", spec->mode);
        return error_at(err, NULL, "spec", NULL);
    }
    if (dflash && !spec->dflash)
        return refuse(err, "DEPTH-MISSING", "spec.dflash",
                      "mode dflash needs its depth: no other is chosen for it");
    if (dflash && !resolve_dflash(spec->dflash, decoder, drafter, width, err))
        return false;
    /* All of the request was understood and is honoured: the echo is the request. */
    *effective = (struct wire_spec){.present = true, .mode = spec->mode};
    if (dflash)
        effective->dflash = json_incref(spec->dflash);
    return true;
}
