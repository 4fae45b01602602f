/* session.h, blocks: what a caller can see of verified rows, and that no step back leaves the
 * drafter with rows of tokens that were taken back. The tokens of a run cannot show the latter
 * (drafts are only proposals), so drafts are compared with those of a session that never went
 * another way. */
#include "engine/decode/pick.h"
#include "engine/decode/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 4096, BLOCK = 16, DRAFTS = BLOCK - 1, CONTEXT = 320 };

/* Under an emulator or sanitizers: fewer cases of each test, over the same ranges. */
static bool is_quick(void)
{
    return getenv("MLXFAST_TEST_QUICK") != NULL;
}

struct fixture {
    struct model *m;
    struct dflash *d;
    struct session *plain, *straight, *winding;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const struct model_options o = {.compute = {.threads = 1}, .context = CONTEXT, .max_rows = 64};
    struct error err;
    assert_true(model_open("models/laguna-nano", &o, &f->m, &err));
    const struct dflash_target t = dflash_target_of(f->m);
    assert_true(dflash_open("models/laguna-nano-dflash", &t, &f->d, &err));
    assert_true(session_new(f->m, &f->plain, &err));
    assert_true(session_new(f->m, &f->straight, &err));
    assert_true(session_new(f->m, &f->winding, &err));
    assert_true(session_set_drafter(f->straight, f->d, &err));
    assert_true(session_set_drafter(f->winding, f->d, &err));
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    session_free(f->plain);
    session_free(f->straight);
    session_free(f->winding);
    dflash_close(f->d);
    model_close(f->m);
    free(f);
    return 0;
}

/* One text or another: nothing of one is in the other. */
static void text(int which, int64_t *tokens, int count)
{
    for (int i = 0; i < count; i++)
        tokens[i] = 40 + 2 * ((which * 577 + i * (31 + 6 * which)) % 2000) + which % 2;
}

static void feed(struct session *s, const int64_t *tokens, int count)
{
    struct error err;
    if (count > 0)
        assert_true(session_feed(s, tokens, (size_t)count, &err));
}

/* The drafts after the session's tokens, for a bonus that is the same everywhere. */
static void draft(struct session *s, int32_t drafts[DRAFTS])
{
    struct error err;
    int count = 0;
    assert_true(session_draft(s, 7, BLOCK, drafts, &count, &err));
    assert_int_equal(count, DRAFTS);
}

/* As a new session would draft after these tokens. */
static void draft_straight(struct fixture *f, const int64_t *tokens, int count,
                           int32_t drafts[DRAFTS])
{
    session_free(f->straight);
    struct error err;
    assert_true(session_new(f->m, &f->straight, &err));
    assert_true(session_set_drafter(f->straight, f->d, &err));
    feed(f->straight, tokens, count);
    draft(f->straight, drafts);
}

static void same_drafts(struct fixture *f, const int64_t *tokens, int count)
{
    int32_t want[DRAFTS], got[DRAFTS];
    assert_int_equal(session_position(f->winding), count);
    draft_straight(f, tokens, count, want);
    draft(f->winding, got);
    assert_memory_equal(got, want, sizeof want);
}

/* Fed, drafted, taken back to `back`, fed another text to `end`: less far than it was, as far, and
 * further; within the drafter's window and not. */
static void a_rewind_is_seen_by_the_drafter(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static const int far[] = {60, 100, 200}, back[] = {0, 1, 20, 59}, on[] = {1, 30, 41, 90};
    int cases = 0, other = 0;
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        for (size_t j = 0; j < sizeof back / sizeof *back; j++)
            for (size_t k = 0; k < sizeof on / sizeof *on; k++) {
                if (is_quick() && (i + j + k) % 3 != 0)
                    continue; /* each value of each still comes */
                int64_t tokens[CONTEXT];
                int32_t before[DRAFTS], after[DRAFTS];
                const int at = far[i] - back[j];
                text(1, tokens, far[i]);
                session_reset(f->winding);
                feed(f->winding, tokens, far[i]);
                draft(f->winding, before);
                assert_true(session_rewind(f->winding, at, &err));
                text(2, tokens + at, on[k]);
                feed(f->winding, tokens + at, on[k]);
                same_drafts(f, tokens, at + on[k]);
                draft(f->winding, after);
                other += memcmp(before, after, sizeof after) != 0;
                cases++;
            }
    assert_true(other > cases / 2); /* the text does matter */
}

/* Another text of the same length after session_reset, and a shorter and a longer one. */
static void a_reset_is_seen_by_the_drafter(void **state)
{
    struct fixture *f = *state;
    static const int first[] = {90, 160}, second[] = {90, 50, 130, 160};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        for (size_t j = 0; j < sizeof second / sizeof *second; j++) {
            if (is_quick() && (i + j) % 2 != 0)
                continue;
            int64_t tokens[CONTEXT];
            int32_t drafts[DRAFTS];
            session_reset(f->winding);
            text(3, tokens, first[i]);
            feed(f->winding, tokens, first[i]);
            draft(f->winding, drafts);
            session_reset(f->winding);
            text(4, tokens, second[j]);
            feed(f->winding, tokens, second[j]);
            same_drafts(f, tokens, second[j]);
        }
}

