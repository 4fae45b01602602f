/* benchd report. */
#include "judge/tools.h"

#include "base/file.h"
#include "judge/page/chart_library.h"
#include "judge/page/html.h"
#include "judge/page/parts.h"
#include "judge/page/text.h"
#include "judge/tools_common.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct sheet *fill(struct report_source *r)
{
    struct arena *a = &r->arena;
    const char *track = r->contract ? r->contract->track_id : NULL;
    struct sheet *s = sheet_new(arena_printf(a, "Report of %s%s%s", r->score.name,
                                             track ? ", track " : "", track ? track : ""));
    part_verdict(s, r);
    part_pairs(s, r);
    part_intervals(s, r);
    part_steps(s, r);
    part_gates(s, r);
    part_noise(s, r);
    part_roofline(s, r);
    part_speculation(s, r);
    part_correctness(s, r);
    part_memory(s, r);
    part_identity(s, r);
    part_contract(s, r);
    part_metrics(s, r);
    return s;
}

/* "score.json" -> "score.report.html" in the same folder. */
static const char *default_out(struct arena *a, const char *score)
{
    const size_t length = strlen(score);
    const size_t stem = text_ends(score, ".json") && length > 5 ? length - 5 : length;
    return arena_printf(a, "%.*s.report.html", (int)stem, score);
}

static bool is_io(const struct error *err)
{
    return strcmp(err->name, "IO") == 0 || strcmp(err->name, "NOT-A-REGULAR-FILE") == 0;
}

static bool make(const struct source_paths *paths, const char *out, struct error *err)
{
    struct report_source source = {0};
    struct buffer library = {0}, page = {0};
    struct sheet *sheet = NULL;
    /* All that can be refused is, before a line is printed. */
    bool ok = source_read(paths, &source, err) &&
              (!out || (file_check_target(out, err) && chart_library_read(&library, err)));
    if (ok) {
        sheet = fill(&source);
        if (out)
            html_write(sheet, &library, chart_library_notice(), &page);
        ok = !out || file_write_atomic(out, page.data, page.length, err);
    }
    if (ok) {
        const char *plain = getenv("NO_COLOR");
        text_print(sheet, isatty(STDOUT_FILENO) && !(plain && *plain));
        if (out) {
            printf("\npage: ");
            tool_put_line(stdout, out);
            putchar('\n');
        }
    }
    sheet_free(sheet);
    buffer_free(&library);
    buffer_free(&page);
    source_free(&source);
    return ok;
}

int tool_report(int argc, char **argv)
{
    static const char tool[] = "report";
    static const char *const positional[] = {"SCORE", NULL};
    struct source_paths paths = {0};
    struct option_list pairs = {0};
    const char *out = NULL;
    bool no_html = false, has_out = false;
    const struct option_spec options[] = {
        {"--pairs", OPTION_LIST, false, "FILE",
         "Another score file, to stand beside this one in the section on noise. May be repeated.",
         &pairs, NULL, 0, 0},
        {"--contract", OPTION_TEXT, false, "FILE",
         "The track's contract: explained in plain words, and its weights give each pair's "
         "composite. It must be the one that the score was sealed under.",
         &paths.contract, NULL, 0, 0},
        {"--roofline", OPTION_TEXT, false, "FILE",
         "What `bench-worker bench --json` printed on the same machine.", &paths.bench, NULL, 0, 0},
        {"--out", OPTION_TEXT, false, "FILE",
         "The page. Default: SCORE with .report.html for its .json.", &out, &has_out, 0, 0},
        {"--no-html", OPTION_SWITCH, false, NULL, "The tables alone: no page is written.", &no_html,
         NULL, 0, 0},
    };
    const struct command command = {
        "benchd report",
        "Shows a score: one HTML page that needs no network, and the same as tables.",
        "Environment: MLXFAST_CHART_JS, the file of Chart.js to put into the page, else that of "
        "the package libjs-chart.js; NO_COLOR, when set, turns colours off.\n"
        "Exit: 0, 1 a file is refused, 2 usage, 3 something cannot be read or written.",
        positional,
        options,
        sizeof options / sizeof options[0]};
    struct error err = {0};
    struct arena arena = {0};
    int code;
    if (!tool_parse(&command, tool, argc, argv, &paths.score, &code))
        return code;
    paths.others = pairs.items;
    paths.other_count = pairs.count;
    out = no_html ? NULL : out ? out : default_out(&arena, paths.score);
    const char *inputs[67] = {paths.score, paths.contract, paths.bench};
    for (size_t i = 0; i < pairs.count; i++)
        inputs[3 + i] = pairs.items[i];
    if (no_html && has_out) {
        error_set(&err, "USAGE", "--no-html and --out exclude each other");
        tool_complain(tool, &err);
        code = TOOL_USAGE;
    } else if (!tool_check_output("--out", out, inputs, 3 + pairs.count, &err)) {
        tool_complain(tool, &err);
        code = TOOL_USAGE;
    } else if (make(&paths, out, &err)) {
        code = fflush(stdout) == 0 && !ferror(stdout) ? TOOL_OK : TOOL_IO;
    } else {
        tool_complain(tool, &err);
        code = is_io(&err) ? TOOL_IO : TOOL_REJECTED;
    }
    arena_free(&arena);
    return code;
}
