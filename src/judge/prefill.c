#include "judge/prefill.h"

#include "base/arena.h"
#include "base/stats.h"
#include "judge/client.h"

#include <math.h>
#include <stdlib.h>

bool prefill_fit_line(const double *x, const double *y, size_t n, struct prefill_fit *out)
{
    if (n < 2)
        return false;
    const double mean_x = stats_mean(x, n), mean_y = stats_mean(y, n);
    double xx = 0, xy = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        const double dx = x[i] - mean_x, dy = y[i] - mean_y;
        xx += dx * dx;
        xy += dx * dy;
        yy += dy * dy;
    }
    if (!(xx > 0) || !isfinite(xx) || !isfinite(xy) || !isfinite(yy))
        return false;
    out->slope = xy / xx;
    out->intercept = mean_y - out->slope * mean_x;
    out->r_squared = yy > 0 ? xy / xx * xy / yy : 1;
    return isfinite(out->slope) && isfinite(out->intercept);
}

bool prefill_verdict(const struct prefill_fit *fit)
{
    return isfinite(fit->intercept) && fit->intercept <= PREFILL_FIXED_COST_MAX_MS;
}

static bool time_prefills(struct client *c, struct wire_tokens prompt, double *ms, int64_t reps,
                          struct error *err)
{
    for (int64_t i = -1; i < reps; i++) { /* the first is not measured: pages, caches, kernels */
        struct wire_request q = client_request(WIRE_KIND_prefill);
        q.prompt_tokens = prompt;
        int64_t ns;
        if (!client_call(c, &q, 0, NULL, &ns, err))
            return false;
        if (i >= 0)
            ms[i] = (double)ns * 1e-6;
    }
    return client_barrier(c, -1, NULL, err);
}

bool prefill_measure(const char *engine, const char *weights, int64_t size, int64_t reps,
                     struct prefill_times *out, struct error *err)
{
    struct arena arena = {0};
    struct client_options options = {.engine = engine, .weights = weights};
    struct client *c = NULL;
    int64_t *prompt = arena_array(&arena, (size_t)size, sizeof *prompt);
    double *ms = arena_array(&arena, (size_t)reps, sizeof *ms);
    for (int64_t i = 0; i < size; i++)
        prompt[i] = 1;
    const bool ok = client_deadlines_from_environment(&options, err) &&
                    client_start(&options, &c, err) &&
                    time_prefills(c, client_tokens(prompt, (size_t)size), ms, reps, err);
    client_free(c);
    if (ok) {
        const size_t n = (size_t)reps;
        *out = (struct prefill_times){size, stats_mean(ms, n), stats_min(ms, n),
                                      n > 1 ? stats_sample_sd(ms, n) : 0};
    }
    arena_free(&arena);
    return ok;
}
