#include "judge/job/job_open.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "judge/commit.h"
#include "judge/weights_format.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMIT_FILE_MAX = 4096 };

static bool refuse(struct error *err, const char *name, const char *file, const char *field,
                   const char *value, const char *what)
{
    error_set(err, name, "%s", what);
    return error_at(err, file, field, value);
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : NULL;
}

/* ---- contract, goldens, modes ---- */

static bool check_contract(const struct job *j, struct error *err)
{
    const bool scored = !j->o->local_dev;
    return contract_require_paired_flow(j->contract, err) &&
           (!scored || contract_require_official_scoring(j->contract, err)) &&
           contract_require_model(j->contract, err);
}

static bool resolve_spec(struct job *j, const char *text, const char *flag, struct wire_spec *out,
                         struct error *err)
{
    if (text == NULL)
        return true;
    if (!wire_spec_decode(&j->arena, text, strlen(text), out, err)) {
        const struct error inner = *err;
        error_set(err, "USAGE", "%s is not a SpecConfig: %s", flag, inner.message);
        return error_at(err, NULL, flag, text);
    }
    out->present = true;
    return true;
}

static bool resolve_specs(struct job *j, struct error *err)
{
    const struct job_options *o = j->o;
    if (!resolve_spec(j, o->candidate_spec, "--candidate-spec", &j->candidate_spec, err) ||
        !resolve_spec(j, o->baseline_spec, "--baseline-spec", &j->baseline_spec, err))
        return false;
    if (o->mtp_depth > 0)
        j->candidate_spec =
            (struct wire_spec){.present = true,
                               .mode = "mtp",
                               .has_mtp = true,
                               .mtp_depth = {.present = true, .value = (uint32_t)o->mtp_depth}};
    if (j->baseline_spec.present && strcmp(j->baseline_spec.mode, "serial") != 0)
        return refuse(err, "USAGE", NULL, "--baseline-spec", j->baseline_spec.mode,
                      "the baseline's leg is serial");
    return true;
}

static bool is_serial(const struct wire_spec *s)
{
    return !s->present || strcmp(s->mode, "serial") == 0;
}

static bool check_mode(const struct job *j, struct error *err)
{
    const char *mode = is_serial(&j->candidate_spec) ? "serial" : j->candidate_spec.mode;
    for (size_t i = 0; i < j->contract->allowed_mode_count; i++)
        if (strcmp(j->contract->allowed_modes[i], mode) == 0)
            return true;
    error_set(err, "SPEC-MODE-NOT-ALLOWED-FOR-TRACK", "track \"%s\" does not allow mode \"%s\"",
              j->contract->track_id, mode);
    return error_at(err, j->contract->path, "allowed_modes", mode);
}

static bool check_pool(struct job *j, struct error *err)
{
    if (j->o->local_dev) {
        job_inputs_take_pins(&j->inputs, j->contract);
        return true;
    }
    return job_inputs_check_pins(&j->inputs, j->contract, !j->o->bootstrap, err) &&
           job_inputs_check_cover(&j->inputs, j->contract, err);
}

/* ---- regime ---- */

static bool check_regime(struct job *j, struct error *err)
{
    if (!contract_require_batch(j->contract, JOB_COHORT_STREAMS, err))
        return false;
    j->streams = j->contract->scored_batch_size;
    if (j->streams != 1 && j->streams != JOB_COHORT_STREAMS) {
        error_set(err, "SCORED-BATCH-SIZE-UNSUPPORTED",
                  "the contract scores %u streams; one stream and cohorts of %d can be timed",
                  j->streams, JOB_COHORT_STREAMS);
        return error_at(err, j->contract->path, "scored_batch_size", NULL);
    }
    return job_contract_exponents(j->contract, &j->prefill_exponent, &j->decode_exponent, err) &&
           (j->streams == 1 || job_inputs_form_cohorts(&j->inputs, j->contract, &j->arena, err));
}

