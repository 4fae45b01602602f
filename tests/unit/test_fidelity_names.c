/* The names of violations, and what is published of a failure on a hidden prompt: walks the enum.
 */
#include "base/json.h"
#include "judge/fidelity.h"
#include "judge/refusals.h"
#include "judge/score.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static void expect_published(const char *failure, const char *wanted)
{
    struct buffer out = {0};
    fidelity_publish(failure, &out);
    if (strcmp(out.data ? out.data : "", wanted) != 0)
        fail_msg("'%s' is published as '%s'", failure, out.data ? out.data : "");
    buffer_free(&out);
}

static void test_published_is_the_kind_in_snake_case(void **state)
{
    (void)state;
    assert_int_equal(FIDELITY_VIOLATION_COUNT, 14);
    for (int v = 0; v < FIDELITY_VIOLATION_COUNT; v++) {
        struct buffer snake = {0};
        buffer_text(&snake, "dflash_");
        for (const char *p = fidelity_violation_name((enum fidelity_violation)v); *p; p++) {
            if (isupper((unsigned char)*p))
                buffer_char(&snake, '_');
            buffer_char(&snake, (char)tolower((unsigned char)*p));
        }
        const char *published = fidelity_violation_published((enum fidelity_violation)v);
        assert_string_equal(published, snake.data);
        const struct refusal *row = refusals_find(published);
        assert_non_null(row);
        assert_string_equal(row->meaning, fidelity_violation_meaning((enum fidelity_violation)v));
        buffer_free(&snake);
    }
    assert_string_equal(fidelity_violation_name(FIDELITY_emptyBlock), "emptyBlock");
    assert_string_equal(fidelity_violation_published(FIDELITY_cacheOffsetDiverged),
                        "dflash_cache_offset_diverged");
}

/* Whatever a violation's text holds, its kind and counts alone come out. */
static void test_violations_are_published_with_counts_only(void **state)
{
    (void)state;
    for (int v = 0; v < FIDELITY_VIOLATION_COUNT; v++) {
        struct error err = {0};
        struct buffer failure = {0}, wanted = {0};
        const char *published = fidelity_violation_published((enum fidelity_violation)v);
        assert_false(
            fidelity_fail((enum fidelity_violation)v, 17, &err, "tokens=%d width=%d", 3, 4));
        assert_string_equal(err.name, published);
        buffer_printf(&failure, "%s: %s", err.name, err.message);
        buffer_printf(&wanted, "%s round=17 tokens=3 width=4", published);
        expect_published(failure.data, wanted.data);
        buffer_clear(&failure);
        buffer_clear(&wanted);
        buffer_printf(&failure,
                      "%s: token 4711 logit=3 secret=12 round=9 id=5 rows=12345 rows=1e3 rows=-1 "
                      "rows= width=2, arrows=7 =3 the prompt says: budget=2100",
                      published);
        buffer_printf(&wanted, "%s round=9 budget=2100", published);
        expect_published(failure.data, wanted.data);
        expect_published(published, published);
        buffer_free(&failure);
        buffer_free(&wanted);
    }
}

static void test_without_further_counts(void **state)
{
    (void)state;
    struct error err = {0};
    assert_false(fidelity_fail(FIDELITY_emptyBlock, 0, &err, "%s", ""));
    assert_string_equal(err.message, "A round gave no token: round=0");
}

static void test_categories_stay_and_lose_their_text(void **state)
{
    (void)state;
    static const char *const all[] = {
#define CATEGORY_NAME(category, meaning) #category,
        FIDELITY_CATEGORIES(CATEGORY_NAME)
#undef CATEGORY_NAME
    };
    assert_int_equal(COUNT_OF(all), 15);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        struct buffer failure = {0};
        expect_published(all[i], all[i]);
        buffer_printf(&failure, "%s: round=3 and token 4711", all[i]);
        expect_published(failure.data, all[i]);
        buffer_free(&failure);
    }
}

static void test_other_failures_become_categories(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"TokenMismatch: prefill: the token at step 0 is not the golden's",
         "prefill_token_mismatch"},
        {"TokenMismatch: decode-seed: the token at step 0 is not the golden's",
         "decode_seed_token_mismatch"},
        {"TokenMismatch: decode: the token at step 17 is not the golden's",
         "decode_token_mismatch"},
        {"TIMED-DIVERGENCE-OVER-TOLERANCE: 7 of 129 tokens are not the reference's",
         "decode_token_mismatch"},
        {"TIMED-DIVERGENCE-NOT-A-NEAR-TIE: 1 of 2 tokens", "decode_token_mismatch"},
        {"performance floor failed: decode_speedup=0.9", "floor_failed"},
        {"acceptance band failed: decode", "acceptance_band_failed"},
        {"seed window failed: in pair 1", "seed_window_failed"},
        {"decode barrier failed: in pair 1", "decode_barrier_failed"},
        {"computed score was not finite", "invalid_score"},
        {"incomplete: the run ended before it passed", "no_score"},
        {"teacher-forced token mismatch: case x", "correctness_failed"},
        {"anchor token mismatch: a", "correctness_failed"},
        {"SEMANTIC-JUDGE-TIMEOUT: x", "semantic_gpqa_infra_failed"},
        {"semantic answers below the threshold", "semantic_gpqa_failed"},
        {"Engine: the hidden prompt is 17 4711 round=3", "runtime_error"},
        {"dflash_empty_bloc: round=3", "runtime_error"},
        {"dflash_empty_blocks: round=3", "runtime_error"},
        {"ReferenceInvalid: round=3", "runtime_error"},
        {"", "runtime_error"},
        {":", "runtime_error"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        expect_published(rows[i][0], rows[i][1]);
}

static void test_hidden_failure_of_a_score(void **state)
{
    (void)state;
    struct score_document d;
    struct buffer out = {0};
    struct error err = {0};
    score_document_init(&d, "test");
    score_fail_hidden(&d, "dflash_token_not_admissible", "round=4 row=1 token 4711");
    assert_true(score_render(&d, &out, &err));
    assert_non_null(strstr(out.data, "\"error\": \"dflash_token_not_admissible round=4 row=1\""));
    assert_null(strstr(out.data, "4711"));
    score_document_free(&d);
    score_document_init(&d, "test");
    score_fail_hidden(&d, "Engine", NULL);
    assert_true(score_render(&d, &out, &err));
    assert_non_null(strstr(out.data, "\"error\": \"runtime_error\""));
    score_document_free(&d);
    buffer_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_is_the_kind_in_snake_case),
        cmocka_unit_test(test_violations_are_published_with_counts_only),
        cmocka_unit_test(test_without_further_counts),
        cmocka_unit_test(test_categories_stay_and_lose_their_text),
        cmocka_unit_test(test_other_failures_become_categories),
        cmocka_unit_test(test_hidden_failure_of_a_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
