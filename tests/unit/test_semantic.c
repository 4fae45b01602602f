/* The judge of meanings: what it is told, what a verdict is, and how a command can fail. Commands
 * are small shell scripts; the limits that must expire are short, the others far away. */
#include "judge/semantic.h"

#include "base/child.h"
#include "judge/contract.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct error err;
static int64_t accepted_tokens[] = {1}, answer[] = {5, 6, 7};
static struct golden_tokens accepted = {accepted_tokens, 1};
static const struct golden_behavior question = {.name = "gpqa-1",
                                                .accepted = &accepted,
                                                .accepted_count = 1,
                                                .max_new_tokens = 3,
                                                .semantic_prompt = "Which \"one\"?",
                                                .semantic_answer_key = "B",
                                                .semantic_domain = "physics"};

#define assert_refused(name_, call)                                                                \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        assert_false(call);                                                                        \
        assert_string_equal(err.name, name_);                                                      \
    } while (0)

static bool ask(const char *command, const char *detokenize, double seconds,
                struct semantic_verdict *v)
{
    const struct semantic_judge j = {command, detokenize, seconds};
    memset(&err, 0, sizeof err);
    return semantic_judge_ask(&j, &question, answer, 3, v, &err);
}

/* The judge command passes exactly this question. */
static void assert_question(const char *detokenize, const char *line)
{
    char command[1024];
    struct semantic_verdict v = {0};
    snprintf(command, sizeof command,
             "read -r q; test -z \"$(cat)\" && test \"$q\" = '%s' && "
             "echo '{\"pass\":true,\"model\":\"m\"}'",
             line);
    if (!ask(command, detokenize, 60, &v))
        fail_msg("%s: %s", err.name, err.message);
    assert_true(v.pass);
}

static void the_question(void **state)
{
    (void)state;
    assert_question(NULL, "{\"case\":\"gpqa-1\",\"semantic_prompt\":\"Which \\\"one\\\"?\","
                          "\"answer_key\":\"B\",\"reference_answer\":null,\"domain\":\"physics\","
                          "\"subdomain\":null,\"answer_tokens\":[5,6,7]}");
    assert_question("read -r q; test \"$q\" = '{\"tokens\":[5,6,7]}' && printf 'it is\\nB'",
                    "{\"case\":\"gpqa-1\",\"semantic_prompt\":\"Which \\\"one\\\"?\","
                    "\"answer_key\":\"B\",\"reference_answer\":null,\"domain\":\"physics\","
                    "\"subdomain\":null,\"answer_tokens\":[5,6,7],\"text\":\"it is\\nB\"}");
    assert_question("cat > /dev/null",
                    "{\"case\":\"gpqa-1\",\"semantic_prompt\":\"Which \\\"one\\\"?\","
                    "\"answer_key\":\"B\",\"reference_answer\":null,\"domain\":\"physics\","
                    "\"subdomain\":null,\"answer_tokens\":[5,6,7],\"text\":\"\"}");
}

static void an_unread_question(void **state)
{
    (void)state;
    struct semantic_verdict v = {0};
    assert_true(ask("exec 0<&-; printf '{\"pass\":false,\"model\":\"m\"}'", NULL, 60, &v));
    assert_false(v.pass);
}

static bool parse(const char *text, struct semantic_verdict *v)
{
    memset(&err, 0, sizeof err);
    const bool ok = semantic_verdict_parse(text, strlen(text), v, &err);
    if (!ok)
        assert_string_equal(err.name, "SEMANTIC-JUDGE-INVALID");
    return ok;
}

