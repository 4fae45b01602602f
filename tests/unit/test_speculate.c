/* Speculative decoding gives serial decoding's tokens, position and logits bit for bit: random
 * small targets with random drafters (made here, fixed seeds), and laguna-nano with its trained
 * one, whose accepted drafts have every count. cases.md A-SP1, A-SP2, A-SP3 and A-SP5 by id. */
#include "base/buffer.h"
#include "base/child.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/inventory.h"
#include "engine/decode/speculate.h"
#include "engine/decode/width.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char nano[] = "models/laguna-nano", nano_drafter[] = "models/laguna-nano-dflash";
enum { MOST = 700, NANO_WINDOW = 64, NANO_DRAFTER_WINDOW = 128, NANO_VOCAB = 4096 };

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int random_below(uint64_t *state, int n)
{
    return (int)(next_random(state) % (uint64_t)n);
}

/* Under an emulator or sanitizers: fewer cases of each test, over the same ranges. */
static bool is_quick(void)
{
    return getenv("MLXFAST_TEST_QUICK") != NULL;
}

/* ---- a random drafter for a target of any sizes ---- */

static void put_tensor(struct buffer *header, struct buffer *data, const struct tensor_spec *t,
                       uint64_t *seed)
{
    const size_t begin = data->length;
    int64_t columns = t->rank == 2 ? t->shape[1] : 1;
    double size = 1;
    if (t->rank == 2)
        while (size * size * (double)columns > 1)
            size /= 1.1;
    for (int64_t i = 0; i < t->shape[0] * columns; i++) {
        const double u = (double)random_below(seed, 2001) / 1000 - 1;
        const float x = (float)(t->rank == 2 ? 2 * u * size : 1 + u / 4);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        const char bytes[2] = {(char)(bits >> 16), (char)(bits >> 24)};
        buffer_append(data, bytes, 2);
    }
    buffer_printf(header, "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%lld",
                  header->length > 1 ? "," : "", t->name, (long long)t->shape[0]);
    if (t->rank == 2)
        buffer_printf(header, ",%lld", (long long)columns);
    buffer_printf(header, "],\"data_offsets\":[%zu,%zu]}", begin, data->length);
}

