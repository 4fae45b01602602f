/* The walk through a golden's cases: what is asked of the engine, in which order. */
#include "judge/gates.h"

#include "base/arena.h"
#include "base/stats.h"
#include "base/terminal.h"

#include <string.h>

struct answer;
struct walk {
    struct client *client;
    const struct gates_plan *plan;
    struct gates_result *result;
    struct progress progress;
    uint64_t steps_done;
    struct arena arena;
    struct answer *answers; /* of the semantic cases, in the golden's order */
    size_t answer_count;
};
struct answer {
    const struct golden_behavior *behavior;
    int64_t *tokens;
    size_t count;
    double ttft_seconds;
    int64_t first_token; /* of the request for one token */
};

static bool close_interval(struct walk *w, struct error *err)
{
    const struct wire_response *reply;
    if (!client_barrier(w->client, -1, &reply, err))
        return false;
    if (reply->expert_stats.present)
        w->result->expert_stats = reply->expert_stats;
    return true;
}

static void note_failure(struct gates_result *r, const char *name, const char *error,
                         const struct gate_outcome *o)
{
    r->failed_count++;
    if (r->first_failing_case != NULL)
        return;
    r->first_failing_case = name;
    r->first_failure = *o;
    r->error = error;
}

static bool close_case(struct walk *w, const char *name, const char *error,
                       const struct gate_outcome *o, struct error *err)
{
    struct gates_result *r = w->result;
    if (!close_interval(w, err))
        return false;
    r->run_count++;
    if (o->max_abs_diff > r->max_abs_diff)
        r->max_abs_diff = o->max_abs_diff;
    if (r->first_failing_case == NULL)
        r->checked_steps += o->checked_steps;
    if (!o->passed)
        note_failure(r, name, error, o);
    if (o->mismatches > 0 && w->plan->diverged != NULL)
        w->plan->diverged(w->plan->diverged_context, name, o);
    return true;
}

static void step_done(struct walk *w, uint64_t steps)
{
    w->steps_done += steps;
    progress_update(&w->progress, w->steps_done);
}

static void keep_latency(struct gates_latency *l, int64_t ns)
{
    if (l != NULL && l->count < l->capacity)
        l->seconds[l->count++] = (double)ns * 1e-9;
}

static bool walk_base(struct walk *w, const struct golden_case *k, struct gates_latency *latency,
                      struct error *err)
{
    struct gate_outcome o;
    gate_base_begin(&o);
    if (w->plan->has_mismatch_gap)
        gate_base_demand_gap(&o, w->plan->mismatch_gap);
    for (int64_t i = 0; i < w->plan->steps; i++) {
        struct wire_request q =
            client_request(i == 0 ? WIRE_KIND_correctness_begin : WIRE_KIND_correctness_step);
        if (i == 0)
            q.prompt_tokens = client_tokens(k->prompt.items, k->prompt.count);
        else
            q.token = (struct wire_i64){.present = true, .value = k->expected.items[i - 1]};
        const struct wire_response *r;
        int64_t ns;
        if (!client_call(w->client, &q, 0, &r, &ns, err))
            return false;
        if (i > 0) /* the first is a prefill */
            keep_latency(latency, ns);
        gate_base_step(&o, i, r->token.value, &r->top_logits, k->expected.items[i],
                       w->plan->vocab_size);
        step_done(w, 1);
    }
    gate_base_end(&o, w->plan->steps);
    return close_case(w, k->name,
                      o.beyond_gap ? "teacher-forced mismatch beyond the logit gap"
                                   : "teacher-forced token mismatch",
                      &o, err);
}

static bool walk_anchor(struct walk *w, const struct golden_anchor *a, struct error *err)
{
    struct wire_request q = client_request(WIRE_KIND_correctness_begin);
    q.prompt_tokens = client_tokens(a->context.items, a->context.count);
    const struct wire_response *r;
    if (!client_call(w->client, &q, 0, &r, NULL, err))
        return false;
    struct gate_outcome o;
    gate_anchor(&o, a, &r->top_logits, w->plan->vocab_size);
    step_done(w, 1);
    return close_case(w, a->name, "anchor token mismatch", &o, err);
}

