/* `benchd correctness`: conformance.md sections 1 to 3. */
#include "judge/conformance.h"
#include "judge/weights_format.h"

#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "base/options.h"
#include "judge/client.h"
#include "judge/conformance_flags.h"
#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/gates.h"
#include "judge/golden.h"
#include "judge/manifest_check.h"
#include "judge/run.h"
#include "judge/sandbox.h"
#include "judge/semantic.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_PASSED = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

static const char command_name[] = "benchd correctness";

static struct {
    const char *engine, *weights, *golden, *golden_sha256, *contract, *manifest, *report;
    struct option_list resources, trees;
    int64_t golden_bytes;
    bool has_bytes, trusted, no_sandbox, quiet;
} f;

static const struct option_spec specs[] = {
    {"--engine", OPTION_TEXT, true, "PATH", "The worker executable.", &f.engine, NULL, 0, 0},
    {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &f.weights, NULL, 0, 0},
    {"--golden", OPTION_TEXT, true, "FILE", "The golden; a benchmark block is not needed.",
     &f.golden, NULL, 0, 0},
    {"--golden-sha256", OPTION_TEXT, false, "HEX",
     "Pin of the golden's raw bytes, checked before it is parsed; with --golden-bytes.",
     &f.golden_sha256, NULL, 0, 0},
    {"--golden-bytes", OPTION_INT, false, "N", "Byte count of that pin.", &f.golden_bytes,
     &f.has_bytes, 0, INT64_MAX},
    {"--contract", OPTION_TEXT, true, "FILE", "The track's contract.", &f.contract, NULL, 0, 0},
    {"--manifest", OPTION_TEXT, false, "FILE",
     "A runner manifest: the hello is checked against it first, and the engine is started with "
     "--speculative-protocol v1.1 when the manifest gives it a capability.",
     &f.manifest, NULL, 0, 0},
    {"--trusted", OPTION_SWITCH, false, NULL,
     "An organiser's build: the hello must advertise cohort_reference_replay. Needs --manifest.",
     &f.trusted, NULL, 0, 0},
    {"--engine-resource", OPTION_LIST, false, "NAME=PATH",
     "Forwarded to the worker as --resource NAME=PATH.", &f.resources, NULL, 0, 0},
    {"--engine-tree", OPTION_LIST, false, "DIR",
     "A folder that the sandboxed engine may read: its libraries, kernels, modules.", &f.trees,
     NULL, 0, 0},
    {"--no-sandbox", OPTION_SWITCH, false, NULL, "Run the engine without the sandbox.",
     &f.no_sandbox, NULL, 0, 0},
    {"--report", OPTION_TEXT, false, "FILE",
     "Also write a JSON file that names every case with a differing token, those within a base "
     "case's leniency too, with the step and both tokens of its first one.",
     &f.report, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress and no engine log.", &f.quiet, NULL, 0, 0},
};
static const struct command command = {
    .name = command_name,
    .summary = "Runs a golden's whole correctness set with one engine; times nothing.",
    .notes = "Output: one JSON object on stdout, without a line break: passed, case_count, "
             "first_failing_case, first_failing_step, error.\n"
             "Exit codes: 0 passed; 1 failed; 2 usage, an unusable contract, or a manifest that "
             "cannot be read.\n"
             "Environment: MLXFAST_QWEN_MTP_TRACK_ID or MLXFAST_TRACK_ID must agree with the "
             "contract where set; MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600) and "
             "MLXFAST_BARRIER_TIMEOUT_S (60) bound every read from the engine; "
             "MLXFAST_SEMANTIC_JUDGE_CMD judges the cases with a semantic_prompt.",
    .options = specs,
    .option_count = sizeof specs / sizeof *specs};

static int complain(const struct error *err, int status)
{
    char line[2200];
    fprintf(stderr, "%s: %s\n", command_name, error_line(err, line, sizeof line));
    return status;
}

static bool misuse(struct error *err, const char *flag, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, NULL);
}

static bool check_flags(struct error *err)
{
    if ((f.golden_sha256 != NULL) != f.has_bytes)
        return misuse(err, "--golden-sha256",
                      "--golden-sha256 and --golden-bytes are given together or not at all");
    if (f.trusted && f.manifest == NULL)
        return misuse(err, "--trusted", "--trusted needs --manifest");
    if (f.report != NULL && !file_check_target(f.report, err))
        return false;
    return conformance_check_resources(&f.resources, err);
}

