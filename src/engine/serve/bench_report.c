/* The result of a bench as JSON, as tables and as a sentence; all ratios are formed here. */
#include "base/json.h"
#include "base/terminal.h"
#include "engine/serve/bench.h"

#include <stdlib.h>

enum { TEXT = 64 };

static double per(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0;
}

/* The best single pass before and after: what the machine gives in its best moment. */
static double best_read_rate(const struct bench_decode *d)
{
    return d->read_before > d->read_after ? d->read_before : d->read_after;
}

double bench_read_rate(const struct bench_result *r, const struct bench_decode *d)
{
    (void)r;
    return d->read_between > 0 ? d->read_between : best_read_rate(d);
}

/* Seconds of a step that only reads. */
static double ideal_seconds(const struct bench_result *r, const struct bench_decode *d)
{
    return per(d->weight_bytes + d->kv_bytes, bench_read_rate(r, d));
}

double bench_share(const struct bench_result *r, const struct bench_decode *d)
{
    return per(ideal_seconds(r, d), d->median);
}

static double part_seconds(const struct bench_decode *d, int p)
{
    return per((double)d->part[p].ns / 1e9, d->metered_steps);
}

static double part_bytes(const struct bench_decode *d, int p)
{
    return per((double)d->part[p].bytes, d->metered_steps) + (p == METER_ATTEND ? d->kv_bytes : 0);
}

/* The part that takes longest beyond the reading of its bytes. */
static int worst_part(const struct bench_result *r, const struct bench_decode *d)
{
    int worst = 0;
    double most = -1;
    for (int p = 0; p < METER_PARTS; p++) {
        const double lost = part_seconds(d, p) - per(part_bytes(d, p), bench_read_rate(r, d));
        if (lost > most) {
            most = lost;
            worst = p;
        }
    }
    return worst;
}

static int longest_part(const struct bench_decode *d)
{
    int longest = 0;
    for (int p = 1; p < METER_PARTS; p++)
        if (d->part[p].ns > d->part[longest].ns)
            longest = p;
    return longest;
}

enum bound { BOUND_MEMORY, BOUND_CACHE, BOUND_PART };

static enum bound find_bound(const struct bench_result *r, const struct bench_decode *d)
{
    const double near_enough = 0.85; /* what the project sets itself */
    if (d->weight_bytes + d->kv_bytes < (double)r->cache_bytes)
        return BOUND_CACHE;
    return bench_share(r, d) >= near_enough ? BOUND_MEMORY : BOUND_PART;
}

void bench_explain(const struct bench_result *r, const struct bench_decode *d, struct buffer *out)
{
    const enum bound bound = find_bound(r, d);
    const int p = bound == BOUND_CACHE ? longest_part(d) : worst_part(r, d);
    const double bytes = d->weight_bytes + d->kv_bytes, share = bench_share(r, d);
    const double time_share = per(100 * part_seconds(d, p), d->metered_seconds);
    buffer_printf(out, "At context %lld ", (long long)d->context);
    switch (bound) {
    case BOUND_CACHE:
        buffer_printf(
            out,
            "memory is no bound: the %.1f MB of a token fit into the cache of %.1f MB; %s "
            "takes the most time, %.0f%%.",
            bytes / 1e6, (double)r->cache_bytes / 1e6, meter_part_text((enum meter_part)p),
            time_share);
        break;
    case BOUND_MEMORY:
        buffer_printf(out,
                      "memory is the bound: %.3f GB a token at %.1f GB/s allow %.1f tokens a "
                      "second, and %.0f%% of that is reached.",
                      bytes / 1e9, bench_read_rate(r, d) / 1e9, per(1, ideal_seconds(r, d)),
                      100 * share);
        break;
    case BOUND_PART:
        buffer_printf(out,
                      "%.0f%% of the memory bound is reached (%.3f GB a token at %.1f GB/s); the "
                      "most is lost in %s: %.0f%% of the time, read at %.1f GB/s",
                      100 * share, bytes / 1e9, bench_read_rate(r, d) / 1e9,
                      meter_part_text((enum meter_part)p), time_share,
                      per(part_bytes(d, p), part_seconds(d, p)) / 1e9);
        if (r->on_device)
            buffer_printf(out, " with the %u kernels of a step kept apart", d->kernels);
        buffer_char(out, '.');
        break;
    }
}

