#include "judge/measure.h"

#include "base/clock.h"
#include "base/stats.h"
#include "base/terminal.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

static bool same_tokens(const struct golden_tokens *a, const struct golden_tokens *b)
{
    return a->count == b->count && memcmp(a->items, b->items, a->count * sizeof *a->items) == 0;
}

bool measure_find_oracle(const struct golden *g, int64_t steps, struct measure_oracle *out,
                         struct error *err)
{
    const struct golden_benchmark *b = &g->benchmark;
    *out = (struct measure_oracle){.prefill_prompt = b->prefill_prompt,
                                   .decode_seed = b->decode_seed,
                                   .prefill_token = b->expected_prefill_token,
                                   .seed_token = b->expected_decode_seed_token,
                                   .steps = steps};
    if (b->present && b->expected_decode.count >= (size_t)steps) {
        out->decode_tokens = b->expected_decode.items;
        return true;
    }
    for (size_t i = 0; b->present && i < g->case_count; i++) {
        const struct golden_case *k = &g->cases[i];
        if (k->expected.count > (size_t)steps && same_tokens(&k->prompt, &b->decode_seed) &&
            k->expected.items[0] == b->expected_decode_seed_token) {
            out->decode_tokens = k->expected.items + 1;
            return true;
        }
    }
    error_set(
        err, "GOLDEN-INVALID",
        "the golden holds %zu decode tokens after its seed, this mode's window needs %" PRId64,
        b->expected_decode.count, steps);
    return error_at(err, g->path, "benchmark.expected_decode_tokens", NULL);
}

static bool expect_token(struct client *c, struct measure_result *m, const char *label,
                         int64_t step, int64_t expected, int64_t actual, struct error *err)
{
    if (expected == actual)
        return true;
    m->mismatch = (struct token_mismatch){
        .present = true, .label = label, .step = step, .expected = expected, .actual = actual};
    client_discard(c);
    /* The ids stand in the score's expected_token and actual_token only. */
    return error_set(err, "TokenMismatch", "%s: the token at step %" PRId64 " is not the golden's",
                     label, step);
}

bool measure_shuffle(struct arena *a, const int64_t *items, size_t count, struct wire_tokens *out,
                     struct error *err)
{
    uint64_t state;
    if (getrandom(&state, sizeof state, 0) != (ssize_t)sizeof state)
        return error_errno(err, NULL, "the kernel gave no random number");
    int64_t *mixed = arena_array(a, count, sizeof *mixed);
    for (size_t i = 0; i < count; i++) {
        /* splitmix64: nobody who sees the result but not the seed can undo it. */
        uint64_t x = (state += 0x9e3779b97f4a7c15u);
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        const size_t at = (size_t)((x ^ (x >> 31)) % (i + 1));
        mixed[i] = mixed[at];
        mixed[at] = items[i];
    }
    *out = client_tokens(mixed, count);
    return true;
}

/* Warm-up runs on the prompt in another order: as long as the timed one and as hard, and what the
 * engine makes of it is of no use to it later. Backwards would not do: that can be undone. */
static bool shuffled(struct arena *a, const struct golden_tokens *prompt, struct wire_tokens *out,
                     struct error *err)
{
    return measure_shuffle(a, prompt->items, prompt->count, out, err);
}

static bool run_prefill(struct client *c, struct wire_tokens prompt, int64_t *token,
                        double *seconds, struct error *err)
{
    struct wire_request q = client_request(WIRE_KIND_prefill);
    q.prompt_tokens = prompt;
    const struct wire_response *r;
    int64_t ns;
    if (!client_call(c, &q, 0, &r, &ns, err))
        return false;
    *token = r->token.value;
    *seconds = (double)ns * 1e-9;
    return true;
}

static struct wire_request free_begin_request(const struct measure_plan *plan,
                                              struct wire_tokens seed)
{
    struct wire_request q = client_request(WIRE_KIND_free_decode_begin);
    q.seed_tokens = seed;
    if (plan->spec != NULL)
        q.spec = *plan->spec;
    return q;
}

static struct wire_request free_run_request(uint32_t count)
{
    struct wire_request q = client_request(WIRE_KIND_free_decode_run);
    q.count = (struct wire_u32){.present = true, .value = count};
    return q;
}

