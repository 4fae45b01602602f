#include "judge/blocks/setup.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "judge/block_score.h"
#include "judge/evidence/evidence.h"
#include "judge/ranked/calibration.h"
#include "judge/ranked/resident.h"
#include "judge/run.h"
#include "judge/seal.h"
#include "judge/stats/paired.h"
#include "judge/weights_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool misuse(struct error *err, const char *flag, const char *value, const char *what)
{
    error_set(err, "USAGE", "%s", what);
    return error_at(err, NULL, flag, value);
}

/* An output must not replace what is read, or another output. */
static bool keeps_others(const char *flag, const char *output, const char *const *others,
                         size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        if (others[i] != NULL && file_is_same(output, others[i]))
            return misuse(err, flag, output, "the output would replace another file of this run");
    return true;
}

/* ---- The contract ---- */

static bool open_contract(struct blocks_setup *s, struct error *err)
{
    const char *track;
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(s->o->contract, track, &s->contract, err))
        return false;
    const struct contract *c = s->contract;
    if (!contract_require_official_scoring(c, err) || !contract_require_block_decode(c, err) ||
        !contract_fidelity_limits(c, &s->limits, err) || !contract_require_decode_floor(c, err) ||
        !contract_require_window(c, err))
        return false;
    if (c->block_decode.target_pairs <= PAIRED_COUNT_MAX)
        return true;
    error_set(err, "CONTRACT-INVALID", "a ranked run measures %d pairs at most", PAIRED_COUNT_MAX);
    return error_at(err, c->path, "block_decode.target_pairs", NULL);
}

/* A time belongs to one machine: without this one's nothing is scored. */
static bool check_calibration(struct blocks_setup *s, struct error *err)
{
    const struct contract *c = s->contract;
    const struct contract_block_decode *b = &c->block_decode;
    if (!b->has_calibration) {
        error_set(err, "BASELINE-CALIBRATION-MISSING",
                  "the contract of \"%s\" pins no serial time of this machine", c->track_id);
        return error_at(err, c->path, "block_decode.calibration", "missing");
    }
    if (!calibration_box(s->o->box, &s->box, err))
        return false;
    if (strcmp(s->box, b->calibration_machine) == 0)
        return true;
    error_set(err, "BASELINE-CALIBRATION-BOX-MISMATCH",
              "the calibration is of \"%s\", and this machine is \"%s\"", b->calibration_machine,
              s->box);
    return error_at(err, c->path, "block_decode.calibration.machine", s->box);
}

bool blocks_setup_is_calibration(const struct error *err)
{
    return strncmp(err->name, "BASELINE-CALIBRATION-", 21) == 0 ||
           strcmp(err->name, "BASELINE-BOX-UNRESOLVED") == 0;
}

/* ---- Files of the organiser ---- */

static bool find_draw_record(struct blocks_setup *s, struct error *err)
{
    const struct blocks_official_options *o = s->o;
    const char *folder = getenv("MLXFAST_PRIVATE_DIR");
    if (o->draw_record != NULL)
        s->draw_record = o->draw_record;
    else if (folder != NULL && *folder != '\0')
        s->draw_record = path_join(&s->arena, folder, "prompt-draw.json");
    else
        return misuse(err, "--draw-file", NULL,
                      "which prompt is drawn goes into a private file: name one, or set "
                      "MLXFAST_PRIVATE_DIR");
    const char *const others[] = {o->score_path, o->contract, o->golden, o->engine};
    return keeps_others("--draw-file", s->draw_record, others, 4, err) &&
           file_check_target(s->draw_record, err);
}

static bool check_flags(struct blocks_setup *s, struct error *err)
{
    const struct blocks_official_options *o = s->o;
    if (o->pool_folder == NULL)
        return misuse(err, "--pool", NULL,
                      "a ranked run of block decoding draws its prompt from a pool: name the "
                      "folder of its files");
    if (o->golden == NULL)
        return misuse(err, "--golden", NULL,
                      "a ranked run walks a correctness golden before it times anything");
    if (o->drafter == NULL)
        return misuse(err, "--drafter", NULL, "block decoding needs the drafter's folder");
    const char *base = roots_workspace(o->baseline_workspace);
    const char *const inputs[] = {o->contract,
                                  o->golden,
                                  o->engine,
                                  o->weights,
                                  o->drafter,
                                  o->pool_folder,
                                  base != NULL ? path_join(&s->arena, base, o->engine) : NULL,
                                  base != NULL ? path_join(&s->arena, base, o->weights) : NULL,
                                  evidence_key_of(o->signing_key),
                                  evidence_log_of(o->log)};
    return seal_keeps(o->score_path, false, inputs, sizeof inputs / sizeof *inputs, err) &&
           seal_check(o->score_path, false, err) && resident_check_environment(environ, err);
}

