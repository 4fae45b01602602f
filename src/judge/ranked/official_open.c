/* What a ranked run is given: read, checked, and found in both trees. */
#include "judge/ranked/official_run.h"

#include "base/buffer.h"
#include "base/file.h"
#include "judge/client.h"
#include "judge/evidence/evidence.h"
#include "judge/pool.h"
#include "judge/ranked/resident.h"
#include "judge/seal.h"
#include "judge/weights_format.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what no score is written about ---- */

static bool check_contract(const struct official *r, struct error *err)
{
    const struct contract *c = r->contract;
    const uint32_t goldens = r->o->golden_count > 0 ? (uint32_t)r->o->golden_count : 1;
    if ((!r->o->local && !contract_require_official_scoring(c, err)) ||
        !contract_require_control_leg_rule(c, err))
        return false;
    if (!c->scores_against_live_control_leg) {
        error_set(err, "CONTROL-LEG-UNDECLARED-FOR-TRACK",
                  "track \"%s\" scores against a stored pair; a ranked run measures its own "
                  "control leg",
                  c->track_id);
        return error_at(err, c->path, "scores_against_live_control_leg", "false");
    }
    if (r->o->stored_baseline_given)
        return error_set(err, "STORED-BASELINE-OVERRIDE-REFUSED",
                         "track \"%s\" scores against a live control leg; a stored baseline pair "
                         "has no place in it",
                         c->track_id);
    return contract_require_window(c, err) && contract_require_model(c, err) &&
           contract_require_weights(c, err) && contract_require_floors(c, err) &&
           contract_require_batch(c, 1, err) && contract_require_pairs(c, goldens, err);
}

/* A stored denominator in the environment has no place either. */
static bool check_environment(const struct official *r, struct error *err)
{
    static const char *const stored[] = {"MLXFAST_PAIRED_BASELINE_PREFILL_SECONDS_PER_TOKEN",
                                         "MLXFAST_PAIRED_BASELINE_DECODE_SECONDS_PER_TOKEN"};
    for (size_t i = 0; i < 2; i++) {
        const char *value = getenv(stored[i]);
        if (value == NULL || *value == '\0')
            continue;
        error_set(err, "STORED-BASELINE-OVERRIDE-REFUSED",
                  "track \"%s\" scores against a live control leg; the environment may not supply "
                  "a denominator",
                  r->contract->track_id);
        return error_at(err, NULL, stored[i], value);
    }
    struct client_options checked = {0};
    double ceiling;
    return client_deadlines_from_environment(&checked, err) &&
           client_ceiling_from_environment(&ceiling, err) &&
           resident_check_environment(environ, err);
}

static bool check_goldens(const struct official *r, struct error *err)
{
    if (r->o->golden_count == 0 && r->o->pool == NULL) {
        error_set(err, "USAGE", "a ranked run needs --golden, or --pool to draw from");
        return error_at(err, NULL, "--golden", NULL);
    }
    if (r->o->golden_count > 0 && r->o->pool != NULL) {
        error_set(err, "USAGE", "--pool draws the golden; --golden names it");
        return error_at(err, NULL, "--pool", r->o->pool);
    }
    return true;
}

bool official_is_local_iterate(const struct official *r)
{
    return r->o->local && r->o->mode == ITERATE_LOCAL_ITERATE;
}

/* What is sealed must not replace what it is about. */
static bool check_output(struct official *r, struct error *err)
{
    const struct official_options *o = r->o;
    const char *base = roots_workspace(o->baseline_workspace);
    const char *const files[] = {o->contract,
                                 calibration_path(o->baseline_calibration),
                                 o->engine,
                                 o->weights,
                                 o->pool,
                                 base != NULL ? path_join(&r->arena, base, o->engine) : NULL,
                                 base != NULL ? path_join(&r->arena, base, o->weights) : NULL,
                                 o->draw_file,
                                 evidence_key_of(o->signing_key),
                                 evidence_log_of(o->log)};
    const size_t count = sizeof files / sizeof *files;
    const char **inputs = arena_array(&r->arena, count + 2 * o->golden_count, sizeof *inputs);
    memcpy(inputs, files, sizeof files);
    for (size_t i = 0; i < o->golden_count; i++) {
        inputs[count + 2 * i] = o->goldens[i].path;
        inputs[count + 2 * i + 1] = o->goldens[i].control_path;
    }
    return seal_keeps(o->score_path, official_is_local_iterate(r), inputs,
                      count + 2 * o->golden_count, err);
}