/* The configuration of tests/vectors/dflash/wrap with the target's sizes; returns a new folder. */
static char *make_drafter(struct arena *a, const struct model_info *info, int window, uint64_t seed)
{
    struct error err;
    struct dflash_config c;
    struct buffer text = {0}, header = {0}, data = {0}, file = {0};
    char *folder = arena_strdup(a, "/tmp/test-speculate-XXXXXX");
    assert_non_null(mkdtemp(folder));
    json_t *config = json_read_file("tests/vectors/dflash/wrap/config.json", 1 << 20, 32, &err);
    json_t *taps = json_object_get(json_object_get(config, "dflash_config"), "target_layer_ids");
    json_array_clear(taps);
    json_array_append_new(taps, json_integer(info->layers - 1));
    json_array_append_new(taps, json_integer(0));
    json_object_set_new(config, "hidden_size", json_integer(info->hidden));
    json_object_set_new(config, "vocab_size", json_integer(info->vocab));
    json_object_set_new(config, "num_target_layers", json_integer(info->layers));
    json_object_set_new(config, "sliding_window", json_integer(window));
    json_write_canonical(config, 0, &text);
    assert_true(dflash_config_parse(a, config, "config.json", &c, &err));
    json_decref(config);
    assert_true(
        file_write_atomic(path_join(a, folder, "config.json"), text.data, text.length, NULL));

    struct inventory inventory = {.arena = a};
    dflash_config_inventory(&c, DFLASH_REPACKED, &inventory);
    buffer_char(&header, '{');
    for (size_t i = 0; i < inventory.count; i++)
        put_tensor(&header, &data, &inventory.items[i], &seed);
    buffer_char(&header, '}');
    for (int i = 0; i < 8; i++)
        buffer_char(&file, (char)((uint64_t)header.length >> (8 * i)));
    buffer_append(&file, header.data, header.length);
    buffer_append(&file, data.data, data.length);
    assert_true(
        file_write_atomic(path_join(a, folder, "model.safetensors"), file.data, file.length, NULL));
    buffer_free(&text);
    buffer_free(&header);
    buffer_free(&data);
    buffer_free(&file);
    return folder;
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

/* ---- a target, its drafter, a session of each kind ---- */

struct pair {
    struct model *m;
    struct dflash *d;
    struct session *plain, *drafted;
    int vocab;
};

/* False when this machine has not the instruction set. drafter NULL: a random one. */
static bool pair_open(struct pair *p, const char *target, const char *drafter, int64_t context,
                      int rows, const char *cpu, int threads, int window)
{
    const struct model_options o = {
        .compute = {.threads = threads, .cpu = cpu}, .context = context, .max_rows = rows};
    struct error err;
    struct arena a = {0};
    char line[2048];
    if (!model_open(target, &o, &p->m, &err)) {
        if (strcmp(err.name, "CPU-UNSUPPORTED") != 0)
            fail_msg("%s", error_line(&err, line, sizeof line));
        return false;
    }
    const struct dflash_target t = dflash_target_of(p->m);
    p->vocab = t.sizes.vocab;
    char *made = drafter ? NULL : make_drafter(&a, model_get_info(p->m), window, 5);
    if (!dflash_open(made ? made : drafter, &t, &p->d, &err))
        fail_msg("%s", error_line(&err, line, sizeof line));
    if (made)
        remove_folder(made);
    assert_true(session_new(p->m, &p->plain, &err));
    assert_true(session_new(p->m, &p->drafted, &err));
    assert_true(session_set_drafter(p->drafted, p->d, &err));
    arena_free(&a);
    return true;
}

static void pair_close(struct pair *p)
{
    session_free(p->plain);
    session_free(p->drafted);
    dflash_close(p->d);
    model_close(p->m);
}

struct taken {
    int32_t tokens[MOST];
    size_t count, most;
};

static bool take(void *context, int32_t token)
{
    struct taken *t = context;
    assert_true(t->count < MOST);
    t->tokens[t->count++] = token;
    return t->count < t->most;
}

static int random_width(void *context, size_t round)
{
    (void)round;
    return 1 + random_below(context, 16);
}

/* Feeds the prompt to both sessions after a reset and decodes; both must end alike. */
static struct taken same_as_serial(struct pair *p, const int64_t *prompt, size_t count,
                                   const struct serial_request *request,
                                   const struct speculate_plan *plan,
                                   struct speculate_counts *counts, const char *how)
{
    struct error err;
    struct taken serial = {.most = MOST}, drafted = {.most = MOST};
    struct serial_request r = *request;
    struct serial_result a, b;
    if (r.on_token)
        serial.most = drafted.most = ((struct taken *)r.context)->most;
    session_reset(p->plain);
    session_reset(p->drafted);
    assert_true(session_feed(p->plain, prompt, count, &err));
    assert_true(session_feed(p->drafted, prompt, count, &err));
    r.on_token = take;
    r.context = &serial;
    assert_true(serial_decode(p->plain, &r, &a, &err));
    r.context = &drafted;
    assert_true(speculate_decode(p->drafted, &r, plan, counts, &b, &err));
    if (a.made != b.made || a.end != b.end || serial.count != drafted.count ||
        memcmp(serial.tokens, drafted.tokens, serial.count * sizeof *serial.tokens) != 0)
        fail_msg("%s: other tokens (%zu and %zu)", how, serial.count, drafted.count);
    if (session_position(p->plain) != session_position(p->drafted))
        fail_msg("%s: position %lld, serial %lld", how, (long long)session_position(p->drafted),
                 (long long)session_position(p->plain));
    if (memcmp(session_logits(p->plain), session_logits(p->drafted),
               (size_t)p->vocab * sizeof(float)) != 0)
        fail_msg("%s: other logits", how);
    return drafted;
}

static void random_prompt(uint64_t *seed, int vocab, int64_t *out, size_t count)
{
    /* Stretches that repeat, so that some drafts are right. */
    const size_t period = (size_t)(3 + random_below(seed, 20));
    for (size_t i = 0; i < count; i++)
        out[i] = i >= period && random_below(seed, 8) ? out[i - period] : random_below(seed, vocab);
}

static void random_models_are_lossless(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        int window, drafter_window;
    } targets[] = {{"tests/vectors/laguna/all-sliding", 8, 24},
                   {"tests/vectors/laguna/pattern-four", 16, 7},
                   {"tests/vectors/laguna/long-chunks", 40, 300},
                   {"tests/vectors/laguna/long-window", 300, 64}};
    static const char *const cpus[] = {"portable", "avx2", "avx512", "neon"};
    const bool quick = is_quick();
    int runs = 0;
    size_t rejected = 0, accepted = 0;
    for (size_t f = 0; f < sizeof targets / sizeof *targets; f++)
        for (int c = 0; c < 4; c++)
            for (int threads = 1; threads <= 2; threads++) {
                struct pair p;
                uint64_t seed = 1000 * f + (uint64_t)threads;
                if (quick && threads != 2)
                    continue;
                if (!pair_open(&p, targets[f].folder, NULL, 660, 32, cpus[c], threads,
                               targets[f].drafter_window))
                    continue;
                for (int n = 0; n < (quick ? 3 : c == 0 ? 4 : 8); n++) {
                    const int edge =
                        (n + threads) % 2 ? targets[f].window : targets[f].drafter_window;
                    int64_t prompt[MOST];
                    int length = n < 6 ? edge - 1 + (n + c) % 3 : 1 + random_below(&seed, 600);
                    if (length < 1)
                        length = 1 + random_below(&seed, 600);
                    random_prompt(&seed, p.vocab, prompt, (size_t)length);
                    uint64_t widths = seed;
                    const struct speculate_plan plan = {.schedule = random_width,
                                                        .context = &widths};
                    const struct serial_request r = {.count = 1 + (size_t)random_below(&seed, 50)};
                    struct speculate_counts counts;
                    char how[160];
                    snprintf(how, sizeof how, "%s, %s, %d threads, prompt %d", targets[f].folder,
                             cpus[c], threads, length);
                    same_as_serial(&p, prompt, (size_t)length, &r, &plan, &counts, how);
                    rejected += counts.drafted - counts.accepted;
                    accepted += counts.accepted;
                    runs++;
                }
                pair_close(&p);
            }
    print_message("%d runs, %zu drafts accepted, %zu rejected\n", runs, accepted, rejected);
    assert_true(runs > 0 && rejected > 0);
}

