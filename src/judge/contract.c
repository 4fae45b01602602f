/* The track's contract: identity, groups, ranges (contract-and-scoring.md section 1). */
#include "judge/contract.h"

#include "base/file.h"
#include "base/json.h"
#include "judge/contract_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTRACT_BYTES_MAX = 4 << 20, CONTRACT_PATH_MAX = 4096, TOLERANCE_PER_THOUSAND_MAX = 1000 };

#define GROUP(r, keys, has) contract_has_group(r, keys, sizeof(keys) / sizeof((keys)[0]), has)

/* The id names folders, environment values and score files: letters, digits, '.', '_', '-', and a
 * version at the end. The platform token of the naming rule is not asked for, since tracks that
 * predate it (laguna-xs-2.1-dflash-v1) must load. */
static bool track_id_has_shape(const char *id)
{
    size_t length = strlen(id), digits = 0;
    for (size_t i = 0; i < length; i++)
        if (!((id[i] >= 'a' && id[i] <= 'z') || (id[i] >= 'A' && id[i] <= 'Z') ||
              (id[i] >= '0' && id[i] <= '9') || (i > 0 && strchr("._-", id[i]))))
            return false;
    while (digits < length && id[length - 1 - digits] >= '0' && id[length - 1 - digits] <= '9')
        digits++;
    return length <= 128 && digits > 0 && length > digits + 2 && id[length - digits - 1] == 'v' &&
           id[length - digits - 2] == '-';
}

/* The token before the version, where it is a platform's (contract-and-scoring.md section 1). */
static const char *track_platform(const char *id)
{
    const char *version = strrchr(id, '-');
    static const char *const names[] = {"mlx", "cuda"};
    for (size_t i = 0; version && i < sizeof names / sizeof names[0]; i++) {
        const size_t length = strlen(names[i]);
        if ((size_t)(version - id) > length && version[-(ptrdiff_t)length - 1] == '-' &&
            strncmp(version - length, names[i], length) == 0)
            return names[i];
    }
    return NULL;
}

static bool read_modes(const struct contract_reader *r)
{
    struct contract *c = r->c;
    static const char key[] = "allowed_modes";
    if (!contract_has(r, key)) {
        c->allowed_modes[0] = "serial";
        c->allowed_modes[1] = "mtp";
        c->allowed_mode_count = 2;
        return true;
    }
    const json_t *list = json_object_get(r->view.object, key);
    bool serial = false;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return contract_refuse_value(r, key, "must be an array that is not empty");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *mode = json_string_value(json_array_get(list, i));
        if (!mode)
            return contract_refuse_value(r, key, "must hold strings");
        if (strcmp(mode, "dspark") == 0)
            return contract_refuse(r, key, mode, "the mode is reserved");
        if (strcmp(mode, "serial") != 0 && strcmp(mode, "mtp") != 0 && strcmp(mode, "dflash") != 0)
            return contract_refuse(r, key, mode, "the mode is not one of serial, mtp, dflash");
        for (size_t j = 0; j < c->allowed_mode_count; j++)
            if (strcmp(c->allowed_modes[j], mode) == 0)
                return contract_refuse(r, key, mode, "the mode is repeated");
        /* No repeats among three names: the array of eight cannot overflow. */
        c->allowed_modes[c->allowed_mode_count++] = mode;
        serial = serial || strcmp(mode, "serial") == 0;
    }
    return serial || contract_refuse_value(r, key, "must contain serial");
}

