/* Command lines from tables: see options.h. */
#include "base/options.h"

#include "base/buffer.h"
#include "base/number.h"

#include <string.h>

enum { WIDTH = 80, POSITIONALS_MOST = 16, OPTIONS_MOST = 64 };

static bool usage(const struct command *c, struct error *err, const char *flag, const char *value,
                  const char *what)
{
    error_set(err, "USAGE", "%s (see %s --help)", what, c->name);
    return error_at(err, NULL, flag, value);
}

static const struct option_spec *find_option(const struct command *c, const char *name,
                                             size_t length)
{
    for (size_t i = 0; i < c->option_count; i++)
        if (strlen(c->options[i].name) == length && strncmp(c->options[i].name, name, length) == 0)
            return &c->options[i];
    return NULL;
}

static bool store_integer(const struct command *c, const struct option_spec *o, const char *value,
                          struct error *err)
{
    bool bounded = o->min != 0 || o->max != 0;
    int64_t low = bounded ? o->min : INT64_MIN, high = bounded ? o->max : INT64_MAX;
    if (number_int64(value, low, high, o->target))
        return true;
    if (!bounded)
        return usage(c, err, o->name, value, "not a whole number");
    error_set(err, "USAGE", "not a whole number from %lld to %lld (see %s --help)", (long long)low,
              (long long)high, c->name);
    return error_at(err, NULL, o->name, value);
}

static bool store(const struct command *c, const struct option_spec *o, const char *value,
                  struct error *err)
{
    switch (o->kind) {
    case OPTION_SWITCH:
        *(bool *)o->target = true;
        return true;
    case OPTION_TEXT:
        *(const char **)o->target = value;
        return true;
    case OPTION_LIST: {
        struct option_list *list = o->target;
        if (list->count == sizeof list->items / sizeof *list->items)
            return usage(c, err, o->name, value, "the flag is given too many times");
        list->items[list->count++] = value;
        return true;
    }
    case OPTION_INT:
        return store_integer(c, o, value, err);
    case OPTION_REAL:
        return number_double(value, o->target) || usage(c, err, o->name, value, "not a number");
    }
    return false;
}

/* One flag at argv[*i], its value included; *i is left at the last argument used. */
static bool parse_flag(const struct command *c, int argc, char **argv, int *i, bool *seen,
                       struct error *err)
{
    const char *flag = argv[*i];
    const char *equals = strchr(flag, '=');
    size_t length = equals ? (size_t)(equals - flag) : strlen(flag);
    const struct option_spec *o = find_option(c, flag, length);
    if (!o)
        return usage(c, err, flag, NULL, "an unknown flag");
    const char *value = equals ? equals + 1 : NULL;
    if (o->kind == OPTION_SWITCH) {
        if (value)
            return usage(c, err, o->name, value, "the flag takes no value");
    } else if (!value) {
        const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
        if (!next || find_option(c, next, strcspn(next, "=")))
            return usage(c, err, o->name, NULL, "the flag needs a value");
        value = next;
        ++*i;
    }
    if (seen[o - c->options] && o->kind != OPTION_LIST)
        return usage(c, err, o->name, value, "the flag is given twice");
    seen[o - c->options] = true;
    if (o->given)
        *o->given = true;
    return store(c, o, value, err);
}

enum options_result options_parse(const struct command *c, int argc, char **argv,
                                  const char **positional_out, struct error *err)
{
    bool seen[OPTIONS_MOST] = {false};
    int wanted = 0, got = 0;
    while (c->positional && c->positional[wanted])
        wanted++;
    if (c->option_count > OPTIONS_MOST || wanted > POSITIONALS_MOST) {
        error_set(err, "USAGE", "the table of %s is too large", c->name);
        return OPTIONS_ERROR;
    }
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
            return OPTIONS_HELP;
    for (size_t k = 0; k < c->option_count; k++)
        if (c->options[k].given)
            *c->options[k].given = false;
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1] != '\0') {
            if (!parse_flag(c, argc, argv, &i, seen, err))
                return OPTIONS_ERROR;
        } else if (got == wanted) {
            usage(c, err, NULL, argv[i], "a surplus argument");
            return OPTIONS_ERROR;
        } else {
            positional_out[got++] = argv[i];
        }
    }
    for (int i = got; i < wanted; i++)
        positional_out[i] = NULL;
    if (got < wanted && c->positional[got][0] != '[') {
        usage(c, err, c->positional[got], NULL, "a required argument is missing");
        return OPTIONS_ERROR;
    }
    for (size_t k = 0; k < c->option_count; k++) {
        if (c->options[k].required && !seen[k]) {
            usage(c, err, c->options[k].name, NULL, "a required flag is missing");
            return OPTIONS_ERROR;
        }
    }
    return OPTIONS_OK;
}

/* Words of text wrapped at WIDTH with a hanging indent; column is where the line stands now. A
 * line break in the text is kept. */
static void write_wrapped(FILE *out, const char *text, int indent, int column)
{
    const char *p = text;
    bool first = true;
    while (*p) {
        if (*p == '\n') {
            fputc('\n', out);
            column = 0;
            first = true;
            p++;
            continue;
        }
        if (*p == ' ' && !first) {
            p++;
            continue;
        }
        if (column == 0)
            column = fprintf(out, "%*s", indent, "");
        if (first) { /* spaces that open a line are the text's own layout */
            for (; *p == ' '; p++, column++)
                fputc(' ', out);
        }
        int length = (int)strcspn(p, " \n");
        if (!first && column + 1 + length > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", length, p);
        column += length;
        p += length;
        first = false;
    }
    fputc('\n', out);
}

static void write_usage(const struct command *c, FILE *out)
{
    struct buffer line = {0};
    buffer_printf(&line, "%s", c->name);
    for (size_t k = 0; k < c->option_count; k++) {
        const struct option_spec *o = &c->options[k];
        if (o->required)
            buffer_printf(&line, " %s%s%s", o->name, o->value_name ? " " : "",
                          o->value_name ? o->value_name : "");
    }
    buffer_text(&line, c->option_count ? " [flags]" : "");
    for (int i = 0; c->positional && c->positional[i]; i++)
        buffer_printf(&line, " %s", c->positional[i]);
    fputs("usage: ", out);
    write_wrapped(out, line.data, 7, 7);
    buffer_free(&line);
}

void options_help(const struct command *c, FILE *out)
{
    write_wrapped(out, c->summary, 0, 0);
    fputc('\n', out);
    write_usage(c, out);
    fputs("\nflags:\n", out);
    for (size_t k = 0; k < c->option_count; k++) {
        const struct option_spec *o = &c->options[k];
        fprintf(out, "  %s%s%s\n", o->name, o->value_name ? " " : "",
                o->value_name ? o->value_name : "");
        struct buffer text = {0};
        buffer_text(&text, o->help);
        if (o->kind == OPTION_INT && (o->min != 0 || o->max != 0)) {
            if (o->max == INT64_MAX)
                buffer_printf(&text, " %lld or more.", (long long)o->min);
            else
                buffer_printf(&text, " From %lld to %lld.", (long long)o->min, (long long)o->max);
        }
        buffer_text(&text, o->kind == OPTION_LIST ? " May be repeated." : "");
        buffer_text(&text, o->required ? " Required." : "");
        write_wrapped(out, text.data, 6, 0);
        buffer_free(&text);
    }
    fputs("  -h, --help\n      Shows this text.\n", out);
    if (c->notes) {
        fputc('\n', out);
        write_wrapped(out, c->notes, 0, 0);
    }
}
