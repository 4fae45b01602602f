#include "judge/job/inputs.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "judge/measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { WIRE_FILE_MAX = 64 << 20, WIRE_TOKENS_MAX = 1 << 20 };

/* ---- prompts ---- */

static bool load_tape(struct job_prompt *p, const struct contract *c, struct error *err)
{
    if (!tape_load(p->path, c->vocab_size, &p->tape, err))
        return false;
    p->name = p->tape->prompt_name;
    p->sha256 = p->tape->sha256;
    p->seed = p->tape->seed_tokens;
    p->seed_count = p->tape->seed_count;
    p->seed_token = p->tape->reference_seed_token;
    return true;
}

static bool load_golden(struct job_prompt *p, const struct contract *c, struct error *err)
{
    if (!contract_require_window(c, err))
        return false;
    const struct golden_rules rules = {.required_steps = c->correctness_steps,
                                       .required_prompt_tokens = c->seed_tokens,
                                       .vocab_size = c->vocab_size,
                                       .required_model_type = c->golden_model_type,
                                       .pin_repository = c->target_model_id,
                                       .pin_revision = c->target_revision,
                                       .require_benchmark = true,
                                       .refuse_stored_baseline =
                                           c->scores_against_live_control_leg};
    if (!golden_load(p->path, &rules, &p->golden, err))
        return false;
    const struct golden_benchmark *b = &p->golden->benchmark;
    p->name = p->golden->prompt_name;
    p->sha256 = p->golden->sha256;
    p->seed = b->decode_seed.items;
    p->seed_count = b->decode_seed.count;
    p->seed_token = b->expected_decode_seed_token;
    return true;
}

static bool load_prompt(struct job_inputs *in, const struct contract *c, const char *path,
                        struct error *err)
{
    enum timed_input kind;
    struct job_prompt *p = &in->prompts[in->prompt_count];
    p->path = path;
    if (!timed_input_route(path, &kind, err) ||
        !(kind == TIMED_INPUT_TAPE ? load_tape(p, c, err) : load_golden(p, c, err)))
        return false;
    in->prompt_count++;
    for (size_t i = 0; i + 1 < in->prompt_count; i++)
        if (strcmp(in->prompts[i].sha256, p->sha256) == 0) {
            error_set(err, "GOLDEN-REPEATED", "the golden has the same bytes as %s",
                      path_basename(in->prompts[i].path));
            return error_at(err, path, "--golden", p->sha256);
        }
    return true;
}

bool job_inputs_load(struct arena *a, const struct contract *c, const char *const *paths,
                     size_t count, struct job_inputs *out, struct error *err)
{
    *out = (struct job_inputs){.prompts = arena_array(a, count, sizeof *out->prompts)};
    for (size_t i = 0; i < count; i++)
        if (!load_prompt(out, c, paths[i], err))
            return false;
    return true;
}

void job_inputs_free(struct job_inputs *in)
{
    for (size_t i = 0; i < in->prompt_count; i++) {
        if (in->prompts[i].golden != NULL)
            golden_free(in->prompts[i].golden);
        if (in->prompts[i].tape != NULL)
            tape_free(in->prompts[i].tape);
    }
    *in = (struct job_inputs){0};
}

bool job_prompt_tokens(struct arena *a, const struct job_prompt *p, int64_t steps,
                       const int64_t **out, struct error *err)
{
    if (p->golden != NULL) {
        struct measure_oracle oracle;
        if (!measure_find_oracle(p->golden, steps, &oracle, err))
            return false;
        *out = oracle.decode_tokens;
        return true;
    }
    if (p->tape->row_count < (size_t)steps) {
        error_set(err, "TAPE-INVALID", "the tape has %zu rows, the window needs %lld",
                  p->tape->row_count, (long long)steps);
        return error_at(err, p->path, "rows", NULL);
    }
    int64_t *tokens = arena_array(a, (size_t)steps, sizeof *tokens);
    for (int64_t i = 0; i < steps; i++)
        tokens[i] = p->tape->rows[i].sequential_argmax;
    *out = tokens;
    return true;
}

/* ---- the pool ---- */

