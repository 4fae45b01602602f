#include "judge/job/job_open.h"
#include "judge/job/results.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "judge/quiet/quiet.h"
#include "judge/seal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct run {
    struct job job;
    struct quiet *quiet;
    struct quiet_rules rules;
    enum job_series series;
    int64_t steps;
    struct job_pairs pairs;
    size_t probed_prompts;
};

/* ---- one pair's parts, as the loop asks for them ---- */

/* The prompts of a unit. */
static const struct job_prompt *const *members_of(struct run *r, size_t unit, size_t *count)
{
    struct job *j = &r->job;
    if (j->inputs.cohort_count > 0) {
        *count = JOB_COHORT_STREAMS;
        return j->inputs.cohorts[unit].members;
    }
    const struct job_prompt **one = arena_array(&j->arena, 1, sizeof *one);
    one[0] = &j->inputs.prompts[unit];
    *count = 1;
    return one;
}

static bool probe(void *context, size_t unit, size_t pair, struct error *err)
{
    struct run *r = context;
    const enum job_probe when = r->job.o->probe;
    size_t count;
    if (when == JOB_PROBE_NONE || (when != JOB_PROBE_PER_PAIR && pair > 0) ||
        (when == JOB_PROBE_ONCE && unit > 0))
        return true;
    const struct job_prompt *const *members = members_of(r, unit, &count);
    if (when == JOB_PROBE_ONCE)
        count = 1;
    for (size_t i = 0; i < count; i++) {
        if (!r->job.o->quiet)
            fprintf(stderr, "exactness probe: %s\n", members[i]->name);
        if (!job_probe_exactness(&r->job.candidate, members[i], JOB_PROBE_TOKENS, err))
            return false;
        r->probed_prompts++;
    }
    return true;
}

/* The control's health, where a calibration says what it takes. Its figures are those of free
 * runs, and no prefill is timed here. */
static bool check_band(const struct run *r, size_t unit, const struct job_leg *leg,
                       struct error *err)
{
    const struct job *j = &r->job;
    if (j->calibrated == NULL || !j->enforce_band || r->series != JOB_FREE_RUN)
        return true;
    const struct calibration_prompt *p = j->calibrated[unit];
    const struct calibration_bands bands = calibration_bands(j->contract);
    return calibration_health(p, &bands, p->prefill.seconds_per_token_mean,
                              leg->decode_seconds_per_token, err);
}

static bool run_leg(void *context, size_t unit, size_t pair, enum job_role role,
                    struct job_leg *out, struct error *err)
{
    struct run *r = context;
    struct job *j = &r->job;
    const bool serial = role == JOB_SERIAL;
    struct job_leg_plan plan = {.engine = serial ? &j->baseline : &j->candidate,
                                .reference = &j->baseline,
                                .series = r->series,
                                .steps = r->steps,
                                .quiet = r->quiet,
                                .at = {.pair = (int)r->pairs.accepted_count + 1,
                                       .leg = serial ? "control" : "candidate",
                                       .phase = "decode"}};
    plan.members = members_of(r, unit, &plan.streams);
    if (!j->o->quiet)
        fprintf(stderr, "%s %zu of %zu, pair %zu of %lld: %s leg\n",
                j->inputs.cohort_count > 0 ? "cohort" : "prompt", unit + 1,
                j->inputs.cohort_count > 0 ? j->inputs.cohort_count : j->inputs.prompt_count,
                pair + 1, (long long)j->o->target_pairs, plan.at.leg);
    return job_leg_run(&plan, &j->arena, out, err) && (!serial || check_band(r, unit, out, err));
}

/* ---- how windows are timed ---- */

/* Both engines free, both teacher-forced: a pair's figures must be of one kind. */
static bool choose_series(struct run *r, enum job_exit *code, struct error *err)
{
    struct job *j = &r->job;
    bool baseline_can, candidate_can;
    r->series = JOB_COHORT_RUN;
    r->steps = JOB_FREE_RUN_TOKENS;
    if (j->inputs.cohort_count > 0)
        return true;
    *code = JOB_BASELINE;
    if (!job_engine_can_free_run(&j->baseline, &baseline_can, err))
        return false;
    *code = JOB_REJECTED;
    if (!job_engine_can_free_run(&j->candidate, &candidate_can, err))
        return false;
    const bool serial = j->candidate.spec == NULL || strcmp(j->candidate.spec->mode, "serial") == 0;
    r->series = JOB_FREE_RUN;
    if (baseline_can && candidate_can)
        return true;
    if (!serial) {
        *code = candidate_can ? JOB_BASELINE : JOB_REJECTED;
        error_set(err, "CapabilityNotAdvertised",
                  "the %s's hello does not advertise \"free_run_decode\", which speculation needs",
                  candidate_can ? "baseline" : "candidate");
        return error_at(err, NULL, "capabilities", "free_run_decode");
    }
    r->series = JOB_TEACHER_FORCED;
    r->steps = j->o->tokens;
    *code = JOB_REFUSED;
    for (size_t i = 0; i < j->inputs.prompt_count; i++) {
        const int64_t *tokens;
        if (!job_prompt_tokens(&j->arena, &j->inputs.prompts[i], r->steps, &tokens, err))
            return false;
    }
    return true;
}

