#include "judge/tools_common.h"

#include "base/file.h"
#include "judge/tools.h"

void tool_complain(const char *tool, const struct error *err)
{
    char line[2200];
    fprintf(stderr, "benchd %s: %s\n", tool, error_line(err, line, sizeof line));
}

bool tool_parse(const struct command *command, const char *tool, int argc, char **argv,
                const char **positional, int *exit_code)
{
    struct error err = {0};
    switch (options_parse(command, argc, argv, positional, &err)) {
    case OPTIONS_OK:
        return true;
    case OPTIONS_HELP:
        options_help(command, stdout);
        *exit_code = TOOL_OK;
        return false;
    case OPTIONS_ERROR:
        break;
    }
    tool_complain(tool, &err);
    *exit_code = TOOL_USAGE;
    return false;
}

void tool_put_line(FILE *out, const char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7f)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
}

bool tool_check_output(const char *flag, const char *output, const char *const *others,
                       size_t count, struct error *err)
{
    for (size_t i = 0; output != NULL && i < count; i++) {
        if (others[i] == NULL || !file_is_same(output, others[i]))
            continue;
        error_set(err, "USAGE", "the output would replace another file of this command");
        return error_at(err, NULL, flag, output);
    }
    return true;
}
