/* The verdict in one sentence, with the interval and the null, and what it rests on. */
#include "judge/page/parts.h"

#include "judge/page/pairs.h"
#include "judge/page/units.h"
#include "judge/stats/paired.h"

#include <math.h>
#include <string.h>

static const char *or_dash(const char *text)
{
    return text ? text : "–";
}

/* "; the control against itself gave ..." */
static const char *null_clause(struct arena *a, const struct report_statistics *t)
{
    if (!t->null_there || !isfinite(t->null_ratio))
        return "; no null pair says what this machine takes for a difference";
    const char *interval = unit_interval(a, t->null_low, t->null_high);
    return arena_printf(a, "; the control against itself gave %s (%s%s)",
                        unit_ratio(a, t->null_ratio),
                        interval ? interval : "too few null pairs for an interval",
                        !interval || t->null_differs ? "" : ", which contains 1.0 as it must");
}

/* What the interval allows to be said. */
static void say_statistics(struct sheet *s, const struct report_source *r,
                           const struct report_statistics *t)
{
    struct arena *a = &s->arena;
    const char *axis = *t->axis ? t->axis : "score";
    const bool has_interval = isfinite(t->low) && isfinite(t->high);
    const double score = source_real(r->score.document, "score");
    const char *gain = unit_percent(a, fabs(t->ratio - 1));
    const char *words;
    enum sheet_tone tone = SHEET_PLAIN;
    if (!has_interval) {
        words = "No interval, so nothing is claimed";
        tone = SHEET_CAUTION;
    } else if (t->null_there && t->null_differs) {
        words = "Nothing can be claimed, since the control differs from itself";
        tone = SHEET_CAUTION;
    } else if (t->low > 1 + PAIRED_CLAIM_FLOOR) {
        words = arena_printf(a, "Faster by %s", or_dash(gain));
        tone = SHEET_GOOD;
    } else if (t->high < 1 / (1 + PAIRED_CLAIM_FLOOR)) {
        words = arena_printf(a, "Slower by %s", or_dash(gain));
        tone = SHEET_BAD;
    } else {
        words = "No difference is claimed";
    }
    sheet_say(s, tone,
              "%s: the candidate runs at %s times the control (%s, %s interval %s, %.0f pairs)%s.",
              words, or_dash(unit_ratio(a, t->ratio)), axis,
              or_dash(unit_number(a, t->confidence * 100, NULL) == NULL
                          ? NULL
                          : arena_printf(a, "%s%%", unit_number(a, t->confidence * 100, NULL))),
              or_dash(unit_interval(a, t->low, t->high)), isfinite(t->pairs) ? t->pairs : 0,
              null_clause(a, t));
    if (isfinite(score))
        sheet_say(s, SHEET_PLAIN, "The sealed score is %s.", unit_ratio(a, score));
    if (isfinite(t->smallest_effect))
        sheet_say(s, SHEET_PLAIN, "The smallest difference that this run could have seen is %s.",
                  unit_percent(a, t->smallest_effect));
}

static void say_passed(struct sheet *s, const struct report_source *r)
{
    const json_t *m = r->score.metrics;
    struct arena *a = &s->arena;
    const double score = source_real(r->score.document, "score");
    const char *decode = unit_rate(a, source_real(m, "decode_seconds_per_token"));
    const char *prefill = unit_rate(a, source_real(m, "prefill_seconds_per_token"));
    if (*source_text(m, "mode")) {
        sheet_say(
            s, SHEET_PLAIN,
            "Block decoding runs at %s times serial decoding (ratio of means over %.0f pairs; "
            "no interval is sealed)%s%s.",
            or_dash(unit_ratio(a, source_real(m, "dflash_decode_speedup"))),
            source_real(m, "accepted_pair_count"),
            source_flag(m, "rankable") ? "" : "; not rankable: ",
            source_flag(m, "rankable") ? "" : source_text(m, "not_rankable_reason"));
    } else if (isfinite(score)) {
        sheet_say(
            s, SHEET_CAUTION,
            "Passed with the score %s; no statistics are sealed, so nothing says whether this "
            "is more than noise.",
            unit_ratio(a, score));
    } else if (!decode && !prefill) {
        sheet_say(s, SHEET_GOOD,
                  "Correctness passed; nothing was timed, so there is no speed and no score.");
    } else {
        sheet_say(s, SHEET_PLAIN,
                  "Passed, an unscored local run: prefill %s, decode %s; without a control beside "
                  "it, it says nothing about faster or slower.",
                  prefill ? prefill : "not timed", decode ? decode : "not timed");
    }
}

/* A name and a value, where there is a value. */
static void tile(struct sheet *s, const char *name, const char *value)
{
    if (value)
        sheet_row(s, name, value);
}

static const char *speedup(struct arena *a, const json_t *m, const char *key)
{
    const double value = source_real(m, key);
    return value > 0 ? arena_printf(a, "%s ×", unit_ratio(a, value)) : NULL;
}

void part_verdict(struct sheet *s, const struct report_source *r)
{
    const json_t *m = r->score.metrics;
    struct arena *a = &s->arena;
    const struct report_statistics t = statistics_of(m);
    const double score = source_real(r->score.document, "score");
    sheet_begin(s, "verdict", "Verdict");
    if (!source_flag(r->score.document, "passed"))
        sheet_say(s, SHEET_BAD, "Not passed, so there is no score: %s", source_text(m, "error"));
    else if (t.there)
        say_statistics(s, r, &t);
    else
        say_passed(s, r);
    if (source_flag(m, "partial_result"))
        sheet_say(s, SHEET_CAUTION, "The result is partial: the run ended before its end.");
    if (r->score.sidecar == SIDECAR_DIFFERS)
        sheet_say(s, SHEET_BAD,
                  "The file beside the score (.sha256) names another digest: the score was changed "
                  "after it was sealed, or the file is not its own.");
    sheet_table(s, SHEET_TILES, "At a glance", 2, NULL);
    sheet_row(s, "passed", source_flag(r->score.document, "passed") ? "yes" : "no");
    tile(s, "score", unit_ratio(a, score));
    tile(s, "decode", unit_rate(a, source_real(m, "decode_seconds_per_token")));
    tile(s, "prefill", unit_rate(a, source_real(m, "prefill_seconds_per_token")));
    tile(s, "decode, against the control", speedup(a, m, "decode_speedup"));
    tile(s, "prefill, against the control", speedup(a, m, "prefill_speedup"));
    if (r->contract)
        sheet_row(s, "track", r->contract->track_id);
    tile(s, "measured", *source_text(m, "timestamp") ? source_text(m, "timestamp") : NULL);
    tile(s, "engine", *source_text(m, "engine_device") ? source_text(m, "engine_device") : NULL);
}
