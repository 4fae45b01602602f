/* The drafter: its configuration and inventory, and its logits against independent oracles
 * (tests/vectors/dflash, made by tools/oracle): float32 closely, bf16 bit for bit. */
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/decode/pick.h"
#include "engine/model/dflash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "logits.h"

static const char *const folders[] = {"five-taps", "long-window", "narrow", "wrap"};
enum { FOLDERS = sizeof folders / sizeof *folders, TARGET_ROWS = 512 };

struct vector {
    struct arena arena;
    const char *folder;
    json_t *rounds;
    float *taps;
    uint16_t *tables; /* [taps][context rows][hidden] bf16: embedded to stand in for the target */
    size_t tap_rows;
    struct weight_matrix embedding, output;
    struct dflash_config config;
};

static void read_floats(struct vector *v, const char *name, float **out, size_t *count)
{
    struct buffer data = {0};
    assert_true(file_read(path_join(&v->arena, v->folder, name), 1 << 28, &data, NULL));
    *out = arena_alloc(&v->arena, data.length);
    memcpy(*out, data.data, data.length);
    *count = data.length / sizeof **out;
    buffer_free(&data);
}

static struct weight_matrix table_of(const struct tensor *tensors, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0)
            return (struct weight_matrix){.format = WEIGHT_BF16,
                                          .out = (int)tensors[i].shape[0],
                                          .in = (int)tensors[i].shape[1],
                                          .data = tensors[i].data};
    fail_msg("no tensor %s", name);
    return (struct weight_matrix){0};
}

static void vector_open(struct vector *v, const char *name)
{
    struct error err;
    struct buffer data = {0};
    struct tensor *tensors;
    size_t count, hidden;
    *v = (struct vector){0};
    v->folder = arena_printf(&v->arena, "tests/vectors/dflash/%s", name);
    char *path = path_join(&v->arena, v->folder, "config.json");
    json_t *config = json_read_file(path, 1 << 20, 8, &err);
    assert_true(dflash_config_parse(&v->arena, config, path, &v->config, &err));
    json_decref(config);
    json_t *vector =
        json_read_file(path_join(&v->arena, v->folder, "vector.json"), 1 << 20, 8, &err);
    assert_non_null(vector);
    v->rounds = json_incref(json_object_get(vector, "rounds"));
    json_decref(vector);

    path = path_join(&v->arena, v->folder, "target.safetensors");
    assert_true(file_read(path, 1 << 26, &data, NULL));
    uint8_t *copy = arena_alloc(&v->arena, data.length);
    memcpy(copy, data.data, data.length);
    assert_true(safetensors_parse(&v->arena, path, copy, data.length, &tensors, &count, &err));
    v->embedding = table_of(tensors, count, "model.embed_tokens.weight");
    v->output = table_of(tensors, count, "lm_head.weight");
    buffer_free(&data);

    read_floats(v, "taps.bin", &v->taps, &count);
    hidden = (size_t)v->config.hidden;
    const size_t taps = (size_t)v->config.tap_count;
    v->tap_rows = count / (taps * hidden);
    assert_int_equal(v->tap_rows * taps * hidden, count);
    v->tables = arena_array(&v->arena, count, sizeof *v->tables);
    for (size_t p = 0; p < v->tap_rows; p++)
        for (size_t j = 0; j < taps; j++)
            for (size_t i = 0; i < hidden; i++) {
                uint32_t bits;
                memcpy(&bits, &v->taps[(p * taps + j) * hidden + i], sizeof bits);
                assert_int_equal(bits & 0xffff, 0);
                v->tables[(j * v->tap_rows + p) * hidden + i] = (uint16_t)(bits >> 16);
            }
}

static void vector_close(struct vector *v)
{
    json_decref(v->rounds);
    arena_free(&v->arena);
}

/* The target's side: a backend whose stream is filled from taps.bin. */
struct stand_in {
    struct compute *compute;
    struct dflash *drafter;
    struct dflash_state *state;
};

/* False when this machine has not the instruction set. */
static bool stand_in_open(struct stand_in *s, const struct vector *v, const char *folder,
                          enum activations activations, const char *cpu, int threads)
{
    const struct dflash_config *c = &v->config;
    const struct compute_options o = {.threads = threads, .cpu = cpu, .activations = activations};
    const struct compute_shape shape = {.max_rows = TARGET_ROWS,
                                        .hidden = c->hidden,
                                        .vocab = c->vocab,
                                        .max_heads = 1,
                                        .max_kv_heads = 1,
                                        .head_dim = 2,
                                        .max_ffn_width = 1};
    struct error err;
    char line[2048];
    *s = (struct stand_in){0};
    if (!compute_new(&o, &shape, &s->compute, &err)) {
        assert_string_equal(err.name, "CPU-UNSUPPORTED");
        return false;
    }
    const struct dflash_target target = {
        .compute = s->compute,
        .embedding = &v->embedding,
        .output = &v->output,
        .sizes = {.vocab = c->vocab, .hidden = c->hidden, .layers = c->target_layers},
        .context = 2048,
        .max_rows = TARGET_ROWS};
    if (!dflash_open(folder, &target, &s->drafter, &err) ||
        !dflash_state_new(s->drafter, &s->state, &err))
        fail_msg("%s", error_line(&err, line, sizeof line));
    return true;
}

