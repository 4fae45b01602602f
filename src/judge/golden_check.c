/* The rules of a decoded golden: names, lengths, ranges (goldens.md sections 1 to 3). */
#include "judge/golden_draft.h"

#include "base/buffer.h"
#include "base/json.h"

#include <math.h>
#include <string.h>

enum {
    ANCHOR_CONTEXT_MAX = 1024,
    ANCHOR_RANK_MAX = 8, /* the engine reports eight top logits */
    FREE_RUN_EXPECTED_MAX = 256,
    BEHAVIOR_PROMPT_MAX = 2048,
    BEHAVIOR_NEW_TOKENS_MAX = 64,
    DECODE_STEPS_DEFAULT = 128
};

struct checker {
    const struct golden_rules *rules;
    struct golden *g;
    struct error *err;
    json_t *names; /* a set: every name so far */
};

/* The code point at text, and how many bytes it takes. text is valid UTF-8. */
static uint32_t code_point(const char *text, int *bytes)
{
    const unsigned char *s = (const unsigned char *)text;
    int n = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    uint32_t c = n == 1 ? s[0] : s[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3f);
    *bytes = n;
    return c;
}

/* Unicode White_Space, which is what the original's trim removes. */
static bool is_white_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

struct text_shape {
    bool blank, padded, control;
};

static struct text_shape text_shape(const char *text)
{
    struct text_shape shape = {.blank = true};
    bool first = true, last_white = false;
    for (int n; *text; text += n) {
        uint32_t c = code_point(text, &n);
        bool white = is_white_space(c);
        shape.blank = shape.blank && white;
        shape.padded = shape.padded || (first && white);
        shape.control = shape.control || c < 0x20 || (c >= 0x7f && c <= 0x9f);
        last_white = white;
        first = false;
    }
    shape.padded = shape.padded || last_white;
    return shape;
}

static bool check_name(struct checker *c, const char *path, const char *name, bool layered)
{
    const struct text_shape shape = text_shape(name);
    const char *what = shape.blank     ? "is empty"
                       : shape.padded  ? "has leading or trailing whitespace"
                       : shape.control ? "holds a control character"
                                       : NULL;
    struct buffer field = {0};
    buffer_printf(&field, "%s.name", path);
    bool ok = true;
    if (what)
        ok = golden_refuse(c->g, c->err, field.data, name, "%s %s", field.data, what);
    else if (json_object_get(c->names, name))
        ok = golden_refuse(c->g, c->err, field.data, name, "duplicate %scorrectness case name %s",
                           layered ? "layered " : "", name);
    else
        json_object_set_new(c->names, name, json_true());
    buffer_free(&field);
    return ok;
}

static bool check_token(const struct checker *c, const char *path, const char *field, long index,
                        int64_t token)
{
    if (token >= 0 && token < c->rules->vocab_size)
        return true;
    struct buffer place = {0};
    buffer_printf(&place, "%s.%s", path, field);
    if (index >= 0)
        buffer_printf(&place, "[%ld]", index);
    golden_refuse(c->g, c->err, place.data, NULL,
                  "%s=%lld is outside configured vocab range 0..<%lld", place.data,
                  (long long)token, (long long)c->rules->vocab_size);
    buffer_free(&place);
    return false;
}

static bool check_tokens(const struct checker *c, const char *path, const char *field,
                         const struct golden_tokens *tokens, int64_t min, int64_t max)
{
    if ((int64_t)tokens->count < min || (int64_t)tokens->count > max) {
        struct buffer place = {0}, bounds = {0};
        buffer_printf(&place, "%s.%s", path, field);
        if (min == max)
            buffer_printf(&bounds, "exactly %lld", (long long)min);
        else if (max == INT64_MAX)
            buffer_printf(&bounds, "at least %lld", (long long)min);
        else
            buffer_printf(&bounds, "%lld to %lld", (long long)min, (long long)max);
        golden_refuse(c->g, c->err, place.data, NULL, "%s has %zu tokens, not %s", place.data,
                      tokens->count, bounds.data);
        buffer_free(&place);
        buffer_free(&bounds);
        return false;
    }
    for (size_t i = 0; i < tokens->count; i++)
        if (!check_token(c, path, field, (long)i, tokens->items[i]))
            return false;
    return true;
}

