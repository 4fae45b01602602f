#include "engine/serve/bench.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/stats.h"
#include "base/terminal.h"
#include "engine/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    NEAR_CONTEXT = 512,
    FAR_CONTEXT = 8192,
    BUFFER_LEAST = 256 << 20, /* of the reading; four caches where they are larger */
    WEIGHTS_READ = 1 << 30,   /* at most so much of the weights is read for their rate */
    PASSES = 3,               /* of a reading; the best counts */
    TURN_STEPS = 3,           /* between two readings that take turns with steps */
    WARM_STEPS = 4,
    VERIFY_REPEATS = 12,
    /* A device takes milliseconds for what processors take seconds; a slow one less of them. */
    DEVICE_REPEATS = 40,
    PREFILL_REPEATS = 7,
    LEAST_REPEATS = 3,
    METERED_STEPS = 32,
    WARM_ROWS = 16
};

struct bench {
    const struct bench_options *o;
    struct bench_result *r;
    struct error *err;
    struct model *m;
    struct model_state *s;
    int32_t *ids;
    float *logits; /* [BENCH_MOST_BLOCK, vocab]; NULL: the backend keeps them */
    uint64_t random;
    uint8_t *buffer;
    struct compute_meter meter;
    struct meter_recorder *recorder; /* the environment's, or NULL */
    struct progress progress;
};

static bool go_on(struct bench *b)
{
    return !interrupt_requested() || error_set(b->err, "INTERRUPTED", "stopped by a signal");
}

static const double ENOUGH_SECONDS = 3;

/* Tokens as a fixed generator gives them: every id alike. */
static void fill_ids(struct bench *b, int count)
{
    for (int i = 0; i < count; i++) {
        b->random ^= b->random << 13;
        b->random ^= b->random >> 7;
        b->random ^= b->random << 17;
        b->ids[i] = (int32_t)((b->random >> 32) % (uint64_t)b->r->info.vocab);
    }
}

static bool forward(struct bench *b, int rows, int logit_rows)
{
    struct head_pick picks[BENCH_MOST_BLOCK];
    return go_on(b) && model_forward(b->m, b->s, b->ids, rows, logit_rows, b->logits,
                                     logit_rows > 0 ? picks : NULL, b->err);
}

/* Feeds made-up tokens up to a position, the last one with logits. */
static bool feed(struct bench *b, int64_t to, const char *phase)
{
    const int64_t from = model_state_position(b->s);
    progress_begin(&b->progress, phase, "tokens", (uint64_t)(to - from));
    while (model_state_position(b->s) < to) {
        const int64_t left = to - model_state_position(b->s);
        const int rows = left < b->r->info.max_rows ? (int)left : b->r->info.max_rows;
        fill_ids(b, rows);
        if (!forward(b, rows, rows == left ? 1 : 0))
            return false;
        progress_update(&b->progress, (uint64_t)(model_state_position(b->s) - from));
    }
    return true;
}

/* ---- opening ---- */

static void close_model(struct bench *b)
{
    model_state_free(b->s);
    b->s = NULL;
    model_close(b->m);
    b->m = NULL;
}

static bool open_model(struct bench *b, int64_t context, struct bench_load *load)
{
    struct model_options options = b->o->model;
    options.context = context;
    int64_t start = clock_now_ns();
    if (!go_on(b) || !model_open(b->o->weights, &options, &b->m, b->err) ||
        !model_state_new(b->m, &b->s, b->err))
        return false;
    load->open_seconds = clock_seconds(start);
    b->r->info = *model_get_info(b->m);
    free(b->ids);
    free(b->logits);
    const size_t rows = (size_t)b->r->info.max_rows;
    b->ids = memory_alloc((rows > BENCH_MOST_BLOCK ? rows : BENCH_MOST_BLOCK) * sizeof *b->ids);
    b->logits = compute_keeps_logits(model_compute(b->m))
                    ? NULL
                    : memory_alloc((size_t)b->r->info.vocab * BENCH_MOST_BLOCK * sizeof *b->logits);
    start = clock_now_ns();
    fill_ids(b, 1);
    if (!forward(b, 1, 1))
        return false;
    load->first_token_seconds = clock_seconds(start);
    load->measured = true;
    return true;
}

