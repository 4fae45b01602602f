/* benchd, the judge: a table of subcommands; `iterate` and `judge-overhead` are parsed here, the
 * small tools in judge/tools.h. */
#include "base/child.h"
#include "base/error.h"
#include "base/number.h"
#include "base/options.h"
#include "base/standard.h"
#include "judge/conformance.h"
#include "judge/iterate.h"
#include "judge/launch.h"
#include "judge/overhead.h"
#include "judge/probe.h"
#include "judge/ranked/resident.h"
#include "judge/sandbox.h"
#include "judge/tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, SPEC_DEPTH_CAP = 32 };

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

/* ---- iterate ---- */

struct iterate_flags {
    struct option_list golden, golden_sha256, golden_bytes, prompt, resources, trees;
    struct option_list control_golden, control_sha256, control_bytes;
    const char *engine, *weights, *drafter, *contract, *mode, *score_path, *candidate_spec;
    const char *baseline_workspace, *baseline_calibration, *box;
    const char *capture_baseline, *capture_passes, *weights_digest;
    bool capture_timed_only, strict, no_sandbox, cool_gate, no_cool_gate, quiet;
    double baseline_prefill, baseline_decode;
    bool has_baseline_prefill, has_baseline_decode, has_depth;
    int64_t depth;
};

static struct iterate_flags f = {.mode = "local-iterate"};

static const struct option_spec iterate_specs[] = {
    {"--engine", OPTION_TEXT, true, "PATH", "The worker executable.", &f.engine, NULL, 0, 0},
    {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &f.weights, NULL, 0, 0},
    {"--drafter", OPTION_TEXT, false, "DIR",
     "A drafter's folder, passed to the engine as --drafter; it must not change during the run.",
     &f.drafter, NULL, 0, 0},
    {"--golden", OPTION_LIST, true, "FILE",
     "The golden with the oracle. More than one only on the paired official path.", &f.golden, NULL,
     0, 0},
    {"--golden-sha256", OPTION_LIST, false, "HEX",
     "Pin of the golden's raw bytes, checked before it is parsed. With --golden-bytes, once for "
     "each --golden.",
     &f.golden_sha256, NULL, 0, 0},
    {"--golden-bytes", OPTION_LIST, false, "N", "Byte count of that pin.", &f.golden_bytes, NULL, 0,
     0},
    {"--control-golden", OPTION_LIST, false, "FILE",
     "Oracle of the serial control leg (paired path only).", &f.control_golden, NULL, 0, 0},
    {"--control-golden-sha256", OPTION_LIST, false, "HEX", "Pin of the control golden.",
     &f.control_sha256, NULL, 0, 0},
    {"--control-golden-bytes", OPTION_LIST, false, "N", "Byte count of that pin.", &f.control_bytes,
     NULL, 0, 0},
    {"--prompt", OPTION_LIST, false, "NAME",
     "Prompt name in the calibration file (paired path only).", &f.prompt, NULL, 0, 0},
    {"--contract", OPTION_TEXT, true, "FILE", "The track's contract.", &f.contract, NULL, 0, 0},
    {"--mode", OPTION_TEXT, false, "MODE",
     "local-iterate (the default), local-submit (a longer decode window) or "
     "official.",
     &f.mode, NULL, 0, 0},
    {"--score-path", OPTION_TEXT, false, "FILE",
     "Where the score goes; its sidecar and the integrity file go beside it. Default "
     "score.local-iterate.json in local-iterate, else score.json.",
     &f.score_path, NULL, 0, 0},
    {"--strict", OPTION_SWITCH, false, NULL,
     "Local modes: run anchors, free runs, behaviour cases and cases judged by their meaning as "
     "well as base cases.",
     &f.strict, NULL, 0, 0},
    {"--engine-resource", OPTION_LIST, false, "NAME=PATH",
     "Forwarded to the worker as --resource NAME=PATH.", &f.resources, NULL, 0, 0},
    {"--engine-tree", OPTION_LIST, false, "DIR",
     "A folder that the sandboxed engine may read: its libraries, kernels, modules.", &f.trees,
     NULL, 0, 0},
    {"--no-sandbox", OPTION_SWITCH, false, NULL,
     "Run the engine without the sandbox; the seal says so.", &f.no_sandbox, NULL, 0, 0},
    {"--candidate-spec", OPTION_TEXT, false, "JSON",
     "A SpecConfig object for the timed decode windows.", &f.candidate_spec, NULL, 0, 0},
    {"--mtp-depth", OPTION_INT, false, "N",
     "The same as --candidate-spec {\"mode\":\"mtp\",\"mtp\":{\"depth\":N}}.", &f.depth,
     &f.has_depth, 1, SPEC_DEPTH_CAP},
    {"--cool-gate", OPTION_SWITCH, false, NULL,
     "Wait for a cool machine before timing. This version has no temperature reader: it says so "
     "and goes on.",
     &f.cool_gate, NULL, 0, 0},
    {"--no-cool-gate", OPTION_SWITCH, false, NULL,
     "Do not ask for a cool machine (the default in local-iterate).", &f.no_cool_gate, NULL, 0, 0},
    {"--baseline-prefill-spt", OPTION_REAL, false, "F",
     "Stored baseline of the older stored-pair tracks, seconds per token; refused here.",
     &f.baseline_prefill, &f.has_baseline_prefill, 0, 0},
    {"--baseline-decode-spt", OPTION_REAL, false, "F", "The same for decode.", &f.baseline_decode,
     &f.has_baseline_decode, 0, 0},
    {"--baseline-workspace", OPTION_TEXT, false, "DIR", "The organiser's tree (paired path only).",
     &f.baseline_workspace, NULL, 0, 0},
    {"--baseline-calibration", OPTION_TEXT, false, "FILE",
     "The box's calibration (paired path only).", &f.baseline_calibration, NULL, 0, 0},
    {"--box", OPTION_TEXT, false, "NAME", "The box's name (paired path only).", &f.box, NULL, 0, 0},
    {"--capture-baseline", OPTION_TEXT, false, "FILE",
     "Capture of a stored pair; not in this version.", &f.capture_baseline, NULL, 0, 0},
    {"--capture-timed-only", OPTION_SWITCH, false, NULL, "Capture without correctness; likewise.",
     &f.capture_timed_only, NULL, 0, 0},
    {"--capture-passes", OPTION_TEXT, false, "L1,L2,...", "Labels of captures; likewise.",
     &f.capture_passes, NULL, 0, 0},
    {"--weights-digest", OPTION_TEXT, false, "SHA:BYTES:FILES",
     "A digest computed before, for captures; likewise.", &f.weights_digest, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress, no engine log and no table; errors only.",
     &f.quiet, NULL, 0, 0},
};

