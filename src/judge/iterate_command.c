/* The command line of `iterate`, local and official, and of its alias `official`. */
#include "judge/iterate_command.h"

#include "base/arena.h"
#include "base/error.h"
#include "base/number.h"
#include "base/options.h"
#include "judge/iterate.h"
#include "judge/launch.h"
#include "judge/ranked/official.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_OK = 0, EXIT_USAGE = 2, SPEC_DEPTH_CAP = 32 };

struct iterate_flags {
    const char *pool, *draw_file, *signing_key, *log;
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
    {"--golden", OPTION_LIST, false, "FILE",
     "The golden with the oracle; required but with --pool. More than one only in official mode.",
     &f.golden, NULL, 0, 0},
    {"--golden-sha256", OPTION_LIST, false, "HEX",
     "Pin of the golden's raw bytes, checked before it is parsed. With --golden-bytes, once for "
     "each --golden.",
     &f.golden_sha256, NULL, 0, 0},
    {"--golden-bytes", OPTION_LIST, false, "N", "Byte count of that pin.", &f.golden_bytes, NULL, 0,
     0},
    {"--control-golden", OPTION_LIST, false, "FILE",
     "Oracle of the serial control leg (official mode), once for each --golden.", &f.control_golden,
     NULL, 0, 0},
    {"--control-golden-sha256", OPTION_LIST, false, "HEX", "Pin of the control golden.",
     &f.control_sha256, NULL, 0, 0},
    {"--control-golden-bytes", OPTION_LIST, false, "N", "Byte count of that pin.", &f.control_bytes,
     NULL, 0, 0},
    {"--prompt", OPTION_LIST, false, "NAME",
     "Prompt name in the calibration file (official mode), once for each --golden. Default: the "
     "golden's own.",
     &f.prompt, NULL, 0, 0},
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
     "Local modes: wait for a cool machine before timing (the default in local-submit). Without a "
     "temperature reader it says so and goes on. Official mode always waits.",
     &f.cool_gate, NULL, 0, 0},
    {"--no-cool-gate", OPTION_SWITCH, false, NULL,
     "Do not ask for a cool machine (the default in local-iterate).", &f.no_cool_gate, NULL, 0, 0},
    {"--baseline-prefill-spt", OPTION_REAL, false, "F",
     "Stored baseline of the older stored-pair tracks, seconds per token; refused here.",
     &f.baseline_prefill, &f.has_baseline_prefill, 0, 0},
    {"--baseline-decode-spt", OPTION_REAL, false, "F", "The same for decode.", &f.baseline_decode,
     &f.has_baseline_decode, 0, 0},
    {"--baseline-workspace", OPTION_TEXT, false, "DIR",
     "The organiser's tree (official mode), else MLXFAST_BASELINE_WORKSPACE: the engine and the "
     "weights are found in it by the same relative paths.",
     &f.baseline_workspace, NULL, 0, 0},
    {"--baseline-calibration", OPTION_TEXT, false, "FILE",
     "The box's calibration (official mode), else MLXFAST_BASELINE_CALIBRATION.",
     &f.baseline_calibration, NULL, 0, 0},
    {"--box", OPTION_TEXT, false, "NAME", "The box's name (official mode); RUNNER_NAME wins.",
     &f.box, NULL, 0, 0},
    {"--pool", OPTION_TEXT, false, "DIR",
     "Official mode: the folder of the contract's pool; the golden is drawn from it.", &f.pool,
     NULL, 0, 0},
    {"--draw-file", OPTION_TEXT, false, "FILE",
     "Official mode: a private file that is told what was drawn.", &f.draw_file, NULL, 0, 0},
    {"--signing-key", OPTION_TEXT, false, "FILE",
     "Official mode: the private key that signs the score's statement; else MLXFAST_SIGNING_KEY.",
     &f.signing_key, NULL, 0, 0},
    {"--log", OPTION_TEXT, false, "FILE",
     "Official mode: the append-only log that gets the statement.", &f.log, NULL, 0, 0},
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
             "or an unusable contract (no score file); 130 interrupted (no score file). Official "
             "mode "
             "also: 6 the calibration or the control leg, 7 declined, the machine did not allow a "
             "valid measurement.\n"
             "Files: the score, <score>.sha256, and benchmark-integrity.local-iterate.json or "
             "benchmark-integrity.json beside it.\n"
             "Environment: MLXFAST_QWEN_MTP_TRACK_ID or MLXFAST_TRACK_ID must agree with the "
             "contract where set; MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600) and "
             "MLXFAST_BARRIER_TIMEOUT_S (60) bound every read from the engine; "
             "MLXFAST_RUN_CEILING_S (0.1336139485703125) is the seconds per token whose fourfold "
             "bounds the timed decode; MLXFAST_COMMIT_SHA names the commit; "
             "MLXFAST_SEMANTIC_JUDGE_CMD, MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S (120) and "
             "MLXFAST_DETOKENIZE_CMD judge answers by their meaning (docs/gates.md). Official mode "
             "(docs/ranked-run.md): MLXFAST_BENCHMARK_SKIP_TIMED=1 runs correctness alone.",
    .options = iterate_specs,
    .option_count = sizeof iterate_specs / sizeof *iterate_specs};

