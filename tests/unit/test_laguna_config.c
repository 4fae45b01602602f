/* config.json of Laguna: what passes, what is refused and by which field, and the XS 2.1 pin. */
#include "base/buffer.h"
#include "base/json.h"
#include "engine/model/laguna_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/stat.h>
#include <unistd.h>

/* A small configuration that uses every switch; the tests change one thing at a time. */
static const char BASE[] =
    "{'model_type':'laguna','vocab_size':100,'hidden_size':32,'num_hidden_layers':3,"
    "'head_dim':8,'num_key_value_heads':2,'num_attention_heads':2,"
    "'num_attention_heads_per_layer':[2,4,6],'layer_types':['full_attention',"
    "'sliding_attention','sliding_attention'],'sliding_window':4,'intermediate_size':20,"
    "'mlp_layer_types':['dense','sparse','sparse'],'mlp_only_layers':[0],"
    "'moe_intermediate_size':16,'shared_expert_intermediate_size':48,'num_experts':5,"
    "'num_experts_per_tok':2,'norm_topk_prob':true,'moe_routed_scaling_factor':2.5,"
    "'rms_norm_eps':1e-6,'max_position_embeddings':64,'tie_word_embeddings':false,"
    "'attention_bias':false,'gating':'per-head','gating_types':['per_head','per_head','per_head'],"
    "'bos_token_id':2,'eos_token_id':[2,24,2],'pad_token_id':9,"
    "'quantization':{'bits':4,'group_size':16,'mode':'nvfp4'},"
    "'quantization_config':{'bits':4,'group_size':16,'mode':'nvfp4'},"
    "'rope_parameters':{'full_attention':{'rope_type':'yarn','rope_theta':500000.0,'factor':32.0,"
    "'original_max_position_embeddings':16,'beta_fast':64.0,'beta_slow':1.0,"
    "'attention_factor':1.0,'partial_rotary_factor':0.5},"
    "'sliding_attention':{'rope_type':'default','rope_theta':10000.0}},"
    "'some_other_key':[1,{'x':null}]}";

static json_t *parse_quoted(const char *text)
{
    char *copy = strdup(text);
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    struct error err = {0};
    json_t *value = json_parse_strict(copy, strlen(copy), 64, "test", &err);
    if (!value)
        fail_msg("%s in %s", err.message, copy);
    free(copy);
    return value;
}

/* The base with the members of change put over it; a member "-" is taken away. A member "rope"
 * changes rope_parameters.full_attention instead. */
static json_t *changed(const char *change)
{
    json_t *config = parse_quoted(BASE), *patch = parse_quoted(change);
    const char *key;
    json_t *value;
    json_object_foreach(patch, key, value)
    {
        json_t *target = config;
        if (strcmp(key, "rope") == 0) {
            target = json_object_get(json_object_get(config, "rope_parameters"), "full_attention");
            json_object_update(target, value);
        } else if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0) {
            json_object_del(config, key);
        } else {
            json_object_set(target, key, value);
        }
    }
    json_decref(patch);
    return config;
}

static bool parse(const char *change, struct arena *a, struct laguna_config *c, struct error *err)
{
    json_t *config = changed(change);
    memset(err, 0, sizeof *err);
    const bool ok = laguna_config_parse(a, config, "config.json", c, err);
    json_decref(config);
    return ok;
}

static void expect_refused(const char *change, const char *field, const char *value)
{
    struct arena a = {0};
    struct laguna_config c;
    struct error err;
    if (parse(change, &a, &c, &err))
        fail_msg("accepted: %s", change);
    assert_string_equal(err.name, "CONFIG-INVALID");
    assert_string_equal(err.file, "config.json");
    if (strcmp(err.field, field) != 0)
        fail_msg("%s: field %s, expected %s (%s)", change, err.field, field, err.message);
    if (value)
        assert_string_equal(err.value, value);
    assert_true(strlen(err.message) > 0);
    arena_free(&a);
}

static void expect_accepted(const char *change)
{
    struct arena a = {0};
    struct laguna_config c;
    struct error err;
    if (!parse(change, &a, &c, &err))
        fail_msg("%s refused: %s %s %s", change, err.field, err.value, err.message);
    arena_free(&a);
}

