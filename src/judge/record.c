#include "judge/record.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "base/terminal.h"
#include "judge/client.h"
#include "judge/contract.h"
#include "judge/digest.h"
#include "judge/golden.h"
#include "judge/sandbox.h"
#include "judge/screen.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PROMPT_BYTES_MAX = 16 << 20,
    ANCHOR_CONTEXT_MAX = 1024,
    BEHAVIOR_PROMPT_MAX = 2048 /* goldens.md section 2 */
};

int64_t record_mock_next(int64_t last, size_t length, int64_t vocab_size)
{
    return (last * 31 + (int64_t)length * 17 + 7) % vocab_size;
}

static bool prompt_invalid(struct error *err, const char *path, const char *value, const char *what)
{
    error_set(err, "RECORD-PROMPT-INVALID", "%s", what);
    return error_at(err, path, NULL, value);
}

static bool is_gap(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',';
}

/* JSON's brackets are only marks around the same list. */
static bool strip_brackets(char **text, size_t *length)
{
    while (*length > 0 && is_gap((*text)[*length - 1]) && (*text)[*length - 1] != ',')
        --*length;
    while (*length > 0 && is_gap(**text) && **text != ',')
        ++*text, --*length;
    if (*length == 0 || **text != '[')
        return true;
    if (*length < 2 || (*text)[*length - 1] != ']')
        return false;
    ++*text;
    *length -= 2;
    return true;
}

bool record_read_tokens(const char *path, int64_t vocab_size, int64_t **out, size_t *count,
                        struct error *err)
{
    struct buffer b = {0};
    *out = NULL;
    *count = 0;
    if (!file_read(path, PROMPT_BYTES_MAX, &b, err)) {
        buffer_free(&b);
        return false;
    }
    char *p = b.data;
    size_t length = b.length;
    bool ok = length > 0 && strip_brackets(&p, &length);
    if (!ok)
        prompt_invalid(err, path, NULL,
                       "a prompt is a JSON array of token ids, or ids between "
                       "white space and commas");
    int64_t *items = memory_alloc((length / 2 + 1) * sizeof *items);
    size_t n = 0;
    for (size_t i = 0; ok && i < length;) {
        if (is_gap(p[i])) {
            i++;
            continue;
        }
        size_t end = i;
        while (end < length && !is_gap(p[end]))
            end++;
        char word[32];
        const bool fits = end - i < sizeof word;
        memcpy(word, p + i, fits ? end - i : sizeof word - 1);
        word[fits ? end - i : sizeof word - 1] = '\0';
        if (!fits || !number_int64(word, 0, vocab_size - 1, &items[n]))
            ok = prompt_invalid(err, path, word, "not a token id of this vocabulary");
        n++;
        i = end;
    }
    buffer_free(&b);
    if (ok && n == 0)
        ok = prompt_invalid(err, path, NULL, "no token ids in it");
    if (!ok) {
        free(items);
        return false;
    }
    *out = items;
    *count = n;
    return true;
}

struct prompt {
    const char *name, *path;
    int64_t *items;
    size_t count;
};

struct recorder {
    const struct record_options *o;
    struct arena arena;
    struct contract *contract;
    struct client_options client_options;
    struct sandbox_plan sandbox;
    struct reply_window window; /* a golden comes from one load of the model */
    struct run_stamps stamps;   /* "" in mock runs */
    json_t *document;
    json_t *screens; /* of the base cases */
    /* Of each base case, for the checks between cases. */
    struct prompt *prompts;
    int64_t **continuations;
};

