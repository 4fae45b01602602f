/* What a worker is given and what is kept of its stderr. */
#include "judge/launch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void argument_vector(void **state)
{
    (void)state;
    struct arena a = {0};
    const char *const resources[] = {"x=1", "y=2", NULL};
    const char *const wanted[] = {
        "./e", "runtime-worker",         "--weights", "w", "--resource", "x=1", "--resource",
        "y=2", "--speculative-protocol", "v1.1",      NULL};
    struct launch_options o = {
        .engine = "./e", .weights = "w", .resources = resources, .speculative_v1_1 = true};
    const char *const *argv = launch_argv(&a, &o);
    for (size_t i = 0; wanted[i] != NULL; i++)
        assert_string_equal(argv[i], wanted[i]);
    assert_null(argv[10]);
    o = (struct launch_options){.engine = "./e", .weights = "w"};
    argv = launch_argv(&a, &o);
    assert_string_equal(argv[3], "w");
    assert_null(argv[4]);
    arena_free(&a);
}

static void argument_vector_of_block_workers(void **state)
{
    (void)state;
    struct arena a = {0};
    const char *const resources[] = {"x=1", NULL};
    const char *const candidate[] = {"./e", "runtime-worker", "--weights", "w", "--drafter", "d",
                                     NULL};
    const char *const reference[] = {"./e", "runtime-worker", "--weights",  "w",   "--drafter",
                                     "d",   "--trusted",      "--resource", "x=1", NULL};
    struct launch_options o = {.engine = "./e", .weights = "w", .drafter = "d"};
    const char *const *argv = launch_argv(&a, &o);
    for (size_t i = 0; candidate[i] != NULL; i++)
        assert_string_equal(argv[i], candidate[i]);
    assert_null(argv[6]);
    o.trusted = true;
    o.resources = resources;
    argv = launch_argv(&a, &o);
    for (size_t i = 0; reference[i] != NULL; i++)
        assert_string_equal(argv[i], reference[i]);
    assert_null(argv[9]);
    arena_free(&a);
}

static bool holds(const char *const *env, const char *entry)
{
    for (size_t i = 0; env[i] != NULL; i++)
        if (strcmp(env[i], entry) == 0)
            return true;
    return false;
}

static void environment(void **state)
{
    (void)state;
    struct arena a = {0};
    char *const parent[] = {"PATH=/bin",
                            "HOME=/h",
                            "HOMELESS=1",
                            "MLX_A=1",
                            "MLXFAST_SECRET=1",
                            "MLXFAST_USE_RUNTIME_WORKER=1",
                            "BENCH_GOLDEN_PATH=g",
                            "BENCH_WORKER_YARN_MAGNITUDE=derived",
                            "LC_ALL=C",
                            "LD_PRELOAD=x",
                            "AWS_SECRET=1",
                            "noequals",
                            "=x",
                            NULL};
    const char *const *env = launch_environment(&a, parent, NULL);
    assert_true(holds(env, "PATH=/bin"));
    assert_true(holds(env, "HOME=/h"));
    assert_true(holds(env, "MLX_A=1"));
    assert_true(holds(env, "LC_ALL=C"));
    assert_true(holds(env, "BENCH_WORKER_YARN_MAGNITUDE=derived"));
    assert_true(holds(env, "MLXFAST_USE_RUNTIME_WORKER=0"));
    size_t count = 0;
    while (env[count] != NULL)
        count++;
    assert_int_equal(count, 7);
    assert_true(holds(env, "BENCH_WORKER_ARITHMETIC_HELLO=1"));
    assert_ptr_equal(launch_environment_arithmetic(&a, env, NULL), env);
    assert_ptr_equal(launch_environment_arithmetic(&a, env, "any"), env);
    const char *const fast[] = {"BENCH_WORKER_ARITHMETIC=fast", NULL};
    env = launch_environment_arithmetic(&a, fast, "strict");
    assert_true(holds(env, "BENCH_WORKER_ARITHMETIC=strict") && env[1] == NULL);
    env = launch_environment(&a, parent, "attention_factor");
    assert_true(holds(env, "BENCH_WORKER_YARN_MAGNITUDE=attention_factor"));
    assert_false(holds(env, "BENCH_WORKER_YARN_MAGNITUDE=derived"));
    arena_free(&a);
}

static void resources(void **state)
{
    (void)state;
    size_t n;
    assert_true(launch_resource_valid("a.B_1-x=/p", &n));
    assert_int_equal(n, 7);
    assert_false(launch_resource_valid("=p", &n));
    assert_false(launch_resource_valid("a=", &n));
    assert_false(launch_resource_valid("a", &n));
    assert_false(launch_resource_valid("a b=c", &n));
    assert_false(launch_resource_valid("", &n));
}

static void redaction(void **state)
{
    (void)state;
    struct buffer b = {0};
    const char *secret = "Token mismatch: EXPECTED 7";
    launch_redact(secret, strlen(secret), &b);
    assert_string_equal(b.data, "token-validation-failed");
    buffer_clear(&b);
    launch_redact("a\xc2\x9b"
                  "2Jb\xc3\xa9",
                  8, &b); /* U+009B is a control too, U+00E9 is not */
    assert_string_equal(b.data, "a\\xc2\\x9b2Jb\xc3\xa9");
    buffer_clear(&b);
    launch_redact("the aCtUaL one", 14, &b);
    assert_string_equal(b.data, "token-validation-failed");
    buffer_clear(&b);
    launch_redact("loaded\x1b[2J", 10, &b); /* no control bytes reach a terminal */
    assert_string_equal(b.data, "loaded\\x1b[2J");
    buffer_free(&b);
}

static void tail(void **state)
{
    (void)state;
    struct launch_log *log = launch_log_new(false);
    assert_string_equal(launch_log_tail(log), "no worker stderr was emitted");
    launch_log_line(log, "a", 1);
    launch_log_line(log, "b", 1);
    assert_string_equal(launch_log_tail(log), "worker stderr tail: a | b");
    char line[4000];
    memset(line, 'x', sizeof line);
    for (int i = 0; i < 40; i++)
        launch_log_line(log, line, sizeof line);
    const char *text = launch_log_tail(log);
    /* 32 lines of 2048 bytes fill 65536 exactly; the two short ones and 8 long ones are gone. */
    assert_non_null(strstr(text, "[10 older worker stderr line(s) dropped] worker stderr tail: "));
    assert_true(strlen(text) < LAUNCH_TAIL_LIMIT + 32 * 3 + 100);
    launch_log_free(log);
    log = launch_log_new(false);
    for (int i = 0; i < LAUNCH_TAIL_LINES + 5; i++)
        launch_log_line(log, "", 0); /* empty lines cost memory too */
    assert_non_null(strstr(launch_log_tail(log), "[5 older worker stderr line(s) dropped] "));
    launch_log_free(log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argument_vector), cmocka_unit_test(argument_vector_of_block_workers),
        cmocka_unit_test(environment),     cmocka_unit_test(resources),
        cmocka_unit_test(redaction),       cmocka_unit_test(tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
