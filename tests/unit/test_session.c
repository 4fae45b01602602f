/* Sessions and serial decoding: positions, refusals that leave no trace, ties and NaN, stop sets,
 * exact counts. */
#include "base/buffer.h"
#include "base/child.h"
#include "base/file.h"
#include "base/json.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/decode/pick.h"
#include "engine/decode/serial.h"
#include "engine/decode/session.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { VOCAB = 64, HIDDEN = 32, CONTEXT = 100, WINDOW = 8, ROWS = 5 };
static const char source[] = "tests/vectors/laguna/all-sliding";

static struct model *open_model(const char *folder)
{
    struct model_options o = {.compute = {.threads = 1}, .context = CONTEXT, .max_rows = ROWS};
    struct model *m;
    struct error err;
    char line[2048];
    if (!model_open(folder, &o, &m, &err))
        fail_msg("%s", error_line(&err, line, sizeof line));
    assert_int_equal(model_get_info(m)->vocab, VOCAB);
    return m;
}

/* A copy of the checkpoint with its lm_head changed: the vector files themselves stay as they are.
 */
static char *changed_head(void (*change)(uint16_t *head))
{
    static char folder[32];
    static const char *const names[] = {"config.json", "model.safetensors.index.json",
                                        "model-00001-of-00001.safetensors"};
    struct arena a = {0};
    text_copy(folder, sizeof folder, "/tmp/test-session-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (size_t i = 0; i < 3; i++) {
        struct buffer data = {0};
        assert_true(file_read(path_join(&a, source, names[i]), 1 << 26, &data, NULL));
        if (i == 2) {
            struct tensor *tensors;
            size_t count, found = 0;
            assert_true(safetensors_parse(&a, names[i], (uint8_t *)data.data, data.length, &tensors,
                                          &count, NULL));
            for (size_t t = 0; t < count; t++)
                if (strcmp(tensors[t].name, "lm_head.weight") == 0) {
                    uint16_t head[VOCAB * HIDDEN];
                    size_t at = (size_t)(tensors[t].data - (uint8_t *)data.data);
                    assert_int_equal(tensors[t].bytes, sizeof head);
                    memcpy(head, data.data + at, sizeof head);
                    change(head);
                    memcpy(data.data + at, head, sizeof head);
                    found++;
                }
            assert_int_equal(found, 1);
        }
        assert_true(
            file_write_atomic(path_join(&a, folder, names[i]), data.data, data.length, NULL));
        buffer_free(&data);
    }
    arena_free(&a);
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

struct fixture {
    struct model *m;
    struct session *s;
    struct error err;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->m = open_model(source);
    assert_true(session_new(f->m, &f->s, &f->err));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    session_free(f->s);
    model_close(f->m);
    free(f);
    return 0;
}

static const int64_t prompt[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 35, 8, 9, 7, 9, 32};
enum { PROMPT = sizeof prompt / sizeof *prompt };

static void pieces_make_no_difference(void **state)
{
    struct fixture *f = *state;
    float whole[VOCAB];
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    memcpy(whole, session_logits(f->s), sizeof whole);
    for (size_t piece = 1; piece <= PROMPT; piece++) {
        session_reset(f->s);
        for (size_t done = 0; done < PROMPT; done += piece)
            assert_true(session_feed(f->s, prompt + done,
                                     PROMPT - done < piece ? PROMPT - done : piece, &f->err));
        assert_int_equal(session_position(f->s), PROMPT);
        assert_memory_equal(whole, session_logits(f->s), sizeof whole);
    }
}

static void refusals_leave_no_trace(void **state)
{
    struct fixture *f = *state;
    int32_t token, before;
    assert_false(session_argmax(f->s, &token, &f->err));
    assert_string_equal(f->err.name, "NO-LOGITS");
    assert_false(session_feed(f->s, prompt, 0, &f->err));
    assert_string_equal(f->err.name, "EMPTY-PROMPT");
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    assert_true(session_argmax(f->s, &before, &f->err));

    static const struct {
        int64_t value;
        const char *text;
    } bad[] = {{VOCAB, "64"}, {-1, "-1"}, {INT64_MAX, "9223372036854775807"}, {INT64_MIN, "-9"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t tokens[] = {1, 2, bad[i].value, 3};
        assert_false(session_feed(f->s, tokens, 4, &f->err));
        assert_string_equal(f->err.name, "TOKEN-OUT-OF-RANGE");
        assert_string_equal(f->err.field, "tokens[2]");
        assert_true(text_starts(f->err.value, bad[i].text));
        assert_int_equal(session_position(f->s), PROMPT);
        assert_true(session_argmax(f->s, &token, &f->err));
        assert_int_equal(token, before);
    }
    int64_t many[CONTEXT] = {0};
    assert_false(session_feed(f->s, many, CONTEXT - PROMPT + 1, &f->err));
    assert_string_equal(f->err.name, "CONTEXT-EXCEEDED");
    assert_int_equal(session_position(f->s), PROMPT);
    assert_true(session_feed(f->s, many, CONTEXT - PROMPT, &f->err));
    assert_false(session_step(f->s, 0, &f->err));
    assert_string_equal(f->err.name, "CONTEXT-EXCEEDED");

    assert_false(session_rewind(f->s, -1, &f->err));
    assert_false(session_rewind(f->s, CONTEXT + 1, &f->err));
    assert_string_equal(f->err.name, "REWIND-INVALID");
    assert_true(session_rewind(f->s, CONTEXT, &f->err)); /* nothing moves, the logits stay */
    assert_true(session_argmax(f->s, &token, &f->err));
    assert_true(session_rewind(f->s, CONTEXT - 1, &f->err));
    assert_false(session_argmax(f->s, &token, &f->err));
}

static void all_nan(uint16_t *head)
{
    for (int i = 0; i < VOCAB * HIDDEN; i++)
        head[i] = 0x7fc0;
}

static void one_finite(uint16_t *head)
{
    all_nan(head);
    memset(head + 17 * HIDDEN, 0, HIDDEN * sizeof *head);
}

/* A row of zeros but for one sign and one size, so that ids 9 and 40 tie for the largest. */
static void two_equal(uint16_t *head)
{
    for (int id = 0; id < VOCAB; id++)
        if (id != 9 && id != 40)
            memset(head + id * HIDDEN, 0, HIDDEN * sizeof *head);
    memcpy(head + 9 * HIDDEN, head + 40 * HIDDEN, HIDDEN * sizeof *head);
}

static void nan_never_wins(void **state)
{
    (void)state;
    struct error err;
    struct session *s;
    char *folder = changed_head(all_nan);
    struct model *m = open_model(folder);
    assert_true(session_new(m, &s, &err));
    assert_false(session_feed(s, prompt, PROMPT, &err));
    assert_string_equal(err.name, "LOGITS-NOT-FINITE");
    assert_int_equal(session_position(s), 0);
    session_free(s);
    model_close(m);
    remove_folder(folder);

    int32_t token;
    folder = changed_head(one_finite);
    m = open_model(folder);
    assert_true(session_new(m, &s, &err));
    assert_true(session_feed(s, prompt, PROMPT, &err));
    assert_true(session_argmax(s, &token, &err));
    assert_int_equal(token, 17);
    session_free(s);
    model_close(m);
    remove_folder(folder);
}

static void the_lowest_id_wins_a_tie(void **state)
{
    (void)state;
    struct error err;
    struct session *s;
    char *folder = changed_head(two_equal);
    struct model *m = open_model(folder);
    int seen = 0;
    assert_true(session_new(m, &s, &err));
    for (int i = 0; i < PROMPT; i++) {
        int32_t token;
        assert_true(session_feed(s, prompt + i, 1, &err));
        assert_true(session_argmax(s, &token, &err));
        assert_true(session_logits(s)[9] == session_logits(s)[40]);
        /* either the pair wins and 9 is given, or the zeros do and 0 is */
        assert_int_equal(token, session_logits(s)[9] > 0 ? 9 : 0);
        seen += token == 9;
        struct top_logit top[2];
        assert_int_equal(pick_top_k(session_logits(s), VOCAB, 2, top), 2);
        if (token == 9)
            assert_true(top[0].token == 9 && top[1].token == 40);
    }
    assert_true(seen > 0);
    session_free(s);
    model_close(m);
    remove_folder(folder);
}

/* ---- serial ---- */

struct taken {
    int32_t tokens[CONTEXT];
    size_t count, most;
};

static bool take(void *context, int32_t token)
{
    struct taken *t = context;
    t->tokens[t->count++] = token;
    return t->count < t->most;
}

static void serial_counts_exactly(void **state)
{
    struct fixture *f = *state;
    struct taken t = {.most = CONTEXT};
    struct serial_request r = {.count = 20, .on_token = take, .context = &t};
    struct serial_result result;
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    assert_true(serial_decode(f->s, &r, &result, &f->err));
    assert_true(result.made == 20 && t.count == 20 && result.end == SERIAL_END_LENGTH);
    assert_int_equal(session_position(f->s), PROMPT + 19);

    /* Rounds feed first; over the same prompt they give the tokens after the first. */
    session_reset(f->s);
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    int32_t token;
    int64_t out[19];
    assert_true(session_argmax(f->s, &token, &f->err));
    assert_int_equal(token, t.tokens[0]);
    assert_true(serial_rounds(f->s, &token, 0, NULL, &f->err)); /* changes nothing */
    assert_int_equal(session_position(f->s), PROMPT);
    assert_int_equal(token, t.tokens[0]);
    assert_true(serial_rounds(f->s, &token, 19, out, &f->err));
    assert_int_equal(session_position(f->s), PROMPT + 19);
    for (int i = 0; i < 19; i++)
        assert_int_equal(out[i], t.tokens[i + 1]);

    /* One token needs no further forward; none needs nothing. */
    session_reset(f->s);
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    r.count = 1;
    t.count = 0;
    assert_true(serial_decode(f->s, &r, &result, &f->err));
    assert_true(result.made == 1 && session_position(f->s) == PROMPT);
    r.count = 0;
    assert_true(serial_decode(f->s, &r, &result, &f->err));
    assert_true(result.made == 0 && t.count == 1);
}

static void serial_stops_at_any_id_of_the_set(void **state)
{
    struct fixture *f = *state;
    struct taken free_run = {.most = CONTEXT};
    struct serial_request r = {.count = 30, .on_token = take, .context = &free_run};
    struct serial_result result;
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    assert_true(serial_decode(f->s, &r, &result, &f->err));
    for (size_t at = 0; at < 30; at += 6) {
        int32_t stop[2] = {63, free_run.tokens[at]};
        size_t first = 0;
        while (free_run.tokens[first] != stop[0] && free_run.tokens[first] != stop[1])
            first++;
        struct taken t = {.most = CONTEXT};
        r = (struct serial_request){
            .count = 30, .stop = stop, .stop_count = 2, .on_token = take, .context = &t};
        session_reset(f->s);
        assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
        assert_true(serial_decode(f->s, &r, &result, &f->err));
        assert_int_equal(result.end, SERIAL_END_STOP);
        assert_int_equal(t.count, first + 1);
        assert_memory_equal(t.tokens, free_run.tokens, t.count * sizeof *t.tokens);
        assert_int_equal(session_position(f->s), PROMPT + first);
    }
}

static void serial_ends_for_the_caller_and_for_an_interrupt(void **state)
{
    struct fixture *f = *state;
    struct taken t = {.most = 3};
    struct serial_request r = {.count = 30, .on_token = take, .context = &t};
    struct serial_result result;
    assert_true(session_feed(f->s, prompt, PROMPT, &f->err));
    assert_true(serial_decode(f->s, &r, &result, &f->err));
    assert_true(result.end == SERIAL_END_CALLER && result.made == 3);

    interrupt_install();
    raise(SIGINT);
    assert_true(serial_decode(f->s, &r, &result, &f->err));
    assert_true(result.end == SERIAL_END_INTERRUPT && result.made == 0);
    interrupt_reset();

    /* The context ends before the count: what was made is told, and the error. */
    t = (struct taken){.most = CONTEXT};
    r.count = 1000;
    assert_false(serial_decode(f->s, &r, &result, &f->err));
    assert_string_equal(f->err.name, "CONTEXT-EXCEEDED");
    assert_int_equal(result.made, t.count);
    assert_int_equal(session_position(f->s), CONTEXT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces_make_no_difference, set_up, tear_down),
        cmocka_unit_test_setup_teardown(refusals_leave_no_trace, set_up, tear_down),
        cmocka_unit_test(nan_never_wins),
        cmocka_unit_test(the_lowest_id_wins_a_tie),
        cmocka_unit_test_setup_teardown(serial_counts_exactly, set_up, tear_down),
        cmocka_unit_test_setup_teardown(serial_stops_at_any_id_of_the_set, set_up, tear_down),
        cmocka_unit_test_setup_teardown(serial_ends_for_the_caller_and_for_an_interrupt, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
