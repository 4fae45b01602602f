/* options.h: parsing and help come from one table. */
#include "base/options.h"

#include "base/buffer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct {
    bool json, json_given, n_given;
    const char *weights;
    struct option_list resources;
    int64_t n, any;
    double rate;
} got;

static const char *const positional[] = {"IN", "OUT", NULL};
static const struct option_spec specs[] = {
    {"--weights", OPTION_TEXT, true, "DIR", "The folder of the checkpoint.", &got.weights, NULL, 0,
     0},
    {"--json", OPTION_SWITCH, false, NULL, "JSON on stdout.", &got.json, &got.json_given, 0, 0},
    {"--resource", OPTION_LIST, false, "NAME=PATH",
     "A named file for the engine, in a sentence that is long enough to be wrapped at the width of "
     "a terminal.",
     &got.resources, NULL, 0, 0},
    {"-n", OPTION_INT, false, "N", "How many tokens.", &got.n, &got.n_given, 1, 4096},
    {"--any", OPTION_INT, false, "N", "Any number.", &got.any, NULL, 0, 0},
    {"--rate", OPTION_REAL, false, "X", "A real number.", &got.rate, NULL, 0, 0},
};
static const struct command command = {
    "tool verb", "Does one thing.",           "exit codes: 0, 1.\n  MLXFAST: no", positional,
    specs,       sizeof specs / sizeof *specs};

static const char *places[2];

static enum options_result parse(struct error *err, const char *first, ...)
{
    char *argv[40];
    int argc = 0;
    va_list ap;
    va_start(ap, first);
    for (const char *p = first; p; p = va_arg(ap, const char *))
        argv[argc++] = (char *)(uintptr_t)p;
    va_end(ap);
    memset(&got, 0, sizeof got);
    got.n = 16;
    memset(places, 0, sizeof places);
    return options_parse(&command, argc, argv, places, err);
}

static void accepts(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(parse(&err, "in", "--weights", "w", "--json", "--resource", "a=b", "out",
                           "--resource=c=d", "-n", "4096", "--rate=-1.5e3", "--any", "-5", NULL),
                     OPTIONS_OK);
    assert_string_equal(got.weights, "w");
    assert_true(got.json && got.json_given && got.n_given);
    assert_int_equal(got.resources.count, 2);
    assert_string_equal(got.resources.items[0], "a=b");
    assert_string_equal(got.resources.items[1], "c=d");
    assert_int_equal(got.n, 4096);
    assert_int_equal(got.any, -5);
    assert_true(got.rate == -1500);
    assert_string_equal(places[0], "in");
    assert_string_equal(places[1], "out");
    assert_int_equal(parse(&err, "in", "-", "--weights=", NULL), OPTIONS_OK);
    assert_string_equal(places[1], "-");
    assert_string_equal(got.weights, "");
    assert_int_equal(got.n, 16);
    assert_false(got.json_given || got.n_given);
    /* A value may look like a flag, as long as it is none of ours. */
    assert_int_equal(parse(&err, "in", "out", "--weights", "--odd", NULL), OPTIONS_OK);
    assert_string_equal(got.weights, "--odd");
}

static void refused(struct error *err, enum options_result result, const char *field,
                    const char *value, const char *part)
{
    assert_int_equal(result, OPTIONS_ERROR);
    assert_string_equal(err->name, "USAGE");
    assert_string_equal(err->field, field);
    assert_string_equal(err->value, value);
    if (!strstr(err->message, part))
        fail_msg("%s", err->message);
    assert_non_null(strstr(err->message, "tool verb --help"));
}

