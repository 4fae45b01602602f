/* record-correctness-golden: makes a golden from prompt files and an engine. */
#include "base/child.h"
#include "base/error.h"
#include "base/options.h"
#include "base/standard.h"
#include "judge/record.h"
#include "judge/sandbox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130, PROMPTS_MAX = 64 };

static struct {
    const char *worker, *weights, *out, *track, *contract, *backend;
    const char *repository, *revision, *benchmark_prefill, *benchmark_decode, *screen_report;
    struct option_list prompts, names, anchors, free_runs, behaviors, resources, trees;
    int64_t steps, benchmark_steps, anchor_max_rank, free_run_steps, behavior_steps;
    double anchor_max_delta;
    bool benchmark, has_delta, has_rank, no_sandbox, quiet;
} f = {.backend = "live",
       .steps = 1024,
       .benchmark_steps = 128,
       .free_run_steps = 64,
       .behavior_steps = 16};

static const struct option_spec specs[] = {
    {"--worker-bin", OPTION_TEXT, false, "PATH", "The worker executable (not with --backend mock).",
     &f.worker, NULL, 0, 0},
    {"--weights", OPTION_TEXT, false, "DIR", "The weights folder (not with --backend mock).",
     &f.weights, NULL, 0, 0},
    {"--out", OPTION_TEXT, true, "FILE", "The golden to write.", &f.out, NULL, 0, 0},
    {"--contract", OPTION_TEXT, true, "FILE",
     "The track's contract: vocabulary, prompt length, model type, pinned model.", &f.contract,
     NULL, 0, 0},
    {"--track", OPTION_TEXT, false, "ID", "Must be the contract's track_id.", &f.track, NULL, 0, 0},
    {"--prompt-tokens", OPTION_LIST, true, "FILE",
     "Prompt of a base case: a JSON array, or ids between white space and commas; exactly as long "
     "as the track's prompts. Each has its --case-name.",
     &f.prompts, NULL, 0, 0},
    {"--case-name", OPTION_LIST, true, "NAME", "Name of that case.", &f.names, NULL, 0, 0},
    {"--steps", OPTION_INT, false, "N", "Expected tokens of each base case (default 1024).",
     &f.steps, NULL, 64, 1 << 20},
    {"--anchor", OPTION_LIST, false, "NAME=FILE",
     "Also an anchor: the token after this context (1 to 1024 ids).", &f.anchors, NULL, 0, 0},
    {"--anchor-max-rank", OPTION_INT, false, "N",
     "Anchors accept the expected token down to this rank.", &f.anchor_max_rank, &f.has_rank, 1, 8},
    {"--anchor-max-delta", OPTION_REAL, false, "F",
     "And within this distance from the top logit (with --anchor-max-rank).", &f.anchor_max_delta,
     &f.has_delta, 0, 0},
    {"--free-run", OPTION_LIST, false, "NAME=FILE",
     "Also a free run from this prompt (the track's length).", &f.free_runs, NULL, 0, 0},
    {"--free-run-steps", OPTION_INT, false, "N", "Tokens of each free run (default 64).",
     &f.free_run_steps, NULL, 1, 256},
    {"--behavior", OPTION_LIST, false, "NAME=FILE",
     "Also a behaviour case from this prompt (1 to 2048 ids): the engine's greedy answer is the "
     "accepted sequence.",
     &f.behaviors, NULL, 0, 0},
    {"--behavior-steps", OPTION_INT, false, "N", "Tokens of each answer (default 16).",
     &f.behavior_steps, NULL, 1, 64},
    {"--benchmark-free-run", OPTION_SWITCH, false, NULL,
     "Also the benchmark oracle, through the timed verbs (prefill, free_decode_*).", &f.benchmark,
     NULL, 0, 0},
    {"--benchmark-steps", OPTION_INT, false, "N", "Decode tokens of that oracle (default 128).",
     &f.benchmark_steps, NULL, 128, 1 << 20},
    {"--benchmark-prefill-prompt", OPTION_TEXT, false, "FILE",
     "Its prefill prompt (default: the first case's).", &f.benchmark_prefill, NULL, 0, 0},
    {"--benchmark-decode-prompt", OPTION_TEXT, false, "FILE",
     "Its decode seed (default: the first case's).", &f.benchmark_decode, NULL, 0, 0},
    {"--model-provenance-repo", OPTION_TEXT, false, "REPO",
     "Default: the contract's target.upstream_model_id.", &f.repository, NULL, 0, 0},
    {"--model-provenance-rev", OPTION_TEXT, false, "REV",
     "Default: the contract's target.upstream_revision.", &f.revision, NULL, 0, 0},
    {"--screen-report", OPTION_TEXT, false, "FILE",
     "Also write what the base cases' prompts came to under the pool screen.", &f.screen_report,
     NULL, 0, 0},
    {"--engine-resource", OPTION_LIST, false, "NAME=PATH",
     "Forwarded to the worker as --resource NAME=PATH.", &f.resources, NULL, 0, 0},
    {"--engine-tree", OPTION_LIST, false, "DIR",
     "A folder that the sandboxed engine may read: its libraries, kernels, modules.", &f.trees,
     NULL, 0, 0},
    {"--no-sandbox", OPTION_SWITCH, false, NULL,
     "Run the engine without the sandbox; the seal says so.", &f.no_sandbox, NULL, 0, 0},
    {"--backend", OPTION_TEXT, false, "KIND",
     "live (default), or mock: an arithmetic stand-in, for tests.", &f.backend, NULL, 0, 0},
    {"--quiet", OPTION_SWITCH, false, NULL, "No progress and no engine log.", &f.quiet, NULL, 0, 0},
};