static bool open_quiet(struct run *r, struct error *err)
{
    const struct job *j = &r->job;
    r->rules = j->contract->quiet;
    r->rules.loaded_use = j->loaded_use;
    return quiet_open(&r->rules, !j->o->local_dev, j->o->quiet, &r->quiet, err);
}

/* ---- what is written ---- */

static json_t *thermal_record(const struct run *r)
{
    const char *source = r->job.contract->has_quiet ? "contract" : "default";
    json_t *o = json_object();
    json_object_set_new(o, "cool_gate_c", json_real(r->rules.celsius_max));
    json_object_set_new(o, "cool_gate_c_source", json_string(source));
    json_object_set_new(o, "clock_floor_mhz", json_real(r->rules.clock_floor_mhz));
    json_object_set_new(o, "clock_floor_mhz_source", json_string(source));
    json_object_set_new(o, "loaded_util", json_real(r->rules.loaded_use));
    json_object_set_new(o, "loaded_util_source", json_string(r->job.loaded_use_source));
    return o;
}

static json_t *probe_record(const struct run *r)
{
    static const char *const names[] = {"none", "once", "per-prompt", "per-pair"};
    json_t *o = json_object();
    json_object_set_new(o, "mode", json_string(names[r->job.o->probe]));
    json_object_set_new(o, "prompts_checked", json_integer((json_int_t)r->probed_prompts));
    json_object_set_new(o, "tokens_checked",
                        json_integer((json_int_t)r->probed_prompts * (JOB_PROBE_TOKENS + 1)));
    return o;
}

/* One golden by its digest, several by that of their digests, each with a line break. */
static void goldens_digest(const struct job *j, char out[SHA256_HEX])
{
    struct buffer text = {0};
    if (j->inputs.prompt_count == 1) {
        text_copy(out, SHA256_HEX, j->inputs.prompts[0].sha256);
        return;
    }
    for (size_t i = 0; i < j->inputs.prompt_count; i++)
        buffer_printf(&text, "%s\n", j->inputs.prompts[i].sha256);
    sha256_hex(text.data, text.length, out);
    buffer_free(&text);
}

static json_t *integrity_record(struct job *j, const char *path, const struct buffer *results)
{
    char results_sha256[SHA256_HEX], goldens[SHA256_HEX];
    sha256_hex(results->data, results->length, results_sha256);
    goldens_digest(j, goldens);
    const struct {
        const char *key, *value;
    } texts[] = {
        {"results_path", seal_published_path(&j->arena, path)},
        {"results_sha256", results_sha256},
        {"candidate_workspace", seal_published_path(&j->arena, j->o->candidate)},
        {"baseline_workspace", seal_published_path(&j->arena, j->o->baseline)},
        {"candidate_executable", seal_published_path(&j->arena, j->candidate.engine)},
        {"baseline_executable", seal_published_path(&j->arena, j->baseline.engine)},
        {"candidate_workspace_sha256", j->candidate_tree_sha256},
        {"baseline_workspace_sha256", j->baseline_tree_sha256},
        {"golden_sha256", goldens},
        {"contract_sha256", j->contract->sha256},
        {"weights_dir", seal_published_path(&j->arena, j->weights)},
        {"weights_sha256", j->weights_digest.sha256},
    };
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        json_object_set_new(o, texts[i].key, json_string(texts[i].value));
    json_object_set_new(o, "weights_file_count", json_integer((json_int_t)j->weights_digest.files));
    json_object_set_new(o, "weights_byte_count", json_integer((json_int_t)j->weights_digest.bytes));
    json_object_set_new(o, "gates_producer", json_string(j->o->gates_producer));
    return o;
}

static bool write_results(struct run *r, const struct job_results_plan *plan,
                          const struct job_summary *s, struct error *err)
{
    struct job *j = &r->job;
    struct buffer text = {0}, integrity = {0};
    const char *path = path_join(&j->arena, j->o->out, JOB_RESULTS_NAME);
    json_t *document = job_results_build(plan, s);
    json_write_canonical(document, 2, &text);
    json_decref(document);
    json_t *record = integrity_record(j, path, &text);
    json_write_ordered(record, 2, &integrity);
    buffer_char(&integrity, '\n');
    json_decref(record);
    const bool ok = seal_write_bytes(path, JOB_INTEGRITY_NAME, &text, &integrity, err);
    buffer_free(&text);
    buffer_free(&integrity);
    return ok;
}