static bool read_pool_entry(const struct contract_reader *root, const json_t *entry, size_t index,
                            struct contract_pool_entry *out)
{
    struct contract *c = root->c;
    const char *where = arena_printf(&c->arena, "timed_prompt_pool[%zu]", index);
    if (!json_is_object(entry))
        return contract_refuse(root, where, NULL, "must be an object");
    const struct contract_reader r = {c, {entry, c->path, where}, root->err};
    const char *key, *text = NULL;
    json_t *value;
    json_object_foreach((json_t *)entry, key, value)
    {
        const char *field = arena_printf(&c->arena, "%s.%s", where, key);
        char shape[128];
        contract_value_text(value, shape, sizeof shape);
        if (text_ends(key, "_note"))
            continue;
        if (!contract_key_is_known(CONTRACT_POOL_ENTRY, key))
            return contract_refuse_key(&r, CONTRACT_POOL_ENTRY, key, field, NULL);
        if (strcmp(key, "sha256") == 0) {
            text = json_string_value(value);
            if (!text || !text_is_lower_hex(text, SHA256_HEX - 1))
                return contract_refuse(root, field, shape,
                                       "must be 64 lower-case hexadecimal digits");
        } else if (strcmp(key, "bytes") == 0) {
            if (!json_is_integer(value) || json_integer_value(value) < 1)
                return contract_refuse(root, field, shape, "must be an integer above 0");
            out->bytes = (uint64_t)json_integer_value(value);
        } else if (strcmp(key, "noop_decode_speedup") == 0) {
            double x = json_is_number(value) ? json_number_value(value) : NAN;
            if (!isfinite(x) || x <= 0)
                return contract_refuse(root, field, shape, "must be a finite number above 0");
            out->noop_decode_speedup = x;
        } else if (!json_is_string(value) || contract_text_is_blank(json_string_value(value)) ||
                   json_string_length(value) >= CONTRACT_PATH_MAX) {
            return contract_refuse(root, field, shape, "must be a path");
        }
    }
    if (!text)
        return contract_refuse(root, arena_printf(&c->arena, "%s.sha256", where), "missing",
                               "every entry is pinned by its digest");
    text_copy(out->sha256, sizeof out->sha256, text);
    /* A local path is ours and wins; r2_path is where the organiser's store keeps the file. */
    out->path = json_string_value(json_object_get(entry, "path"));
    if (!out->path)
        out->path = json_string_value(json_object_get(entry, "r2_path"));
    return true;
}

static bool read_pool(const struct contract_reader *r)
{
    struct contract *c = r->c;
    if (!contract_has(r, "timed_prompt_pool"))
        return true;
    const json_t *list = json_object_get(r->view.object, "timed_prompt_pool");
    if (!json_is_array(list))
        return contract_refuse_value(r, "timed_prompt_pool", "must be an array");
    c->pool_count = json_array_size(list);
    c->pool = arena_array(&c->arena, c->pool_count ? c->pool_count : 1, sizeof *c->pool);
    for (size_t i = 0; i < c->pool_count; i++)
        if (!read_pool_entry(r, json_array_get(list, i), i, &c->pool[i]))
            return false;
    return true;
}

static bool read_identity(const struct contract_reader *r, const char *track_env)
{
    struct contract *c = r->c;
    const char *id = NULL;
    if (!contract_has(r, "track_id"))
        return contract_refuse(r, "track_id", "missing", "every track has an id");
    if (!contract_get_name(r, "track_id", &id))
        return false;
    if (!track_id_has_shape(id))
        return contract_refuse_value(
            r, "track_id", "must be letters, digits, '.', '_' and '-', and end in -v<number>");
    c->track_id = id;
    c->platform = track_platform(id);
    if (track_env && strcmp(track_env, id) != 0) {
        error_set(r->err, "TRACK-ID-MISMATCH",
                  "the --contract track fixture for \"%s\" declares another track than the "
                  "environment, which asks for \"%s\"",
                  id, track_env);
        return error_at(r->err, c->path, "track_id", id);
    }
    if (contract_has(r, "track_name") && !contract_get_text(r, "track_name", &c->track_name))
        return false;
    c->has_official_scoring_enabled = contract_has(r, "official_scoring_enabled");
    if (c->has_official_scoring_enabled &&
        !contract_get_flag(r, "official_scoring_enabled", &c->official_scoring_enabled))
        return false;
    return read_modes(r) && read_pool(r);
}