static bool ask_greedy(struct walk *w, const struct golden_tokens *prompt, int64_t steps,
                       const struct wire_response **r, int64_t *elapsed_ns, struct error *err)
{
    struct wire_request q = client_request(WIRE_KIND_correctness);
    q.prompt_tokens = client_tokens(prompt->items, prompt->count);
    q.steps = (struct wire_i64){.present = true, .value = steps};
    if (!client_call(w->client, &q, 0, r, elapsed_ns, err))
        return false;
    step_done(w, (uint64_t)steps);
    return true;
}

static bool walk_free_run(struct walk *w, const struct golden_free_run *f, struct error *err)
{
    const struct wire_response *r;
    if (!ask_greedy(w, &f->prompt, (int64_t)f->expected.count, &r, NULL, err))
        return false;
    struct gate_outcome o;
    gate_free_run(&o, f, &r->tokens);
    return close_case(w, f->name, "free-run token mismatch", &o, err);
}

static bool walk_behavior(struct walk *w, const struct golden_behavior *b, struct error *err)
{
    const struct wire_response *r;
    if (!ask_greedy(w, &b->prompt, b->max_new_tokens, &r, NULL, err))
        return false;
    struct gate_outcome o;
    gate_behavior(&o, b, &r->tokens);
    return close_case(w, b->name, "behavior token mismatch", &o, err);
}

/* First one token, which the judge times, then the whole answer; a barrier between them, so that
 * neither is served from what the other left behind. */
static bool walk_semantic(struct walk *w, const struct golden_behavior *b, struct error *err)
{
    struct answer *a = &w->answers[w->answer_count];
    const struct wire_response *r;
    int64_t elapsed_ns;
    if (!ask_greedy(w, &b->prompt, 1, &r, &elapsed_ns, err))
        return false;
    *a = (struct answer){.behavior = b,
                         .ttft_seconds = (double)elapsed_ns * 1e-9,
                         .first_token = r->tokens.items[0]};
    if (!close_interval(w, err) || !ask_greedy(w, &b->prompt, b->max_new_tokens, &r, NULL, err))
        return false;
    a->count = r->tokens.count;
    a->tokens = arena_array(&w->arena, a->count, sizeof *a->tokens);
    memcpy(a->tokens, r->tokens.items, a->count * sizeof *a->tokens);
    w->answer_count++;
    w->result->run_count++;
    return close_interval(w, err);
}

static uint64_t count_steps(const struct gates_plan *plan)
{
    const struct golden *g = plan->golden;
    uint64_t n = g->case_count * (uint64_t)plan->steps;
    if (!plan->all)
        return n;
    n += g->anchor_count;
    for (size_t i = 0; i < g->free_run_count; i++)
        n += g->free_runs[i].expected.count;
    for (size_t i = 0; i < g->behavior_count; i++)
        n += (uint64_t)g->behaviors[i].max_new_tokens + semantic_is_case(&g->behaviors[i]);
    return n;
}

static bool walk_all(struct walk *w, struct error *err)
{
    const struct golden *g = w->plan->golden;
    for (size_t i = 0; i < g->case_count; i++)
        if (!walk_base(w, &g->cases[i], i == 0 ? w->plan->latency : NULL, err))
            return false;
    if (!w->plan->all)
        return true;
    for (size_t i = 0; i < g->anchor_count; i++)
        if (!walk_anchor(w, &g->anchors[i], err))
            return false;
    for (size_t i = 0; i < g->free_run_count; i++)
        if (!walk_free_run(w, &g->free_runs[i], err))
            return false;
    w->answers = arena_array(&w->arena, semantic_case_count(g), sizeof *w->answers);
    for (size_t i = 0; i < g->behavior_count; i++) {
        const struct golden_behavior *b = &g->behaviors[i];
        if (!(semantic_is_case(b) ? walk_semantic(w, b, err) : walk_behavior(w, b, err)))
            return false;
    }
    return true;
}

