/* The small tools of benchd: validate-golden, validate-weights, weights-digest, harness-hash. */
#include "judge/tools.h"
#include "judge/weights_format.h"

#include "base/arena.h"
#include "base/file.h"
#include "base/number.h"
#include "base/options.h"
#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/golden.h"
#include "judge/refusals.h"
#include "judge/run.h"
#include "judge/tools_common.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static bool is_io(const struct error *err)
{
    return strcmp(err->name, "IO") == 0 || strcmp(err->name, "NOT-A-REGULAR-FILE") == 0;
}

static void reject(const char *path, const char *class, const struct error *err)
{
    char line[2200];
    fprintf(stderr, "REJECT ");
    tool_put_line(stderr, path);
    fprintf(stderr, " (%s): ", class);
    tool_put_line(stderr, error_line(err, line, sizeof line));
    fputc('\n', stderr);
}

/* The contract of the track that flag and environment ask for. */
static bool open_contract(const char *path, const char *track, struct contract **out,
                          struct error *err)
{
    const char *environment = NULL;
    if (!contract_track_from_environment(&environment, err))
        return false;
    if (!contract_load(path, environment, out, err))
        return false;
    if (track && strcmp(track, (*out)->track_id) != 0) {
        error_set(err, "TRACK-ID-MISMATCH", "--track names another track than the contract, %s",
                  (*out)->track_id);
        return error_at(err, path, "--track", track);
    }
    return contract_require_window(*out, err) && contract_require_model(*out, err);
}

static int judge_golden(const char *path, const struct golden_rules *rules)
{
    struct golden *g = NULL;
    struct error err = {0};
    if (golden_load(path, rules, &g, &err)) {
        fprintf(stderr, "ACCEPT ");
        tool_put_line(stderr, path);
        fprintf(stderr, " (sha256=%s, cases=%zu, gate_cases=%zu)\n", g->sha256, g->case_count,
                golden_gate_case_count(g) - g->case_count);
        golden_free(g);
        return TOOL_OK;
    }
    if (is_io(&err)) {
        tool_complain("validate-golden", &err);
        return TOOL_IO;
    }
    reject(path, strcmp(err.name, "GOLDEN-PIN-MISMATCH") == 0 ? "integrity pin" : "schema", &err);
    return TOOL_REJECTED;
}

