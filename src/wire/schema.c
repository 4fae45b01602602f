/* The JSON Schema, made from the tables of wire.h and objects.c: first as compact text, then laid
 * out by the one JSON writer. */
#include "base/json.h"
#include "wire/objects.h"

#include <string.h>

#define I64                                                                                        \
    "{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}"
#define U32 "{\"type\":\"integer\",\"minimum\":0,\"maximum\":4294967295}"
#define U64 "{\"type\":\"integer\",\"minimum\":0}"
#define F64 "{\"type\":\"number\"}"
#define TEXT "{\"type\":\"string\"}"
#define HASH "{\"type\":\"string\",\"pattern\":\"^[0-9a-f]{64}$\"}"
#define ARRAY(items) "{\"type\":\"array\",\"items\":" items "}"
#define CLOSED_OBJECT "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{"
#define REF(name) "{\"$ref\":\"#/$defs/" name "\"}"

static const char schema_i64[] = I64;
static const char schema_u32[] = U32;
static const char schema_u64[] = U64;
static const char schema_f64[] = F64;
static const char schema_flag[] = "{\"type\":\"boolean\"}";
static const char schema_text[] = TEXT;
static const char schema_tokens[] = ARRAY(REF("Token"));
static const char schema_token_lists[] = ARRAY(ARRAY(REF("Token")));
static const char schema_f64s[] = ARRAY(F64);
static const char schema_f64_lists[] = ARRAY(ARRAY(F64));
static const char schema_u32s[] = ARRAY(U32);
static const char schema_u32_lists[] = ARRAY(ARRAY(U32));
static const char schema_u64s[] = ARRAY(U64);
static const char schema_texts[] = ARRAY(TEXT);
static const char schema_top_logits[] =
    "{\"type\":\"array\",\"minItems\":8,\"maxItems\":8,\"items\":" REF("CorrectnessTraceLogit") "}";
static const char schema_counts[] = "{\"type\":\"object\",\"additionalProperties\":" U32 "}";
static const char schema_expert_stats[] = REF("ExpertStreamingStats");
static const char schema_head_provenance[] = REF("HeadProvenance");
static const char schema_runner[] = REF("RunnerIdentity");
static const char schema_resident[] = REF("ResidentIdentity");
static const char schema_spec[] = REF("SpecConfig");
static const char schema_replay[] = REF("CohortReferenceReplayReport");

/* Fields whose least value is not that of their type (engine-protocol.md sections 2 and 3). */
static const struct {
    const char *name, *schema;
} narrower[] = {
    {"batch_size", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":4294967295}"},
    {"logit_top_k", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":4294967295}"},
    {"max_batch_size", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":4294967295}"},
    {"effective_batch_size", "{\"type\":\"integer\",\"minimum\":1,\"maximum\":4294967295}"},
    {"completed_work", "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9223372036854775807}"},
    {"cache_memory", "{\"type\":\"integer\",\"minimum\":0,\"maximum\":9223372036854775807}"},
};

static void write_enum(struct buffer *b, const char *const *choices)
{
    buffer_text(b, "{\"enum\":[");
    for (size_t i = 0; choices[i]; i++)
        buffer_printf(b, "%s\"%s\"", i ? "," : "", choices[i]);
    buffer_text(b, "]}");
}

static void write_kinds(struct buffer *b, bool block)
{
    const char *names[WIRE_KIND_COUNT + 1] = {0};
    const int first = block ? WIRE_KIND_V1_COUNT : 0;
    const int end = block ? WIRE_KIND_COUNT : WIRE_KIND_V1_COUNT;
    for (int i = first; i < end; i++)
        names[i - first] = wire_kind_name((enum wire_kind)i);
    write_enum(b, names);
}

static void write_member(struct buffer *b, const char *name, const char *schema)
{
    buffer_printf(b, "%s\"%s\":%s", b->data[b->length - 1] == '{' ? "" : ",", name, schema);
}

/* A field of an envelope: its type, or what is narrower for it by name. */
static void write_property(struct buffer *b, const char *name, const char *schema, bool block)
{
    for (size_t i = 0; i < sizeof narrower / sizeof *narrower; i++)
        if (strcmp(narrower[i].name, name) == 0)
            schema = narrower[i].schema;
    bool is_kind = strcmp(name, "kind") == 0, has_choices = wire_text_choices(name) != NULL;
    write_member(b, name, is_kind || has_choices ? "" : schema);
    if (is_kind)
        write_kinds(b, block);
    else if (has_choices)
        write_enum(b, wire_text_choices(name));
}

static void write_required(struct buffer *b, const char *name, bool required)
{
    if (required)
        buffer_printf(b, "%s\"%s\"", b->data[b->length - 1] == '[' ? "" : ",", name);
}