static bool read_paired_run(const struct contract_reader *r)
{
    struct contract *c = r->c;
    int64_t pairs = 0;
    c->has_official_pairs = contract_has(r, "official_pairs");
    if (c->has_official_pairs &&
        !contract_get_count(r, "official_pairs", 1, CONTRACT_COUNT_MAX, &pairs))
        return false;
    c->official_pairs = (uint32_t)pairs;
    if (contract_has(r, "official_pair_combine")) {
        const char *how = NULL;
        if (!contract_get_text(r, "official_pair_combine", &how))
            return false;
        c->combine_mean = strcmp(how, "mean") == 0;
        if (!c->combine_mean && strcmp(how, "lower_median") != 0)
            return contract_refuse_value(r, "official_pair_combine",
                                         "must be lower_median or mean");
    }
    if (contract_has(r, "official_pair_order")) {
        const char *order = NULL;
        if (!contract_get_text(r, "official_pair_order", &order))
            return false;
        c->alternate_pairs = strcmp(order, "alternate") == 0;
        if (!c->alternate_pairs && strcmp(order, "control_first") != 0)
            return contract_refuse_value(r, "official_pair_order",
                                         "must be control_first or alternate");
    }
    c->has_scores_against_live_control_leg = contract_has(r, "scores_against_live_control_leg");
    if (c->has_scores_against_live_control_leg &&
        !contract_get_flag(r, "scores_against_live_control_leg",
                           &c->scores_against_live_control_leg))
        return false;
    c->has_paired_flow_retired = contract_has(r, "paired_flow_retired");
    if (c->has_paired_flow_retired &&
        !contract_get_flag(r, "paired_flow_retired", &c->paired_flow_retired))
        return false;
    c->has_token_tolerance = contract_has(r, "timed_token_tolerance_per_thousand");
    if (c->has_token_tolerance &&
        !contract_get_count(r, "timed_token_tolerance_per_thousand", 0, TOLERANCE_PER_THOUSAND_MAX,
                            &c->token_tolerance_per_thousand))
        return false;
    c->has_near_tie_gap = contract_has(r, "timed_token_near_tie_relative_gap");
    if (!c->has_near_tie_gap)
        return true;
    if (!contract_get_real(r, "timed_token_near_tie_relative_gap", CONTRACT_REAL_NOT_NEGATIVE,
                           &c->near_tie_relative_gap))
        return false;
    if (c->near_tie_relative_gap >= 1)
        return contract_refuse_value(r, "timed_token_near_tie_relative_gap", "must be below 1");
    if (!c->has_token_tolerance)
        return contract_refuse_value(r, "timed_token_near_tie_relative_gap",
                                     "needs timed_token_tolerance_per_thousand");
    return true;
}

enum { REWARM_MOST = 1000 };

static bool read_around_the_clock(const struct contract_reader *r)
{
    struct contract *c = r->c;
    if (contract_has(r, "rewarm_runs") &&
        !contract_get_count(r, "rewarm_runs", 0, REWARM_MOST, &c->rewarm_runs))
        return false;
    c->has_seed_window_tolerance = contract_has(r, "seed_window_tolerance");
    return !c->has_seed_window_tolerance ||
           contract_get_real(r, "seed_window_tolerance", CONTRACT_REAL_NOT_NEGATIVE,
                             &c->seed_window_tolerance);
}

static bool read_mismatch_gap(const struct contract_reader *r)
{
    struct contract *c = r->c;
    c->has_mismatch_logit_gap = contract_has(r, "mismatch_logit_gap");
    return !c->has_mismatch_logit_gap ||
           contract_get_real(r, "mismatch_logit_gap", CONTRACT_REAL_NOT_NEGATIVE,
                             &c->mismatch_logit_gap);
}

static bool read_semantic_min_pass(const struct contract_reader *r)
{
    return !contract_has(r, "semantic_min_pass") ||
           contract_get_count(r, "semantic_min_pass", 1, CONTRACT_COUNT_MAX,
                              &r->c->semantic_min_pass);
}

static bool read_floors(const struct contract_reader *r)
{
    struct contract *c = r->c;
    c->has_decode_floor = contract_has(r, "decode_speedup_floor");
    c->has_prefill_floor = contract_has(r, "prefill_speedup_floor");
    return (!c->has_decode_floor ||
            contract_get_real(r, "decode_speedup_floor", CONTRACT_REAL_POSITIVE,
                              &c->decode_speedup_floor)) &&
           (!c->has_prefill_floor ||
            contract_get_real(r, "prefill_speedup_floor", CONTRACT_REAL_POSITIVE,
                              &c->prefill_speedup_floor));
}