static void test_every_field(void **state)
{
    (void)state;
    struct arena a = {0};
    struct laguna_config c;
    struct error err;
    assert_true(parse("{}", &a, &c, &err));
    assert_int_equal(c.vocab, 100);
    assert_int_equal(c.hidden, 32);
    assert_int_equal(c.layer_count, 3);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.sliding_window, 4);
    assert_int_equal(c.dense_width, 20);
    assert_int_equal(c.experts, 5);
    assert_int_equal(c.top_k, 2);
    assert_int_equal(c.expert_width, 16);
    assert_int_equal(c.shared_width, 48);
    assert_true(c.normalize_top_k);
    assert_true(c.routed_scale == 2.5);
    assert_true(c.eps == 1e-6);
    assert_int_equal(c.max_positions, 64);
    assert_int_equal(c.layers[0].heads, 2);
    assert_int_equal(c.layers[2].heads, 6);
    assert_int_equal(c.layers[0].attention, LAGUNA_FULL_ATTENTION);
    assert_int_equal(c.layers[1].attention, LAGUNA_SLIDING_ATTENTION);
    assert_false(c.layers[0].sparse);
    assert_true(c.layers[1].sparse);
    const struct laguna_rope *full = &c.rope[LAGUNA_FULL_ATTENTION];
    assert_int_equal(full->type, LAGUNA_ROPE_YARN);
    assert_int_equal(full->dim, 4);
    assert_true(full->theta == 500000.0 && full->factor == 32.0 && full->beta_fast == 64.0 &&
                full->beta_slow == 1.0);
    assert_int_equal(full->original_max_positions, 16);
    assert_true(full->has_attention_factor && full->attention_factor == 1.0);
    const struct laguna_rope *sliding = &c.rope[LAGUNA_SLIDING_ATTENTION];
    assert_int_equal(sliding->type, LAGUNA_ROPE_DEFAULT);
    assert_int_equal(sliding->dim, 8);
    assert_int_equal(c.bos, 2);
    assert_int_equal(c.pad, 9);
    assert_int_equal(c.eos_count, 2); /* each once */
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(c.eos[1], 24);
    arena_free(&a);
}

static void test_optional_fields(void **state)
{
    (void)state;
    struct arena a = {0};
    struct laguna_config c;
    struct error err;
    assert_true(parse("{'num_attention_heads_per_layer':null,'num_attention_heads':4,"
                      "'mlp_layer_types':'-','eos_token_id':7,'bos_token_id':null,"
                      "'pad_token_id':'-','norm_topk_prob':false,'rope':{'attention_factor':null,"
                      "'beta_fast':null,'beta_slow':null},'shared_expert_intermediate_size':0}",
                      &a, &c, &err));
    assert_int_equal(c.layers[0].heads, 4);
    assert_int_equal(c.layers[2].heads, 4);
    assert_false(c.layers[0].sparse);
    assert_true(c.layers[2].sparse);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos[0], 7);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.pad, -1);
    assert_false(c.normalize_top_k);
    assert_int_equal(c.shared_width, 0);
    assert_false(c.rope[0].has_attention_factor);
    assert_true(c.rope[0].beta_fast == 32.0 && c.rope[0].beta_slow == 1.0);
    arena_free(&a);
    expect_accepted("{'mlp_only_layers':'-'}");
    expect_accepted("{'mlp_only_layers':[0,1],'mlp_layer_types':'-','decoder_sparse_step':3}");
    expect_accepted("{'gating_types':'-','hidden_act':'silu','quantization':'-'}");
    expect_accepted("{'gating':true,'hidden_act':null,'quantization_config':'-'}");
    expect_accepted("{'qkv_bias':null,'moe_router_logit_softcapping':null,'attention_bias':'-'}");
    expect_accepted("{'layer_types':['full_attention','full_attention','full_attention'],"
                    "'sliding_window':null,'rope_parameters':{'full_attention':"
                    "{'rope_type':'default','rope_theta':10000}}}");
    expect_accepted("{'mlp_layer_types':['dense','dense','dense'],'mlp_only_layers':[0,1,2],"
                    "'num_experts':'-','num_experts_per_tok':'-','moe_intermediate_size':'-',"
                    "'shared_expert_intermediate_size':'-','moe_routed_scaling_factor':'-',"
                    "'hidden_size':30}");
}