static bool measure_load(struct bench *b, int64_t context)
{
    struct bench_result *r = b->r;
    if (!b->o->no_cold) {
        r->cold.resident_before = bench_resident_share(b->o->weights, true);
        if (!open_model(b, context, &r->cold))
            return false;
        close_model(b);
    }
    r->warm.resident_before = bench_resident_share(b->o->weights, false);
    if (!open_model(b, context, &r->warm))
        return false;
    const struct compute *c = model_compute(b->m);
    r->info.choices = arena_strdup(&r->arena, r->info.choices);
    r->info.family = arena_strdup(&r->arena, r->info.family);
    r->info.model_type = arena_strdup(&r->arena, r->info.model_type);
    r->weights = arena_strdup(&r->arena, b->o->weights);
    r->engine = arena_strdup(&r->arena, compute_name(c));
    r->cpu = arena_strdup(&r->arena, compute_cpu_name(c));
    r->threads = compute_threads(c);
    r->fast = compute_arithmetic(c) == ARITHMETIC_FAST;
    r->device_weight_bytes = compute_prepared_bytes(c);
    return true;
}

/* ---- what the machine can do ---- */

static double read_rate(struct bench *b, const void *data, uint64_t bytes)
{
    double best = 0;
    for (int i = 0; i < PASSES && !interrupt_requested(); i++) {
        const double seconds = roofline_read(model_compute(b->m), data, bytes);
        const double rate = seconds > 0 ? (double)bytes / seconds : 0;
        best = rate > best ? rate : best;
    }
    return best;
}

/* The weights where they lie, when they do not fit into the cache: their copy, or the largest
 * shard.
 */
static const uint8_t *weights_to_read(const struct bench *b, uint64_t *bytes)
{
    const struct checkpoint *k = model_checkpoint(b->m);
    const uint8_t *data = k->packed.data;
    uint64_t length = k->packed.bytes;
    for (size_t i = 0; i < k->shard_count; i++)
        if (k->shards[i].map.length > length) {
            data = k->shards[i].map.data;
            length = k->shards[i].map.length;
        }
    *bytes = length < 4 * b->r->cache_bytes ? 0 : length < WEIGHTS_READ ? length : WEIGHTS_READ;
    return data;
}

/* The better of both kinds of pages, now. */
static double read_now(struct bench *b)
{
    struct bench_result *r = b->r;
    const uint8_t *weights = r->on_device ? NULL : weights_to_read(b, &r->weights_read_bytes);
    const double a = read_rate(b, b->buffer, r->buffer_bytes);
    const double w = r->weights_read_bytes ? read_rate(b, weights, r->weights_read_bytes) : 0;
    r->read_anonymous = a > r->read_anonymous ? a : r->read_anonymous;
    r->read_weights = w > r->read_weights ? w : r->read_weights;
    return a > w ? a : w;
}

static void drop_buffer(struct bench *b)
{
    if (b->buffer)
        munmap(b->buffer, b->r->buffer_bytes);
    b->buffer = NULL;
}

static bool measure_machine(struct bench *b)
{
    struct bench_result *r = b->r;
    bench_read_device(model_compute(b->m), r);
    if (r->on_device) {
        read_now(b);
        return go_on(b);
    }
    r->buffer_bytes = 4 * r->cache_bytes > BUFFER_LEAST ? 4 * r->cache_bytes : BUFFER_LEAST;
    b->buffer =
        mmap(NULL, r->buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->buffer == MAP_FAILED) {
        b->buffer = NULL;
        return error_set(b->err, "OUT-OF-MEMORY", "no memory for a buffer of %llu bytes to read",
                         (unsigned long long)r->buffer_bytes);
    }
    madvise(b->buffer, r->buffer_bytes, MADV_HUGEPAGE);
    memset(b->buffer, 1, r->buffer_bytes);
    read_now(b);
    r->peak = roofline_measure_peak(model_compute(b->m));
    return go_on(b);
}

