/* Model folders: which files there must be, index and shards told by one story, config.json. */
#include "../malformed/files.h"
#include "base/file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/laguna_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static const char CONFIG[] = "config.json";
static const char INDEX[] = "model.safetensors.index.json";
static const char SINGLE[] = "model.safetensors";
static const char ONE[] = "one.safetensors";
static const char TWO[] = "two.safetensors";

static const char HEADER_AB[] = "{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},"
                                "'b':{'dtype':'F32','shape':[1],'data_offsets':[2,6]}}";
static const char HEADER_C[] = "{'c':{'dtype':'BF16','shape':[1,2],'data_offsets':[0,4]}}";
static const char GOOD_INDEX[] =
    "{'metadata':{'total_size':10},'weight_map':{'a':'one.safetensors',"
    "'c':'two.safetensors','b':'one.safetensors'}}";

/* config.json, the index and two shards, all sound. */
static struct folder sound(void)
{
    struct folder f = folder_new();
    folder_text(&f, CONFIG, "{'model_type':'laguna'}");
    folder_text(&f, INDEX, GOOD_INDEX);
    folder_write(&f, ONE, bytes_safetensors(HEADER_AB, 6));
    folder_write(&f, TWO, bytes_safetensors(HEADER_C, 4));
    return f;
}

static void remove_folder(const struct folder *f)
{
    static const char *const all[] = {CONFIG, INDEX, SINGLE, ONE, TWO, NULL};
    folder_free(f, all);
}

/* Opening is refused by this name, and the message holds each of the texts. */
static void refused(struct folder f, const char *name, const char *file, const char *field,
                    const char *const *texts)
{
    struct checkpoint *c = NULL;
    struct error err = {0};
    if (checkpoint_open(f.path, &c, &err))
        fail_msg("accepted, expected %s", name);
    assert_null(c);
    assert_string_equal(err.name, name);
    if (!strstr(err.file, file) || strcmp(err.field, field) != 0)
        fail_msg("%s: file %s, field %s; expected %s, %s", err.message, err.file, err.field, file,
                 field);
    for (; *texts; texts++)
        if (!strstr(err.message, *texts))
            fail_msg("\"%s\" does not say \"%s\"", err.message, *texts);
    remove_folder(&f);
}
#define TEXTS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        __VA_ARGS__, NULL                                                                          \
    }

static void test_sound_folder(void **state)
{
    (void)state;
    struct folder f = sound();
    struct checkpoint *c = NULL;
    struct error err = {0};
    if (!checkpoint_open(f.path, &c, &err))
        fail_msg("%s: %s", err.file, err.message);
    assert_string_equal(c->folder, f.path);
    assert_string_equal(c->model_type, "laguna");
    assert_int_equal(c->shard_count, 2);
    assert_string_equal(c->shards[0].file_name, ONE);
    assert_int_equal(c->tensor_count, 3);
    assert_int_equal(c->tensor_bytes, 10);
    const struct tensor *t = checkpoint_find(c, "c");
    assert_non_null(t);
    assert_int_equal(t->shard, 1);
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->data[3], 3);
    t = checkpoint_find(c, "b");
    assert_int_equal(t->shard, 0);
    assert_int_equal(t->data[0], 2); /* at an odd address: shards place tensors anywhere */
    assert_null(checkpoint_find(c, "d"));
    assert_null(checkpoint_find(c, ""));
    checkpoint_close(c);
    checkpoint_close(NULL);
    remove_folder(&f);
}

static void test_single_file(void **state)
{
    (void)state;
    struct folder f = folder_new();
    folder_text(&f, CONFIG, "{'model_type':'x','n':1.5}");
    folder_write(&f, SINGLE, bytes_safetensors(HEADER_C, 4));
    struct checkpoint *c = NULL;
    struct error err = {0};
    assert_true(checkpoint_open(f.path, &c, &err));
    assert_int_equal(c->shard_count, 1);
    assert_int_equal(c->tensor_count, 1);
    checkpoint_close(c);
    remove_folder(&f);
}

