/* Expected against found: every class of difference by name; the real inventory without weights. */
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/laguna_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Four tensors, as a checkpoint would hold them; sorted by name. */
struct fixture {
    struct arena arena;
    struct inventory expected;
    struct tensor tensors[8];
    struct checkpoint_shard shards[2];
    struct checkpoint found;
};

static struct fixture *fixture_new(void)
{
    static const char *const names[] = {"a.gate.scales", "a.gate.weight", "a.norm.weight",
                                        "b.gate.weight"};
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_U32, DTYPE_BF16, DTYPE_U32};
    static const int64_t shapes[][2] = {{8, 1}, {8, 2}, {16, 0}, {8, 4}};
    static const int ranks[] = {2, 2, 1, 2};
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->expected.arena = &f->arena;
    for (int i = 3; i >= 0; i--) /* order does not matter */
        inventory_add(&f->expected, names[i], dtypes[i], ranks[i], shapes[i]);
    for (int i = 0; i < 4; i++) {
        struct tensor *t = &f->tensors[i];
        t->name = names[i];
        t->dtype = dtypes[i];
        t->rank = ranks[i];
        memcpy(t->shape, shapes[i], sizeof shapes[i]);
        t->shard = i == 3;
    }
    f->shards[0].file_name = "model-1.safetensors";
    f->shards[1].file_name = "model-2.safetensors";
    f->found.folder = "weights";
    f->found.shards = f->shards;
    f->found.shard_count = 2;
    f->found.tensors = f->tensors;
    f->found.tensor_count = 4;
    return f;
}

static void fixture_free(struct fixture *f)
{
    arena_free(&f->arena);
    free(f);
}

static void expect_message(struct fixture *f, const char *message, const char *field)
{
    struct error err = {0};
    assert_false(inventory_check(&f->expected, &f->found, &err));
    assert_string_equal(err.name, "INVENTORY-MISMATCH");
    assert_string_equal(err.message, message);
    assert_string_equal(err.file, "weights");
    assert_string_equal(err.field, field);
    fixture_free(f);
}

static void test_equal(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    struct error err = {0};
    assert_true(inventory_check(&f->expected, &f->found, &err));
    fixture_free(f);
}

static void test_missing(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    f->found.tensor_count = 3;
    expect_message(f, "1 missing (b.gate.weight)", "b.gate.weight");
    f = fixture_new();
    f->found.tensor_count = 0;
    expect_message(f, "4 missing (a.gate.scales, a.gate.weight, a.norm.weight, b.gate.weight)",
                   "a.gate.scales");
}

static void test_extra(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    f->tensors[4] = f->tensors[3];
    f->tensors[4].name = "b.gate.weight.global_scale";
    f->found.tensor_count = 5;
    expect_message(f, "1 extra (b.gate.weight.global_scale)", "b.gate.weight.global_scale");
}

static void test_renamed(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    f->tensors[2].name = "a.norms.weight";
    expect_message(f, "1 renamed (a.norm.weight is called a.norms.weight)", "a.norm.weight");
    /* Two components, or another shape: not a rename. */
    f = fixture_new();
    f->tensors[2].name = "a.norms.w";
    expect_message(f, "1 missing (a.norm.weight); 1 extra (a.norms.w)", "a.norm.weight");
    f = fixture_new();
    f->tensors[2].name = "a.norms.weight";
    f->tensors[2].shape[0] = 17;
    expect_message(f, "1 missing (a.norm.weight); 1 extra (a.norms.weight)", "a.norm.weight");
    f = fixture_new();
    f->tensors[2].name = "a.norm.weight.x";
    expect_message(f, "1 missing (a.norm.weight); 1 extra (a.norm.weight.x)", "a.norm.weight");
}

static void test_retyped_and_reshaped(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    f->tensors[2].dtype = DTYPE_F32;
    f->tensors[3].shape[1] = 2;
    expect_message(f,
                   "1 re-typed (a.norm.weight is F32, expected BF16); "
                   "1 re-shaped (b.gate.weight is [8,2], expected [8,4])",
                   "a.norm.weight");
    f = fixture_new();
    f->tensors[3].rank = 1; /* [8] is not [8,4] */
    expect_message(f, "1 re-shaped (b.gate.weight is [8], expected [8,4])", "b.gate.weight");
}

static void test_many_are_counted_and_clipped(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    static const char *const names[] = {"x0", "x1", "x2", "x3", "x4", "x5"};
    for (int i = 0; i < 6; i++)
        inventory_add(&f->expected, names[i], DTYPE_U8, 0, NULL);
    expect_message(f, "6 missing (x0, x1, x2, x3 and 2 more)", "x0");
}