/* ---- what the engine does ---- */

static void meter_on(struct bench *b)
{
    b->meter.recorder = b->recorder;
    meter_reset(&b->meter);
    compute_set_meter(model_compute(b->m), &b->meter);
}

static void meter_off(struct bench *b)
{
    compute_set_meter(model_compute(b->m), NULL);
}

/* Whole prefills without the meter, whose events keep kernels apart. */
static bool time_device_prefill(struct bench *b)
{
    struct bench_result *r = b->r;
    double seconds[PREFILL_REPEATS];
    size_t count = 0;
    const int64_t begun = clock_now_ns();
    for (int i = -1; i < PREFILL_REPEATS; i++) { /* the first loads the kernels */
        if (i >= LEAST_REPEATS && clock_seconds(begun) > ENOUGH_SECONDS)
            break;
        model_state_rewind(b->s, 0);
        const int64_t start = clock_now_ns();
        if (!feed(b, r->prompt_tokens, "prefill"))
            return false;
        if (i >= 0)
            seconds[count++] = clock_seconds(start);
    }
    r->prefill_seconds = stats_median(seconds, count);
    return true;
}

static bool measure_prefill(struct bench *b)
{
    struct bench_result *r = b->r;
    if (r->on_device && !time_device_prefill(b))
        return false;
    model_state_rewind(b->s, 0);
    const int64_t warm = r->prompt_tokens < WARM_ROWS ? r->prompt_tokens : WARM_ROWS;
    if (!feed(b, warm, "warming up"))
        return false;
    model_state_rewind(b->s, 0);
    meter_on(b);
    const int64_t start = clock_now_ns();
    if (!feed(b, r->prompt_tokens, "prefill"))
        return false;
    if (!r->on_device)
        r->prefill_seconds = clock_seconds(start);
    progress_end(&b->progress);
    meter_off(b);
    memcpy(r->prefill, b->meter.part, sizeof r->prefill);
    return true;
}

/* How widely the prompt's rows were routed. */
static void count_experts(struct bench *b)
{
    struct bench_result *r = b->r;
    const struct compute_meter *m = &b->meter;
    r->least_chosen = m->expert_stride;
    for (int layer = 0; m->expert_rows && layer < m->expert_layers; layer++) {
        const uint64_t *rows = m->expert_rows + (size_t)layer * (size_t)m->expert_stride;
        uint64_t all = 0, most = 0;
        int chosen = 0;
        for (int e = 0; e < m->expert_stride; e++) {
            all += rows[e];
            most = rows[e] > most ? rows[e] : most;
            chosen += rows[e] > 0;
        }
        if (all == 0)
            continue; /* a dense layer */
        const double over = (double)most * m->expert_stride / (double)all;
        r->expert_layers++;
        r->busiest_over_mean = over > r->busiest_over_mean ? over : r->busiest_over_mean;
        r->least_chosen = chosen < r->least_chosen ? chosen : r->least_chosen;
    }
    r->experts = r->expert_layers > 0 ? m->expert_stride : 0;
    if (r->experts == 0)
        r->least_chosen = 0;
}

static bool step(struct bench *b)
{
    fill_ids(b, 1);
    return forward(b, 1, 1);
}

/* One pass over the weights, seconds for each byte; only where they do not fit into the cache,
 * which it would empty. */
static double read_turn(struct bench *b)
{
    uint64_t bytes;
    if (b->r->on_device) /* nobody else has its memory */
        return 0;
    const uint8_t *data = weights_to_read(b, &bytes);
    return bytes > 0 ? roofline_read(model_compute(b->m), data, bytes) / (double)bytes : 0;
}

/* What was stamped since the last time; out NULL: is forgotten. */
static void take_timeline(struct bench *b, struct timeline_summary *out)
{
    struct timeline_stamp *stamps;
    if (!b->o->timeline)
        return;
    const size_t count = compute_take_timeline(model_compute(b->m), &stamps);
    if (out)
        timeline_summarise(stamps, count, &b->r->arena, out);
    free(stamps);
}

