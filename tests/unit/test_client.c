/* The client against the scripted engine (tests/engines/scripted_engine.py): counting, capability
 * refusals of verbs that no program asks for yet, what a failure leaves behind. Run from the root
 * of the repository, as `make unit` does. */
#include "base/clock.h"
#include "judge/client.h"

#include <fcntl.h>
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
static char script_path[] = "/tmp/mlxfast-script-XXXXXX";
static int64_t seed[] = {3, 1, 4, 1, 5};

static int make_script(void **state)
{
    (void)state;
    const int fd = mkstemp(script_path);
    if (fd >= 0)
        close(fd);
    return fd < 0 || access("tests/engines/scripted_engine.py", X_OK) != 0;
}

static int drop_script(void **state)
{
    (void)state;
    return unlink(script_path);
}

static struct client *open_engine(const char *script)
{
    FILE *f = fopen(script_path, "w");
    assert_non_null(f);
    fputs(script, f);
    fclose(f);
    char resource[64];
    snprintf(resource, sizeof resource, "script=%s", script_path);
    const char *const resources[] = {resource, NULL};
    const struct client_options o = {.engine = "tests/engines/scripted_engine.py",
                                     .weights = ".",
                                     .resources = resources,
                                     .speculative_v1_1 = true,
                                     .hello_seconds = 20,
                                     .reply_seconds = 20,
                                     .barrier_seconds = 20};
    struct client *c;
    memset(&err, 0, sizeof err);
    if (!client_start(&o, &c, &err))
        fail_msg("%s: %s", err.name, err.message);
    return c;
}

#define assert_refused(name_, call)                                                                \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        assert_false(call);                                                                        \
        assert_string_equal(err.name, name_);                                                      \
    } while (0)

static struct wire_request cohort_begin(uint32_t width)
{
    static struct wire_tokens lists[4];
    for (int i = 0; i < 4; i++)
        lists[i] = client_tokens(seed, 5);
    struct wire_request q = client_request(WIRE_KIND_free_decode_begin);
    q.seed_tokens_by_stream = (struct wire_token_lists){true, width, lists};
    q.batch_size = (struct wire_u32){true, width};
    return q;
}

static void counts_timed_steps(void **state)
{
    (void)state;
    struct client *c = open_engine("{}");
    const struct wire_response *r;
    struct wire_request q = client_request(WIRE_KIND_decode_begin);
    q.seed_tokens = client_tokens(seed, 5);
    assert_true(client_call(c, &q, 0, &r, NULL, &err));
    assert_int_equal(r->seed_token.value, (5 * 31 + 5 * 17 + 7) % 509);
    assert_int_equal(r->id.value, 1);
    for (int i = 0; i < 3; i++) {
        q = client_request(WIRE_KIND_decode_step);
        q.token = (struct wire_i64){true, i};
        int64_t elapsed = -1;
        const int64_t before = clock_now_ns();
        assert_true(client_call(c, &q, 0, &r, &elapsed, &err));
        assert_true(elapsed > 0 && elapsed <= clock_now_ns() - before);
        assert_int_equal(r->id.value, 2 + i);
    }
    q = client_request(WIRE_KIND_prefill); /* no timed step */
    q.prompt_tokens = client_tokens(seed, 5);
    assert_true(client_call(c, &q, 0, &r, NULL, &err));
    assert_true(client_barrier(c, -1, &r, &err));
    assert_int_equal(r->completed_work.value, 4);
    assert_true(client_barrier(c, -1, NULL, &err)); /* an empty phase: 0 and 0 */
    assert_refused("CompletedWorkMismatch", client_barrier(c, 1, NULL, &err));
    assert_refused("SessionDiscarded", client_barrier(c, 0, NULL, &err));
    client_free(c);
}

static void gated_verbs(void **state)
{
    (void)state;
    struct wire_request q = cohort_begin(2);
    struct client *c = open_engine("{}");
    assert_true(client_has_capability(c, "free_run_decode"));
    assert_false(client_has_capability(c, "batched_free_run_decode"));
    assert_refused("CapabilityNotAdvertised", client_call(c, &q, 0, NULL, NULL, &err));
    assert_string_equal(err.value, "batched_free_run_decode");
    assert_refused("SessionDiscarded", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);

    const char *wide = "{\"hello\":{\"capabilities\":[\"free_run_decode\","
                       "\"batched_free_run_decode\"],\"max_batch_size\":2}}";
    c = open_engine(wide);
    q = cohort_begin(3);
    assert_refused("BatchWidthExceedsEngineMax", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);

    c = open_engine(wide);
    q = client_request(WIRE_KIND_cohort_reference_replay);
    assert_refused("CapabilityNotAdvertised", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);
}

