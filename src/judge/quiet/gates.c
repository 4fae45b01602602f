/* See gates.h. */
#include "judge/quiet/gates.h"

#include <math.h>

/* contract-and-scoring.md section 7. The poll of quiescence is not stated: the same. */
static const double POLL_SECONDS = 10;
static const double STALL_AFTER = 180, STALL_SECONDS = 90, PROGRESS_CELSIUS = 0.25;
static const double UNUSABLE_SECONDS = 2;
enum { UNUSABLE_MOST = 3 };

static const char *put(char *text, size_t size, const char *format, double value, double limit)
    __attribute__((format(printf, 3, 0)));
static const char *put(char *text, size_t size, const char *format, double value, double limit)
{
    snprintf(text, size, format, value, limit);
    return text;
}

const char *quiescence_broken(const struct quiescence *q, const struct quiet_rules *rules,
                              bool strict, char *text, size_t size)
{
    const double others_load = fmax(0, q->load - q->own_load);
    if (strict && isnan(q->load))
        return put(text, size, "the load cannot be read", 0, 0);
    if (!isnan(q->load) && others_load >= rules->load_max)
        return put(text, size, "others' part of the 1-minute load is %.2f, the limit %.2f",
                   others_load, rules->load_max);
    if (strict && isnan(q->others_cpu))
        return put(text, size, "the processors' work cannot be read", 0, 0);
    if (q->others_cpu >= rules->others_cpu_max)
        return put(text, size, "others take %.2f processors, the limit is %.2f", q->others_cpu,
                   rules->others_cpu_max);
    if (strict && q->others_cpu + q->own_cpu >= rules->load_max)
        return put(text, size, "%.2f processors are at work between the phases, the limit is %.2f",
                   q->others_cpu + q->own_cpu, rules->load_max);
    if (q->gpu_use >= rules->gpu_use_max)
        return put(text, size, "the GPU's use is %.2f, the limit %.2f", q->gpu_use,
                   rules->gpu_use_max);
    return NULL;
}

bool quiescence_gate(const struct quiet_system *s, const struct quiet_rules *rules,
                     double first_window, quiescence_look *look, gate_say *say, void *context,
                     struct quiescence_result *out, struct error *err)
{
    char line[512];
    if (!s->sleep(s->context, first_window, err))
        return false;
    const double began = s->now(s->context);
    bool first = true;
    for (;; first = false) {
        look(context, &out->last);
        out->waited_seconds = first ? 0 : s->now(s->context) - began;
        if (!quiescence_broken(&out->last, rules, true, out->why, sizeof out->why)) {
            out->state = first ? QUIESCENCE_QUIET : QUIESCENCE_WAITED;
            out->why[0] = '\0';
            return true;
        }
        const double left = rules->quiescence_wait_seconds - out->waited_seconds;
        if (left <= 0) {
            out->state = QUIESCENCE_NOT_QUIET;
            return true;
        }
        if (first) {
            snprintf(line, sizeof line, "waiting for a quiet machine: %s", out->why);
            say(context, line);
        }
        if (!s->sleep(s->context, fmin(POLL_SECONDS, left), err))
            return false;
    }
}

bool cool_gate(const struct quiet_system *s, double limit, double wait_seconds, cool_look *look,
               gate_say *say, void *context, struct cool_result *out, struct error *err)
{
    char line[128];
    double began = NAN, best = INFINITY, best_at = NAN;
    bool was_hot = false;
    int unusable = 0;
    *out = (struct cool_result){.celsius = NAN};
    for (;;) {
        double celsius = NAN, pause = UNUSABLE_SECONDS;
        const bool usable = look(context, &celsius);
        const double now = s->now(s->context);
        if (isnan(began))
            began = best_at = now; /* a reading is not a wait, however long it takes */
        out->waited_seconds = now - began;
        unusable = usable ? 0 : unusable + 1;
        if (unusable == UNUSABLE_MOST) {
            out->state = COOL_SKIPPED_NO_READER;
            return true;
        }
        if (usable) {
            out->celsius = celsius;
            if (celsius <= limit) {
                out->state = was_hot ? COOL_WAITED : COOL_FIRED;
                return true;
            }
            if (best - celsius >= PROGRESS_CELSIUS) {
                best = celsius;
                best_at = now;
            }
            if (!was_hot) {
                snprintf(line, sizeof line, "cool gate: %.1f C, waiting for %g C", celsius, limit);
                say(context, line);
            }
            was_hot = true;
            pause = POLL_SECONDS;
            out->stalled = out->waited_seconds >= STALL_AFTER && now - best_at >= STALL_SECONDS;
        }
        const double left = wait_seconds - out->waited_seconds;
        /* The bound of an unusable reading is that of three of them. */
        if (usable && (left <= 0 || out->stalled)) {
            out->stalled = out->stalled && left > 0;
            out->state = COOL_NOT_COOL;
            return true;
        }
        if (!s->sleep(s->context, usable ? fmin(pause, left) : pause, err))
            return false;
    }
}

const char *quiescence_state_name(enum quiescence_state state)
{
    static const char *const names[] = {"quiet", "waited", "off", "not-quiet"};
    return names[state];
}

const char *cool_state_name(enum cool_state state)
{
    static const char *const names[] = {"fired", "waited", "skipped-no-reader", "off", "not-cool"};
    return names[state];
}