/* scored_batch_size may stand alone; an exponent commits the fixture to all three. */
static bool read_regime(const struct contract_reader *r)
{
    static const char *const keys[] = {"scored_batch_size", "prefill_gain_exponent",
                                       "decode_gain_exponent"};
    struct contract *c = r->c;
    int64_t batch = 0;
    c->has_scored_batch_size = contract_has(r, keys[0]);
    if (c->has_scored_batch_size && !contract_get_count(r, keys[0], 1, CONTRACT_COUNT_MAX, &batch))
        return false;
    c->scored_batch_size = (uint32_t)batch;
    if (!contract_has(r, keys[1]) && !contract_has(r, keys[2]))
        return true;
    if (!GROUP(r, keys, &c->has_regime) ||
        !contract_get_real(r, keys[1], CONTRACT_REAL_NOT_NEGATIVE, &c->prefill_gain_exponent) ||
        !contract_get_real(r, keys[2], CONTRACT_REAL_NOT_NEGATIVE, &c->decode_gain_exponent))
        return false;
    if (c->prefill_gain_exponent == 0 && c->decode_gain_exponent == 0)
        return contract_refuse_value(r, keys[1], "the two exponents cannot both be 0");
    return true;
}

static bool read_bands(const struct contract_reader *r)
{
    static const char *const keys[] = {"prefill_band_up_tolerance",  "prefill_band_down_tolerance",
                                       "prefill_band_down_enabled",  "decode_band_up_tolerance",
                                       "decode_band_down_tolerance", "decode_band_down_enabled"};
    struct contract *c = r->c;
    if (!GROUP(r, keys, &c->has_bands))
        return false;
    return !c->has_bands ||
           (contract_get_real(r, keys[0], CONTRACT_REAL_NOT_NEGATIVE, &c->prefill_band_up) &&
            contract_get_real(r, keys[1], CONTRACT_REAL_NOT_NEGATIVE, &c->prefill_band_down) &&
            contract_get_flag(r, keys[2], &c->prefill_band_down_enabled) &&
            contract_get_real(r, keys[3], CONTRACT_REAL_NOT_NEGATIVE, &c->decode_band_up) &&
            contract_get_real(r, keys[4], CONTRACT_REAL_NOT_NEGATIVE, &c->decode_band_down) &&
            contract_get_flag(r, keys[5], &c->decode_band_down_enabled));
}

static bool read_official_baseline(const struct contract_reader *r)
{
    static const char *const keys[] = {"official_baseline_prefill_seconds_per_token",
                                       "official_baseline_decode_seconds_per_token"};
    struct contract *c = r->c;
    if (!GROUP(r, keys, &c->has_official_baseline))
        return false;
    if (!c->has_official_baseline)
        return true;
    if (!contract_get_real(r, keys[0], CONTRACT_REAL_POSITIVE, &c->official_baseline_prefill) ||
        !contract_get_real(r, keys[1], CONTRACT_REAL_POSITIVE, &c->official_baseline_decode))
        return false;
    if (c->scores_against_live_control_leg)
        return contract_refuse_value(
            r, keys[0], "a stored pair cannot stand beside scores_against_live_control_leg");
    if (!c->has_bands)
        return contract_refuse(r, "prefill_band_up_tolerance", "missing",
                               "a stored baseline pair needs the acceptance bands");
    return true;
}

static bool read_weights(const struct contract_reader *r)
{
    static const char *const keys[] = {"score_decode_weight", "score_prefill_weight"};
    struct contract *c = r->c;
    if (!GROUP(r, keys, &c->has_weights))
        return false;
    if (!c->has_weights)
        return true;
    if (!contract_get_real(r, keys[0], CONTRACT_REAL_NOT_NEGATIVE, &c->score_decode_weight) ||
        !contract_get_real(r, keys[1], CONTRACT_REAL_NOT_NEGATIVE, &c->score_prefill_weight))
        return false;
    double sum = c->score_decode_weight + c->score_prefill_weight;
    if (!isfinite(sum) || sum <= 0)
        return contract_refuse_value(r, keys[0], "the two weights must have a finite sum above 0");
    return true;
}