static void test_refused_types(void **state)
{
    (void)state;
    expect_refused("{'model_type':'qwen'}", "model_type", "\"qwen\"");
    expect_refused("{'vocab_size':'-'}", "vocab_size", NULL);
    expect_refused("{'vocab_size':1.5}", "vocab_size", "1.5");
    expect_refused("{'vocab_size':0}", "vocab_size", "0");
    expect_refused("{'hidden_size':1048577}", "hidden_size", "1048577");
    expect_refused("{'hidden_size':'32'}", "hidden_size", "\"32\"");
    expect_refused("{'hidden_size':null}", "hidden_size", "null");
    expect_refused("{'num_hidden_layers':-1}", "num_hidden_layers", "-1");
    expect_refused("{'rms_norm_eps':0}", "rms_norm_eps", "0");
    expect_refused("{'rms_norm_eps':1.0}", "rms_norm_eps", "1.0");
    expect_refused("{'max_position_embeddings':2147483648}", "max_position_embeddings",
                   "2147483648");
    expect_refused("{'norm_topk_prob':1}", "norm_topk_prob", "1");
    expect_refused("{'moe_routed_scaling_factor':true}", "moe_routed_scaling_factor", "true");
    expect_refused("{'layer_types':{}}", "layer_types", NULL);
    expect_refused("{'layer_types':['full_attention','linear_attention','full_attention']}",
                   "layer_types[1]", "linear_attention");
    expect_refused("{'mlp_layer_types':['dense',1,'sparse']}", "mlp_layer_types[1]", NULL);
    expect_refused("{'rope_parameters':[]}", "rope_parameters", NULL);
    expect_refused("{'rope_parameters':{'full_attention':{'rope_type':'default','rope_theta':1e4},"
                   "'sliding_attention':3}}",
                   "rope_parameters.sliding_attention", "3");
}

static void test_refused_settings(void **state)
{
    (void)state;
    /* A concrete false or 0 is refused: absence itself is pinned (laguna.md section 2). */
    expect_refused("{'qkv_bias':false}", "qkv_bias", "false");
    expect_refused("{'moe_router_logit_softcapping':0}", "moe_router_logit_softcapping", "0");
    expect_refused("{'moe_router_logit_softcapping':0.0}", "moe_router_logit_softcapping", "0.0");
    expect_refused("{'attention_bias':true}", "attention_bias", "true");
    expect_refused("{'attention_bias':0}", "attention_bias", "0");
    expect_refused("{'moe_apply_router_weight_on_input':true}", "moe_apply_router_weight_on_input",
                   "true");
    expect_refused("{'hidden_act':'gelu'}", "hidden_act", "\"gelu\"");
    expect_refused("{'tie_word_embeddings':true}", "tie_word_embeddings", "true");
    expect_refused("{'tie_word_embeddings':'-'}", "tie_word_embeddings", NULL);
    expect_refused("{'gating':'per-element'}", "gating", "\"per-element\"");
    expect_refused("{'gating':false}", "gating", "false");
    expect_refused("{'gating_types':['per_head','per_head']}", "gating_types", NULL);
    expect_refused("{'gating_types':['per_head','per_element','per_head']}", "gating_types", NULL);
    expect_refused("{'quantization':'-','quantization_config':'-'}", "quantization", NULL);
    expect_refused("{'quantization':{'bits':8,'group_size':16,'mode':'nvfp4'}}",
                   "quantization.bits", "8");
    expect_refused("{'quantization':{'bits':4,'group_size':32,'mode':'nvfp4'}}",
                   "quantization.group_size", "32");
    expect_refused("{'quantization_config':{'bits':4,'group_size':16,'mode':'mxfp4'}}",
                   "quantization_config.mode", "\"mxfp4\"");
    expect_refused("{'quantization_config':{'bits':4,'group_size':16,'mode':'nvfp4','x':1}}",
                   "quantization_config.x", NULL);
    expect_refused("{'rope':{'rope_type':'linear'}}", "rope_parameters.full_attention.rope_type",
                   "\"linear\"");
    expect_refused("{'rope':{'mscale':1.0}}", "rope_parameters.full_attention.mscale", "1.0");
    expect_refused("{'rope':{'truncate':false}}", "rope_parameters.full_attention.truncate",
                   "false");
}