static bool warm_up(struct client *c, const struct measure_plan *plan, struct arena *a,
                    struct error *err)
{
    struct progress p = {.quiet = plan->quiet};
    progress_begin(&p, "warm-up", "passes", (uint64_t)plan->warmup_runs + 1);
    int64_t token;
    double seconds;
    struct wire_tokens prompt, seed;
    bool ok = shuffled(a, &plan->oracle.prefill_prompt, &prompt, err) &&
              shuffled(a, &plan->oracle.decode_seed, &seed, err);
    for (int64_t i = 0; ok && i < plan->warmup_runs; i++) {
        ok = run_prefill(c, prompt, &token, &seconds, err);
        progress_update(&p, (uint64_t)i + 1);
    }
    if (ok && plan->warmup_runs > 0)
        ok = client_barrier(c, -1, NULL, err);
    struct wire_request run = free_run_request(MEASURE_WARMUP_DECODE_TOKENS);
    const struct wire_response *r;
    if (!ok)
        return false;
    struct wire_request begin = free_begin_request(plan, seed);
    ok = client_call(c, &begin, 0, NULL, NULL, err) && client_call(c, &run, 0, &r, NULL, err) &&
         client_barrier(c, (int64_t)r->acceptance_lengths.count + 1, NULL, err);
    progress_update(&p, (uint64_t)plan->warmup_runs + (ok ? 1 : 0));
    progress_end(&p);
    return ok;
}

/* What the engine could do meanwhile it could do for nothing: it stands still. */
static bool watch_before(struct client *c, const struct measure_plan *plan, const char *phase,
                         struct error *err)
{
    if (plan->watch == NULL)
        return true;
    client_freeze(c);
    const bool ok = plan->watch->before(plan->watch->context, phase, err);
    client_thaw(c);
    return ok;
}

static bool watch_after(const struct measure_plan *plan, const char *phase, struct error *err)
{
    return plan->watch == NULL || plan->watch->after(plan->watch->context, phase, err);
}

static bool time_prefill(struct client *c, const struct measure_plan *plan,
                         struct measure_result *m, struct error *err)
{
    const struct golden_tokens *prompt = &plan->oracle.prefill_prompt;
    struct progress p = {.quiet = plan->quiet};
    progress_begin(&p, "prefill", "tokens", prompt->count * MEASURE_PREFILL_PASSES);
    double seconds[MEASURE_PREFILL_PASSES];
    bool ok = true;
    for (int i = 0; ok && i < MEASURE_PREFILL_PASSES; i++) {
        int64_t token;
        ok =
            run_prefill(c, client_tokens(prompt->items, prompt->count), &token, &seconds[i], err) &&
            expect_token(c, m, "prefill", 0, plan->oracle.prefill_token, token, err);
        progress_update(&p, prompt->count * (uint64_t)(i + 1));
    }
    progress_end(&p);
    const int64_t answered = clock_now_ns();
    if (!ok || !client_barrier(c, -1, NULL, err))
        return false;
    if (plan->watch != NULL)
        client_freeze(c); /* until the next phase is asked for */
    m->prefill_barrier_seconds = clock_seconds(answered);
    m->prefill_seconds = stats_median(seconds, MEASURE_PREFILL_PASSES);
    m->prefill_seconds_per_token = m->prefill_seconds / (double)prompt->count;
    return true;
}

static void keep_run_report(struct arena *a, const struct wire_response *r,
                            struct measure_result *m)
{
    const size_t n = r->acceptance_lengths.count;
    m->acceptance_lengths = (struct wire_u32s){
        .present = true, .count = n, .items = arena_array(a, n, sizeof(uint32_t))};
    if (n > 0)
        memcpy(m->acceptance_lengths.items, r->acceptance_lengths.items, n * sizeof(uint32_t));
    m->rounds = n;
    m->drafted = r->drafted_total.value;
    m->accepted = r->accepted_total.value;
    m->verification_mode =
        r->verification_mode.text != NULL ? arena_strdup(a, r->verification_mode.text) : NULL;
    m->disagreements = r->verify_replay_disagreements;
    m->rectangular_rounds = r->rectangular_verification_rounds;
    m->serial_rounds = r->serial_verification_rounds;
}

static void keep_tokens(struct arena *a, const struct wire_response *r,
                        const struct measure_oracle *o, struct measure_result *m)
{
    int64_t *said = arena_array(a, (size_t)o->steps, sizeof *said);
    memcpy(said, r->tokens.items, (size_t)o->steps * sizeof *said);
    m->said_tokens = said;
    for (int64_t i = 0; i < o->steps; i++) {
        if (said[i] == o->decode_tokens[i])
            continue;
        if (m->different++ == 0)
            m->first_different = i;
    }
}