static void stand_in_close(struct stand_in *s)
{
    dflash_state_free(s->state);
    dflash_close(s->drafter);
    compute_free(s->compute);
}

static void tap(struct stand_in *s, const struct vector *v, int64_t first, int rows)
{
    int32_t ids[TARGET_ROWS];
    int64_t capacity;
    for (int r = 0; r < rows; r++)
        ids[r] = (int32_t)first + r;
    for (int j = 0; j < v->config.tap_count; j++) {
        const struct weight_matrix table = {.format = WEIGHT_BF16,
                                            .out = (int)v->tap_rows,
                                            .in = v->config.hidden,
                                            .data = v->tables + (size_t)j * v->tap_rows *
                                                                    (size_t)v->config.hidden};
        compute_embed(s->compute, &table, ids, rows);
        compute_tap(s->compute, dflash_state_taps(s->state, &capacity), j, first, rows);
    }
}

/* All rounds of the vector; logits one after another, as the oracle's file has them. With
 * `upset`, each round is drafted twice, once from taps that are then taken back. */
static size_t run_rounds(struct stand_in *s, const struct vector *v, bool upset, float *logits)
{
    struct error err;
    size_t done = 0;
    for (size_t i = 0; i < json_array_size(v->rounds); i++) {
        const json_t *round = json_array_get(v->rounds, i),
                     *block = json_object_get(round, "block");
        const int64_t first = json_integer_value(json_object_get(round, "context_position"));
        const int context = (int)json_integer_value(json_object_get(round, "context_rows"));
        const int rows = (int)json_array_size(block);
        const int32_t bonus = (int32_t)json_integer_value(json_array_get(block, 0));
        tap(s, v, first, context);
        if (upset && context > 2) {
            assert_true(dflash_draft(s->state, first + context - 2, 0, bonus, rows, logits + done,
                                     NULL, &err));
            tap(s, v, 0, 1);
            tap(s, v, first + context - 2, 2);
            if (first > 0)
                dflash_state_rewind(s->state, first + context - 3);
        }
        assert_true(
            dflash_draft(s->state, first + context, 0, bonus, rows, logits + done, NULL, &err));
        done += (size_t)(rows - 1) * (size_t)v->config.vocab;
    }
    return done;
}

static void f32_logits_agree_with_the_oracle(void **state)
{
    (void)state;
    for (int f = 0; f < FOLDERS; f++) {
        struct vector v;
        struct stand_in s;
        float *want;
        size_t count;
        vector_open(&v, folders[f]);
        read_floats(&v, "logits_f32.bin", &want, &count);
        float *got = arena_array(&v.arena, count, sizeof *got);
        assert_true(stand_in_open(&s, &v, v.folder, ACTIVATIONS_F32, NULL, 2));
        assert_int_equal(run_rounds(&s, &v, false, got), count);
        const size_t vocab = (size_t)v.config.vocab;
        const double worst = worst_relative(got, want, count / vocab, vocab);
        print_message("%-12s f32 relative %.2g\n", folders[f], worst);
        assert_true(worst < 1e-4);
        stand_in_close(&s);
        vector_close(&v);
    }
}

static void bf16_logits_equal_the_emulation(void **state)
{
    (void)state;
    static const char *const cpus[] = {"portable", "avx2", "avx512", "neon"};
    int compared = 0;
    for (int f = 0; f < FOLDERS; f++) {
        struct vector v;
        float *want;
        size_t count;
        vector_open(&v, folders[f]);
        read_floats(&v, "logits_bf16.bin", &want, &count);
        float *got = arena_array(&v.arena, count, sizeof *got);
        for (int c = 0; c < 4; c++)
            for (int threads = 1; threads <= 2; threads++)
                for (int upset = 0; upset < 2; upset++) {
                    struct stand_in s;
                    if (!stand_in_open(&s, &v, v.folder, ACTIVATIONS_BF16, cpus[c], threads))
                        continue;
                    assert_int_equal(run_rounds(&s, &v, upset, got), count);
                    for (size_t i = 0; i < count; i++)
                        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
                            fail_msg("%s, %s, %d threads, upset %d: value %zu: %a, oracle %a",
                                     folders[f], cpus[c], threads, upset, i, (double)got[i],
                                     (double)want[i]);
                    compared++;
                    stand_in_close(&s);
                }
        size_t at = 0, vocab = (size_t)v.config.vocab;
        for (size_t i = 0; i < json_array_size(v.rounds); i++) {
            const json_t *drafts = json_object_get(json_array_get(v.rounds, i), "drafts");
            for (size_t r = 0; r < json_array_size(drafts); r++, at += vocab)
                assert_int_equal(pick_argmax(got + at, (int)vocab),
                                 json_integer_value(json_array_get(drafts, r)));
        }
        vector_close(&v);
    }
    assert_true(compared >= FOLDERS * 4);
}

