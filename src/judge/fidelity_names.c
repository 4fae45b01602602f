/* Violations by name, and what is published of a failure on a hidden prompt: a category and counts
 * (dflash-track.md sections 7 and 16). Both tables are the enum's own. */
#include "judge/fidelity.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

static const struct {
    const char *name, *published, *meaning;
} violations[] = {
#define VIOLATION_ROW(kind, published, meaning) {#kind, published, meaning},
    FIDELITY_VIOLATIONS(VIOLATION_ROW)
#undef VIOLATION_ROW
};

const char *fidelity_violation_name(enum fidelity_violation v)
{
    return violations[v].name;
}

const char *fidelity_violation_meaning(enum fidelity_violation v)
{
    return violations[v].meaning;
}

const char *fidelity_violation_published(enum fidelity_violation v)
{
    return violations[v].published;
}

bool fidelity_fail(enum fidelity_violation v, size_t round, struct error *err, const char *format,
                   ...)
{
    char counts[256];
    const char *meaning = violations[v].meaning;
    va_list args;
    va_start(args, format);
    vsnprintf(counts, sizeof counts, format, args);
    va_end(args);
    return error_set(err, violations[v].published, "%.*s: round=%zu%s%s",
                     (int)(strlen(meaning) - 1), meaning, round, *counts ? " " : "", counts);
}

/* ---- Publishing ---- */

static const char *const categories[] = {
#define CATEGORY_NAME(category, meaning) #category,
    FIDELITY_CATEGORIES(CATEGORY_NAME)
#undef CATEGORY_NAME
};

/* The counts that fidelity_fail's callers tell. */
static const char *const counts_told[] = {
    "round",    "row",    "width",     "tokens",    "rows",   "accepted", "rejected", "drafts",
    "readouts", "wanted", "near_ties", "residuals", "budget", "total",    "mean_over"};

/* A longer number could carry more of a hidden prompt than a count has need to. */
enum { COUNT_DIGITS_MAX = 4 };

/* What other failures are published as; the rest is runtime_error. */
static const struct {
    const char *failure; /* how the error begins */
    const char *category;
} classes[] = {
    {"incomplete", "no_score"},
    {"SCORE-INVALID", "invalid_score"},
    {"computed score was not finite", "invalid_score"},
    {"score: computed score was not finite", "invalid_score"},
    {"performance floor failed", "floor_failed"},
    {"acceptance band failed", "acceptance_band_failed"},
    {"seed window failed", "seed_window_failed"},
    {"decode barrier failed", "decode_barrier_failed"},
    {"RAW-SPEEDUP-IMPLAUSIBLE", "invalid_score"},
    {"TokenMismatch: prefill: ", "prefill_token_mismatch"},
    {"TokenMismatch: decode-seed: ", "decode_seed_token_mismatch"},
    {"TokenMismatch", "decode_token_mismatch"},
    {"TIMED-DIVERGENCE-", "decode_token_mismatch"},
    {"semantic answers below the threshold", "semantic_gpqa_failed"},
    {"SEMANTIC-", "semantic_gpqa_infra_failed"},
    {"teacher-forced ", "correctness_failed"},
    {"anchor token mismatch", "correctness_failed"},
    {"free-run token mismatch", "correctness_failed"},
    {"behavior token mismatch", "correctness_failed"},
    {"first token differs from the answer's", "correctness_failed"},
};

static bool is_one_of(const char *text, size_t length, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(list[i]) == length && strncmp(list[i], text, length) == 0)
            return true;
    return false;
}

/* Every word of the text that is "key=digits" with a key that is told. */
static void publish_counts(const char *text, struct buffer *out)
{
    while (*text) {
        const size_t length = strcspn(text, " ");
        const size_t key = strcspn(text, "= ");
        size_t digits = 0;
        while (key + 1 + digits < length && isdigit((unsigned char)text[key + 1 + digits]))
            digits++;
        if (key < length && digits > 0 && digits <= COUNT_DIGITS_MAX &&
            key + 1 + digits == length &&
            is_one_of(text, key, counts_told, COUNT_OF(counts_told))) {
            buffer_char(out, ' ');
            buffer_append(out, text, length);
        }
        text += length;
        text += strspn(text, " ");
    }
}

void fidelity_publish(const char *failure, struct buffer *out)
{
    const size_t length = strcspn(failure, ":");
    for (size_t i = 0; i < COUNT_OF(violations); i++) {
        const char *name = violations[i].published;
        if (strlen(name) != length || strncmp(name, failure, length) != 0)
            continue;
        buffer_text(out, name);
        publish_counts(failure + length, out);
        return;
    }
    if (is_one_of(failure, length, categories, COUNT_OF(categories))) {
        buffer_append(out, failure, length);
        return;
    }
    for (size_t i = 0; i < COUNT_OF(classes); i++) {
        if (text_starts(failure, classes[i].failure)) {
            buffer_text(out, classes[i].category);
            return;
        }
    }
    buffer_text(out, "runtime_error");
}
