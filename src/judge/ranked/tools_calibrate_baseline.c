/* benchd calibrate-baseline (benchd-cli.md section 6; docs/baseline-calibration.md). */
#include "judge/tools.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "judge/commit.h"
#include "judge/ranked/calibration.h"
#include "judge/ranked/machine.h"
#include "judge/ranked/reference_flags.h"
#include "judge/run.h"
#include "judge/tools_common.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { TOOL_INTERRUPTED = 130, PASSES_MOST = 1000 };
static const char tool[] = "calibrate-baseline";

struct flags {
    struct reference_flags common;
    const char *box, *reference_commit, *source_commit;
    int64_t passes;
};

struct calibrating {
    const struct flags *f;
    struct reference_options options;
    struct reference reference;
    struct calibration file; /* its texts are borrowed */
    double cv_max;
    double *prefill, *decode; /* [golden][pass] */
    const char *conditions;   /* the file beside --out */
    char reference_commit[COMMIT_HEX], source_commit[COMMIT_HEX];
};

static bool check_commit(const char *flag, const char *value, struct error *err)
{
    if (value != NULL && text_is_lower_hex(value, 40))
        return true;
    error_set(err, "USAGE", "a commit id is 40 lower-case hex digits");
    return error_at(err, NULL, flag, value != NULL ? value : "none");
}

/* --reference-commit, or the HEAD of the workspace; --benchd-source-commit, or the environment's,
 * or the HEAD of the work tree around this program. */
static bool find_commits(struct calibrating *c, struct error *err)
{
    const struct flags *f = c->f;
    const char *workspace = roots_workspace(f->common.workspace);
    const char *source = f->source_commit;
    if (source == NULL)
        source = getenv("MLXFAST_BENCHD_SOURCE_COMMIT");
    if ((source == NULL || *source == '\0') && commit_find_own(c->source_commit))
        source = c->source_commit;
    if (f->reference_commit != NULL)
        text_copy(c->reference_commit, sizeof c->reference_commit, f->reference_commit);
    else if (workspace != NULL && !commit_find_of(workspace, c->reference_commit)) {
        error_set(err, "USAGE",
                  "the workspace is no git work tree with a commit: --reference-commit is needed");
        return error_at(err, workspace, "--reference-commit", "none");
    }
    c->file.reference_commit = c->reference_commit;
    c->file.benchd_source_commit = source;
    return (workspace == NULL || /* refused by its own name, later */
            check_commit("--reference-commit",
                         f->reference_commit != NULL ? f->reference_commit : c->reference_commit,
                         err)) &&
           check_commit("--benchd-source-commit", source, err);
}

static bool check_outputs(struct calibrating *c, struct error *err)
{
    const struct reference_flags *f = &c->f->common;
    c->conditions = arena_printf(&c->reference.arena, "%s.conditions.json", f->out);
    const char *const outputs[] = {f->out, c->conditions};
    for (size_t i = 0; i < COUNT_OF(outputs); i++)
        if (!tool_check_output("--out", outputs[i], f->goldens.items, f->goldens.count, err) ||
            !tool_check_output("--out", outputs[i], &f->contract, 1, err) ||
            !file_check_target(outputs[i], err))
            return false;
    return true;
}

/* Asked before hours of legs: the file's low ends are above 0. */
static bool check_bands(const struct calibrating *c, struct error *err)
{
    const struct contract *contract = c->reference.contract;
    const struct calibration_bands b = calibration_bands(contract);
    if (b.prefill_low > 0 && b.decode_low > 0)
        return true;
    error_set(err, "CONTRACT-INVALID", "a calibration's band needs a low end above 0");
    return error_at(
        err, contract->path,
        b.prefill_low > 0 ? "decode_band_down_tolerance" : "prefill_band_down_tolerance", NULL);
}

/* What is misuse: exit 2, nothing is measured. */
static bool open_it(struct calibrating *c, struct error *err)
{
    if (!reference_flags_read(&c->f->common, &c->options, err) ||
        !reference_open(&c->reference, &c->options, err))
        return false;
    c->cv_max = calibration_cv_limit(c->reference.contract);
    return check_bands(c, err) && check_outputs(c, err) && find_commits(c, err);
}