/* Memory's speed changes from second to second where other machines share it: readings take turns
 * with the steps, so that the median of both is of the same seconds. */
static bool measure_steps(struct bench *b, struct bench_decode *d)
{
    double *seconds = memory_alloc((size_t)d->tokens * sizeof *seconds);
    double *turns = memory_alloc((size_t)d->tokens * sizeof *turns);
    size_t turn_count = 0;
    bool ok = true;
    for (int i = 0; ok && i < WARM_STEPS; i++)
        ok = step(b);
    d->read_before = ok ? read_now(b) : 0;
    ok = ok && step(b); /* the reading took the caches; and this one is not timed */
    take_timeline(b, NULL);
    progress_begin(&b->progress, "decode", "tokens", (uint64_t)d->tokens);
    for (int i = 0; ok && i < d->tokens; i++) {
        if (i % TURN_STEPS == 0 && b->r->weights_read_bytes > 0)
            turns[turn_count++] = read_turn(b);
        const int64_t now = clock_now_ns();
        ok = step(b);
        seconds[i] = clock_seconds(now);
        d->seconds += seconds[i];
        progress_update(&b->progress, (uint64_t)i + 1);
    }
    if (ok)
        progress_end(&b->progress);
    take_timeline(b, &d->timeline);
    d->kernels = compute_kernels(model_compute(b->m));
    if (turn_count > 0)
        d->read_between = 1 / stats_median(turns, turn_count);
    free(turns);
    d->median = stats_median(seconds, (size_t)d->tokens);
    d->least = stats_min(seconds, (size_t)d->tokens);
    free(seconds);
    return ok;
}

struct metered_step {
    int64_t ns;
    struct meter_count part[METER_PARTS];
};

static int by_time(const void *a, const void *b)
{
    const int64_t x = ((const struct metered_step *)a)->ns,
                  y = ((const struct metered_step *)b)->ns;
    return (x > y) - (x < y);
}

/* The same again with the clock of each part: where the time goes, and what was read. Of the times
 * the quicker half of the steps counts, so that a neighbour is not taken for a part. */
static bool measure_parts(struct bench *b, struct bench_decode *d)
{
    struct metered_step steps[METERED_STEPS];
    const int count = d->tokens < METERED_STEPS ? d->tokens : METERED_STEPS;
    bool ok = true;
    for (int i = 0; ok && i < count; i++) {
        meter_on(b);
        ok = step(b);
        steps[i].ns = b->r->on_device ? 0 : b->meter.ns;
        for (int p = 0; b->r->on_device && p < METER_PARTS; p++)
            steps[i].ns += b->meter.part[p].ns; /* of its clock: the host's has the launches */
        memcpy(steps[i].part, b->meter.part, sizeof steps[i].part);
        d->kv_bytes += (double)b->meter.kv_bytes / count;
        for (int p = 0; p < METER_PARTS; p++)
            d->weight_bytes += (double)b->meter.part[p].bytes / count;
    }
    meter_off(b);
    if (!ok)
        return false;
    qsort(steps, (size_t)count, sizeof *steps, by_time);
    d->metered_steps = (count + 1) / 2;
    for (int i = 0; i < d->metered_steps; i++) {
        d->metered_seconds += (double)steps[i].ns / 1e9 / d->metered_steps;
        for (int p = 0; p < METER_PARTS; p++) {
            d->part[p].ns += steps[i].part[p].ns;
            d->part[p].bytes += steps[i].part[p].bytes;
            d->part[p].flops += steps[i].part[p].flops;
        }
    }
    return true;
}