static void test_A_ST6_missing_shards_are_all_named(void **state)
{
    (void)state;
    struct folder f = sound();
    folder_remove_file(&f, TWO);
    /* Before any load: the broken first shard is not what is complained of. */
    folder_text(&f, ONE, "broken");
    refused(f, "CHECKPOINT-MISSING-FILE", f.path, "", TEXTS("missing: two.safetensors"));
    f = sound();
    folder_remove_file(&f, ONE);
    folder_remove_file(&f, TWO);
    folder_remove_file(&f, CONFIG);
    refused(f, "CHECKPOINT-MISSING-FILE", f.path, "",
            TEXTS("missing: config.json, one.safetensors, two.safetensors"));
    f = sound();
    folder_text(&f, INDEX,
                "{'weight_map':{'a':'1.safetensors','b':'2.safetensors','c':'3.safetensors',"
                "'d':'4.safetensors','e':'5.safetensors','f':'6.safetensors','g':'7.safetensors',"
                "'h':'8.safetensors','i':'9.safetensors','j':'10.safetensors'}}");
    refused(f, "CHECKPOINT-MISSING-FILE", f.path, "", TEXTS("7.safetensors and 2 more"));
    f = folder_new();
    folder_text(&f, CONFIG, "{'model_type':'laguna'}");
    refused(f, "CHECKPOINT-MISSING-FILE", f.path, "",
            TEXTS("missing: model.safetensors", "no model.safetensors.index.json"));
    f = sound();
    folder_remove_file(&f, CONFIG);
    refused(f, "CHECKPOINT-MISSING-FILE", f.path, "", TEXTS("missing: config.json"));
}

static void test_no_such_folder(void **state)
{
    (void)state;
    struct checkpoint *c = NULL;
    struct error err = {0};
    json_t *config = NULL;
    assert_false(checkpoint_open("/nonexistent/model", &c, &err));
    assert_string_equal(err.name, "CHECKPOINT-MISSING-FILE");
    assert_string_equal(err.file, "/nonexistent/model");
    assert_false(checkpoint_read_config("/nonexistent/model", &config, &err));
    assert_string_equal(err.name, "CHECKPOINT-MISSING-FILE");
}

static void test_A_ST7_cut_shard(void **state)
{
    (void)state;
    struct folder f = sound();
    folder_write(&f, TWO, bytes_safetensors(HEADER_C, 3));
    refused(f, "SAFETENSORS-INVALID", TWO, "c.data_offsets", TEXTS("the file is cut"));
    f = sound();
    folder_write(&f, TWO, bytes_raw("", 0));
    refused(f, "SAFETENSORS-INVALID", TWO, "", TEXTS("has 0 bytes"));
}

static void test_A_ST1_duplicate_tensor(void **state)
{
    (void)state;
    struct folder f = sound();
    folder_write(&f, TWO,
                 bytes_safetensors("{'c':{'dtype':'U8','shape':[1],'data_offsets':[0,1]},"
                                   "'c':{'dtype':'U8','shape':[1],'data_offsets':[1,2]}}",
                                   2));
    refused(f, "SAFETENSORS-INVALID", TWO, "c", TEXTS("duplicate key"));
    f = sound();
    folder_text(&f, INDEX, "{'weight_map':{'a':'one.safetensors','a':'two.safetensors'}}");
    refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "a", TEXTS("duplicate key"));
    /* The same tensor in both shards: one of them is not where the index says. */
    f = sound();
    folder_write(&f, TWO,
                 bytes_safetensors("{'c':{'dtype':'BF16','shape':[1,2],'data_offsets':[0,4]},"
                                   "'a':{'dtype':'U8','shape':[2],'data_offsets':[4,6]}}",
                                   6));
    refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "weight_map",
            TEXTS("1 in another shard: a (in two.safetensors, the index says one.safetensors)"));
}