static bool measure(struct calibrating *c, struct error *err)
{
    struct reference *r = &c->reference;
    const size_t goldens = c->options.golden_count, passes = (size_t)c->f->passes;
    c->prefill = arena_array(&r->arena, goldens * passes, sizeof *c->prefill);
    c->decode = arena_array(&r->arena, goldens * passes, sizeof *c->decode);
    /* The prompts take turns, so that a noisy minute does not fall on one of them alone. */
    for (size_t pass = 0; pass < passes; pass++)
        for (size_t g = 0; g < goldens; g++) {
            const struct quiet_point at = {.pair = (int)pass + 1, .leg = "calibration"};
            struct reference_times t;
            if (!c->f->common.quiet)
                fprintf(stderr, "pass %zu of %zu: %s\n", pass + 1, passes, r->goldens[g].prompt);
            if (!reference_leg(r, g, &at, &t, err))
                return false;
            c->prefill[g * passes + pass] = t.prefill_seconds_per_token;
            c->decode[g * passes + pass] = t.decode_seconds_per_token;
        }
    return reference_check_unchanged(r, err);
}

/* The records are the gates' own, but for whose they are. */
static json_t *gates_of_passes(const struct quiet *q)
{
    json_t *records = quiet_records(q);
    size_t i;
    json_t *record;
    json_array_foreach(records, i, record)
    {
        json_object_set(record, "pass", json_object_get(record, "pair"));
        json_object_del(record, "pair");
        json_object_del(record, "leg");
    }
    return records;
}

static void fill_file(struct calibrating *c, char *when, size_t size)
{
    struct reference *r = &c->reference;
    const size_t passes = (size_t)c->f->passes;
    const struct calibration_bands b = calibration_bands(r->contract);
    struct calibration *file = &c->file;
    file->track_id = r->contract->track_id;
    file->captured_at = clock_utc_text(when, size);
    file->prompt_count = c->options.golden_count;
    file->prompts = arena_array(&r->arena, file->prompt_count, sizeof *file->prompts);
    for (size_t g = 0; g < file->prompt_count; g++)
        file->prompts[g] = (struct calibration_prompt){
            .prompt = r->goldens[g].prompt,
            .passes = c->f->passes,
            .prefill =
                calibration_axis_of(c->prefill + g * passes, passes, b.prefill_low, b.prefill_high),
            .decode =
                calibration_axis_of(c->decode + g * passes, passes, b.decode_low, b.decode_high)};
    file->gates = gates_of_passes(r->quiet);
}

static void print_table(const struct calibrating *c)
{
    printf("%-24s %14s %7s %14s %7s\n", "prompt", "prefill us/tok", "cv", "decode us/tok", "cv");
    for (size_t g = 0; g < c->file.prompt_count; g++) {
        const struct calibration_prompt *p = &c->file.prompts[g];
        printf("%-24s %14.3f %6.2f%% %14.3f %6.2f%%\n", p->prompt,
               1e6 * p->prefill.seconds_per_token_mean, 100 * p->prefill.cv,
               1e6 * p->decode.seconds_per_token_mean, 100 * p->decode.cv);
    }
}

static json_t *passes_of(const struct calibrating *c, size_t g)
{
    const size_t passes = (size_t)c->f->passes;
    json_t *list = json_array();
    for (size_t pass = 0; pass < passes; pass++) {
        json_t *o = json_object();
        json_object_set_new(o, "pass", json_integer((json_int_t)pass + 1));
        json_object_set_new(o, "prefill_seconds_per_token",
                            json_real(c->prefill[g * passes + pass]));
        json_object_set_new(o, "decode_seconds_per_token", json_real(c->decode[g * passes + pass]));
        json_array_append_new(list, o);
    }
    return list;
}

/* What a closed file of version 3 has no place for: on what machine, of what bytes, pass by pass.
 */
static bool write_conditions(struct calibrating *c, const char *file_sha256, struct error *err)
{
    struct reference *r = &c->reference;
    uint8_t digest[SHA256_BYTES];
    char engine[SHA256_HEX];
    if (!sha256_file(r->roots.engine, digest, NULL, err))
        return false;
    text_hex(engine, digest, sizeof digest);
    json_t *o = json_object(), *prompts = json_array();
    for (size_t g = 0; g < c->options.golden_count; g++) {
        json_t *p = json_object();
        json_object_set_new(p, "prompt", json_string(r->goldens[g].prompt));
        json_object_set_new(p, "golden_sha256", json_string(r->goldens[g].golden->sha256));
        json_object_set_new(p, "passes", passes_of(c, g));
        json_array_append_new(prompts, p);
    }
    json_object_set_new(o, "calibration_sha256", json_string(file_sha256));
    json_object_set_new(o, "contract_sha256", json_string(r->contract->sha256));
    json_object_set_new(o, "weights_sha256", json_string(r->weights.sha256));
    json_object_set_new(o, "engine_sha256", json_string(engine));
    json_object_set_new(o, "cv_max", json_real(c->cv_max));
    json_object_set_new(o, "cool_gate", json_boolean(!c->f->common.no_cool_gate));
    json_object_set_new(o, "sandbox", json_string(r->sandbox.seal));
    json_object_set_new(o, "residents", json_boolean(r->has_residents));
    json_object_set_new(o, "machine", machine_describe());
    json_object_set_new(o, "prompts", prompts);
    struct buffer text = {0};
    json_write_canonical(o, 2, &text);
    buffer_char(&text, '\n');
    json_decref(o);
    const bool ok = file_write_atomic(c->conditions, text.data, text.length, err);
    buffer_free(&text);
    return ok;
}

