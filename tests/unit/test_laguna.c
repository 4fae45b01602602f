/* The Laguna family against independent oracles (tests/vectors/laguna, made by tools/oracle):
 * float32 logits of transformers, and a bf16 emulation that must agree bit for bit, whatever the
 * rows per forward, the threads and the instruction set. */
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/decode/session.h"
#include "engine/model/laguna.h"
#include "engine/model/model.h"
#include "engine/model/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "logits.h"

static const char *const folders[] = {"all-sliding",    "equal-bias",  "full-yarn", "head-48",
                                      "long-chunks",    "long-window", "no-norm",   "odd-scales",
                                      "pattern-four",   "plain-dense", "padded-48", "top-8",
                                      "yarn-whole-head"};
enum { FOLDERS = sizeof folders / sizeof *folders };

struct vector {
    struct arena arena;
    const char *folder;
    int64_t *tokens;
    size_t count;
};

static void vector_open(struct vector *v, const char *name)
{
    struct error err;
    *v = (struct vector){0};
    v->folder = arena_printf(&v->arena, "tests/vectors/laguna/%s", name);
    json_t *tokens =
        json_read_file(path_join(&v->arena, v->folder, "tokens.json"), 1 << 20, 8, &err);
    assert_non_null(tokens);
    v->count = json_array_size(tokens);
    v->tokens = arena_array(&v->arena, v->count, sizeof *v->tokens);
    for (size_t i = 0; i < v->count; i++)
        v->tokens[i] = json_integer_value(json_array_get(tokens, i));
    json_decref(tokens);
}

/* NULL when the file is not there. */
static float *vector_logits(struct vector *v, const char *file, size_t vocab)
{
    struct buffer data = {0};
    char *path = path_join(&v->arena, v->folder, file);
    if (!file_exists(path))
        return NULL;
    assert_true(file_read(path, 1 << 28, &data, NULL));
    assert_int_equal(data.length, v->count * vocab * sizeof(float));
    float *out = arena_alloc(&v->arena, data.length);
    memcpy(out, data.data, data.length);
    buffer_free(&data);
    return out;
}

/* NULL when this machine has not the instruction set. */
static struct model *open_model(const struct vector *v, enum activations activations,
                                enum yarn_magnitude yarn, const char *cpu, int threads, int rows)
{
    struct model_options o = {
        .compute = {.threads = threads, .cpu = cpu, .activations = activations},
        .yarn_magnitude = yarn,
        .context = (int64_t)v->count,
        .max_rows = rows};
    struct model *m;
    struct error err;
    char line[2048];
    if (model_open(v->folder, &o, &m, &err))
        return m;
    if (strcmp(err.name, "CPU-UNSUPPORTED") != 0)
        fail_msg("%s", error_line(&err, line, sizeof line));
    return NULL;
}

static float *all_logits(struct model *m, const struct vector *v, int rows)
{
    struct error err;
    struct model_state *state;
    size_t vocab = (size_t)model_get_info(m)->vocab;
    float *out = calloc(v->count * vocab, sizeof *out);
    int32_t ids[512];
    assert_true(model_state_new(m, &state, &err));
    for (size_t done = 0; done < v->count;) {
        int n = v->count - done < (size_t)rows ? (int)(v->count - done) : rows;
        for (int r = 0; r < n; r++)
            ids[r] = (int32_t)v->tokens[done + (size_t)r];
        assert_true(model_forward(m, state, ids, n, n, out + done * vocab, NULL, &err));
        done += (size_t)n;
        assert_int_equal(model_state_position(state), done);
    }
    model_state_free(state);
    return out;
}

static void f32_logits_agree_with_transformers(void **state)
{
    (void)state;
    for (int f = 0; f < FOLDERS; f++) {
        struct vector v;
        vector_open(&v, folders[f]);
        struct model *m = open_model(&v, ACTIVATIONS_F32, YARN_ATTENTION_FACTOR, NULL, 2, 64);
        size_t vocab = (size_t)model_get_info(m)->vocab;
        float *got = all_logits(m, &v, 64), *want = vector_logits(&v, "logits_f32.bin", vocab);
        assert_non_null(want);
        double worst = worst_relative(got, want, v.count, vocab);
        print_message("%-16s f32 relative %.2g\n", folders[f], worst);
        assert_true(worst < 1e-4);
        free(got);
        model_close(m);
        arena_free(&v.arena);
    }
}

