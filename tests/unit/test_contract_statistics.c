/* The contract's group "statistics", what explain-contract says of it, and the closed check of
 * metrics.statistics. */
#include "base/buffer.h"
#include "judge/contract.h"
#include "judge/explain.h"
#include "judge/score.h"
#include "judge/stats/paired.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <math.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
#define WHOLE "{\"null_pairs\":2,\"max_pairs\":12,\"half_width\":0.005,\"confidence\":0.9}"

static bool parse(const char *members, struct contract **out, struct error *err)
{
    struct buffer text = {0};
    buffer_printf(&text, "{\"track_id\":\"t-v1\",%s}", members);
    const bool ok = contract_parse("contract.json", text.data, text.length, NULL, out, err);
    buffer_free(&text);
    return ok;
}

static void test_group(void **state)
{
    (void)state;
    struct contract *c;
    struct error err;
    struct paired_rule rule;
    assert_true(parse("\"official_pairs\":4,\"statistics\":" WHOLE, &c, &err));
    assert_true(c->has_statistics);
    contract_paired_rule(c, &rule);
    assert_int_equal(rule.min_pairs, 4);
    assert_int_equal(rule.max_pairs, 12);
    assert_int_equal(rule.null_pairs, 2);
    assert_true(rule.half_width == 0.005 && rule.confidence == 0.9);
    assert_true(paired_rule_is_sequential(&rule));
    contract_free(c);
    /* Not declared: the pairs of the contract, one null pair, 95 %. */
    assert_true(parse("\"official_pairs\":4", &c, &err));
    contract_paired_rule(c, &rule);
    assert_int_equal(rule.min_pairs, 4);
    assert_int_equal(rule.max_pairs, 4);
    assert_int_equal(rule.null_pairs, 1);
    assert_true(rule.confidence == 0.95 && !paired_rule_is_sequential(&rule));
    contract_free(c);
}

static void test_group_refuses(void **state)
{
    (void)state;
    static const struct {
        const char *group, *field;
    } rows[] = {
        {"7", "statistics"},
        {"{}", "statistics.null_pairs"},
        {"{\"null_pairs\":1,\"max_pairs\":12,\"half_width\":0.005}", "statistics.confidence"},
        {"{\"null_pairs\":0,\"max_pairs\":12,\"half_width\":0.005,\"confidence\":0.9}",
         "statistics.null_pairs"},
        {"{\"null_pairs\":1,\"max_pairs\":3,\"half_width\":0.005,\"confidence\":0.9}",
         "statistics.max_pairs"},
        {"{\"null_pairs\":1,\"max_pairs\":1001,\"half_width\":0.005,\"confidence\":0.9}",
         "statistics.max_pairs"},
        {"{\"null_pairs\":1,\"max_pairs\":12,\"half_width\":-1,\"confidence\":0.9}",
         "statistics.half_width"},
        {"{\"null_pairs\":1,\"max_pairs\":12,\"half_width\":1,\"confidence\":0.9}",
         "statistics.half_width"},
        {"{\"null_pairs\":1,\"max_pairs\":12,\"half_width\":0.005,\"confidence\":95}",
         "statistics.confidence"},
        {"{\"null_pairs\":1,\"max_pairs\":12,\"half_width\":0.005,\"confidence\":0.4}",
         "statistics.confidence"},
    };
    struct contract *c;
    struct error err;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        struct buffer text = {0};
        buffer_printf(&text, "\"official_pairs\":4,\"statistics\":%s", rows[i].group);
        if (parse(text.data, &c, &err))
            fail_msg("accepted %s", rows[i].group);
        assert_string_equal(err.name, "CONTRACT-INVALID");
        assert_string_equal(err.field, rows[i].field);
        buffer_free(&text);
    }
    assert_false(parse("\"statistics\":" WHOLE, &c, &err));
    assert_non_null(strstr(err.message, "official_pairs"));
    assert_false(parse("\"official_pairs\":4,\"statistics\":{\"max_pair\":3}", &c, &err));
    assert_string_equal(err.name, "CONTRACT-UNKNOWN-KEY");
    assert_non_null(strstr(err.message, "max_pairs"));
}