static bool read_prompt(struct recorder *r, const char *name, const char *file, size_t exact,
                        size_t most, struct prompt *out, struct error *err)
{
    int64_t *items;
    size_t count;
    if (!record_read_tokens(file, r->contract->vocab_size, &items, &count, err))
        return false;
    out->name = name;
    out->path = file;
    out->count = count;
    out->items = arena_array(&r->arena, count, sizeof *items);
    memcpy(out->items, items, count * sizeof *items);
    free(items);
    char value[32], text[128];
    snprintf(value, sizeof value, "%zu", count);
    if (exact > 0 && count != exact) {
        snprintf(text, sizeof text, "the track's prompts are exactly %zu tokens long", exact);
        return prompt_invalid(err, file, value, text);
    }
    if (most > 0 && count > most) {
        snprintf(text, sizeof text, "such a prompt has at most %zu tokens", most);
        return prompt_invalid(err, file, value, text);
    }
    return true;
}

static json_t *tokens_json(const int64_t *items, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(items[i]));
    return array;
}

/* What the top-2 gaps of a continuation came to. */
struct gaps {
    double minimum, seed; /* seed: of the row behind the prompt, which gives the seed token */
    int64_t near_ties, rows;
};

static void note_gap(struct gaps *g, const struct wire_top_logits *t)
{
    const double gap = t->items[0].logit - t->items[1].logit;
    if (g->rows == 0)
        g->seed = gap;
    if (g->rows++ == 0 || gap < g->minimum)
        g->minimum = gap;
    g->near_ties += gap < SCREEN_NEAR_TIE_GAP;
}

static bool open_client(struct recorder *r, bool free_run, struct client **c, struct error *err)
{
    struct client_options options = r->client_options;
    options.speculative_v1_1 = free_run;
    options.window = &r->window;
    return client_start(&options, c, err);
}

static bool teacher_forced(struct recorder *r, struct client *c, const struct prompt *p,
                           int64_t steps, int64_t *out, struct gaps *gaps, struct error *err)
{
    struct progress progress = {.quiet = r->o->quiet};
    progress_begin(&progress, p->name, "steps", (uint64_t)steps);
    bool ok = true;
    for (int64_t i = 0; ok && i < steps; i++) {
        struct wire_request q =
            client_request(i == 0 ? WIRE_KIND_correctness_begin : WIRE_KIND_correctness_step);
        if (i == 0)
            q.prompt_tokens = client_tokens(p->items, p->count);
        else
            q.token = (struct wire_i64){.present = true, .value = out[i - 1]};
        const struct wire_response *reply;
        ok = client_call(c, &q, 0, &reply, NULL, err);
        if (!ok)
            break;
        out[i] = reply->token.value;
        note_gap(gaps, &reply->top_logits);
        progress_update(&progress, (uint64_t)i + 1);
    }
    progress_end(&progress);
    return ok && client_barrier(c, -1, NULL, err);
}

static void mock_greedy(const struct recorder *r, const struct prompt *p, int64_t steps,
                        int64_t *out)
{
    int64_t last = p->items[p->count - 1];
    for (int64_t i = 0; i < steps; i++)
        last = out[i] = record_mock_next(last, p->count + (size_t)i, r->contract->vocab_size);
}

/* The engine's teacher-forced continuation, from a cold engine. */
static bool record_forced(struct recorder *r, const struct prompt *p, int64_t steps, int64_t *out,
                          struct gaps *gaps, struct error *err)
{
    *gaps = (struct gaps){0};
    if (r->o->mock) {
        mock_greedy(r, p, steps, out);
        *gaps = (struct gaps){.minimum = 1, .seed = 1, .rows = steps};
        return true;
    }
    struct client *c;
    const bool ok =
        open_client(r, false, &c, err) && teacher_forced(r, c, p, steps, out, gaps, err);
    client_free(c);
    return ok;
}

/* The engine's own run, from a cold engine. */
static bool record_greedy(struct recorder *r, const struct prompt *p, int64_t steps, int64_t *out,
                          struct error *err)
{
    if (r->o->mock) {
        mock_greedy(r, p, steps, out);
        return true;
    }
    struct client *c;
    struct wire_request q = client_request(WIRE_KIND_correctness);
    q.prompt_tokens = client_tokens(p->items, p->count);
    q.steps = (struct wire_i64){.present = true, .value = steps};
    const struct wire_response *reply;
    bool ok = open_client(r, false, &c, err) && client_call(c, &q, 0, &reply, NULL, err);
    if (ok) {
        memcpy(out, reply->tokens.items, (size_t)steps * sizeof *out);
        ok = client_barrier(c, -1, NULL, err);
    }
    client_free(c);
    return ok;
}

