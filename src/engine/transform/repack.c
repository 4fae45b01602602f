/* The plan and the texts of a repacked drafter: see repack.h. */
#include "engine/transform/repack.h"

#include "base/json.h"
#include "engine/model/config_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))

enum { VALUE_BYTES = 2, LENGTH_BYTES = 8 };

static const char CONVERTER[] = "convert_laguna_dflash.py v1"; /* the form's name: dflash.md 1 */
static const char QKV[] = "self_attn.qkv_proj.weight";

/* Pins of the track (its manifest names the last two of the first row) and what they were made of:
 * the record of the first row is proved by its config.json, whose digest it gives. */
static const struct repack_published published[] = {
    {{"poolside/Laguna-XS-2.1-DFlash-NVFP4", "6c0564233472e9572ec3d9ecc6025a1dc77799e9",
      "67beb7f0dcb8a121ef912782396335cb5103e39f30328decdc83981509d4db84", "2026-07-27T04:23:30Z"},
     "314e908029abb30513e1f45d47bd412ba6bddfa22686de2846d26fe4bec599a8",
     "52c5f769ff3fb0ad85b1294f15f10d1f0a178a5fdcd2a8b0f6881810d29165b9"},
    {{"poolside/Laguna-XS-2.1-DFlash", "5c36361aab23c8ed3afbd079c10c426b677bc607",
      "0b51e20d76200a80e636414f45fb51a5c0e13b0852d977ba2db788214c68f6b8", NULL},
     NULL,
     NULL},
};

const struct repack_published *repack_find_published(const char *source_sha256)
{
    for (size_t i = 0; i < COUNT_OF(published); i++)
        if (strcmp(published[i].record.sha256, source_sha256) == 0)
            return &published[i];
    return NULL;
}

/* ---- the source's config ---- */

static bool check_architecture(const struct config_reader *r)
{
    static const char *const known[] = {"DFlashLagunaForCausalLM", "DFlashDraftModel"};
    const json_t *list = json_object_get(r->view.object, "architectures");
    if (!config_given(r, "architectures"))
        return true;
    const char *name =
        json_array_size(list) == 1 ? json_string_value(json_array_get(list, 0)) : NULL;
    for (size_t i = 0; name && i < COUNT_OF(known); i++)
        if (strcmp(name, known[i]) == 0)
            return true;
    return config_refuse(r, "architectures", "not a Laguna DFlash drafter");
}

/* A key that a source may hold in dflash_config, at the top, or equally in both. */
static bool hoist(const struct config_reader *root, const struct config_reader *nested,
                  json_t *flat, const char *key)
{
    if (!config_given(nested, key))
        return true; /* the parser says where it is missing */
    json_t *value = json_object_get(nested->view.object, key);
    if (config_given(root, key) && !json_equal(value, json_object_get(root->view.object, key)))
        return config_refuse(nested, key, "differs from the same key at the top");
    json_object_set(flat, key, value);
    return true;
}

bool repack_read_config(struct arena *a, const json_t *source, const char *file, json_t **flat,
                        struct dflash_config *out, struct error *err)
{
    const struct config_reader root = {{source, file, ""}, err};
    const json_t *block;
    if (!check_architecture(&root))
        return false;
    if (!json_get_object(&root.view, "dflash_config", &block, err))
        return config_renamed(err);
    const struct config_reader nested = {{block, file, "dflash_config"}, err};
    if (config_given(&nested, "causal") && !json_is_true(json_object_get(block, "causal")))
        return config_refuse(&nested, "causal", "this setting is not implemented");
    const json_t *tied = json_object_get(source, "tie_word_embeddings");
    if (config_given(&root, "tie_word_embeddings") && !json_is_boolean(tied))
        return config_refuse(&root, "tie_word_embeddings", "must be true or false");
    json_t *copy = json_copy((json_t *)(uintptr_t)source);
    const bool ok = hoist(&root, &nested, copy, "block_size") &&
                    hoist(&root, &nested, copy, "num_target_layers") &&
                    dflash_config_parse(a, copy, file, out, err);
    if (ok)
        *flat = copy;
    else
        json_decref(copy);
    return ok;
}

