/* benchd noise. */
#include "judge/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "base/terminal.h"
#include "judge/compare/noise.h"
#include "judge/compare/output.h"
#include "judge/tools_common.h"

#include <stdio.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { RUNS_DEFAULT = 5 };

static void print_row(struct table *t, const char *name, const struct noise_floor *f)
{
    char cells[6][32];
    const double values[] = {1e3 * f->mean, 1e3 * f->sd, 1e3 * f->min, 1e3 * f->max};
    for (size_t i = 0; i < COUNT_OF(values); i++)
        snprintf(cells[i], sizeof cells[i], "%.5f", values[i]);
    snprintf(cells[4], sizeof cells[4], "%.2f %%", 100 * f->sd / f->mean);
    snprintf(cells[5], sizeof cells[5], "%.2f %%", 100 * f->kill_bar);
    table_row(t, name, cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]);
}

static void print_table(const struct noise_run *r)
{
    struct buffer conditions = {0};
    json_t *records = quiet_records(r->bench->quiet);
    struct table *t = table_new(7);
    table_row(t, "ms per token", "mean", "sd", "min", "max", "sd of mean", "kill bar");
    print_row(t, "prefill", &r->prefill);
    print_row(t, "decode", &r->decode);
    table_print(t);
    bench_conditions_text(records, &conditions);
    printf("%zu runs; %s; %zu beside other work or slowed down\n", r->runs, conditions.data,
           r->disturbed);
    json_decref(records);
    buffer_free(&conditions);
}

int tool_noise(int argc, char **argv)
{
    static const char tool[] = "noise";
    static struct bench_flags f;
    static struct noise_run run;
    const char *engine = NULL, *weights = NULL, *output = NULL;
    int64_t runs = RUNS_DEFAULT;
    bool as_json = false;
    const struct option_spec options[] = {
        {"--engine", OPTION_TEXT, true, "PATH", "The worker executable.", &engine, NULL, 0, 0},
        {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &weights, NULL, 0, 0},
        BENCH_FLAG_ROWS(&f),
        {"--runs", OPTION_INT, false, "N", "Legs that count (default 5); one more comes before.",
         &runs, NULL, NOISE_RUNS_LEAST, NOISE_RUNS_MOST},
        {"--json", OPTION_SWITCH, false, NULL, "JSON on stdout instead of the table.", &as_json,
         NULL, 0, 0},
        {"--output", OPTION_TEXT, false, "FILE", "The JSON goes there too.", &output, NULL, 0, 0},
    };
    const struct command command = {
        "benchd noise",
        "Measures a machine's noise floor: how much legs of one engine differ.",
        "The kill bar is two standard deviations, one percent at least: a smaller difference of "
        "two single runs is weather.\n"
        "Exit codes: 0 measured; 1 a leg failed; 2 usage or an unusable contract; 130 "
        "interrupted.\n" BENCH_ENVIRONMENT,
        NULL,
        options,
        COUNT_OF(options)};
    struct error err = {0};
    struct bench bench = {0};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct bench_setting setting = {.label = "noise", .engine = engine, .weights = weights};
    run = (struct noise_run){.bench = &bench, .setting = &setting, .runs = (size_t)runs};
    code = TOOL_OK;
    if (!bench_check_output(&f, "--output", output, &err) || !bench_open(&bench, &f, &err) ||
        !bench_prepare(&bench, &setting, &err) || !noise_run(&run, &err)) {
        code = bench_exit(&bench, &err);
    } else {
        json_t *report = noise_report(&run);
        if (output != NULL && !compare_write_json(output, report, &err))
            code = TOOL_REJECTED;
        if (as_json)
            compare_print_json(report);
        else
            print_table(&run);
        json_decref(report);
    }
    if (code != TOOL_OK)
        tool_complain(tool, &err);
    bench_close(&bench);
    return code;
}
