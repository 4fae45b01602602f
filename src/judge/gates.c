#include "judge/gates.h"

#include "base/terminal.h"

#include <math.h>

bool gate_top_logits_trusted(const struct wire_top_logits *t, int64_t reported, int64_t vocab_size)
{
    if (t->count < 1 || t->count > WIRE_TOP_LOGITS || t->items[0].token != reported)
        return false;
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *e = &t->items[i];
        if (e->token < 0 || e->token >= vocab_size || !isfinite(e->logit))
            return false;
        for (size_t j = 0; j < i; j++)
            if (t->items[j].token == e->token)
                return false;
        if (i == 0)
            continue;
        const struct wire_top_logit *before = &t->items[i - 1];
        if (e->logit > before->logit || (e->logit == before->logit && e->token < before->token))
            return false;
    }
    return true;
}

static const struct wire_top_logit *find_token(const struct wire_top_logits *t, int64_t token)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->items[i].token == token)
            return &t->items[i];
    return NULL;
}

bool gate_tie_accepts(const struct wire_top_logits *t, int64_t reported, int64_t a,
                      int64_t vocab_size)
{
    if (a == reported)
        return true;
    if (!gate_top_logits_trusted(t, reported, vocab_size))
        return false;
    const struct wire_top_logit *e = find_token(t, a);
    return e != NULL && t->items[0].logit - e->logit <= GATE_TIE_TOLERANCE;
}

static void note_mismatch(struct gate_outcome *o, int64_t step, int64_t expected, int64_t actual)
{
    if (o->mismatches++ > 0)
        return;
    o->step = step;
    o->expected = expected;
    o->actual = actual;
}

void gate_base_begin(struct gate_outcome *o)
{
    *o = (struct gate_outcome){.step = -1, .expected = -1, .actual = -1};
}

static void note_leniency(struct gate_outcome *o, const struct wire_top_logits *t, int64_t token)
{
    const struct wire_top_logit *e = find_token(t, token);
    if (e != NULL && t->items[0].logit - e->logit > o->max_abs_diff)
        o->max_abs_diff = t->items[0].logit - e->logit;
}

void gate_base_step(struct gate_outcome *o, int64_t step, int64_t reported,
                    const struct wire_top_logits *t, int64_t expected, int64_t vocab_size)
{
    if (!gate_tie_accepts(t, reported, expected, vocab_size))
        note_mismatch(o, step, expected, reported);
    else if (reported != expected)
        note_leniency(o, t, expected);
}

void gate_base_end(struct gate_outcome *o, int64_t steps)
{
    o->passed = o->mismatches * 1000 <= GATE_BASE_BUDGET_PER_THOUSAND * steps;
    o->checked_steps = o->passed ? steps : o->step + 1;
}

/* Rank of a token by logit descending, lowest id first; 0 when it is not in the list. */
static int64_t rank_of(const struct wire_top_logits *t, const struct wire_top_logit *e)
{
    int64_t rank = 1;
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *other = &t->items[i];
        if (other->logit > e->logit || (other->logit == e->logit && other->token < e->token))
            rank++;
    }
    return rank;
}

void gate_anchor(struct gate_outcome *o, const struct golden_anchor *a,
                 const struct wire_top_logits *t, int64_t vocab_size)
{
    gate_base_begin(o);
    o->checked_steps = 1;
    const struct wire_top_logit *best = NULL;
    bool finite = t->count > 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct wire_top_logit *e = &t->items[i];
        finite = finite && isfinite(e->logit);
        if (best == NULL || e->logit > best->logit ||
            (e->logit == best->logit && e->token < best->token))
            best = e;
    }
    const int64_t argmax = best != NULL ? best->token : -1;
    if (!finite) {
        note_mismatch(o, 0, a->expected_token, argmax);
        return;
    }
    o->passed = gate_tie_accepts(t, argmax, a->expected_token, vocab_size);
    for (size_t i = 0; !o->passed && i < a->accepted.count; i++)
        o->passed = gate_tie_accepts(t, argmax, a->accepted.items[i], vocab_size);
    const struct wire_top_logit *expected = find_token(t, a->expected_token);
    if (!o->passed && a->has_rank && expected != NULL &&
        gate_top_logits_trusted(t, argmax, vocab_size)) {
        const double most = a->has_delta ? a->max_top_logit_delta : GATE_TIE_TOLERANCE;
        o->passed =
            rank_of(t, expected) <= a->max_expected_rank && best->logit - expected->logit <= most;
        if (o->passed)
            o->max_abs_diff = best->logit - expected->logit;
    }
    if (!o->passed)
        note_mismatch(o, 0, a->expected_token, argmax);
}

void gate_free_run(struct gate_outcome *o, const struct golden_free_run *f,
                   const struct wire_tokens *tokens)
{
    gate_base_begin(o);
    for (size_t i = 0; i < f->exact_prefix; i++) {
        const int64_t got = i < tokens->count ? tokens->items[i] : -1;
        if (got != f->expected.items[i])
            note_mismatch(o, (int64_t)i, f->expected.items[i], got);
    }
    o->passed = o->mismatches == 0;
    o->checked_steps = o->passed ? (int64_t)f->exact_prefix : o->step + 1;
}

