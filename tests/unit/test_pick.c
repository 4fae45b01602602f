/* pick.h: ties to the lowest id, NaN never wins (cases.md A-SM1, A-SM2). */
#include "compute_random.h"
#include "engine/decode/pick.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void ties_go_to_the_lowest_id(void **state) /* A-SM1 */
{
    (void)state;
    const float logits[] = {0, 1, 1};
    assert_int_equal(pick_argmax(logits, 3), 1);
    struct top_logit top[3];
    assert_int_equal(pick_top_k(logits, 3, 3, top), 3);
    assert_int_equal(top[0].token, 1);
    assert_int_equal(top[1].token, 2);
    assert_int_equal(top[2].token, 0);
    assert_true(top[0].logit == 1.0f && top[2].logit == 0.0f);
    assert_int_equal(pick_top_k(logits, 3, 1, top), 1);
    assert_int_equal(top[0].token, 1);

    float flat[100];
    for (int n = 1; n <= 100; n++) {
        for (int i = 0; i < n; i++)
            flat[i] = -3.5f;
        assert_int_equal(pick_argmax(flat, n), 0);
        flat[n - 1] = -3.0f;
        assert_int_equal(pick_argmax(flat, n), n - 1);
        if (n > 1) {
            flat[n / 2] = -3.0f;
            assert_int_equal(pick_argmax(flat, n), n / 2);
        }
    }
    const float zeros[] = {-0.0f, 0.0f, 0.0f};
    assert_int_equal(pick_argmax(zeros, 3), 0);
    assert_int_equal(pick_top_k(zeros, 3, 2, top), 2);
    assert_int_equal(top[0].token, 0);
    assert_int_equal(top[1].token, 1);
}

static void nan_never_wins(void **state) /* A-SM2 */
{
    (void)state;
    struct top_logit top[20];
    for (int n = 1; n <= 20; n++) {
        float all[20];
        for (int i = 0; i < n; i++)
            all[i] = i % 2 == 0 ? NAN : -NAN;
        assert_int_equal(pick_argmax(all, n), -1);
        assert_int_equal(pick_top_k(all, n, n, top), 0);
        for (int at = 0; at < n; at++) {
            float one[20];
            memcpy(one, all, sizeof one);
            one[at] = -INFINITY;
            assert_int_equal(pick_argmax(one, n), at);
            assert_int_equal(pick_top_k(one, n, n, top), 1);
            assert_int_equal(top[0].token, at);
            one[at] = -1e30f;
            assert_int_equal(pick_argmax(one, n), at);
        }
    }
    const float mixed[] = {NAN, 2, NAN, INFINITY, 3, INFINITY, NAN};
    assert_int_equal(pick_argmax(mixed, 7), 3);
    assert_int_equal(pick_top_k(mixed, 7, 7, top), 4);
    const int order[] = {3, 5, 4, 1};
    for (int i = 0; i < 4; i++)
        assert_int_equal(top[i].token, order[i]);
    const float low[] = {NAN, -INFINITY, -INFINITY};
    assert_int_equal(pick_argmax(low, 3), 1);
    assert_int_equal(pick_top_k(low, 3, 0, top), 0);
}

/* Selection by repeated search, the plainest way. */
static int reference_top_k(const float *logits, int vocab, int k, int *out)
{
    int found = 0;
    for (; found < k; found++) {
        int best = -1;
        for (int i = 0; i < vocab; i++) {
            bool taken = isnan(logits[i]);
            for (int j = 0; j < found; j++)
                taken = taken || out[j] == i;
            if (!taken && (best < 0 || logits[i] > logits[best]))
                best = i;
        }
        if (best < 0)
            break;
        out[found] = best;
    }
    return found;
}

static void equals_plain_search(void **state)
{
    (void)state;
    struct random r = {1};
    for (int round = 0; round < 2000; round++) {
        float logits[90];
        const int vocab = random_int(&r, 1, 90), k = random_int(&r, 1, 20);
        for (int i = 0; i < vocab; i++) {
            const int kind = random_int(&r, 0, 20);
            logits[i] = kind == 0   ? NAN
                        : kind == 1 ? INFINITY
                        : kind == 2 ? -INFINITY
                                    : (float)random_int(&r, -8, 8) * 0.125f;
        }
        int expected[20];
        struct top_logit top[20];
        const int found = reference_top_k(logits, vocab, k, expected);
        assert_int_equal(pick_top_k(logits, vocab, k, top), found);
        for (int i = 0; i < found; i++) {
            assert_int_equal(top[i].token, expected[i]);
            assert_true(same_float(top[i].logit, logits[expected[i]]));
        }
        assert_int_equal(pick_argmax(logits, vocab), found > 0 ? expected[0] : -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ties_go_to_the_lowest_id),
        cmocka_unit_test(nan_never_wins),
        cmocka_unit_test(equals_plain_search),
    };
    return cmocka_run_group_tests_name("pick", tests, NULL, NULL);
}