static void test_refused_consistency(void **state)
{
    (void)state;
    expect_refused("{'num_attention_heads_per_layer':[2,3,6]}", "num_attention_heads_per_layer",
                   "[2,3,6]");
    expect_refused("{'num_attention_heads_per_layer':[2,4]}", "num_attention_heads_per_layer",
                   "[2,4]");
    expect_refused("{'num_attention_heads_per_layer':[2,4,-6]}", "num_attention_heads_per_layer[2]",
                   "-6");
    expect_refused("{'num_attention_heads_per_layer':[2,4,1048576]}",
                   "num_attention_heads_per_layer", "[2,4,1048576]");
    expect_refused("{'num_attention_heads_per_layer':'-','num_attention_heads':3}",
                   "num_attention_heads", "3");
    expect_refused("{'head_dim':7}", "head_dim", "7");
    expect_refused("{'num_key_value_heads':1048576}", "num_key_value_heads", "1048576");
    expect_refused("{'layer_types':['full_attention','sliding_attention']}", "layer_types", NULL);
    expect_refused("{'sliding_window':null}", "sliding_window", "null");
    expect_refused("{'sliding_window':0}", "sliding_window", "0");
    expect_refused("{'mlp_only_layers':[1]}", "mlp_only_layers", "[1]");
    expect_refused("{'mlp_only_layers':[3]}", "mlp_only_layers[0]", "3");
    expect_refused("{'mlp_only_layers':'-','mlp_layer_types':'-'}", "mlp_layer_types", NULL);
    expect_refused("{'mlp_only_layers':'-','decoder_sparse_step':2}", "decoder_sparse_step", "2");
    expect_refused("{'num_experts_per_tok':6}", "num_experts_per_tok", "6");
    expect_refused("{'hidden_size':40}", "hidden_size", "40");
    expect_refused("{'moe_intermediate_size':24}", "moe_intermediate_size", "24");
    expect_refused("{'shared_expert_intermediate_size':8}", "shared_expert_intermediate_size", "8");
    expect_refused("{'rope':{'partial_rotary_factor':0.2}}",
                   "rope_parameters.full_attention.partial_rotary_factor", "0.2");
    expect_refused("{'rope':{'partial_rotary_factor':0.4}}", /* 3 dimensions */
                   "rope_parameters.full_attention.partial_rotary_factor", "0.4");
    expect_refused("{'rope':{'partial_rotary_factor':1.5}}",
                   "rope_parameters.full_attention.partial_rotary_factor", "1.5");
    expect_refused("{'rope':{'rope_theta':1}}", "rope_parameters.full_attention.rope_theta", "1");
    expect_refused("{'rope':{'factor':0.5}}", "rope_parameters.full_attention.factor", "0.5");
    expect_refused("{'rope':{'beta_fast':0.5}}", "rope_parameters.full_attention.beta_fast", "0.5");
    expect_refused("{'rope':{'original_max_position_embeddings':0}}",
                   "rope_parameters.full_attention.original_max_position_embeddings", "0");
    expect_refused("{'eos_token_id':100}", "eos_token_id", "100");
    expect_refused("{'eos_token_id':[]}", "eos_token_id", "[]");
    expect_refused("{'eos_token_id':[2,'x']}", "eos_token_id", "[2,\"x\"]");
    expect_refused("{'eos_token_id':'-'}", "eos_token_id", NULL);
    expect_refused("{'eos_token_id':[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", "eos_token_id",
                   NULL);
    expect_refused("{'bos_token_id':100}", "bos_token_id", "100");
    expect_refused("{'pad_token_id':-1}", "pad_token_id", "-1");
}

static void test_total_size_is_checked(void **state)
{
    (void)state;
    /* Each size is within its own limit; together they pass 2^60 bytes. */
    expect_refused("{'hidden_size':1048576,'moe_intermediate_size':1048576,"
                   "'num_experts':1048576}",
                   "num_hidden_layers", "3");
}

