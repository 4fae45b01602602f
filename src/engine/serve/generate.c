/* Text for a person. */
#include "engine/serve/generate.h"

#include "base/arena.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool generate_open_tokenizer(const char *weights, const struct model_info *info,
                             struct tokenizer **out, struct error *err)
{
    struct arena arena = {0};
    char *path = path_join(&arena, weights, "tokenizer.json");
    bool ok = tokenizer_open(path, out, err);
    if (ok && tokenizer_vocab_size(*out) > (size_t)info->vocab) {
        char value[32];
        snprintf(value, sizeof value, "%zu", tokenizer_vocab_size(*out));
        error_set(err, "TOKENIZER-MISMATCH",
                  "the tokenizer has more ids than the model's vocabulary of %d", info->vocab);
        ok = error_at(err, path, "vocab", value);
        tokenizer_close(*out);
    }
    arena_free(&arena);
    return ok;
}

bool generate_open_drafter(const char *folder, struct model *m, int block, struct dflash **out,
                           struct error *err)
{
    const struct dflash_target target = dflash_target_of(m);
    if (!dflash_open(folder, &target, out, err))
        return false;
    const int most = dflash_get_config(*out)->block;
    if (block <= most)
        return true;
    char value[16];
    snprintf(value, sizeof value, "%d", block);
    error_set(err, "BLOCK-TOO-WIDE", "the drafter's blocks have %d rows at most", most);
    dflash_close(*out);
    *out = NULL;
    return error_at(err, NULL, "--block", value);
}

void generate_add_counts(const struct speculate_counts *c, json_t *object)
{
    json_t *positions = json_array();
    for (size_t i = 0; i < SPECULATE_MOST && c->offered[i] > 0; i++) {
        json_t *p = json_object();
        json_object_set_new(p, "offered", json_integer((json_int_t)c->offered[i]));
        json_object_set_new(p, "accepted", json_integer((json_int_t)c->taken[i]));
        json_array_append_new(positions, p);
    }
    json_object_set_new(object, "rounds", json_integer((json_int_t)c->rounds));
    json_object_set_new(object, "drafted", json_integer((json_int_t)c->drafted));
    json_object_set_new(object, "accepted", json_integer((json_int_t)c->accepted));
    json_object_set_new(object, "acceptance_by_position", positions);
}

void generate_print_counts(const struct speculate_counts *c, FILE *out)
{
    const double per_round = c->rounds ? 1 + (double)c->accepted / (double)c->rounds : 0;
    fprintf(out, "drafter: %zu rounds, %.2f tokens per round; %zu of %zu drafts accepted\n",
            c->rounds, per_round, c->accepted, c->drafted);
}

/* Does the post-processor's template put the model's bos first? */
static bool template_begins_with_bos(const struct tokenizer *t, int32_t bos)
{
    struct token_list scaffold = {0};
    bool yes = bos >= 0 && tokenizer_encode_markup(t, "", 0, true, &scaffold, NULL) &&
               scaffold.count > 0 && scaffold.ids[0] == bos;
    token_list_free(&scaffold);
    return yes;
}

bool generate_encode_prompt(const struct tokenizer *t, const struct model_info *info,
                            const char *text, size_t length, struct prompt *out, struct error *err)
{
    struct token_list list = {0};
    *out = (struct prompt){0};
    bool ok = tokenizer_encode(t, text, length, &list, err);
    if (ok) {
        size_t bos = template_begins_with_bos(t, info->bos) ? 1 : 0;
        out->count = list.count + bos;
        out->ids = memory_alloc((out->count + 1) * sizeof *out->ids);
        if (bos)
            out->ids[0] = info->bos;
        for (size_t i = 0; i < list.count; i++)
            out->ids[bos + i] = list.ids[i];
        if (out->count == 0)
            ok = error_set(err, "EMPTY-PROMPT", "the prompt holds no token");
    }
    token_list_free(&list);
    return ok;
}

const char *generate_end_name(enum serial_end end)
{
    return end == SERIAL_END_STOP ? "stop" : end == SERIAL_END_INTERRUPT ? "interrupt" : "length";
}