/* The benchmark's verbs themselves, in one session as it will be timed. */
static bool record_timed_verbs(struct recorder *r, const struct prompt *prefill,
                               const struct prompt *seed, int64_t steps, int64_t *prefill_token,
                               int64_t *out, struct error *err)
{
    if (r->o->mock) {
        mock_greedy(r, prefill, 1, prefill_token);
        mock_greedy(r, seed, steps + 1, out);
        return true;
    }
    struct client *c;
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = client_tokens(prefill->items, prefill->count);
    const struct wire_response *reply;
    bool ok = open_client(r, true, &c, err) && client_call(c, &q, 0, &reply, NULL, err);
    if (ok) {
        *prefill_token = reply->token.value;
        ok = client_barrier(c, -1, NULL, err);
    }
    struct wire_request begin = client_request(WIRE_KIND_free_decode_begin);
    begin.seed_tokens = client_tokens(seed->items, seed->count);
    ok = ok && client_call(c, &begin, 0, &reply, NULL, err);
    if (ok) {
        out[0] = reply->seed_token.value;
        struct wire_request run = client_request(WIRE_KIND_free_decode_run);
        run.count = (struct wire_u32){.present = true, .value = (uint32_t)steps};
        ok = client_call(c, &run, 0, &reply, NULL, err);
    }
    if (ok) {
        memcpy(out + 1, reply->tokens.items, (size_t)steps * sizeof *out);
        ok = client_barrier(c, (int64_t)reply->acceptance_lengths.count + 1, NULL, err);
    }
    client_free(c);
    return ok;
}

/* Two ways to the same tokens must meet: a golden that an engine contradicts itself on is none. */
static bool check_same(const struct recorder *r, const struct prompt *p, const int64_t *tokens,
                       int64_t count, const char *what, struct error *err)
{
    for (size_t k = 0; k < r->o->case_count; k++) {
        const struct prompt *q = &r->prompts[k];
        if (q->count != p->count || memcmp(q->items, p->items, p->count * sizeof *p->items) != 0)
            continue;
        for (int64_t i = 0; i < count && i < r->o->steps; i++) {
            if (tokens[i] == r->continuations[k][i])
                continue;
            error_set(err, "RECORD-NOT-SELF-CONSISTENT",
                      "%s and the teacher-forced case %s differ at step %" PRId64, what, q->name,
                      i);
            return error_at(err, p->path, what, NULL);
        }
    }
    return true;
}

static void add_screen(struct recorder *r, const struct prompt *p, const int64_t *continuation,
                       const struct gaps *gaps)
{
    struct screen_ngram ngram;
    const size_t n =
        r->o->steps < SCREEN_NGRAM_CONTINUATION ? (size_t)r->o->steps : SCREEN_NGRAM_CONTINUATION;
    screen_ngram(p->items, p->count, continuation, n, &ngram);
    json_t *s = json_object();
    json_object_set_new(s, "name", json_string(p->name));
    json_object_set_new(s, "distinct_token_fraction",
                        json_real(screen_distinct_fraction(p->items, p->count)));
    json_object_set_new(s, "row_count", json_integer(gaps->rows));
    json_object_set_new(s, "minimum_top2_gap", json_real(gaps->minimum));
    json_object_set_new(s, "seed_row_top2_gap", json_real(gaps->seed));
    json_object_set_new(s, "near_tie_row_count", json_integer(gaps->near_ties));
    json_object_set_new(s, "ngram", screen_ngram_json(&ngram));
    json_array_append_new(r->screens, s);
}