/* The window's tokens must be there: 128 of a free run, unless --tokens asks for more. */
static bool check_tokens(struct job *j, struct error *err)
{
    const int64_t *tokens;
    bool ok = true;
    for (size_t i = 0; ok && i < j->inputs.prompt_count; i++)
        ok = job_prompt_tokens(&j->arena, &j->inputs.prompts[i], JOB_FREE_RUN_TOKENS, &tokens, err);
    return ok;
}

/* ---- attestation ---- */

static bool check_correctness_golden(const struct job *j, struct error *err)
{
    static const char name[] = "CORRECTNESS-GOLDEN-UNATTESTED";
    const struct contract *c = j->contract;
    const char *path = j->o->correctness_golden;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    uint64_t bytes;
    if (path == NULL)
        return !c->has_hidden_golden || j->o->local_dev ||
               refuse(err, name, c->path, "hidden_correctness_golden", c->hidden_golden_sha256,
                      "the contract pins a hidden correctness golden, and none is given");
    if (!c->has_hidden_golden)
        return refuse(err, name, c->path, "hidden_correctness_golden", "missing",
                      "a correctness golden is given, and the contract pins none");
    if (!sha256_file(path, digest, &bytes, err))
        return false;
    text_hex(hex, digest, sizeof digest);
    return (strcmp(hex, c->hidden_golden_sha256) == 0 && bytes == c->hidden_golden_bytes) ||
           refuse(err, name, path, "hidden_correctness_golden", hex,
                  "the correctness golden is not the one that the contract pins");
}

/* ---- the engines ---- */

static const char *worker_name(struct error *err)
{
    const char *name = variable("MLXFAST_MEASURE_WORKER_BIN");
    if (name == NULL)
        return "mlxfast-runtime-worker";
    if (strchr(name, '/') == NULL && strcmp(name, "..") != 0 && strcmp(name, ".") != 0)
        return name;
    refuse(err, "USAGE", NULL, "MLXFAST_MEASURE_WORKER_BIN", name,
           "the worker's name is one of a file, without a folder");
    return NULL;
}

/* The worker that a tree has built: an executable file in the tree itself, links included. */
static bool find_engine(struct job *j, const char *tree, const char *name, const char **out,
                        struct error *err)
{
    const char *path = arena_printf(&j->arena, "%s/.build/release/%s", tree, name);
    char *root = realpath(tree, NULL), *real = realpath(path, NULL);
    const size_t n = root != NULL ? strlen(root) : 0;
    const bool inside =
        root != NULL && real != NULL && strncmp(real, root, n) == 0 && real[n] == '/';
    const bool found = inside && access(real, X_OK) == 0 && !file_is_directory(real);
    if (found)
        *out = arena_strdup(&j->arena, real);
    free(root);
    free(real);
    return found || refuse(err, "ENGINE-MISSING", path, NULL, NULL,
                           "the tree has no executable worker of its own there");
}

static bool find_engines(struct job *j, struct error *err)
{
    const char *name = worker_name(err);
    const char *override = variable("MLXFAST_RUNTIME_WORKER_EXECUTABLE");
    if (name == NULL || !find_engine(j, j->o->candidate, name, &j->candidate.engine, err) ||
        !find_engine(j, j->o->baseline, name, &j->baseline.engine, err))
        return false;
    return override == NULL || file_is_same(override, j->candidate.engine) ||
           refuse(err, "WORKER-OVERRIDE-CONFLICT", NULL, "MLXFAST_RUNTIME_WORKER_EXECUTABLE",
                  override, "the environment names another worker than the candidate's own");
}

/* Metal's compiled kernels lie beside the worker; other platforms have none. */
static bool check_metallib(struct job *j, struct error *err)
{
    const char *const engines[] = {j->candidate.engine, j->baseline.engine};
    if (j->contract->platform == NULL || strcmp(j->contract->platform, "mlx") != 0)
        return true;
    for (size_t i = 0; i < 2; i++) {
        const char *name = path_basename(engines[i]);
        const char *folder = arena_strndup(&j->arena, engines[i], (size_t)(name - engines[i]) - 1);
        const char *path = path_join(&j->arena, folder, "mlx.metallib");
        if (!file_exists(path) || file_is_directory(path))
            return refuse(err, "METALLIB-MISSING", path, NULL, NULL,
                          "there is no mlx.metallib beside the worker");
    }
    return true;
}