/* Every entry is read before one is drawn, so that a bad one ends every run and not one in eight.
 */
static bool open_pool(struct blocks_setup *s, struct error *err)
{
    const struct contract *c = s->contract;
    const struct dflash_golden_rules rules = {.vocab_size = c->vocab_size,
                                              .seed_tokens = c->seed_tokens,
                                              .maximum_rows = c->block_decode.maximum_decode_tokens,
                                              .require_self_consistent = true};
    if (!pool_check(c, s->o->pool_folder, err))
        return false;
    s->pool = arena_array(&s->arena, c->pool_count, sizeof *s->pool);
    for (size_t i = 0; i < c->pool_count; i++) {
        const char *path = path_join(&s->arena, s->o->pool_folder, path_basename(c->pool[i].path));
        double noop;
        if (!dflash_golden_load(path, &rules, &s->pool[i], err) ||
            !contract_check_pooled(c, s->pool[i]->sha256, s->pool[i]->bytes, err))
            return false;
        if (strcmp(s->pool[i]->sha256, c->pool[i].sha256) != 0) {
            error_set(err, "GOLDEN-PIN-MISMATCH", "the file was changed while it was read");
            return error_at(err, path, NULL, NULL);
        }
        if (!block_score_require_normaliser(c, s->pool[i]->sha256, &noop, err))
            return false;
    }
    return true;
}

static bool open_golden(struct blocks_setup *s, struct error *err)
{
    const struct contract *c = s->contract;
    struct golden_rules rules = run_correctness_rules(c);
    rules.pin_sha256 = s->o->golden_sha256;
    rules.pin_bytes = s->o->golden_bytes;
    return golden_load(s->o->golden, &rules, &s->golden, err) &&
           semantic_judge_from_environment(&s->semantic, err) &&
           semantic_check_ready(&s->semantic, s->golden, c->semantic_min_pass, err);
}

/* ---- Workers ---- */

static bool plan_sandbox(struct blocks_setup *s, bool baseline, struct sandbox_plan *out,
                         struct error *err)
{
    const struct blocks_official_options *o = s->o;
    const struct client_options *c = baseline ? &s->control : &s->candidate;
    const char *const hidden[] = {o->pool_folder, o->golden, o->contract, s->draw_record, NULL};
    const char *const *trees = o->engine_trees;
    if (baseline && !roots_engine_trees(s->baseline.workspace, trees, &s->arena, &trees, err))
        return false;
    const struct sandbox_request request = {.mode = SANDBOX_OFFICIAL,
                                            .switched_off = o->no_sandbox,
                                            .reference_leg = baseline,
                                            .engine = c->engine,
                                            .weights = c->weights,
                                            .drafter = o->drafter,
                                            .engine_trees = trees,
                                            .resources = o->resources,
                                            .hidden = hidden,
                                            .features =
                                                contract_is_cuda(s->contract) ? SANDBOX_GPU : 0,
                                            .environment = environ};
    return sandbox_plan(&s->arena, &request, out, err);
}

static bool plan_workers(struct blocks_setup *s, struct error *err)
{
    const struct blocks_official_options *o = s->o;
    struct client_options common = {.drafter = o->drafter,
                                    .resources = o->resources,
                                    .block_protocol = true,
                                    .withhold_text = true,
                                    .yarn_magnitude = s->contract->yarn_magnitude,
                                    .arithmetic = s->contract->engine_arithmetic};
    if (!client_deadlines_from_environment(&common, err) ||
        !client_ceiling_from_environment(&s->run_ceiling_seconds, err))
        return false;
    s->candidate = s->control = common;
    s->candidate.engine = o->engine;
    s->candidate.weights = o->weights;
    s->control.engine = s->baseline.engine;
    s->control.weights = s->baseline.weights;
    if (!plan_sandbox(s, true, &s->baseline_sandbox, err))
        return false;
    s->control.sandbox = &s->baseline_sandbox;
    s->reference = s->control;
    s->reference.trusted = true;
    return true;
}

static bool stamp_baseline(struct blocks_setup *s, struct error *err)
{
    const char *drafter = s->o->drafter;
    if (!file_is_directory(drafter)) {
        error_set(err, "DRAFTER-MISSING", "the drafter's folder is not there");
        return error_at(err, drafter, NULL, NULL);
    }
    return path_stamp(drafter, s->stamps.drafter, err) &&
           path_stamp(s->baseline.weights, s->stamps.baseline_weights, err) &&
           path_stamp(s->baseline.engine, s->stamps.baseline_engine, err) &&
           weights_digest(drafter, &s->drafter, err);
}

bool blocks_official_is_for(const struct contract *c)
{
    return c->has_block_decode;
}