static void test_not_an_object(void **state)
{
    (void)state;
    struct arena a = {0};
    struct laguna_config c;
    struct error err = {0};
    json_t *list = json_array();
    assert_false(laguna_config_parse(&a, list, "config.json", &c, &err));
    assert_string_equal(err.name, "CONFIG-INVALID");
    json_decref(list);
    arena_free(&a);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_A_TK4_stop_set_from_generation_config(void **state)
{
    (void)state;
    char folder[] = "/tmp/mlxfast-config-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    struct arena a = {0};
    struct laguna_config c;
    struct error err;
    assert_true(parse("{'eos_token_id':2}", &a, &c, &err));
    assert_true(laguna_config_read_generation(folder, &c, &err)); /* no such file */
    assert_int_equal(c.eos_count, 1);
    write_text(folder, "generation_config.json", "{\"temperature\":0.6}");
    assert_true(laguna_config_read_generation(folder, &c, &err));
    assert_int_equal(c.eos_count, 1);
    write_text(folder, "generation_config.json", "{\"eos_token_id\":[2,24]}");
    assert_true(laguna_config_read_generation(folder, &c, &err));
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos[0], 2);
    assert_int_equal(c.eos[1], 24);
    write_text(folder, "generation_config.json", "{\"eos_token_id\":100}");
    assert_false(laguna_config_read_generation(folder, &c, &err));
    assert_string_equal(err.name, "CONFIG-INVALID");
    assert_string_equal(err.field, "eos_token_id");
    assert_string_equal(err.file, path);
    write_text(folder, "generation_config.json", "{");
    assert_false(laguna_config_read_generation(folder, &c, &err));
    assert_string_equal(err.name, "CONFIG-INVALID");
    unlink(path);
    rmdir(folder);
    arena_free(&a);
}

static void test_inventory_of_a_small_model(void **state)
{
    (void)state;
    struct arena a = {0};
    struct laguna_config c;
    struct error err;
    assert_true(parse("{}", &a, &c, &err));
    struct inventory inv = {.arena = &a};
    laguna_config_inventory(&c, &inv);
    /* 3 outside, 9 in each layer; 3 dense; 2 router + 6 routed + 6 shared in two layers */
    assert_int_equal(inv.count, 3 + 3 * 9 + 3 + 2 * 14);
    uint64_t bytes = 0;
    bool seen = false;
    for (size_t i = 0; i < inv.count; i++) {
        const struct tensor_spec *t = &inv.items[i];
        uint64_t size = dtype_size(t->dtype);
        for (int d = 0; d < t->rank; d++)
            size *= (uint64_t)t->shape[d];
        bytes += size;
        if (strcmp(t->name, "model.layers.2.mlp.switch_mlp.down_proj.scales") == 0) {
            seen = true;
            assert_int_equal(t->dtype, DTYPE_U8);
            assert_int_equal(t->rank, 3);
            assert_int_equal(t->shape[0], 5);
            assert_int_equal(t->shape[1], 32);
            assert_int_equal(t->shape[2], 1);
        }
    }
    assert_true(seen);
    /* Everything but 99 of 100 embedding rows and 3 of 5 experts in two layers is read. */
    const uint64_t expert = 3 * (16 * 32 / 2 + 16 * 32 / 16);
    assert_int_equal(laguna_config_bytes_per_token(&c), bytes - 99 * 32 * 2 - 2 * 3 * expert);
    arena_free(&a);
}

#define Q_INT8 "'model.layers.1.self_attn.q_proj':{'bits':8,'group_size':32,'mode':'affine'}"
#define BLOCK(entries) "{'bits':4,'group_size':16,'mode':'nvfp4'," entries "}"

