/* benchd parity-diff. */
#include "judge/tools.h"

#include "base/json.h"
#include "judge/parity.h"
#include "judge/tools_common.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SCORE_BYTES_MAX = 64 << 20 };

static int emit_sample(const char *tool)
{
    struct buffer page = {0};
    struct error err = {0};
    const bool ok = parity_sample(&page, &err);
    if (ok)
        printf("%s\n", page.data);
    else
        tool_complain(tool, &err);
    buffer_free(&page);
    return ok ? TOOL_OK : TOOL_IO;
}

static json_t *read_score(const char *tool, const char *path)
{
    struct error err = {0};
    json_t *score = json_read_file(path, SCORE_BYTES_MAX, JSON_DEPTH_DEFAULT, &err);
    if (score && !json_is_object(score)) {
        error_set(&err, "SCORE-INVALID", "the file holds no object");
        error_at(&err, path, NULL, NULL);
        json_decref(score);
        score = NULL;
    }
    if (!score)
        tool_complain(tool, &err);
    return score;
}

static int compare(const char *tool, const char *const paths[2])
{
    json_t *a = read_score(tool, paths[0]);
    json_t *b = a ? read_score(tool, paths[1]) : NULL;
    int code = TOOL_IO;
    if (b) {
        struct buffer lines = {0};
        struct parity_result r;
        parity_diff(a, b, &lines, &r);
        fwrite(lines.data ? lines.data : "", 1, lines.length, stdout);
        fprintf(stderr, "%zu difference%s, %zu values compared, %zu not compared%s", r.differences,
                r.differences == 1 ? "" : "s", r.compared, r.not_compared, r.waived ? "" : "\n");
        if (r.waived)
            fprintf(stderr, ", %zu timing difference%s waived: both failed\n", r.waived,
                    r.waived == 1 ? "" : "s");
        code = r.differences ? TOOL_REJECTED : TOOL_OK;
        buffer_free(&lines);
    }
    json_decref(a);
    json_decref(b);
    return code;
}

int tool_parity_diff(int argc, char **argv)
{
    static const char tool[] = "parity-diff";
    static const char *const positional[] = {"A", "B", NULL};
    int64_t version = PARITY_VERSION;
    bool sample = false;
    const struct option_spec options[] = {
        {"--version", OPTION_INT, false, "N",
         "Version of the table of fields; 2 (the default) is the only one.", &version, NULL,
         PARITY_VERSION, PARITY_VERSION},
        {"--emit-sample", OPTION_SWITCH, false, NULL,
         "Compare nothing: print a score with every field of the table. A and B are left out.",
         &sample, NULL, 0, 0},
    };
    struct command command = {
        "benchd parity-diff",
        "Compares two score files field by field.",
        "A line for each difference on stdout, \"<TAG> <field>: <a> | <b>\". Timed fields may "
        "differ by 10 % (not looked at when both runs failed), memory by 5 %, other real numbers "
        "by 1e-9; of an error only the class counts, the text before the first ':'; commit, time, "
        "box and the like are not compared.\n"
        "Tags: UNKNOWN-FIELD, SCHEMA-DRIFT-MISSING, PASSED-NOT-BOOL, TIMED, DET, DET-TOL, FAILING, "
        "ERROR-CLASS.\n"
        "Exit: 0 the same, 1 they differ, 2 usage, 3 a file cannot be read as JSON.",
        positional,
        options,
        sizeof options / sizeof options[0]};
    const char *paths[2] = {NULL, NULL};
    int code;
    /* The sample needs no files; --help must still tell of them. */
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--emit-sample") == 0)
            command.positional = NULL;
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            command.positional = positional;
    if (!tool_parse(&command, tool, argc, argv, paths, &code))
        return code;
    return sample ? emit_sample(tool) : compare(tool, paths);
}