struct run {
    const struct generate_request *request;
    struct generate_result *result;
    struct token_stream stream;
    int64_t last_ns;
    struct error *err;
    bool failed;
};

static bool give_out(struct run *run, size_t from)
{
    struct buffer *text = &run->result->text;
    if (!run->request->on_text || text->length == from)
        return true;
    errno = 0;
    return run->request->on_text(run->request->context, text->data + from, text->length - from) ||
           error_errno(run->err, NULL, "writing the text");
}

static bool take_token(void *context, int32_t token)
{
    struct run *run = context;
    run->last_ns = clock_now_ns();
    run->result->tokens[run->result->count++] = token;
    if (!run->stream.tokenizer)
        return true;
    size_t from = run->result->text.length;
    run->failed = !token_stream_push(&run->stream, token, &run->result->text, run->err) ||
                  !give_out(run, from);
    return !run->failed;
}

/* The prompt in pieces, so that progress shows and an interrupt is heard; the bits are the same. */
static bool feed_prompt(struct session *s, const struct generate_request *r, size_t piece,
                        bool *interrupted, struct error *err)
{
    for (size_t done = 0; done < r->prompt_count;) {
        if ((*interrupted = interrupt_requested()))
            return true;
        size_t n = r->prompt_count - done < piece ? r->prompt_count - done : piece;
        if (!session_feed(s, r->prompt + done, n, err))
            return false;
        done += n;
        if (r->on_prefill)
            r->on_prefill(r->context, done);
    }
    return true;
}

static bool check_room(const struct model_info *info, const struct generate_request *r,
                       struct error *err)
{
    uint64_t needed = (uint64_t)r->prompt_count + (r->count > 0 ? r->count - 1 : 0);
    if (needed <= (uint64_t)info->context)
        return true;
    error_set(err, "CONTEXT-EXCEEDED",
              "%zu prompt tokens and %zu new ones need %llu positions; the context is %lld",
              r->prompt_count, r->count, (unsigned long long)needed, (long long)info->context);
    return error_at(err, NULL, "--context", NULL);
}

bool generate_run(struct model *m, const struct tokenizer *t,
                  const struct generate_request *request, struct generate_result *result,
                  struct error *err)
{
    const struct model_info *info = model_get_info(m);
    *result = (struct generate_result){0};
    struct session *s = NULL;
    if (!check_room(info, request, err) || !session_new(m, &s, err))
        return false;
    if (request->drafter && !session_set_drafter(s, request->drafter, err)) {
        session_free(s);
        return false;
    }
    result->tokens = memory_alloc((request->count + 1) * sizeof *result->tokens);
    struct run run = {.request = request, .result = result, .err = err};
    if (t)
        token_stream_begin(&run.stream, t, true);

    int64_t start = clock_now_ns();
    bool interrupted = false;
    bool ok = feed_prompt(s, request, (size_t)info->max_rows, &interrupted, err);
    int64_t first = clock_now_ns();
    result->prefill_seconds = (double)(first - start) / 1e9;
    result->end = SERIAL_END_INTERRUPT;
    if (ok && !interrupted) {
        struct serial_request serial = {.count = request->count,
                                        .stop = info->eos,
                                        .stop_count = info->eos_count,
                                        .on_token = take_token,
                                        .context = &run};
        struct serial_result decoded;
        run.last_ns = first;
        const struct speculate_plan plan = {.block = request->block};
        ok = speculate_decode(s, &serial, request->drafter ? &plan : NULL, &result->counts,
                              &decoded, err) &&
             !run.failed;
        result->end = decoded.end;
        result->decode_seconds = (double)(run.last_ns - first) / 1e9;
        size_t from = result->text.length;
        if (t)
            token_stream_finish(&run.stream, &result->text);
        ok = ok && give_out(&run, from);
    }
    session_free(s);
    return ok;
}

void generate_result_free(struct generate_result *r)
{
    free(r->tokens);
    buffer_free(&r->text);
    *r = (struct generate_result){0};
}