bool official_open(struct official *r, struct error *err)
{
    const struct official_options *o = r->o;
    const char *track, *skip = getenv("MLXFAST_BENCHMARK_SKIP_TIMED");
    r->gates_only = !o->local && skip != NULL && strcmp(skip, "1") == 0;
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(o->contract, track, &r->contract, err) || !check_contract(r, err) ||
        !check_goldens(r, err) || !check_output(r, err) || !check_environment(r, err) ||
        !run_resolve_spec(&r->arena, r->contract, o->candidate_spec, o->mtp_depth, &r->spec, err) ||
        !semantic_judge_from_environment(&r->semantic, err))
        return false;
    contract_paired_rule(r->contract, &r->rule);
    return seal_check(o->score_path, official_is_local_iterate(r), err) &&
           (o->local ||
            evidence_ready(evidence_key_of(o->signing_key), evidence_log_of(o->log), err));
}

/* ---- goldens ---- */

static int64_t decode_steps(const struct official *r)
{
    return r->o->local && r->o->mode == ITERATE_LOCAL_SUBMIT
               ? r->contract->local_submit_benchmark_decode_steps
               : r->contract->benchmark_decode_steps;
}

static bool load_golden(struct official *r, const char *path, const char *pin, uint64_t pin_bytes,
                        struct golden **out, struct error *err)
{
    const struct contract *c = r->contract;
    struct golden_rules rules = run_golden_rules(c, decode_steps(r));
    rules.pin_sha256 = pin;
    rules.pin_bytes = pin_bytes;
    return golden_load(path, &rules, out, err) &&
           contract_check_pooled(c, (*out)->sha256, (*out)->bytes, err);
}

static bool load_control(struct official *r, const struct official_golden *g,
                         struct official_prompt *p, struct error *err)
{
    p->control = p->golden;
    if (g->control_path == NULL)
        return true;
    p->control = NULL;
    if (!load_golden(r, g->control_path, g->control_pin_sha256, g->control_pin_bytes, &p->control,
                     err))
        return false;
    if (strcmp(p->control->prompt_name, p->golden->prompt_name) == 0)
        return true;
    error_set(err, "CONTROL-GOLDEN-PROMPT-MISMATCH",
              "the control golden is of prompt \"%s\", its golden of \"%s\"",
              p->control->prompt_name, p->golden->prompt_name);
    return error_at(err, g->control_path, NULL, NULL);
}

static bool load_prompt(struct official *r, const struct official_golden *g,
                        struct official_prompt *p, struct error *err)
{
    const int64_t steps = decode_steps(r);
    if (!load_golden(r, g->path, g->pin_sha256, g->pin_bytes, &p->golden, err) ||
        !load_control(r, g, p, err) || !measure_find_oracle(p->golden, steps, &p->oracle, err) ||
        !measure_find_oracle(p->control, steps, &p->control_oracle, err))
        return false;
    p->name = g->prompt != NULL ? g->prompt : p->golden->prompt_name;
    return true;
}

/* The organiser's note of what was drawn, outside of everything that is published. */
static bool note_draw(const struct official *r, const char *path, size_t index, struct error *err)
{
    if (r->o->draw_file == NULL)
        return true;
    struct buffer text = {0};
    buffer_printf(&text, "{\"index\":%zu,\"sha256\":\"%s\",\"file\":\"%s\"}\n", index,
                  r->contract->pool[index].sha256, path_basename(path));
    const mode_t before = umask(077);
    const bool ok = file_write_atomic(r->o->draw_file, text.data, text.length, err);
    umask(before);
    buffer_free(&text);
    return ok;
}

static bool draw_golden(struct official *r, struct official_golden *out, struct error *err)
{
    const struct contract *c = r->contract;
    size_t index;
    if (!pool_check_plain(c, r->o->pool, err) ||
        !pool_draw(pool_kernel_random, NULL, c->pool_count, &index, err))
        return false;
    const struct contract_pool_entry *e = &c->pool[index];
    *out =
        (struct official_golden){.path = path_join(&r->arena, r->o->pool, path_basename(e->path)),
                                 .pin_sha256 = e->sha256,
                                 .pin_bytes = e->bytes};
    r->drawn = true;
    return note_draw(r, out->path, index, err);
}

static bool load_prompts(struct official *r, struct error *err)
{
    const struct official_golden *goldens = r->o->goldens;
    struct official_golden drawn;
    size_t count = r->o->golden_count;
    if (count == 0) {
        if (!draw_golden(r, &drawn, err))
            return false;
        goldens = &drawn;
        count = 1;
    }
    r->prompts = arena_array(&r->arena, count, sizeof *r->prompts);
    memset(r->prompts, 0, count * sizeof *r->prompts);
    r->prompt_sha256 = arena_array(&r->arena, count, sizeof *r->prompt_sha256);
    r->hidden = arena_array(&r->arena, 2 * count + 4, sizeof *r->hidden);
    size_t hidden = 0;
    for (size_t i = 0; i < count; i++) {
        r->hidden[hidden++] = goldens[i].path;
        if (goldens[i].control_path != NULL)
            r->hidden[hidden++] = goldens[i].control_path;
    }
    r->hidden[hidden++] = r->o->contract;
    if (r->calibration_path != NULL)
        r->hidden[hidden++] = r->calibration_path;
    if (r->o->pool != NULL)
        r->hidden[hidden++] = r->o->pool;
    r->hidden[hidden] = NULL;
    for (size_t i = 0; i < count; i++) {
        r->prompt_count = i + 1; /* what close frees */
        if (!load_prompt(r, &goldens[i], &r->prompts[i], err))
            return false;
        r->prompt_sha256[i] = r->prompts[i].golden->sha256;
    }
    return true;
}