static bool read_window(const struct contract_reader *r)
{
    static const char *const keys[] = {"correctness_steps", "benchmark_decode_steps",
                                       "local_submit_benchmark_decode_steps",
                                       "official_prefill_warmup_runs"};
    struct contract *c = r->c;
    if (!GROUP(r, keys, &c->has_window))
        return false;
    return !c->has_window ||
           (contract_get_count(r, keys[0], 1, CONTRACT_COUNT_MAX, &c->correctness_steps) &&
            contract_get_count(r, keys[1], 1, CONTRACT_COUNT_MAX, &c->benchmark_decode_steps) &&
            contract_get_count(r, keys[2], 1, CONTRACT_COUNT_MAX,
                               &c->local_submit_benchmark_decode_steps) &&
            contract_get_count(r, keys[3], 0, CONTRACT_COUNT_MAX,
                               &c->official_prefill_warmup_runs));
}

static bool read_model(const struct contract_reader *r)
{
    static const char *const keys[] = {"golden_model_type", "vocab_size", "num_hidden_layers",
                                       "seed_tokens"};
    struct contract *c = r->c;
    if (!GROUP(r, keys, &c->has_model))
        return false;
    return !c->has_model ||
           (contract_get_name(r, keys[0], &c->golden_model_type) &&
            contract_get_count(r, keys[1], 1, CONTRACT_COUNT_MAX, &c->vocab_size) &&
            contract_get_count(r, keys[2], 1, CONTRACT_COUNT_MAX, &c->num_hidden_layers) &&
            contract_get_count(r, keys[3], 1, CONTRACT_COUNT_MAX, &c->seed_tokens));
}

/* target holds much for other readers: only the pin's two halves are ours (goldens.md section 4).*/
static bool read_target(const struct contract_reader *root)
{
    struct contract *c = root->c;
    if (!contract_has(root, "target"))
        return true;
    const json_t *target = json_object_get(root->view.object, "target");
    if (!json_is_object(target))
        return contract_refuse_value(root, "target", "must be an object");
    static const char *const halves[] = {"upstream_model_id", "upstream_revision"};
    const char *value[2];
    for (int i = 0; i < 2; i++) {
        const char *field = arena_printf(&c->arena, "target.%s", halves[i]);
        const json_t *half = json_object_get(target, halves[i]);
        value[i] = json_string_value(half);
        if (!half)
            return contract_refuse(root, field, "missing",
                                   "the pin names a model and its revision");
        if (!value[i] || contract_text_is_blank(value[i]))
            return contract_refuse(root, field, value[i],
                                   "must be a string, not blank and not padded");
        if (i == 1 && !text_is_lower_hex(value[i], 40))
            return contract_refuse(root, field, value[i],
                                   "must be 40 lower-case hexadecimal digits");
    }
    c->target_model_id = value[0];
    c->target_revision = value[1];
    c->has_target_pin = true;
    return true;
}

static bool read_hidden_golden(const struct contract_reader *root)
{
    static const char block_name[] = "hidden_correctness_golden";
    struct contract *c = root->c;
    if (!contract_has(root, block_name))
        return true;
    const json_t *block = json_object_get(root->view.object, block_name);
    if (!json_is_object(block))
        return contract_refuse_value(root, block_name, "must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)block, key, value)
    {
        if (!contract_key_is_known(CONTRACT_HIDDEN_GOLDEN, key))
            return contract_refuse_key(root, CONTRACT_HIDDEN_GOLDEN, key,
                                       arena_printf(&c->arena, "%s.%s", block_name, key), NULL);
    }
    const char *digest = json_string_value(json_object_get(block, "sha256"));
    const json_t *bytes = json_object_get(block, "bytes");
    if (!digest || !text_is_lower_hex(digest, SHA256_HEX - 1))
        return contract_refuse(root, "hidden_correctness_golden.sha256",
                               digest ? digest : "missing",
                               "must be 64 lower-case hexadecimal digits");
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 1)
        return contract_refuse(root, "hidden_correctness_golden.bytes", bytes ? NULL : "missing",
                               "must be an integer above 0");
    text_copy(c->hidden_golden_sha256, sizeof c->hidden_golden_sha256, digest);
    c->hidden_golden_bytes = (uint64_t)json_integer_value(bytes);
    c->has_hidden_golden = true;
    return true;
}