static void refuses(void **state)
{
    (void)state;
    struct error e;
    refused(&e, parse(&e, "a", "b", "--wieghts", "w", NULL), "--wieghts", "", "unknown flag");
    refused(&e, parse(&e, "a", "b", "--weight", "w", NULL), "--weight", "", "unknown flag");
    refused(&e, parse(&e, "a", "b", "--weights", NULL), "--weights", "", "needs a value");
    refused(&e, parse(&e, "a", "b", "--weights", "--json", NULL), "--weights", "", "needs a value");
    refused(&e, parse(&e, "a", "b", "--weights", "-n=3", NULL), "--weights", "", "needs a value");
    refused(&e, parse(&e, "a", "b", "--weights", "w", "--weights", "v", NULL), "--weights", "v",
            "twice");
    refused(&e, parse(&e, "a", "b", "--json", "--json", "--weights", "w", NULL), "--json", "",
            "twice");
    refused(&e, parse(&e, "a", "b", "--json=yes", NULL), "--json", "yes", "takes no value");
    refused(&e, parse(&e, "a", "b", "-n", "0", NULL), "-n", "0", "from 1 to 4096");
    refused(&e, parse(&e, "a", "b", "-n", "4097", NULL), "-n", "4097", "from 1 to 4096");
    refused(&e, parse(&e, "a", "b", "-n", "5x", NULL), "-n", "5x", "whole number");
    refused(&e, parse(&e, "a", "b", "--any", "1.5", NULL), "--any", "1.5", "whole number");
    refused(&e, parse(&e, "a", "b", "--rate", "nan", NULL), "--rate", "nan", "not a number");
    refused(&e, parse(&e, "a", "b", NULL), "--weights", "", "required flag");
    refused(&e, parse(&e, "a", "--weights", "w", NULL), "OUT", "", "required argument");
    refused(&e, parse(&e, "a", "b", "c", "--weights", "w", NULL), "", "c", "surplus");
}

static void list_has_an_end(void **state)
{
    (void)state;
    struct error err;
    char *argv[140] = {"a", "b", "--weights", "w"};
    memset(&got, 0, sizeof got);
    for (int i = 0; i < 65; i++)
        argv[4 + i] = "--resource=x=y";
    assert_int_equal(options_parse(&command, 4 + 64, argv, places, &err), OPTIONS_OK);
    memset(&got, 0, sizeof got);
    refused(&err, options_parse(&command, 4 + 65, argv, places, &err), "--resource", "x=y",
            "too many");
}

static void help(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(parse(&err, "--bad", "--help", NULL), OPTIONS_HELP);
    assert_int_equal(parse(&err, "x", "y", "z", "-h", NULL), OPTIONS_HELP);
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    options_help(&command, out);
    fclose(out);
    for (size_t i = 0; i < command.option_count; i++)
        assert_non_null(strstr(text, specs[i].name));
    assert_non_null(strstr(text, "usage: tool verb --weights DIR [flags] IN OUT\n"));
    assert_non_null(strstr(text, "From 1 to 4096."));
    assert_non_null(strstr(text, "The folder of the checkpoint. Required."));
    assert_non_null(strstr(text, "May be repeated."));
    assert_non_null(strstr(text, "exit codes: 0, 1.\n  MLXFAST: no\n"));
    for (const char *p = text; *p; p += strcspn(p, "\n") + 1)
        if (strcspn(p, "\n") > 80)
            fail_msg("too wide: %.100s", p);
    free(text);
}

/* Names in brackets need not be given; what is not given is NULL. */
static void optional_arguments(void **state)
{
    (void)state;
    static const char *const names[] = {"ONE", "[TWO]", "[THREE]", NULL};
    const struct command some = {.name = "t", .summary = "s", .positional = names};
    char one[] = "1", two[] = "2";
    char *argv[] = {one, two};
    const char *out[3] = {"x", "x", "x"};
    struct error err = {0};
    assert_int_equal(options_parse(&some, 2, argv, out, &err), OPTIONS_OK);
    assert_string_equal(out[1], "2");
    assert_null(out[2]);
    assert_int_equal(options_parse(&some, 1, argv, out, &err), OPTIONS_OK);
    assert_string_equal(out[0], "1");
    assert_null(out[1]);
    assert_int_equal(options_parse(&some, 0, argv, out, &err), OPTIONS_ERROR);
    assert_string_equal(err.field, "ONE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),
        cmocka_unit_test(refuses),
        cmocka_unit_test(list_has_an_end),
        cmocka_unit_test(help),
        cmocka_unit_test(optional_arguments),
    };
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