static bool check_count(const struct checker *c, const char *path, const char *field, int64_t value,
                        int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return true;
    struct buffer place = {0};
    buffer_printf(&place, "%s.%s", path, field);
    golden_refuse(c->g, c->err, place.data, NULL, "%s=%lld is outside %lld..%lld", place.data,
                  (long long)value, (long long)min, (long long)max);
    buffer_free(&place);
    return false;
}

static bool check_case(struct checker *c, const char *path, size_t i)
{
    const struct golden_case *one = &c->g->cases[i];
    int64_t seed = c->rules->required_prompt_tokens;
    return check_name(c, path, one->name, false) &&
           check_tokens(c, path, "prompt_tokens", &one->prompt, seed, seed) &&
           check_tokens(c, path, "expected_tokens", &one->expected, c->rules->required_steps,
                        INT64_MAX);
}

static bool check_anchor(struct checker *c, const char *path, const struct golden_anchor_draft *d)
{
    const struct golden_anchor *a = &d->anchor;
    if (!check_name(c, path, a->name, true) ||
        !check_tokens(c, path, "context_tokens", &a->context, 1, ANCHOR_CONTEXT_MAX) ||
        !check_token(c, path, "expected_token", -1, a->expected_token))
        return false;
    if (d->has_accepted && !check_tokens(c, path, "accepted_tokens", &a->accepted, 1, INT64_MAX))
        return false;
    if (a->has_rank &&
        !check_count(c, path, "max_expected_rank", a->max_expected_rank, 1, ANCHOR_RANK_MAX))
        return false;
    if (!a->has_delta)
        return true;
    if (!isfinite(a->max_top_logit_delta) || a->max_top_logit_delta < 0)
        return golden_refuse(c->g, c->err, path, NULL,
                             "%s.max_top_logit_delta must be finite, 0 or more", path);
    return a->has_rank || golden_refuse(c->g, c->err, path, NULL,
                                        "%s.max_top_logit_delta needs max_expected_rank", path);
}

static bool check_free_run(struct checker *c, const char *path, struct golden_free_run_draft *d)
{
    struct golden_free_run *f = &d->free_run;
    int64_t seed = c->rules->required_prompt_tokens;
    if (!check_name(c, path, f->name, true) ||
        !check_tokens(c, path, "prompt_tokens", &f->prompt, seed, seed) ||
        !check_tokens(c, path, "expected_tokens", &f->expected, 1, FREE_RUN_EXPECTED_MAX))
        return false;
    if (d->has_exact_prefix && !check_count(c, path, "exact_prefix_tokens", d->exact_prefix, 1,
                                            (int64_t)f->expected.count))
        return false;
    f->exact_prefix = d->has_exact_prefix ? (size_t)d->exact_prefix : f->expected.count;
    return true;
}

static bool check_behavior(struct checker *c, const char *path, const struct golden_behavior *b)
{
    if (!check_name(c, path, b->name, true) ||
        !check_tokens(c, path, "prompt_tokens", &b->prompt, 1, BEHAVIOR_PROMPT_MAX) ||
        !check_count(c, path, "max_new_tokens", b->max_new_tokens, 1, BEHAVIOR_NEW_TOKENS_MAX))
        return false;
    if (b->accepted_count == 0)
        return golden_refuse(c->g, c->err, path, NULL, "%s.accepted_token_sequences is empty",
                             path);
    for (size_t i = 0; i < b->accepted_count; i++) {
        struct buffer field = {0};
        buffer_printf(&field, "accepted_token_sequences[%zu]", i);
        bool ok = check_tokens(c, path, field.data, &b->accepted[i], 1, b->max_new_tokens);
        buffer_free(&field);
        if (!ok)
            return false;
    }
    return true;
}