static bool read_yarn_magnitude(const struct contract_reader *r)
{
    struct contract *c = r->c;
    if (!contract_has(r, "yarn_magnitude"))
        return true;
    if (!contract_get_text(r, "yarn_magnitude", &c->yarn_magnitude))
        return false;
    if (strcmp(c->yarn_magnitude, "attention_factor") != 0 &&
        strcmp(c->yarn_magnitude, "derived") != 0)
        return contract_refuse_value(r, "yarn_magnitude", "must be attention_factor or derived");
    return true;
}

static bool read_engine_arithmetic(const struct contract_reader *r)
{
    struct contract *c = r->c;
    if (!contract_has(r, "engine_arithmetic"))
        return true;
    if (!contract_get_text(r, "engine_arithmetic", &c->engine_arithmetic))
        return false;
    if (strcmp(c->engine_arithmetic, "strict") != 0 && strcmp(c->engine_arithmetic, "any") != 0)
        return contract_refuse_value(r, "engine_arithmetic", "must be strict or any");
    return true;
}

static bool check_keys(const struct contract_reader *r)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->view.object, key, value)
    {
        char text[128];
        if (!contract_key_is_known(CONTRACT_TOP, key))
            return contract_refuse_key(r, CONTRACT_TOP, key, key,
                                       contract_value_text(value, text, sizeof text));
    }
    return true;
}

bool contract_parse(const char *path, const char *data, size_t length, const char *track_env,
                    struct contract **out, struct error *err)
{
    struct contract *c = memory_alloc(sizeof *c);
    *out = NULL;
    c->path = arena_strdup(&c->arena, path);
    sha256_hex(data, length, c->sha256);
    c->json = json_parse_strict(data, length, JSON_DEPTH_DEFAULT, c->path, err);
    if (!c->json) {
        if (err)
            text_copy(err->name, sizeof err->name, "CONTRACT-INVALID");
        contract_free(c);
        return false;
    }
    const struct contract_reader r = {c, {c->json, c->path, ""}, err};
    bool ok = json_is_object(c->json) || contract_refuse(&r, "(root)", NULL, "must be an object");
    ok = ok && check_keys(&r) && read_identity(&r, track_env) && read_paired_run(&r) &&
         read_around_the_clock(&r) && read_mismatch_gap(&r) && read_semantic_min_pass(&r) &&
         read_floors(&r) && read_regime(&r) && read_bands(&r) && read_official_baseline(&r) &&
         read_weights(&r) && read_window(&r) && read_model(&r) && read_target(&r) &&
         read_hidden_golden(&r) && read_yarn_magnitude(&r) && read_engine_arithmetic(&r) &&
         contract_read_block_decode(&r) && contract_read_fidelity(&r) &&
         contract_read_statistics(&r) && contract_read_calibration_cv(&r) &&
         contract_read_envelope(&r) && contract_read_quiet(&r);
    if (!ok) {
        contract_free(c);
        return false;
    }
    *out = c;
    return true;
}

bool contract_load(const char *path, const char *track_env, struct contract **out,
                   struct error *err)
{
    struct buffer bytes = {0};
    *out = NULL;
    bool ok = file_read(path, CONTRACT_BYTES_MAX, &bytes, err) &&
              contract_parse(path, bytes.data ? bytes.data : "", bytes.length, track_env, out, err);
    buffer_free(&bytes);
    return ok;
}

void contract_free(struct contract *c)
{
    if (!c)
        return;
    json_decref(c->json);
    arena_free(&c->arena);
    free(c);
}
