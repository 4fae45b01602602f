/* benchd, the judge: a table of subcommands; `judge-overhead` is parsed here, `iterate`
 * in judge/iterate_command.h, the small tools in judge/tools.h. */
#include "base/child.h"
#include "base/error.h"
#include "base/file.h"
#include "base/options.h"
#include "base/standard.h"
#include "judge/conformance.h"
#include "judge/iterate_command.h"
#include "judge/overhead.h"
#include "judge/probe.h"
#include "judge/ranked/resident.h"
#include "judge/sandbox.h"
#include "judge/tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

static int fail(const char *command, const struct error *err, int status)
{
    char line[2048];
    fprintf(stderr, "%s: %s\n", command, error_line(err, line, sizeof line));
    return status;
}

static int usage_error(const char *command, const struct error *err)
{
    fail(command, err, EXIT_USAGE);
    fprintf(stderr, "try: %s --help\n", command);
    return EXIT_USAGE;
}

/* ---- judge-overhead ---- */

static struct {
    const char *engine;
    int64_t steps;
    bool sandbox;
} overhead = {.steps = 20000};

static const struct option_spec overhead_specs[] = {
    {"--engine", OPTION_TEXT, true, "PATH",
     "An engine that answers at once (build/engines/null_engine).", &overhead.engine, NULL, 0, 0},
    {"--steps", OPTION_INT, false, "N", "Exchanges of each kind (default 20000).", &overhead.steps,
     NULL, 100, 10000000},
    {"--sandbox", OPTION_SWITCH, false, NULL, "With the engine in its sandbox.", &overhead.sandbox,
     NULL, 0, 0},
};
static const struct command overhead_command = {
    .name = "benchd judge-overhead",
    .summary = "Measures what the judge adds to a decode round trip (for developers).",
    .options = overhead_specs,
    .option_count = sizeof overhead_specs / sizeof *overhead_specs};

static int run_overhead(int argc, char **argv)
{
    struct error err = {0};
    switch (options_parse(&overhead_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&overhead_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return usage_error(overhead_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    struct overhead_result result;
    if (!overhead_measure(overhead.engine, overhead.steps, overhead.sandbox, &result, &err))
        return fail(overhead_command.name, &err, EXIT_FAILED);
    overhead_report(&result, overhead.steps);
    return EXIT_OK;
}

/* ---- the table ---- */

static int not_implemented(const char *name)
{
    fprintf(stderr, "benchd %s: not implemented in this wave\n", name);
    return EXIT_USAGE;
}

static int run_transform(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return not_implemented("transform");
}

static int run_submit(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return not_implemented("submit");
}

static const struct {
    const char *name, *summary; /* summary NULL: not shown */
    int (*run)(int argc, char **argv);
} subcommands[] = {
    {"iterate", "times one engine, checks every token, seals the score", iterate_main},
    {"correctness", "runs a golden's correctness set with one engine", correctness_main},
    {"conformance", "tries an engine with every verb and every fault of the protocol",
     conformance_main},
    {"official", "iterate --mode official: the ranked run", official_main},
    {"transform", "not implemented in this wave", run_transform},
    {"submit", "not implemented in this wave", run_submit},
    {"probe-sandbox", "tries what an engine must not do, inside its sandbox", probe_command},
    {"judge-overhead", NULL, run_overhead},
};

static void print_usage(FILE *out)
{
    fprintf(out, "Usage: benchd SUBCOMMAND [FLAGS]\n\nThe judge: drives an engine over Engine "
                 "Protocol v1, owns every clock, checks every\ntoken, scores and seals.\n\n"
                 "Subcommands (each has --help):\n");
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        if (subcommands[i].summary != NULL)
            fprintf(out, "  %-26s%s\n", subcommands[i].name, subcommands[i].summary);
    size_t count;
    const struct tool *tools = tools_all(&count);
    for (size_t i = 0; i < count; i++)
        if (!tools[i].hidden)
            fprintf(out, "  %-26s%s\n", tools[i].name, tools[i].summary);
    fprintf(out, "\nExit codes: 0 success, 1 not passed or failed, 2 usage, 3 input that cannot be "
                 "read,\n130 interrupted.\n");
}

static int run_command(int argc, char **argv)
{
    /* The companion's name (benchd-cli.md): a link to this program. */
    if (argc > 0 && strcmp(path_basename(argv[0]), "measure-noop") == 0)
        return tool_measure_noop(argc - 1, argv + 1);
    if (argc < 2) {
        print_usage(stderr);
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "help") == 0) {
        print_usage(stdout);
        return EXIT_OK;
    }
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++)
        if (strcmp(subcommands[i].name, name) == 0)
            return subcommands[i].run(argc - 2, argv + 2);
    const struct tool *tool = tools_find(name);
    if (tool != NULL)
        return tool->run(argc - 2, argv + 2);
    fprintf(stderr, "benchd: unknown subcommand \"%s\"\n", name);
    print_usage(stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv)
{
    struct error err;
    if (argc > 1 && strcmp(argv[1], SANDBOX_EXEC) == 0)
        return sandbox_exec_main(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], RESIDENT_GUARD) == 0)
        return resident_guard_main(argc - 2, argv + 2);
    if (argc > 1 && strcmp(argv[1], PROBE_ROLE) == 0)
        return probe_role_main(argc - 2, argv + 2);
    standard_begin("benchd");
    interrupt_install();
    const int status = run_command(argc, argv);
    if (standard_finish(&err))
        return status;
    /* The exit code of a run is its verdict, and its score is sealed: a table that nobody read
     * changes neither. */
    const bool sealed =
        argc > 1 && (strcmp(argv[1], "iterate") == 0 || strcmp(argv[1], "official") == 0);
    fail("benchd", &err, EXIT_FAILED);
    return status == EXIT_OK && !sealed ? EXIT_FAILED : status;
}
