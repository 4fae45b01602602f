/* Tables of the small objects, the kinds and the closed sets of texts (engine-protocol.md 2, 3). */
#include "wire/objects.h"

#include <string.h>

#define COUNT(table) (sizeof table / sizeof *table)

static const struct object_member top_logit[] = {
    {"token", MEMBER_I64, offsetof(struct wire_top_logit, token)},
    {"logit", MEMBER_F64, offsetof(struct wire_top_logit, logit)},
};
const struct object_table object_top_logit = {"CorrectnessTraceLogit", top_logit, COUNT(top_logit)};

#define STATS(kind, name)                                                                          \
    {                                                                                              \
#name, kind, offsetof(struct wire_expert_stats, name)                                      \
    }
static const struct object_member expert_stats[] = {
    STATS(MEMBER_U64, expert_cache_hits),      STATS(MEMBER_U64, expert_cache_misses),
    STATS(MEMBER_U64, expert_cache_evictions), STATS(MEMBER_U64, expert_bytes_read),
    STATS(MEMBER_F64, expert_read_seconds),    STATS(MEMBER_U64, expert_peak_cached_tensors),
};
const struct object_table object_expert_stats = {"ExpertStreamingStats", expert_stats,
                                                 COUNT(expert_stats)};

static const struct object_member head_provenance[] = {
    {"sha256", MEMBER_TEXT, offsetof(struct wire_head_provenance, sha256)},
    {"bytes", MEMBER_U64, offsetof(struct wire_head_provenance, bytes)},
    {"file_count", MEMBER_U32, offsetof(struct wire_head_provenance, file_count)},
};
const struct object_table object_head_provenance = {"HeadProvenance", head_provenance,
                                                    COUNT(head_provenance)};

static const struct object_member runner[] = {
    {"id", MEMBER_TEXT, offsetof(struct wire_runner, id)},
    {"model_type", MEMBER_TEXT, offsetof(struct wire_runner, model_type)},
    {"manifest_sha256", MEMBER_HASH, offsetof(struct wire_runner, manifest_sha256)},
    {"build", MEMBER_TEXT, offsetof(struct wire_runner, build)},
};
const struct object_table object_runner = {"RunnerIdentity", runner, COUNT(runner)};

static const struct object_member resident[] = {
    {"pid", MEMBER_U32, offsetof(struct wire_resident, pid)},
    {"load_epoch", MEMBER_U64, offsetof(struct wire_resident, load_epoch)},
};
const struct object_table object_resident = {"ResidentIdentity", resident, COUNT(resident)};

const char *const wire_spec_modes[] = {"serial", "mtp", "dflash", "dspark", NULL};

const char *const *wire_text_choices(const char *field)
{
    static const char *const verification[] = {"rectangular", "serial", NULL};
    static const char *const width[] = {"cohort", "canonical", NULL};
    static const char *const arithmetic[] = {"strict", "fast", NULL};
    if (strcmp(field, "verification_mode") == 0)
        return verification;
    if (strcmp(field, "replay_width") == 0)
        return width;
    if (strcmp(field, "arithmetic") == 0)
        return arithmetic;
    return NULL;
}

static const char *const kind_names[] = {
#define NAME(name) #name,
    WIRE_REQUEST_KINDS(NAME) WIRE_BLOCK_KINDS(NAME)
#undef NAME
};

const char *wire_kind_name(enum wire_kind kind)
{
    return kind >= 0 && kind < WIRE_KIND_COUNT ? kind_names[kind] : "unknown";
}

enum wire_kind wire_kind_find(const char *name)
{
    for (int i = 0; i < WIRE_KIND_COUNT; i++)
        if (strcmp(kind_names[i], name) == 0)
            return (enum wire_kind)i;
    return WIRE_KIND_UNKNOWN;
}

bool wire_kind_is_block(enum wire_kind kind)
{
    return kind >= WIRE_KIND_V1_COUNT && kind < WIRE_KIND_COUNT;
}
