#include "judge/compare/output.h"

#include "base/child.h"
#include "base/file.h"
#include "base/json.h"
#include "judge/tools.h"
#include "judge/tools_common.h"

#include <stdio.h>
#include <string.h>

enum { EXIT_INTERRUPTED = 130 };

bool bench_check_output(const struct bench_flags *f, const char *flag, const char *path,
                        struct error *err)
{
    const char *const read[] = {f->golden, f->contract};
    return path == NULL ||
           (tool_check_output(flag, path, read, 2, err) && file_check_target(path, err));
}

static void write_text(const json_t *report, struct buffer *out)
{
    json_write_ordered(report, 2, out);
    buffer_char(out, '\n');
}

bool compare_write_json(const char *path, const json_t *report, struct error *err)
{
    struct buffer text = {0};
    write_text(report, &text);
    const bool ok = file_write_atomic(path, text.data, text.length, err);
    buffer_free(&text);
    return ok;
}

void compare_print_json(const json_t *report)
{
    struct buffer text = {0};
    write_text(report, &text);
    fwrite(text.data, 1, text.length, stdout);
    buffer_free(&text);
}

int bench_exit(const struct bench *b, const struct error *err)
{
    if (interrupt_is_cause(err))
        return EXIT_INTERRUPTED;
    return b->usable && strcmp(err->name, "USAGE") != 0 ? TOOL_REJECTED : TOOL_USAGE;
}
