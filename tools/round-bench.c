/* What a round costs: microseconds of a step, of verifying K rows and of drafting them, at one
 * position of one session, the least and the median of many.
 *
 *   round-bench WEIGHTS DRAFTER [POSITION [THREADS [REPEATS]]]      (300, 0: all cores, 200)
 *
 * The rows are the model's own continuation. Widths take turns, so that a busy neighbour disturbs
 * all of them alike. A draft here has all of its context; `with context` also takes in the hidden
 * rows that a round of K rows leaves. */
#include "base/clock.h"
#include "base/number.h"
#include "engine/decode/session.h"

#include <stdio.h>
#include <stdlib.h>

enum { WIDTHS = 16, MOST_REPEATS = 10000 };

struct series {
    double *verify, *draft, *with_context; /* [repeats] seconds */
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_series(double *seconds, int count)
{
    qsort(seconds, (size_t)count, sizeof *seconds, by_size);
    printf(" %9.1f %9.1f", seconds[0] * 1e6, seconds[count / 2] * 1e6);
}

static bool measure(struct session *s, const int32_t *tokens, int width, int at, struct series *out,
                    struct error *err)
{
    int32_t drafts[WIDTHS];
    struct head_pick next[WIDTHS];
    int count = 0;
    int64_t start = clock_now_ns();
    if (!session_verify(s, tokens, width, next, err))
        return false;
    out->verify[at] = clock_seconds(start);
    session_keep(s, width);
    if (width > 1) { /* the rows kept are taken in with the draft, then taken back */
        start = clock_now_ns();
        if (!session_draft(s, tokens[0], width, drafts, &count, err))
            return false;
        out->with_context[at] = clock_seconds(start);
        start = clock_now_ns();
        if (!session_draft(s, tokens[0], width, drafts, &count, err))
            return false;
        out->draft[at] = clock_seconds(start);
    }
    return session_rewind(s, session_position(s) - width, err);
}

static bool run(struct session *s, int position, int repeats, struct error *err)
{
    struct series all[WIDTHS];
    int64_t *prompt = malloc((size_t)position * sizeof *prompt);
    double *seconds = calloc(3 * WIDTHS * (size_t)repeats, sizeof *seconds);
    for (int i = 0; i < position; i++)
        prompt[i] = 50 + (i * 91) % 3000;
    bool ok = session_feed(s, prompt, (size_t)position, err);
    /* The block is what the model goes on with: its rows choose their experts as such rows do. */
    int32_t tokens[WIDTHS];
    for (int i = 0; ok && i < WIDTHS; i++)
        ok = session_argmax(s, &tokens[i], err) && session_step(s, tokens[i], err);
    ok = ok && session_rewind(s, position, err);
    for (int w = 0; w < WIDTHS; w++) {
        double *at = seconds + 3 * (size_t)w * (size_t)repeats;
        all[w] = (struct series){at, at + repeats, at + 2 * repeats};
    }
    for (int i = 0; ok && i < repeats; i++)
        for (int w = 1; ok && w <= WIDTHS; w++)
            ok = measure(s, tokens, w, i, &all[w - 1], err);
    if (ok)
        printf("%5s %19s %19s %19s   (least, median; microseconds)\n", "rows", "verify", "draft",
               "with context");
    for (int w = 1; ok && w <= WIDTHS; w++) {
        printf("%5d", w);
        print_series(all[w - 1].verify, repeats);
        if (w > 1) {
            print_series(all[w - 1].draft, repeats);
            print_series(all[w - 1].with_context, repeats);
        }
        printf("\n");
    }
    free(prompt);
    free(seconds);
    return ok;
}

int main(int argc, char **argv)
{
    int64_t position = 300, threads = 0, repeats = 200;
    if (argc < 3 || argc > 6 || (argc > 3 && !number_int64(argv[3], 1, 1 << 20, &position)) ||
        (argc > 4 && !number_int64(argv[4], 0, 256, &threads)) ||
        (argc > 5 && !number_int64(argv[5], 1, MOST_REPEATS, &repeats))) {
        fprintf(stderr, "usage: round-bench WEIGHTS DRAFTER [POSITION [THREADS [REPEATS]]]\n");
        return 2;
    }
    const struct model_options options = {.compute = {.threads = (int)threads},
                                          .context = position + 64};
    struct model *m = NULL;
    struct dflash *d = NULL;
    struct session *s = NULL;
    struct error err;
    bool ok = model_open(argv[1], &options, &m, &err);
    if (ok) {
        const struct dflash_target target = dflash_target_of(m);
        ok = dflash_open(argv[2], &target, &d, &err) && session_new(m, &s, &err) &&
             session_set_drafter(s, d, &err);
    }
    if (ok)
        printf("%s, position %lld\n", compute_name(model_compute(m)), (long long)position);
    ok = ok && run(s, (int)position, (int)repeats, &err);
    if (!ok) {
        char line[1024];
        fprintf(stderr, "%s\n", error_line(&err, line, sizeof line));
    }
    session_free(s);
    dflash_close(d);
    model_close(m);
    return ok ? 0 : 1;
}