static void test_index_both_ways(void **state)
{
    (void)state;
    struct folder f = sound();
    folder_text(&f, INDEX, "{'weight_map':{'a':'one.safetensors','c':'two.safetensors'}}");
    refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "weight_map",
            TEXTS("1 in a shard but not in the index: b"));
    f = sound();
    folder_text(&f, INDEX,
                "{'weight_map':{'a':'one.safetensors','b':'one.safetensors',"
                "'c':'two.safetensors','d':'two.safetensors','e':'one.safetensors'}}");
    refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "weight_map",
            TEXTS("2 in the index but in no shard: d, e"));
    f = sound();
    folder_text(&f, INDEX,
                "{'weight_map':{'a':'one.safetensors','b':'two.safetensors',"
                "'x':'two.safetensors'}}");
    refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "weight_map",
            TEXTS("1 in the index but in no shard: x",
                  "1 in another shard: b (in one.safetensors, the index says two.safetensors)",
                  "1 in a shard but not in the index: c"));
}

static void test_index_shard_names(void **state)
{
    (void)state;
    static const char *const names[] = {"../one.safetensors",
                                        "/etc/one.safetensors",
                                        "x/../../one.safetensors",
                                        "./one.safetensors",
                                        "x//one.safetensors",
                                        "",
                                        "..",
                                        "one.bin",
                                        "/etc/passwd",
                                        "x\\\\one.safetensors",
                                        "one.safetensors/"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[256];
        struct folder f = sound();
        snprintf(text, sizeof text, "{'weight_map':{'a':'%s'}}", names[i]);
        folder_text(&f, INDEX, text);
        refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "a", TEXTS("relative path"));
    }
}

static void test_index_shape(void **state)
{
    (void)state;
    static const struct {
        const char *text, *field, *say;
    } wrong[] = {
        {"[]", "weight_map", "no weight_map"},
        {"{}", "weight_map", "no weight_map"},
        {"{'weight_map':[]}", "weight_map", "no weight_map"},
        {"{'weight_map':{}}", "weight_map", "empty"},
        {"{'weight_map':{'a':1}}", "a", "not a string"},
        {"{'metadata':3,'weight_map':{'a':'one.safetensors'}}", "metadata", "not an object"},
        {"", "", "not JSON"},
        {"{'weight_map':{'a':'one.safetensors'}}}", "", "not JSON"},
        {"{'weight_map':{'a':'one.safetensors\\u0000'}}", "", "not JSON"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct folder f = sound();
        folder_text(&f, INDEX, wrong[i].text);
        refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, wrong[i].field, TEXTS(wrong[i].say));
    }
    struct folder f = sound(); /* metadata may be absent */
    struct checkpoint *c = NULL;
    struct error err = {0};
    folder_text(&f, INDEX,
                "{'weight_map':{'a':'one.safetensors','c':'two.safetensors',"
                "'b':'one.safetensors'},'extra':[]}");
    assert_true(checkpoint_open(f.path, &c, &err));
    checkpoint_close(c);
    remove_folder(&f);
}

static void test_shard_is_not_a_file(void **state)
{
    (void)state;
    struct folder f = sound();
    char path[256];
    folder_remove_file(&f, ONE);
    snprintf(path, sizeof path, "%s/%s", f.path, ONE);
    assert_int_equal(mkdir(path, 0700), 0);
    struct checkpoint *c = NULL;
    struct error err = {0};
    assert_false(checkpoint_open(f.path, &c, &err));
    assert_string_equal(err.name, "NOT-A-REGULAR-FILE");
    rmdir(path);
    remove_folder(&f);
}