static bool add_cases(struct recorder *r, struct error *err)
{
    const struct record_options *o = r->o;
    json_t *cases = json_array();
    json_object_set_new(r->document, "cases", cases);
    r->prompts = arena_array(&r->arena, o->case_count, sizeof *r->prompts);
    r->continuations = arena_array(&r->arena, o->case_count, sizeof *r->continuations);
    for (size_t i = 0; i < o->case_count; i++) {
        struct prompt *p = &r->prompts[i];
        int64_t *out = r->continuations[i] = arena_array(&r->arena, (size_t)o->steps, sizeof *out);
        struct gaps gaps;
        if (!read_prompt(r, o->cases[i].name, o->cases[i].file, (size_t)r->contract->seed_tokens, 0,
                         p, err) ||
            !record_forced(r, p, o->steps, out, &gaps, err))
            return false;
        json_t *k = json_object();
        json_object_set_new(k, "name", json_string(p->name));
        json_object_set_new(k, "prompt_tokens", tokens_json(p->items, p->count));
        json_object_set_new(k, "expected_tokens", tokens_json(out, (size_t)o->steps));
        json_array_append_new(cases, k);
        add_screen(r, p, out, &gaps);
    }
    return true;
}

static bool add_anchors(struct recorder *r, json_t *gates, struct error *err)
{
    const struct record_options *o = r->o;
    json_t *anchors = json_array();
    json_object_set_new(gates, "anchors", anchors);
    for (size_t i = 0; i < o->anchor_count; i++) {
        struct prompt p;
        struct gaps gaps;
        int64_t token;
        if (!read_prompt(r, o->anchors[i].name, o->anchors[i].file, 0, ANCHOR_CONTEXT_MAX, &p,
                         err) ||
            !record_forced(r, &p, 1, &token, &gaps, err))
            return false;
        json_t *a = json_object();
        json_object_set_new(a, "name", json_string(p.name));
        json_object_set_new(a, "context_tokens", tokens_json(p.items, p.count));
        json_object_set_new(a, "expected_token", json_integer(token));
        if (o->anchor_max_rank > 0)
            json_object_set_new(a, "max_expected_rank", json_integer(o->anchor_max_rank));
        if (o->has_anchor_max_delta)
            json_object_set_new(a, "max_top_logit_delta", json_real(o->anchor_max_delta));
        json_array_append_new(anchors, a);
    }
    return true;
}

static bool add_free_runs(struct recorder *r, json_t *gates, struct error *err)
{
    const struct record_options *o = r->o;
    json_t *runs = json_array();
    json_object_set_new(gates, "free_run", runs);
    int64_t *out = arena_array(&r->arena, (size_t)o->free_run_steps, sizeof *out);
    for (size_t i = 0; i < o->free_run_count; i++) {
        struct prompt p;
        if (!read_prompt(r, o->free_runs[i].name, o->free_runs[i].file,
                         (size_t)r->contract->seed_tokens, 0, &p, err) ||
            !record_greedy(r, &p, o->free_run_steps, out, err) ||
            !check_same(r, &p, out, o->free_run_steps, "free_run", err))
            return false;
        json_t *f = json_object();
        json_object_set_new(f, "name", json_string(p.name));
        json_object_set_new(f, "prompt_tokens", tokens_json(p.items, p.count));
        json_object_set_new(f, "expected_tokens", tokens_json(out, (size_t)o->free_run_steps));
        json_array_append_new(runs, f);
    }
    return true;
}

static bool add_behaviors(struct recorder *r, json_t *gates, struct error *err)
{
    const struct record_options *o = r->o;
    json_t *behaviors = json_array();
    json_object_set_new(gates, "behavior", behaviors);
    int64_t *out = arena_array(&r->arena, (size_t)o->behavior_steps, sizeof *out);
    for (size_t i = 0; i < o->behavior_count; i++) {
        struct prompt p;
        if (!read_prompt(r, o->behaviors[i].name, o->behaviors[i].file, 0, BEHAVIOR_PROMPT_MAX, &p,
                         err) ||
            !record_greedy(r, &p, o->behavior_steps, out, err) ||
            !check_same(r, &p, out, o->behavior_steps, "behavior", err))
            return false;
        json_t *b = json_object(), *sequences = json_array();
        json_array_append_new(sequences, tokens_json(out, (size_t)o->behavior_steps));
        json_object_set_new(b, "name", json_string(p.name));
        json_object_set_new(b, "prompt_tokens", tokens_json(p.items, p.count));
        json_object_set_new(b, "accepted_token_sequences", sequences);
        json_object_set_new(b, "max_new_tokens", json_integer(o->behavior_steps));
        json_array_append_new(behaviors, b);
    }
    return true;
}