/* ---- prefill ---- */

struct span {
    double seconds, flops;
};

/* Parts whose products are those of the dense instruction, or of NVFP4. */
static struct span prefill_span(const struct bench_result *r, bool dense)
{
    static const enum meter_part dense_parts[] = {METER_PROJECT, METER_OUTPUT, METER_ROUTER,
                                                  METER_DENSE};
    static const enum meter_part mixed_parts[] = {METER_EXPERTS, METER_SHARED};
    const enum meter_part *parts = dense ? dense_parts : mixed_parts;
    const size_t count =
        dense ? sizeof dense_parts / sizeof *dense_parts : sizeof mixed_parts / sizeof *mixed_parts;
    struct span s = {0};
    for (size_t i = 0; i < count; i++) {
        s.seconds += (double)r->prefill[parts[i]].ns / 1e9;
        s.flops += r->prefill[parts[i]].flops;
    }
    return s;
}

/* ---- JSON ---- */

static void set(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(value));
}

static void set_int(json_t *o, const char *key, uint64_t value)
{
    json_object_set_new(o, key, json_integer((json_int_t)value));
}

static void set_text(json_t *o, const char *key, const char *value)
{
    json_object_set_new(o, key, json_string(value));
}

static json_t *load_json(const struct bench_load *l, uint64_t bytes)
{
    if (!l->measured)
        return json_null();
    json_t *o = json_object();
    set(o, "resident_before", l->resident_before);
    set(o, "open_seconds", l->open_seconds);
    set(o, "open_bytes_per_second", per((double)bytes, l->open_seconds));
    set(o, "first_token_seconds", l->first_token_seconds);
    return o;
}

static json_t *span_json(struct span s, const char *instruction, double peak)
{
    json_t *o = json_object();
    set_text(o, "instruction", instruction);
    set(o, "peak_flops_per_second", peak);
    set(o, "flops", s.flops);
    set(o, "seconds", s.seconds);
    set(o, "flops_per_second", per(s.flops, s.seconds));
    set(o, "share_of_peak", per(per(s.flops, s.seconds), peak));
    return o;
}

static json_t *prefill_json(const struct bench_result *r)
{
    json_t *o = json_object(), *parts = json_object();
    double flops = 0;
    for (int p = 0; p < METER_PARTS; p++) {
        json_t *part = json_object();
        set(part, "seconds", (double)r->prefill[p].ns / 1e9);
        set(part, "flops", r->prefill[p].flops);
        set_int(part, "bytes", r->prefill[p].bytes);
        flops += r->prefill[p].flops;
        json_object_set_new(parts, meter_part_key((enum meter_part)p), part);
    }
    set_int(o, "tokens", (uint64_t)r->prompt_tokens);
    set(o, "seconds", r->prefill_seconds);
    set(o, "tokens_per_second", per(r->prompt_tokens, r->prefill_seconds));
    set(o, "flops", flops);
    set(o, "flops_per_second", per(flops, r->prefill_seconds));
    /* A device's peak is not measured. */
    json_object_set_new(o, "dense",
                        r->on_device ? json_null()
                                     : span_json(prefill_span(r, true), r->peak.dense_instruction,
                                                 r->peak.dense_flops));
    json_object_set_new(o, "nvfp4",
                        r->on_device ? json_null()
                                     : span_json(prefill_span(r, false), r->peak.mixed_instruction,
                                                 r->peak.mixed_flops));
    json_object_set_new(o, "parts", parts);
    return o;
}