static void spec_modes(void **state)
{
    (void)state;
    struct client *c = open_engine("{}");
    struct wire_request q = client_request(WIRE_KIND_free_decode_begin);
    q.seed_tokens = client_tokens(seed, 5);
    q.spec = (struct wire_spec){.present = true, .mode = "serial"};
    assert_true(client_call(c, &q, 0, NULL, NULL, &err)); /* serial always runs */
    q.spec.mode = "dflash";
    assert_refused("SpecModeNotRunnable", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);
}

static void failure_ends_the_group(void **state)
{
    (void)state;
    struct client *c = open_engine("{\"at\":{\"kind\":\"prefill\",\"number\":1},"
                                   "\"do\":\"hang_with_grandchild\"}");
    const pid_t group = child_pid(client_child(c));
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = client_tokens(seed, 5);
    assert_refused("ReplyTimeout", client_call(c, &q, 0.3, NULL, NULL, &err));
    assert_int_equal(kill(-group, 0), 0);
    client_end(c);
    assert_string_equal(client_wait_status(c), "signal 9 (Killed)");
    assert_true(client_peak_rss(c) > 0);
    client_free(c); /* that the grandchild is gone too: tests/cli/test_refusals_engine.py */
}

static void run_deadline_spans_calls(void **state)
{
    (void)state;
    struct client *c = open_engine("{\"at\":{\"kind\":\"prefill\",\"number\":2},\"do\":\"hang\"}");
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = client_tokens(seed, 5);
    assert_true(client_arm_run_deadline(c, 10, 0.0125, &err)); /* 10 x 0.0125 x 4 = 0.5 s */
    assert_true(client_call(c, &q, 0, NULL, NULL, &err));
    assert_refused("RunTimeout", client_call(c, &q, 0, NULL, NULL, &err));
    assert_non_null(strstr(err.message, "0.500s benchd budget"));
    client_free(c);
}

/* A pipe's read that fails in the system: a folder in its place. */
static void a_read_that_fails(void **state)
{
    (void)state;
    struct client *c = open_engine("{}");
    const int folder = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(folder >= 0);
    assert_true(dup2(folder, child_output_descriptor(client_child(c))) >= 0);
    close(folder);
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = client_tokens(seed, 5);
    assert_refused("Io", client_call(c, &q, 0, NULL, NULL, &err));
    assert_refused("SessionDiscarded", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);
}

/* A request that the engine does not take runs into the deadline of its reply. */
static void a_write_that_is_not_taken(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    int64_t *prompt = calloc(MANY, sizeof *prompt);
    struct client *c = open_engine("{\"deaf\":true}");
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = client_tokens(prompt, MANY);
    assert_refused("ReplyTimeout", client_call(c, &q, 0.3, NULL, NULL, &err));
    client_free(c);
    free(prompt);
}

/* ---- the block protocol ---- */

static char drafter[] = "/tmp/mlxfast-drafter-XXXXXX";

static struct client *start_block_engine(const char *fault, bool block, bool trusted)
{
    char path[64];
    snprintf(path, sizeof path, "%s/fault.json", drafter);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(fault, f);
    fclose(f);
    const struct client_options o = {.engine = "tests/engines/faulty_block_engine.py",
                                     .weights = ".",
                                     .drafter = drafter,
                                     .trusted = trusted,
                                     .block_protocol = block,
                                     .hello_seconds = 20,
                                     .reply_seconds = 20,
                                     .barrier_seconds = 20};
    struct client *c;
    memset(&err, 0, sizeof err);
    if (client_start(&o, &c, &err))
        return c;
    client_free(c);
    return NULL;
}