/* The conditions first: a calibration without them is never there. */
static bool write_it(struct calibrating *c, struct error *err)
{
    struct buffer text = {0};
    struct calibration *again = NULL;
    char digest[SHA256_HEX];
    calibration_render(&c->file, &text);
    const bool valid =
        calibration_parse(c->f->common.out, text.data, text.length, c->cv_max, &again, err);
    calibration_free(again);
    sha256_hex(text.data, text.length, digest);
    buffer_free(&text);
    return valid && write_conditions(c, digest, err) &&
           calibration_write(&c->file, c->f->common.out, c->cv_max, err);
}

static int calibrate(const struct flags *f)
{
    struct calibrating c = {.f = f};
    struct error err = {0};
    char when[32];
    int code = TOOL_USAGE;
    if (open_it(&c, &err)) {
        code = TOOL_REJECTED;
        if (calibration_box(f->box, &c.file.box, &err) && reference_prepare(&c.reference, &err) &&
            measure(&c, &err)) {
            fill_file(&c, when, sizeof when);
            print_table(&c);
            if (write_it(&c, &err))
                code = TOOL_OK;
        }
        if (code != TOOL_OK && (interrupt_requested() || interrupt_is_cause(&err)))
            code = TOOL_INTERRUPTED;
    }
    if (code == TOOL_OK)
        printf("written: %s, %s\n", f->common.out, c.conditions);
    else
        tool_complain(tool, &err);
    json_decref(c.file.gates);
    reference_close(&c.reference);
    return code;
}

int tool_calibrate_baseline(int argc, char **argv)
{
    struct flags f = {.passes = CALIBRATION_PASSES};
    const struct option_spec options[] = {
        REFERENCE_FLAG_ROWS(&f.common),
        {"--out", OPTION_TEXT, true, "FILE",
         "Where the calibration goes; what it was made on goes beside it, FILE.conditions.json.",
         &f.common.out, NULL, 0, 0},
        {"--passes", OPTION_INT, false, "N", "Legs on each golden, 2 or more. Default 4.",
         &f.passes, NULL, CALIBRATION_PASSES_LEAST, PASSES_MOST},
        {"--box", OPTION_TEXT, false, "NAME",
         "This machine's name; RUNNER_NAME wins, and one of the two is needed.", &f.box, NULL, 0,
         0},
        {"--reference-commit", OPTION_TEXT, false, "SHA",
         "The commit of the organiser's tree. Default: its HEAD.", &f.reference_commit, NULL, 0, 0},
        {"--benchd-source-commit", OPTION_TEXT, false, "SHA",
         "The commit that this program was built from. Default: MLXFAST_BENCHD_SOURCE_COMMIT, else "
         "the HEAD of the work tree around the program.",
         &f.source_commit, NULL, 0, 0},
    };
    const struct command command = {
        "benchd calibrate-baseline",
        "Measures what the organiser's serial tree takes on this machine.",
        "Exit codes: 0 written; 1 not (a leg failed, the passes vary too much, the machine was not "
        "quiet): no file is touched; 2 usage or an unusable contract; 130 interrupted.\n"
        "Environment: RUNNER_NAME, MLXFAST_BASELINE_WORKSPACE, MLXFAST_BENCHD_SOURCE_COMMIT; "
        "MLXFAST_HELLO_TIMEOUT_S (600), MLXFAST_REPLY_TIMEOUT_S (600), MLXFAST_BARRIER_TIMEOUT_S "
        "(60) and MLXFAST_RUN_CEILING_S bound the engine as in benchd iterate.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    return tool_parse(&command, tool, argc, argv, NULL, &code) ? calibrate(&f) : code;
}
