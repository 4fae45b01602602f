#include "judge/semantic.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/number.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { GRACE_EXIT_MS = 2000 };

static const char *command_from(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

bool semantic_judge_from_environment(struct semantic_judge *out, struct error *err)
{
    static const char limit[] = "MLXFAST_SEMANTIC_JUDGE_TIMEOUT_S";
    *out = (struct semantic_judge){.command = command_from("MLXFAST_SEMANTIC_JUDGE_CMD"),
                                   .detokenize = command_from("MLXFAST_DETOKENIZE_CMD"),
                                   .timeout_seconds = SEMANTIC_TIMEOUT_DEFAULT};
    const char *text = getenv(limit);
    if (text == NULL)
        return true;
    /* A day is no limit; the upper bound keeps nanoseconds inside int64. */
    if (number_double(text, &out->timeout_seconds) && out->timeout_seconds > 0 &&
        out->timeout_seconds <= 86400)
        return true;
    error_set(err, "USAGE", "a time limit is a number of seconds above 0, at most 86400");
    return error_at(err, NULL, limit, text);
}

bool semantic_is_case(const struct golden_behavior *b)
{
    return b->semantic_prompt != NULL;
}

size_t semantic_case_count(const struct golden *g)
{
    size_t n = 0;
    for (size_t i = 0; i < g->behavior_count; i++)
        n += semantic_is_case(&g->behaviors[i]);
    return n;
}

bool semantic_check_ready(const struct semantic_judge *j, const struct golden *g, int64_t needed,
                          struct error *err)
{
    const size_t count = semantic_case_count(g);
    if (count == 0)
        return true;
    if (j == NULL || j->command == NULL) {
        error_set(err, "SEMANTIC-JUDGE-MISSING",
                  "%zu cases are judged by their meaning and MLXFAST_SEMANTIC_JUDGE_CMD names no "
                  "judge",
                  count);
        return error_at(err, g->path, "correctness_gates.behavior", NULL);
    }
    if (needed > 0 && (uint64_t)needed > count) {
        error_set(err, "SEMANTIC-CASES-TOO-FEW",
                  "%zu cases are judged by their meaning, the contract asks for %lld right answers",
                  count, (long long)needed);
        return error_at(err, g->path, "correctness_gates.behavior", NULL);
    }
    return true;
}

/* What went wrong, for the caller to name. */
enum ask_result { ASK_DONE, ASK_FAILED, ASK_TIMEOUT, ASK_INTERRUPTED };

/* Gives a command one input and takes all of its output, within one time limit. */
static enum ask_result ask_command(const char *command, const struct buffer *input, size_t limit,
                                   double seconds, struct buffer *output, const char **why)
{
    const char *const argv[] = {"/bin/sh", "-c", command, NULL};
    const struct child_options o = {.argv = argv, .envp = (const char *const *)environ};
    struct child *c;
    *why = "it could not be started";
    if (!child_start(&o, &c, NULL))
        return ASK_FAILED;
    const int64_t deadline = clock_now_ns() + (int64_t)(seconds * 1e9);
    struct error inner = {0};
    /* A command that does not read its input may still answer. */
    enum ask_result result = ASK_DONE;
    if (!child_write(c, input->data, input->length, deadline, &inner) &&
        strcmp(inner.name, "ENGINE-CLOSED") != 0)
        result = strcmp(inner.name, "ENGINE-WRITE-TIMEOUT") == 0 ? ASK_TIMEOUT : ASK_FAILED;
    child_close_input(c);
    *why = "its input could not be written";
    if (result == ASK_DONE) {
        switch (child_read_rest(c, limit, deadline, output, NULL)) {
        case CHILD_READ_EOF:
            break;
        case CHILD_READ_TIMEOUT:
            result = ASK_TIMEOUT;
            break;
        case CHILD_READ_TOO_LONG:
            *why = "its output is longer than its limit";
            result = ASK_FAILED;
            break;
        case CHILD_READ_LINE:
        case CHILD_READ_ERROR:
            *why = "its output could not be read";
            result = ASK_FAILED;
            break;
        }
    }
    child_end(c, result == ASK_DONE ? GRACE_EXIT_MS : 0);
    if (result == ASK_DONE && !child_exited_normally(c)) {
        *why = "it did not end with status 0";
        result = ASK_FAILED;
    }
    child_free(c);
    return interrupt_requested() ? ASK_INTERRUPTED : result;
}

static bool command_failed(struct error *err, enum ask_result r, const char *failed,
                           const char *timeout, const char *what, const char *why, double seconds,
                           const char *name)
{
    if (r == ASK_INTERRUPTED)
        error_set(err, "Interrupted", "interrupted while waiting for the %s", what);
    else if (r == ASK_TIMEOUT)
        error_set(err, timeout, "the %s did not answer within %.3f s", what, seconds);
    else
        error_set(err, failed, "the %s failed: %s", what, why);
    return error_at(err, NULL, name, NULL);
}

static json_t *tokens_json(const int64_t *items, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(items[i]));
    return array;
}

