/* Drafting with an acceptance that is given, beside serial decoding in the same run. */
#include "engine/serve/bench.h"

#include "base/clock.h"
#include "engine/decode/simulate.h"
#include "engine/serve/generate.h"

#include <stdlib.h>

enum { WARM_TOKENS = 96, APART_TOKENS = 64, ROOM = BENCH_MOST_BLOCK + 1 };

struct run {
    const struct bench_options *o;
    struct bench_simulated *r;
    struct error *err;
    struct model *m;
    struct dflash *drafter;
    struct session *serial, *drafting;
    const int64_t *prompt;
    size_t prompt_count;
    int32_t *tokens; /* serial decoding's; the first is what the prompt gives */
    size_t count;
};

int64_t bench_simulate_tokens(const struct bench_options *o)
{
    return WARM_TOKENS + 4 * o->decode_tokens + APART_TOKENS + ROOM;
}

static bool decode_serially(struct run *run)
{
    struct session *s = run->serial;
    const size_t warm = WARM_TOKENS, last = run->count - 1;
    if (!session_feed(s, run->prompt, run->prompt_count, run->err) ||
        !session_argmax(s, &run->tokens[0], run->err))
        return false;
    int64_t start = clock_now_ns();
    for (size_t i = 0; i < last; i++) {
        if (i == warm)
            start = clock_now_ns();
        if (!session_step(s, run->tokens[i], run->err) ||
            !session_argmax(s, &run->tokens[i + 1], run->err))
            return false;
    }
    run->r->serial_tokens = last - warm;
    run->r->serial_seconds = clock_seconds(start);
    return true;
}

/* Rounds of so many rows: some to warm up, those that are timed, and some that are cut in two for
 * the time of each part. */
static bool decode_in_rounds(struct run *run, int block)
{
    struct session *s = run->drafting;
    struct simulate_request q = {.tokens = run->tokens,
                                 .count = WARM_TOKENS,
                                 .block = block,
                                 .acceptance = run->o->acceptance};
    struct simulate_result warm, done, apart;
    session_reset(s);
    if (!session_feed(s, run->prompt, run->prompt_count, run->err))
        return false;
    session_prepare_drafts(s);
    if (!simulate_rounds(s, &q, &warm, run->err))
        return false;
    q.tokens += warm.tokens;
    q.count = run->count - warm.tokens - APART_TOKENS;
    q.first = warm.rounds;
    if (!simulate_rounds(s, &q, &done, run->err))
        return false;
    q.tokens += done.tokens;
    q.count = run->count - warm.tokens - done.tokens;
    q.first += done.rounds;
    q.apart = true;
    if (!simulate_rounds(s, &q, &apart, run->err))
        return false;
    const double cut = apart.rounds > 0 ? (double)apart.rounds : 1;
    run->r->width[run->r->widths++] =
        (struct bench_rounds){.rows = block,
                              .rounds = done.rounds,
                              .tokens = done.tokens,
                              .seconds = done.seconds,
                              .draft_seconds = apart.draft_seconds / cut,
                              .verify_seconds = apart.verify_seconds / cut};
    return true;
}

static bool measure(struct run *run)
{
    struct bench_simulated *r = run->r;
    if (!generate_open_drafter(run->o->drafter, run->m, 0, &run->drafter, run->err) ||
        !session_new(run->m, &run->serial, run->err) ||
        !session_new(run->m, &run->drafting, run->err) ||
        !session_set_drafter(run->drafting, run->drafter, run->err))
        return false;
    const int most = dflash_get_config(run->drafter)->block;
    const int block = run->o->block < most ? (int)run->o->block : most;
    r->drafter_bytes = dflash_weight_bytes(run->drafter);
    r->context = (int64_t)run->prompt_count;
    r->acceptance = run->o->acceptance;
    bool ok = decode_serially(run);
    for (int rows = 2; ok && rows <= block; rows *= 2)
        ok = decode_in_rounds(run, rows);
    r->there = ok;
    return ok;
}

bool bench_simulate(struct model *m, const struct bench_options *o, const int64_t *prompt,
                    size_t prompt_count, struct bench_simulated *r, struct error *err)
{
    struct run run = {.o = o,
                      .r = r,
                      .err = err,
                      .m = m,
                      .prompt = prompt,
                      .prompt_count = prompt_count,
                      .count = (size_t)bench_simulate_tokens(o)};
    run.tokens = memory_alloc(run.count * sizeof *run.tokens);
    const bool ok = measure(&run);
    session_free(run.drafting);
    session_free(run.serial);
    dflash_close(run.drafter);
    free(run.tokens);
    return ok;
}