/* Odd numbers of threads, and more than this machine has cores. */
static void any_number_of_threads_is_lossless(void **state)
{
    (void)state;
    static const int counts[] = {3, 5, 8}, lengths[] = {1, 6, 7, 8, 15, 16, 17, 90};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        struct pair p;
        uint64_t seed = (uint64_t)counts[c];
        assert_true(
            pair_open(&p, "tests/vectors/laguna/pattern-four", NULL, 160, 32, NULL, counts[c], 7));
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            int64_t prompt[MOST];
            uint64_t widths = seed;
            const struct speculate_plan plan = {.schedule = random_width, .context = &widths};
            const struct serial_request r = {.count = 24};
            struct speculate_counts counts_of;
            char how[64];
            snprintf(how, sizeof how, "%d threads, prompt %d", counts[c], lengths[i]);
            random_prompt(&seed, p.vocab, prompt, (size_t)lengths[i]);
            same_as_serial(&p, prompt, (size_t)lengths[i], &r, &plan, &counts_of, how);
            assert_true(counts_of.drafted > 0);
        }
        pair_close(&p);
    }
}

static void the_trained_drafter_loses_nothing(void **state)
{
    (void)state;
    static const int lengths[] = {1,
                                  NANO_WINDOW - 1,
                                  NANO_WINDOW,
                                  NANO_WINDOW + 1,
                                  NANO_DRAFTER_WINDOW - 1,
                                  NANO_DRAFTER_WINDOW,
                                  NANO_DRAFTER_WINDOW + 1,
                                  255,
                                  600};
    const bool quick = is_quick();
    struct pair p;
    uint64_t seed = 77;
    bool seen[17] = {0}; /* accepted counts */
    assert_true(pair_open(&p, nano, nano_drafter, 1024, 0, NULL, 2, 0));
    for (size_t i = 0; i < (quick ? 2 : sizeof lengths / sizeof *lengths); i++) {
        int64_t prompt[MOST];
        random_prompt(&seed, NANO_VOCAB, prompt, (size_t)lengths[i]);
        uint64_t widths = seed + i;
        const struct speculate_plan plans[] = {
            {.schedule = random_width, .context = &widths}, {.block = 16}, {0}};
        for (int k = 0; k < 3; k++) {
            struct speculate_counts counts;
            const struct serial_request r = {.count = 96};
            char how[64];
            snprintf(how, sizeof how, "prompt of %d, plan %d", lengths[i], k);
            same_as_serial(&p, prompt, (size_t)lengths[i], &r, &plans[k], &counts, how);
            assert_true(counts.rounds + counts.accepted == 95);
            for (int a = 0; a < 15; a++)
                seen[a] |= counts.offered[a] > counts.taken[a];
        }
    }
    int kinds = 0;
    for (int a = 0; a < 15; a++)
        kinds += seen[a];
    print_message("rejections after %d different counts of accepted drafts\n", kinds);
    assert_true(quick || kinds >= 8);
    pair_close(&p);
}