/* ---- the plan ---- */

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct repack_tensor *)a)->name, ((const struct repack_tensor *)b)->name);
}

/* q, k and v lie in the fused tensor in this order (dflash.md section 2). */
static void find_source(struct arena *a, const struct dflash_config *c, struct repack_tensor *t)
{
    static const char *const parts[] = {"self_attn.q_proj.weight", "self_attn.k_proj.weight",
                                        "self_attn.v_proj.weight"};
    const uint64_t row = (uint64_t)c->hidden * VALUE_BYTES, dim = (uint64_t)c->head_dim;
    const uint64_t before[] = {0, (uint64_t)c->heads * dim * row,
                               (uint64_t)(c->heads + c->kv_heads) * dim * row};
    t->from = t->name;
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (text_ends(t->name, parts[i])) {
            const int prefix = (int)(strlen(t->name) - strlen(parts[i]));
            t->from = arena_printf(a, "%.*s%s", prefix, t->name, QKV);
            t->skip = before[i];
        }
}

void repack_make_plan(struct arena *a, const struct dflash_config *c, struct repack_plan *out)
{
    struct inventory inventory = {.arena = a};
    dflash_config_inventory(c, DFLASH_REPACKED, &inventory);
    *out = (struct repack_plan){.count = inventory.count};
    out->tensors = arena_array(a, out->count, sizeof *out->tensors);
    for (size_t i = 0; i < out->count; i++) {
        struct repack_tensor *t = &out->tensors[i];
        const struct tensor_spec *s = &inventory.items[i];
        t->name = s->name;
        t->rank = s->rank;
        t->bytes = VALUE_BYTES;
        for (int d = 0; d < s->rank; d++) { /* sizes are below 2^20: no overflow */
            t->shape[d] = s->shape[d];
            t->bytes *= (uint64_t)s->shape[d];
        }
        find_source(a, c, t);
    }
    qsort(out->tensors, out->count, sizeof *out->tensors, compare_tensors);
    for (size_t i = 0; i < out->count; i++) {
        out->tensors[i].offset = out->payload;
        out->payload += out->tensors[i].bytes;
    }
}

/* ---- the texts ---- */

static void write_member(struct buffer *out, const char *key, const char *text)
{
    json_write_string(key, strlen(key), out);
    buffer_char(out, ':');
    json_write_string(text, strlen(text), out);
}

void repack_write_header(const struct repack_plan *plan, const struct repack_record *record,
                         struct buffer *out)
{
    const struct {
        const char *key, *text;
    } metadata[] = {{"format", "mlx"},
                    {"source_repo", record->repo},
                    {"source_revision", record->revision},
                    {"source_sha256", record->sha256},
                    {"converter", CONVERTER}};
    static const char room[LENGTH_BYTES];
    const size_t start = out->length;
    buffer_append(out, room, sizeof room);
    buffer_char(out, '{');
    for (size_t i = 0; i < plan->count; i++) {
        const struct repack_tensor *t = &plan->tensors[i];
        json_write_string(t->name, strlen(t->name), out);
        buffer_text(out, ":{\"dtype\":\"BF16\",\"shape\":[");
        for (int d = 0; d < t->rank; d++)
            buffer_printf(out, "%s%" PRId64, d ? "," : "", t->shape[d]);
        buffer_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]},", t->offset,
                      t->offset + t->bytes);
    }
    buffer_text(out, "\"__metadata__\":{");
    for (size_t i = 0; i < COUNT_OF(metadata); i++) {
        if (i)
            buffer_char(out, ',');
        write_member(out, metadata[i].key, metadata[i].text);
    }
    buffer_text(out, "}}");
    uint64_t length = out->length - start - LENGTH_BYTES;
    for (int i = 0; i < LENGTH_BYTES; i++, length >>= 8) /* little-endian */
        out->data[start + (size_t)i] = (char)(length & 0xff);
}