static void assert_same_bits(const float *got, const float *want, const struct vector *v,
                             size_t vocab, const char *how)
{
    for (size_t i = 0; i < v->count * vocab; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s, %s: position %zu, id %zu: %a, oracle %a", v->folder, how, i / vocab,
                     i % vocab, (double)got[i], (double)want[i]);
}

static void bf16_logits_equal_the_emulation(void **state)
{
    (void)state;
    static const int row_counts[] = {1, 7, 64, 512};
    static const char *const cpus[] = {"portable", "avx2", "avx512", "neon"};
    int compared[4] = {0}, derived = 0;
    /* Under an emulator or sanitizers: 7 rows on 2 threads only. */
    const bool quick = getenv("MLXFAST_TEST_QUICK") != NULL;
    for (int f = 0; f < FOLDERS; f++) {
        struct vector v;
        vector_open(&v, folders[f]);
        for (int c = 0; c < 4; c++)
            for (int threads = quick ? 2 : 1; threads <= 2; threads++)
                for (int r = 0; r < 4; r++)
                    for (int yarn = 0; yarn < 2; yarn++) {
                        if (quick && row_counts[r] != 7)
                            continue;
                        struct model *m =
                            open_model(&v, ACTIVATIONS_BF16, yarn, cpus[c], threads, row_counts[r]);
                        if (!m)
                            continue;
                        size_t vocab = (size_t)model_get_info(m)->vocab;
                        float *want = vector_logits(
                            &v, yarn ? "logits_bf16_derived.bin" : "logits_bf16.bin", vocab);
                        assert_true(want || yarn == YARN_DERIVED);
                        if (want) {
                            char how[64];
                            snprintf(how, sizeof how, "%s, %d threads, %d rows%s", cpus[c], threads,
                                     row_counts[r], yarn ? ", derived" : "");
                            float *got = all_logits(m, &v, model_get_info(m)->max_rows);
                            assert_same_bits(got, want, &v, vocab, how);
                            free(got);
                            compared[c]++;
                            derived += yarn;
                        }
                        model_close(m);
                    }
        arena_free(&v.arena);
    }
    assert_true(compared[0] >= FOLDERS * (quick ? 1 : 8) && derived > 0);
    print_message("compared: portable %d, avx2 %d, avx512 %d, neon %d\n", compared[0], compared[1],
                  compared[2], compared[3]);
}

/* A sequence that goes back and on again gives the bits of one that never went back, also over the
 * edge of a window. */
static void rewinding_leaves_no_trace(void **state)
{
    (void)state;
    struct vector v;
    vector_open(&v, "long-chunks"); /* window 40 */
    struct error err;
    struct model *m = open_model(&v, ACTIVATIONS_BF16, 0, NULL, 1, 16);
    size_t vocab = (size_t)model_get_info(m)->vocab;
    float *want = vector_logits(&v, "logits_bf16.bin", vocab);
    struct session *s;
    assert_true(session_new(m, &s, &err));
    for (size_t p = 0; p + 12 < v.count; p += 5) {
        /* 12 rows, of which 7 are taken back: the ring keeps them */
        assert_true(session_feed(s, v.tokens + p, 12, &err));
        assert_memory_equal(session_logits(s), want + (p + 11) * vocab, vocab * sizeof(float));
        assert_true(session_rewind(s, (int64_t)p + 5, &err));
        assert_int_equal(session_position(s), p + 5);
    }
    /* Too far back for the sliding caches: refused, not wrong. */
    int64_t here = session_position(s);
    assert_true(session_feed(s, v.tokens + here, v.count - (size_t)here, &err));
    assert_true(session_rewind(s, 100, &err));
    assert_false(session_feed(s, v.tokens + 100, 1, &err));
    assert_string_equal(err.name, "REWIND-TOO-FAR");
    session_reset(s);
    assert_true(session_feed(s, v.tokens, 3, &err));
    assert_memory_equal(session_logits(s), want + 2 * vocab, vocab * sizeof(float));
    session_free(s);
    model_close(m);
    arena_free(&v.arena);
}

static void info_tells_what_was_chosen(void **state)
{
    (void)state;
    struct vector v;
    vector_open(&v, "full-yarn");
    struct model *m = open_model(&v, ACTIVATIONS_BF16, YARN_ATTENTION_FACTOR, NULL, 1, 8);
    assert_string_equal(model_get_info(m)->choices, "yarn magnitude 1 (attention_factor)");
    assert_string_equal(model_get_info(m)->family, "laguna");
    assert_int_equal(model_get_info(m)->max_rows, 8);
    assert_true(model_get_info(m)->bytes_per_token < model_get_info(m)->weight_bytes);
    model_close(m);
    m = open_model(&v, ACTIVATIONS_BF16, YARN_DERIVED, NULL, 1, 8);
    assert_non_null(strstr(model_get_info(m)->choices, "(derived)"));
    model_close(m);
    arena_free(&v.arena);
}