/* What the pairs add up to, sealed. */
static enum job_exit conclude(struct run *r, enum job_end end, struct error *err)
{
    struct job *j = &r->job;
    struct job_summary summary;
    struct error none = {0};
    bool stands = end == JOB_END_DONE;
    int64_t depth = j->o->mtp_depth;
    for (size_t i = 0; i < r->pairs.accepted_count && depth == 0; i++)
        depth = r->pairs.accepted[i].candidate.spec_depth;
    json_t *thermal = thermal_record(r), *probes = probe_record(r);
    json_t *gates = r->quiet != NULL ? quiet_records(r->quiet) : NULL;
    struct job_results_plan plan = {
        .contract = j->contract,
        .inputs = &j->inputs,
        .pairs = &r->pairs,
        .series = r->series,
        .prefill_exponent = j->prefill_exponent,
        .decode_exponent = j->decode_exponent,
        .tag = j->o->tag,
        .min_pairs = (size_t)j->o->min_pairs,
        .target_pairs = (size_t)j->o->target_pairs,
        .mtp_depth = depth,
        .commit = j->commit,
        .weights_hash = j->weights_digest.sha256,
        .local_dev = j->o->local_dev,
        .bootstrap = j->o->bootstrap,
        .candidate_executable = seal_published_path(&j->arena, j->candidate.engine),
        .baseline_executable = seal_published_path(&j->arena, j->baseline.engine),
        .sandbox = j->candidate_sandbox.seal,
        .thermal = thermal,
        .gates = gates,
        .probes = probes};
    job_summarise(&j->arena, &plan, &summary);
    const bool passed = stands && job_judge(&plan, &summary, &stands, err);
    plan.accepted = stands;
    plan.rejected = passed ? NULL : err;
    const bool written = write_results(r, &plan, &summary, passed ? err : &none);
    json_decref(thermal);
    json_decref(probes);
    json_decref(gates);
    if (!written) {
        if (!passed)
            *err = none;
        return JOB_FAILED;
    }
    if (passed && !j->o->quiet)
        printf("measure-job: accepted, %zu pairs, score %.6f\n", r->pairs.accepted_count,
               summary.score);
    return passed ? JOB_ACCEPTED : JOB_REJECTED;
}

static bool check_unchanged(const struct job *j, struct error *err)
{
    return run_stamps_check(&j->candidate_stamps, j->weights, j->candidate.engine, err) &&
           run_stamps_check(&j->baseline_stamps, j->weights, j->baseline.engine, err);
}

static enum job_exit run_pairs(struct run *r, struct error *err)
{
    struct job *j = &r->job;
    const struct job_pairs_plan plan = {
        .units = j->inputs.cohort_count > 0 ? j->inputs.cohort_count : j->inputs.prompt_count,
        .min_pairs = (size_t)j->o->min_pairs,
        .target_pairs = (size_t)j->o->target_pairs,
        .local_dev = j->o->local_dev,
        .certify_windows = j->prefill_exponent != 0,
        .context = r,
        .before_pair = probe,
        .run_leg = run_leg};
    const enum job_end end = job_pairs_run(&plan, &j->arena, &r->pairs, err);
    struct error changed;
    if (end == JOB_END_BASELINE)
        return JOB_BASELINE;
    if (end == JOB_END_MACHINE)
        return job_exit_of(err) == JOB_INTERRUPTED ? JOB_INTERRUPTED : JOB_FAILED;
    if (!check_unchanged(j, &changed)) {
        *err = changed;
        return JOB_REFUSED;
    }
    return conclude(r, end, err);
}

/* A results file of an earlier job must not be taken for this one's. */
static bool prepare_out(struct job *j, struct error *err)
{
    const char *path = path_join(&j->arena, j->o->out, JOB_RESULTS_NAME);
    if (!file_make_directories(j->o->out, err) || !file_check_target(path, err))
        return false;
    return remove(path) == 0 || !file_exists(path) || error_errno(err, path, "remove");
}

static enum job_exit run_all(struct run *r, struct error *err)
{
    const struct job_options *o = r->job.o;
    enum job_exit code = JOB_FAILED;
    if (!job_open(&r->job, err))
        return job_exit_of(err);
    if (o->preflight_only) {
        if (!o->quiet)
            printf("measure-job: preflight clean\n");
        return JOB_ACCEPTED;
    }
    if (!prepare_out(&r->job, err))
        return job_exit_of(err);
    if (!open_quiet(r, err))
        return JOB_FAILED;
    if (!choose_series(r, &code, err))
        return job_exit_of(err) == JOB_INTERRUPTED ? JOB_INTERRUPTED : code;
    return run_pairs(r, err);
}

enum job_exit job_run(const struct job_options *o, struct error *err)
{
    struct run r = {.job = {.o = o}};
    const enum job_exit code = run_all(&r, err);
    quiet_close(r.quiet);
    job_pairs_free(&r.pairs);
    job_close(&r.job);
    return code;
}