/* The entry's number, or the pool's size; *entries: how many pin it. */
static size_t find_entry(const struct contract *c, const char *sha256, size_t *entries)
{
    size_t found = c->pool_count;
    *entries = 0;
    for (size_t i = 0; i < c->pool_count; i++)
        if (strcmp(c->pool[i].sha256, sha256) == 0) {
            found = *entries == 0 ? i : found;
            ++*entries;
        }
    return found;
}

static uint64_t bytes_of(const struct job_prompt *p)
{
    return p->golden != NULL ? p->golden->bytes : p->tape->bytes;
}

void job_inputs_take_pins(struct job_inputs *in, const struct contract *c)
{
    for (size_t i = 0; i < in->prompt_count; i++) {
        size_t entries;
        const size_t at = find_entry(c, in->prompts[i].sha256, &entries);
        in->prompts[i].noop = entries > 0 ? c->pool[at].noop_decode_speedup : 0;
    }
}

bool job_inputs_check_pins(struct job_inputs *in, const struct contract *c, bool need_noop,
                           struct error *err)
{
    job_inputs_take_pins(in, c);
    for (size_t i = 0; i < in->prompt_count; i++) {
        const struct job_prompt *p = &in->prompts[i];
        size_t entries;
        find_entry(c, p->sha256, &entries);
        if (entries != 1)
            error_set(err, "GOLDEN-NOT-POOLED",
                      "the golden is pinned by %zu entries of timed_prompt_pool, not by one",
                      entries);
        else if (need_noop && !(p->noop > 0))
            error_set(err, "GOLDEN-NOT-POOLED",
                      "the pool's entry of the golden declares no noop_decode_speedup above 0");
        else if (!contract_check_pooled(c, p->sha256, bytes_of(p), err))
            return false;
        else
            continue;
        return error_at(err, p->path, "timed_prompt_pool", p->sha256);
    }
    return true;
}

bool job_inputs_check_cover(const struct job_inputs *in, const struct contract *c,
                            struct error *err)
{
    for (size_t i = 0; i < c->pool_count; i++) {
        bool found = false;
        for (size_t j = 0; j < in->prompt_count && !found; j++)
            found = strcmp(c->pool[i].sha256, in->prompts[j].sha256) == 0;
        if (found)
            continue;
        char field[48];
        snprintf(field, sizeof field, "timed_prompt_pool[%zu]", i);
        error_set(err, "POOL-NOT-COVERED", "no --golden is this entry of the pool");
        return error_at(err, c->path, field, c->pool[i].sha256);
    }
    return true;
}

/* ---- exponents ---- */

static bool bad_exponents(const struct contract *c, const char *what, struct error *err)
{
    error_set(err, "SCORED-EXPONENTS-CONFLICT", "%s", what);
    return error_at(err, c->path, "scored_exponents", NULL);
}

static bool read_nested(const json_t *nested, const char *key, double *out)
{
    const json_t *value = json_object_get(nested, key);
    *out = json_number_value(value);
    return json_is_number(value) && isfinite(*out) && *out >= 0;
}

bool job_contract_exponents(const struct contract *c, double *prefill, double *decode,
                            struct error *err)
{
    const json_t *nested = json_object_get(c->json, "scored_exponents");
    if (nested != NULL &&
        (!read_nested(nested, "prefill_gain_exponent", prefill) ||
         !read_nested(nested, "decode_gain_exponent", decode) || *prefill + *decode == 0))
        return bad_exponents(c, "both exponents are finite, 0 or more, and not both 0", err);
    if (nested != NULL)
        return !c->has_regime ||
               (*prefill == c->prefill_gain_exponent && *decode == c->decode_gain_exponent) ||
               bad_exponents(c, "the contract declares its exponents twice, and differently", err);
    if (!c->has_regime && !c->has_weights)
        return contract_require_regime(c, err);
    *prefill = c->has_regime ? c->prefill_gain_exponent : c->score_prefill_weight;
    *decode = c->has_regime ? c->decode_gain_exponent : c->score_decode_weight;
    return true;
}

/* ---- cohorts ---- */

/* The prompts by their place in the pool; those that are not in it keep their order behind. */
static const struct job_prompt **in_pool_order(const struct job_inputs *in,
                                               const struct contract *c, struct arena *a)
{
    const struct job_prompt **order = arena_array(a, in->prompt_count, sizeof *order);
    size_t n = 0;
    for (size_t place = 0; place <= c->pool_count; place++)
        for (size_t i = 0; i < in->prompt_count; i++) {
            size_t entries;
            if (find_entry(c, in->prompts[i].sha256, &entries) == place)
                order[n++] = &in->prompts[i];
        }
    return order;
}

