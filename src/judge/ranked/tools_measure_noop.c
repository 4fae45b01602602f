/* benchd measure-noop (docs/baseline-calibration.md). */
#include "judge/tools.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "judge/ranked/noop.h"
#include "judge/tools_common.h"

#include <stdio.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { TOOL_INTERRUPTED = 130, PAIRS_MOST = 1000 };
static const char tool[] = "measure-noop";

/* Looked at before anything is opened for good: which kind of track, and where the report goes. */
static bool open_it(struct noop *n, struct error *err)
{
    const struct reference_flags *f = n->flags;
    const char *track;
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(f->contract, track, &n->contract, err))
        return false;
    n->blocks = n->contract->has_block_decode;
    if (!n->blocks && n->drafter != NULL) {
        error_set(err, "USAGE", "only a track of block decoding has a drafter");
        return error_at(err, NULL, "--drafter", n->drafter);
    }
    return f->out == NULL ||
           (tool_check_output("--out", f->out, f->goldens.items, f->goldens.count, err) &&
            tool_check_output("--out", f->out, &f->contract, 1, err) &&
            file_check_target(f->out, err));
}

static bool print_row(const struct noop *n, const struct noop_prompt *p, double confidence)
{
    struct noop_figures f;
    if (!noop_figures_of(p, n->pairs, confidence, &f))
        return false;
    printf("%-24s %8.4f  %.4f .. %.4f  %8.4f  %9.4f\n", p->prompt, f.paired.ratio, f.paired.t_low,
           f.paired.t_high, f.ratio_of_means, f.ratio_of_fastest);
    return true;
}

static bool print_table(const struct noop *n)
{
    struct paired_rule rule;
    contract_paired_rule(n->contract, &rule);
    printf("%-24s %8s  %-16s  %8s  %9s\n", "prompt", "no-op", "interval", "of means", "of fastest");
    bool ok = true;
    for (size_t i = 0; ok && i < n->prompt_count; i++)
        ok = print_row(n, &n->prompts[i], rule.confidence);
    return ok;
}

static bool write_it(const struct noop *n, struct error *err)
{
    char when[32];
    json_t *report = print_table(n) ? noop_report(n, clock_utc_text(when, sizeof when)) : NULL;
    if (report == NULL)
        return error_set(err, "IO", "the clock gave a leg no time above 0");
    struct buffer text = {0};
    json_write_canonical(report, 2, &text);
    buffer_char(&text, '\n');
    json_decref(report);
    const char *out = n->flags->out;
    const bool ok = out == NULL || file_write_atomic(out, text.data, text.length, err);
    buffer_free(&text);
    return ok;
}

static int measure(struct noop *n)
{
    struct error err = {0};
    bool misused = true;
    int code = TOOL_USAGE;
    if (open_it(n, &err)) {
        const bool ok = (n->blocks ? noop_measure_blocks(n, &misused, &err)
                                   : noop_measure_serial(n, &misused, &err)) &&
                        write_it(n, &err);
        code = ok ? TOOL_OK : misused ? TOOL_USAGE : TOOL_REJECTED;
        if (!ok && (interrupt_requested() || interrupt_is_cause(&err)))
            code = TOOL_INTERRUPTED;
    }
    if (code != TOOL_OK)
        tool_complain(tool, &err);
    noop_free(n);
    return code;
}

int tool_measure_noop(int argc, char **argv)
{
    struct reference_flags f = {0};
    struct noop n = {.flags = &f};
    int64_t pairs = NOOP_PAIRS;
    const struct option_spec options[] = {
        REFERENCE_FLAG_ROWS(&f),
        {"--drafter", OPTION_TEXT, false, "DIR",
         "Tracks of block decoding: the drafter's folder, the same for every leg.", &n.drafter,
         NULL, 0, 0},
        {"--pairs", OPTION_INT, false, "N", "Pairs of legs on each golden, 2 or more. Default 12.",
         &pairs, NULL, NOOP_PAIRS_LEAST, PAIRS_MOST},
        {"--out", OPTION_TEXT, false, "FILE", "The report goes there, as JSON.", &f.out, NULL, 0,
         0},
    };
    const struct command command = {
        "benchd measure-noop",
        "Measures the organiser's tree against itself: noop_decode_speedup of each golden.",
        "Under a contract without block decoding both legs of a pair are serial ones; with it the "
        "control is blocks of width 1 and the candidate blocks of the contract's block_size.\n"
        "Exit codes: 0 measured; 1 not; 2 usage or an unusable contract; 130 interrupted.",
        NULL,
        options,
        COUNT_OF(options)};
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    n.pairs = (size_t)pairs;
    return measure(&n);
}
