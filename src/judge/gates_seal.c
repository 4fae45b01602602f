/* What the gates came to, in the score: aggregates of the answers judged by their meaning, and of
 * no case but the first that failed. */
#include "judge/gates.h"

#include "judge/score.h"
#include "judge/seal.h"

#include <inttypes.h>

void gates_failure_text(const struct gates_result *g, struct buffer *out)
{
    if (g->first_failing_case == NULL)
        return;
    if (g->first_failure.step < 0) {
        const struct gates_semantic *s = &g->semantic;
        if (s->asked > 0)
            buffer_printf(out, "%" PRId64 " of %" PRId64 " right, %" PRId64 " needed",
                          s->pass_count, s->case_count, s->needed);
        else
            buffer_printf(out, "%" PRId64 " of %" PRId64 " first tokens agree", s->ttft_pass_count,
                          s->ttft_count);
        return;
    }
    struct buffer name = {0};
    seal_scrub(g->first_failing_case, &name);
    buffer_printf(out, "case %s, step %" PRId64, name.data != NULL ? name.data : "",
                  g->first_failure.step);
    buffer_free(&name);
}

static void seal_semantic(const struct gates_semantic *s, struct score_document *d)
{
    if (s->ttft_count > 0) {
        score_set_int(d, "gpqa_ttft_case_count", s->ttft_count);
        score_set_int(d, "gpqa_ttft_pass_count", s->ttft_pass_count);
        score_set_bool(d, "gpqa_ttft_passed", s->ttft_pass_count == s->ttft_count);
        score_set_number(d, "gpqa_ttft_seconds", s->ttft_mean_seconds);
        score_set_number(d, "gpqa_ttft_p50_seconds", s->ttft_median_seconds);
        score_set_number(d, "gpqa_ttft_max_seconds", s->ttft_max_seconds);
        score_set_text(d, "gpqa_ttft_source", "parent clock, one-token correctness request");
    }
    if (s->asked > 0) {
        score_set_int(d, "semantic_gpqa_case_count", s->case_count);
        score_set_int(d, "semantic_gpqa_pass_count", s->pass_count);
        score_set_bool(d, "semantic_gpqa_passed",
                       s->asked == s->case_count && s->pass_count >= s->needed);
        score_set_text(d, "semantic_gpqa_model", s->model);
    }
}

void gates_seal(const struct gates_result *g, struct score_document *d)
{
    score_set_int(d, "checked_steps", g->checked_steps);
    score_set_number(d, "max_abs_diff", g->max_abs_diff);
    seal_semantic(&g->semantic, d);
    if (g->first_failing_case == NULL)
        return;
    score_set_text(d, "first_failing_case", g->first_failing_case);
    if (g->first_failure.step < 0)
        return; /* no step and no tokens: see gates_semantic */
    score_set_int(d, "first_failing_step", g->first_failure.step);
    score_set_int(d, "expected_token", g->first_failure.expected);
    score_set_int(d, "actual_token", g->first_failure.actual);
}

void gates_seal_latency(const struct gates_latency *l, struct score_document *d)
{
    if (l->count == 0)
        return;
    json_t *steps = json_array();
    for (size_t i = 0; i < l->count; i++)
        json_array_append_new(steps, json_real(l->seconds[i]));
    score_set_json(d, "step_seconds", steps);
}