static const char *bound_key(const struct bench_result *r, const struct bench_decode *d)
{
    switch (find_bound(r, d)) {
    case BOUND_CACHE:
        return "cache";
    case BOUND_MEMORY:
        return "memory";
    default:
        return meter_part_key((enum meter_part)worst_part(r, d));
    }
}

static json_t *kernels_json(unsigned kernels)
{
    return kernels > 0 ? json_integer((json_int_t)kernels) : json_null();
}

static json_t *timeline_json(const struct timeline_summary *t)
{
    json_t *o = json_object(), *steps = json_array();
    for (size_t i = 0; i < t->count; i++) {
        const struct timeline_step *s = &t->step[i];
        json_t *step = json_object();
        json_object_set_new(step, "from",
                            s->from < 0 ? json_null() : json_string(timeline_place_text(s->from)));
        set_text(step, "to", timeline_place_text(s->to));
        set_int(step, "times", s->count);
        set(step, "seconds_median", s->median);
        set(step, "seconds_tenth", s->low);
        set(step, "seconds_nine_tenths", s->high);
        set(step, "into_layer_seconds", s->into);
        json_array_append_new(steps, step);
    }
    set_int(o, "layers", t->layers);
    set(o, "layer_seconds", t->layer);
    json_object_set_new(o, "steps", steps);
    return o;
}

static json_t *decode_json(const struct bench_result *r, const struct bench_decode *d)
{
    json_t *o = json_object(), *parts = json_object(), *widths = json_array();
    for (int p = 0; p < METER_PARTS; p++) {
        json_t *part = json_object();
        set(part, "seconds", part_seconds(d, p));
        set(part, "share", per(part_seconds(d, p), d->metered_seconds));
        set(part, "bytes", part_bytes(d, p));
        set(part, "flops", per((double)d->part[p].flops, d->metered_steps));
        set(part, "bytes_per_second", per(part_bytes(d, p), part_seconds(d, p)));
        json_object_set_new(parts, meter_part_key((enum meter_part)p), part);
    }
    for (int w = 0; w < d->widths; w++) {
        const struct bench_verify *v = &d->verify[w];
        json_t *width = json_object();
        set_int(width, "rows", (uint64_t)v->rows);
        set(width, "seconds_median", v->median);
        set(width, "seconds_least", v->least);
        set(width, "relative", per(v->median, d->verify[0].median));
        set(width, "relative_least", per(v->least, d->verify[0].least));
        set(width, "weight_bytes", v->weight_bytes);
        json_object_set_new(width, "kernels", kernels_json(v->kernels));
        json_array_append_new(widths, width);
    }
    struct buffer sentence = {0};
    bench_explain(r, d, &sentence);
    set_int(o, "context", (uint64_t)d->context);
    set_int(o, "tokens", (uint64_t)d->tokens);
    set(o, "seconds", d->seconds);
    set(o, "tokens_per_second", per(d->tokens, d->seconds));
    set(o, "step_seconds_median", d->median);
    set(o, "step_seconds_least", d->least);
    set(o, "metered_step_seconds", d->metered_seconds);
    json_object_set_new(o, "kernels_per_step", kernels_json(d->kernels));
    set(o, "weight_bytes_per_token", d->weight_bytes);
    set(o, "kv_bytes_per_token", d->kv_bytes);
    set(o, "read_bytes_per_second", bench_read_rate(r, d));
    set(o, "best_read_bytes_per_second", best_read_rate(d));
    set(o, "roofline_tokens_per_second", per(1, ideal_seconds(r, d)));
    set(o, "share_of_roofline", bench_share(r, d));
    set(o, "share_of_roofline_least", per(ideal_seconds(r, d), d->least));
    json_object_set_new(o, "parts", parts);
    json_object_set_new(o, "verify", widths);
    if (r->timeline)
        json_object_set_new(o, "timeline", timeline_json(&d->timeline));
    set_text(o, "bound", bound_key(r, d));
    set_text(o, "sentence", sentence.data);
    buffer_free(&sentence);
    return o;
}

