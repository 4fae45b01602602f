/* The table of refusals as data and as a page. */
#include "judge/refusals.h"

#include "base/json.h"

#include <string.h>

#define ROW_INPUT(name, meaning) {"Inputs", name, meaning},
#define ROW_CONTRACT(name, meaning) {"Contract", name, meaning},
#define ROW_GOLDEN(name, meaning) {"Goldens and weights", name, meaning},
#define ROW_SEAL(name, meaning) {"Scores and seals", name, meaning},
#define ROW_EVIDENCE(name, meaning) {"Evidence", name, meaning},
#define ROW_ENGINE(name, meaning) {"The engine and the wire", name, meaning},
#define ROW_EQUATION(name, meaning) {"Equations of FreeRunConsistency", name, meaning},
#define ROW_COHORT(name, meaning) {"Cohorts", name, meaning},
#define ROW_SEMANTIC(name, meaning) {"The judge of meanings", name, meaning},
#define ROW_MANIFEST(name, meaning) {"Runner manifests", name, meaning},
#define ROW_SANDBOX(name, meaning) {"The sandbox", name, meaning},
#define ROW_VIOLATION(kind, name, meaning) {"Block decoding", name, meaning},
#define ROW_BLOCKS(name, meaning) {"Block decoding", name, meaning},
#define ROW_SURFACE(name, meaning) {"The editable surface", name, meaning},
#define ROW_QUIET(name, meaning) {"The machine", name, meaning},
#define ROW_JOB(name, meaning) {"The older flow", name, meaning},
#define ROW_BASELINE(name, meaning) {"Trees, residents and calibration", name, meaning},
#define ROW_RUN(name, meaning) {"Runs", name, meaning},

static const struct refusal table[] = {
    REFUSALS_INPUT(ROW_INPUT) REFUSALS_CONTRACT(ROW_CONTRACT) REFUSALS_GOLDEN(ROW_GOLDEN)
        REFUSALS_SEAL(ROW_SEAL) REFUSALS_EVIDENCE(ROW_EVIDENCE) REFUSALS_ENGINE(ROW_ENGINE)
            REFUSALS_EQUATION(ROW_EQUATION) REFUSALS_COHORT(ROW_COHORT)
                REFUSALS_SEMANTIC(ROW_SEMANTIC) REFUSALS_MANIFEST(ROW_MANIFEST)
                    REFUSALS_SANDBOX(ROW_SANDBOX) FIDELITY_VIOLATIONS(ROW_VIOLATION)
                        REFUSALS_BLOCKS(ROW_BLOCKS) REFUSALS_SURFACE(ROW_SURFACE)
                            REFUSALS_JOB(ROW_JOB) REFUSALS_QUIET(ROW_QUIET)
                                REFUSALS_BASELINE(ROW_BASELINE) REFUSALS_RUN(ROW_RUN)};

const struct refusal *refusals_all(size_t *count)
{
    *count = sizeof table / sizeof table[0];
    return table;
}

const struct refusal *refusals_find(const char *name)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

void refusals_write_markdown(struct buffer *out)
{
    const char *group = "";
    buffer_text(out,
                "# Refusals and failures of the judge\n\n"
                "Written by `benchd refusals` from `src/judge/refusals.h`; do not edit. A "
                "message begins with its name,\nand `error` in a failed score.json begins "
                "with it too; an equation's name follows `FreeRunConsistency`. The failures of "
                "the\ncorrectness gates are sentences: [gates.md](gates.md).\n");
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (strcmp(group, table[i].group) != 0) {
            group = table[i].group;
            buffer_printf(out, "\n## %s\n\n| name | meaning |\n|---|---|\n", group);
        }
        buffer_printf(out, "| `%s` | %s |\n", table[i].name, table[i].meaning);
    }
}

void refusals_write_json(struct buffer *out)
{
    const size_t count = sizeof table / sizeof table[0];
    for (size_t i = 0; i < count; i++) {
        const char *const parts[][2] = {
            {"group", table[i].group}, {"name", table[i].name}, {"meaning", table[i].meaning}};
        for (size_t p = 0; p < 3; p++) {
            buffer_printf(out, "%s\"%s\": ", p > 0 ? ", " : i > 0 ? " {" : "[{", parts[p][0]);
            json_write_string(parts[p][1], strlen(parts[p][1]), out);
        }
        buffer_text(out, i + 1 < count ? "},\n" : "}]\n");
    }
}