/* Rounds with every count of kept rows, other tokens afterwards, a draft after each; and a step
 * back over rounds. */
static void rejected_rows_are_not_the_drafters(void **state)
{
    struct fixture *f = *state;
    struct error err;
    for (int kept = 0; kept <= 8; kept += is_quick() ? 4 : 1) {
        int64_t tokens[CONTEXT];
        int length = 70;
        text(5, tokens, length);
        session_reset(f->winding);
        feed(f->winding, tokens, length);
        for (int round = 0; round < 4; round++) {
            struct head_pick next[8];
            int64_t block[8];
            int32_t rows[8];
            same_drafts(f, tokens, length);
            text(6 + round, block, 8);
            for (int i = 0; i < 8; i++)
                rows[i] = (int32_t)block[i];
            assert_true(session_verify(f->winding, rows, 8, next, &err));
            session_keep(f->winding, kept);
            memcpy(tokens + length, block, (size_t)kept * sizeof *tokens);
            length += kept;
            if (kept == 0)
                same_drafts(f, tokens, length);
            text(20 + round, tokens + length, 3);
            feed(f->winding, tokens + length, round);
            length += round;
        }
        same_drafts(f, tokens, length);
        /* back over the last rounds, into a verified block, and another way on */
        length -= 9 < length - 70 ? 9 : length - 70;
        assert_true(session_rewind(f->winding, length, &err));
        text(31, tokens + length, 12);
        feed(f->winding, tokens + length, 12);
        same_drafts(f, tokens, length + 12);
    }
}

/* A feed that fails half-way is taken back, also for the drafter. */
static void a_failed_feed_is_not_the_drafters(void **state)
{
    struct fixture *f = *state;
    struct error err;
    int64_t tokens[CONTEXT + 1];
    int32_t drafts[DRAFTS];
    text(8, tokens, CONTEXT + 1);
    session_reset(f->winding);
    feed(f->winding, tokens, 100);
    draft(f->winding, drafts);
    assert_false(session_feed(f->winding, tokens + 100, CONTEXT - 99, &err));
    assert_string_equal(err.name, "CONTEXT-EXCEEDED");
    same_drafts(f, tokens, 100);
}

/* ---- a verified row's largest two logits and its hidden rows ---- */

static void verified_rows_can_be_read(void **state)
{
    struct fixture *f = *state;
    struct error err;
    enum { ROWS = 5, AT = 64 };
    const size_t width = session_tap_width(f->winding);
    assert_int_equal(width, 3 * 256);
    assert_int_equal(session_tap_width(f->plain), 0);
    float *serial = malloc(ROWS * width * sizeof *serial), *row = malloc(width * sizeof *row);
    struct head_pick single[ROWS], next[ROWS];
    int64_t tokens[AT];
    int32_t block[ROWS];

    session_reset(f->winding);
    assert_true(session_pick(f->winding).token[0] == -1);
    assert_false(session_read_taps(f->winding, 0, row));
    text(9, tokens, AT);
    feed(f->winding, tokens, AT);
    for (int i = 0; i < ROWS; i++) {
        struct top_logit top[2];
        assert_true(session_argmax(f->winding, &block[i], &err));
        assert_true(session_step(f->winding, block[i], &err));
        single[i] = session_pick(f->winding);
        assert_int_equal(pick_top_k(session_logits(f->winding), VOCAB, 2, top), 2);
        for (int j = 0; j < 2; j++)
            assert_true(top[j].token == single[i].token[j] && top[j].logit == single[i].logit[j]);
        assert_true(session_read_taps(f->winding, AT + i, serial + (size_t)i * width));
        assert_false(session_read_taps(f->winding, AT + i + 1, row));
    }
    assert_true(memcmp(serial, serial + width, width * sizeof *row) != 0);

    assert_true(session_rewind(f->winding, AT, &err));
    assert_true(session_pick(f->winding).token[0] == -1);
    assert_true(session_verify(f->winding, block, ROWS, next, &err));
    assert_memory_equal(next, single, sizeof single);
    for (int i = 0; i < ROWS; i++) {
        assert_true(session_read_taps(f->winding, AT + i, row));
        assert_memory_equal(row, serial + (size_t)i * width, width * sizeof *row);
    }
    session_keep(f->winding, 2);
    const struct head_pick kept = session_pick(f->winding);
    assert_memory_equal(&kept, &single[1], sizeof kept);
    assert_true(session_read_taps(f->winding, AT + 1, row));
    assert_memory_equal(row, serial + width, width * sizeof *row);
    assert_false(session_read_taps(f->winding, AT + 2, row)); /* taken back */
    assert_false(session_read_taps(f->winding, -1, row));
    assert_false(session_read_taps(f->plain, 0, row));
    free(serial);
    free(row);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(verified_rows_can_be_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_rewind_is_seen_by_the_drafter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_reset_is_seen_by_the_drafter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(rejected_rows_are_not_the_drafters, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_failed_feed_is_not_the_drafters, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("session_blocks", tests, NULL, NULL);
}