static const struct command command = {
    .name = "record-correctness-golden",
    .summary = "Drives an engine greedily and teacher-forced and writes a golden.",
    .notes = "Each case gets its own cold engine. The document passes the golden loader before it "
             "is written; the same inputs give the same bytes.\n"
             "Exit codes: 0 written; 1 failed (nothing written); 2 usage; 130 interrupted.",
    .options = specs,
    .option_count = sizeof specs / sizeof *specs};

static char names[3][PROMPTS_MAX][256];

/* NAME=FILE; the name may hold anything but '='. */
static bool split(const struct option_list *list, const char *flag, char (*space)[256],
                  struct record_prompt *out, struct error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strchr(list->items[i], '=');
        if (equals == NULL || equals == list->items[i] || equals[1] == '\0' ||
            (size_t)(equals - list->items[i]) >= sizeof *space) {
            error_set(err, "USAGE", "NAME=FILE is wanted");
            return error_at(err, NULL, flag, list->items[i]);
        }
        memcpy(space[i], list->items[i], (size_t)(equals - list->items[i]));
        out[i] = (struct record_prompt){space[i], equals + 1};
    }
    return true;
}

static bool check(struct record_options *o, struct record_prompt (*prompts)[PROMPTS_MAX],
                  struct error *err)
{
    if (f.prompts.count != f.names.count)
        return error_set(err, "USAGE",
                         "each --prompt-tokens has its --case-name: %zu and %zu given",
                         f.prompts.count, f.names.count);
    if (strcmp(f.backend, "mock") == 0)
        o->mock = true;
    else if (strcmp(f.backend, "live") != 0)
        return error_set(err, "USAGE", "--backend is live or mock");
    if (!o->mock && (f.worker == NULL || f.weights == NULL))
        return error_set(err, "USAGE", "--worker-bin and --weights are required");
    if (f.has_delta && (!f.has_rank || f.anchor_max_delta < 0))
        return error_set(err, "USAGE",
                         "--anchor-max-delta is at least 0 and needs "
                         "--anchor-max-rank");
    for (size_t i = 0; i < f.prompts.count; i++)
        prompts[0][i] = (struct record_prompt){f.names.items[i], f.prompts.items[i]};
    return split(&f.anchors, "--anchor", names[0], prompts[1], err) &&
           split(&f.free_runs, "--free-run", names[1], prompts[2], err) &&
           split(&f.behaviors, "--behavior", names[2], prompts[3], err);
}

static int fail(const struct error *err, int status)
{
    char line[2048];
    fprintf(stderr, "%s: %s\n", command.name, error_line(err, line, sizeof line));
    if (status == EXIT_USAGE)
        fprintf(stderr, "try: %s --help\n", command.name);
    return status;
}

int main(int argc, char **argv)
{
    static struct record_prompt prompts[4][PROMPTS_MAX];
    struct record_options o = {0};
    struct error err = {0};
    if (argc > 1 && strcmp(argv[1], SANDBOX_EXEC) == 0)
        return sandbox_exec_main(argc - 2, argv + 2);
    standard_begin("record-correctness-golden");
    interrupt_install();
    switch (options_parse(&command, argc - 1, argv + 1, NULL, &err)) {
    case OPTIONS_HELP:
        options_help(&command, stdout);
        return standard_finish(&err) ? EXIT_OK : fail(&err, EXIT_FAILED);
    case OPTIONS_ERROR:
        return fail(&err, EXIT_USAGE);
    case OPTIONS_OK:
        break;
    }
    if (!check(&o, prompts, &err))
        return fail(&err, EXIT_USAGE);
    o.engine = f.worker;
    o.weights = f.weights;
    o.resources = f.resources.count > 0 ? f.resources.items : NULL;
    o.no_sandbox = f.no_sandbox;
    o.engine_trees = f.trees.count > 0 ? f.trees.items : NULL;
    o.contract = f.contract;
    o.track = f.track;
    o.out = f.out;
    o.cases = prompts[0];
    o.case_count = f.prompts.count;
    o.anchors = prompts[1];
    o.anchor_count = f.anchors.count;
    o.free_runs = prompts[2];
    o.free_run_count = f.free_runs.count;
    o.behaviors = prompts[3];
    o.behavior_count = f.behaviors.count;
    o.steps = f.steps;
    o.free_run_steps = f.free_run_steps;
    o.behavior_steps = f.behavior_steps;
    o.anchor_max_rank = f.has_rank ? f.anchor_max_rank : 0;
    o.has_anchor_max_delta = f.has_delta;
    o.anchor_max_delta = f.anchor_max_delta;
    o.benchmark = f.benchmark;
    o.benchmark_steps = f.benchmark_steps;
    o.benchmark_prefill = f.benchmark_prefill;
    o.benchmark_decode = f.benchmark_decode;
    o.provenance_repository = f.repository;
    o.provenance_revision = f.revision;
    o.screen_report = f.screen_report;
    o.quiet = f.quiet;
    if (record_golden(&o, &err))
        return EXIT_OK;
    return fail(&err, strcmp(err.name, "Interrupted") == 0 ? EXIT_INTERRUPTED
                      : strcmp(err.name, "USAGE") == 0     ? EXIT_USAGE
                                                           : EXIT_FAILED);
}