int tool_validate_golden(int argc, char **argv)
{
    static const char tool[] = "validate-golden";
    const char *golden = NULL, *track = NULL, *sha256 = NULL, *contract = NULL;
    int64_t bytes = 0;
    bool gates_only = false, has_sha256 = false, has_bytes = false;
    const struct option_spec options[] = {
        {"--golden", OPTION_TEXT, true, "FILE", "The golden to check.", &golden, NULL, 0, 0},
        {"--contract", OPTION_TEXT, true, "FILE",
         "The track's contract: vocabulary, seed length, steps, model type.", &contract, NULL, 0,
         0},
        {"--track", OPTION_TEXT, false, "ID", "The contract's track id must be this one.", &track,
         NULL, 0, 0},
        {"--golden-sha256", OPTION_TEXT, false, "HEX",
         "Integrity pin: the SHA-256 of the file. Needs --golden-bytes.", &sha256, &has_sha256, 0,
         0},
        {"--golden-bytes", OPTION_INT, false, "N",
         "Integrity pin: the length of the file. Needs --golden-sha256.", &bytes, &has_bytes, 1,
         INT64_MAX},
        {"--gates-only", OPTION_SWITCH, false, NULL, "Do not ask for the benchmark oracle.",
         &gates_only, NULL, 0, 0},
    };
    const struct command command = {
        "benchd validate-golden",
        "Checks a golden as a ranked run would.",
        "Prints ACCEPT or REJECT with the reason on stderr.\n"
        "Exit: 0 accepted, 1 rejected, 2 usage or unusable contract, 3 the golden cannot be read.\n"
        "Environment: MLXFAST_TRACK_ID (or MLXFAST_QWEN_MTP_TRACK_ID), when set, must be the "
        "contract's track.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct error err = {0};
    if (has_sha256 != has_bytes) {
        error_set(&err, "USAGE", "--golden-sha256 and --golden-bytes are given together");
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    struct contract *c = NULL;
    if (!open_contract(contract, track, &c, &err)) {
        tool_complain(tool, &err);
        contract_free(c);
        return TOOL_USAGE;
    }
    struct golden_rules rules = run_correctness_rules(c);
    rules.require_benchmark = !gates_only;
    rules.pin_sha256 = sha256;
    rules.pin_bytes = (uint64_t)bytes;
    code = judge_golden(golden, &rules);
    contract_free(c);
    return code;
}

/* 25 GiB, unless MLXFAST_MAX_WEIGHTS_BYTES says otherwise. */
static bool weights_limit(uint64_t *limit, struct error *err)
{
    static const char name[] = "MLXFAST_MAX_WEIGHTS_BYTES";
    const char *text = getenv(name);
    *limit = 26843545600u;
    if (!text || !*text)
        return true;
    if (strcmp(text, "none") == 0 || strcmp(text, "unlimited") == 0) {
        *limit = UINT64_MAX;
        return true;
    }
    if (!number_uint64(text, UINT64_MAX, limit)) {
        error_set(err, "USAGE", "%s must be a number of bytes, 0, none or unlimited", name);
        return error_at(err, NULL, name, text);
    }
    if (*limit == 0)
        *limit = UINT64_MAX;
    return true;
}

static bool weights_refuse(struct error *err, const char *name, const char *path, const char *what)
{
    error_set(err, name, "%s", what);
    return error_at(err, path, NULL, NULL);
}

struct weights_seen {
    struct arena arena;
    char **names;
    size_t count;
    uint64_t bytes;
};

/* "link/" and "link/." are the folder behind the link to lstat; what was given is the link. */
static const char *without_slashes(struct arena *a, const char *path)
{
    size_t length = strlen(path);
    while (length > 1 &&
           (path[length - 1] == '/' || (path[length - 1] == '.' && path[length - 2] == '/')))
        length--;
    return arena_strndup(a, path, length);
}

/* A real folder of regular files with the two that every checkpoint has, within the limit. */
static bool check_weights(const char *folder, uint64_t limit, struct weights_seen *seen,
                          struct error *err)
{
    static const char *const needed[] = {"config.json", "model.safetensors.index.json"};
    struct stat s;
    if (lstat(without_slashes(&seen->arena, folder), &s) != 0)
        return error_errno(err, folder, "stat");
    if (!S_ISDIR(s.st_mode))
        return weights_refuse(err, "WEIGHTS-INVALID", folder,
                              "the weights must be a real folder, not a link or a file");
    if (!file_list_recursive(&seen->arena, folder, &seen->names, &seen->count, err))
        return false;
    for (size_t i = 0; i < COUNT_OF(needed); i++) {
        size_t at = 0;
        while (at < seen->count && strcmp(seen->names[at], needed[i]) != 0)
            at++;
        if (at == seen->count)
            return weights_refuse(err, "WEIGHTS-INVALID",
                                  path_join(&seen->arena, folder, needed[i]), "the file is absent");
    }
    for (size_t i = 0; i < seen->count; i++) {
        const char *path = path_join(&seen->arena, folder, seen->names[i]);
        if (lstat(path, &s) != 0)
            return error_errno(err, path, "stat");
        if (access(path, R_OK) != 0)
            return error_errno(err, path, "cannot read");
        const uint64_t room = limit - seen->bytes;
        seen->bytes += (uint64_t)s.st_size; /* a sum that wraps is over the limit all the same */
        if ((uint64_t)s.st_size > room) {
            error_set(err, "WEIGHTS-TOO-LARGE",
                      "the weights hold more than the %llu bytes allowed "
                      "(MLXFAST_MAX_WEIGHTS_BYTES)",
                      (unsigned long long)limit);
            return error_at(err, path, NULL, NULL);
        }
    }
    return true;
}

int tool_validate_weights(int argc, char **argv)
{
    static const char tool[] = "validate-weights";
    const char *weights = NULL, *golden = NULL, *contract = NULL;
    const struct option_spec options[] = {
        {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &weights, NULL, 0, 0},
        {"--golden", OPTION_TEXT, false, "FILE",
         "A golden: no file of the folder may be a copy of it.", &golden, NULL, 0, 0},
        {"--contract", OPTION_TEXT, false, "FILE",
         "The track's contract: its quantization_envelope says what format the weights may have.",
         &contract, NULL, 0, 0},
    };
    const struct command command = {
        "benchd validate-weights",
        "Checks the shape of a weights folder: regular files only, needed files, total size.",
        "Prints ACCEPT or REJECT with the reason on stderr.\n"
        "Exit: 0 accepted, 1 rejected, 2 usage, 3 something cannot be read.\n"
        "Environment: MLXFAST_MAX_WEIGHTS_BYTES is the size limit; unset or empty: 26843545600; "
        "0, none or unlimited: no limit.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    uint64_t limit;
    struct error err = {0};
    struct weights_seen seen = {0};
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    struct contract *c = NULL;
    const char *track = NULL;
    if (!weights_limit(&limit, &err) ||
        (contract && (!contract_track_from_environment(&track, &err) ||
                      !contract_load(contract, track, &c, &err)))) {
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    if (check_weights(weights, limit, &seen, &err) &&
        (!golden || weights_check_golden(weights, golden, &err)) &&
        (!c || weights_check_format(weights, c, &err))) {
        fprintf(stderr, "ACCEPT ");
        tool_put_line(stderr, weights);
        fprintf(stderr, " (bytes=%llu, files=%zu)\n", (unsigned long long)seen.bytes, seen.count);
        code = TOOL_OK;
    } else if (strcmp(err.name, "IO") == 0) {
        tool_complain(tool, &err);
        code = TOOL_IO;
    } else {
        reject(weights, "weights", &err);
        code = TOOL_REJECTED;
    }
    contract_free(c);
    arena_free(&seen.arena);
    return code;
}

int tool_weights_digest(int argc, char **argv)
{
    static const char tool[] = "weights-digest";
    const char *weights = NULL;
    const struct option_spec options[] = {
        {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &weights, NULL, 0, 0},
    };
    const struct command command = {
        "benchd weights-digest",
        "Prints <sha256>:<bytes>:<files> of a weights folder.",
        "Symbolic links are refused. The two root files .benchmark-source.sha256 and .gitkeep are "
        "left out.\nExit: 0, 2 usage, 3 something cannot be read.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct tree_digest digest;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    if (!weights_digest(weights, &digest, &err)) {
        tool_complain(tool, &err);
        return TOOL_IO;
    }
    printf("%s:%llu:%llu\n", digest.sha256, (unsigned long long)digest.bytes,
           (unsigned long long)digest.files);
    return TOOL_OK;
}

static void say_missing(const char *name)
{
    fprintf(stderr, "harnessHash root absent, skipped: %s\n", name);
}

int tool_harness_hash(int argc, char **argv)
{
    static const char tool[] = "harness-hash";
    bool legacy = false;
    const struct option_spec options[] = {
        {"--legacy-absolute-paths", OPTION_SWITCH, false, NULL,
         "The original's form: its roots, absolute paths, no separators. Depends on where the tree "
         "lies; for comparing with published scores.",
         &legacy, NULL, 0, 0},
    };
    const struct command command = {"benchd harness-hash",
                                    "Prints the SHA-256 of the harness in the working directory.",
                                    "Roots that are not there are named on stderr and skipped.\n"
                                    "Exit: 0, 1 a file cannot be read or there is no harness here, "
                                    "2 usage. The original's form "
                                    "passes over what it cannot read.",
                                    NULL,
                                    options,
                                    COUNT_OF(options)};
    int code;
    struct error err = {0};
    struct tree_digest digest;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    if (legacy ? !harness_hash_legacy(say_missing, digest.sha256, &err)
               : !harness_hash(".", say_missing, &digest, &err)) {
        tool_complain(tool, &err);
        return TOOL_REJECTED;
    }
    printf("%s\n", digest.sha256);
    return TOOL_OK;
}

int tool_refusals(int argc, char **argv)
{
    bool as_json = false;
    const struct option_spec options[] = {
        {"--json", OPTION_SWITCH, false, NULL, "A JSON array of {group, name, meaning} instead.",
         &as_json, NULL, 0, 0},
    };
    const struct command command = {"benchd refusals",
                                    "Prints the table of refusal names as Markdown.",
                                    "docs/refusals.md is this output.\nExit: 0, 2 usage.",
                                    NULL,
                                    options,
                                    COUNT_OF(options)};
    int code;
    if (!tool_parse(&command, "refusals", argc, argv, NULL, &code))
        return code;
    struct buffer page = {0};
    if (as_json)
        refusals_write_json(&page);
    else
        refusals_write_markdown(&page);
    fwrite(page.data, 1, page.length, stdout);
    buffer_free(&page);
    return TOOL_OK;
}

static const struct tool tools[] = {
    {"validate-golden", "checks a golden as a ranked run would", false, tool_validate_golden},
    {"validate-weights", "checks the shape of a weights folder", false, tool_validate_weights},
    {"weights-digest", "prints the digest of a weights folder", false, tool_weights_digest},
    {"harness-hash", "prints the digest of the harness", false, tool_harness_hash},
    {"parity-diff", "compares two score files field by field", false, tool_parity_diff},
    {"prefill-decompose", "splits the time of a prefill", false, tool_prefill_decompose},
    {"explain-contract", "says what a run under a contract does", false, tool_explain_contract},
    {"calibrate-fidelity", "measures what a tolerance must let pass and what it must not", false,
     tool_calibrate_fidelity},
    {"dflash-reference", "makes a golden of block decoding", false, tool_dflash_reference},
    {"dflash-probe", "times the serial control of block decoding", false, tool_dflash_probe},
    {"dflash-benchmark", "times block decoding and checks it", false, tool_dflash_benchmark},
    {"dflash-score", "makes the score of local block decoding", false, tool_dflash_score},
    {"draw-prompt", "draws a hidden prompt from a checked pool", false, tool_draw_prompt},
    {"analyze-ngram-similarity", "how often a text repeats itself", false, tool_ngram_similarity},
    {"report", "shows a score: a page and tables", false, tool_report},
    {"keygen", "makes a key pair that scores are signed with", false, tool_keygen},
    {"sign", "signs for a sealed score", false, tool_sign},
    {"log", "appends to, checks and mends the log of signed scores", false, tool_log},
    {"bundle", "packs what a third party needs to check a score", false, tool_bundle},
    {"verify", "checks such a bundle, offline", false, tool_verify},
    {"calibrate-baseline", "measures what the organiser's serial tree takes on this machine", false,
     tool_calibrate_baseline},
    {"measure-noop", "measures the organiser's tree against itself", false, tool_measure_noop},
    {"quiet", "says whether this machine is quiet enough", false, tool_quiet},
    {"noise", "measures a machine's noise floor", false, tool_noise},
    {"compare", "compares engines or settings in turns", false, tool_compare},
    {"measure-job", "times pairs of two trees (the older flow)", false, tool_measure_job},
    {"overlay-timing", "joins gates and timing into a score (the older flow)", false,
     tool_overlay_timing},
    {"refusals", "prints the table of refusal names", true, tool_refusals},
    {"--local-cool-gate-only", "runs the cool gate alone", true, tool_cool_gate_only},
};

const struct tool *tools_all(size_t *count)
{
    *count = COUNT_OF(tools);
    return tools;
}

const struct tool *tools_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(tools); i++)
        if (strcmp(tools[i].name, name) == 0)
            return &tools[i];
    return NULL;
}