static bool add_gates(struct recorder *r, struct error *err)
{
    const struct record_options *o = r->o;
    if (o->anchor_count + o->free_run_count + o->behavior_count == 0)
        return true;
    json_t *gates = json_object();
    json_object_set_new(r->document, "correctness_gates", gates);
    return (o->anchor_count == 0 || add_anchors(r, gates, err)) &&
           (o->free_run_count == 0 || add_free_runs(r, gates, err)) &&
           (o->behavior_count == 0 || add_behaviors(r, gates, err));
}

static bool add_benchmark(struct recorder *r, struct error *err)
{
    const struct record_options *o = r->o;
    if (!o->benchmark)
        return true;
    struct prompt prefill = r->prompts[0], seed = r->prompts[0];
    const size_t exact = (size_t)r->contract->seed_tokens;
    if ((o->benchmark_prefill != NULL &&
         !read_prompt(r, "benchmark", o->benchmark_prefill, exact, 0, &prefill, err)) ||
        (o->benchmark_decode != NULL &&
         !read_prompt(r, "benchmark", o->benchmark_decode, exact, 0, &seed, err)))
        return false;
    int64_t prefill_token;
    int64_t *out = arena_array(&r->arena, (size_t)o->benchmark_steps + 1, sizeof *out);
    if (!record_timed_verbs(r, &prefill, &seed, o->benchmark_steps, &prefill_token, out, err) ||
        !check_same(r, &prefill, &prefill_token, 1, "benchmark prefill", err) ||
        !check_same(r, &seed, out, o->benchmark_steps + 1, "benchmark decode", err))
        return false;
    json_t *b = json_object();
    json_object_set_new(b, "prefill_prompt_tokens", tokens_json(prefill.items, prefill.count));
    json_object_set_new(b, "expected_prefill_token", json_integer(prefill_token));
    json_object_set_new(b, "decode_seed_tokens", tokens_json(seed.items, seed.count));
    json_object_set_new(b, "expected_decode_seed_token", json_integer(out[0]));
    json_object_set_new(b, "expected_decode_tokens",
                        tokens_json(out + 1, (size_t)o->benchmark_steps));
    json_object_set_new(r->document, "benchmark", b);
    return true;
}

static bool add_provenance(struct recorder *r, struct error *err)
{
    const struct contract *c = r->contract;
    const char *repository = r->o->provenance_repository;
    const char *revision = r->o->provenance_revision;
    if (repository == NULL && c->has_target_pin)
        repository = c->target_model_id;
    if (revision == NULL && c->has_target_pin)
        revision = c->target_revision;
    if ((repository == NULL) != (revision == NULL))
        return error_set(err, "USAGE", "a provenance is a repository and a revision, or neither");
    json_object_set_new(r->document, "version", json_integer(1));
    json_object_set_new(r->document, "model_type", json_string(c->golden_model_type));
    if (repository == NULL)
        return true;
    json_t *p = json_object();
    json_object_set_new(p, "repository", json_string(repository));
    json_object_set_new(p, "revision", json_string(revision));
    json_object_set_new(r->document, "model_provenance", p);
    return true;
}