/* As mlx writes them: an entry per module, in both blocks. */
static void test_int8_projections(void **state)
{
    (void)state;
    static const char entries[] = "{'quantization':" BLOCK(
        Q_INT8 ",'model.layers.1.self_attn.o_proj':{'group_size':32,'bits':8},"
               "'model.layers.1.mlp.switch_mlp.up_proj':{'bits':4,'group_size':16,"
               "'mode':'nvfp4'}") ",'num_attention_heads_per_layer':[2,4,4],"
                                  "'quantization_config':'-'}";
    struct arena a = {0};
    struct laguna_config c, plain;
    struct error err;
    if (!parse(entries, &a, &c, &err))
        fail_msg("%s %s", err.message, err.field);
    assert_int_equal(c.layers[0].int8, 0);
    assert_int_equal(c.layers[1].int8, 1u << LAGUNA_Q | 1u << LAGUNA_O);
    assert_true(parse("{'num_attention_heads_per_layer':[2,4,4]}", &a, &plain, &err));
    struct inventory inv = {.arena = &a};
    laguna_config_inventory(&c, &inv);
    static const struct {
        const char *name;
        enum dtype dtype;
        int64_t out, in;
    } wanted[] = {{"q_proj.weight", DTYPE_U32, 32, 8},  {"q_proj.scales", DTYPE_BF16, 32, 1},
                  {"q_proj.biases", DTYPE_BF16, 32, 1}, {"o_proj.weight", DTYPE_U32, 32, 8},
                  {"o_proj.scales", DTYPE_BF16, 32, 1}, {"o_proj.biases", DTYPE_BF16, 32, 1},
                  {"k_proj.weight", DTYPE_BF16, 16, 32}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.1.self_attn.%s", wanted[i].name);
        const struct tensor_spec *t = NULL;
        for (size_t k = 0; k < inv.count; k++)
            if (strcmp(inv.items[k].name, name) == 0)
                t = &inv.items[k];
        assert_non_null(t);
        assert_int_equal(t->dtype, wanted[i].dtype);
        assert_int_equal(t->rank, 2);
        assert_int_equal(t->shape[0], wanted[i].out);
        assert_int_equal(t->shape[1], wanted[i].in);
    }
    /* Two of 32 x 32: two bytes each before, a byte and four for each 32 now. */
    assert_int_equal(laguna_config_bytes_per_token(&plain) - laguna_config_bytes_per_token(&c),
                     2 * (32 * 32 * 2 - (32 * 32 + 32 * 4)));
    arena_free(&a);
}

static void expect_refused_as(const char *entries, const char *name, const char *field)
{
    struct buffer change = {0};
    struct arena a = {0};
    struct laguna_config c;
    struct error err = {0};
    buffer_printf(&change, "{'quantization':" BLOCK("%s") ",'quantization_config':'-'}", entries);
    assert_false(parse(change.data, &a, &c, &err));
    assert_string_equal(err.name, name);
    assert_string_equal(err.field, field);
    buffer_free(&change);
    arena_free(&a);
}

static void test_other_formats_are_not_permitted(void **state)
{
    (void)state;
    static const char refused[] = "QUANTIZATION-NOT-PERMITTED";
    static const char *const modules[] = {"lm_head",
                                          "model.embed_tokens",
                                          "model.layers.1.mlp.gate",
                                          "model.layers.0.mlp.up_proj",
                                          "model.layers.1.mlp.switch_mlp.up_proj",
                                          "model.layers.1.mlp.shared_expert.down_proj",
                                          "model.layers.01.self_attn.q_proj",
                                          "model.layers.1.self_attn.q_norm",
                                          "layers.1.self_attn.q_proj"};
    char entry[256], field[128];
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        snprintf(entry, sizeof entry, "'%s':{'bits':8,'group_size':32,'mode':'affine'}",
                 modules[i]);
        snprintf(field, sizeof field, "quantization.%s", modules[i]);
        expect_refused_as(entry, refused, field);
    }
    static const char *const formats[] = {
        "{'bits':4,'group_size':32,'mode':'affine'}", "{'bits':8,'group_size':64,'mode':'affine'}",
        "{'bits':8,'group_size':32,'mode':'mxfp8'}",  "{'bits':4,'group_size':16,'mode':'nvfp4'}",
        "{'bits':8,'group_size':32,'x':1}",           "{'bits':8.0,'group_size':32}",
        "{'bits':8,'group_size':32,'mode':null}"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        snprintf(entry, sizeof entry, "'model.layers.1.self_attn.q_proj':%s", formats[i]);
        expect_refused_as(entry, refused, "quantization.model.layers.1.self_attn.q_proj");
    }
    expect_refused_as("'model.layers.3.self_attn.q_proj':{'bits':8,'group_size':32}",
                      "CONFIG-INVALID", "quantization.model.layers.3.self_attn.q_proj");
    /* layer 0 has two heads of eight: o_proj has 16 inputs */
    expect_refused_as("'model.layers.0.self_attn.o_proj':{'bits':8,'group_size':32}",
                      "CONFIG-INVALID", "quantization.model.layers.0.self_attn.o_proj");
    expect_refused("{'quantization':" BLOCK(Q_INT8) "}", "quantization_config", NULL);
}