static json_t *version_json(int version)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d", version / 1000, version % 1000 / 10);
    return json_string(text);
}

static json_t *device_json(const struct bench_result *r)
{
    const struct device_facts *f = &r->device;
    if (!r->on_device)
        return json_null();
    json_t *o = json_object();
    char capability[32];
    snprintf(capability, sizeof capability, "%d.%d", f->major, f->minor);
    set_text(o, "name", f->name);
    set_text(o, "compute_capability", capability);
    set_text(o, "arithmetic", r->fast ? "fast" : "strict");
    json_object_set_new(o, "driver", version_json(f->driver));
    json_object_set_new(o, "runtime", version_json(f->runtime));
    set_int(o, "multiprocessors", (uint64_t)f->multiprocessors);
    set(o, "clock_hz", 1e3 * f->clock_khz);
    set(o, "memory_clock_hz", 1e3 * f->memory_clock_khz);
    set_int(o, "bus_bits", (uint64_t)f->bus_bits);
    set_int(o, "memory_bytes", f->memory_bytes);
    set_int(o, "cache_bytes", f->cache_bytes);
    set_int(o, "weight_bytes", r->device_weight_bytes);
    set(o, "copy_bytes_per_second", r->copy_rate);
    return o;
}

/* One entry for each width, and what they are compared with. */
static json_t *simulated_json(const struct bench_result *r)
{
    const struct bench_simulated *s = &r->simulated;
    const double serial = per((double)s->serial_tokens, s->serial_seconds);
    json_t *o = json_object(), *rounds = json_array();
    for (int i = 0; i < s->widths; i++) {
        const struct bench_rounds *w = &s->width[i];
        const double n = (double)w->rounds, rate = per((double)w->tokens, w->seconds);
        json_t *round = json_object();
        set_int(round, "rows", (uint64_t)w->rows);
        set_int(round, "rounds", w->rounds);
        set_int(round, "tokens", w->tokens);
        set(round, "seconds", w->seconds);
        set(round, "rounds_per_second", per(n, w->seconds));
        set(round, "tokens_per_second", rate);
        set(round, "tokens_per_round", per((double)w->tokens, n));
        set(round, "times_serial", per(rate, serial));
        set(round, "draft_seconds", w->draft_seconds);
        set(round, "verify_seconds", w->verify_seconds);
        json_array_append_new(rounds, round);
    }
    set_text(o, "label", "simulated acceptance: timing only, nothing was judged");
    set(o, "acceptance", s->acceptance);
    set_text(o, "drafter", r->drafter);
    set_int(o, "drafter_bytes", s->drafter_bytes);
    set_int(o, "context", (uint64_t)s->context);
    set_int(o, "serial_tokens", s->serial_tokens);
    set(o, "serial_tokens_per_second", serial);
    json_object_set_new(o, "rounds", rounds);
    return o;
}

static json_t *machine_json(const struct bench_result *r)
{
    json_t *o = json_object(), *read = json_object();
    set_text(o, "engine", r->engine);
    set_text(o, "cpu", r->cpu);
    set_int(o, "threads", (uint64_t)r->threads);
    set_int(o, "cores", (uint64_t)r->cores);
    set_int(o, "cache_bytes", r->cache_bytes);
    if (!r->on_device)
        set_int(o, "page_bytes", r->page_bytes);
    set_int(o, "memory_bytes", r->memory_bytes);
    json_object_set_new(o, "device", device_json(r));
    set_int(read, "buffer_bytes", r->buffer_bytes);
    set(read, "buffer_bytes_per_second", r->read_anonymous);
    set_int(read, "weights_bytes", r->weights_read_bytes);
    json_object_set_new(read, "weights_bytes_per_second",
                        r->weights_read_bytes ? json_real(r->read_weights) : json_null());
    json_object_set_new(o, "read", read);
    return o;
}