/* The fewest digits that read back, in Python's form: 1e-06, 500000.0, 1e+16. */
static void write_real(double value, struct buffer *out)
{
    char digits[40];
    for (int precision = 0; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, value);
        if (strtod(digits, NULL) == value)
            break;
    }
    const int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        buffer_text(out, digits); /* its exponent has a sign and at least two digits already */
        return;
    }
    int after = (int)(strchr(digits, 'e') - digits) - 2 - (value < 0) - exponent;
    buffer_printf(out, "%.*f", after < 1 ? 1 : after, value);
}

static void new_line(int level, struct buffer *out)
{
    buffer_printf(out, "\n%*s", 2 * level, "");
}

static void write_value(const json_t *value, int level, struct buffer *out)
{
    const bool object = json_is_object(value);
    if (json_is_real(value)) {
        write_real(json_real_value(value), out);
    } else if (object) {
        const char *key, *separator = "{";
        json_t *member;
        json_object_foreach((json_t *)(uintptr_t)value, key, member)
        {
            buffer_text(out, separator);
            new_line(level + 1, out);
            json_write_string(key, strlen(key), out);
            buffer_text(out, ": ");
            write_value(member, level + 1, out);
            separator = ",";
        }
        new_line(level, out);
        buffer_char(out, '}');
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            buffer_char(out, i ? ',' : '[');
            new_line(level + 1, out);
            write_value(json_array_get(value, i), level + 1, out);
        }
        new_line(level, out);
        buffer_char(out, ']');
    } else {
        json_write_ordered(value, 0, out);
    }
}

void repack_write_config(const json_t *flat, const struct repack_record *record, struct buffer *out)
{
    static const char *const before[] = {"hidden_size",         "num_hidden_layers",
                                         "intermediate_size",   "num_attention_heads",
                                         "num_key_value_heads", "head_dim",
                                         "vocab_size",          "rms_norm_eps",
                                         "rope_theta",          "max_position_embeddings",
                                         "sliding_window",      "layer_types"};
    static const char *const after[] = {"block_size", "num_target_layers"};
    static const char *const kept[] = {"target_layer_ids", "mask_token_id"};
    const json_t *nested = json_object_get(flat, "dflash_config");
    json_t *c = json_object(), *block = json_object();
    json_object_set_new(c, "architectures", json_pack("[s]", "DFlashDraftModel"));
    json_object_set_new(c, "model_type", json_string("laguna"));
    json_object_set_new(c, "decoder_layer_type", json_string("laguna_xs"));
    json_object_set_new(c, "gating", json_string("per-head"));
    for (size_t i = 0; i < COUNT_OF(before); i++)
        json_object_set(c, before[i], json_object_get(flat, before[i]));
    json_object_set_new(c, "tie_word_embeddings",
                        json_boolean(json_is_true(json_object_get(flat, "tie_word_embeddings"))));
    for (size_t i = 0; i < COUNT_OF(after); i++)
        json_object_set(c, after[i], json_object_get(flat, after[i]));
    for (size_t i = 0; i < COUNT_OF(kept); i++)
        json_object_set(block, kept[i], json_object_get(nested, kept[i]));
    json_object_set_new(c, "dflash_config", block);
    json_object_set_new(c, "_mlx_conversion",
                        json_pack("{s:s, s:s, s:s, s:s, s:s}", "source_repo", record->repo,
                                  "source_revision", record->revision, "source_sha256",
                                  record->sha256, "converter", CONVERTER, "converted_at",
                                  record->converted_at));
    write_value(c, 0, out);
    buffer_char(out, '\n');
    json_decref(c);
}