/* ---- the surface ---- */

static bool check_surface(struct job *j, struct error *err)
{
    const struct job_options *o = j->o;
    struct surface_size before, after;
    if (!surface_load(&j->arena, o->baseline, &j->surface, err) ||
        !surface_check_scope(&j->surface, o->baseline, err) ||
        !surface_check_budget(&j->surface, o->candidate, &after, err))
        return false;
    if (o->write_gate_base != NULL)
        return surface_measure_commit(&j->surface, o->candidate, o->write_gate_base, &before,
                                      err) &&
               surface_check_growth(&j->surface, &before, &after, err) &&
               surface_check_commits(&j->surface, o->candidate, o->write_gate_base, err);
    return surface_measure_tree(&j->surface, o->baseline, &before, err) &&
           surface_check_growth(&j->surface, &before, &after, err) &&
           surface_check_trees(&j->surface, o->baseline, o->candidate, err);
}

/* ---- heads, weights, digests ---- */

static bool take_head(const char *name, const char **out, struct error *err)
{
    const char *path = variable(name);
    if (path == NULL)
        return true;
    *out = path;
    return file_is_directory(path) ||
           refuse(err, "HEAD-MISSING", path, name, NULL, "a head's folder is not there");
}

/* NAME=PATH of the options, and the head of multi-token prediction. */
static const char *const *resources_with(struct job *j, const char *head)
{
    size_t n = 0;
    const char *const *given = j->o->resources;
    while (given != NULL && given[n] != NULL)
        n++;
    const char **all = arena_array(&j->arena, n + 2, sizeof *all);
    for (size_t i = 0; i < n; i++)
        all[i] = given[i];
    if (head != NULL)
        all[n] = arena_printf(&j->arena, "mtp_head=%s", head);
    return (const char *const *)all;
}

/* A leg that drafts nothing is not given a head. The candidate's own come before the baseline's. */
static bool find_heads(struct job *j, struct error *err)
{
    const char *mtp = NULL, *dflash = NULL;
    if (!take_head("QMTP_HEAD_DIR", &mtp, err) ||
        !take_head("QMTP_CANDIDATE_HEAD_DIR", &mtp, err) ||
        !take_head("QMTP_DFLASH_HEAD_DIR", &dflash, err) ||
        !take_head("QMTP_CANDIDATE_DFLASH_HEAD_DIR", &dflash, err))
        return false;
    const bool is_mtp = j->candidate_spec.present && strcmp(j->candidate_spec.mode, "mtp") == 0;
    const bool is_dflash =
        j->candidate_spec.present && strcmp(j->candidate_spec.mode, "dflash") == 0;
    j->candidate.resources = resources_with(j, is_mtp ? mtp : NULL);
    j->candidate.drafter = is_dflash ? dflash : NULL;
    j->baseline.resources = resources_with(j, NULL);
    return true;
}

static bool find_weights(struct job *j, struct error *err)
{
    j->weights = j->o->weights != NULL ? j->o->weights : variable("QMTP_TARGET_DIR");
    if (j->weights == NULL)
        return refuse(err, "WEIGHTS-MISSING", NULL, "--weights", NULL,
                      "the weights folder is named by --weights or QMTP_TARGET_DIR");
    if (!file_is_directory(j->weights))
        return refuse(err, "WEIGHTS-MISSING", j->weights, NULL, NULL,
                      "the weights folder is not there");
    j->candidate.weights = j->baseline.weights = j->weights;
    return true;
}

static bool take_digests(struct job *j, struct error *err)
{
    if (!find_weights(j, err))
        return false;
    run_stamps_take(j->weights, j->candidate.engine, &j->candidate_stamps);
    run_stamps_take(j->weights, j->baseline.engine, &j->baseline_stamps);
    if (!weights_digest(j->weights, &j->weights_digest, err) ||
        !weights_check_format(j->weights, j->contract, err) ||
        !surface_tree_sha256(j->o->candidate, j->candidate_tree_sha256, err) ||
        !surface_tree_sha256(j->o->baseline, j->baseline_tree_sha256, err))
        return false;
    for (size_t i = 0; i < j->inputs.prompt_count; i++)
        if (!weights_check_golden(j->weights, j->inputs.prompts[i].path, err))
            return false;
    return true;
}