static const struct command iterate_command = {
    .name = "benchd iterate",
    .summary = "Times one engine, checks every token, seals score.json.",
    .notes = "Exit codes: 0 passed; 1 not passed (a failed score file is still written); 2 usage "
             "or an unusable contract (no score file); 130 interrupted (no score file).\n"
             "Files: the score, <score>.sha256, and benchmark-integrity.local-iterate.json or "
             "benchmark-integrity.json beside it.\n"
             "Environment: MLXFAST_QWEN_MTP_TRACK_ID or MLXFAST_TRACK_ID must agree with the "
             "contract where set; MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600) and "
             "MLXFAST_BARRIER_TIMEOUT_S (60) bound every read from the engine; "
             "MLXFAST_RUN_CEILING_S (0.1336139485703125) is the seconds per token whose fourfold "
             "bounds the timed decode; MLXFAST_COMMIT_SHA names the commit; "
             "MLXFAST_SEMANTIC_JUDGE_CMD, MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S (120) and "
             "MLXFAST_DETOKENIZE_CMD judge answers by their meaning (docs/gates.md).",
    .options = iterate_specs,
    .option_count = sizeof iterate_specs / sizeof *iterate_specs};

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

static bool check_pin(struct iterate_options *o, struct error *err)
{
    if (f.golden_sha256.count != f.golden_bytes.count)
        return misuse(err, "--golden-sha256", NULL,
                      "--golden-sha256 and --golden-bytes are given together or not at all");
    if (f.golden_sha256.count == 0)
        return true;
    if (f.golden_sha256.count != f.golden.count)
        return error_set(err, "GOLDEN-COUNT-MISMATCH",
                         "a pin is given once for each --golden: %zu goldens, %zu pins",
                         f.golden.count, f.golden_sha256.count);
    o->golden_sha256 = f.golden_sha256.items[0];
    if (!number_uint64(f.golden_bytes.items[0], INT64_MAX, &o->golden_bytes))
        return misuse(err, "--golden-bytes", f.golden_bytes.items[0], "not a byte count");
    return true;
}

static bool check_resources(struct error *err)
{
    for (size_t i = 0; i < f.resources.count; i++) {
        size_t length, other;
        if (!launch_resource_valid(f.resources.items[i], &length))
            return misuse(err, "--engine-resource", f.resources.items[i],
                          "NAME=PATH, the name of letters, digits, '.', '_' and '-'");
        for (size_t j = 0; j < i; j++)
            if (launch_resource_valid(f.resources.items[j], &other) && other == length &&
                memcmp(f.resources.items[i], f.resources.items[j], length) == 0)
                return misuse(err, "--engine-resource", f.resources.items[i],
                              "a resource is named once");
    }
    return true;
}

