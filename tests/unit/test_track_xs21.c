/* tracks/laguna-xs-2.1-dflash-v1: the configs that it ships are the ones that the engine runs, with
 * the complete inventory of the published checkpoint. */
#include "base/json.h"
#include "engine/checkpoint/inventory.h"
#include "engine/model/dflash_config.h"
#include "engine/model/laguna_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char CONFIG[] = "tracks/laguna-xs-2.1-dflash-v1/config.json";
static const char DRAFTER[] = "tracks/laguna-xs-2.1-dflash-v1/drafter-config.json";
enum { LIMIT = 1 << 20, TARGET_TENSORS = 912, DRAFTER_TENSORS = 68 };

static json_t *read_config(const char *path)
{
    struct error err = {0};
    json_t *config = json_read_file(path, LIMIT, JSON_DEPTH_DEFAULT, &err);
    if (!config)
        fail_msg("%s: %s", path, err.message);
    return config;
}

static void test_the_target(void **state)
{
    (void)state;
    struct arena a = {0};
    struct error err = {0};
    struct laguna_config c;
    json_t *config = read_config(CONFIG);
    if (!laguna_config_parse(&a, config, CONFIG, &c, &err) ||
        !laguna_config_pin_xs21(config, CONFIG, &err))
        fail_msg("%s: %s", err.field, err.message);
    struct inventory inventory = {.arena = &a};
    laguna_config_inventory(&c, &inventory);
    assert_int_equal(inventory.count, TARGET_TENSORS);
    uint64_t bytes = 0;
    for (size_t i = 0; i < inventory.count; i++) {
        uint64_t n = dtype_size(inventory.items[i].dtype);
        for (int d = 0; d < inventory.items[i].rank; d++)
            n *= (uint64_t)inventory.items[i].shape[d];
        bytes += n;
    }
    assert_int_equal(bytes, 21561408512u);
    json_decref(config);
    arena_free(&a);
}

/* Name by name against the published list, where it is there. */
static void test_the_published_inventory(void **state)
{
    (void)state;
    char path[512];
    const char *shared = getenv("MLXFAST_SHARED");
    snprintf(path, sizeof path, "%s/data/laguna-xs-2.1-tensor-inventory.json",
             shared ? shared : "../shared");
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is not there\n", path);
        skip();
    }
    struct arena a = {0};
    struct error err = {0};
    struct laguna_config c;
    json_t *config = read_config(CONFIG), *published = read_config(path);
    assert_true(laguna_config_parse(&a, config, CONFIG, &c, &err));
    struct inventory inventory = {.arena = &a};
    laguna_config_inventory(&c, &inventory);
    const json_t *list = json_object_get(published, "tensors");
    assert_int_equal(json_array_size(list), inventory.count);
    size_t met = 0;
    for (size_t i = 0; i < inventory.count; i++)
        for (size_t j = 0; j < inventory.count; j++) {
            const json_t *t = json_array_get(list, j); /* name, dtype, shape, shard */
            const struct tensor_spec *s = &inventory.items[i];
            if (strcmp(json_string_value(json_array_get(t, 0)), s->name) != 0)
                continue;
            const json_t *shape = json_array_get(t, 2);
            met++;
            assert_string_equal(json_string_value(json_array_get(t, 1)), dtype_name(s->dtype));
            assert_int_equal(json_array_size(shape), s->rank);
            for (int d = 0; d < s->rank; d++)
                assert_int_equal(json_integer_value(json_array_get(shape, (size_t)d)), s->shape[d]);
        }
    assert_int_equal(met, TARGET_TENSORS);
    json_decref(config);
    json_decref(published);
    arena_free(&a);
}

static void test_the_drafter(void **state)
{
    (void)state;
    struct arena a = {0};
    struct error err = {0};
    struct laguna_config target;
    struct dflash_config c;
    json_t *config = read_config(CONFIG), *drafter = read_config(DRAFTER);
    assert_true(laguna_config_parse(&a, config, CONFIG, &target, &err));
    if (!dflash_config_parse(&a, drafter, DRAFTER, &c, &err))
        fail_msg("%s: %s", err.field, err.message);
    struct dflash_target_sizes sizes = {target.vocab, target.hidden, target.layer_count};
    assert_true(dflash_config_match(&c, &sizes, DRAFTER, &err));
    sizes.layers++;
    assert_false(dflash_config_match(&c, &sizes, DRAFTER, &err));
    struct inventory inventory = {.arena = &a};
    dflash_config_inventory(&c, DFLASH_REPACKED, &inventory);
    assert_int_equal(inventory.count, DRAFTER_TENSORS);
    json_decref(config);
    json_decref(drafter);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_target),
        cmocka_unit_test(test_the_published_inventory),
        cmocka_unit_test(test_the_drafter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
