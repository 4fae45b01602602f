/* The contract's group quiet: the platform's defaults, every member, both sides of every limit. */
#include "judge/contract.h"
#include "judge/explain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* after the four above */
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static const char whole[] = "{\"load_max\":4,\"gpu_use_max\":0.2,\"celsius_max\":70,"
                            "\"temperature_required\":false,\"wait_seconds\":30,"
                            "\"clock_floor_mhz\":1500}";

static bool parse(const char *track, const char *group, struct contract **out, struct error *err)
{
    char text[1024];
    snprintf(text, sizeof text, "{\"track_id\":\"%s\"%s%s}", track, group ? ",\"quiet\":" : "",
             group ? group : "");
    *err = (struct error){0};
    return contract_parse("contract.json", text, strlen(text), NULL, out, err);
}

static void test_defaults(void **state)
{
    (void)state;
    struct contract *c;
    struct error err;
    assert_true(parse("t-v1", NULL, &c, &err));
    assert_true(!c->has_quiet && c->quiet.load_max == 2 && c->quiet.celsius_max == 60 &&
                c->quiet.temperature_required && c->quiet.device == QUIET_CPU);
    contract_free(c);
}

static void test_whole(void **state)
{
    (void)state;
    struct contract *c;
    struct error err;
    assert_true(parse("t-v1", whole, &c, &err));
    const struct quiet_rules *q = &c->quiet;
    assert_true(c->has_quiet && q->load_max == 4 && q->gpu_use_max == 0.2 && q->celsius_max == 70);
    assert_true(!q->temperature_required && q->quiescence_wait_seconds == 30 &&
                q->cool_wait_seconds == 30 && q->clock_floor_mhz == 1500);
    assert_true(q->others_cpu_max == 0.25 && q->run_delay_max == 0.1 && q->loaded_use == 0.95);
    assert_false(q->cool_gate);
    contract_free(c);
    assert_true(parse(
        "t-v1",
        "{\"load_max\":4,\"gpu_use_max\":1,\"celsius_max\":120,\"a_note\":1,"
        "\"temperature_required\":true,\"wait_seconds\":86400,"
        "\"clock_floor_mhz\":0,\"others_cpu_max\":0.5,\"loaded_use\":1,\"window_seconds\":0.2}",
        &c, &err));
    assert_true(c->quiet.others_cpu_max == 0.5 && c->quiet.loaded_use == 1);
    assert_true(c->quiet.run_delay_max == 0.2); /* of what others may take */
    assert_true(c->quiet.window_seconds == 0.2);
    contract_free(c);
}

/* The whole group with one member changed by text. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *was, *is, *name, *field;
    } rows[] = {
        {"\"load_max\":4,", "", "CONTRACT-INVALID", "quiet.load_max"},
        {",\"clock_floor_mhz\":1500", "", "CONTRACT-INVALID", "quiet.clock_floor_mhz"},
        {"\"wait_seconds\":30,", "", "CONTRACT-INVALID", "quiet.wait_seconds"},
        {"\"load_max\":4", "\"load_max\":0", "CONTRACT-INVALID", "quiet.load_max"},
        {"0.2", "0", "CONTRACT-INVALID", "quiet.gpu_use_max"},
        {"0.2", "1.01", "CONTRACT-INVALID", "quiet.gpu_use_max"},
        {":70", ":120.5", "CONTRACT-INVALID", "quiet.celsius_max"},
        {":70", ":-1", "CONTRACT-INVALID", "quiet.celsius_max"},
        {"false", "0", "CONTRACT-INVALID", "quiet.temperature_required"},
        {":30", ":86401", "CONTRACT-INVALID", "quiet.wait_seconds"},
        {":30", ":-1", "CONTRACT-INVALID", "quiet.wait_seconds"},
        {"1500", "-1", "CONTRACT-INVALID", "quiet.clock_floor_mhz"},
        {"1500", "1500,\"others_cpu_max\":0", "CONTRACT-INVALID", "quiet.others_cpu_max"},
        {"1500", "1500,\"run_delay_max\":-1", "CONTRACT-INVALID", "quiet.run_delay_max"},
        {"1500", "1500,\"window_seconds\":0.19", "CONTRACT-INVALID", "quiet.window_seconds"},
        {"1500", "1500,\"window_seconds\":61", "CONTRACT-INVALID", "quiet.window_seconds"},
        {"1500", "1500,\"loaded_use\":1.5", "CONTRACT-INVALID", "quiet.loaded_use"},
        {"1500", "1500,\"celsius_maxx\":5", "CONTRACT-UNKNOWN-KEY", "quiet.celsius_maxx"},
    };
    struct contract *c;
    struct error err;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char group[512];
        const char *at = strstr(whole, rows[i].was);
        assert_non_null(at);
        snprintf(group, sizeof group, "%.*s%s%s", (int)(at - whole), whole, rows[i].is,
                 at + strlen(rows[i].was));
        if (parse("t-v1", group, &c, &err))
            fail_msg("accepted: %s", group);
        assert_string_equal(err.name, rows[i].name);
        assert_string_equal(err.field, rows[i].field);
    }
    assert_false(parse("t-v1", "[]", &c, &err));
    assert_string_equal(err.field, "quiet");
}

static void expect_explained(const char *group, const char *const *parts)
{
    struct contract *c;
    struct error err;
    struct buffer page = {0};
    assert_true(parse("t-v1", group, &c, &err));
    explain_contract(c, false, &page);
    for (char *at = page.data; (at = strstr(at, "\n  "));) { /* wrapped lines are one again */
        memmove(at, at + 2, strlen(at + 2) + 1);
        *at = ' ';
    }
    for (; *parts; parts++)
        if (!strstr(page.data, *parts))
            fail_msg("\"%s\" is not in: %s", *parts, page.data);
    buffer_free(&page);
    contract_free(c);
}

static void test_explained(void **state)
{
    (void)state;
    static const char *const declared[] = {
        "below 4,",       "70 C at most",      "within 30 s", "the gate is skipped",
        "below 1500 MHz", "TELEMETRY-MISSING", NULL};
    static const char *const defaults[] = {"quiet is not declared", "60 C at most",
                                           "TEMPERATURE-READER-MISSING", "No floor", NULL};
    expect_explained(whole, declared);
    expect_explained(NULL, defaults);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