#define PROPERTY(type, name, required) write_property(b, #name, schema_##type, block);
/* Of v1's request fields, what the block protocol has too. */
#define SHARED_PROPERTY(type, name, required)                                                      \
    if (is_shared(#name))                                                                          \
    PROPERTY(type, name, required)
#define REQUIRED(type, name, required) write_required(b, #name, required);
#define ENVELOPE(name, FIELDS)                                                                     \
    buffer_text(b, ",\"" name "\":" CLOSED_OBJECT);                                                \
    FIELDS(PROPERTY)                                                                               \
    buffer_text(b, "},\"required\":[");                                                            \
    FIELDS(REQUIRED)                                                                               \
    buffer_text(b, "]}");

static void write_small_object(struct buffer *b, const struct object_table *table)
{
    static const char *const schemas[] = {
        [MEMBER_I64] = I64, [MEMBER_U32] = U32,   [MEMBER_U64] = U64,
        [MEMBER_F64] = F64, [MEMBER_TEXT] = TEXT, [MEMBER_HASH] = HASH,
    };
    buffer_printf(b, ",\"%s\":" CLOSED_OBJECT, table->schema_name);
    for (size_t i = 0; i < table->count; i++)
        write_member(b, table->members[i].name, schemas[table->members[i].kind]);
    buffer_text(b, "},\"required\":[");
    for (size_t i = 0; i < table->count; i++)
        write_required(b, table->members[i].name, true);
    buffer_text(b, "]}");
}

/* depth is optional inside mtp, as the code of the original has it (section 5). */
static void write_spec_config(struct buffer *b)
{
    static const char any_object[] = "{\"type\":\"object\"}";
    buffer_text(b, ",\"SpecConfig\":" CLOSED_OBJECT);
    write_member(b, "mode", "");
    write_enum(b, wire_spec_modes);
    write_member(b, "mtp", REF("MtpSpec"));
    write_member(b, "dflash", any_object);
    write_member(b, "dspark", any_object);
    buffer_text(b, "},\"required\":[\"mode\"]},\"MtpSpec\":" CLOSED_OBJECT);
    write_member(b, "depth", U32);
    buffer_text(b, "}}");
}

/* Other keys are allowed in it and carried. */
static void write_open_object(struct buffer *b, const char *name, const char *first,
                              const char *first_schema, const char *second,
                              const char *second_schema, bool first_required)
{
    buffer_printf(b, ",\"%s\":{\"type\":\"object\",\"properties\":{", name);
    write_member(b, first, first_schema);
    write_member(b, second, second_schema);
    buffer_text(b, "},\"required\":[");
    write_required(b, first, first_required);
    write_required(b, second, true);
    buffer_text(b, "]}");
}

static void write_replay(struct buffer *b)
{
    static const char streams[] = ARRAY(REF("CohortReferenceReplayStream"));
    static const char positions[] = ARRAY(REF("CohortReferenceReplayPosition"));
    write_open_object(b, "CohortReferenceReplayReport", "replay_width", TEXT, "streams", streams,
                      false);
    write_open_object(b, "CohortReferenceReplayStream", "slot", I64, "positions", positions, true);
    write_open_object(b, "CohortReferenceReplayPosition", "committed_token", I64,
                      "sequential_argmax", I64, true);
}

static bool is_shared(const char *name)
{
#define NAME(name) #name,
    static const char *const names[] = {WIRE_BLOCK_SHARED_REQUEST_FIELDS(NAME)};
#undef NAME
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void write_envelopes(struct buffer *b, bool block)
{
    if (block) {
#define BLOCK_REQUEST(X) WIRE_REQUEST_FIELDS(SHARED_##X) WIRE_BLOCK_REQUEST_FIELDS(X)
#define BLOCK_RESPONSE(X) WIRE_RESPONSE_FIELDS(X) WIRE_BLOCK_RESPONSE_FIELDS(X)
#define SHARED_REQUIRED REQUIRED
        ENVELOPE("WorkerRequest", BLOCK_REQUEST)
        ENVELOPE("WorkerResponse", BLOCK_RESPONSE)
    } else {
        ENVELOPE("WorkerRequest", WIRE_REQUEST_FIELDS)
        ENVELOPE("WorkerResponse", WIRE_RESPONSE_FIELDS)
    }
}

static void write_schema(struct buffer *out, const char *file, const char *title, bool block)
{
    struct buffer text = {0}, *b = &text;
    buffer_printf(b,
                  "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\","
                  "\"$id\":\"https://mlxfast-bench/schema/%s.schema.json\","
                  "\"title\":\"%s\",\"oneOf\":[",
                  file, title);
    buffer_text(b, REF("WorkerRequest") "," REF("WorkerResponse"));
    buffer_text(b, "],\"$defs\":{");
    write_member(b, "Token", I64);
    write_envelopes(b, block);
    write_spec_config(b);
    write_small_object(b, &object_head_provenance);
    write_small_object(b, &object_runner);
    write_small_object(b, &object_resident);
    write_small_object(b, &object_top_logit);
    write_small_object(b, &object_expert_stats);
    write_replay(b);
    buffer_text(b, "}}");
    json_t *value = json_parse_strict(text.data, text.length, JSON_DEPTH_DEFAULT, "schema", NULL);
    if (value) /* a unit test compares the result with the committed file */
        json_write_ordered(value, 2, out);
    buffer_char(out, '\n');
    json_decref(value);
    buffer_free(&text);
}

void wire_schema_write(struct buffer *out)
{
    write_schema(out, "engine-protocol-v1", "Engine Protocol v1", false);
}

void wire_block_schema_write(struct buffer *out)
{
    write_schema(out, "block-protocol-v1", "Block protocol, trusted_dflash_block_v1", true);
}