void gate_behavior(struct gate_outcome *o, const struct golden_behavior *b,
                   const struct wire_tokens *tokens)
{
    gate_base_begin(o);
    /* Of several accepted sequences the one that was followed furthest tells what went wrong. */
    int64_t furthest = -1;
    for (size_t s = 0; s < b->accepted_count && !o->passed; s++) {
        const struct golden_tokens *want = &b->accepted[s];
        size_t i = 0;
        while (i < want->count && i < tokens->count && want->items[i] == tokens->items[i])
            i++;
        if (i == want->count) {
            *o = (struct gate_outcome){.passed = true,
                                       .checked_steps = (int64_t)want->count,
                                       .step = -1,
                                       .expected = -1,
                                       .actual = -1};
        } else if ((int64_t)i > furthest) {
            furthest = (int64_t)i;
            o->mismatches = 0;
            note_mismatch(o, (int64_t)i, want->items[i], i < tokens->count ? tokens->items[i] : -1);
            o->checked_steps = o->step + 1;
        }
    }
}

/* The walk. */
struct walk {
    struct client *client;
    const struct gates_plan *plan;
    struct gates_result *result;
    struct progress progress;
    uint64_t steps_done;
};

static bool close_case(struct walk *w, const char *name, const char *error,
                       const struct gate_outcome *o, struct error *err)
{
    struct gates_result *r = w->result;
    const struct wire_response *reply;
    if (!client_barrier(w->client, -1, &reply, err))
        return false;
    if (reply->expert_stats.present)
        r->expert_stats = reply->expert_stats;
    r->run_count++;
    if (o->max_abs_diff > r->max_abs_diff)
        r->max_abs_diff = o->max_abs_diff;
    if (r->first_failing_case == NULL)
        r->checked_steps += o->checked_steps;
    if (o->passed)
        return true;
    r->failed_count++;
    if (r->first_failing_case == NULL) {
        r->first_failing_case = name;
        r->first_failure = *o;
        r->error = error;
    }
    return true;
}

static void step_done(struct walk *w, uint64_t steps)
{
    w->steps_done += steps;
    progress_update(&w->progress, w->steps_done);
}

static bool walk_base(struct walk *w, const struct golden_case *k, struct error *err)
{
    struct gate_outcome o;
    gate_base_begin(&o);
    for (int64_t i = 0; i < w->plan->steps; i++) {
        struct wire_request q =
            client_request(i == 0 ? WIRE_KIND_correctness_begin : WIRE_KIND_correctness_step);
        if (i == 0)
            q.prompt_tokens = client_tokens(k->prompt.items, k->prompt.count);
        else
            q.token = (struct wire_i64){.present = true, .value = k->expected.items[i - 1]};
        const struct wire_response *r;
        if (!client_call(w->client, &q, 0, &r, NULL, err))
            return false;
        gate_base_step(&o, i, r->token.value, &r->top_logits, k->expected.items[i],
                       w->plan->vocab_size);
        step_done(w, 1);
    }
    gate_base_end(&o, w->plan->steps);
    return close_case(w, k->name, "teacher-forced token mismatch", &o, err);
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
                       const struct wire_response **r, struct error *err)
{
    struct wire_request q = client_request(WIRE_KIND_correctness);
    q.prompt_tokens = client_tokens(prompt->items, prompt->count);
    q.steps = (struct wire_i64){.present = true, .value = steps};
    if (!client_call(w->client, &q, 0, r, NULL, err))
        return false;
    step_done(w, (uint64_t)steps);
    return true;
}

static bool walk_free_run(struct walk *w, const struct golden_free_run *f, struct error *err)
{
    const struct wire_response *r;
    if (!ask_greedy(w, &f->prompt, (int64_t)f->expected.count, &r, err))
        return false;
    struct gate_outcome o;
    gate_free_run(&o, f, &r->tokens);
    return close_case(w, f->name, "free-run token mismatch", &o, err);
}

static bool walk_behavior(struct walk *w, const struct golden_behavior *b, struct error *err)
{
    const struct wire_response *r;
    if (!ask_greedy(w, &b->prompt, b->max_new_tokens, &r, err))
        return false;
    struct gate_outcome o;
    gate_behavior(&o, b, &r->tokens);
    return close_case(w, b->name, "behavior token mismatch", &o, err);
}

/* A case whose answer is judged by its meaning cannot be compared token by token. */
static bool is_semantic(const struct golden_behavior *b)
{
    return b->semantic_prompt != NULL || b->semantic_answer_key != NULL ||
           b->semantic_reference_answer != NULL;
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
        if (!is_semantic(&g->behaviors[i]))
            n += (uint64_t)g->behaviors[i].max_new_tokens;
    return n;
}

static bool walk_all(struct walk *w, struct error *err)
{
    const struct golden *g = w->plan->golden;
    for (size_t i = 0; i < g->case_count; i++)
        if (!walk_base(w, &g->cases[i], err))
            return false;
    if (!w->plan->all)
        return true;
    for (size_t i = 0; i < g->anchor_count; i++)
        if (!walk_anchor(w, &g->anchors[i], err))
            return false;
    for (size_t i = 0; i < g->free_run_count; i++)
        if (!walk_free_run(w, &g->free_runs[i], err))
            return false;
    for (size_t i = 0; i < g->behavior_count; i++)
        if (!is_semantic(&g->behaviors[i]) && !walk_behavior(w, &g->behaviors[i], err))
            return false;
    return true;
}

bool gates_run(struct client *c, const struct gates_plan *plan, struct gates_result *out,
               struct error *err)
{
    *out = (struct gates_result){.error = "",
                                 .case_count = (int64_t)golden_gate_case_count(plan->golden)};
    for (size_t i = 0; i < plan->golden->behavior_count; i++)
        out->semantic_count += is_semantic(&plan->golden->behaviors[i]);
    struct walk w = {.client = c, .plan = plan, .result = out, .progress = {.quiet = plan->quiet}};
    progress_begin(&w.progress, "correctness", "steps", count_steps(plan));
    const bool walked = walk_all(&w, err);
    progress_end(&w.progress);
    out->passed = walked && out->failed_count == 0;
    return walked;
}