/* ---- cases.md ---- */

struct fixture {
    struct pair p;
    int64_t prompt[64];
    struct taken free_run;
};

/* A repetitive continuation, in which blocks are accepted whole. Models and sessions are each
 * test's own; the tokens are the same every time and made once. */
static int set_up(void **state)
{
    static struct taken free_run;
    struct fixture *f = calloc(1, sizeof *f);
    uint64_t seed = 3;
    assert_true(pair_open(&f->p, nano, nano_drafter, 256, 64, NULL, 1, 0));
    random_prompt(&seed, NANO_VOCAB, f->prompt, 64);
    const struct serial_request r = {.count = 120};
    const struct speculate_plan plan = {.block = 8};
    if (free_run.count == 0)
        free_run = same_as_serial(&f->p, f->prompt, 64, &r, &plan, NULL, "free run");
    f->free_run = free_run;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    pair_close(&f->p);
    free(f);
    return 0;
}

/* A-SP1: a stop token inside an accepted block ends the run there, whatever its place in it. */
static void a_sp1_stop_inside_a_block(void **state)
{
    struct fixture *f = *state;
    int inside = 0;
    for (size_t at = 0; at < 40; at += is_quick() ? 15 : 5) {
        const int32_t stop = f->free_run.tokens[at];
        size_t first = 0;
        while (f->free_run.tokens[first] != stop)
            first++;
        for (int block = 2; block <= 16; block += 7) {
            const struct serial_request r = {.count = 100, .stop = &stop, .stop_count = 1};
            const struct speculate_plan plan = {.block = block};
            struct speculate_counts counts;
            const struct taken t =
                same_as_serial(&f->p, f->prompt, 64, &r, &plan, &counts, "A-SP1");
            assert_int_equal(t.count, first + 1);
            assert_int_equal(t.tokens[t.count - 1], stop);
            assert_int_equal(session_position(f->p.drafted), 64 + first);
            assert_true(counts.rounds + counts.accepted + 1 == t.count);
            inside += first > 0 && counts.drafted > counts.accepted;
        }
    }
    assert_true(inside > 0);
}

/* A-SP2: exactly as many tokens as were asked for. */
static void a_sp2_exact_counts(void **state)
{
    struct fixture *f = *state;
    for (size_t count = 0; count <= 12; count += is_quick() ? 4 : 1)
        for (int block = 4; block <= 16; block += 6) {
            const struct serial_request r = {.count = count};
            const struct speculate_plan plan = {.block = block};
            const struct taken t = same_as_serial(&f->p, f->prompt, 64, &r, &plan, NULL, "A-SP2");
            assert_int_equal(t.count, count);
        }
}

/* A-SP3: the width clamps at the end of the context; the last position is used, then the error is
 * that of serial decoding. */
static void a_sp3_end_of_the_context(void **state)
{
    struct fixture *f = *state;
    struct error err;
    for (int block = 5; block <= 16; block += 11) {
        struct taken serial = {.most = MOST}, drafted = {.most = MOST};
        struct serial_request r = {.count = 600, .on_token = take};
        const struct speculate_plan plan = {.block = block};
        struct serial_result a, b;
        session_reset(f->p.plain);
        session_reset(f->p.drafted);
        assert_true(session_feed(f->p.plain, f->prompt, 64, &err));
        assert_true(session_feed(f->p.drafted, f->prompt, 64, &err));
        r.context = &serial;
        assert_false(serial_decode(f->p.plain, &r, &a, &err));
        r.context = &drafted;
        assert_false(speculate_decode(f->p.drafted, &r, &plan, NULL, &b, &err));
        assert_string_equal(err.name, "CONTEXT-EXCEEDED");
        assert_int_equal(session_position(f->p.drafted), 256);
        assert_int_equal(b.made, a.made);
        assert_int_equal(drafted.count, 256 - 64 + 1);
        assert_memory_equal(serial.tokens, drafted.tokens, serial.count * sizeof *serial.tokens);
    }
}

