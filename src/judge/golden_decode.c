/* From JSON to a golden draft: closed objects, typed fields, one table per kind of object. */
#include "judge/golden_draft.h"

#include "base/json.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    KIND_TEXT,
    KIND_INTEGER,  /* any int64: a token or the version, ranged later */
    KIND_UNSIGNED, /* a negative number is a refusal of its own */
    KIND_REAL,
    KIND_TOKENS,
    KIND_TOKEN_LISTS /* items and count are two fields; count stands right behind items */
};
enum presence {
    REQUIRED,
    OPTIONAL, /* may be absent, never null */
    NULLABLE  /* null counts as absent */
};
enum { NO_FLAG = -1 };

struct field {
    const char *key;
    enum kind kind;
    enum presence presence;
    size_t offset; /* of the value in the draft struct */
    long has;      /* of its bool, or NO_FLAG */
};

struct decoder {
    struct golden *g;
    struct error *err;
};

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct field case_fields[] = {
    {"name", KIND_TEXT, REQUIRED, offsetof(struct golden_case, name), NO_FLAG},
    {"prompt_tokens", KIND_TOKENS, REQUIRED, offsetof(struct golden_case, prompt), NO_FLAG},
    {"expected_tokens", KIND_TOKENS, REQUIRED, offsetof(struct golden_case, expected), NO_FLAG},
};

#define AT(member) offsetof(struct golden_anchor_draft, member)
static const struct field anchor_fields[] = {
    {"name", KIND_TEXT, REQUIRED, AT(anchor.name), NO_FLAG},
    {"context_tokens", KIND_TOKENS, REQUIRED, AT(anchor.context), NO_FLAG},
    {"expected_token", KIND_INTEGER, REQUIRED, AT(anchor.expected_token), NO_FLAG},
    {"accepted_tokens", KIND_TOKENS, NULLABLE, AT(anchor.accepted), AT(has_accepted)},
    {"max_expected_rank", KIND_UNSIGNED, NULLABLE, AT(anchor.max_expected_rank),
     AT(anchor.has_rank)},
    {"max_top_logit_delta", KIND_REAL, NULLABLE, AT(anchor.max_top_logit_delta),
     AT(anchor.has_delta)},
};
#undef AT

#define AT(member) offsetof(struct golden_free_run_draft, member)
static const struct field free_run_fields[] = {
    {"name", KIND_TEXT, REQUIRED, AT(free_run.name), NO_FLAG},
    {"prompt_tokens", KIND_TOKENS, REQUIRED, AT(free_run.prompt), NO_FLAG},
    {"expected_tokens", KIND_TOKENS, REQUIRED, AT(free_run.expected), NO_FLAG},
    {"exact_prefix_tokens", KIND_UNSIGNED, NULLABLE, AT(exact_prefix), AT(has_exact_prefix)},
};
#undef AT

#define AT(member) offsetof(struct golden_behavior, member)
static const struct field behavior_fields[] = {
    {"name", KIND_TEXT, REQUIRED, AT(name), NO_FLAG},
    {"prompt_tokens", KIND_TOKENS, REQUIRED, AT(prompt), NO_FLAG},
    {"accepted_token_sequences", KIND_TOKEN_LISTS, REQUIRED, AT(accepted), NO_FLAG},
    {"max_new_tokens", KIND_UNSIGNED, REQUIRED, AT(max_new_tokens), NO_FLAG},
    {"semantic_prompt", KIND_TEXT, NULLABLE, AT(semantic_prompt), NO_FLAG},
    {"semantic_answer_key", KIND_TEXT, NULLABLE, AT(semantic_answer_key), NO_FLAG},
    {"semantic_reference_answer", KIND_TEXT, NULLABLE, AT(semantic_reference_answer), NO_FLAG},
    {"semantic_domain", KIND_TEXT, NULLABLE, AT(semantic_domain), NO_FLAG},
    {"semantic_subdomain", KIND_TEXT, NULLABLE, AT(semantic_subdomain), NO_FLAG},
};
#undef AT

#define AT(member) offsetof(struct golden_benchmark_draft, member)
static const struct field benchmark_fields[] = {
    {"prefill_prompt_tokens", KIND_TOKENS, REQUIRED, AT(benchmark.prefill_prompt), NO_FLAG},
    {"expected_prefill_token", KIND_INTEGER, REQUIRED, AT(benchmark.expected_prefill_token),
     NO_FLAG},
    {"decode_seed_tokens", KIND_TOKENS, REQUIRED, AT(benchmark.decode_seed), NO_FLAG},
    {"expected_decode_seed_token", KIND_INTEGER, REQUIRED, AT(benchmark.expected_decode_seed_token),
     NO_FLAG},
    {"expected_decode_tokens", KIND_TOKENS, REQUIRED, AT(benchmark.expected_decode), NO_FLAG},
    {"baseline_prefill_seconds_per_token", KIND_REAL, NULLABLE, AT(benchmark.baseline_prefill),
     AT(has_baseline_prefill)},
    {"baseline_decode_seconds_per_token", KIND_REAL, NULLABLE, AT(benchmark.baseline_decode),
     AT(has_baseline_decode)},
};
#undef AT

