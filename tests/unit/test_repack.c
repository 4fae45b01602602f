/* The texts of a repacked drafter at the real sizes: every published number that needs no weights.
 */
#include "base/json.h"
#include "base/sha256.h"
#include "engine/transform/repack.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char SOURCE_SHA256[] =
    "67beb7f0dcb8a121ef912782396335cb5103e39f30328decdc83981509d4db84";

/* The drafter of laguna-xs-2.1 as published (dflash.md section 1). */
static const char SOURCE[] =
    "{\"architectures\":[\"DFlashLagunaForCausalLM\"],\"model_type\":\"laguna\","
    "\"gating\":\"per-head\",\"hidden_size\":2048,\"num_hidden_layers\":5,"
    "\"intermediate_size\":8192,\"num_attention_heads\":64,\"num_key_value_heads\":8,"
    "\"head_dim\":128,\"vocab_size\":100352,\"draft_vocab_size\":100352,\"rms_norm_eps\":1e-06,"
    "\"rope_theta\":500000.0,\"max_position_embeddings\":262144,\"sliding_window\":512,"
    "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
    "\"sliding_attention\",\"sliding_attention\"],\"dflash_config\":{\"block_size\":16,"
    "\"mask_token_id\":12,\"num_target_layers\":40,\"target_layer_ids\":[1,13,25,33,39],"
    "\"causal\":true}}";

struct fixture {
    struct arena arena;
    json_t *source, *flat;
    struct dflash_config config;
    struct repack_plan plan;
    struct buffer text;
};

static int set_up(void **state)
{
    struct fixture *f = memory_alloc(sizeof *f);
    struct error err;
    f->source = json_parse_strict(SOURCE, sizeof SOURCE - 1, JSON_DEPTH_DEFAULT, "source", &err);
    assert_non_null(f->source);
    assert_true(repack_read_config(&f->arena, f->source, "source", &f->flat, &f->config, &err));
    repack_make_plan(&f->arena, &f->config, &f->plan);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    json_decref(f->source);
    json_decref(f->flat);
    buffer_free(&f->text);
    arena_free(&f->arena);
    free(f);
    return 0;
}

static void test_header_has_the_published_length(void **state)
{
    struct fixture *f = *state;
    const struct repack_published *p = repack_find_published(SOURCE_SHA256);
    assert_non_null(p);
    assert_int_equal(f->plan.count, 68);
    assert_int_equal(f->plan.payload, 924129792);
    repack_write_header(&f->plan, &p->record, &f->text);
    assert_int_equal(f->text.length, 8 + 7356);
    assert_memory_equal(f->text.data, "\xbc\x1c\0\0\0\0\0\0", 8); /* 7356, little-endian */
    assert_memory_equal(f->text.data + 8,
                        "{\"aux_hidden_norms.0.weight\":{\"dtype\":\"BF16\",\"shape\":[2048],"
                        "\"data_offsets\":[0,4096]},",
                        78);
    assert_int_equal(f->text.length + f->plan.payload, 924137156);
}

static void test_config_is_the_published_file(void **state)
{
    struct fixture *f = *state;
    const struct repack_published *p = repack_find_published(SOURCE_SHA256);
    char hex[SHA256_HEX];
    repack_write_config(f->flat, &p->record, &f->text);
    assert_int_equal(f->text.length, 1121);
    sha256_hex(f->text.data, f->text.length, hex);
    assert_string_equal(hex, "52c5f769ff3fb0ad85b1294f15f10d1f0a178a5fdcd2a8b0f6881810d29165b9");
    assert_string_equal(hex, p->config_sha256);
}

static void test_plan_is_sorted_and_whole(void **state)
{
    struct fixture *f = *state;
    uint64_t at = 0, fused = 0;
    for (size_t i = 0; i < f->plan.count; i++) {
        const struct repack_tensor *t = &f->plan.tensors[i];
        assert_int_equal(t->offset, at);
        at += t->bytes;
        if (i)
            assert_true(strcmp(f->plan.tensors[i - 1].name, t->name) < 0);
        if (strcmp(t->from, "layers.3.self_attn.qkv_proj.weight") != 0) {
            assert_true(strcmp(t->from, t->name) == 0 || strstr(t->from, "qkv_proj"));
            continue;
        }
        fused += t->bytes;
        if (strstr(t->name, "q_proj"))
            assert_int_equal(t->skip, 0);
        else if (strstr(t->name, "k_proj"))
            assert_int_equal(t->skip, 8192 * 4096);
        else
            assert_int_equal(t->skip, (8192 + 1024) * 4096);
    }
    assert_int_equal(at, f->plan.payload);
    assert_int_equal(fused, 10240 * 4096);
}

static void test_unknown_sources_have_no_record(void **state)
{
    (void)state;
    char other[sizeof SOURCE_SHA256];
    memcpy(other, SOURCE_SHA256, sizeof other);
    other[63] = '5';
    assert_null(repack_find_published(other));
    const struct repack_published *plain =
        repack_find_published("0b51e20d76200a80e636414f45fb51a5c0e13b0852d977ba2db788214c68f6b8");
    assert_non_null(plain);
    assert_null(plain->sha256); /* no repack of it was published */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_header_has_the_published_length, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_config_is_the_published_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_plan_is_sorted_and_whole, set_up, tear_down),
        cmocka_unit_test(test_unknown_sources_have_no_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