/* The result line on stdout, and its companion for people. */
static int report(const struct gates_result *r, const char *error)
{
    struct buffer out = {0};
    const bool failed_case = r->first_failing_case != NULL;
    buffer_printf(&out, "{\"passed\":%s,\"case_count\":%" PRId64 ",\"first_failing_case\":",
                  r->passed ? "true" : "false", r->case_count);
    if (failed_case)
        json_write_string(r->first_failing_case, strlen(r->first_failing_case), &out);
    else
        buffer_text(&out, "null");
    if (failed_case && r->first_failure.step >= 0)
        buffer_printf(&out,
                      ",\"first_failing_step\":%" PRId64 ",\"error\":", r->first_failure.step);
    else
        buffer_text(&out, ",\"first_failing_step\":null,\"error\":");
    json_write_string(error, strlen(error), &out);
    buffer_char(&out, '}');
    fputs(out.data, stdout);
    fflush(stdout);
    buffer_free(&out);
    fprintf(stderr, "%s: passed=%s case_count=%" PRId64 "%s%s\n", command_name,
            r->passed ? "true" : "false", r->case_count, error[0] != '\0' ? " error=" : "", error);
    return r->passed ? EXIT_PASSED : EXIT_FAILED;
}

/* ---- The report: what diverged, for those whose own golden it is ---- */

static void note_divergence(void *context, const char *name, const struct gate_outcome *o)
{
    struct buffer *out = context;
    buffer_text(out, out->length > 0 ? ",{\"case\":" : "{\"case\":");
    json_write_string(name, strlen(name), out);
    buffer_printf(out,
                  ",\"step\":%" PRId64 ",\"expected_token\":%" PRId64 ",\"actual_token\":%" PRId64
                  ",\"mismatches\":%" PRId64 "}",
                  o->step, o->expected, o->actual, o->mismatches);
}

static bool write_report(const struct gates_result *r, const struct buffer *diverged,
                         struct error *err)
{
    struct buffer out = {0};
    buffer_printf(&out,
                  "{\"passed\":%s,\"case_count\":%" PRId64 ",\"run_count\":%" PRId64 ",\"error\":",
                  r->passed ? "true" : "false", r->case_count, r->run_count);
    json_write_string(r->error, strlen(r->error), &out);
    buffer_printf(&out, ",\"diverged\":[%s]}\n", diverged->length > 0 ? diverged->data : "");
    const bool ok = file_write_atomic(f.report, out.data, out.length, err);
    buffer_free(&out);
    return ok;
}

static bool manifest_holds(const struct runner_description *m, const struct client *c)
{
    struct manifest_verdict checks[MANIFEST_CHECKS];
    bool all = true;
    manifest_check_hello(m, f.trusted, client_hello(c), checks);
    for (size_t i = 0; i < MANIFEST_CHECKS; i++) {
        if (!checks[i].applies || checks[i].passed)
            continue;
        all = false;
        fprintf(stderr, "%s: manifest check FAILED %s: %s\n", command_name, checks[i].name,
                checks[i].detail);
    }
    return all;
}

struct inputs {
    struct arena arena;
    struct contract *contract;
    struct golden *golden;
    struct runner_description manifest;
    struct semantic_judge semantic;
    struct sandbox_plan sandbox;
};

/* In the order of the page: contract (misuse), golden, and the manifest before the engine starts,
 * because it decides how. *status is the exit code of a failure. */
static bool load_inputs(struct inputs *in, int *status, struct error *err)
{
    const char *track;
    *status = EXIT_USAGE;
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(f.contract, track, &in->contract, err) ||
        !contract_require_window(in->contract, err) || !contract_require_model(in->contract, err))
        return false;
    const struct contract *c = in->contract;
    struct golden_rules rules = run_correctness_rules(c);
    rules.pin_sha256 = f.golden_sha256;
    rules.pin_bytes = (uint64_t)f.golden_bytes;
    *status = EXIT_FAILED;
    if (!golden_load(f.golden, &rules, &in->golden, err))
        return false;
    /* The engine reads the weights; a folder that cannot be listed is for the engine to refuse. */
    if (!weights_check_golden(f.weights, f.golden, err) &&
        strcmp(err->name, "GOLDEN-IN-WEIGHTS") == 0)
        return false;
    if (!weights_check_format(f.weights, c, err) &&
        strcmp(err->name, "QUANTIZATION-NOT-PERMITTED") == 0)
        return false;
    *status = EXIT_USAGE;
    if (!semantic_judge_from_environment(&in->semantic, err) ||
        !semantic_check_ready(&in->semantic, in->golden, c->semantic_min_pass, err))
        return false;
    return f.manifest == NULL || manifest_check_load(&in->arena, f.manifest, &in->manifest, err);
}

