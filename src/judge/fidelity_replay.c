#include "judge/fidelity_replay.h"

#include "base/buffer.h"
#include "base/terminal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A client's error under the reference's name. */
static bool failed(struct error *err)
{
    if (err == NULL || strcmp(err->name, "Interrupted") == 0)
        return false;
    const struct error inner = *err;
    error_set(err, "ReferenceFailed", "%s: %s", inner.name, inner.message);
    return error_at(err, inner.file[0] != '\0' ? inner.file : NULL,
                    inner.field[0] != '\0' ? inner.field : NULL, NULL);
}

static bool invalid(struct error *err, const char *field, const char *what)
{
    error_set(err, "ReferenceInvalid", "the reference's answer %s", what);
    return error_at(err, NULL, field, NULL);
}

bool replay_start(const struct client_options *o, struct client **out, struct error *err)
{
    struct client_options reference = *o;
    reference.trusted = true;
    reference.block_protocol = true;
    return client_start(&reference, out, err) || failed(err);
}

bool replay_call(struct client *c, struct wire_request *q, const struct wire_response **reply,
                 struct error *err)
{
    return client_call(c, q, 0, reply, NULL, err) || failed(err);
}

bool replay_begin(struct client *c, const int64_t *seed, size_t seed_count, size_t most,
                  int64_t vocab_size, struct arena *a, struct replay *out, struct error *err)
{
    *out = (struct replay){.client = c, .vocab_size = vocab_size, .seed_count = seed_count};
    out->prefix = arena_array(a, seed_count + 1 + most, sizeof *out->prefix);
    memcpy(out->prefix, seed, seed_count * sizeof *seed);
    struct wire_request q = client_request(WIRE_KIND_dflash_reference_prefill);
    q.seed_tokens = client_tokens(seed, seed_count);
    const struct wire_response *r;
    if (!replay_call(c, &q, &r, err))
        return false;
    out->seed_token = r->seed_token.value;
    if (out->seed_token < 0 || out->seed_token >= vocab_size)
        return invalid(err, "seed_token", "names a token outside the vocabulary");
    out->prefix[seed_count] = out->seed_token;
    return true;
}

struct check {
    const struct replay *r;
    struct arena *a;
    struct error *err;
};

static bool take_tokens(const struct check *c, const struct wire_tokens *t, const char *field,
                        size_t count, const int64_t **out)
{
    if (!t->present || t->count != count)
        return invalid(c->err, field, "does not hold one token for each row");
    for (size_t i = 0; i < count; i++)
        if (t->items[i] < 0 || t->items[i] >= c->r->vocab_size)
            return invalid(c->err, field, "names a token outside the vocabulary");
    int64_t *copy = arena_array(c->a, count, sizeof *copy);
    memcpy(copy, t->items, count * sizeof *copy);
    *out = copy;
    return true;
}

static bool take_logits(const struct check *c, const struct wire_f64s *t, const char *field,
                        size_t count, const double **out)
{
    if (!t->present || t->count != count)
        return invalid(c->err, field, "does not hold one logit for each row");
    double *copy = arena_array(c->a, count, sizeof *copy);
    memcpy(copy, t->items, count * sizeof *copy);
    *out = copy;
    return true;
}

/* Pairs of different tokens of the vocabulary with descending logits. */
static bool take_readouts(const struct check *c, const struct wire_token_lists *tokens,
                          const struct wire_f64_lists *logits, const char *field, size_t count,
                          const struct fidelity_readout **out)
{
    if (!tokens->present || !logits->present || tokens->count != count || logits->count != count)
        return invalid(c->err, field, "does not hold one readout for each row");
    struct fidelity_readout *copy = arena_array(c->a, count, sizeof *copy);
    for (size_t i = 0; i < count; i++) {
        const struct wire_tokens *t = &tokens->items[i];
        const struct wire_f64s *l = &logits->items[i];
        if (t->count != 2 || l->count != 2)
            return invalid(c->err, field, "holds a readout that is not of two logits");
        for (int k = 0; k < 2; k++)
            if (t->items[k] < 0 || t->items[k] >= c->r->vocab_size)
                return invalid(c->err, field, "names a token outside the vocabulary");
        if (t->items[0] == t->items[1] || !(l->items[0] >= l->items[1]))
            return invalid(c->err, field, "holds a readout that is not of the largest two logits");
        copy[i] = (struct fidelity_readout){.token = {t->items[0], t->items[1]},
                                            .logit = {l->items[0], l->items[1]}};
    }
    *out = copy;
    return true;
}

/* The chain's own rows: readouts, argmaxes and the first logit say the same. */
static bool take_chain(const struct check *c, const struct wire_response *r, size_t count,
                       struct fidelity_reference_round *out)
{
    if (!take_tokens(c, &r->reference_k1_argmax, "reference_k1_argmax", count, &out->k1_argmax) ||
        !take_readouts(c, &r->reference_top2_tokens, &r->reference_top2_logits,
                       "reference_top2_tokens", count, &out->top) ||
        !take_logits(c, &r->reference_top1_logits, "reference_top1_logits", count,
                     &out->top1_logit))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (out->k1_argmax[i] != out->top[i].token[0])
            return invalid(c->err, "reference_k1_argmax", "has another argmax than its readout");
        if (out->top1_logit[i] != out->top[i].logit[0])
            return invalid(c->err, "reference_top1_logits", "has another logit than its readout");
    }
    return true;
}