static const struct field provenance_fields[] = {
    {"repository", KIND_TEXT, REQUIRED, offsetof(struct golden, provenance_repository), NO_FLAG},
    {"revision", KIND_TEXT, REQUIRED, offsetof(struct golden, provenance_revision), NO_FLAG},
};

/* Refuses <path>.<key> for its type. */
static bool wrong(const struct decoder *d, const char *path, const char *key, const json_t *value,
                  const char *what)
{
    struct buffer field = {0}, text = {0};
    buffer_printf(&field, "%s%s%s", path, *path && *key ? "." : "", key);
    if (value)
        json_write_canonical(value, 0, &text);
    golden_refuse(d->g, d->err, field.data, text.data, "%s %s", field.data, what);
    buffer_free(&field);
    buffer_free(&text);
    return false;
}

static bool decode_text(const struct decoder *d, const char *path, const char *key,
                        const json_t *value, const char **out)
{
    if (!json_is_string(value))
        return wrong(d, path, key, value, "must be a string");
    const char *text = json_string_value(value);
    if (strlen(text) != json_string_length(value))
        return wrong(d, path, key, NULL, "holds U+0000");
    *out = arena_strdup(&d->g->arena, text);
    return true;
}

static bool decode_tokens(const struct decoder *d, const char *path, const char *key,
                          const json_t *value, struct golden_tokens *out)
{
    if (!json_is_array(value))
        return wrong(d, path, key, value, "must be an array of integers");
    out->count = json_array_size(value);
    if (out->count == 0)
        return true;
    out->items = arena_array(&d->g->arena, out->count, sizeof *out->items);
    for (size_t i = 0; i < out->count; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_integer(item)) {
            struct buffer element = {0};
            buffer_printf(&element, "%s[%zu]", key, i);
            wrong(d, path, element.data, item, "must be an integer");
            buffer_free(&element);
            return false;
        }
        out->items[i] = json_integer_value(item);
    }
    return true;
}

struct token_lists { /* as they stand in struct golden_behavior: accepted, accepted_count */
    struct golden_tokens *items;
    size_t count;
};
_Static_assert(offsetof(struct golden_behavior, accepted_count) ==
                   offsetof(struct golden_behavior, accepted) + offsetof(struct token_lists, count),
               "KIND_TOKEN_LISTS writes items and count as neighbours");

static bool decode_token_lists(const struct decoder *d, const char *path, const char *key,
                               const json_t *value, struct token_lists *out)
{
    if (!json_is_array(value))
        return wrong(d, path, key, value, "must be an array of arrays of integers");
    out->count = json_array_size(value);
    if (out->count == 0)
        return true;
    out->items = arena_array(&d->g->arena, out->count, sizeof *out->items);
    for (size_t i = 0; i < out->count; i++) {
        struct buffer element = {0};
        buffer_printf(&element, "%s[%zu]", key, i);
        bool ok = decode_tokens(d, path, element.data, json_array_get(value, i), &out->items[i]);
        buffer_free(&element);
        if (!ok)
            return false;
    }
    return true;
}

static bool decode_field(const struct decoder *d, const char *path, const struct field *f,
                         const json_t *value, void *at)
{
    switch (f->kind) {
    case KIND_TEXT:
        return decode_text(d, path, f->key, value, at);
    case KIND_INTEGER:
    case KIND_UNSIGNED:
        if (!json_is_integer(value))
            return wrong(d, path, f->key, value, "must be an integer");
        if (f->kind == KIND_UNSIGNED && json_integer_value(value) < 0)
            return wrong(d, path, f->key, value, "must be an integer, 0 or more");
        *(int64_t *)at = json_integer_value(value);
        return true;
    case KIND_REAL:
        if (!json_is_number(value))
            return wrong(d, path, f->key, value, "must be a number");
        *(double *)at = json_number_value(value);
        return true;
    case KIND_TOKENS:
        return decode_tokens(d, path, f->key, value, at);
    case KIND_TOKEN_LISTS:
        return decode_token_lists(d, path, f->key, value, at);
    }
    return false;
}

/* A closed object into the struct at out. */
static bool decode_object(const struct decoder *d, const char *path, const struct field *fields,
                          size_t count, const json_t *object, void *out)
{
    if (!json_is_object(object))
        return wrong(d, path, "", object, "must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t i = 0;
        while (i < count && strcmp(fields[i].key, key) != 0)
            i++;
        if (i == count)
            return wrong(d, path, key, NULL, "is not a key of this object");
    }
    for (size_t i = 0; i < count; i++) {
        const struct field *f = &fields[i];
        value = json_object_get(object, f->key);
        if (!value && f->presence == REQUIRED)
            return wrong(d, path, f->key, NULL, "is missing");
        if (!value || (f->presence == NULLABLE && json_is_null(value)))
            continue;
        if (!decode_field(d, path, f, value, (char *)out + f->offset))
            return false;
        if (f->has != NO_FLAG)
            *(bool *)((char *)out + f->has) = true;
    }
    return true;
}