void bench_write_json(const struct bench_result *r, struct buffer *out)
{
    json_t *o = json_object(), *model = json_object(), *load = json_object();
    json_t *decode = json_array(), *memory = json_object(), *experts = json_null();
    set_text(model, "weights", r->weights);
    set_text(model, "model_type", r->info.model_type);
    set_text(model, "choices", r->info.choices);
    set_int(model, "layers", (uint64_t)r->info.layers);
    set_int(model, "hidden", (uint64_t)r->info.hidden);
    set_int(model, "vocab", (uint64_t)r->info.vocab);
    set_int(model, "weight_bytes", r->info.weight_bytes);
    json_object_set_new(load, "cold", load_json(&r->cold, r->info.weight_bytes));
    json_object_set_new(load, "warm", load_json(&r->warm, r->info.weight_bytes));
    if (r->experts > 0) {
        experts = json_object();
        set_int(experts, "layers", (uint64_t)r->expert_layers);
        set_int(experts, "experts", (uint64_t)r->experts);
        set_int(experts, "least_chosen_of_a_layer", (uint64_t)r->least_chosen);
        set(experts, "busiest_over_mean", r->busiest_over_mean);
    }
    for (int i = 0; i < r->contexts; i++)
        json_array_append_new(decode, decode_json(r, &r->decode[i]));
    json_object_set_new(memory, "profile", json_string(memory_profile_name(r->info.memory)));
    set_int(memory, "resident_bytes", r->resident_bytes);
    set_int(memory, "anonymous_bytes", r->resident_anonymous);
    set_int(memory, "file_bytes", r->resident_file);
    set_int(memory, "peak_bytes", r->resident_peak);
    set_int(memory, "kv_bytes", r->kv_bytes);
    json_object_set_new(o, "bench", json_integer(1));
    json_object_set_new(o, "model", model);
    json_object_set_new(o, "machine", machine_json(r));
    json_object_set_new(o, "load", load);
    json_object_set_new(o, "prefill", prefill_json(r));
    json_object_set_new(o, "experts", experts);
    json_object_set_new(o, "decode", decode);
    if (r->simulated.there)
        json_object_set_new(o, "simulated", simulated_json(r));
    json_object_set_new(o, "memory", memory);
    json_write_ordered(o, 2, out);
    buffer_char(out, '\n');
    json_decref(o);
}

/* ---- for people ---- */

static const char *number(char *out, const char *form, double value)
    __attribute__((format(printf, 2, 0)));

static const char *number(char *out, const char *form, double value)
{
    snprintf(out, TEXT, form, value);
    return out;
}

static void print_load(const char *what, const struct bench_load *l)
{
    if (l->measured)
        printf("%s: opened in %.3f s (%.0f%% of the weights were in memory), first token %.3f s "
               "later\n",
               what, l->open_seconds, 100 * l->resident_before, l->first_token_seconds);
}

static void print_prefill(const struct bench_result *r)
{
    const struct span dense = prefill_span(r, true), mixed = prefill_span(r, false);
    printf("prefill: %d tokens in %.3f s, %.1f a second\n", r->prompt_tokens, r->prefill_seconds,
           per(r->prompt_tokens, r->prefill_seconds));
    if (!r->on_device)
        printf("  dense parts %.1f GFLOP/s, %.0f%% of the %.1f that %s gives; NVFP4 parts %.1f, "
               "%.0f%% "
               "of %.1f (%s)\n",
               per(dense.flops, dense.seconds) / 1e9,
               100 * per(per(dense.flops, dense.seconds), r->peak.dense_flops),
               r->peak.dense_flops / 1e9, r->peak.dense_instruction,
               per(mixed.flops, mixed.seconds) / 1e9,
               100 * per(per(mixed.flops, mixed.seconds), r->peak.mixed_flops),
               r->peak.mixed_flops / 1e9, r->peak.mixed_instruction);
    if (r->experts > 0)
        printf("  routing: of %d experts at least %d were chosen in each of %d layers, the busiest "
               "%.1f times the mean\n",
               r->experts, r->least_chosen, r->expert_layers, r->busiest_over_mean);
}

