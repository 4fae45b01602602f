#include "judge/dflash_command.h"
#include "judge/weights_format.h"

#include "base/child.h"
#include "base/file.h"
#include "judge/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HIDDEN_MOST = 8 };

bool dflash_is_official(void)
{
    const char *value = getenv("MLXFAST_OFFICIAL_BENCHMARK_RUN");
    return value != NULL && strcmp(value, "1") == 0;
}

bool dflash_setup_open(struct dflash_setup *s, const struct dflash_flags *f, struct error *err)
{
    const char *track;
    s->f = f;
    s->reference_engine = f->reference_engine != NULL ? f->reference_engine : f->engine;
    s->candidate = (struct client_options){.engine = f->engine,
                                           .weights = f->weights,
                                           .drafter = f->drafter,
                                           .resources = f->resources,
                                           .block_protocol = true,
                                           .echo_stderr = !f->quiet && !dflash_is_official(),
                                           .withhold_text = dflash_is_official()};
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(f->contract, track, &s->contract, err) ||
        !contract_require_block_decode(s->contract, err) ||
        !contract_fidelity_limits(s->contract, &s->limits, err) ||
        !client_deadlines_from_environment(&s->candidate, err) ||
        !client_ceiling_from_environment(&s->run_ceiling_seconds, err) ||
        (f->output != NULL && !file_check_target(f->output, err)))
        return false;
    s->candidate.yarn_magnitude = s->contract->yarn_magnitude;
    s->candidate.arithmetic = s->contract->engine_arithmetic;
    s->reference = s->candidate;
    s->reference.engine = s->reference_engine;
    if (f->reference_weights != NULL)
        s->reference.weights = f->reference_weights;
    s->reference.trusted = true;
    return true;
}

static bool check_folder(const char *path, const char *name, const char *what, struct error *err)
{
    if (file_is_directory(path))
        return true;
    error_set(err, name, "%s", what);
    return error_at(err, path, NULL, NULL);
}

static bool check_engine(const char *path, struct error *err)
{
    if (access(path, X_OK) == 0 && !file_is_directory(path))
        return true;
    error_set(err, "ENGINE-MISSING", "the engine is no executable file");
    return error_at(err, path, NULL, NULL);
}

static bool show_digest(const struct dflash_setup *s, const char *what, const char *folder,
                        char sha256[SHA256_HEX], struct error *err)
{
    struct tree_digest d;
    if (!weights_digest(folder, &d, err))
        return false;
    memcpy(sha256, d.sha256, SHA256_HEX);
    if (!s->f->quiet)
        fprintf(stderr, "%s: sha256 %s, %" PRIu64 " bytes in %" PRIu64 " files\n", what, d.sha256,
                d.bytes, d.files);
    return true;
}

/* By content: a copy under another name judges no better. */
static bool compare_engines(struct dflash_setup *s, struct error *err)
{
    uint8_t own[SHA256_BYTES], other[SHA256_BYTES];
    if (!sha256_file(s->f->engine, own, NULL, err) ||
        !sha256_file(s->reference_engine, other, NULL, err))
        return false;
    s->own_reference = memcmp(own, other, sizeof own) == 0;
    return true;
}

static bool plan_sandbox(struct dflash_setup *s, bool is_reference, const char *const *hidden,
                         struct error *err)
{
    const struct dflash_flags *f = s->f;
    struct client_options *o = is_reference ? &s->reference : &s->candidate;
    struct sandbox_plan *plan = is_reference ? &s->reference_sandbox : &s->candidate_sandbox;
    const struct sandbox_request request = {
        .mode = dflash_is_official() ? SANDBOX_OFFICIAL : SANDBOX_LOCAL,
        .switched_off = f->no_sandbox,
        .reference_leg = is_reference,
        .engine = o->engine,
        .weights = o->weights,
        .drafter = f->drafter,
        .engine_trees = f->trees.count > 0 ? f->trees.items : NULL,
        .resources = f->resources,
        .hidden = hidden,
        .features = contract_is_cuda(s->contract) ? SANDBOX_GPU : 0,
        .environment = environ};
    if (!sandbox_plan(&s->arena, &request, plan, err))
        return false;
    o->sandbox = plan;
    if (plan->reason != NULL && !is_reference && !f->quiet)
        fprintf(stderr, "sandbox: none, the engine runs unsandboxed (%s)\n", plan->reason);
    return true;
}

bool dflash_prepare(struct dflash_setup *s, const char *const *hidden, struct error *err)
{
    const struct dflash_flags *f = s->f;
    const char *all[HIDDEN_MOST + 2] = {f->contract};
    for (size_t i = 0; i < HIDDEN_MOST && hidden[i] != NULL; i++)
        all[i + 1] = hidden[i];
    if (!check_folder(f->weights, "WEIGHTS-MISSING", "the weights folder is not there", err) ||
        !check_folder(f->drafter, "DRAFTER-MISSING", "the drafter's folder is not there", err) ||
        (f->reference_weights != NULL && !check_folder(f->reference_weights, "WEIGHTS-MISSING",
                                                       "the weights folder is not there", err)) ||
        !check_engine(f->engine, err) || !check_engine(s->reference_engine, err))
        return false;
    /* Before anything is read: what is read afterwards must be what ran. */
    return path_stamp(f->weights, s->weights, err) && path_stamp(f->drafter, s->drafter, err) &&
           (f->reference_weights == NULL ||
            path_stamp(f->reference_weights, s->reference_weights, err)) &&
           path_stamp(f->engine, s->engine, err) &&
           path_stamp(s->reference_engine, s->reference_stamp, err) && compare_engines(s, err) &&
           weights_check_format(f->weights, s->contract, err) &&
           weights_check_shape(f->weights, s->contract, err) &&
           show_digest(s, "weights", f->weights, s->weights_sha256, err) &&
           show_digest(s, "drafter", f->drafter, s->drafter_sha256, err) &&
           (hidden[0] == NULL || (weights_check_golden(f->weights, hidden[0], err) &&
                                  weights_check_golden(f->drafter, hidden[0], err))) &&
           plan_sandbox(s, false, all, err) && plan_sandbox(s, true, all, err);
}

bool dflash_check_unchanged(const struct dflash_setup *s, struct error *err)
{
    return stamp_check_weights(s->f->weights, s->weights, err) &&
           (s->f->reference_weights == NULL ||
            stamp_check_weights(s->f->reference_weights, s->reference_weights, err)) &&
           stamp_check_drafter(s->f->drafter, s->drafter, err) &&
           stamp_check_engine(s->f->engine, s->engine, err) &&
           stamp_check_engine(s->reference_engine, s->reference_stamp, err);
}

void dflash_setup_close(struct dflash_setup *s)
{
    contract_free(s->contract);
    arena_free(&s->arena);
}

static bool misuse(struct error *err, const char *flag, int64_t value, const char *what,
                   int64_t most)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    error_set(err, "USAGE", "%s is 1 to %" PRId64 " under this contract", what, most);
    return error_at(err, NULL, flag, text);
}

bool dflash_check_tokens(const struct dflash_setup *s, const char *flag, int64_t tokens,
                         struct error *err)
{
    const int64_t most = s->contract->block_decode.maximum_decode_tokens;
    return (tokens >= 1 && tokens <= most) ||
           misuse(err, flag, tokens, "the number of tokens", most);
}

bool dflash_check_block_size(const struct dflash_setup *s, int64_t size, struct error *err)
{
    const int64_t most = s->contract->block_decode.maximum_block_size;
    return (size >= 1 && size <= most) || misuse(err, "--block-size", size, "the block size", most);
}
