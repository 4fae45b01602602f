#include "judge/run.h"

#include "base/buffer.h"
#include "base/clock.h"
#include "base/file.h"
#include "judge/commit.h"
#include "judge/digest.h"
#include "judge/seal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool mode_allowed(const struct contract *c, const char *mode)
{
    for (size_t i = 0; i < c->allowed_mode_count; i++)
        if (strcmp(c->allowed_modes[i], mode) == 0)
            return true;
    return false;
}

bool run_resolve_spec(struct arena *a, const struct contract *c, const char *candidate_spec,
                      int64_t mtp_depth, struct wire_spec *out, struct error *err)
{
    if (candidate_spec != NULL) {
        if (!wire_spec_decode(a, candidate_spec, strlen(candidate_spec), out, err)) {
            struct error inner = *err;
            error_set(err, "USAGE", "--candidate-spec is not a SpecConfig: %s", inner.message);
            return error_at(err, NULL, "--candidate-spec", candidate_spec);
        }
        out->present = true;
    } else if (mtp_depth > 0) {
        *out = (struct wire_spec){.present = true,
                                  .mode = "mtp",
                                  .has_mtp = true,
                                  .mtp_depth = {.present = true, .value = (uint32_t)mtp_depth}};
    }
    if (out->present && !mode_allowed(c, out->mode)) {
        error_set(err, "SPEC-MODE-NOT-ALLOWED-FOR-TRACK", "track \"%s\" does not allow mode \"%s\"",
                  c->track_id, out->mode);
        return error_at(err, c->path, "allowed_modes", out->mode);
    }
    return true;
}

void run_free_spec(struct wire_spec *spec)
{
    if (spec->dflash != NULL)
        json_decref(spec->dflash);
    if (spec->dspark != NULL)
        json_decref(spec->dspark);
    *spec = (struct wire_spec){0};
}

struct golden_rules run_correctness_rules(const struct contract *c)
{
    return (struct golden_rules){.required_steps = c->correctness_steps,
                                 .required_prompt_tokens = c->seed_tokens,
                                 .required_decode_steps = c->benchmark_decode_steps,
                                 .vocab_size = c->vocab_size,
                                 .required_model_type = c->golden_model_type,
                                 .pin_repository = c->has_target_pin ? c->target_model_id : NULL,
                                 .pin_revision = c->has_target_pin ? c->target_revision : NULL,
                                 .refuse_stored_baseline = c->scores_against_live_control_leg};
}

struct golden_rules run_golden_rules(const struct contract *c, int64_t steps)
{
    struct golden_rules rules = run_correctness_rules(c);
    /* expected_tokens[0] is the seed's token, [k + 1] that of decode step k. */
    if (steps + 1 > c->correctness_steps)
        rules.required_steps = steps + 1;
    rules.required_decode_steps = 0; /* a base case may complete the oracle (measure.h) */
    rules.require_benchmark = true;
    return rules;
}

struct gates_plan run_gates_plan(const struct contract *c, const struct golden *g,
                                 const struct semantic_judge *semantic)
{
    return (struct gates_plan){.golden = g,
                               .steps = c->correctness_steps,
                               .vocab_size = c->vocab_size,
                               .has_mismatch_gap = c->has_mismatch_logit_gap,
                               .mismatch_gap = c->mismatch_logit_gap,
                               .semantic = semantic,
                               .semantic_min_pass = c->semantic_min_pass};
}

struct gates_latency run_latency(const struct contract *c, struct arena *a)
{
    const size_t capacity = (size_t)c->correctness_steps;
    return (struct gates_latency){.seconds = arena_array(a, capacity, sizeof(double)),
                                  .capacity = capacity};
}

bool run_check_engine(const char *engine, struct error *err)
{
    if (access(engine, X_OK) == 0 && !file_is_directory(engine))
        return true;
    error_set(err, "ENGINE-MISSING", "the engine is no executable file");
    return error_at(err, engine, NULL, NULL);
}

bool run_seal_source(bool required, struct score_document *d, struct error *err)
{
    char commit[COMMIT_HEX];
    if (!commit_find(commit)) {
        error_set(err, "COMMIT-INVALID", "MLXFAST_COMMIT_SHA must be 40 lower-case hex digits");
        return error_at(err, NULL, "MLXFAST_COMMIT_SHA", getenv("MLXFAST_COMMIT_SHA"));
    }
    score_set_text(d, "commit", commit);
    struct tree_digest harness;
    if (harness_hash(".", NULL, &harness, err))
        score_set_text(d, "harness_hash", harness.sha256);
    else if (required || strcmp(err->name, "HARNESS-EMPTY") != 0)
        return false;
    return true;
}

void run_seal_contract(const struct contract *c, struct score_document *d)
{
    char when[32];
    score_set_text(d, "timestamp", clock_utc_text(when, sizeof when));
    score_set_text(d, "contract_sha256", c->sha256);
    score_set_json(d, "contract_sources", contract_sources(c));
    score_set_int(d, "num_layers", c->num_hidden_layers);
    if (c->has_prefill_floor)
        score_set_number(d, "prefill_speedup_floor", c->prefill_speedup_floor);
    if (c->has_decode_floor)
        score_set_number(d, "decode_speedup_floor", c->decode_speedup_floor);
}

void run_seal_experts(const struct wire_expert_stats *s, int64_t tokens, struct score_document *d)
{
    if (!s->present)
        return;
    const double asked = (double)s->expert_cache_hits + (double)s->expert_cache_misses;
    score_set_int(d, "expert_bytes_read", (int64_t)s->expert_bytes_read);
    score_set_number(d, "expert_read_seconds", s->expert_read_seconds);
    score_set_int(d, "expert_cache_hits", (int64_t)s->expert_cache_hits);
    score_set_int(d, "expert_cache_misses", (int64_t)s->expert_cache_misses);
    score_set_int(d, "expert_cache_evictions", (int64_t)s->expert_cache_evictions);
    score_set_number(d, "expert_hit_rate", asked > 0 ? (double)s->expert_cache_hits / asked : 0);
    score_set_int(d, "expert_peak_cached_tensors", (int64_t)s->expert_peak_cached_tensors);
    if (s->expert_bytes_read > 0 && tokens > 0)
        score_set_number(d, "bandwidth_gb_per_token",
                         (double)s->expert_bytes_read / (double)tokens * 1e-9);
}

void run_seal_failure(const struct error *why, struct score_document *d)
{
    struct buffer text = {0};
    seal_scrub(why->message, &text);
    score_fail(d, why->name, text.data != NULL ? text.data : "");
    buffer_free(&text);
}

const char *run_own_path(struct arena *a)
{
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    return n > 0 && (size_t)n < sizeof path ? arena_strndup(a, path, (size_t)n) : NULL;
}
