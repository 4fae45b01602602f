/* The conformance kit from inside: its table, its observations, one engine process from hello to
 * end, and what is said when there is none. Run from the root of the repository. */
#include "judge/conformance_kit.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const struct kit_check *checks;
    const size_t *count;
} groups[] = {{kit_verb_checks, &kit_verb_count},
              {kit_free_run_checks, &kit_free_run_count},
              {kit_fault_checks, &kit_fault_count},
              {kit_end_checks, &kit_end_count}};

static void table_is_sound(void **state)
{
    (void)state;
    const char *names[256];
    size_t n = 0;
    for (size_t g = 0; g < 4; g++)
        for (size_t i = 0; i < *groups[g].count; i++) {
            const struct kit_check *c = &groups[g].checks[i];
            assert_non_null(c->run);
            assert_true(c->section[0] != '\0');
            assert_int_equal(c->rule[strlen(c->rule) - 1], '.');
            assert_null(strchr(c->rule, '|')); /* it stands in a table */
            for (size_t j = 0; j < n; j++)
                assert_string_not_equal(names[j], c->name);
            assert_true(n < 256);
            names[n++] = c->name;
        }
    assert_true(n > 60);
}

static void observations_keep_the_first(void **state)
{
    (void)state;
    struct observation o = {0};
    kit_observe(&o, "number %d", 1);
    kit_observe(&o, "number %d", 2);
    assert_string_equal(o.first, "number 1");
    assert_int_equal(o.count, 2);
}

static int64_t tokens[KIT_SHORT];

static struct kit make_kit(const char *engine)
{
    for (size_t i = 0; i < KIT_SHORT; i++)
        tokens[i] = (int64_t)i;
    struct kit k = {.engine = engine,
                    .weights = "examples/python-engine/weights",
                    .hello_seconds = 60,
                    .reply_seconds = 60,
                    .barrier_seconds = 60,
                    .vocab = 509};
    k.seed = k.other = k.brief = client_tokens(tokens, KIT_SHORT);
    k.forced = client_tokens(tokens, KIT_STEPS);
    return k;
}

static void free_kit(struct kit *k)
{
    for (int m = 0; m < KIT_MODES; m++)
        kit_stop(k->peers[m]);
    buffer_free(&k->line);
    arena_free(&k->arena);
}

static void one_process(void **state)
{
    (void)state;
    struct kit k = make_kit("examples/python-engine/engine.py");
    struct error err = {0};
    struct verdict v = {0};
    const struct wire_response *r;
    struct peer *p = kit_start(&k, KIT_V11, &err);
    if (p == NULL)
        fail_msg("%s: %s", err.name, err.message);
    assert_true(kit_has_capability(p, "free_run_decode"));
    assert_false(kit_has_capability(p, "cohort_reference_replay"));
    struct wire_request q = kit_prompt(WIRE_KIND_decode_begin, &k.brief);
    assert_true(kit_ask(&k, p, &q, &r, &v));
    /* (31 * 31 + 32 * 17 + 7) mod 509 */
    assert_int_equal(r->seed_token.value, 1512 % 509);
    assert_true(kit_barrier(&k, p, 1, NULL, &v));
    assert_false(kit_barrier(&k, p, 1, NULL, &v));
    assert_int_equal(v.is, KIT_FAIL);
    assert_non_null(strstr(v.detail, "completed_work is 0"));
    v = (struct verdict){0};
    assert_true(kit_refused(&k, p, "words", "words", 5, WIRE_ERROR_ID, 0, &v));
    assert_false(kit_refused(&k, p, "words", "words", 5, 7, 7, &v));
    q = kit_token(WIRE_KIND_decode_step, 1);
    v = (struct verdict){0};
    assert_false(kit_ask(&k, p, &q, &r, &v)); /* refused: there is no begin */
    assert_non_null(strstr(v.detail, "an honest decode_step was refused"));
    int left = -1;
    char status[64];
    assert_true(kit_end_input(p, &left, status, sizeof status));
    assert_int_equal(left, 0);
    assert_string_equal(status, "exit status 0");
    kit_stop(p);
    assert_int_equal(k.nonce.count + k.id.count + k.unasked.count + k.chatter.count, 0);
    free_kit(&k);
}

static void shared_process_is_replaced(void **state)
{
    (void)state;
    struct kit k = make_kit("examples/python-engine/engine.py");
    struct verdict v = {0};
    struct peer *p = kit_peer(&k, KIT_V11, &v);
    assert_non_null(p);
    assert_ptr_equal(kit_peer(&k, KIT_V11, &v), p);
    const pid_t before = child_pid(p->child);
    kill(before, SIGKILL);
    p = kit_peer(&k, KIT_V11, &v);
    assert_non_null(p);
    assert_int_not_equal(child_pid(p->child), before);
    assert_int_equal(v.is, KIT_PASS);
    free_kit(&k);
}

static void no_hello_is_skipped(void **state)
{
    (void)state;
    struct kit k = make_kit("/bin/false");
    struct verdict v = {0};
    struct error err = {0};
    assert_null(kit_start(&k, KIT_V1, &err));
    assert_string_equal(err.name, "EngineExited");
    assert_null(kit_peer(&k, KIT_V11, &v));
    assert_int_equal(v.is, KIT_SKIPPED);
    assert_string_equal(k.start_error[KIT_V11].name, "EngineExited");
    assert_false(kit_learn_brief(&k, &v));
    assert_int_equal(v.is, KIT_SKIPPED);
    free_kit(&k);
    struct kit none = make_kit("/nowhere/engine");
    assert_null(kit_start(&none, KIT_V1, &err));
    assert_string_equal(err.name, "SPAWN-FAILED");
    free_kit(&none);
}

static void silence_has_a_deadline(void **state)
{
    (void)state;
    struct kit k = make_kit("tests/engines/unruly_engine.py");
    const char *const resources[] = {"fault=never_says_hello", NULL};
    struct error err = {0};
    k.resources = resources;
    k.hello_seconds = 0.2;
    assert_null(kit_start(&k, KIT_V1, &err));
    assert_string_equal(err.name, "HelloTimeout");
    free_kit(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_sound),      cmocka_unit_test(observations_keep_the_first),
        cmocka_unit_test(one_process),         cmocka_unit_test(shared_process_is_replaced),
        cmocka_unit_test(no_hello_is_skipped), cmocka_unit_test(silence_has_a_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