static void print_parts(const struct bench_result *r, const struct bench_decode *d)
{
    struct table *t = table_new(6);
    const double rate = bench_read_rate(r, d);
    table_row(t, "part", "ms", "% of time", "MB", "GB/s", "% of read");
    for (int p = 0; p < METER_PARTS; p++) {
        char a[TEXT], b[TEXT], c[TEXT], e[TEXT], f[TEXT];
        const double seconds = part_seconds(d, p), bytes = part_bytes(d, p);
        if (d->part[p].ns == 0)
            continue;
        table_row(t, meter_part_text((enum meter_part)p), number(a, "%.3f", 1e3 * seconds),
                  number(b, "%.1f", per(100 * seconds, d->metered_seconds)),
                  number(c, "%.2f", bytes / 1e6),
                  bytes > 0 ? number(e, "%.1f", per(bytes, seconds) / 1e9) : "",
                  bytes > 0 ? number(f, "%.0f", per(100 * per(bytes, seconds), rate)) : "");
    }
    table_print(t);
}

static void print_timeline(const struct timeline_summary *t)
{
    struct table *rows = table_new(7);
    printf("timeline of these steps, block 0, microseconds: %zu layers, %.2f from one's begin to "
           "the next one's (median)\n\n",
           t->layers, 1e6 * t->layer);
    table_row(rows, "to", "median", "10%", "90%", "into the layer", "times", "from");
    for (size_t i = 0; i < t->count; i++) {
        const struct timeline_step *s = &t->step[i];
        const bool first = s->from < 0;
        char a[TEXT], b[TEXT], c[TEXT], d[TEXT], e[TEXT];
        table_row(rows, timeline_place_text(s->to), first ? "" : number(a, "%.2f", 1e6 * s->median),
                  first ? "" : number(b, "%.2f", 1e6 * s->low),
                  first ? "" : number(c, "%.2f", 1e6 * s->high), number(d, "%.2f", 1e6 * s->into),
                  number(e, "%.0f", (double)s->count), first ? "" : timeline_place_text(s->from));
    }
    table_print(rows);
    printf("\n");
}

static void print_widths(const struct bench_decode *d)
{
    struct table *t = table_new(5);
    table_row(t, "rows", "median ms", "least ms", "times one row", "MB of weights");
    for (int w = 0; w < d->widths; w++) {
        const struct bench_verify *v = &d->verify[w];
        char a[TEXT], b[TEXT], c[TEXT], e[TEXT], f[TEXT];
        table_row(t, number(a, "%.0f", v->rows), number(b, "%.3f", 1e3 * v->median),
                  number(c, "%.3f", 1e3 * v->least),
                  number(e, "%.2f", per(v->median, d->verify[0].median)),
                  number(f, "%.1f", v->weight_bytes / 1e6));
    }
    table_print(t);
}

static void print_decode(const struct bench_result *r, const struct bench_decode *d)
{
    struct buffer sentence = {0};
    bench_explain(r, d, &sentence);
    printf("\ndecode at context %lld: %d tokens, %.2f a second; a step takes %.3f ms (median; "
           "least %.3f)",
           (long long)d->context, d->tokens, per(d->tokens, d->seconds), 1e3 * d->median,
           1e3 * d->least);
    if (d->kernels > 0)
        printf(", %u kernels", d->kernels);
    printf("\n");
    printf("  read a token: %.2f MB of weights, %.2f MB of keys and values; at %.1f GB/s that "
           "allows %.2f tokens a second: %.0f%% reached (%.0f%% in the quickest step; best reading "
           "before and after: %.1f GB/s)\n\n",
           d->weight_bytes / 1e6, d->kv_bytes / 1e6, bench_read_rate(r, d) / 1e9,
           per(1, ideal_seconds(r, d)), 100 * bench_share(r, d),
           100 * per(ideal_seconds(r, d), d->least), best_read_rate(d) / 1e9);
    print_parts(r, d);
    printf("\n");
    if (r->timeline)
        print_timeline(&d->timeline);
    print_widths(d);
    printf("\n%s\n", sentence.data);
    buffer_free(&sentence);
}