/* ---- refusals ---- */

static void copy_folder(const char *from, const char *to, const char *config)
{
    static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                        "model-00001-of-00001.safetensors"};
    struct arena a = {0};
    for (size_t i = 0; i < 3; i++) {
        struct buffer data = {0};
        assert_true(file_read(path_join(&a, from, names[i]), 1 << 26, &data, NULL));
        if (i == 0 && config) {
            buffer_clear(&data);
            buffer_text(&data, config);
        }
        assert_true(file_write_atomic(path_join(&a, to, names[i]), data.data, data.length, NULL));
        buffer_free(&data);
    }
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

static void a_changed_config_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *key, *json, *name;
    } cases[] = {
        {"model_type", "\"llama\"", "UNKNOWN-MODEL-TYPE"},
        {"hidden_size", "64", "INVENTORY-MISMATCH"},
        {"num_hidden_layers", "\"2\"", "CONFIG-INVALID"},
    };
    struct buffer text = {0};
    const char *source = "tests/vectors/laguna/all-sliding";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[] = "/tmp/test-laguna-XXXXXX";
        struct error err;
        assert_non_null(mkdtemp(folder));
        json_t *config =
            json_read_file("tests/vectors/laguna/all-sliding/config.json", 1 << 20, 32, &err);
        json_t *value = json_loads(cases[i].json, JSON_DECODE_ANY, NULL);
        json_object_set_new(config, cases[i].key, value);
        buffer_clear(&text);
        json_write_canonical(config, 0, &text);
        json_decref(config);
        copy_folder(source, folder, text.data);
        struct model_options o = {0};
        struct model *m;
        assert_false(model_open(folder, &o, &m, &err));
        assert_null(m);
        assert_string_equal(err.name, cases[i].name);
        remove_folder(folder);
    }
    buffer_free(&text);
}

static void sizes_out_of_range_are_refused(void **state)
{
    (void)state;
    const char *folder = "tests/vectors/laguna/all-sliding";
    struct model *m;
    struct error err;
    struct model_options o = {.context = 4097}; /* the config's maximum is 4096 */
    assert_false(model_open(folder, &o, &m, &err));
    assert_string_equal(err.name, "CONTEXT-EXCEEDED");
    o = (struct model_options){.max_rows = 1 << 20};
    assert_false(model_open(folder, &o, &m, &err));
    assert_string_equal(err.name, "ROWS-INVALID");
    o = (struct model_options){.compute = {.cpu = "z80"}};
    assert_false(model_open(folder, &o, &m, &err));
    assert_string_equal(err.name, "CPU-UNSUPPORTED");
    assert_false(model_open("/nonexistent", &(struct model_options){0}, &m, &err));
    assert_null(model_family_find("llama"));
    assert_ptr_equal(model_family_find("laguna"), &laguna_family);

    o = (struct model_options){.context = 8, .max_rows = 4};
    assert_true(model_open(folder, &o, &m, &err));
    struct model_state *s;
    int32_t ids[8] = {0, 1, 2, 3, 64, -1};
    float logits[64];
    assert_true(model_state_new(m, &s, &err));
    assert_false(model_forward(m, s, ids, 5, 0, NULL, NULL, &err));
    assert_string_equal(err.name, "ROWS-INVALID");
    assert_false(model_forward(m, s, ids + 4, 1, 1, logits, NULL, &err));
    assert_string_equal(err.name, "TOKEN-OUT-OF-RANGE");
    assert_false(model_forward(m, s, ids + 5, 1, 1, logits, NULL, &err));
    assert_true(model_forward(m, s, ids, 4, 0, NULL, NULL, &err));
    assert_true(model_forward(m, s, ids, 4, 1, logits, NULL, &err));
    assert_false(model_forward(m, s, ids, 1, 1, logits, NULL, &err));
    assert_string_equal(err.name, "CONTEXT-EXCEEDED");
    assert_int_equal(model_state_position(s), 8);
    model_state_free(s);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_logits_agree_with_transformers),
        cmocka_unit_test(bf16_logits_equal_the_emulation),
        cmocka_unit_test(rewinding_leaves_no_trace),
        cmocka_unit_test(info_tells_what_was_chosen),
        cmocka_unit_test(a_changed_config_is_refused_by_name),
        cmocka_unit_test(sizes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests_name("laguna", tests, NULL, NULL);
}