static void write_line(json_t *document, struct buffer *out)
{
    json_write_ordered(document, 0, out);
    buffer_char(out, '\n');
    json_decref(document);
}

static bool detokenize(const struct semantic_judge *j, const struct golden_behavior *b,
                       const int64_t *answer, size_t count, struct buffer *text, struct error *err)
{
    static const char failed[] = "SEMANTIC-DETOKENIZE-FAILED";
    struct buffer question = {0};
    json_t *q = json_object();
    json_object_set_new(q, "tokens", tokens_json(answer, count));
    write_line(q, &question);
    const char *why;
    const enum ask_result r =
        ask_command(j->detokenize, &question, SEMANTIC_TEXT_LIMIT, j->timeout_seconds, text, &why);
    buffer_free(&question);
    if (r != ASK_DONE)
        return command_failed(err, r, failed, failed, "detokeniser", why, j->timeout_seconds,
                              b->name);
    const char *p = text->length > 0 ? text->data : "";
    if (utf8_valid(p, text->length) && memchr(p, '\0', text->length) == NULL)
        return true;
    error_set(err, failed, "the detokeniser's output is no UTF-8 text");
    return error_at(err, NULL, b->name, NULL);
}

static void set_text(json_t *object, const char *key, const char *text)
{
    json_object_set_new(object, key, text != NULL ? json_string(text) : json_null());
}

static bool write_question(const struct semantic_judge *j, const struct golden_behavior *b,
                           const int64_t *answer, size_t count, struct buffer *out,
                           struct error *err)
{
    json_t *q = json_object();
    set_text(q, "case", b->name);
    set_text(q, "semantic_prompt", b->semantic_prompt);
    set_text(q, "answer_key", b->semantic_answer_key);
    set_text(q, "reference_answer", b->semantic_reference_answer);
    set_text(q, "domain", b->semantic_domain);
    set_text(q, "subdomain", b->semantic_subdomain);
    json_object_set_new(q, "answer_tokens", tokens_json(answer, count));
    if (j->detokenize != NULL) {
        struct buffer text = {0};
        const bool ok = detokenize(j, b, answer, count, &text, err);
        if (ok)
            set_text(q, "text", text.length > 0 ? text.data : "");
        buffer_free(&text);
        if (!ok) {
            json_decref(q);
            return false;
        }
    }
    write_line(q, out);
    return true;
}

static bool invalid(struct error *err, const char *what)
{
    return error_set(err, "SEMANTIC-JUDGE-INVALID", "the verdict %s", what);
}

/* It is sealed: an id such as "vendor/model-4:2026-01", no sentence and no answer. */
static bool model_valid(const char *text)
{
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && strchr("._:/@+-", text[i]) == NULL)
            return false;
    return n >= 1 && n <= SEMANTIC_MODEL_LIMIT;
}

bool semantic_verdict_parse(const char *data, size_t length, struct semantic_verdict *out,
                            struct error *err)
{
    static const char *const keys[] = {"pass", "model", "reason", NULL};
    json_t *document = json_parse_strict(data, length, 4, "", NULL);
    const struct json_view v = {document, "", ""};
    const char *model, *reason;
    bool ok = true;
    if (document == NULL)
        ok = invalid(err, "is not one JSON object");
    else if (!json_is_object(document))
        ok = invalid(err, "is no object");
    else if (!json_view_closed(&v, keys, NULL))
        ok = invalid(err, "has a key besides pass, model and reason");
    else if (!json_get_bool(&v, "pass", &out->pass, NULL))
        ok = invalid(err, "has no \"pass\" that is true or false");
    else if (!json_get_string(&v, "model", &model, NULL))
        ok = invalid(err, "has no \"model\" text");
    else if (!model_valid(model))
        ok = invalid(err, "has a \"model\" that is no id of 1 to 128 letters, digits or ._:/@+-");
    else if (json_has(&v, "reason") && !json_get_string(&v, "reason", &reason, NULL))
        ok = invalid(err, "has a \"reason\" that is no text");
    if (ok)
        text_copy(out->model, sizeof out->model, model);
    json_decref(document);
    return ok;
}

bool semantic_judge_ask(const struct semantic_judge *j, const struct golden_behavior *b,
                        const int64_t *answer, size_t count, struct semantic_verdict *out,
                        struct error *err)
{
    struct buffer question = {0}, verdict = {0};
    bool ok = write_question(j, b, answer, count, &question, err);
    if (ok) {
        const char *why;
        const enum ask_result r = ask_command(j->command, &question, SEMANTIC_VERDICT_LIMIT,
                                              j->timeout_seconds, &verdict, &why);
        if (r != ASK_DONE)
            ok = command_failed(err, r, "SEMANTIC-JUDGE-FAILED", "SEMANTIC-JUDGE-TIMEOUT",
                                "semantic judge", why, j->timeout_seconds, b->name);
        else if (!semantic_verdict_parse(verdict.length > 0 ? verdict.data : "", verdict.length,
                                         out, err))
            ok = error_at(err, NULL, b->name, NULL);
    }
    buffer_free(&question);
    buffer_free(&verdict);
    return ok;
}
