/* benchd analyze-ngram-similarity: is a prompt a drafting lottery ticket (dflash-track.md section
 * 8)? */
#include "judge/tools.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/json.h"
#include "judge/screen.h"
#include "judge/tools_common.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))
enum { GOLDEN_BYTES_MAX = 256 << 20, GOLDEN_DEPTH_MAX = 16 };

/* "1,2,3": orders once each, ascending. */
static bool parse_orders(const char *text, unsigned *orders, struct error *err)
{
    int last = 0;
    *orders = 0;
    for (const char *p = text;; p += 2) {
        const int order = p[0] - '0';
        if (order <= last || order > SCREEN_NGRAM_ORDERS || (p[1] != ',' && p[1] != '\0'))
            break;
        *orders |= 1u << (order - 1);
        last = order;
        if (p[1] == '\0')
            return true;
    }
    error_set(err, "USAGE", "orders are 1 to %d between commas, ascending", SCREEN_NGRAM_ORDERS);
    return error_at(err, NULL, "--orders", text);
}

/* A context and the tokens that follow it. */
struct text {
    int64_t *context, *next;
    size_t context_count, next_count;
};

static bool read_text(struct arena *a, const struct json_view *v, const char *context,
                      const char *first, const char *rest, struct text *out, struct error *err)
{
    int64_t token, *tokens;
    size_t count;
    if (!json_get_int64_array(a, v, context, 0, INT32_MAX, &out->context, &out->context_count,
                              err) ||
        !json_get_int64(v, first, 0, INT32_MAX, &token, err) ||
        !json_get_int64_array(a, v, rest, 0, INT32_MAX, &tokens, &count, err))
        return false;
    out->next_count = count < SCREEN_NGRAM_CONTINUATION ? count + 1 : SCREEN_NGRAM_CONTINUATION;
    out->next = arena_array(a, out->next_count, sizeof *out->next);
    out->next[0] = token;
    memcpy(out->next + 1, tokens, (out->next_count - 1) * sizeof *tokens);
    return true;
}

static bool read_case(struct arena *a, const struct json_view *v, struct text *out,
                      struct error *err)
{
    const json_t *cases;
    if (!json_get_array(v, "cases", &cases, err))
        return false;
    const struct json_view first = {json_array_get(cases, 0), v->file, "cases[0]"};
    if (!json_is_object(first.object)) {
        error_set(err, "GOLDEN-INVALID", "the golden holds no case");
        return error_at(err, v->file, "cases", NULL);
    }
    if (!json_get_int64_array(a, &first, "prompt_tokens", 0, INT32_MAX, &out->context,
                              &out->context_count, err) ||
        !json_get_int64_array(a, &first, "expected_tokens", 0, INT32_MAX, &out->next,
                              &out->next_count, err))
        return false;
    if (out->next_count > SCREEN_NGRAM_CONTINUATION)
        out->next_count = SCREEN_NGRAM_CONTINUATION;
    return true;
}

/* Of a golden of block decoding its seed, of a correctness golden its benchmark, or where it has
 * none its first case. */
static bool read_golden(struct arena *a, const struct json_view *v, struct text *out,
                        struct error *err)
{
    const json_t *benchmark;
    if (!json_is_object(v->object)) {
        error_set(err, "GOLDEN-INVALID", "the file is no object");
        return error_at(err, v->file, NULL, NULL);
    }
    if (json_has(v, "reference_seed_token"))
        return read_text(a, v, "seed_tokens", "reference_seed_token", "emitted_tokens", out, err);
    if (!json_has(v, "benchmark"))
        return read_case(a, v, out, err);
    if (!json_get_object(v, "benchmark", &benchmark, err))
        return false;
    const struct json_view b = {benchmark, v->file, "benchmark"};
    return read_text(a, &b, "decode_seed_tokens", "expected_decode_seed_token",
                     "expected_decode_tokens", out, err);
}

static bool load_text(struct arena *a, const char *path, struct text *out, struct error *err)
{
    json_t *root = json_read_file(path, GOLDEN_BYTES_MAX, GOLDEN_DEPTH_MAX, err);
    const struct json_view v = {root, path, ""};
    bool ok = root != NULL && read_golden(a, &v, out, err);
    json_decref(root);
    if (ok && out->next_count == 0) {
        error_set(err, "GOLDEN-INVALID", "no token follows the prompt");
        ok = error_at(err, path, NULL, NULL);
    }
    return ok;
}

int tool_ngram_similarity(int argc, char **argv)
{
    static const char tool[] = "analyze-ngram-similarity";
    const char *golden = NULL, *orders_text = "1,2,3";
    double most = SCREEN_NGRAM_HIT_RATE;
    const struct option_spec options[] = {
        {"--golden", OPTION_TEXT, true, "FILE",
         "A golden of block decoding, or a correctness golden: its benchmark, else its first case.",
         &golden, NULL, 0, 0},
        {"--orders", OPTION_TEXT, false, "A,B,...",
         "Lengths of the repeats that are looked for (default 1,2,3).", &orders_text, NULL, 0, 0},
        {"--max-hit-rate", OPTION_REAL, false, "R",
         "Limit of longest_match_most_recent_hit_rate (default 0.03).", &most, NULL, 0, 0},
    };
    const struct command command = {
        "benchd analyze-ngram-similarity",
        "Says how often a golden's continuation could be guessed from its own text.",
        "Of the golden's continuation the first 129 tokens; one JSON object on stdout.\n"
        "Exit: 0 at most the limit, 1 above it, 2 usage, 3 the golden cannot be used.",
        NULL,
        options,
        COUNT_OF(options)};
    struct arena a = {0};
    struct error err = {0};
    struct text text = {0};
    unsigned orders;
    int code;
    if (!tool_parse(&command, tool, argc, argv, NULL, &code))
        return code;
    if (!parse_orders(orders_text, &orders, &err)) {
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    if (most < 0 || most > 1) {
        error_set(&err, "USAGE", "a rate is 0 to 1");
        error_at(&err, NULL, "--max-hit-rate", NULL);
        tool_complain(tool, &err);
        return TOOL_USAGE;
    }
    if (!load_text(&a, golden, &text, &err)) {
        tool_complain(tool, &err);
        arena_free(&a);
        return TOOL_IO;
    }
    struct screen_ngram s;
    struct buffer out = {0};
    screen_ngram_orders(text.context, text.context_count, text.next, text.next_count, orders, &s);
    json_t *report = screen_ngram_json(&s);
    json_write_ordered(report, 2, &out);
    puts(out.data);
    json_decref(report);
    buffer_free(&out);
    arena_free(&a);
    const double rate = (double)s.longest_hits / (double)s.continuation;
    if (rate <= most)
        return TOOL_OK;
    fprintf(stderr,
            "benchd %s: %zu of %zu tokens could be guessed from the text: a rate above %g\n", tool,
            s.longest_hits, s.continuation, most);
    return TOOL_REJECTED;
}