static void verdicts(void **state)
{
    (void)state;
    struct semantic_verdict v = {0};
    assert_true(parse("{\"pass\": true, \"model\": \"vendor/model-4:2026-01\"}\n", &v));
    assert_true(v.pass);
    assert_string_equal(v.model, "vendor/model-4:2026-01");
    assert_true(parse("\n{\n \"model\":\"m\",\n \"reason\":\"no B\",\n \"pass\":false}\n", &v));
    assert_false(v.pass);
    static const char *const bad[] = {
        "",
        "yes",
        "[true]",
        "null",
        "{\"pass\":true}",
        "{\"model\":\"m\"}",
        "{\"pass\":1,\"model\":\"m\"}",
        "{\"pass\":\"true\",\"model\":\"m\"}",
        "{\"pass\":null,\"model\":\"m\"}",
        "{\"pass\":true,\"model\":7}",
        "{\"pass\":true,\"model\":\"\"}",
        "{\"pass\":true,\"model\":\"the answer is B\"}",
        "{\"pass\":true,\"model\":\"m\\u00e9\"}",
        "{\"pass\":true,\"model\":\"m\",\"reason\":7}",
        "{\"pass\":true,\"model\":\"m\",\"score\":1}",
        "{\"pass\":true,\"pass\":false,\"model\":\"m\"}",
        "{\"pass\":true,\"model\":\"m\"} {\"pass\":true,\"model\":\"m\"}",
        "{\"pass\":true,\"model\":\"m\"",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (parse(bad[i], &v))
            fail_msg("accepted: %s", bad[i]);
    char text[200], name[SEMANTIC_MODEL_LIMIT + 2];
    memset(name, 'm', sizeof name);
    name[SEMANTIC_MODEL_LIMIT] = '\0';
    snprintf(text, sizeof text, "{\"pass\":true,\"model\":\"%s\"}", name);
    assert_true(parse(text, &v)); /* the longest */
    name[SEMANTIC_MODEL_LIMIT] = 'm';
    name[SEMANTIC_MODEL_LIMIT + 1] = '\0';
    snprintf(text, sizeof text, "{\"pass\":true,\"model\":\"%s\"}", name);
    assert_false(parse(text, &v));
}

#define VERDICT "echo '{\"pass\":true,\"model\":\"m\"}'"

static void faults(void **state)
{
    (void)state;
    struct semantic_verdict v;
    assert_refused("SEMANTIC-JUDGE-FAILED", ask("/no/such/judge", NULL, 60, &v));
    assert_string_equal(err.field, "gpqa-1");
    assert_refused("SEMANTIC-JUDGE-FAILED", ask(VERDICT "; exit 3", NULL, 60, &v));
    assert_refused("SEMANTIC-JUDGE-FAILED", ask("kill -9 $$", NULL, 60, &v));
    assert_refused("SEMANTIC-JUDGE-FAILED", ask("yes", NULL, 60, &v)); /* more than its limit */
    assert_refused("SEMANTIC-JUDGE-TIMEOUT", ask("sleep 1000", NULL, 0.05, &v));
    assert_refused("SEMANTIC-JUDGE-TIMEOUT", ask(VERDICT "; sleep 1000", NULL, 0.05, &v));
    assert_refused("SEMANTIC-JUDGE-INVALID", ask("true", NULL, 60, &v));
    assert_refused("SEMANTIC-JUDGE-INVALID", ask("echo yes", NULL, 60, &v));
    assert_string_equal(err.field, "gpqa-1");
    assert_refused("SEMANTIC-DETOKENIZE-FAILED", ask(VERDICT, "exit 1", 60, &v));
    assert_refused("SEMANTIC-DETOKENIZE-FAILED", ask(VERDICT, "sleep 1000", 0.05, &v));
    assert_refused("SEMANTIC-DETOKENIZE-FAILED", ask(VERDICT, "printf '\\377'", 60, &v));
    assert_refused("SEMANTIC-DETOKENIZE-FAILED", ask(VERDICT, "printf 'a\\000b'", 60, &v));
    assert_refused("SEMANTIC-DETOKENIZE-FAILED", ask(VERDICT, "yes", 60, &v));
}

static void nothing_is_told_of_a_question(void **state)
{
    (void)state;
    struct semantic_verdict v;
    static const char *const commands[] = {"cat >&2; exit 1", "cat; exit 1", "cat",
                                           "echo '{\"pass\":true,\"model\":\"secret B\"}'"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        assert_false(ask(commands[i], NULL, 60, &v));
        char line[2200];
        error_line(&err, line, sizeof line);
        assert_null(strstr(line, "Which"));
        assert_null(strstr(line, "secret"));
        assert_null(strstr(line, "answer_tokens"));
    }
}

static void an_interrupt_ends_it(void **state)
{
    (void)state;
    struct semantic_verdict v;
    interrupt_install();
    char command[64];
    snprintf(command, sizeof command, "kill -INT %d; sleep 1000", (int)getpid());
    assert_refused("Interrupted", ask(command, NULL, 60, &v));
    interrupt_reset();
}

static void from_the_environment(void **state)
{
    (void)state;
    struct semantic_judge j;
    unsetenv("MLXFAST_SEMANTIC_JUDGE_CMD");
    unsetenv("MLXFAST_DETOKENIZE_CMD");
    unsetenv("MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S");
    assert_true(semantic_judge_from_environment(&j, &err));
    assert_true(j.command == NULL && j.detokenize == NULL && j.timeout_seconds == 120);
    setenv("MLXFAST_SEMANTIC_JUDGE_CMD", "", 1);
    assert_true(semantic_judge_from_environment(&j, &err));
    assert_null(j.command);
    setenv("MLXFAST_SEMANTIC_JUDGE_CMD", "a judge", 1);
    setenv("MLXFAST_DETOKENIZE_CMD", "words", 1);
    setenv("MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S", "0.5", 1);
    assert_true(semantic_judge_from_environment(&j, &err));
    assert_string_equal(j.command, "a judge");
    assert_string_equal(j.detokenize, "words");
    assert_true(j.timeout_seconds == 0.5);
    static const char *const bad[] = {"0", "-1", "soon", "", "inf", "nan", "86401"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S", bad[i], 1);
        assert_refused("USAGE", semantic_judge_from_environment(&j, &err));
        assert_string_equal(err.field, "MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S");
    }
}

static void readiness(void **state)
{
    (void)state;
    struct golden_behavior cases[] = {question, question, {.name = "says"}};
    struct golden g = {.path = "g.json", .behaviors = cases, .behavior_count = 3};
    const struct semantic_judge none = {NULL, NULL, 1}, some = {"true", NULL, 1};
    cases[2].semantic_answer_key = "B"; /* without a prompt: compared token by token */
    assert_int_equal(semantic_case_count(&g), 2);
    assert_refused("SEMANTIC-JUDGE-MISSING", semantic_check_ready(NULL, &g, 0, &err));
    assert_refused("SEMANTIC-JUDGE-MISSING", semantic_check_ready(&none, &g, 0, &err));
    assert_true(semantic_check_ready(&some, &g, 0, &err));
    assert_true(semantic_check_ready(&some, &g, 2, &err));
    assert_refused("SEMANTIC-CASES-TOO-FEW", semantic_check_ready(&some, &g, 3, &err));
    g.behaviors = cases + 2;
    g.behavior_count = 1;
    assert_true(semantic_check_ready(NULL, &g, 7, &err)); /* a public golden has none of them */
}

static void the_contracts_threshold(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        int64_t needed; /* -1: refused */
    } rows[] = {{"1", 1},     {"7", 7},    {"2147483647", 2147483647}, {"0", -1},
                {"-1", -1},   {"7.0", -1}, {"2147483648", -1},         {"\"7\"", -1},
                {"true", -1}, {"null", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[128];
        struct contract *c = NULL;
        snprintf(text, sizeof text, "{\"track_id\":\"t-cuda-v1\",\"semantic_min_pass\":%s}",
                 rows[i].value);
        memset(&err, 0, sizeof err);
        const bool ok = contract_parse("c.json", text, strlen(text), NULL, &c, &err);
        if (ok != (rows[i].needed >= 0))
            fail_msg("%s: %s", rows[i].value, err.message);
        if (ok) {
            assert_int_equal(c->semantic_min_pass, rows[i].needed);
            contract_free(c);
        } else {
            assert_string_equal(err.name, "CONTRACT-INVALID");
            assert_string_equal(err.field, "semantic_min_pass");
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_question),
        cmocka_unit_test(an_unread_question),
        cmocka_unit_test(verdicts),
        cmocka_unit_test(faults),
        cmocka_unit_test(nothing_is_told_of_a_question),
        cmocka_unit_test(an_interrupt_ends_it),
        cmocka_unit_test(from_the_environment),
        cmocka_unit_test(readiness),
        cmocka_unit_test(the_contracts_threshold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