/* A-SP5: a block that starts below the window's edge and ends past it, with each count of accepted
 * drafts: those of a block whose drafts are the right tokens up to there and wrong after it. */
static void a_sp5_rejection_over_the_edge_of_the_window(void **state)
{
    struct fixture *f = *state;
    struct error err;
    for (int before = 1; before <= 4; before++)
        for (int right = 0; right < 4; right++) {
            int64_t all[128];
            int32_t block[4], token;
            struct head_pick next[4];
            const int prompt = NANO_WINDOW - before;
            session_reset(f->p.plain);
            session_reset(f->p.drafted);
            assert_true(session_feed(f->p.plain, f->prompt, (size_t)prompt, &err));
            assert_true(session_feed(f->p.drafted, f->prompt, (size_t)prompt, &err));
            for (int i = 0; i < 24; i++) {
                assert_true(session_argmax(f->p.plain, &token, &err));
                all[i] = token;
                assert_true(session_step(f->p.plain, token, &err));
            }
            for (int i = 0; i < 4; i++)
                block[i] = (int32_t)(i <= right ? all[i] : (all[i] + 1) % NANO_VOCAB);
            assert_true(session_verify(f->p.drafted, block, 4, next, &err));
            for (int i = 0; i <= right; i++)
                assert_int_equal(next[i].token[0], all[i + 1]);
            session_keep(f->p.drafted, right + 1);
            for (int i = right + 1; i < 24; i++) {
                assert_true(session_argmax(f->p.drafted, &token, &err));
                assert_int_equal(token, all[i]);
                assert_true(session_step(f->p.drafted, token, &err));
            }
            assert_memory_equal(session_logits(f->p.plain), session_logits(f->p.drafted),
                                NANO_VOCAB * sizeof(float));
        }
}

/* ---- the session afterwards ---- */

static void ended_runs_leave_the_session_usable(void **state)
{
    struct fixture *f = *state;
    struct error err;
    /* The caller ends it inside a block, at every token. */
    for (size_t most = 1; most < 20; most += is_quick() ? 9 : 3) {
        struct taken limit = {.most = most};
        const struct serial_request r = {.count = 100, .on_token = take, .context = &limit};
        const struct speculate_plan plan = {.block = 16};
        const struct taken t = same_as_serial(&f->p, f->prompt, 64, &r, &plan, NULL, "caller");
        assert_int_equal(t.count, most);
        /* It goes on from there to the same tokens. */
        struct taken rest = {.most = MOST};
        struct serial_request more = {.count = 30, .on_token = take, .context = &rest};
        struct serial_result result = {.end = SERIAL_END_LENGTH};
        int32_t token = t.tokens[t.count - 1];
        assert_true(speculate_rounds(f->p.drafted, &token, &more, &plan, NULL, &result, &err));
        assert_memory_equal(rest.tokens, f->free_run.tokens + most, 30 * sizeof token);
    }

    /* Verifies that fail: a width and a token that cannot be. Nothing moved. */
    int32_t bad[2] = {1, NANO_VOCAB};
    struct head_pick next[16];
    const int64_t position = session_position(f->p.drafted);
    assert_false(session_verify(f->p.drafted, bad, 2, next, &err));
    assert_string_equal(err.name, "TOKEN-OUT-OF-RANGE");
    assert_false(session_verify(f->p.drafted, bad, 17, next, &err));
    assert_string_equal(err.name, "ROWS-INVALID");
    assert_false(session_verify(f->p.plain, bad, 1, next, &err));
    assert_int_equal(session_position(f->p.drafted), position);

    /* One that is abandoned before anything is kept, then an interrupt. */
    int32_t some[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    assert_true(session_verify(f->p.drafted, some, 8, next, &err));
    session_keep(f->p.drafted, 0);
    assert_int_equal(session_position(f->p.drafted), position);
    assert_false(session_argmax(f->p.drafted, &some[0], &err));
    assert_string_equal(err.name, "NO-LOGITS");
    interrupt_install();
    raise(SIGINT);
    struct serial_request r = {.count = 60};
    const struct speculate_plan plan = {.block = 6};
    struct serial_result result = {.end = SERIAL_END_LENGTH};
    int32_t token = 5;
    assert_true(speculate_rounds(f->p.drafted, &token, &r, &plan, NULL, &result, &err));
    assert_true(result.end == SERIAL_END_INTERRUPT && result.made == 0);
    interrupt_reset();

    /* A second request, of another length, as if it were the first. */
    same_as_serial(&f->p, f->prompt + 7, 50, &r, &plan, NULL, "second request");
    /* A step back inside the sequence, and on. */
    assert_true(session_rewind(f->p.drafted, 80, &err));
    assert_true(session_rewind(f->p.plain, 80, &err));
    int64_t again[3] = {9, 8, 7};
    assert_true(session_feed(f->p.drafted, again, 3, &err));
    assert_true(session_feed(f->p.plain, again, 3, &err));
    struct taken a = {.most = MOST}, b = {.most = MOST};
    r.on_token = take;
    r.context = &a;
    assert_true(serial_decode(f->p.plain, &r, &result, &err));
    r.context = &b;
    assert_true(speculate_decode(f->p.drafted, &r, &plan, NULL, &result, &err));
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.tokens, b.tokens, a.count * sizeof *a.tokens);

    assert_false(session_set_drafter(f->p.drafted, f->p.d, &err));
    assert_string_equal(err.name, "DRAFTER-INVALID");
}