/* An array of closed objects, each into its struct of the given size. */
static bool decode_list(const struct decoder *d, const char *path, const struct field *fields,
                        size_t field_count, const json_t *list, size_t size, void *out,
                        size_t *count)
{
    void *items = NULL;
    if (!json_is_array(list))
        return wrong(d, path, "", list, "must be an array");
    *count = json_array_size(list);
    if (*count)
        items = arena_array(&d->g->arena, *count, size);
    for (size_t i = 0; i < *count; i++) {
        struct buffer element = {0};
        buffer_printf(&element, "%s[%zu]", path, i);
        bool ok = decode_object(d, element.data, fields, field_count, json_array_get(list, i),
                                (char *)items + i * size);
        buffer_free(&element);
        if (!ok)
            return false;
    }
    memcpy(out, &items, sizeof items);
    return true;
}

static bool decode_gates(const struct decoder *d, struct golden_draft *draft, const json_t *gates)
{
    static const char path[] = "correctness_gates";
    if (!json_is_object(gates))
        return wrong(d, path, "", gates, "must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)gates, key, value)
    {
        if (strcmp(key, "anchors") != 0 && strcmp(key, "free_run") != 0 &&
            strcmp(key, "behavior") != 0)
            return wrong(d, path, key, NULL, "is not a key of this object");
    }
    const json_t *anchors = json_object_get(gates, "anchors");
    const json_t *free_runs = json_object_get(gates, "free_run");
    const json_t *behaviors = json_object_get(gates, "behavior");
    draft->golden->has_gates = true;
    draft->has_anchors = anchors != NULL;
    draft->has_free_runs = free_runs != NULL;
    draft->has_behaviors = behaviors != NULL;
    return (!anchors ||
            decode_list(d, "correctness_gates.anchors", anchor_fields, COUNT_OF(anchor_fields),
                        anchors, sizeof *draft->anchors, &draft->anchors, &draft->anchor_count)) &&
           (!free_runs ||
            decode_list(d, "correctness_gates.free_run", free_run_fields, COUNT_OF(free_run_fields),
                        free_runs, sizeof *draft->free_runs, &draft->free_runs,
                        &draft->free_run_count)) &&
           (!behaviors ||
            decode_list(d, "correctness_gates.behavior", behavior_fields, COUNT_OF(behavior_fields),
                        behaviors, sizeof *draft->behaviors, &draft->behaviors,
                        &draft->behavior_count));
}

bool golden_decode(struct golden_draft *draft, const json_t *root, struct error *err)
{
    static const char *const keys[] = {"version", "model_type",        "model_provenance",
                                       "cases",   "correctness_gates", "benchmark"};
    struct golden *g = draft->golden;
    const struct decoder decoder = {g, err}, *d = &decoder;
    if (!json_is_object(root))
        return wrong(d, "", "(root)", NULL, "must be an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        size_t i = 0;
        while (i < COUNT_OF(keys) && strcmp(keys[i], key) != 0)
            i++;
        if (i == COUNT_OF(keys))
            return wrong(d, "", key, NULL, "is not a key of a golden");
    }
    /* An explicit null version decodes as absent and fails the version rule. */
    const json_t *version = json_object_get(root, "version");
    draft->has_version = version && !json_is_null(version);
    if (draft->has_version) {
        if (!json_is_integer(version))
            return wrong(d, "", "version", version, "must be an integer");
        draft->version = json_integer_value(version);
    }
    const json_t *model_type = json_object_get(root, "model_type");
    if (model_type && !decode_text(d, "", "model_type", model_type, &g->model_type))
        return false;
    const json_t *provenance = json_object_get(root, "model_provenance");
    draft->has_provenance = provenance != NULL;
    if (provenance && !decode_object(d, "model_provenance", provenance_fields,
                                     COUNT_OF(provenance_fields), provenance, g))
        return false;
    const json_t *cases = json_object_get(root, "cases");
    if (!cases)
        return wrong(d, "", "cases", NULL, "is missing");
    if (!decode_list(d, "cases", case_fields, COUNT_OF(case_fields), cases, sizeof *g->cases,
                     &g->cases, &g->case_count))
        return false;
    const json_t *gates = json_object_get(root, "correctness_gates");
    if (gates && !decode_gates(d, draft, gates))
        return false;
    const json_t *benchmark = json_object_get(root, "benchmark");
    draft->benchmark.benchmark.present = benchmark != NULL;
    return !benchmark || decode_object(d, "benchmark", benchmark_fields, COUNT_OF(benchmark_fields),
                                       benchmark, &draft->benchmark);
}