static int fail(const struct error *err, int status)
{
    char line[2048];
    fprintf(stderr, "%s: %s\n", iterate_command.name, error_line(err, line, sizeof line));
    return status;
}

static int usage_error(const struct error *err)
{
    fail(err, EXIT_USAGE);
    fprintf(stderr, "try: %s --help\n", iterate_command.name);
    return EXIT_USAGE;
}

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

static bool parse_bytes(const char *flag, const char *text, uint64_t *out, struct error *err)
{
    return number_uint64(text, INT64_MAX, out) || misuse(err, flag, text, "not a byte count");
}

/* A pin is two lists that go with the goldens. */
static bool check_pins(const char *flag, const struct option_list *sha256,
                       const struct option_list *bytes, const struct option_list *goldens,
                       struct error *err)
{
    if (sha256->count != bytes->count)
        return misuse(err, flag, NULL,
                      "a golden's sha256 and bytes are given together or not at all");
    if (sha256->count == 0 || sha256->count == goldens->count)
        return true;
    return error_set(err, "GOLDEN-COUNT-MISMATCH",
                     "%s is given once for each golden: %zu goldens, %zu pins", flag,
                     goldens->count, sha256->count);
}

static bool check_pin(struct iterate_options *o, struct error *err)
{
    if (!check_pins("--golden-sha256", &f.golden_sha256, &f.golden_bytes, &f.golden, err))
        return false;
    if (f.golden_sha256.count == 0)
        return true;
    o->golden_sha256 = f.golden_sha256.items[0];
    return parse_bytes("--golden-bytes", f.golden_bytes.items[0], &o->golden_bytes, err);
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

/* What no mode of this version has. */
static bool check_captures(struct error *err)
{
    if (f.capture_baseline != NULL || f.capture_timed_only || f.capture_passes != NULL ||
        f.weights_digest != NULL)
        return misuse(err, "--capture-baseline", f.capture_baseline,
                      "captures of stored pairs are not in this version");
    return true;
}

/* What only a ranked run can use. */
static bool check_ranked(struct error *err)
{
    const struct {
        const char *flag, *value;
    } ranked[] = {{"--pool", f.pool},
                  {"--draw-file", f.draw_file},
                  {"--signing-key", f.signing_key},
                  {"--log", f.log}};
    for (size_t i = 0; i < sizeof ranked / sizeof *ranked; i++)
        if (ranked[i].value != NULL)
            return misuse(err, ranked[i].flag, ranked[i].value, "only official mode has it");
    if (f.golden.count == 0)
        return misuse(err, "--golden", NULL, "a local run needs a golden");
    return true;
}

/* What only pairs can use. */
static bool check_single(struct error *err)
{
    if (f.control_golden.count + f.control_sha256.count + f.control_bytes.count > 0)
        return error_set(err, "CONTROL-GOLDEN-WITHOUT-PAIRED-PATH",
                         "--control-golden is the control leg's oracle; a run of one leg has none");
    if (f.golden.count > 1)
        return error_set(err, "MULTIPLE-GOLDENS-WITHOUT-PAIRED-PATH",
                         "a local run of one leg takes one --golden, %zu are given",
                         f.golden.count);
    return true;
}

static bool once_for_each(const char *flag, size_t count, struct error *err)
{
    return count == 0 || count == f.golden.count ||
           error_set(err, "GOLDEN-COUNT-MISMATCH",
                     "%s is given once for each --golden: %zu goldens, %zu of it", flag,
                     f.golden.count, count);
}

static bool check_pairs(struct error *err)
{
    return check_pins("--golden-sha256", &f.golden_sha256, &f.golden_bytes, &f.golden, err) &&
           check_pins("--control-golden-sha256", &f.control_sha256, &f.control_bytes,
                      &f.control_golden, err) &&
           once_for_each("--control-golden", f.control_golden.count, err) &&
           once_for_each("--prompt", f.prompt.count, err);
}

static bool is_official(void)
{
    return strcmp(f.mode, "official") == 0;
}

/* Locally, a reference tree with its calibration asks for pairs (benchd-cli.md section 2). */
static bool is_paired(void)
{
    return is_official() || (f.baseline_workspace != NULL && f.baseline_calibration != NULL);
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
    if (!check_resources(err) || !check_captures(err))
        return false;
    if (is_official())
        return check_pairs(err);
    if (strcmp(f.mode, "local-submit") == 0)
        o->mode = ITERATE_LOCAL_SUBMIT;
    else if (strcmp(f.mode, "local-iterate") != 0)
        return misuse(err, "--mode", f.mode, "a mode is local-iterate, local-submit or official");
    if (!check_ranked(err))
        return false;
    return is_paired() ? check_pairs(err) : check_pin(o, err) && check_single(err);
}

static const char *item(const struct option_list *list, size_t i)
{
    return i < list->count ? list->items[i] : NULL;
}

static bool find_goldens(struct official_golden *out, struct error *err)
{
    for (size_t i = 0; i < f.golden.count; i++) {
        struct official_golden *g = &out[i];
        *g = (struct official_golden){.path = f.golden.items[i],
                                      .pin_sha256 = item(&f.golden_sha256, i),
                                      .prompt = item(&f.prompt, i),
                                      .control_path = item(&f.control_golden, i),
                                      .control_pin_sha256 = item(&f.control_sha256, i)};
        if ((g->pin_sha256 != NULL &&
             !parse_bytes("--golden-bytes", f.golden_bytes.items[i], &g->pin_bytes, err)) ||
            (g->control_pin_sha256 != NULL &&
             !parse_bytes("--control-golden-bytes", f.control_bytes.items[i], &g->control_pin_bytes,
                          err)))
            return false;
    }
    return true;
}

static const char *score_path(enum iterate_mode mode)
{
    return f.score_path != NULL                              ? f.score_path
           : !is_official() && mode == ITERATE_LOCAL_ITERATE ? "score.local-iterate.json"
                                                             : "score.json";
}

static bool wants_cool_gate(enum iterate_mode mode)
{
    return f.cool_gate || (mode == ITERATE_LOCAL_SUBMIT && !f.no_cool_gate);
}

static int run_pairs(enum iterate_mode mode, struct error *err)
{
    struct arena a = {0};
    struct official_golden *goldens = arena_array(&a, f.golden.count + 1, sizeof *goldens);
    const struct official_options o = {.local = !is_official(),
                                       .mode = mode,
                                       .strict = f.strict,
                                       .cool_gate = wants_cool_gate(mode),
                                       .engine = f.engine,
                                       .weights = f.weights,
                                       .drafter = f.drafter,
                                       .contract = f.contract,
                                       .goldens = goldens,
                                       .golden_count = f.golden.count,
                                       .pool = f.pool,
                                       .draw_file = f.draw_file,
                                       .baseline_workspace = f.baseline_workspace,
                                       .baseline_calibration = f.baseline_calibration,
                                       .box = f.box,
                                       .score_path = score_path(mode),
                                       .resources =
                                           f.resources.count > 0 ? f.resources.items : NULL,
                                       .engine_trees = f.trees.count > 0 ? f.trees.items : NULL,
                                       .candidate_spec = f.candidate_spec,
                                       .mtp_depth = f.has_depth ? f.depth : 0,
                                       .stored_baseline_given = f.has_baseline_prefill,
                                       .no_sandbox = f.no_sandbox,
                                       .signing_key = f.signing_key,
                                       .log = f.log,
                                       .quiet = f.quiet};
    int status = EXIT_USAGE;
    if (find_goldens(goldens, err))
        status = (int)official_run(&o, err);
    arena_free(&a);
    return status == ITERATE_PASSED ? EXIT_OK : fail(err, status);
}

static int run_local(struct iterate_options *o, struct error *err)
{
    o->engine = f.engine;
    o->weights = f.weights;
    o->drafter = f.drafter;
    o->golden = f.golden.items[0];
    o->contract = f.contract;
    o->score_path = score_path(o->mode);
    o->strict = f.strict;
    o->resources = f.resources.count > 0 ? f.resources.items : NULL;
    o->no_sandbox = f.no_sandbox;
    o->engine_trees = f.trees.count > 0 ? f.trees.items : NULL;
    o->candidate_spec = f.candidate_spec;
    o->mtp_depth = f.has_depth ? f.depth : 0;
    o->stored_baseline_given = f.has_baseline_prefill;
    o->cool_gate = wants_cool_gate(o->mode);
    o->quiet = f.quiet;
    const enum iterate_exit result = iterate_run(o, err);
    return result == ITERATE_PASSED ? EXIT_OK : fail(err, (int)result);
}

int iterate_main(int argc, char **argv)
{
    struct error err = {0};
    struct iterate_options o = {0};
    switch (options_parse(&iterate_command, argc, argv, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&iterate_command, stdout);
        return EXIT_OK;
    case OPTIONS_ERROR:
        return usage_error(&err);
    case OPTIONS_OK:
        break;
    }
    if (!check_iterate_flags(&o, &err))
        return usage_error(&err);
    return is_paired() ? run_pairs(o.mode, &err) : run_local(&o, &err);
}

/* An alias: the same flags, and another mode for the one that nobody gave. */
int official_main(int argc, char **argv)
{
    f.mode = "official";
    return iterate_main(argc, argv);
}
