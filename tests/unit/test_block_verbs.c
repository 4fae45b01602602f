/* block_verbs.h against plain sessions of laguna-nano: the digest's bytes, whose hidden rows it is
 * of, what a warm-up and a reference leave behind, and that a seed's rows taken early change no
 * draft. The messages themselves are tested through the program (tests/cli/test_block_protocol.py).
 */
#include "engine/serve/block_verbs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BLOCK = 16, CONTEXT = 256, SEED = 70, MOST_TAPS = 4096 };

struct fixture {
    struct model *m;
    struct dflash *d;
    struct session *served, *plain;
    struct block_verbs b;
    int64_t seed[SEED];
    struct arena arena;
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const struct model_options o = {.compute = {.threads = 1}, .context = CONTEXT};
    struct error err;
    assert_true(model_open("models/laguna-nano", &o, &f->m, &err));
    const struct dflash_target t = dflash_target_of(f->m);
    assert_true(dflash_open("models/laguna-nano-dflash", &t, &f->d, &err));
    struct session **each[] = {&f->served, &f->plain};
    for (size_t i = 0; i < 2; i++) {
        assert_true(session_new(f->m, each[i], &err));
        assert_true(session_set_drafter(*each[i], f->d, &err));
    }
    block_verbs_open(&f->b, f->m, f->d, f->served);
    for (int i = 0; i < SEED; i++)
        f->seed[i] = 30 + (i * 577) % 3000;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    block_verbs_close(&f->b);
    session_free(f->served);
    session_free(f->plain);
    dflash_close(f->d);
    model_close(f->m);
    arena_free(&f->arena);
    free(f);
    return 0;
}

static struct wire_response ask(struct fixture *f, enum wire_kind kind, struct wire_request r)
{
    struct wire_response out = {0};
    struct error err = {0};
    if (!block_verbs_answer(&f->b, &f->arena, kind, &r, &out, &err))
        fail_msg("%s: %s", err.name, err.message);
    return out;
}

static void refused(struct fixture *f, enum wire_kind kind, struct wire_request r, const char *name)
{
    struct wire_response out = {0};
    struct error err = {0};
    assert_false(block_verbs_answer(&f->b, &f->arena, kind, &r, &out, &err));
    assert_string_equal(err.name, name);
}

static struct wire_request seed_of(struct fixture *f)
{
    return (struct wire_request){.seed_tokens = {true, SEED, f->seed}};
}

static struct wire_request block_of(int64_t token, int64_t width)
{
    return (struct wire_request){.token = {true, token}, .max_block_size = {true, width}};
}

static void digest_has_one_zero_and_one_nan(void **state)
{
    (void)state;
    char plain[SHA256_HEX], other[SHA256_HEX];
    float a[] = {0.0f, 1.0f, -2.5f, INFINITY}, b[] = {-0.0f, 1.0f, -2.5f, INFINITY};
    block_row_digest(a, 4, plain);
    block_row_digest(b, 4, other);
    assert_string_equal(plain, other);
    /* Of the little-endian float32 bytes of 0, 1, -2.5 and Inf, from another program. */
    assert_string_equal(plain, "9624829548a07535dabf30c4e11f4f6ff89f30fd22b53466c4c68d39d80cc622");

    static const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0x7fffffff};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        float x[2] = {3.0f, 0};
        memcpy(&x[1], &nans[i], sizeof nans[i]);
        block_row_digest(x, 2, other);
        if (i == 0)
            memcpy(plain, other, sizeof plain);
        assert_string_equal(plain, other);
    }
    float c[] = {-1.0f}, d[] = {1.0f}; /* other signs stay */
    block_row_digest(c, 1, plain);
    block_row_digest(d, 1, other);
    assert_string_not_equal(plain, other);
}

/* Row r's digest is that of its position's hidden rows in a session that was fed the same tokens
 * one by one, rejected rows too. */
static void digests_are_of_the_rows_taps(void **state)
{
    struct fixture *f = *state;
    struct error err;
    const struct wire_response begun = ask(f, WIRE_KIND_dflash_decode_begin, seed_of(f));
    int64_t token = begun.seed_token.value;
    bool rejected = false;
    session_reset(f->plain);
    assert_true(session_feed(f->plain, f->seed, SEED, &err));
    for (int round = 0; round < 8; round++) {
        const struct wire_response r =
            ask(f, WIRE_KIND_dflash_decode_block, block_of(token, 3 + round));
        const int64_t start = session_position(f->plain);
        float taps[MOST_TAPS];
        char hex[SHA256_HEX];
        assert_true(session_tap_width(f->plain) <= MOST_TAPS);
        for (int64_t i = 0; i < r.declared_rows.value; i++) {
            const int64_t fed = i == 0 ? token : r.draft_tokens.items[i - 1];
            assert_true(session_feed(f->plain, &fed, 1, &err));
            assert_true(session_read_taps(f->plain, start + i, taps));
            block_row_digest(taps, session_tap_width(f->plain), hex);
            assert_string_equal(r.per_row_hidden_digest.items[i], hex);
            const struct head_pick pick = session_pick(f->plain);
            for (int k = 0; k < 2; k++) {
                assert_int_equal(r.per_row_top2_tokens.items[i].items[k], pick.token[k]);
                assert_true(r.per_row_top2_logits.items[i].items[k] == (double)pick.logit[k]);
            }
        }
        rejected |= r.rejected_draft_count.value > 0;
        assert_true(session_rewind(f->plain, start + (int64_t)r.tokens.count, &err));
        assert_int_equal(session_position(f->served), session_position(f->plain));
        token = r.tokens.items[r.tokens.count - 1];
    }
    assert_true(rejected);
}