/* ---- the commit ---- */

/* The dispatch record: a commit id alone in a file. */
static bool read_commit_file(struct job *j, const char *path, struct error *err)
{
    struct buffer text = {0};
    if (!file_read(path, COMMIT_FILE_MAX, &text, err))
        return false;
    size_t n = text.length;
    while (n > 0 && strchr("\r\n \t", text.data[n - 1]) != NULL)
        n--;
    const char *id = arena_strndup(&j->arena, n > 0 ? text.data : "", n);
    buffer_free(&text);
    j->commit = id;
    return text_is_lower_hex(id, 40) ||
           refuse(err, "CANDIDATE-COMMIT-INVALID", path, "MLXFAST_CANDIDATE_SHA_FILE", id,
                  "the dispatch record is no commit id of 40 lower-case hex digits");
}

static bool find_commit(struct job *j, struct error *err)
{
    static const char file[] = "MLXFAST_CANDIDATE_SHA_FILE", name[] = "MLXFAST_COMMIT_SHA";
    const char *path = variable(file), *said = variable(name);
    if (path != NULL && !read_commit_file(j, path, err))
        return false;
    if (said != NULL && !text_is_lower_hex(said, 40))
        return refuse(err, "COMMIT-INVALID", NULL, name, said,
                      "MLXFAST_COMMIT_SHA must be 40 lower-case hex digits");
    if (path != NULL && said != NULL && strcmp(said, j->commit) != 0)
        return refuse(err, "CANDIDATE-COMMIT-INVALID", path, name, said,
                      "MLXFAST_COMMIT_SHA is not the commit of the dispatch record");
    if (path == NULL && !j->o->local_dev)
        return refuse(err, "CANDIDATE-COMMIT-MISSING", NULL, file, NULL,
                      "a scored job's commit comes from the dispatch record, and there is none");
    if (path == NULL)
        j->commit = said != NULL ? said : "";
    return true;
}

/* ---- calibration ---- */

static bool open_calibration(struct job *j, struct error *err)
{
    const char *path = variable("BASELINE_CALIBRATION"), *enforce = getenv("BASELINE_BAND_ENFORCE");
    const char *box;
    j->enforce_band = enforce == NULL || strcmp(enforce, "0") != 0;
    if (j->o->bootstrap || (path == NULL && (j->o->local_dev || !j->enforce_band)))
        return true;
    if (!calibration_load(path, calibration_cv_limit(j->contract), &j->calibration, err))
        return false;
    if (!calibration_box(NULL, &box, err))
        return false;
    j->calibrated = arena_array(&j->arena, j->inputs.prompt_count, sizeof *j->calibrated);
    for (size_t i = 0; i < j->inputs.prompt_count; i++)
        if (!calibration_find(j->calibration, j->inputs.prompts[i].name, box, j->contract->track_id,
                              &j->calibrated[i], err))
            return false;
    return true;
}

static bool read_environment(struct job *j, struct error *err)
{
    static const char name[] = "GPU_LOADED_UTIL";
    const char *text = variable(name);
    j->loaded_use = 0.70;
    j->loaded_use_source = "default";
    if (text == NULL)
        return true;
    j->loaded_use_source = "environment";
    return (number_double(text, &j->loaded_use) && j->loaded_use > 0 && j->loaded_use <= 1) ||
           refuse(err, "USAGE", NULL, name, text, "a share of use is above 0 and 1 at most");
}

/* ---- the sandbox ---- */