static const char semantic_label[] = "semantic cases";

/* Which of the answers failed is kept out of the result: no case, no token, no step. */
static void note_semantic_failure(struct gates_result *r, const char *error)
{
    struct gate_outcome o;
    gate_base_begin(&o);
    note_failure(r, semantic_label, error, &o);
}

static void sum_up_first_tokens(struct walk *w)
{
    struct gates_semantic *s = &w->result->semantic;
    const size_t n = w->answer_count;
    if (n == 0)
        return;
    double *seconds = arena_array(&w->arena, n, sizeof *seconds);
    for (size_t i = 0; i < n; i++) {
        const struct answer *a = &w->answers[i];
        seconds[i] = a->ttft_seconds;
        s->ttft_pass_count += a->first_token == a->tokens[0];
    }
    s->ttft_count = (int64_t)n;
    s->ttft_mean_seconds = stats_mean(seconds, n);
    s->ttft_median_seconds = stats_median(seconds, n);
    s->ttft_max_seconds = stats_max(seconds, n);
    if (s->ttft_pass_count < s->ttft_count)
        note_semantic_failure(w->result, "first token differs from the answer's");
}

static bool judge_answers(struct walk *w, struct error *err)
{
    struct gates_semantic *s = &w->result->semantic;
    struct progress p = {.quiet = w->plan->quiet};
    progress_begin(&p, "meanings", "answers", w->answer_count);
    bool ok = true;
    for (size_t i = 0; ok && i < w->answer_count; i++) {
        const struct answer *a = &w->answers[i];
        struct semantic_verdict v = {0};
        ok = semantic_judge_ask(w->plan->semantic, a->behavior, a->tokens, a->count, &v, err);
        if (ok && i > 0 && strcmp(v.model, s->model) != 0)
            ok = error_set(err, "SEMANTIC-JUDGE-INVALID",
                           "the verdict names another model than the one before");
        if (!ok)
            break;
        memcpy(s->model, v.model, sizeof s->model);
        s->asked++;
        s->pass_count += v.pass;
        progress_update(&p, i + 1);
    }
    progress_end(&p);
    if (ok && s->pass_count < s->needed)
        note_semantic_failure(w->result, "semantic answers below the threshold");
    return ok;
}

/* Without the arena, which is the caller's to free. */
static bool walk_and_judge(struct walk *w, struct error *err)
{
    progress_begin(&w->progress, "correctness", "steps", count_steps(w->plan));
    const bool walked = walk_all(w, err);
    progress_end(&w->progress);
    if (!walked)
        return false;
    sum_up_first_tokens(w);
    /* A judge of meanings may cost money: it is not asked about a run that has failed already. */
    return w->answer_count == 0 || w->result->failed_count > 0 || judge_answers(w, err);
}

bool gates_run(struct client *c, const struct gates_plan *plan, struct gates_result *out,
               struct error *err)
{
    *out = (struct gates_result){.error = "",
                                 .case_count = (int64_t)golden_gate_case_count(plan->golden)};
    const int64_t meanings = (int64_t)semantic_case_count(plan->golden);
    out->semantic.case_count = meanings;
    out->semantic.needed = plan->semantic_min_pass > 0 ? plan->semantic_min_pass : meanings;
    if (plan->all &&
        !semantic_check_ready(plan->semantic, plan->golden, plan->semantic_min_pass, err))
        return false;
    struct walk w = {.client = c, .plan = plan, .result = out, .progress = {.quiet = plan->quiet}};
    const bool walked = walk_and_judge(&w, err);
    arena_free(&w.arena);
    out->passed = walked && out->failed_count == 0;
    return walked;
}