/* The seed's rows are taken by the drafter within begin: what the first draft proposes is what a
 * session proposes that takes them within the draft. */
static void taking_the_seed_early_changes_no_draft(void **state)
{
    struct fixture *f = *state;
    struct error err;
    static const size_t lengths[] = {1, 2, 63, SEED};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int32_t want[BLOCK - 1];
        int count = 0;
        struct wire_request seed = seed_of(f);
        seed.seed_tokens.count = lengths[i];
        const struct wire_response begun = ask(f, WIRE_KIND_dflash_decode_begin, seed);
        session_reset(f->plain);
        assert_true(session_feed(f->plain, f->seed, lengths[i], &err));
        assert_true(
            session_draft(f->plain, (int32_t)begun.seed_token.value, BLOCK, want, &count, &err));
        assert_int_equal(count, BLOCK - 1);
        const struct wire_response r =
            ask(f, WIRE_KIND_dflash_decode_block, block_of(begun.seed_token.value, BLOCK));
        assert_int_equal(r.draft_tokens.count, BLOCK - 1);
        for (int k = 0; k < BLOCK - 1; k++)
            assert_int_equal(r.draft_tokens.items[k], want[k]);
    }
}

static void a_warm_up_leaves_nothing(void **state)
{
    struct fixture *f = *state;
    struct error err;
    ask(f, WIRE_KIND_dflash_decode_begin, seed_of(f));
    assert_true(block_verbs_warm(&f->b, &err));
    assert_int_equal(session_position(f->served), 0);
    assert_int_equal(f->b.sequence, BLOCK_NONE);
    refused(f, WIRE_KIND_dflash_decode_block, block_of(f->b.last, 2), "OUT-OF-ORDER");
}

static void refusals_poison_once_a_block_session_has_begun(void **state)
{
    struct fixture *f = *state;
    struct block_verbs b = f->b;
    b.begun = b.poisoned = false;
    block_verbs_refused(&b);
    assert_false(b.poisoned);
    b.begun = true;
    b.sequence = BLOCK_DECODE;
    block_verbs_refused(&b);
    assert_true(b.poisoned);
    assert_int_equal(b.sequence, BLOCK_NONE);
}

/* Frames of drafts that are noise, at every position up to past both windows: the session is where
 * it was, and its next logits are those of a session that ran none. All of them, not the largest
 * two. */
static void frames_leave_the_whole_row(void **state)
{
    struct fixture *f = *state;
    struct error err;
    const int vocab = model_get_info(f->m)->vocab;
    ask(f, WIRE_KIND_dflash_reference_prefill, seed_of(f));
    session_reset(f->plain);
    assert_true(session_feed(f->plain, f->seed, SEED, &err));
    int64_t prefix[CONTEXT], verify[BLOCK];
    memcpy(prefix, f->seed, sizeof f->seed);
    prefix[SEED] = 40;
    for (int64_t walked = 0; SEED + walked < CONTEXT - BLOCK; walked++) {
        const int width = 1 + (int)(walked * 7 % BLOCK);
        prefix[SEED + walked + 1] = 30 + walked * 331 % 3000;
        verify[0] = prefix[SEED + walked];
        for (int i = 1; i < width; i++)
            verify[i] = (walked * 97 + i * 13) % vocab;
        const struct wire_request r = {.prefix_tokens = {true, SEED + (size_t)walked + 2, prefix},
                                       .seed_token_count = {true, SEED},
                                       .start_offset = {true, walked},
                                       .count = {true, 1},
                                       .declared_block_width = {true, BLOCK},
                                       .verify_block_tokens = {true, (size_t)width, verify}};
        ask(f, WIRE_KIND_dflash_reference_rows, r);
        assert_true(session_feed(f->plain, &prefix[SEED + walked], 1, &err));
        assert_int_equal(session_position(f->served), session_position(f->plain));
        assert_memory_equal(session_logits(f->served), session_logits(f->plain),
                            (size_t)vocab * sizeof(float));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digest_has_one_zero_and_one_nan),
        cmocka_unit_test(digests_are_of_the_rows_taps),
        cmocka_unit_test(taking_the_seed_early_changes_no_draft),
        cmocka_unit_test(a_warm_up_leaves_nothing),
        cmocka_unit_test(refusals_poison_once_a_block_session_has_begun),
        cmocka_unit_test(frames_leave_the_whole_row),
    };
    return cmocka_run_group_tests_name("block_verbs", tests, set_up, tear_down);
}