bool blocks_setup_open(struct blocks_setup *s, struct error *err)
{
    const struct blocks_official_options *o = s->o;
    return open_contract(s, err) && check_calibration(s, err) && check_flags(s, err) &&
           find_draw_record(s, err) &&
           roots_resolve(roots_workspace(o->baseline_workspace), o->engine, o->weights, &s->arena,
                         &s->baseline, err) &&
           open_pool(s, err) && open_golden(s, err) && stamp_baseline(s, err) &&
           plan_workers(s, err);
}

/* ---- The submission ---- */

static bool holds_no_golden(const struct blocks_setup *s, const char *folder, struct error *err)
{
    if (!weights_check_golden(folder, s->o->golden, err))
        return false;
    for (size_t i = 0; i < s->contract->pool_count; i++)
        if (!weights_check_golden(folder, s->pool[i]->path, err))
            return false;
    return true;
}

/* By content: a copy under another name judges no better. */
static bool compare_engines(struct blocks_setup *s, struct error *err)
{
    uint8_t own[SHA256_BYTES], baseline[SHA256_BYTES];
    if (!sha256_file(s->o->engine, own, NULL, err) ||
        !sha256_file(s->baseline.engine, baseline, NULL, err))
        return false;
    s->own_reference = memcmp(own, baseline, sizeof own) == 0;
    return true;
}

bool blocks_setup_prepare(struct blocks_setup *s, struct error *err)
{
    const struct blocks_official_options *o = s->o;
    if (!file_is_directory(o->weights)) {
        error_set(err, "WEIGHTS-MISSING", "the weights folder is not there");
        return error_at(err, o->weights, NULL, NULL);
    }
    if (!run_check_engine(o->engine, err) || !path_stamp(o->weights, s->stamps.weights, err) ||
        !path_stamp(o->engine, s->stamps.engine, err) ||
        !weights_digest(o->weights, &s->weights, err) ||
        !weights_check_format(o->weights, s->contract, err) ||
        !weights_check_shape(o->weights, s->contract, err) ||
        !holds_no_golden(s, o->weights, err) || !holds_no_golden(s, o->drafter, err) ||
        !compare_engines(s, err) || !plan_sandbox(s, false, &s->candidate_sandbox, err))
        return false;
    s->candidate.sandbox = &s->candidate_sandbox;
    return true;
}

/* ---- The draw ---- */

static void render_draw(const struct contract *c, size_t index, struct buffer *out)
{
    const struct contract_pool_entry *e = &c->pool[index];
    char when[32];
    json_t *o = json_object();
    json_object_set_new(o, "track_id", json_string(c->track_id));
    json_object_set_new(o, "contract_sha256", json_string(c->sha256));
    json_object_set_new(o, "drawn_at", json_string(clock_utc_text(when, sizeof when)));
    json_object_set_new(o, "index", json_integer((json_int_t)index));
    json_object_set_new(o, "path", json_string(e->path));
    json_object_set_new(o, "sha256", json_string(e->sha256));
    json_object_set_new(o, "bytes", json_integer((json_int_t)e->bytes));
    json_object_set_new(o, "noop_decode_speedup", json_real(e->noop_decode_speedup));
    json_write_ordered(o, 2, out);
    buffer_char(out, '\n');
    json_decref(o);
}

bool blocks_setup_draw(struct blocks_setup *s, pool_random *random, void *context,
                       struct error *err)
{
    struct buffer text = {0};
    size_t index;
    if (!pool_draw(random, context, s->contract->pool_count, &index, err))
        return false;
    render_draw(s->contract, index, &text);
    const mode_t before = umask(077); /* nobody else reads it, whoever made the folder */
    const bool ok = file_write_atomic(s->draw_record, text.data, text.length, err);
    umask(before);
    buffer_free(&text);
    if (ok)
        s->prompt = s->pool[index];
    return ok;
}

bool blocks_setup_check_baseline(const struct blocks_setup *s, struct error *err)
{
    return stamp_check_drafter(s->o->drafter, s->stamps.drafter, err) &&
           stamp_check_weights(s->baseline.weights, s->stamps.baseline_weights, err) &&
           stamp_check_engine(s->baseline.engine, s->stamps.baseline_engine, err);
}

bool blocks_setup_check_submission(const struct blocks_setup *s, struct error *err)
{
    return stamp_check_weights(s->o->weights, s->stamps.weights, err) &&
           stamp_check_engine(s->o->engine, s->stamps.engine, err);
}

void blocks_setup_close(struct blocks_setup *s)
{
    for (size_t i = 0; s->pool != NULL && i < s->contract->pool_count; i++)
        dflash_golden_free(s->pool[i]);
    golden_free(s->golden);
    contract_free(s->contract);
    arena_free(&s->arena);
}