/* The loader that will judge with it reads it first. */
static bool validate(const struct recorder *r, const struct buffer *text, struct error *err)
{
    const struct contract *c = r->contract;
    const struct golden_rules rules = {
        .required_steps = c->correctness_steps,
        .required_prompt_tokens = c->seed_tokens,
        .vocab_size = c->vocab_size,
        .required_model_type = c->golden_model_type,
        .pin_repository = c->has_target_pin ? c->target_model_id : NULL,
        .pin_revision = c->has_target_pin ? c->target_revision : NULL,
        .require_benchmark = r->o->benchmark};
    struct golden *g = NULL;
    const bool ok = golden_parse(r->o->out, text->data, text->length, &rules, &g, err);
    golden_free(g);
    return ok;
}

static bool write_results(struct recorder *r, struct error *err)
{
    struct buffer text = {0};
    json_write_canonical(r->document, 0, &text);
    buffer_char(&text, '\n');
    bool ok = validate(r, &text, err) && file_write_atomic(r->o->out, text.data, text.length, err);
    if (ok && r->o->screen_report != NULL) {
        buffer_clear(&text);
        json_write_canonical(r->screens, 2, &text);
        buffer_char(&text, '\n');
        ok = file_write_atomic(r->o->screen_report, text.data, text.length, err);
    }
    buffer_free(&text);
    return ok;
}

static bool check_contract(struct recorder *r, struct error *err)
{
    const struct record_options *o = r->o;
    const char *track;
    if (!contract_track_from_environment(&track, err) ||
        !contract_load(o->contract, track, &r->contract, err) ||
        !contract_require_model(r->contract, err) || !contract_require_window(r->contract, err))
        return false;
    if (o->track != NULL && strcmp(o->track, r->contract->track_id) != 0) {
        error_set(err, "TRACK-ID-MISMATCH", "the contract is that of track \"%s\"",
                  r->contract->track_id);
        return error_at(err, o->contract, "track_id", o->track);
    }
    r->client_options.yarn_magnitude = r->contract->yarn_magnitude;
    return true;
}

static bool plan_sandbox(struct recorder *r, struct error *err)
{
    const struct record_options *o = r->o;
    const char *const hidden[] = {o->contract, o->out, NULL};
    const struct sandbox_request request = {.mode = SANDBOX_LOCAL,
                                            .switched_off = o->no_sandbox,
                                            .engine = o->engine,
                                            .weights = o->weights,
                                            .engine_trees = o->engine_trees,
                                            .resources = o->resources,
                                            .hidden = hidden,
                                            .features =
                                                contract_is_cuda(r->contract) ? SANDBOX_GPU : 0,
                                            .environment = environ};
    if (o->mock)
        return true;
    if (!sandbox_plan(&r->arena, &request, &r->sandbox, err))
        return false;
    r->client_options.sandbox = &r->sandbox;
    if (r->sandbox.reason != NULL && !o->quiet)
        fprintf(stderr, "sandbox: none, the engine runs unsandboxed (%s)\n", r->sandbox.reason);
    return true;
}

static bool take_stamps(struct recorder *r)
{
    if (!r->o->mock)
        run_stamps_take(r->o->weights, r->o->engine, &r->stamps);
    return true;
}

bool record_golden(const struct record_options *o, struct error *err)
{
    struct recorder r = {.o = o,
                         .client_options = {.engine = o->engine,
                                            .weights = o->weights,
                                            .resources = o->resources,
                                            .echo_stderr = !o->quiet},
                         .document = json_object(),
                         .screens = json_array()};
    /* Asked now: a recording may take hours. */
    const bool ok =
        file_check_target(o->out, err) &&
        (o->screen_report == NULL || file_check_target(o->screen_report, err)) &&
        client_deadlines_from_environment(&r.client_options, err) && check_contract(&r, err) &&
        plan_sandbox(&r, err) && take_stamps(&r) && add_provenance(&r, err) && add_cases(&r, err) &&
        add_gates(&r, err) && add_benchmark(&r, err) &&
        run_stamps_check(&r.stamps, o->weights, o->engine, err) && write_results(&r, err);
    json_decref(r.document);
    json_decref(r.screens);
    contract_free(r.contract);
    arena_free(&r.arena);
    return ok;
}