/* ---- folders made for a test ---- */

static void copy_file(const char *from, const char *to_folder, const char *name)
{
    struct arena a = {0};
    struct buffer data = {0};
    assert_true(file_read(from, 1 << 26, &data, NULL));
    assert_true(file_write_atomic(path_join(&a, to_folder, name), data.data, data.length, NULL));
    buffer_free(&data);
    arena_free(&a);
}

static void remove_folder(const char *folder)
{
    struct arena a = {0};
    char **names;
    size_t count;
    assert_true(file_list_recursive(&a, folder, &names, &count, NULL));
    for (size_t i = 0; i < count; i++)
        unlink(path_join(&a, folder, names[i]));
    rmdir(folder);
    arena_free(&a);
}

static void the_fused_layout_gives_the_same_bits(void **state)
{
    (void)state;
    struct vector v;
    struct stand_in s;
    float *want;
    size_t count;
    char folder[] = "/tmp/test-dflash-XXXXXX";
    vector_open(&v, "five-taps");
    assert_non_null(mkdtemp(folder));
    copy_file(path_join(&v.arena, v.folder, "upstream.safetensors"), folder, "model.safetensors");
    copy_file(path_join(&v.arena, v.folder, "config.json"), folder, "config.json");
    read_floats(&v, "logits_bf16.bin", &want, &count);
    float *got = arena_array(&v.arena, count, sizeof *got);
    assert_true(stand_in_open(&s, &v, folder, ACTIVATIONS_BF16, NULL, 1));
    assert_int_equal(dflash_get_layout(s.drafter), DFLASH_FUSED);
    assert_int_equal(run_rounds(&s, &v, false, got), count);
    assert_memory_equal(got, want, count * sizeof *got);
    stand_in_close(&s);
    remove_folder(folder);
    vector_close(&v);
}

/* ---- configuration ---- */

static void a_changed_config_is_refused_by_field(void **state)
{
    (void)state;
    static const struct {
        const char *key, *json;
    } cases[] = {
        {"block_size", "1"},
        {"layer_types", "[\"sliding_attention\"]"},
        {"layer_types", "[\"sliding_attention\",\"full_attention\",\"sliding_attention\"]"},
        {"sliding_window", "null"},
        {"gating", "\"per-token\""},
        {"causal", "false"},
        {"decoder_layer_type", "\"qwen3\""},
        {"rope_scaling", "{\"factor\":2.0}"},
        {"draft_vocab_size", "64"},
        {"num_attention_heads", "3"},
        {"head_dim", "15"},
        {"hidden_size", "\"64\""},
        {"rms_norm_eps", "0.0"},
        {"num_hidden_layers", "0"},
        {"dflash_config.mask_token_id", "128"},
        {"dflash_config.target_layer_ids", "[]"},
        {"dflash_config.target_layer_ids", "[1,4,1]"},
        {"dflash_config.target_layer_ids[2]", "[1,4,8]"},
    };
    struct arena a = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err;
        struct dflash_config c;
        json_t *config = json_read_file("tests/vectors/dflash/wrap/config.json", 1 << 20, 32, &err);
        json_t *value = json_loads(cases[i].json, JSON_DECODE_ANY, NULL), *object = config;
        char key[64];
        text_copy(key, sizeof key, cases[i].key);
        if (text_starts(key, "dflash_config.")) {
            object = json_object_get(config, "dflash_config");
            memmove(key, key + 14, strlen(key + 14) + 1);
            key[strcspn(key, "[")] = '\0';
        }
        json_object_set_new(object, key, value);
        if (dflash_config_parse(&a, config, "config.json", &c, &err))
            fail_msg("%s = %s passed", cases[i].key, cases[i].json);
        assert_string_equal(err.name, "CONFIG-INVALID");
        assert_string_equal(err.field, cases[i].key);
        json_decref(config);
    }
    arena_free(&a);
}

