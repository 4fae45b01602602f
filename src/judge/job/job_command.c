/* `benchd measure-job`: its command line. */
#include "judge/job/job.h"
#include "judge/job/timing.h"
#include "judge/launch.h"
#include "judge/tools.h"
#include "judge/tools_common.h"

#include "base/buffer.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

enum { PAIRS_MOST = 10000, TOKENS_MOST = 1 << 20, DEPTH_CAP = 32, DEPTH_MOST = 1 << 16 };

/* What options_parse fills. */
struct flags {
    struct option_list goldens, resources;
    int64_t min_pairs, min_again, target_pairs, target_again;
    bool has_min, has_min_again, has_target, has_target_again, has_depth, has_tokens;
    const char *probe;
};

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

/* One number under two names. */
static bool take_pairs(const char *flag, bool has, int64_t value, bool has_again, int64_t again,
                       int64_t *out, struct error *err)
{
    if (has == has_again)
        return misuse(err, flag, NULL, has ? "it is given twice" : "it is required");
    *out = has ? value : again;
    return true;
}

static bool take_probe(const char *text, enum job_probe *out, struct error *err)
{
    static const char *const names[] = {"none", "once", "per-prompt", "per-pair"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum job_probe)i;
            return true;
        }
    return misuse(err, "--exactness-probe", text, "a probe is none, once, per-prompt or per-pair");
}

static bool is_target_id(const char *text)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    return *text != '\0' && text[strspn(text, letters)] == '\0';
}

static bool check_prompt(const struct job_options *o, struct error *err)
{
    const int given = (o->prompt != NULL) + (o->prompt_sha256 != NULL) + (o->target_id != NULL);
    if (given == 0)
        return true;
    if (given < 3)
        return misuse(err, "--prompt", NULL,
                      "--prompt, --prompt-sha256 and --target-id are given together or not at all");
    if (!text_is_lower_hex(o->prompt_sha256, 64))
        return misuse(err, "--prompt-sha256", o->prompt_sha256,
                      "a SHA-256 is 64 lower-case hex digits");
    return is_target_id(o->target_id) ||
           misuse(err, "--target-id", o->target_id, "an id is of letters, digits, '.', '_', '-'");
}

/* The cap protects from a slip; a developer may raise it. */
static bool check_depth(const struct job_options *o, bool given, struct error *err)
{
    static const char name[] = "MLXFAST_MAX_DRAFT_DEPTH";
    const char *text = getenv(name);
    int64_t cap = DEPTH_CAP;
    if (given && o->candidate_spec != NULL)
        return misuse(err, "--mtp-depth", NULL, "--mtp-depth excludes --candidate-spec");
    if (o->local_dev && text != NULL && *text != '\0' && !number_int64(text, 1, DEPTH_MOST, &cap))
        return misuse(err, name, text, "a depth is an integer from 1 to 65536");
    if (!given || o->mtp_depth <= cap)
        return true;
    char value[32];
    number_format_double((double)o->mtp_depth, value, sizeof value);
    return misuse(err, "--mtp-depth", value, "the depth is above its cap");
}

static bool check_resources(const struct option_list *list, struct error *err)
{
    for (size_t i = 0; i < list->count; i++) {
        size_t length, other;
        if (!launch_resource_valid(list->items[i], &length))
            return misuse(err, "--engine-resource", list->items[i],
                          "NAME=PATH, the name of letters, digits, '.', '_' and '-'");
        for (size_t k = 0; k < i; k++)
            if (launch_resource_valid(list->items[k], &other) && other == length &&
                memcmp(list->items[i], list->items[k], length) == 0)
                return misuse(err, "--engine-resource", list->items[i], "a resource is named once");
    }
    return true;
}