/* Told together or not at all. */
static bool take_emitted(const struct check *c, const struct wire_response *r,
                         const struct replay_question *q, struct fidelity_reference_round *out)
{
    const size_t count = (size_t)q->count;
    if (!r->reference_emitted_tokens.present && !r->reference_emitted_token_logits.present)
        return true;
    if (!take_tokens(c, &r->reference_emitted_tokens, "reference_emitted_tokens", count,
                     &out->emitted) ||
        !take_logits(c, &r->reference_emitted_token_logits, "reference_emitted_token_logits", count,
                     &out->emitted_logit))
        return false;
    for (size_t i = 0; i < count; i++) {
        if (out->emitted[i] != q->given[i])
            return invalid(c->err, "reference_emitted_tokens", "echoes another token than asked");
        const struct fidelity_readout *top = &out->top[i];
        const double logit = out->emitted_logit[i];
        if (out->emitted[i] == top->token[0] ? logit != top->logit[0] : logit > top->logit[0])
            return invalid(c->err, "reference_emitted_token_logits",
                           "has another logit than its readout");
    }
    return true;
}

/* The widths are those of the question, ascending (docs/block-protocol.md). */
static bool take_frames(const struct check *c, const struct wire_response *r,
                        const struct replay_question *q, struct replay_answer *out)
{
    const int other = q->verify_count > 1 && q->verify_count != q->width ? q->verify_count : 0;
    const int64_t low = other > 0 && other < q->width ? other : q->width;
    const int64_t wanted[2] = {low, low == other ? q->width : other};
    const size_t widths = other > 0 ? 2 : 1, count = (size_t)q->count;
    const struct wire_tokens *told = &r->reference_frame_widths;
    const struct wire_token_lists *frames = &r->reference_frame_argmax;
    if (told->count != widths || told->items[0] != wanted[0] ||
        (widths == 2 && told->items[1] != wanted[1]))
        return invalid(c->err, "reference_frame_widths", "is of other widths than asked");
    if (frames->count != widths)
        return invalid(c->err, "reference_frame_argmax", "does not hold one list for each width");
    const int64_t *block;
    if (!take_tokens(c, &r->reference_block_argmax, "reference_block_argmax", count, &block))
        return false;
    out->width_count = (int)widths;
    for (size_t w = 0; w < widths; w++) {
        out->widths[w] = wanted[w];
        if (!take_tokens(c, &frames->items[w], "reference_frame_argmax", count,
                         &out->frame_argmax[w]))
            return false;
        if (wanted[w] == q->width &&
            memcmp(out->frame_argmax[w], block, count * sizeof *block) != 0)
            return invalid(c->err, "reference_block_argmax",
                           "is not the frame's of the declared width");
    }
    out->round.declared_argmax = block;
    return true;
}

static struct wire_i64 number(int64_t value)
{
    return (struct wire_i64){.present = true, .value = value};
}

bool replay_rows(struct replay *r, const struct replay_question *q, struct arena *a,
                 struct replay_answer *out, struct error *err)
{
    const size_t base = r->seed_count + 1 + r->walked, count = (size_t)q->count;
    *out = (struct replay_answer){.round = {.count = q->count}};
    memcpy(r->prefix + base, q->given, count * sizeof *q->given);
    struct wire_request ask = client_request(WIRE_KIND_dflash_reference_rows);
    ask.prefix_tokens = client_tokens(r->prefix, base + count);
    ask.seed_token_count = number((int64_t)r->seed_count);
    ask.start_offset = number((int64_t)r->walked);
    ask.count = (struct wire_u32){.present = true, .value = (uint32_t)q->count};
    ask.declared_block_width = number(q->width);
    if (q->verify_count > 0)
        ask.verify_block_tokens = client_tokens(q->verify, (size_t)q->verify_count);
    const struct wire_response *reply;
    if (!replay_call(r->client, &ask, &reply, err))
        return false;
    const struct check c = {r, a, err};
    if (!take_chain(&c, reply, count, &out->round) || !take_emitted(&c, reply, q, &out->round) ||
        !take_frames(&c, reply, q, out))
        return false;
    if (q->verify_count > 0 &&
        !take_readouts(&c, &reply->reference_verify_top2_tokens,
                       &reply->reference_verify_top2_logits, "reference_verify_top2_tokens",
                       (size_t)q->verify_count, &out->round.verify))
        return false;
    out->round.verify_count = q->verify_count;
    r->walked += count;
    return true;
}

bool replay_run(struct client *c, const struct fidelity_run *run, int64_t vocab_size, bool quiet,
                struct arena *a, struct fidelity_reference_round **out, struct error *err)
{
    struct replay r;
    if (!replay_begin(c, run->seed, run->seed_count, (size_t)run->wanted, vocab_size, a, &r, err))
        return false;
    if (r.seed_token != run->seed_token)
        return invalid(err, "seed_token", "is another token after the seed than the golden's");
    *out = arena_array(a, run->round_count, sizeof **out);
    struct progress p = {.quiet = quiet};
    progress_begin(&p, "reference", "rounds", run->round_count);
    bool ok = true;
    size_t i = 0;
    for (; ok && i < run->round_count; i++) {
        const struct fidelity_round *round = &run->rounds[i];
        int64_t verify[FIDELITY_BLOCK_MOST] = {round->token};
        memcpy(verify + 1, round->drafts, (size_t)round->draft_count * sizeof *verify);
        const struct replay_question q = {.given = round->tokens,
                                          .count = round->scored,
                                          .width = round->width,
                                          .verify = verify,
                                          .verify_count = 1 + round->draft_count};
        struct replay_answer answer;
        ok = replay_rows(&r, &q, a, &answer, err);
        (*out)[i] = answer.round;
        progress_update(&p, i + 1);
    }
    progress_end(&p);
    return ok;
}