static void a_drafter_of_another_target_is_refused(void **state)
{
    (void)state;
    struct vector v;
    vector_open(&v, "wrap");
    const struct dflash_target_sizes good = {.vocab = 128, .hidden = 64, .layers = 8};
    struct dflash_target_sizes bad[] = {good, good, good};
    static const char *const fields[] = {"hidden_size", "vocab_size", "num_target_layers"};
    struct error err;
    assert_true(dflash_config_match(&v.config, &good, "f", &err));
    bad[0].hidden = 32;
    bad[1].vocab = 127;
    bad[2].layers = 9;
    for (int i = 0; i < 3; i++) {
        assert_false(dflash_config_match(&v.config, &bad[i], "f", &err));
        assert_string_equal(err.name, "CONFIG-INVALID");
        assert_string_equal(err.field, fields[i]);
    }
    vector_close(&v);
}

/* The published drafter, without its weights: every size follows from the configuration. */
static void the_real_inventory_is_known(void **state)
{
    (void)state;
    static const struct dflash_config real = {.vocab = 100352,
                                              .hidden = 2048,
                                              .layer_count = 5,
                                              .width = 8192,
                                              .heads = 64,
                                              .kv_heads = 8,
                                              .head_dim = 128,
                                              .window = 512,
                                              .tap_count = 5};
    struct arena a = {0};
    uint64_t bytes = 0;
    for (int layout = 0; layout < 2; layout++) {
        struct inventory inventory = {.arena = &a};
        dflash_config_inventory(&real, layout, &inventory);
        bytes = 0;
        for (size_t i = 0; i < inventory.count; i++)
            bytes += 2 * (uint64_t)inventory.items[i].shape[0] *
                     (uint64_t)(inventory.items[i].rank == 2 ? inventory.items[i].shape[1] : 1);
        assert_int_equal(inventory.count, layout == DFLASH_FUSED ? 58 : 68);
        assert_int_equal(bytes, 924129792);
    }

    /* The pinned length of the repacked file, where the shared data is there: 8, its header, the
     * tensors. */
    const char *shared = getenv("MLXFAST_SHARED");
    char *path = path_join(&a, shared ? shared : "../shared", "data/laguna-xs-2.1-dflash.sha256");
    struct buffer pins = {0};
    if (!file_exists(path)) {
        print_message("skipped: no %s\n", path);
    } else {
        assert_true(file_read(path, 1 << 16, &pins, NULL));
        buffer_char(&pins, '\0');
        char want[64];
        snprintf(want, sizeof want, " %llu model.safetensors",
                 (unsigned long long)(8 + 7356 + bytes));
        assert_non_null(strstr(pins.data, want));
    }
    buffer_free(&pins);
    arena_free(&a);
}

static void weights_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    struct vector v;
    struct stand_in s;
    struct error err;
    char folder[] = "/tmp/test-dflash-XXXXXX";
    vector_open(&v, "five-taps");
    assert_true(stand_in_open(&s, &v, v.folder, ACTIVATIONS_BF16, NULL, 1));
    assert_int_equal(dflash_get_layout(s.drafter), DFLASH_REPACKED);
    assert_non_null(mkdtemp(folder));
    copy_file(path_join(&v.arena, v.folder, "target.safetensors"), folder, "model.safetensors");
    copy_file(path_join(&v.arena, v.folder, "config.json"), folder, "config.json");
    const struct dflash_target target = {.compute = s.compute,
                                         .embedding = &v.embedding,
                                         .output = &v.output,
                                         .sizes = {.vocab = 64, .hidden = 32, .layers = 40},
                                         .context = 64,
                                         .max_rows = 16};
    struct dflash *d;
    assert_false(dflash_open(folder, &target, &d, &err));
    assert_string_equal(err.name, "INVENTORY-MISMATCH");
    assert_null(d);

    /* Blocks at the edges: too wide, too narrow, past the context, taps not held. */
    float logits[16 * 64];
    tap(&s, &v, 0, 1);
    assert_false(dflash_can_draft(s.state, 1, 0, 1));
    assert_false(dflash_can_draft(s.state, 1, 0, 17));
    assert_false(dflash_can_draft(s.state, 2047, 2047, 2));
    assert_false(dflash_can_draft(s.state, 1, 1, 2));
    assert_false(dflash_draft(s.state, 1, 1, 0, 2, logits, NULL, &err));
    assert_string_equal(err.name, "DRAFT-IMPOSSIBLE");
    assert_true(dflash_draft(s.state, 1, 0, 0, 2, logits, NULL, &err));
    stand_in_close(&s);
    remove_folder(folder);
    vector_close(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_logits_agree_with_the_oracle),
        cmocka_unit_test(bf16_logits_equal_the_emulation),
        cmocka_unit_test(the_fused_layout_gives_the_same_bits),
        cmocka_unit_test(a_changed_config_is_refused_by_field),
        cmocka_unit_test(a_drafter_of_another_target_is_refused),
        cmocka_unit_test(the_real_inventory_is_known),
        cmocka_unit_test(weights_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests_name("dflash", tests, NULL, NULL);
}