/* laguna-nano, except that one token's embedding is NaN: feeding it makes a row of NaN. */
static char *make_broken_target(struct arena *a, int32_t token)
{
    char *folder = arena_strdup(a, "/tmp/test-speculate-XXXXXX");
    char **names;
    size_t count, changed = 0;
    assert_non_null(mkdtemp(folder));
    assert_true(file_list_recursive(a, nano, &names, &count, NULL));
    for (size_t i = 0; i < count; i++) {
        struct buffer data = {0};
        struct tensor *tensors;
        size_t tensor_count = 0;
        assert_true(file_read(path_join(a, nano, names[i]), 1 << 26, &data, NULL));
        if (strstr(names[i], ".safetensors") && !strstr(names[i], ".json"))
            assert_true(safetensors_parse(a, names[i], (uint8_t *)data.data, data.length, &tensors,
                                          &tensor_count, NULL));
        for (size_t t = 0; t < tensor_count; t++)
            if (strcmp(tensors[t].name, "model.embed_tokens.weight") == 0) {
                const size_t row = (size_t)tensors[t].shape[1] * 2;
                const size_t at = (size_t)(tensors[t].data - (uint8_t *)data.data);
                for (size_t b = 0; b < row; b += 2)
                    memcpy(data.data + at + (size_t)token * row + b, "\xc0\x7f", 2);
                changed++;
            }
        assert_true(
            file_write_atomic(path_join(a, folder, names[i]), data.data, data.length, NULL));
        buffer_free(&data);
    }
    assert_int_equal(changed, 1);
    return folder;
}

/* A row of NaN inside a block: what came before it is given out, the error is serial decoding's,
 * and the next request is as if nothing had been. */
static void a_row_of_nan_fails_as_it_does_serially(void **state)
{
    struct fixture *f = *state;
    struct arena a = {0};
    struct pair p;
    struct error err;
    const int32_t token = f->free_run.tokens[30];
    char *folder = make_broken_target(&a, token);
    assert_true(pair_open(&p, folder, nano_drafter, 256, 64, NULL, 1, 0));
    for (int block = 2; block <= 16; block += 7) {
        struct taken serial = {.most = MOST}, drafted = {.most = MOST};
        struct serial_request r = {.count = 60, .on_token = take, .context = &serial};
        const struct speculate_plan plan = {.block = block};
        struct serial_result x, y;
        session_reset(p.plain);
        session_reset(p.drafted);
        assert_true(session_feed(p.plain, f->prompt, 64, &err));
        assert_true(session_feed(p.drafted, f->prompt, 64, &err));
        assert_false(serial_decode(p.plain, &r, &x, &err));
        assert_string_equal(err.name, "LOGITS-NOT-FINITE");
        r.context = &drafted;
        assert_false(speculate_decode(p.drafted, &r, &plan, NULL, &y, &err));
        assert_string_equal(err.name, "LOGITS-NOT-FINITE");
        assert_true(x.made == y.made && serial.count == drafted.count);
        assert_int_equal(drafted.tokens[drafted.count - 1], token);
        assert_memory_equal(serial.tokens, drafted.tokens, serial.count * sizeof token);
        assert_int_equal(session_position(p.plain), session_position(p.drafted));
        const struct serial_request again = {.count = serial.count};
        same_as_serial(&p, f->prompt, 64, &again, &plan, NULL, "after a row of NaN");
    }
    pair_close(&p);
    remove_folder(folder);
    arena_free(&a);
}