enum section { SECTION_CASES, SECTION_ANCHORS, SECTION_FREE_RUNS, SECTION_BEHAVIORS };

static bool check_section(struct checker *c, struct golden_draft *d, enum section section)
{
    static const char *const paths[] = {"cases", "correctness_gates.anchors",
                                        "correctness_gates.free_run", "correctness_gates.behavior"};
    const struct {
        bool present;
        size_t count;
    } have[] = {{true, c->g->case_count},
                {d->has_anchors, d->anchor_count},
                {d->has_free_runs, d->free_run_count},
                {d->has_behaviors, d->behavior_count}};
    if (!have[section].present)
        return true;
    if (have[section].count == 0)
        return golden_refuse(c->g, c->err, paths[section], NULL, "%s is empty", paths[section]);
    bool ok = true;
    for (size_t i = 0; ok && i < have[section].count; i++) {
        struct buffer path = {0};
        buffer_printf(&path, "%s[%zu]", paths[section], i);
        switch (section) {
        case SECTION_CASES:
            ok = check_case(c, path.data, i);
            break;
        case SECTION_ANCHORS:
            ok = check_anchor(c, path.data, &d->anchors[i]);
            break;
        case SECTION_FREE_RUNS:
            ok = check_free_run(c, path.data, &d->free_runs[i]);
            break;
        case SECTION_BEHAVIORS:
            ok = check_behavior(c, path.data, &d->behaviors[i]);
            break;
        }
        buffer_free(&path);
    }
    return ok;
}

static bool check_gates(struct checker *c, struct golden_draft *d)
{
    if (!c->g->has_gates)
        return true;
    if (!d->has_anchors && !d->has_free_runs && !d->has_behaviors)
        return golden_refuse(c->g, c->err, "correctness_gates", NULL,
                             "correctness_gates has no section");
    return check_section(c, d, SECTION_ANCHORS) && check_section(c, d, SECTION_FREE_RUNS) &&
           check_section(c, d, SECTION_BEHAVIORS);
}

static bool check_baseline(const struct checker *c, const struct golden_benchmark_draft *d)
{
    const double pair[] = {d->benchmark.baseline_prefill, d->benchmark.baseline_decode};
    static const char *const keys[] = {"benchmark.baseline_prefill_seconds_per_token",
                                       "benchmark.baseline_decode_seconds_per_token"};
    if (!d->has_baseline_prefill && !d->has_baseline_decode)
        return true;
    if (!d->has_baseline_prefill || !d->has_baseline_decode) {
        const char *missing = keys[d->has_baseline_prefill ? 1 : 0];
        return golden_refuse(c->g, c->err, missing, NULL,
                             "%s is missing: the baselines come as a pair", missing);
    }
    for (int i = 0; i < 2; i++)
        if (!isfinite(pair[i]) || pair[i] <= 0)
            return golden_refuse(c->g, c->err, keys[i], NULL, "%s must be finite and above 0",
                                 keys[i]);
    return true;
}

static bool check_benchmark(const struct checker *c, const struct golden_benchmark_draft *d)
{
    static const char path[] = "benchmark";
    const struct golden_rules *rules = c->rules;
    const struct golden_benchmark *b = &d->benchmark;
    int64_t seed = rules->required_prompt_tokens;
    int64_t steps =
        rules->required_decode_steps ? rules->required_decode_steps : DECODE_STEPS_DEFAULT;
    if (!b->present)
        return !rules->require_benchmark ||
               golden_refuse(c->g, c->err, path, "missing", "the golden has no benchmark oracle");
    if (!check_tokens(c, path, "prefill_prompt_tokens", &b->prefill_prompt, seed, seed) ||
        !check_token(c, path, "expected_prefill_token", -1, b->expected_prefill_token) ||
        !check_tokens(c, path, "decode_seed_tokens", &b->decode_seed, seed, seed) ||
        !check_token(c, path, "expected_decode_seed_token", -1, b->expected_decode_seed_token) ||
        !check_tokens(c, path, "expected_decode_tokens", &b->expected_decode, steps, INT64_MAX) ||
        !check_baseline(c, d))
        return false;
    if (d->has_baseline_prefill && rules->refuse_stored_baseline) {
        error_set(c->err, "GOLDEN-CARRIES-STORED-BASELINE",
                  "the golden carries a stored baseline pair, and the track scores against a "
                  "control leg measured in the same run");
        return error_at(c->err, c->g->path, "benchmark.baseline_prefill_seconds_per_token", NULL);
    }
    return true;
}

