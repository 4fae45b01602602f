#include "judge/report.h"

#include "base/terminal.h"

#include <inttypes.h>
#include <stdio.h>

static void rate_text(char *out, size_t size, bool known, double seconds_per_token)
{
    if (known && seconds_per_token > 0)
        snprintf(out, size, "%.1f tok/s", 1.0 / seconds_per_token);
    else
        snprintf(out, size, "not timed");
}

void report_run(const struct score_document *d, const struct gates_result *gates, bool gates_ran,
                const struct measure_result *m, const char *score_path)
{
    char correctness[160], prefill[64], decode[64], score[64];
    if (!gates_ran)
        snprintf(correctness, sizeof correctness, "not finished");
    else if (gates->passed)
        snprintf(correctness, sizeof correctness,
                 "passed: %" PRId64 " of %" PRId64 " cases run, %" PRId64 " steps checked",
                 gates->run_count, gates->case_count, gates->checked_steps);
    else if (gates->first_failure.step < 0)
        snprintf(correctness, sizeof correctness, "FAILED: %s", gates->error);
    else
        snprintf(correctness, sizeof correctness,
                 "FAILED: %" PRId64 " of %" PRId64 " cases, first %.64s at step %" PRId64,
                 gates->failed_count, gates->run_count, gates->first_failing_case,
                 gates->first_failure.step);
    rate_text(prefill, sizeof prefill, m->prefill_seconds_per_token > 0,
              m->prefill_seconds_per_token);
    rate_text(decode, sizeof decode, m->timed, m->decode_seconds_per_token);
    if (d->has_score)
        snprintf(score, sizeof score, "%.6f", d->score);
    else
        snprintf(score, sizeof score, "none (%s)", d->passed ? "unscored local run" : "not passed");
    struct table *t = table_new(2);
    table_row(t, "correctness", correctness);
    table_row(t, "prefill", prefill);
    table_row(t, "decode", decode);
    table_row(t, "score", score);
    table_row(t, "sealed in", score_path);
    table_print(t);
}