static bool time_decode(struct client *c, const struct measure_plan *plan, struct arena *a,
                        struct measure_result *m, struct error *err)
{
    const struct measure_oracle *o = &plan->oracle;
    struct wire_request begin =
        free_begin_request(plan, client_tokens(o->decode_seed.items, o->decode_seed.count));
    struct wire_request run = free_run_request((uint32_t)o->steps);
    const struct wire_response *r;
    /* The window of the seed opens just before the request is sent and closes when its token has
     * been checked; the decode window opens at that instant. */
    const int64_t opened = clock_now_ns();
    if (!client_call(c, &begin, 0, &r, NULL, err))
        return false;
    m->said_seed_token = r->seed_token.value;
    if (!plan->tolerant &&
        !expect_token(c, m, "decode-seed", 0, o->seed_token, r->seed_token.value, err))
        return false;
    if (r->effective_spec.present) {
        m->effective_spec = (struct wire_spec){.present = true,
                                               .mode = arena_strdup(a, r->effective_spec.mode),
                                               .has_mtp = r->effective_spec.has_mtp,
                                               .mtp_depth = r->effective_spec.mtp_depth};
        const json_t *depth = json_object_get(r->effective_spec.dflash, "depth");
        if (json_is_integer(depth) && json_integer_value(depth) >= 0)
            m->effective_spec.mtp_depth =
                (struct wire_u32){.present = true, .value = (uint32_t)json_integer_value(depth)};
        m->speculated = strcmp(m->effective_spec.mode, "serial") != 0;
    }
    const int64_t seeded = clock_now_ns();
    if (!client_call(c, &run, 0, &r, NULL, err))
        return false;
    const int64_t closed = clock_now_ns();
    m->seed_window_seconds = (double)(seeded - opened) * 1e-9;
    m->decode_window_seconds = (double)(closed - seeded) * 1e-9;
    for (int64_t i = 0; i < o->steps && !plan->tolerant; i++)
        if (!expect_token(c, m, "decode", i, o->decode_tokens[i], r->tokens.items[i], err))
            return false;
    keep_tokens(a, r, o, m);
    keep_run_report(a, r, m);
    return true;
}

/* So long a common beginning makes one prompt of two. */
enum { SAME_PROMPT_TOKENS = 16 };

/* Whoever has seen one has seen the other. */
static bool is_same_prompt(const struct golden_tokens *a, const struct golden_tokens *b)
{
    size_t n = 0;
    while (n < a->count && n < b->count && a->items[n] == b->items[n])
        n++;
    return n >= SAME_PROMPT_TOKENS || n == a->count || n == b->count;
}

/* Between the gates and the clock: the engine stood still, and its caches and clocks are cold.
 * Other tokens than the phase's, as in the warm-up; and none where the engine knows already what
 * the phase will ask, since what it does here nobody times. */
static bool warm_again(struct client *c, const struct measure_plan *plan, bool known,
                       struct arena *a, struct error *err)
{
    struct wire_tokens prompt;
    int64_t token;
    double seconds;
    if (plan->watch == NULL || plan->rewarm_runs == 0 || known)
        return true;
    if (!shuffled(a, &plan->oracle.prefill_prompt, &prompt, err))
        return false;
    for (int64_t i = 0; i < plan->rewarm_runs; i++)
        if (!run_prefill(c, prompt, &token, &seconds, err))
            return false;
    return client_barrier(c, -1, NULL, err);
}

bool measure_run(struct client *c, const struct measure_plan *plan, struct arena *a,
                 struct measure_result *m, struct error *err)
{
    *m = (struct measure_result){.first_different = -1};
    const struct measure_oracle *o = &plan->oracle;
    const bool known = is_same_prompt(&o->prefill_prompt, &o->decode_seed);
    if (!warm_up(c, plan, a, err) || !watch_before(c, plan, "prefill", err) ||
        !warm_again(c, plan, false, a, err) || !time_prefill(c, plan, m, err) ||
        !watch_after(plan, "prefill", err) || !watch_before(c, plan, "decode", err) ||
        !warm_again(c, plan, known, a, err))
        return false;
    struct progress p = {.quiet = plan->quiet};
    progress_begin(&p, "decode", "tokens", (uint64_t)o->steps);
    bool ok = client_arm_run_deadline(c, (uint64_t)o->steps, plan->run_ceiling_seconds, err) &&
              time_decode(c, plan, a, m, err);
    client_disarm_run_deadline(c);
    progress_update(&p, ok ? (uint64_t)o->steps : 0);
    progress_end(&p);
    const struct wire_response *r;
    const int64_t answered = clock_now_ns();
    if (!ok || !client_barrier(c, (int64_t)m->rounds + 1, &r, err))
        return false;
    m->decode_barrier_seconds = clock_seconds(answered);
    if (!watch_after(plan, "decode", err))
        return false;
    m->expert_stats = r->expert_stats;
    m->decode_tokens = o->steps;
    m->decode_seconds_per_token = m->decode_window_seconds / (double)o->steps;
    m->seed_window_seconds_per_token = m->seed_window_seconds / (double)o->decode_seed.count;
    m->resident_bytes = client_resident_bytes(c);
    m->timed = true;
    return true;
}