/* ---- trees ---- */

static bool stamp_tree(struct official_tree *t, struct error *err)
{
    return path_stamp(t->weights, t->weights_stamp, err) &&
           path_stamp(t->engine, t->engine_stamp, err);
}

static bool check_weights(const struct official *r, const char *weights, struct error *err)
{
    for (size_t i = 0; i < r->prompt_count; i++) {
        const struct official_prompt *p = &r->prompts[i];
        if (!weights_check_golden(weights, p->golden->path, err) ||
            (p->control != p->golden && !weights_check_golden(weights, p->control->path, err)))
            return false;
    }
    return weights_check_format(weights, r->contract, err) &&
           weights_check_shape(weights, r->contract, err);
}

static bool find_trees(struct official *r, struct error *err)
{
    const struct official_options *o = r->o;
    r->candidate = (struct official_tree){".", o->engine, o->weights, "", ""};
    if (!r->gates_only) {
        struct leg_roots roots;
        if (!roots_resolve(roots_workspace(o->baseline_workspace), o->engine, o->weights, &r->arena,
                           &roots, err))
            return false;
        r->reference = (struct official_tree){roots.workspace, roots.engine, roots.weights, "", ""};
    }
    if (!file_is_directory(o->weights)) {
        error_set(err, "WEIGHTS-MISSING", "the weights folder is not there");
        return error_at(err, o->weights, NULL, NULL);
    }
    return run_check_engine(o->engine, err);
}

static bool hash_trees(struct official *r, struct error *err)
{
    if (!stamp_tree(&r->candidate, err) || !weights_digest(r->candidate.weights, &r->weights, err))
        return false;
    r->has_weights = true;
    score_set_text(&r->score, "weights_hash", r->weights.sha256);
    score_set_int(&r->score, "weights_byte_count", (int64_t)r->weights.bytes);
    score_set_int(&r->score, "weights_file_count", (int64_t)r->weights.files);
    return check_weights(r, r->candidate.weights, err) &&
           (r->gates_only ||
            (stamp_tree(&r->reference, err) && check_weights(r, r->reference.weights, err)));
}

/* ---- calibration ---- */

static bool load_calibration(struct official *r, struct error *err)
{
    const struct contract *c = r->contract;
    uint8_t digest[SHA256_BYTES];
    if (r->gates_only)
        return true;
    if (!calibration_box(r->o->box, &r->box, err) ||
        !calibration_load(r->calibration_path, calibration_cv_limit(c), &r->calibration, err) ||
        !sha256_file(r->calibration_path, digest, NULL, err))
        return false;
    text_hex(r->calibration_sha256, digest, sizeof digest);
    for (size_t i = 0; i < r->prompt_count; i++)
        if (!calibration_find(r->calibration, r->prompts[i].name, r->box, c->track_id,
                              &r->prompts[i].calibrated, err))
            return false;
    return true;
}

bool official_prepare(struct official *r, struct error *err)
{
    r->calibration_path = calibration_path(r->o->baseline_calibration);
    if (!run_seal_source(true, &r->score, err) || !find_trees(r, err) || !load_prompts(r, err) ||
        !load_calibration(r, err) || !hash_trees(r, err))
        return false;
    for (size_t i = 0; i < r->prompt_count; i++)
        if (!semantic_check_ready(&r->semantic, r->prompts[i].golden,
                                  r->contract->semantic_min_pass, err))
            return false;
    r->residents =
        !r->gates_only && resident_is_used(r->reference.workspace, contract_is_cuda(r->contract));
    r->candidates = arena_array(
        &r->arena, r->rule.max_pairs > r->rule.min_pairs ? r->rule.max_pairs : r->rule.min_pairs,
        sizeof *r->candidates);
    r->latency = run_latency(r->contract, &r->arena);
    return true;
}

void official_close(struct official *r)
{
    quiet_close(r->quiet);
    for (size_t i = 0; i < r->prompt_count; i++) {
        if (r->prompts[i].control != r->prompts[i].golden)
            golden_free(r->prompts[i].control);
        golden_free(r->prompts[i].golden);
    }
    calibration_free(r->calibration);
    run_free_spec(&r->spec);
    score_document_free(&r->score);
    contract_free(r->contract);
    arena_free(&r->arena);
}