/* Serial rounds between blocks, and another request before, change no draft. */
static void serial_rounds_keep_the_drafter_aligned(void **state)
{
    struct fixture *f = *state;
    struct error err;
    int32_t plain[15], mixed[15], token;
    int count;
    const int64_t at = 64 + 40;
    for (int how = 0; how < 3; how++) {
        if (how == 2) {
            /* a long one, so that the drafter's rows of before are gone, and one of this length */
            static const size_t lengths[] = {170, 114};
            int64_t other[170];
            for (int i = 0; i < 170; i++)
                other[i] = 100 + (i * 37) % 3900;
            for (int i = 0; i < 2; i++) {
                session_reset(f->p.drafted);
                assert_true(session_feed(f->p.drafted, other, lengths[i], &err));
                assert_true(session_draft(f->p.drafted, 7, 9, mixed, &count, &err));
            }
        }
        session_reset(f->p.drafted);
        assert_true(session_feed(f->p.drafted, f->prompt, 64, &err));
        while (session_position(f->p.drafted) < at) {
            assert_true(session_argmax(f->p.drafted, &token, &err));
            if (how == 1 && session_position(f->p.drafted) % 7 == 0)
                assert_true(session_draft(f->p.drafted, token, 9, mixed, &count, &err));
            assert_true(session_step(f->p.drafted, token, &err));
        }
        assert_true(session_argmax(f->p.drafted, &token, &err));
        assert_true(session_draft(f->p.drafted, token, 16, how ? mixed : plain, &count, &err));
        assert_int_equal(count, 15);
        if (how > 0)
            assert_memory_equal(plain, mixed, sizeof plain);
    }
}

/* ---- acceptance ---- */

static void acceptance_is_the_trainers(void **state)
{
    (void)state;
    static const int blocks[] = {2, 4, 16};
    const bool quick = is_quick();
    struct error err;
    struct pair p;
    json_t *all = json_read_file("tests/vectors/dflash/nano_acceptance.json", 1 << 24, 16, &err);
    assert_non_null(all);
    const json_t *cases = json_object_get(all, "cases");
    const size_t tokens = (size_t)json_integer_value(json_object_get(all, "tokens"));
    assert_true(pair_open(&p, nano, nano_drafter, 256, 64, NULL, 2, 0));
    for (size_t k = quick ? 2 : 0; k < sizeof blocks / sizeof *blocks; k++) {
        size_t rounds = 0, made = 0;
        int64_t want = 0, same = 0;
        char key[8];
        snprintf(key, sizeof key, "%d", blocks[k]);
        for (size_t i = 0; i < json_array_size(cases); i += quick ? 4 : 1) {
            const json_t *c = json_array_get(cases, i), *list = json_object_get(c, "prompt");
            int64_t prompt[128];
            const size_t length = json_array_size(list);
            for (size_t t = 0; t < length; t++)
                prompt[t] = json_integer_value(json_array_get(list, t));
            struct taken out = {.most = MOST};
            const struct serial_request r = {.count = tokens, .on_token = take, .context = &out};
            const struct speculate_plan plan = {.block = blocks[k]};
            struct speculate_counts counts;
            struct serial_result result;
            session_reset(p.drafted);
            assert_true(session_feed(p.drafted, prompt, length, &err));
            assert_true(speculate_decode(p.drafted, &r, &plan, &counts, &result, &err));
            list = json_object_get(c, "continuation");
            for (size_t t = 0; t < json_array_size(list) && t < out.count; t++)
                assert_int_equal(out.tokens[t], json_integer_value(json_array_get(list, t)));
            rounds += counts.rounds;
            made += result.made - 1;
            const size_t its =
                json_array_size(json_object_get(json_object_get(c, "accepted"), key));
            want += (int64_t)its;
            same += its == counts.rounds;
        }
        print_message("K=%d: %.4f tokens per round, the trainer's %.4f; as many rounds in %d of "
                      "%zu prompts\n",
                      blocks[k], (double)made / (double)rounds, (double)made / (double)want,
                      (int)same, json_array_size(cases));
        const double ratio = (double)want / (double)rounds;
        assert_true(ratio > 0.99 && ratio < 1.01);
    }
    json_decref(all);
    pair_close(&p);
}

/* ---- the width policy, on times and acceptances that are made up ---- */

