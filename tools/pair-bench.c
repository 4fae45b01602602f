/* Two checkpoints of one model step by step against each other: what disturbs the machine disturbs
 * both.
 *
 *   pair-bench A B [POSITION [THREADS [REPEATS]]]      (512, 0: all cores, 60)
 *
 * For 1, 2, 4 and 8 rows a step of A and one of B take turns, the order turned each time, over the
 * same tokens at the same position. Printed: least and median milliseconds of both, the median of
 * the pairs' ratios A / B with its quartiles, and the weights that a step of one row reads. */
#include "base/clock.h"
#include "base/number.h"
#include "engine/model/model.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 8, MOST_REPEATS = 10000 };

struct side {
    struct model *model;
    struct model_state *state;
    float *logits; /* [ROWS, vocab] */
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool begin(struct side *s, const char *folder, int position, int threads, struct error *err)
{
    enum { CHUNK = 128 };
    const struct model_options options = {
        .compute = {.threads = threads}, .context = position + 2 * ROWS, .max_rows = CHUNK};
    int32_t prompt[CHUNK];
    if (!model_open(folder, &options, &s->model, err) || !model_state_new(s->model, &s->state, err))
        return false;
    const int vocab = model_get_info(s->model)->vocab;
    s->logits = calloc((size_t)ROWS * (size_t)vocab, sizeof *s->logits);
    for (int at = 0; at < position; at += CHUNK) {
        const int n = position - at < CHUNK ? position - at : CHUNK;
        for (int i = 0; i < n; i++)
            prompt[i] = (int32_t)((50 + (int64_t)(at + i) * 7919) % vocab);
        if (!model_forward(s->model, s->state, prompt, n, 0, NULL, NULL, err))
            return false;
    }
    return true;
}

static bool step(const struct side *s, int rows, double *seconds, struct error *err)
{
    int32_t tokens[ROWS];
    struct head_pick next[ROWS];
    const int64_t position = model_state_position(s->state);
    const int vocab = model_get_info(s->model)->vocab;
    for (int r = 0; r < rows; r++)
        tokens[r] = (77 + r * 4211) % vocab;
    const int64_t start = clock_now_ns();
    if (!model_forward(s->model, s->state, tokens, rows, rows, s->logits, next, err))
        return false;
    *seconds = clock_seconds(start);
    model_state_rewind(s->state, position);
    return true;
}

static bool compare(const struct side *sides, int rows, int repeats, struct error *err)
{
    double *times[2] = {calloc((size_t)repeats, sizeof(double)),
                        calloc((size_t)repeats, sizeof(double))};
    double *ratio = calloc((size_t)repeats, sizeof(double)), seconds;
    bool ok = step(&sides[0], rows, &seconds, err) && step(&sides[1], rows, &seconds, err);
    for (int i = 0; ok && i < repeats; i++) {
        for (int k = 0; ok && k < 2; k++) {
            const int side = (i + k) % 2;
            ok = step(&sides[side], rows, &times[side][i], err);
        }
        ratio[i] = ok ? times[0][i] / times[1][i] : 0;
    }
    if (ok) {
        for (int k = 0; k < 2; k++)
            qsort(times[k], (size_t)repeats, sizeof(double), by_size);
        qsort(ratio, (size_t)repeats, sizeof(double), by_size);
        printf("%4d  %8.2f %8.2f  %8.2f %8.2f  %6.2f (%.2f .. %.2f)\n", rows, times[0][0] * 1e3,
               times[0][repeats / 2] * 1e3, times[1][0] * 1e3, times[1][repeats / 2] * 1e3,
               ratio[repeats / 2], ratio[repeats / 4], ratio[repeats * 3 / 4]);
    }
    free(times[0]);
    free(times[1]);
    free(ratio);
    return ok;
}

int main(int argc, char **argv)
{
    int64_t position = 512, threads = 0, repeats = 60;
    if (argc < 3 || argc > 6 || (argc > 3 && !number_int64(argv[3], 1, 1 << 20, &position)) ||
        (argc > 4 && !number_int64(argv[4], 0, 256, &threads)) ||
        (argc > 5 && !number_int64(argv[5], 4, MOST_REPEATS, &repeats))) {
        fprintf(stderr, "usage: pair-bench A B [POSITION [THREADS [REPEATS]]]\n");
        return 2;
    }
    struct side sides[2] = {{0}};
    struct error err = {0};
    bool ok = true;
    for (int k = 0; ok && k < 2; k++) {
        ok = begin(&sides[k], argv[1 + k], (int)position, (int)threads, &err);
        if (ok)
            printf("%c: %s, %.1f MB a token, %s\n", 'A' + k, argv[1 + k],
                   (double)model_get_info(sides[k].model)->bytes_per_token / 1e6,
                   compute_name(model_compute(sides[k].model)));
    }
    if (ok)
        printf("%4s  %17s  %17s  %s\n", "rows", "A least, median", "B least, median",
               "A / B (quartiles); milliseconds");
    for (int rows = 1; ok && rows <= ROWS; rows *= 2)
        ok = compare(sides, rows, (int)repeats, &err);
    if (!ok) {
        char line[1024];
        fprintf(stderr, "%s\n", error_line(&err, line, sizeof line));
    }
    for (int k = 0; k < 2; k++) {
        if (sides[k].state)
            model_state_free(sides[k].state);
        free(sides[k].logits);
        model_close(sides[k].model);
    }
    return ok ? 0 : 1;
}