/* model_type, then provenance; the required model_type is told before a provenance that differs. */
static bool check_identity(const struct checker *c, const struct golden_draft *d)
{
    const struct golden_rules *rules = c->rules;
    const struct golden *g = c->g;
    if (g->model_type) {
        const struct text_shape shape = text_shape(g->model_type);
        if (shape.blank || shape.padded)
            return golden_refuse(g, c->err, "model_type", g->model_type,
                                 "model_type is empty or has leading or trailing whitespace");
    }
    if (d->has_provenance) {
        if (text_shape(g->provenance_repository).blank)
            return golden_refuse(g, c->err, "model_provenance.repository", NULL,
                                 "model_provenance.repository is empty");
        if (!text_is_lower_hex(g->provenance_revision, 40))
            return golden_refuse(
                g, c->err, "model_provenance.revision", g->provenance_revision,
                "model_provenance.revision must be 40 lower-case hexadecimal digits");
    }
    if (rules->required_model_type) {
        if (!g->model_type)
            return golden_refuse(g, c->err, "model_type", "missing",
                                 "model_type is missing, the track requires %s",
                                 rules->required_model_type);
        if (strcmp(g->model_type, rules->required_model_type) != 0)
            return golden_refuse(g, c->err, "model_type", g->model_type,
                                 "model_type is %s, the track requires %s", g->model_type,
                                 rules->required_model_type);
    }
    if (d->has_provenance && rules->pin_repository && rules->pin_revision &&
        (strcmp(g->provenance_repository, rules->pin_repository) != 0 ||
         strcmp(g->provenance_revision, rules->pin_revision) != 0))
        return golden_refuse(g, c->err, "model_provenance", NULL,
                             "correctness golden model_provenance does not match the pinned "
                             "reference model: golden names %s@%s, the track pins %s@%s",
                             g->provenance_repository, g->provenance_revision,
                             rules->pin_repository, rules->pin_revision);
    return true;
}

/* The draft's arrays become the golden's. */
static void adopt(struct golden_draft *d)
{
    struct golden *g = d->golden;
    g->anchor_count = d->anchor_count;
    g->free_run_count = d->free_run_count;
    g->behavior_count = d->behavior_count;
    g->anchors = arena_array(&g->arena, d->anchor_count + 1, sizeof *g->anchors);
    g->free_runs = arena_array(&g->arena, d->free_run_count + 1, sizeof *g->free_runs);
    g->behaviors = arena_array(&g->arena, d->behavior_count + 1, sizeof *g->behaviors);
    for (size_t i = 0; i < d->anchor_count; i++)
        g->anchors[i] = d->anchors[i].anchor;
    for (size_t i = 0; i < d->free_run_count; i++)
        g->free_runs[i] = d->free_runs[i].free_run;
    for (size_t i = 0; i < d->behavior_count; i++)
        g->behaviors[i] = d->behaviors[i];
    g->benchmark = d->benchmark.benchmark;
    g->benchmark.has_baseline = d->benchmark.has_baseline_prefill;
}

bool golden_check(struct golden_draft *d, const struct golden_rules *rules, struct error *err)
{
    struct checker c = {rules, d->golden, err, json_object()};
    bool ok =
        (d->has_version && d->version == 1) ||
        golden_refuse(d->golden, err, "version", NULL, "correctness golden file version must be 1");
    ok = ok && check_identity(&c, d) && check_section(&c, d, SECTION_CASES) && check_gates(&c, d) &&
         check_benchmark(&c, &d->benchmark);
    json_decref(c.names);
    if (ok)
        adopt(d);
    return ok;
}
