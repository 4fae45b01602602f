/* Variables that make a run another one than a person may think. */
#include "arena/doctor/examine.h"

#include <string.h>

/* Counts when it has the value, or any where that is NULL. Those that have a finding of their own
 * (processors, kernels, residents) are not here. */
static const struct {
    const char *name, *value, *effect;
} variables[] = {
    {"MLXFAST_LOCAL_COOL_GATE", "0", "times at any heat, and a ranked run is refused"},
    {"MLXFAST_LOCAL_RUN_GUARD", "0", "two runs at once spoil each other"},
    {"MLXFAST_LOCAL_BUILD", "0", "an engine that is older than its sources is timed"},
    {"MLXFAST_LOCAL_ALLOW_GOLDEN_DRIFT", "1", "wrong tokens do not end a run"},
    {"MLXFAST_MEMORY_PROFILE", "low", "weights stay in files"},
    {"DARKBLOOM_STARTUP_MEMORY_PROFILE", "low", "weights stay in files"},
    {"MLXFAST_REFERENCE_HASH_VERIFY", "0", "fetched files are taken by their length"},
    {"MLXFAST_SKIP_WEIGHTS_DOWNLOAD", NULL, "nothing is fetched or checked"},
    {"MLXFAST_ENGINE_PATH", NULL, "another engine is timed"},
    {"MLXFAST_SWIFT_BIN", NULL, "another engine is timed"},
    {"BENCH_WORKER_DRAFTER", NULL, "every worker loads a drafter"},
    {"BENCH_WORKER_YARN_MAGNITUDE", NULL, "other positions: other tokens"},
    {"LD_PRELOAD", NULL, "code of others in every program"},
    {"MLXFAST_SYSTEM_FILES", NULL, "for tests: /proc and /sys are made up"},
};

void examine_environment(const struct patient *p)
{
    struct buffer what = {0}, unset = {0};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = machine_variable(p->m, variables[i].name);
        if (!value || (variables[i].value && strcmp(value, variables[i].value) != 0))
            continue;
        buffer_printf(&what, "%s%s (%s)", what.length ? ", " : "", variables[i].name,
                      variables[i].effect);
        buffer_printf(&unset, " %s", variables[i].name);
    }
    if (what.length > 0)
        finding_add(p->f, "environment", FINDING_WARN, arena_printf(p->a, "unset%s", unset.data),
                    "set: %s", what.data);
    else
        finding_add(p->f, "environment", FINDING_OK, NULL, "no variable that changes a run is set");
    buffer_free(&what);
    buffer_free(&unset);
}