bool job_inputs_form_cohorts(struct job_inputs *in, const struct contract *c, struct arena *a,
                             struct error *err)
{
    static const char name[] = "COHORT-MEMBERSHIP-INVALID";
    if (in->prompt_count == 0 || in->prompt_count % JOB_COHORT_STREAMS != 0) {
        error_set(err, name, "%zu prompts do not form cohorts of %d", in->prompt_count,
                  JOB_COHORT_STREAMS);
        return error_at(err, c->path, "--golden", NULL);
    }
    const struct job_prompt **order = in_pool_order(in, c, a);
    in->cohort_count = in->prompt_count / JOB_COHORT_STREAMS;
    in->cohorts = arena_array(a, in->cohort_count, sizeof *in->cohorts);
    for (size_t k = 0; k < in->cohort_count; k++) {
        struct job_cohort *cohort = &in->cohorts[k];
        struct buffer text = {0};
        for (size_t s = 0; s < JOB_COHORT_STREAMS; s++) {
            cohort->members[s] = order[k * JOB_COHORT_STREAMS + s];
            buffer_printf(&text, "%s\n", cohort->members[s]->sha256);
        }
        sha256_hex(text.data, text.length, cohort->sha256);
        buffer_free(&text);
        for (size_t s = 1; s < JOB_COHORT_STREAMS; s++) {
            if (cohort->members[s]->seed_count == cohort->members[0]->seed_count)
                continue;
            error_set(err, name, "the seeds of a cohort have %zu and %zu tokens",
                      cohort->members[0]->seed_count, cohort->members[s]->seed_count);
            return error_at(err, cohort->members[s]->path, "seed_tokens", NULL);
        }
    }
    return true;
}

/* ---- the captured prompt ---- */

bool job_wire_check_digest(const char *path, const char *sha256, struct error *err)
{
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    if (!sha256_file(path, digest, NULL, err))
        return false;
    text_hex(hex, digest, sizeof digest);
    if (strcmp(hex, sha256) == 0)
        return true;
    error_set(err, "PROMPT-DIGEST-MISMATCH", "the prompt's SHA-256 is %s, not --prompt-sha256",
              hex);
    return error_at(err, path, "--prompt-sha256", sha256);
}

/* Integers between white space, commas and brackets: the array form and the plain one alike. */
static bool read_tokens(char *text, int64_t *out, size_t *count)
{
    static const char between[] = " \t\r\n,[]";
    *count = 0;
    for (char *p = text + strspn(text, between); *p != '\0';) {
        char *end = p + strcspn(p, between);
        const char last = *end;
        *end = '\0';
        if (*count == WIRE_TOKENS_MAX || !number_int64(p, 0, INT64_MAX, &out[(*count)++]))
            return false;
        p = last != '\0' ? end + 1 : end;
        p += strspn(p, between);
    }
    return true;
}

bool job_wire_check_seed(const struct job_inputs *in, const char *path, struct error *err)
{
    struct buffer text = {0};
    struct arena a = {0};
    size_t count = 0, matches = 0;
    bool ok = file_read(path, WIRE_FILE_MAX, &text, err);
    if (ok) {
        int64_t *tokens = arena_array(&a, text.length / 2 + 2, sizeof *tokens);
        char nothing[] = "";
        ok = strlen(text.data != NULL ? text.data : "") == text.length &&
             read_tokens(text.data != NULL ? text.data : nothing, tokens, &count);
        for (size_t i = 0; ok && i < in->prompt_count; i++)
            matches += in->prompts[i].seed_count == count && count > 0 &&
                       memcmp(in->prompts[i].seed, tokens, count * sizeof *tokens) == 0;
        ok = ok && matches == 1;
        if (!ok) {
            error_set(err, "PROMPT-WIRE-MISMATCH",
                      "the captured prompt's tokens are the seed of %zu goldens, not of one",
                      matches);
            error_at(err, path, "--prompt", NULL);
        }
    }
    buffer_free(&text);
    arena_free(&a);
    return ok;
}