static void test_config(void **state)
{
    (void)state;
    static const struct {
        const char *text, *field, *say;
    } wrong[] = {
        {"", "", "not JSON"},
        {"[]", "", "not a JSON object"},
        {"3", "", "not a JSON object"},
        {"{}", "model_type", "missing"},
        {"{'model_type':3}", "model_type", "not a string"},
        {"{'model_type':'laguna'} x", "", "not JSON"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct folder f = sound();
        folder_text(&f, CONFIG, wrong[i].text);
        refused(f, "CONFIG-INVALID", CONFIG, wrong[i].field, TEXTS(wrong[i].say));
    }
}

/* cases.md A3 in the JSON files of a folder. */
static void test_A_JS1_depth(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    char *deep = malloc(DEPTH + 1);
    assert_non_null(deep);
    memset(deep, '[', DEPTH);
    deep[DEPTH] = '\0';
    struct folder f = sound();
    folder_text(&f, CONFIG, deep);
    refused(f, "CONFIG-INVALID", CONFIG, "", TEXTS("64 levels"));
    f = sound();
    folder_text(&f, INDEX, deep);
    refused(f, "CHECKPOINT-INDEX-MISMATCH", INDEX, "", TEXTS("64 levels"));
    free(deep);
}

static void test_A_JS2_to_4_in_config(void **state)
{
    (void)state;
    static const char *const wrong[] = {"{'a':1,'a':2}",
                                        "{'a':NaN}",
                                        "{'a':Infinity}",
                                        "{'a':-}",
                                        "{'a':01}",
                                        "{'a':1.}",
                                        "{'a':.5}",
                                        "{'a':'\\ud800'}",
                                        "{'a':1e999}",
                                        "{'a':'\x01'}",
                                        "{'a':1,}",
                                        "\xEF\xBB\xBF{}",
                                        "{'a':'\\ude00\\ud83d'}",
                                        "{'a':'\xC0\xAF'}"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct folder f = sound();
        folder_text(&f, CONFIG, wrong[i]);
        refused(f, "CONFIG-INVALID", CONFIG, i == 0 ? "a" : "",
                TEXTS(i == 0 ? "duplicate key" : "not JSON"));
    }
    struct folder f = sound();
    json_t *config = NULL;
    struct error err = {0};
    folder_text(&f, CONFIG, "{'a':'\\ud83d\\ude00'}");
    assert_true(checkpoint_read_config(f.path, &config, &err));
    assert_string_equal(json_string_value(json_object_get(config, "a")), "\xF0\x9F\x98\x80");
    json_decref(config);
    remove_folder(&f);
}

/* The small model of the repository is a whole checkpoint of the real format. */
static void test_laguna_nano(void **state)
{
    (void)state;
    static const char folder[] = "models/laguna-nano";
    struct checkpoint *c = NULL;
    struct error err = {0};
    if (!file_exists("models/laguna-nano/config.json")) {
        print_message("skipped: %s is not there\n", folder);
        skip();
    }
    if (!checkpoint_open(folder, &c, &err))
        fail_msg("%s %s: %s", err.file, err.field, err.message);
    struct arena a = {0};
    struct laguna_config config;
    if (!laguna_config_parse(&a, c->config, "config.json", &config, &err) ||
        !laguna_config_read_generation(folder, &config, &err))
        fail_msg("%s: %s", err.field, err.message);
    struct inventory expected = {.arena = &a};
    laguna_config_inventory(&config, &expected);
    if (!inventory_check(&expected, c, &err))
        fail_msg("%s", err.message);
    assert_true(laguna_config_bytes_per_token(&config) < c->tensor_bytes);
    assert_false(laguna_config_pin_xs21(c->config, "config.json", &err));
    checkpoint_close(c);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sound_folder),
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_A_ST6_missing_shards_are_all_named),
        cmocka_unit_test(test_no_such_folder),
        cmocka_unit_test(test_A_ST7_cut_shard),
        cmocka_unit_test(test_A_ST1_duplicate_tensor),
        cmocka_unit_test(test_index_both_ways),
        cmocka_unit_test(test_index_shard_names),
        cmocka_unit_test(test_index_shape),
        cmocka_unit_test(test_shard_is_not_a_file),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_A_JS1_depth),
        cmocka_unit_test(test_A_JS2_to_4_in_config),
        cmocka_unit_test(test_laguna_nano),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