static bool check_flags(struct job_options *o, const struct flags *f, struct error *err)
{
    if (!take_pairs("--min-pairs", f->has_min, f->min_pairs, f->has_min_again, f->min_again,
                    &o->min_pairs, err) ||
        !take_pairs("--target-pairs", f->has_target, f->target_pairs, f->has_target_again,
                    f->target_again, &o->target_pairs, err))
        return false;
    if (o->target_pairs < o->min_pairs)
        return misuse(err, "--target-pairs", NULL, "--target-pairs is below --min-pairs");
    if (o->write_gate_base != NULL && !text_is_lower_hex(o->write_gate_base, 40))
        return misuse(err, "--write-gate-base", o->write_gate_base,
                      "a commit is 40 lower-case hex digits");
    if (*o->gates_producer == '\0' || strpbrk(o->gates_producer, " \t\r\n\v\f") != NULL)
        return misuse(err, "--gates-producer", o->gates_producer,
                      "a producer's name is not empty and has no white space");
    if (*o->tag == '\0')
        return misuse(err, "--tag", o->tag, "a tag is not empty");
    if (o->no_sandbox && !o->local_dev)
        return misuse(err, "--no-sandbox", NULL, "only a --local-dev run may go without");
    return take_probe(f->probe, &o->probe, err) && check_prompt(o, err) &&
           check_depth(o, f->has_depth, err) && check_resources(&f->resources, err);
}

/* The flag's older name. */
static bool has_old_depth(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--depth") == 0 || text_starts(argv[i], "--depth="))
            return true;
    return false;
}

