#include "engine/compute/timeline.h"

#include "base/stats.h"

#include <stdlib.h>

static const struct {
    bool early;
    const char *text;
} places[TIMELINE_PLACES] = {
#define TIMELINE_ROW(name, early, text) [TIMELINE_##name] = {early, text},
    TIMELINE_TABLE(TIMELINE_ROW)
#undef TIMELINE_ROW
};

const char *timeline_place_text(int place)
{
    return places[place].text;
}

/* The clock ticks less often than places follow each other: these then are in a kernel's order. */
static int by_time(const void *a, const void *b)
{
    const struct timeline_stamp *x = a, *y = b;
    return x->ns != y->ns ? (x->ns > y->ns) - (x->ns < y->ns) : x->place - y->place;
}

/* One time from a place to the next. */
struct passage {
    int from, to;
    double took, into;
};

static int by_places(const void *a, const void *b)
{
    const struct passage *x = a, *y = b;
    return x->to != y->to ? x->to - y->to : x->from - y->from;
}

static int by_into(const void *a, const void *b)
{
    const struct timeline_step *x = a, *y = b;
    return x->into != y->into ? (x->into > y->into) - (x->into < y->into) : x->to - y->to;
}

static double seconds_between(const struct timeline_stamp *from, const struct timeline_stamp *to)
{
    return (double)(to->ns - from->ns) / 1e9;
}

/* What precedes it as timeline_step says; NULL: nothing. latest: of each place. */
static const struct timeline_stamp *before(const struct timeline_stamp *s,
                                           const struct timeline_stamp *const *latest,
                                           const struct timeline_stamp *settled)
{
    if (!places[s->place].early)
        return settled;
    return s->place > 0 && places[s->place - 1].early ? latest[s->place - 1] : NULL;
}

/* From the first begin of a layer on. Layers' seconds go to layer[]. */
static size_t find_passages(const struct timeline_stamp *stamp, size_t count, struct passage *out,
                            double *layer, size_t *layers)
{
    const struct timeline_stamp *latest[TIMELINE_PLACES] = {NULL};
    const struct timeline_stamp *settled = NULL, *begin = NULL;
    size_t found = 0;
    *layers = 0;
    for (size_t i = 0; i < count; i++) {
        const struct timeline_stamp *s = &stamp[i], *from = before(s, latest, settled);
        const bool early = places[s->place].early;
        if (s->place == TIMELINE_LAYER) {
            if (begin)
                layer[(*layers)++] = seconds_between(begin, s);
            begin = s;
        }
        if (begin && (from || early))
            out[found++] = (struct passage){.from = from ? from->place : -1,
                                            .to = s->place,
                                            .took = from ? seconds_between(from, s) : 0,
                                            .into = seconds_between(begin, s)};
        latest[s->place] = s;
        settled = early ? settled : s;
    }
    return found;
}

static struct timeline_step step_of(const struct passage *p, size_t count, double *room)
{
    const double tenth = 0.1;
    struct timeline_step s = {.from = p->from, .to = p->to, .count = count};
    for (size_t i = 0; i < count; i++)
        room[i] = p[i].took;
    s.median = stats_median(room, count);
    s.low = stats_quantile(room, count, tenth);
    s.high = stats_quantile(room, count, 1 - tenth);
    for (size_t i = 0; i < count; i++)
        room[i] = p[i].into;
    s.into = stats_median(room, count);
    return s;
}

void timeline_summarise(struct timeline_stamp *stamp, size_t count, struct arena *arena,
                        struct timeline_summary *out)
{
    *out = (struct timeline_summary){0};
    if (count == 0)
        return;
    qsort(stamp, count, sizeof *stamp, by_time);
    const uint64_t newest = stamp[count - 1].ns;
    while (newest - stamp->ns >= TIMELINE_SPAN_NS) {
        stamp++;
        count--;
    }
    struct passage *p = memory_alloc(count * sizeof *p);
    double *room = memory_alloc(count * sizeof *room);
    const size_t found = find_passages(stamp, count, p, room, &out->layers);
    out->layer = out->layers > 0 ? stats_median(room, out->layers) : 0;
    qsort(p, found, sizeof *p, by_places);
    for (size_t i = 0; i < found; i++)
        out->count += i == 0 || by_places(&p[i], &p[i - 1]) != 0;
    out->step = arena_array(arena, out->count, sizeof *out->step);
    for (size_t i = 0, end, n = 0; i < found; i = end) {
        for (end = i + 1; end < found && by_places(&p[i], &p[end]) == 0;)
            end++;
        out->step[n++] = step_of(&p[i], end - i, room);
    }
    qsort(out->step, out->count, sizeof *out->step, by_into);
    free(p);
    free(room);
}