/* As in a local run: the engine cannot read the golden (a manifest is no secret); where no sandbox
 * can be built, it says so and goes on. */
static bool plan_sandbox(struct inputs *in, struct client_options *o, struct error *err)
{
    const char *const hidden[] = {f.golden, f.contract, NULL};
    const struct sandbox_request request = {
        .mode = SANDBOX_LOCAL,
        .switched_off = f.no_sandbox,
        .engine = f.engine,
        .weights = f.weights,
        .engine_trees = f.trees.count > 0 ? f.trees.items : NULL,
        .resources = o->resources,
        .hidden = hidden,
        .features = contract_is_cuda(in->contract) ? SANDBOX_GPU : 0,
        .environment = environ};
    if (!sandbox_plan(&in->arena, &request, &in->sandbox, err))
        return false;
    if (in->sandbox.reason != NULL && !f.quiet)
        fprintf(stderr, "sandbox: none, the engine runs unsandboxed (%s)\n", in->sandbox.reason);
    o->sandbox = &in->sandbox;
    return true;
}

static int failed_run(struct client *c, const struct golden *g, const struct gates_result *so_far,
                      const struct error *err)
{
    char line[2200];
    struct gates_result r = *so_far;
    r.passed = false;
    r.case_count = (int64_t)golden_gate_case_count(g);
    if (strcmp(err->name, "Interrupted") == 0)
        return complain(err, EXIT_INTERRUPTED);
    if (c != NULL && !f.quiet) {
        client_end(c);
        fprintf(stderr, "%s\n", client_stderr_tail(c));
    }
    return report(&r, error_line(err, line, sizeof line));
}

static int run(struct inputs *in, struct client_options *o)
{
    struct error err = {0};
    struct run_stamps before;
    struct gates_result r = {.error = ""};
    struct client *c = NULL;
    const char *names[MANIFEST_CAPABILITIES];
    struct buffer diverged = {0};
    o->speculative_v1_1 =
        f.manifest != NULL && manifest_check_capabilities(&in->manifest, f.trusted, names) > 0;
    int status;
    struct gates_plan plan = run_gates_plan(in->contract, in->golden, &in->semantic);
    plan.all = true;
    plan.quiet = f.quiet;
    plan.diverged = f.report != NULL ? note_divergence : NULL;
    plan.diverged_context = &diverged;
    run_stamps_take(f.weights, f.engine, &before);
    if (!client_start(o, &c, &err)) {
        status = failed_run(c, in->golden, &r, &err);
    } else if (f.manifest != NULL && !manifest_holds(&in->manifest, c)) {
        status = EXIT_FAILED;
    } else if (!gates_run(c, &plan, &r, &err) ||
               !run_stamps_check(&before, f.weights, f.engine, &err)) {
        status = failed_run(c, in->golden, &r, &err);
    } else if (f.report != NULL && !write_report(&r, &diverged, &err)) {
        status = complain(&err, EXIT_FAILED);
    } else {
        const char *error = r.passed                                ? ""
                            : r.error != NULL && r.error[0] != '\0' ? r.error
                                                                    : "correctness gate failed";
        status = report(&r, error);
    }
    buffer_free(&diverged);
    client_free(c);
    return status;
}

int correctness_main(int argc, char **argv)
{
    struct error err = {0};
    struct inputs in = {0};
    switch (options_parse(&command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return EXIT_PASSED;
    case OPTIONS_ERROR:
        return complain(&err, EXIT_USAGE);
    case OPTIONS_OK:
        break;
    }
    struct client_options o = {.engine = f.engine,
                               .weights = f.weights,
                               .resources = f.resources.count > 0 ? f.resources.items : NULL,
                               .echo_stderr = !f.quiet};
    int status = EXIT_USAGE;
    if (!check_flags(&err) || !client_deadlines_from_environment(&o, &err) ||
        !load_inputs(&in, &status, &err)) {
        complain(&err, status);
    } else if (!plan_sandbox(&in, &o, &err)) {
        status = complain(&err, EXIT_USAGE);
    } else {
        o.yarn_magnitude = in.contract->yarn_magnitude;
        status = run(&in, &o);
    }
    golden_free(in.golden);
    contract_free(in.contract);
    arena_free(&in.arena);
    return status;
}
