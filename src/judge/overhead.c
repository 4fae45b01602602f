#include "judge/overhead.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/stats.h"
#include "base/terminal.h"
#include "judge/client.h"
#include "judge/sandbox.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WARM_STEPS = 200, RAW_TIMEOUT_MS = 10000 };

/* One bare exchange: no encoding, no parsing, no checks, one write and as few reads as it takes. */
static bool raw_exchange(struct child *child, const char *line, size_t length, int64_t *ns,
                         struct error *err)
{
    char answer[65536];
    size_t got = 0;
    const int64_t start = clock_now_ns();
    if (write(child_input_descriptor(child), line, length) != (ssize_t)length)
        return error_errno(err, NULL, "raw write");
    while (got == 0 || answer[got - 1] != '\n') {
        struct pollfd p = {child_output_descriptor(child), POLLIN, 0};
        if (poll(&p, 1, RAW_TIMEOUT_MS) <= 0)
            return error_set(err, "ReplyTimeout", "no answer to the raw line");
        const ssize_t n = read(p.fd, answer + got, sizeof answer - got);
        if (n <= 0)
            return error_set(err, "EngineExited", "the engine closed its output");
        got += (size_t)n;
        if (got == sizeof answer)
            return error_set(err, "LineTooLong", "the answer to the raw line is too long");
    }
    *ns = clock_now_ns() - start;
    return true;
}

static void quantiles(const double *x, int64_t n, double out[2])
{
    out[0] = stats_quantile(x, (size_t)n, 0.50);
    out[1] = stats_quantile(x, (size_t)n, 0.99);
}

static bool take_turns(struct client *c, int64_t steps, double *raw, double *timed, double *whole,
                       struct error *err)
{
    static const char line[] = "{\"id\":1,\"kind\":\"decode_step\",\"token\":1}\n";
    for (int64_t i = -WARM_STEPS; i < steps; i++) {
        struct wire_request q = client_request(WIRE_KIND_decode_step);
        q.token = (struct wire_i64){.present = true, .value = 1};
        int64_t inside, bare;
        const int64_t start = clock_now_ns();
        if (!client_call(c, &q, 0, NULL, &inside, err))
            return false;
        const int64_t all = clock_now_ns() - start;
        if (!raw_exchange(client_child(c), line, sizeof line - 1, &bare, err))
            return false;
        if (i < 0)
            continue;
        raw[i] = (double)bare;
        timed[i] = (double)inside;
        whole[i] = (double)all;
    }
    /* The engine has seen both kinds of exchange. */
    return client_barrier(c, 2 * (steps + WARM_STEPS), NULL, err);
}

bool overhead_measure(const char *engine, int64_t steps, bool sandbox, struct overhead_result *out,
                      struct error *err)
{
    struct arena arena = {0};
    struct sandbox_plan plan;
    const struct sandbox_request request = {.engine = engine,
                                            .weights = "/usr", /* none are read */
                                            .switched_off = !sandbox,
                                            .environment = environ};
    const struct client_options options = {.engine = engine, .weights = "/usr", .sandbox = &plan};
    struct client *c = NULL;
    double *raw = memory_alloc(3 * (size_t)steps * sizeof *raw);
    double *timed = raw + steps, *whole = timed + steps;
    bool ok = sandbox_plan(&arena, &request, &plan, err);
    if (ok && sandbox && !plan.active)
        ok = error_set(err, "SANDBOX-UNAVAILABLE", "no sandbox can be built here: %s",
                       plan.reason != NULL ? plan.reason : "MLXFAST_NO_SANDBOX is set");
    ok = ok && client_start(&options, &c, err) && take_turns(c, steps, raw, timed, whole, err);
    client_free(c);
    arena_free(&arena);
    if (ok) {
        quantiles(raw, steps, out->raw);
        quantiles(timed, steps, out->timed);
        quantiles(whole, steps, out->whole);
    }
    free(raw);
    return ok;
}

static void row(struct table *t, const char *name, const double ns[2], const double raw[2])
{
    char cells[4][32];
    for (int i = 0; i < 2; i++) {
        snprintf(cells[i], sizeof cells[i], "%.1f us", ns[i] * 1e-3);
        snprintf(cells[2 + i], sizeof cells[2 + i], "%.2f", raw[i] > 0 ? ns[i] / raw[i] : 0);
    }
    table_row(t, name, cells[0], cells[1], cells[2], cells[3]);
}

void overhead_report(const struct overhead_result *r, int64_t steps)
{
    struct table *t = table_new(5);
    table_row(t, "exchange", "p50", "p99", "p50/raw", "p99/raw");
    row(t, "raw pipe ping-pong", r->raw, r->raw);
    row(t, "judge, timed interval", r->timed, r->raw);
    row(t, "judge, whole call", r->whole, r->raw);
    table_print(t);
    printf("the judge adds %.1f us to the timed interval and %.1f us in all (p50 over %" PRId64
           " exchanges of each kind)\n",
           (r->timed[0] - r->raw[0]) * 1e-3, (r->whole[0] - r->raw[0]) * 1e-3, steps);
}