static const char *shared_folder(void)
{
    const char *s = getenv("MLXFAST_SHARED");
    return s ? s : "../shared";
}

static json_t *real_config(void)
{
    char path[512];
    snprintf(path, sizeof path, "%s/data/laguna-xs-2.1-config.json", shared_folder());
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    struct error err = {0};
    json_t *config = json_read_file(path, 1 << 20, 64, &err);
    assert_non_null(config);
    return config;
}

static void test_xs21_pin(void **state)
{
    (void)state;
    json_t *config = real_config();
    struct error err = {0};
    if (!laguna_config_pin_xs21(config, "config.json", &err))
        fail_msg("%s: %s", err.field, err.message);
    static const struct {
        const char *key, *text;
    } changes[] = {
        {"num_experts", "128"},        {"eos_token_id", "[24,2]"},
        {"eos_token_id", "2"},         {"use_cache", "false"},
        {"rms_norm_eps", "1e-5"},      {"gating_types", "[]"},
        {"qkv_bias", "false"},         {"hidden_act", "\"silu\""},
        {"mlp_only_layers", "[]"},     {"moe_router_logit_softcapping", "0"},
        {"num_attention_heads", "64"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        json_t *copy = json_deep_copy(config);
        json_object_set_new(copy, changes[i].key,
                            json_loads(changes[i].text, JSON_DECODE_ANY, NULL));
        if (laguna_config_pin_xs21(copy, "config.json", &err))
            fail_msg("accepted %s = %s", changes[i].key, changes[i].text);
        assert_string_equal(err.name, "CONFIG-PIN-MISMATCH");
        assert_string_equal(err.field, changes[i].key);
        json_decref(copy);
    }
    json_t *copy = json_deep_copy(config);
    json_t *full = json_object_get(json_object_get(copy, "rope_parameters"), "full_attention");
    json_object_set_new(full, "attention_factor", json_real(1.5));
    assert_false(laguna_config_pin_xs21(copy, "config.json", &err));
    assert_string_equal(err.field, "rope_parameters");
    json_object_set_new(full, "attention_factor", json_integer(1)); /* the same number */
    json_object_set_new(copy, "qkv_bias", json_null());
    assert_true(laguna_config_pin_xs21(copy, "config.json", &err));
    json_object_del(copy, "torch_dtype");
    assert_false(laguna_config_pin_xs21(copy, "config.json", &err));
    assert_string_equal(err.value, "(missing)");
    json_decref(copy);
    json_decref(config);
}

static void test_xs21_traffic(void **state)
{
    (void)state;
    json_t *config = real_config();
    struct arena a = {0};
    struct laguna_config c;
    struct error err = {0};
    assert_true(laguna_config_parse(&a, config, "config.json", &c, &err));
    assert_int_equal(c.rope[LAGUNA_FULL_ATTENTION].dim, 64);
    assert_int_equal(c.rope[LAGUNA_SLIDING_ATTENTION].dim, 128);
    /* laguna.md section 3: the table's bytes less the embedding table and 248 of 256 experts. */
    const uint64_t all = 21561408512u, table = 411041792u;
    const uint64_t routed = 10468982784u + 1308622848u + 5234491392u + 654311424u;
    assert_int_equal(laguna_config_bytes_per_token(&c),
                     all - table + 2 * 2048 - routed / 256 * 248);
    json_decref(config);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_optional_fields),
        cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_refused_settings),
        cmocka_unit_test(test_refused_consistency),
        cmocka_unit_test(test_total_size_is_checked),
        cmocka_unit_test(test_not_an_object),
        cmocka_unit_test(test_A_TK4_stop_set_from_generation_config),
        cmocka_unit_test(test_inventory_of_a_small_model),
        cmocka_unit_test(test_int8_projections),
        cmocka_unit_test(test_other_formats_are_not_permitted),
        cmocka_unit_test(test_xs21_pin),
        cmocka_unit_test(test_xs21_traffic),
    };
    return cmocka_run_group_tests_name("laguna_config", tests, NULL, NULL);
}