/* Tokens per second over the last half of 4000 rounds; a draft is right with this probability.
 * After each `quiet` seconds a round takes 20 steps more (0: never): something else had the core.
 * Such time is not the policy's and not counted. */
static double simulate(double right, double step, double row, double quiet, int *usual)
{
    struct width_policy p;
    uint64_t seed = 11;
    double seconds = 0, tokens = 0, since = 0;
    int chosen[WIDTH_MOST + 1] = {0};
    width_policy_begin(&p, 16);
    for (int n = 0; n < 4000; n++) {
        const int width = width_policy_next(&p);
        int accepted = 0;
        assert_in_range(width, 1, 16);
        while (accepted < width - 1 && random_below(&seed, 1000) < (int)(right * 1000))
            accepted++;
        const double time = width == 1 ? step : 1.4 * step + row * (width - 1);
        since += time;
        const bool disturbed = quiet > 0 && since > quiet;
        since = disturbed ? 0 : since;
        width_policy_note(&p, width, accepted, time + (disturbed ? 20 * step : 0));
        chosen[width]++;
        if (n >= 2000) {
            seconds += time;
            tokens += accepted + 1;
        }
    }
    *usual = 1;
    for (int w = 1; w <= 16; w++)
        if (chosen[w] > chosen[*usual])
            *usual = w;
    return tokens / seconds;
}

static void the_policy_finds_what_pays(void **state)
{
    (void)state;
    int usual;
    for (int disturbed = 0; disturbed < 2; disturbed++) {
        const double quiet = disturbed ? 17.3 : 0;
        /* Cheap rows and good drafts: wide blocks. */
        assert_true(simulate(0.95, 1, 0.05, quiet, &usual) > 3);
        assert_true(usual >= 8);
        /* Fair drafts, rows that cost: something in between, and a gain. */
        assert_true(simulate(0.75, 1, 0.2, quiet, &usual) > 1.15);
        assert_in_range(usual, 2, 8);
        /* Bad drafts: serial, at a loss of less than 2%. */
        assert_true(simulate(0.2, 1, 0.2, quiet, &usual) > 0.98);
        assert_int_equal(usual, 1);
        /* A row costs as much as a step: nothing can be won. */
        assert_true(simulate(0.9, 1, 1, quiet, &usual) > 0.98);
        assert_int_equal(usual, 1);
    }
    struct width_policy p;
    width_policy_begin(&p, 1);
    assert_int_equal(width_policy_next(&p), 1);
}

/* A block of 2 loses by the drafter's own time, one of 4 gains; and the first block behind serial
 * rounds takes more than both, for their hidden rows. */
static void the_policy_looks_beyond_a_block_of_two(void **state)
{
    (void)state;
    struct width_policy p;
    uint64_t seed = 12;
    double steps = 0, tokens = 0;
    int last = 1;
    width_policy_begin(&p, 16);
    for (int n = 0; n < 600; n++) {
        const int width = width_policy_next(&p);
        int accepted = 0;
        while (accepted < width - 1 && random_below(&seed, 100) < 90)
            accepted++;
        const double time = width == 1 ? 1 : 1.9 + 0.2 * (width - 1) + (last == 1 ? 3 : 0);
        width_policy_note(&p, width, accepted, time);
        last = width;
        steps += time;
        tokens += accepted + 1;
    }
    assert_true(tokens / steps > 1.3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_models_are_lossless),
        cmocka_unit_test(any_number_of_threads_is_lossless),
        cmocka_unit_test(the_trained_drafter_loses_nothing),
        cmocka_unit_test_setup_teardown(a_sp1_stop_inside_a_block, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_sp2_exact_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_sp3_end_of_the_context, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_sp5_rejection_over_the_edge_of_the_window, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(ended_runs_leave_the_session_usable, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_row_of_nan_fails_as_it_does_serially, set_up, tear_down),
        cmocka_unit_test_setup_teardown(serial_rounds_keep_the_drafter_aligned, set_up, tear_down),
        cmocka_unit_test(acceptance_is_the_trainers),
        cmocka_unit_test(the_policy_finds_what_pays),
        cmocka_unit_test(the_policy_looks_beyond_a_block_of_two),
    };
    /* An emulator is too slow for laguna-nano: there the *_lossless tests alone. */
    cmocka_set_test_filter(getenv("MLXFAST_TEST_FILTER"));
    return cmocka_run_group_tests_name("speculate", tests, NULL, NULL);
}
