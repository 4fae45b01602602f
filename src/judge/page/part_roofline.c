/* Share of the roofline, from `bench-worker bench --json`. */
#include "judge/page/parts.h"

#include "judge/page/units.h"

#include <math.h>

static const char *spaced(struct arena *a, const char *name)
{
    char *text = arena_strdup(a, name);
    for (char *p = text; *p; p++)
        *p = *p == '_' ? ' ' : *p;
    return text;
}

static void one_context(struct sheet *s, const json_t *d)
{
    static const char *const heads[] = {"part of a step", "time", "share", "bytes", "rate"};
    struct arena *a = &s->arena;
    const double context = source_real(d, "context");
    const char *at = arena_printf(a, "at context %.0f", context);
    const json_t *parts = json_object_get(d, "parts");
    const char *sentence = source_text(d, "sentence");
    if (*sentence)
        sheet_say(s, SHEET_PLAIN, "%s", sentence);
    json_t *shares = sheet_chart_new("bars", "share of a step, %", "");
    json_t *rates = sheet_chart_new("bars", "GB/s", "");
    json_t *share = sheet_chart_series(s, shares, "share of the step");
    json_t *rate = sheet_chart_series(s, rates, "read by the part");
    json_object_set_new(shares, "across", json_true());
    json_object_set_new(rates, "across", json_true());
    const char *name;
    json_t *part;
    json_object_foreach((json_t *)parts, name, part)
    {
        sheet_chart_label(s, shares, spaced(a, name));
        sheet_push(share, "values", source_real(part, "share") * 100);
        sheet_chart_label(s, rates, spaced(a, name));
        sheet_push(rate, "values", source_real(part, "bytes_per_second") / 1e9);
    }
    sheet_chart_mark(rates, "measured read bandwidth",
                     source_real(d, "best_read_bytes_per_second") / 1e9);
    sheet_chart(s, arena_printf(a, "Where the time of a step goes, %s", at), shares);
    sheet_chart(s, arena_printf(a, "Bytes per second of each part, %s", at), rates);
    sheet_table(s, SHEET_BOTH, arena_printf(a, "Parts of a step, %s", at), 5, heads);
    json_object_foreach((json_t *)parts, name, part)
    {
        const double bytes = source_real(part, "bytes");
        const char *speed = unit_bytes(a, source_real(part, "bytes_per_second"));
        sheet_row(s, spaced(a, name), unit_seconds(a, source_real(part, "seconds")),
                  unit_percent(a, source_real(part, "share")), unit_bytes(a, bytes),
                  bytes > 0 && speed ? arena_printf(a, "%s/s", speed) : NULL);
    }
}

void part_roofline(struct sheet *s, const struct report_source *r)
{
    static const char *const heads[] = {"context", "decode", "roofline", "share of the roofline",
                                        "read bandwidth"};
    struct arena *a = &s->arena;
    sheet_begin(s, "roofline", "Share of the roofline");
    if (!r->bench) {
        sheet_say(s, SHEET_PLAIN,
                  "No measurement of the machine's bandwidth was given "
                  "(--roofline FILE, from `bench-worker bench --json`).");
        return;
    }
    const json_t *decode = json_object_get(r->bench, "decode");
    const char *engine = source_text(json_object_get(r->bench, "machine"), "engine");
    sheet_say(s, SHEET_PLAIN,
              "Measured apart from this score%s%s: what decoding reaches of the speed at which "
              "the machine reads memory. Above 100%%, the weights come from a cache.",
              *engine ? ", on " : "", engine);
    sheet_table(s, SHEET_BOTH, "Decode beside the roofline", 5, heads);
    for (size_t i = 0; i < json_array_size(decode); i++) {
        const json_t *d = json_array_get(decode, i);
        const char *read = unit_bytes(a, source_real(d, "best_read_bytes_per_second"));
        sheet_row(s, arena_printf(a, "%.0f tokens", source_real(d, "context")),
                  unit_number(a, source_real(d, "tokens_per_second"), "tok/s"),
                  unit_number(a, source_real(d, "roofline_tokens_per_second"), "tok/s"),
                  unit_percent(a, source_real(d, "share_of_roofline")),
                  read ? arena_printf(a, "%s/s", read) : NULL);
    }
    for (size_t i = 0; i < json_array_size(decode); i++)
        one_context(s, json_array_get(decode, i));
}