/* What only the paired path or a capture can use. */
static bool check_not_here(struct error *err)
{
    if (f.control_golden.count + f.control_sha256.count + f.control_bytes.count > 0)
        return error_set(err, "CONTROL-GOLDEN-WITHOUT-PAIRED-PATH",
                         "--control-golden is the control leg's oracle; a local run has none");
    if (f.golden.count > 1)
        return error_set(err, "MULTIPLE-GOLDENS-WITHOUT-PAIRED-PATH",
                         "a local run takes one --golden, %zu are given", f.golden.count);
    if (f.baseline_workspace != NULL && f.baseline_calibration != NULL)
        return misuse(err, "--baseline-workspace", f.baseline_workspace,
                      "the paired path is not in this version");
    if (f.capture_baseline != NULL || f.capture_timed_only || f.capture_passes != NULL ||
        f.weights_digest != NULL)
        return misuse(err, "--capture-baseline", f.capture_baseline,
                      "captures of stored pairs are not in this version");
    return true;
}

static bool check_iterate_flags(struct iterate_options *o, struct error *err)
{
    if (f.cool_gate && f.no_cool_gate)
        return misuse(err, "--cool-gate", NULL,
                      "--cool-gate and --no-cool-gate exclude each other");
    if (f.has_depth && f.candidate_spec != NULL)
        return misuse(err, "--mtp-depth", NULL, "--mtp-depth excludes --candidate-spec");
    if (f.has_baseline_prefill != f.has_baseline_decode)
        return misuse(err, "--baseline-prefill-spt", NULL,
                      "the two --baseline-*-spt flags are given together or not at all");
    if (strcmp(f.mode, "official") == 0)
        return misuse(err, "--mode", f.mode,
                      "the ranked path is not in this version: only the local modes run");
    if (strcmp(f.mode, "local-submit") == 0)
        o->mode = ITERATE_LOCAL_SUBMIT;
    else if (strcmp(f.mode, "local-iterate") != 0)
        return misuse(err, "--mode", f.mode, "a mode is local-iterate, local-submit or official");
    return check_pin(o, err) && check_resources(err) && check_not_here(err);
}

static int run_iterate(int argc, char **argv)
{
    struct error err = {0};
    struct iterate_options o = {0};
    switch (options_parse(&iterate_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&iterate_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return usage_error(iterate_command.name, &err);
    case OPTIONS_OK:
        break;
    }
    if (!check_iterate_flags(&o, &err))
        return usage_error(iterate_command.name, &err);
    o.engine = f.engine;
    o.weights = f.weights;
    o.drafter = f.drafter;
    o.golden = f.golden.items[0];
    o.contract = f.contract;
    o.score_path = f.score_path != NULL              ? f.score_path
                   : o.mode == ITERATE_LOCAL_ITERATE ? "score.local-iterate.json"
                                                     : "score.json";
    o.strict = f.strict;
    o.resources = f.resources.count > 0 ? f.resources.items : NULL;
    o.no_sandbox = f.no_sandbox;
    o.engine_trees = f.trees.count > 0 ? f.trees.items : NULL;
    o.candidate_spec = f.candidate_spec;
    o.mtp_depth = f.has_depth ? f.depth : 0;
    o.stored_baseline_given = f.has_baseline_prefill;
    o.quiet = f.quiet;
    if ((f.cool_gate || (o.mode == ITERATE_LOCAL_SUBMIT && !f.no_cool_gate)) && !f.quiet)
        fprintf(stderr, "cool gate: skipped, this version has no temperature reader\n");
    const enum iterate_exit result = iterate_run(&o, &err);
    return result == ITERATE_PASSED ? EXIT_OK : fail(iterate_command.name, &err, (int)result);
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

static const char iterate_name[] = "iterate";

static int run_official(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    fprintf(stderr, "benchd official: use `benchd iterate --mode official` (the ranked path is not "
                    "in this version)\n");
    return EXIT_USAGE;
}

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
    {iterate_name, "times one engine, checks every token, seals the score", run_iterate},
    {"correctness", "runs a golden's correctness set with one engine", correctness_main},
    {"conformance", "tries an engine with every verb and every fault of the protocol",
     conformance_main},
    {"official", "points to iterate --mode official", run_official},
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
    const bool sealed = argc > 1 && strcmp(argv[1], iterate_name) == 0;
    fail("benchd", &err, EXIT_FAILED);
    return status == EXIT_OK && !sealed ? EXIT_FAILED : status;
}