static void assert_says(const char *members, const char *wanted)
{
    struct contract *c;
    struct error err;
    struct buffer page = {0};
    assert_true(parse(members, &c, &err));
    explain_contract(c, false, &page);
    for (char *p = page.data; *p; p++) /* lines are wrapped */
        if (*p == '\n' && p[1] == ' ' && p[2] == ' ')
            *p = p[1] = '\x01';
    struct buffer flat = {0};
    for (const char *p = page.data; *p; p++)
        if (*p != '\x01')
            buffer_char(&flat, *p);
    if (!strstr(flat.data, wanted))
        fail_msg("not there: %s\n%s", wanted, flat.data);
    buffer_free(&flat);
    buffer_free(&page);
    contract_free(c);
}

#define LIVE "\"scores_against_live_control_leg\":true,\"official_pairs\":4"
static void test_explained(void **state)
{
    (void)state;
    assert_says(LIVE ",\"statistics\":" WHOLE, "sealed with its 90 % interval");
    assert_says(LIVE ",\"statistics\":" WHOLE, "2 null pairs");
    assert_says(LIVE ",\"statistics\":" WHOLE, "Pairs are added, up to 12,");
    assert_says(LIVE ",\"statistics\":" WHOLE, "computed at 95 %");
    assert_says(LIVE, "statistics is not declared");
}

/* The sealed object as it is made, then with one thing wrong each. */
static void test_sealed_object(void **state)
{
    (void)state;
    static const double control[] = {1.01, 1.02, 1.00, 1.03}, ones[] = {1, 1, 1, 1};
    static const struct {
        const char *place, *key, *value, *field;
    } rows[] = {
        {"", "quoted", NULL, "metrics.statistics.quoted"},
        {"", "quoted", "\"guess\"", "metrics.statistics.quoted"},
        {"", "axis", "\"prefill\"", "metrics.statistics.axis"},
        {"", "score", "1", "metrics.statistics.score"},
        {"", "interval", "[1]", "metrics.statistics.interval"},
        {"", "interval", "[1.2,1.1]", "metrics.statistics.interval"},
        {"", "bootstrap_interval", "[1,\"2\"]", "metrics.statistics.bootstrap_interval"},
        {"", "pairs", "1.5", "metrics.statistics.pairs"},
        {"", "null", "7", "metrics.statistics.null"},
        {"null", "contains_one", NULL, "metrics.statistics.null.contains_one"},
        {"null", "interval", "[]", "metrics.statistics.null.interval"},
        {"sequential", "stopped", "\"tired\"", "metrics.statistics.sequential.stopped"},
        {"sequential", "x", "1", "metrics.statistics.sequential.x"},
    };
    const struct paired_rule rule = {.min_pairs = 4, .max_pairs = 4, .confidence = 0.95};
    struct paired_estimate pair, null_pair;
    assert_true(paired_estimate(control, ones, 4, 0.95, 1, &pair));
    assert_true(paired_estimate(control, ones, 2, 0.95, 1, &null_pair));
    for (size_t i = 0; i <= COUNT_OF(rows); i++) {
        struct score_document d;
        struct buffer text = {0};
        struct error err = {0};
        json_t *s = paired_seal(&pair, &null_pair, &rule, PAIRED_BOUND_REACHED);
        if (i < COUNT_OF(rows)) {
            json_t *place = *rows[i].place ? json_object_get(s, rows[i].place) : s;
            if (rows[i].value)
                json_object_set_new(place, rows[i].key,
                                    json_loads(rows[i].value, JSON_DECODE_ANY, NULL));
            else
                json_object_del(place, rows[i].key);
        }
        score_document_init(&d, "rust");
        score_set_json(&d, "statistics", s);
        const bool ok = score_render(&d, &text, &err);
        if (i == COUNT_OF(rows)) {
            if (!ok)
                fail_msg("%s: %s", err.name, err.message);
        } else {
            if (ok)
                fail_msg("accepted %s = %s", rows[i].field,
                         rows[i].value ? rows[i].value : "(nothing)");
            assert_string_equal(err.field, rows[i].field);
        }
        score_document_free(&d);
        buffer_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group),
        cmocka_unit_test(test_group_refuses),
        cmocka_unit_test(test_explained),
        cmocka_unit_test(test_sealed_object),
    };
    return cmocka_run_group_tests_name("contract_statistics", tests, NULL, NULL);
}