static void a_bare_hello(void **state)
{
    (void)state;
    const struct wire_response *r;
    /* Only where the block protocol is asked for, and only when it holds nothing else. */
    assert_null(start_block_engine("{\"bare\":true}", false, false));
    assert_string_equal(err.name, "Protocol");
    assert_null(start_block_engine("{\"hello\":{\"protocol_version\":null}}", true, false));
    assert_string_equal(err.name, "Protocol");
    assert_null(start_block_engine("{\"hello\":{\"declared_rows\":2}}", true, false));
    assert_string_equal(err.name, "Json"); /* a hello is v1's */

    struct client *c = start_block_engine("{\"bare\":true}", true, false);
    assert_non_null(c);
    struct wire_request q = client_request(WIRE_KIND_dflash_decode_begin);
    q.seed_tokens = client_tokens(seed, 5);
    int64_t elapsed = -1;
    const int64_t before = clock_now_ns();
    assert_true(client_call(c, &q, 0, &r, &elapsed, &err));
    assert_true(r->seed_token.present && r->seed_token.value >= 0);
    const struct client_interval at = client_last_interval(c);
    assert_true(at.start_ns >= before && at.end_ns <= clock_now_ns());
    assert_true(at.end_ns - at.start_ns == elapsed && elapsed > 0);
    q = client_request(WIRE_KIND_dflash_decode_block);
    q.token = r->seed_token;
    q.max_block_size = (struct wire_i64){true, 4};
    assert_true(client_call(c, &q, 0, &r, NULL, &err)); /* keys of the block protocol are read */
    assert_true(r->declared_rows.value == 4 && r->per_row_top2_tokens.count == 4);
    q = client_request(WIRE_KIND_prefill); /* it speaks nothing else */
    q.prompt_tokens = client_tokens(seed, 5);
    assert_refused("CapabilityNotAdvertised", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);
}

static void capabilities_of_the_block_protocol(void **state)
{
    (void)state;
    struct wire_request begin = client_request(WIRE_KIND_dflash_decode_begin);
    struct wire_request prefill = client_request(WIRE_KIND_dflash_reference_prefill);
    begin.seed_tokens = prefill.seed_tokens = client_tokens(seed, 5);
    struct client *c = start_block_engine("{}", true, false);
    assert_non_null(c);
    assert_true(client_call(c, &begin, 0, NULL, NULL, &err));
    assert_refused("CapabilityNotAdvertised", client_call(c, &prefill, 0, NULL, NULL, &err));
    assert_string_equal(err.value, "dflash_reference");
    client_free(c);

    c = start_block_engine("{}", true, true);
    assert_non_null(c);
    assert_true(client_call(c, &prefill, 0, NULL, NULL, &err));
    client_free(c);

    c = open_engine("{}"); /* an engine of v1 */
    assert_refused("CapabilityNotAdvertised", client_call(c, &begin, 0, NULL, NULL, &err));
    assert_string_equal(err.value, "dflash_block_decode");
    client_free(c);
}

/* Each protocol is closed against the other's keys. */
static void keys_of_the_other_protocol(void **state)
{
    (void)state;
    struct client *c = open_engine("{\"at\":{\"kind\":\"prefill\",\"number\":1},\"do\":\"set\","
                                   "\"with\":{\"declared_rows\":1}}");
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = client_tokens(seed, 5);
    assert_refused("Json", client_call(c, &q, 0, NULL, NULL, &err));
    client_free(c);

    c = start_block_engine("{\"at\":\"dflash_decode_begin\",\"do\":\"set\","
                           "\"with\":{\"token\":1}}",
                           true, false);
    assert_non_null(c);
    q = client_request(WIRE_KIND_dflash_decode_begin);
    q.seed_tokens = client_tokens(seed, 5);
    assert_refused("Protocol", client_call(c, &q, 0, NULL, NULL, &err));
    assert_string_equal(err.field, "token");
    client_free(c);
}

static int make_files(void **state)
{
    return make_script(state) || mkdtemp(drafter) == NULL;
}

static int drop_files(void **state)
{
    char path[64];
    snprintf(path, sizeof path, "%s/fault.json", drafter);
    unlink(path);
    return drop_script(state) || rmdir(drafter) != 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_timed_steps),
        cmocka_unit_test(gated_verbs),
        cmocka_unit_test(spec_modes),
        cmocka_unit_test(failure_ends_the_group),
        cmocka_unit_test(run_deadline_spans_calls),
        cmocka_unit_test(a_read_that_fails),
        cmocka_unit_test(a_write_that_is_not_taken),
        cmocka_unit_test(a_bare_hello),
        cmocka_unit_test(capabilities_of_the_block_protocol),
        cmocka_unit_test(keys_of_the_other_protocol),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