static void print_device(const struct bench_result *r)
{
    const struct device_facts *f = &r->device;
    printf("device: %d multiprocessors, %.2f GB of memory, clocks up to %.0f and %.0f MHz, driver "
           "%d.%d, runtime %d.%d; weights there %.2f GB\n",
           f->multiprocessors, (double)f->memory_bytes / 1e9, f->clock_khz / 1e3,
           f->memory_clock_khz / 1e3, f->driver / 1000, f->driver % 1000 / 10, f->runtime / 1000,
           f->runtime % 1000 / 10, (double)r->device_weight_bytes / 1e9);
    printf("reading: %.1f GB/s of its memory; copying: %.1f GB/s read and as much written\n",
           r->read_anonymous / 1e9, r->copy_rate / 1e9);
}

static void print_reading(const struct bench_result *r)
{
    printf("reading: %.1f GB/s (huge pages asked for)", r->read_anonymous / 1e9);
    if (r->weights_read_bytes)
        printf(", %.1f GB/s of the weights where they lie", r->read_weights / 1e9);
    printf("\n");
}

static void print_simulated(const struct bench_result *r)
{
    const struct bench_simulated *s = &r->simulated;
    const double serial = per((double)s->serial_tokens, s->serial_seconds);
    struct table *t = table_new(7);
    printf("\nsimulated acceptance of %.0f%% for each draft (timing only, nothing was judged), "
           "drafter %s (%.2f GB), from context %lld on; serial: %zu tokens, %.2f a second\n\n",
           100 * s->acceptance, r->drafter, (double)s->drafter_bytes / 1e9, (long long)s->context,
           s->serial_tokens, serial);
    table_row(t, "rows", "rounds/s", "tokens/round", "tokens/s", "times serial", "draft ms",
              "verify ms");
    for (int i = 0; i < s->widths; i++) {
        const struct bench_rounds *w = &s->width[i];
        const double n = (double)w->rounds, rate = per((double)w->tokens, w->seconds);
        char a[TEXT], b[TEXT], c[TEXT], d[TEXT], e[TEXT], f[TEXT], g[TEXT];
        table_row(t, number(a, "%.0f", w->rows), number(b, "%.1f", per(n, w->seconds)),
                  number(c, "%.2f", per((double)w->tokens, n)), number(d, "%.1f", rate),
                  number(e, "%.2f", per(rate, serial)), number(f, "%.3f", 1e3 * w->draft_seconds),
                  number(g, "%.3f", 1e3 * w->verify_seconds));
    }
    table_print(t);
}

void bench_print(const struct bench_result *r)
{
    printf("%s: %s, %d layers, %.2f GB; %s, %d cores, cache %.0f MB\n", r->weights,
           r->info.model_type, r->info.layers, (double)r->info.weight_bytes / 1e9, r->engine,
           r->cores, (double)r->cache_bytes / 1e6);
    if (r->on_device)
        print_device(r);
    else
        print_reading(r);
    print_load("cold", &r->cold);
    print_load("warm", &r->warm);
    print_prefill(r);
    for (int i = 0; i < r->contexts; i++)
        print_decode(r, &r->decode[i]);
    if (r->simulated.there)
        print_simulated(r);
    printf("\nmemory: profile %s, %.2f GB resident (%.2f of files, %.2f own), of it %.3f GB keys "
           "and values; "
           "peak %.2f GB\n",
           memory_profile_name(r->info.memory), (double)r->resident_bytes / 1e9,
           (double)r->resident_file / 1e9, (double)r->resident_anonymous / 1e9,
           (double)r->kv_bytes / 1e9, (double)r->resident_peak / 1e9);
}