int tool_measure_job(int argc, char **argv)
{
    static const char tool[] = "measure-job";
    struct flags f = {.probe = "once"};
    struct job_options o = {.gates_producer = "undeclared", .tokens = JOB_TEACHER_FORCED_TOKENS};
    const struct option_spec options[] = {
        {"--candidate", OPTION_TEXT, true, "DIR", "The submission's built tree.", &o.candidate,
         NULL, 0, 0},
        {"--baseline", OPTION_TEXT, true, "DIR", "The organiser's built tree.", &o.baseline, NULL,
         0, 0},
        {"--golden", OPTION_LIST, true, "FILE", "A timed prompt, a tape or a golden; repeatable.",
         &f.goldens, NULL, 0, 0},
        {"--contract", OPTION_TEXT, true, "FILE", "The track's contract.", &o.contract, NULL, 0, 0},
        {"--min-pairs", OPTION_INT, false, "N",
         "Accepted pairs that each prompt needs. Required, under this name or the next.",
         &f.min_pairs, &f.has_min, 1, PAIRS_MOST},
        {"--min-pairs-per-prompt", OPTION_INT, false, "N", "The same as --min-pairs.", &f.min_again,
         &f.has_min_again, 1, PAIRS_MOST},
        {"--target-pairs", OPTION_INT, false, "N",
         "Pairs that each prompt is to have, at least --min-pairs. Required, under this name or "
         "the next.",
         &f.target_pairs, &f.has_target, 1, PAIRS_MOST},
        {"--pairs-per-prompt", OPTION_INT, false, "N", "The same as --target-pairs.",
         &f.target_again, &f.has_target_again, 1, PAIRS_MOST},
        {"--tag", OPTION_TEXT, true, "TEXT", "A name for the run; sealed.", &o.tag, NULL, 0, 0},
        {"--out", OPTION_TEXT, true, "DIR", "Where results.json and its companions go.", &o.out,
         NULL, 0, 0},
        {"--correctness-golden", OPTION_TEXT, false, "FILE",
         "The golden that the contract's hidden_correctness_golden pins; it is attested, not run.",
         &o.correctness_golden, NULL, 0, 0},
        {"--tokens", OPTION_INT, false, "N",
         "Steps of a teacher-forced window (default 512). A free run's has 128.", &o.tokens,
         &f.has_tokens, 1, TOKENS_MOST},
        {"--mtp-depth", OPTION_INT, false, "N",
         "The same as --candidate-spec {\"mode\":\"mtp\",\"mtp\":{\"depth\":N}}; 32 at most.",
         &o.mtp_depth, &f.has_depth, 1, DEPTH_MOST},
        {"--candidate-spec", OPTION_TEXT, false, "JSON",
         "A SpecConfig object for the candidate's timed windows.", &o.candidate_spec, NULL, 0, 0},
        {"--baseline-spec", OPTION_TEXT, false, "JSON",
         "A SpecConfig object for the baseline's; it must be serial.", &o.baseline_spec, NULL, 0,
         0},
        {"--weights", OPTION_TEXT, false, "DIR", "The weights folder; else QMTP_TARGET_DIR.",
         &o.weights, NULL, 0, 0},
        {"--exactness-probe", OPTION_TEXT, false, "WHEN",
         "Serial decoding of the candidate against the golden, untimed: none, once (default), "
         "per-prompt or per-pair.",
         &f.probe, NULL, 0, 0},
        {"--prompt", OPTION_TEXT, false, "FILE",
         "A captured request's token ids: the seed of exactly one golden. Needs the next two.",
         &o.prompt, NULL, 0, 0},
        {"--prompt-sha256", OPTION_TEXT, false, "HEX", "The SHA-256 of that file.",
         &o.prompt_sha256, NULL, 0, 0},
        {"--target-id", OPTION_TEXT, false, "ID", "The name of the target it was captured from.",
         &o.target_id, NULL, 0, 0},
        {"--write-gate-base", OPTION_TEXT, false, "SHA",
         "Compare HEAD of the candidate's tree with this commit of its own, not with the "
         "baseline's tree.",
         &o.write_gate_base, NULL, 0, 0},
        {"--preflight-only", OPTION_SWITCH, false, NULL,
         "Make every check that needs no engine, then end.", &o.preflight_only, NULL, 0, 0},
        {"--calibration-bootstrap", OPTION_SWITCH, false, NULL,
         "A run that a calibration is to be made of: none is asked for, nor no-op speedups. Its "
         "results are not scored.",
         &o.bootstrap, NULL, 0, 0},
        {"--local-dev", OPTION_SWITCH, false, NULL,
         "A developer's run: failed pairs are tried again, up to four times the target; no pool, "
         "commit, calibration or quiet machine is asked for. Its results are not scored.",
         &o.local_dev, NULL, 0, 0},
        {"--gates-producer", OPTION_TEXT, false, "NAME",
         "Who ran the gates: benchmark-sh, facade, direct-swift; default undeclared.",
         &o.gates_producer, NULL, 0, 0},
        {"--engine-resource", OPTION_LIST, false, "NAME=PATH",
         "Forwarded to both workers as --resource NAME=PATH.", &f.resources, NULL, 0, 0},
        {"--no-sandbox", OPTION_SWITCH, false, NULL,
         "Run the engines without the sandbox; with --local-dev only.", &o.no_sandbox, NULL, 0, 0},
        {"--quiet", OPTION_SWITCH, false, NULL, "Errors only.", &o.quiet, NULL, 0, 0},
    };
    const struct command command = {
        "benchd measure-job",
        "Times pairs of two built trees (the older paired flow).",
        "Exit: 0 accepted or preflight clean, 1 a file or the machine failed, 2 usage, 5 the "
        "candidate is rejected, 6 the calibration or the baseline's leg failed, 8 refused before "
        "the engines start, 130 interrupted.\n"
        "Files in --out: results.json, results.json.sha256, benchmark-integrity.results.json; "
        "also for a rejected candidate.\n"
        "Environment: MLXFAST_MEASURE_WORKER_BIN (mlxfast-runtime-worker) is the worker's name in "
        ".build/release of both trees, and MLXFAST_RUNTIME_WORKER_EXECUTABLE must agree; "
        "QMTP_TARGET_DIR, QMTP_HEAD_DIR, QMTP_CANDIDATE_HEAD_DIR, QMTP_DFLASH_HEAD_DIR and "
        "QMTP_CANDIDATE_DFLASH_HEAD_DIR are folders of weights; BASELINE_CALIBRATION is the "
        "calibration file and BASELINE_BAND_ENFORCE=0 leaves its band alone; RUNNER_NAME names "
        "the box; GPU_LOADED_UTIL (0.70) is the use from which a sample counts as loaded; "
        "MLXFAST_CANDIDATE_SHA_FILE is the dispatch record with the commit, and "
        "MLXFAST_COMMIT_SHA must agree; MLXFAST_MAX_DRAFT_DEPTH raises the cap of --mtp-depth "
        "with --local-dev. Deadlines and sandbox as in iterate.",
        NULL,
        options,
        sizeof options / sizeof *options};
    struct error err = {0};
    int code;
    if (has_old_depth(argc, argv)) {
        misuse(&err, "--depth", NULL, "--depth has become --mtp-depth");
        tool_complain(tool, &err);
        return JOB_USAGE;
    }
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    o.goldens = f.goldens.items;
    o.golden_count = f.goldens.count;
    o.resources = f.resources.count > 0 ? f.resources.items : NULL;
    code = check_flags(&o, &f, &err) ? (int)job_run(&o, &err) : JOB_USAGE;
    if (code != JOB_ACCEPTED)
        tool_complain(tool, &err);
    return code;
}
