/* The oracle of a timed window, the run budget, the screen of prompts. */
#include "judge/client.h"
#include "judge/measure.h"
#include "judge/record.h"
#include "judge/screen.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct error err;

static void oracle(void **state)
{
    (void)state;
    int64_t prompt[] = {1, 2}, other[] = {1, 3}, decode[] = {10, 11, 12};
    int64_t expected[] = {9, 10, 11, 12, 13};
    struct golden_case cases[] = {{"other", {other, 2}, {expected, 5}},
                                  {"same", {prompt, 2}, {expected, 5}}};
    struct golden g = {.path = "g",
                       .cases = cases,
                       .case_count = 2,
                       .benchmark = {.present = true,
                                     .prefill_prompt = {other, 2},
                                     .decode_seed = {prompt, 2},
                                     .expected_prefill_token = 4,
                                     .expected_decode_seed_token = 9,
                                     .expected_decode = {decode, 3}}};
    struct measure_oracle o;
    assert_true(measure_find_oracle(&g, 3, &o, &err));
    assert_ptr_equal(o.decode_tokens, decode);
    assert_int_equal(o.prefill_token, 4);
    assert_int_equal(o.seed_token, 9);
    assert_true(measure_find_oracle(&g, 4, &o, &err)); /* the case with the seed's prompt */
    assert_ptr_equal(o.decode_tokens, expected + 1);
    assert_false(measure_find_oracle(&g, 5, &o, &err));
    assert_string_equal(err.name, "GOLDEN-INVALID");
    g.benchmark.expected_decode_seed_token = 8; /* a case that contradicts the oracle is none */
    assert_false(measure_find_oracle(&g, 4, &o, &err));
    g.benchmark.present = false;
    assert_false(measure_find_oracle(&g, 1, &o, &err));
}

/* `cat` says no hello; what matters here is that the client is handed out for its budget. */
static void run_budget(void **state)
{
    (void)state;
    struct client *c = NULL;
    const struct client_options o = {.engine = "/bin/true", .weights = ".", .hello_seconds = 20};
    assert_false(client_start(&o, &c, &err));
    assert_string_equal(err.name, "EngineExited");
    assert_non_null(c);
    assert_true(client_arm_run_deadline(c, 128, CLIENT_RUN_FALLBACK_CEILING, &err));
    const struct {
        uint64_t count;
        double ceiling;
    } bad[] = {{0, 0.1}, {1, 0}, {1, -1}, {1, NAN}, {1, INFINITY}, {UINT64_MAX, 1e300}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(client_arm_run_deadline(c, bad[i].count, bad[i].ceiling, &err));
        assert_string_equal(err.name, "RunTimeoutBudgetInvalid");
    }
    struct wire_request q = client_request(WIRE_KIND_phase_diagnostics);
    assert_false(client_call(c, &q, 0, NULL, NULL, &err));
    assert_string_equal(err.name, "SessionDiscarded");
    assert_string_equal(client_stderr_tail(c), "no worker stderr was emitted");
    client_free(c);
}

static void deadlines_from_environment(void **state)
{
    (void)state;
    struct client_options o = {0};
    setenv("MLXFAST_REPLY_TIMEOUT_S", "1.5", 1);
    assert_true(client_deadlines_from_environment(&o, &err));
    assert_true(o.reply_seconds == 1.5 && o.hello_seconds == 0);
    const char *const bad[] = {"0", "-1", "soon", "", "1x", "nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("MLXFAST_REPLY_TIMEOUT_S", bad[i], 1);
        assert_false(client_deadlines_from_environment(&o, &err));
        assert_string_equal(err.field, "MLXFAST_REPLY_TIMEOUT_S");
    }
    unsetenv("MLXFAST_REPLY_TIMEOUT_S");
}

static void ngram_by_hand(void **state)
{
    (void)state;
    const int64_t prompt[] = {1, 2, 3, 1, 2, 4, 1, 2}, next[] = {4, 9, 1, 5};
    struct screen_ngram s;
    screen_ngram(prompt, 8, next, 4, &s);
    /* 4: after "1 2" most recently came 4: orders 1 and 2 hit; "4 1 2" is new.
     * 9: after "4" came 1, after "2 4" came 1, after "1 2 4" came 1: no hit.
     * 1: "9" is new. 5: after "1" came 2: no hit. */
    assert_int_equal(s.orders[0].recurrent, 3);
    assert_int_equal(s.orders[0].most_recent_hits, 1);
    assert_int_equal(s.orders[1].recurrent, 2);
    assert_int_equal(s.orders[1].most_recent_hits, 1);
    assert_int_equal(s.orders[2].recurrent, 1);
    assert_int_equal(s.orders[2].most_recent_hits, 0);
    assert_int_equal(s.longest_opportunities, 3);
    assert_int_equal(s.longest_hits, 1);
    assert_int_equal(s.optimistic_hits, 1);
}

static void distinct(void **state)
{
    (void)state;
    const int64_t tokens[] = {1, 2, 1, 3, 1};
    assert_true(screen_distinct_fraction(tokens, 5) == 0.6);
    assert_true(screen_distinct_fraction(tokens, 0) == 0);
}

static void prompt_files(void **state)
{
    (void)state;
    const struct {
        const char *text;
        int count; /* 0: refused */
    } files[] = {{"[1, 2,3]\n", 3},
                 {"1 2\n3,4", 4},
                 {"[\n  7\n]", 1},
                 {"0", 1},
                 {"", 0},
                 {"[]", 0},
                 {"[1", 0},
                 {"1]", 0},
                 {"1.5", 0},
                 {"-1", 0},
                 {"100", 0},
                 {"x", 0},
                 {"[1 [2]]", 0},
                 {"  \n", 0},
                 {"99", 1},
                 {"[", 0},
                 {"99999999999999999999999999999999999999", 0}};
    char path[] = "/tmp/mlxfast-prompt-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *f = fopen(path, "w");
        fputs(files[i].text, f);
        fclose(f);
        int64_t *items;
        size_t count;
        const bool ok = record_read_tokens(path, 100, &items, &count, &err);
        if (ok != (files[i].count > 0) || count != (size_t)files[i].count)
            fail_msg("\"%s\": %d, %zu tokens", files[i].text, ok, count);
        if (!ok)
            assert_string_equal(err.name, "RECORD-PROMPT-INVALID");
        free(items);
    }
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oracle),        cmocka_unit_test(run_budget),
        cmocka_unit_test(ngram_by_hand), cmocka_unit_test(deadlines_from_environment),
        cmocka_unit_test(distinct),      cmocka_unit_test(prompt_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