/* Widths take turns, so that a busy neighbour disturbs all of them alike. */
static bool measure_widths(struct bench *b, struct bench_decode *d)
{
    double seconds[BENCH_WIDTHS][DEVICE_REPEATS];
    uint64_t bytes[BENCH_WIDTHS] = {0};
    const bool device = b->r->on_device;
    int repeats = device ? DEVICE_REPEATS : VERIFY_REPEATS;
    for (int rows = 1; rows <= b->o->block; rows *= 2)
        d->verify[d->widths++].rows = rows;
    const int64_t at = model_state_position(b->s);
    bool ok = true;
    progress_begin(&b->progress, "verification", "rounds", (uint64_t)repeats);
    /* A device's first turn counts bytes, with the meter; its second may record the forwards. */
    const int64_t begun = clock_now_ns();
    for (int i = device ? -2 : 0; ok && i < repeats; i++) {
        if (device && i >= LEAST_REPEATS && clock_seconds(begun) > ENOUGH_SECONDS) {
            repeats = i;
            break;
        }
        fill_ids(b, BENCH_MOST_BLOCK);
        for (int w = 0; ok && w < d->widths; w++) {
            const int rows = d->verify[w].rows;
            const bool metered = !device || i == -2;
            if (metered)
                meter_on(b);
            else
                meter_off(b);
            b->meter.recorder = NULL; /* not a prefill chunk */
            const int64_t start = clock_now_ns();
            ok = forward(b, rows, rows);
            if (i >= 0)
                seconds[w][i] = clock_seconds(start);
            d->verify[w].kernels = compute_kernels(model_compute(b->m));
            model_state_rewind(b->s, at);
            for (int p = 0; metered && p < METER_PARTS; p++)
                bytes[w] += b->meter.part[p].bytes;
        }
        progress_update(&b->progress, i < 0 ? 0 : (uint64_t)i + 1);
    }
    meter_off(b);
    for (int w = 0; ok && w < d->widths; w++) {
        d->verify[w].median = stats_median(seconds[w], (size_t)repeats);
        d->verify[w].least = stats_min(seconds[w], (size_t)repeats);
        d->verify[w].weight_bytes = (double)bytes[w] / (device ? 1 : repeats);
    }
    return ok;
}

static bool measure_decode(struct bench *b, int64_t context)
{
    struct bench_decode *d = &b->r->decode[b->r->contexts];
    *d = (struct bench_decode){.context = context, .tokens = (int)b->o->decode_tokens};
    if (model_state_position(b->s) > context)
        model_state_rewind(b->s, 0);
    if (!feed(b, context, "filling the context") || !measure_steps(b, d) || !measure_parts(b, d) ||
        !measure_widths(b, d))
        return false;
    d->read_after = read_now(b);
    b->r->contexts++;
    return go_on(b);
}

/* ---- all of it ---- */

static bool check_simulation(const struct bench_options *o, struct error *err)
{
    const bool given = o->acceptance != -1;
    const char *field = "--simulate-acceptance";
    if (given && !(o->acceptance >= 0 && o->acceptance <= 1))
        error_set(err, "badValue", "badValue(%s): a share of drafts, from 0 to 1", field);
    else if (o->drafter && !o->drafter[0])
        error_set(err, "USAGE", "missingValue(%s)", field = "--drafter");
    else if (given && !o->drafter)
        error_set(err, "USAGE", "%s needs --drafter", field);
    else if (!given && o->drafter)
        error_set(err, "USAGE", "--drafter needs %s: bench only simulates", field);
    else
        return true;
    return error_at(err, NULL, field, NULL);
}

bool bench_check(const struct bench_options *o, struct error *err)
{
    if (!check_simulation(o, err))
        return false;
    if (!o->timeline || compute_has_timeline(o->model.compute.backend))
        return true;
    error_set(err, "TIMELINE-NOT-BUILT",
              "it needs --backend cuda of a program built with `make CUDA=1 CUDA_TIMELINE=1`");
    return error_at(err, NULL, "--timeline", NULL);
}

/* Positions beyond a context that decoding there takes. */
static int64_t room_beyond(const struct bench_options *o)
{
    const int64_t room = WARM_STEPS + 1 + 2 * o->decode_tokens + BENCH_MOST_BLOCK;
    const int64_t rounds = o->drafter ? bench_simulate_tokens(o) : 0;
    return rounds > room ? rounds : room;
}