static bool plan_sandbox(struct job *j, const struct job_engine *e, const char *tree,
                         bool reference, struct sandbox_plan *out, struct error *err)
{
    const struct job_options *o = j->o;
    const char *const trees[] = {path_join(&j->arena, tree, ".build"), NULL};
    const char **hidden = arena_array(&j->arena, o->golden_count + 3, sizeof *hidden);
    size_t n = 0;
    for (size_t i = 0; i < o->golden_count; i++)
        hidden[n++] = o->goldens[i];
    hidden[n++] = o->contract;
    if (o->correctness_golden != NULL)
        hidden[n++] = o->correctness_golden;
    const struct sandbox_request request = {.mode = o->local_dev ? SANDBOX_LOCAL : SANDBOX_OFFICIAL,
                                            .switched_off = o->no_sandbox,
                                            .reference_leg = reference,
                                            .engine = e->engine,
                                            .weights = e->weights,
                                            .drafter = e->drafter,
                                            .engine_trees = trees,
                                            .resources = e->resources,
                                            .hidden = (const char *const *)hidden,
                                            .features =
                                                contract_is_cuda(j->contract) ? SANDBOX_GPU : 0,
                                            .environment = environ};
    return sandbox_plan(&j->arena, &request, out, err);
}

static bool plan_engines(struct job *j, struct error *err)
{
    struct job_engine *const engines[] = {&j->candidate, &j->baseline};
    for (size_t i = 0; i < 2; i++) {
        engines[i]->yarn_magnitude = j->contract->yarn_magnitude;
        engines[i]->arithmetic = j->contract->engine_arithmetic;
        engines[i]->withhold_text = !j->o->local_dev;
        engines[i]->silent = j->o->quiet;
    }
    j->candidate.spec = j->candidate_spec.present ? &j->candidate_spec : NULL;
    j->baseline.spec = j->baseline_spec.present ? &j->baseline_spec : NULL;
    j->candidate.sandbox = &j->candidate_sandbox;
    j->baseline.sandbox = &j->baseline_sandbox;
    return plan_sandbox(j, &j->candidate, j->o->candidate, false, &j->candidate_sandbox, err) &&
           plan_sandbox(j, &j->baseline, j->o->baseline, true, &j->baseline_sandbox, err);
}

/* ---- all of it ---- */

bool job_open(struct job *j, struct error *err)
{
    const struct job_options *o = j->o;
    const char *track;
    return contract_track_from_environment(&track, err) &&
           contract_load(o->contract, track, &j->contract, err) && resolve_specs(j, err) &&
           read_environment(j, err) && check_contract(j, err) &&
           job_inputs_load(&j->arena, j->contract, o->goldens, o->golden_count, &j->inputs, err) &&
           (o->prompt == NULL || job_wire_check_digest(o->prompt, o->prompt_sha256, err)) &&
           check_mode(j, err) && check_pool(j, err) && check_regime(j, err) &&
           check_tokens(j, err) && check_correctness_golden(j, err) &&
           (o->prompt == NULL || job_wire_check_seed(&j->inputs, o->prompt, err)) &&
           find_engines(j, err) && check_metallib(j, err) && check_surface(j, err) &&
           find_heads(j, err) && take_digests(j, err) && find_commit(j, err) &&
           open_calibration(j, err) && plan_engines(j, err);
}

void job_close(struct job *j)
{
    wire_spec_free(&j->candidate_spec);
    wire_spec_free(&j->baseline_spec);
    if (j->calibration != NULL)
        calibration_free(j->calibration);
    job_inputs_free(&j->inputs);
    if (j->contract != NULL)
        contract_free(j->contract);
    arena_free(&j->arena);
}

enum job_exit job_exit_of(const struct error *err)
{
    static const char *const files[] = {"IO", "FILE-TOO-LARGE", "NOT-A-REGULAR-FILE",
                                        "SANDBOX-UNAVAILABLE", "SandboxExecNotFound"};
    if (strcmp(err->name, "USAGE") == 0)
        return JOB_USAGE;
    if (interrupt_is_cause(err))
        return JOB_INTERRUPTED;
    if (strstr(err->name, "CALIBRATION") != NULL ||
        strcmp(err->name, "BASELINE-BOX-UNRESOLVED") == 0)
        return JOB_BASELINE;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (strcmp(err->name, files[i]) == 0)
            return JOB_FAILED;
    return JOB_REFUSED;
}
