/* benchd prefill-decompose. */
#include "judge/tools.h"

#include "base/number.h"
#include "base/terminal.h"
#include "judge/prefill.h"
#include "judge/tools_common.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 32, SIZE_MAX_TOKENS = 1 << 20, REPS_MAX = 1000, TOOL_INTERRUPTED = 130 };

struct sizes {
    int64_t items[SIZES_MAX];
    size_t count;
};

/* "128,256": at least two different lengths, else there is no line through them. */
static bool parse_sizes(const char *text, struct sizes *out, struct error *err)
{
    out->count = 0;
    for (const char *p = text;; p++) {
        char number[24];
        const size_t length = strcspn(p, ",");
        if (length == 0 || length >= sizeof number || out->count == SIZES_MAX)
            break;
        memcpy(number, p, length);
        number[length] = '\0';
        if (!number_int64(number, 1, SIZE_MAX_TOKENS, &out->items[out->count]))
            break;
        out->count++;
        p += length;
        if (*p != '\0')
            continue;
        for (size_t i = 1; i < out->count; i++)
            if (out->items[i] != out->items[0])
                return true;
        error_set(err, "USAGE", "--sizes must hold at least two different lengths");
        return error_at(err, NULL, "--sizes", text);
    }
    error_set(err, "USAGE", "--sizes must hold 2 to %d lengths from 1 to %d between commas",
              SIZES_MAX, SIZE_MAX_TOKENS);
    return error_at(err, NULL, "--sizes", text);
}

static void report(const struct prefill_times *times, size_t count, const struct prefill_fit *fit)
{
    struct table *t = table_new(6);
    table_row(t, "tokens", "mean ms", "min ms", "sd ms", "line ms", "off ms");
    for (size_t i = 0; i < count; i++) {
        const double line = fit->intercept + fit->slope * (double)times[i].size;
        const double values[] = {times[i].mean_ms, times[i].min_ms, times[i].sd_ms, line,
                                 times[i].mean_ms - line};
        char cells[6][32];
        snprintf(cells[0], sizeof cells[0], "%" PRId64, times[i].size);
        for (size_t j = 0; j < sizeof values / sizeof values[0]; j++)
            snprintf(cells[j + 1], sizeof cells[j + 1], "%.3f", values[j]);
        table_row(t, cells[0], cells[1], cells[2], cells[3], cells[4], cells[5]);
    }
    table_print(t);
    printf("each token %.6f ms, fixed cost %.3f ms, R^2 %.6f\n", fit->slope, fit->intercept,
           fit->r_squared);
    printf("verdict: the fixed cost is %s %.1f ms\n", prefill_verdict(fit) ? "within" : "above",
           PREFILL_FIXED_COST_MAX_MS);
}

static bool measure(const char *engine, const char *weights, const struct sizes *sizes,
                    int64_t reps, bool quiet, struct prefill_times *times, struct error *err)
{
    struct progress p = {.quiet = quiet};
    bool ok = true;
    progress_begin(&p, "prefill", "engines", sizes->count);
    for (size_t i = 0; ok && i < sizes->count; i++) {
        ok = prefill_measure(engine, weights, sizes->items[i], reps, &times[i], err);
        progress_update(&p, i + (ok ? 1 : 0));
    }
    progress_end(&p);
    return ok;
}

int tool_prefill_decompose(int argc, char **argv)
{
    static const char tool[] = "prefill-decompose";
    const char *engine = NULL, *weights = NULL, *list = "128,256,512,1024";
    int64_t reps = 8;
    bool quiet = false;
    const struct option_spec options[] = {
        {"--engine", OPTION_TEXT, true, "PATH", "The worker executable.", &engine, NULL, 0, 0},
        {"--weights", OPTION_TEXT, true, "DIR", "The weights folder.", &weights, NULL, 0, 0},
        {"--sizes", OPTION_TEXT, false, "A,B,...",
         "Prompt lengths, at least two different ones (default 128,256,512,1024).", &list, NULL, 0,
         0},
        {"--reps", OPTION_INT, false, "N", "Measured prefills of each length (default 8).", &reps,
         NULL, 1, REPS_MAX},
        {"--quiet", OPTION_SWITCH, false, NULL, "No progress.", &quiet, NULL, 0, 0},
    };
    const struct command command = {
        "benchd prefill-decompose",
        "Splits the time of a prefill into a fixed cost and a cost per token.",
        "A new engine for each length; prompts are token id 1 repeated; one prefill of each engine "
        "is not measured. A straight line through the means by least squares.\n"
        "Exit: 0 the fixed cost is at most 8.0 ms, 1 it is more or the engine failed, 2 usage, 130 "
        "interrupted.",
        NULL,
        options,
        sizeof options / sizeof options[0]};
    struct prefill_times times[SIZES_MAX];
    double x[SIZES_MAX], y[SIZES_MAX];
    struct prefill_fit fit;
    struct sizes sizes;
    struct error err = {0};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    if (!parse_sizes(list, &sizes, &err)) {
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    if (!measure(engine, weights, &sizes, reps, quiet, times, &err)) {
        tool_complain(tool, &err);
        return strcmp(err.name, "Interrupted") == 0 ? TOOL_INTERRUPTED
               : strcmp(err.name, "USAGE") == 0     ? TOOL_USAGE
                                                    : TOOL_REJECTED;
    }
    for (size_t i = 0; i < sizes.count; i++) {
        x[i] = (double)times[i].size;
        y[i] = times[i].mean_ms;
    }
    if (!prefill_fit_line(x, y, sizes.count, &fit)) { /* sizes differ and times are finite */
        fprintf(stderr, "benchd %s: no line goes through these times\n", tool);
        return TOOL_REJECTED;
    }
    report(times, sizes.count, &fit);
    return prefill_verdict(&fit) ? TOOL_OK : TOOL_REJECTED;
}