/* The contexts to decode at, and the positions to serve, from what the model can hold. */
static bool choose_contexts(struct bench *b, int64_t contexts[BENCH_CONTEXTS], int *count,
                            int64_t *positions)
{
    json_t *config;
    if (!checkpoint_read_config(b->o->weights, &config, b->err))
        return false;
    const json_t *limit = json_object_get(config, "max_position_embeddings");
    const int64_t most = json_is_integer(limit) ? json_integer_value(limit) : FAR_CONTEXT;
    json_decref(config);
    const int64_t room = room_beyond(b->o), far = most - room;
    *count = 0;
    if (b->o->context > 0) {
        contexts[(*count)++] = b->o->context;
    } else {
        const int64_t wanted[BENCH_CONTEXTS] = {NEAR_CONTEXT, FAR_CONTEXT};
        for (int i = 0; i < BENCH_CONTEXTS; i++) {
            const int64_t c = wanted[i] < far ? wanted[i] : far;
            if (c > 0 && (*count == 0 || c > contexts[*count - 1]))
                contexts[(*count)++] = c;
        }
    }
    *positions = *count > 0 ? contexts[*count - 1] + room : 0;
    if (*positions < b->o->prompt_tokens)
        *positions = b->o->prompt_tokens;
    if (*count > 0 && *positions <= most)
        return true;
    error_set(b->err, "CONTEXT-EXCEEDED", "the model holds %lld positions; %lld are needed",
              (long long)most, (long long)(*count > 0 ? *positions : room + 1));
    return error_at(b->err, b->o->weights, "context", NULL);
}

static bool simulate(struct bench *b, int64_t context)
{
    int64_t *prompt = memory_alloc((size_t)context * sizeof *prompt);
    for (int64_t i = 0; i < context; i++) {
        fill_ids(b, 1);
        prompt[i] = b->ids[0];
    }
    b->r->drafter = arena_strdup(&b->r->arena, b->o->drafter);
    const bool ok = bench_simulate(b->m, b->o, prompt, (size_t)context, &b->r->simulated, b->err);
    free(prompt);
    return ok;
}

static bool run(struct bench *b)
{
    int64_t contexts[BENCH_CONTEXTS], positions;
    int count;
    bench_read_machine(b->r);
    if (!choose_contexts(b, contexts, &count, &positions) || !measure_load(b, positions))
        return false;
    /* A program that profiles has given the model a meter: its recorder is kept, in ours. */
    const struct compute_meter *given = compute_get_meter(model_compute(b->m));
    b->recorder = given ? given->recorder : NULL;
    meter_off(b);
    b->meter.expert_layers = b->r->info.layers;
    b->meter.expert_stride = model_experts(b->m);
    if (b->meter.expert_stride > 0)
        b->meter.expert_rows =
            memory_alloc((size_t)b->meter.expert_layers * (size_t)b->meter.expert_stride *
                         sizeof *b->meter.expert_rows);
    if (!measure_machine(b) || !measure_prefill(b))
        return false;
    count_experts(b);
    for (int i = 0; i < count; i++)
        if (!measure_decode(b, contexts[i]))
            return false;
    if (b->o->drafter && !simulate(b, contexts[0]))
        return false;
    b->r->kv_bytes = model_state_bytes(b->s);
    drop_buffer(b); /* not the engine's */
    bench_read_memory(b->r);
    return true;
}

bool bench_run(const struct bench_options *o, struct bench_result *r, struct error *err)
{
    *r = (struct bench_result){.prompt_tokens = (int)o->prompt_tokens, .timeline = o->timeline};
    struct bench b = {.o = o, .r = r, .err = err, .random = 0x9e3779b97f4a7c15u};
    b.progress.quiet = o->quiet;
    const bool ok = run(&b);
    close_model(&b);
    drop_buffer(&b);
    free(b.meter.expert_rows);
    free(b.ids);
    free(b.logits);
    return ok;
}

void bench_result_free(struct bench_result *r)
{
    arena_free(&r->arena);
}