static void test_canonical_hash(void **state)
{
    (void)state;
    struct fixture *f = fixture_new();
    char hex[65], from_list[65];
    struct inventory_line lines[4];
    memset(lines, 0, sizeof lines);
    for (int i = 0; i < 4; i++) {
        const struct tensor *t = &f->tensors[i];
        struct inventory_line *line = &lines[3 - i];
        line->tensor = (struct tensor_spec){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(line->tensor.shape, t->shape, sizeof t->shape);
        line->shard = f->shards[t->shard].file_name;
    }
    inventory_canonical_sha256(&f->found, hex);
    inventory_canonical_sha256_list(lines, 4, from_list);
    /* printf '["a.gate.scales","U8",[8,1],"model-1.safetensors"]\n...' | sha256sum */
    assert_string_equal(hex, "b3dc5d06aee9248dfb04154a0611e02fa4fc4c4d823ff90098ad1687f9280136");
    assert_string_equal(from_list, hex);
    f->tensors[0].shape[0] = 9;
    inventory_canonical_sha256(&f->found, from_list);
    assert_string_not_equal(from_list, hex);
    fixture_free(f);
}

/* --- Laguna XS 2.1, from the shared fixtures --------------------------------------------------*/

static json_t *shared_json(const char *name)
{
    const char *folder = getenv("MLXFAST_SHARED");
    char path[512];
    struct error err = {0};
    snprintf(path, sizeof path, "%s/data/%s", folder ? folder : "../shared", name);
    if (!file_exists(path)) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    json_t *value = json_read_file(path, 16 << 20, 64, &err);
    if (!value)
        fail_msg("%s: %s", path, err.message);
    return value;
}

static enum dtype dtype_by_name(const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(dtype_name((enum dtype)i), name) == 0)
            return (enum dtype)i;
    fail_msg("dtype %s", name);
    return DTYPE_COUNT;
}

/* The fixture's tensors, [name, dtype, shape, shard number from 1], as lines of an inventory. */
static struct inventory_line *fixture_lines(struct arena *a, const json_t *fixture)
{
    const json_t *tensors = json_object_get(fixture, "tensors");
    const json_t *shards = json_object_get(fixture, "shards");
    const size_t n = json_array_size(tensors);
    struct inventory_line *lines = arena_array(a, n, sizeof *lines);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(tensors, i);
        const json_t *shape = json_array_get(row, 2);
        const json_int_t shard = json_integer_value(json_array_get(row, 3));
        struct tensor_spec *t = &lines[i].tensor;
        t->name = json_string_value(json_array_get(row, 0));
        t->dtype = dtype_by_name(json_string_value(json_array_get(row, 1)));
        t->rank = (int)json_array_size(shape);
        for (int d = 0; d < t->rank; d++)
            t->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
        lines[i].shard =
            json_string_value(json_object_get(json_array_get(shards, (size_t)shard - 1), "name"));
        assert_non_null(t->name);
        assert_non_null(lines[i].shard);
    }
    return lines;
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static void test_xs21_inventory(void **state)
{
    (void)state;
    json_t *config = shared_json("laguna-xs-2.1-config.json");
    json_t *fixture = shared_json("laguna-xs-2.1-tensor-inventory.json");
    const json_t *tensors = json_object_get(fixture, "tensors");
    struct arena a = {0};
    struct laguna_config c;
    struct error err = {0};
    char hex[65];
    assert_int_equal(json_array_size(tensors), 912);
    struct inventory_line *lines = fixture_lines(&a, fixture);
    inventory_canonical_sha256_list(lines, 912, hex);
    assert_string_equal(hex, "6da902713b7348d11f3b9664b2ad64703c2544eae6d028133f3d2c45be926848");

    assert_true(laguna_config_parse(&a, config, "config.json", &c, &err));
    struct inventory expected = {.arena = &a};
    laguna_config_inventory(&c, &expected);
    assert_int_equal(expected.count, 912);
    struct tensor *found = arena_array(&a, 912, sizeof *found);
    uint64_t bytes = 0;
    for (size_t i = 0; i < 912; i++) {
        found[i].name = lines[i].tensor.name;
        found[i].dtype = lines[i].tensor.dtype;
        found[i].rank = lines[i].tensor.rank;
        memcpy(found[i].shape, lines[i].tensor.shape, sizeof found[i].shape);
        uint64_t size = dtype_size(found[i].dtype);
        for (int d = 0; d < found[i].rank; d++)
            size *= (uint64_t)found[i].shape[d];
        bytes += size;
    }
    assert_int_equal(bytes, 21561408512u);
    qsort(found, 912, sizeof *found, compare_tensors);
    const struct checkpoint checkpoint = {.folder = "xs", .tensors = found, .tensor_count = 912};
    if (!inventory_check(&expected, &checkpoint, &err))
        fail_msg("%s", err.message);
    found[500].dtype = DTYPE_F16;
    assert_false(inventory_check(&expected, &checkpoint, &err));
    json_decref(config);
    json_decref(fixture);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_extra),
        cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_retyped_and_reshaped),
        cmocka_unit_test(test_many_are_counted_and_clipped),
        cmocka_unit_test(test_canonical_hash),
        cmocka_unit_test(test_xs21_inventory),
    };
    return cmocka_run_group_tests_name("inventory", tests, NULL, NULL);
}
