#include "engine/memory/startup.h"

#include <stdio.h>
#include <string.h>

/* The program, its threads' stacks, a tokenizer. */
static const uint64_t other = (uint64_t)32 << 20;

/* On a device: buffers that weights come through, recordings, what is lost by whole pages. */
static const uint64_t other_of_device = (uint64_t)384 << 20;

static const char *const names[] = {
    [MEMORY_AUTO] = "auto", [MEMORY_FULL] = "full", [MEMORY_LOW] = "low"};

bool memory_profile_parse(const char *text, enum memory_profile *out)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = (enum memory_profile)i;
            return true;
        }
    return false;
}

const char *memory_profile_name(enum memory_profile p)
{
    return names[p];
}

static uint64_t sum(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* What a profile takes: of the machine, of RLIMIT_DATA (nothing that is a file's), of RLIMIT_AS
 * (the files are mapped already). */
struct taken {
    uint64_t machine, data, addresses;
};

static struct taken taken_by(enum memory_profile p, const struct memory_need *n)
{
    const bool full = p == MEMORY_FULL;
    const uint64_t own =
        sum(sum(full ? n->caches : n->low_caches, full ? n->scratch : n->low_scratch),
            sum(n->tables, other));
    const uint64_t copy = full ? n->weights : 0;
    return (struct taken){sum(own, full ? n->weights : n->token), sum(own, copy), sum(own, copy)};
}

/* The limit that is passed, and what it leaves; NULL: none. */
static const char *passed(const struct taken *t, const struct memory_limits *l, uint64_t *needed,
                          uint64_t *left)
{
    const struct {
        const char *name;
        uint64_t needed, left;
    } limits[] = {{l->source, t->machine, l->available},
                  {"RLIMIT_DATA (ulimit -d)", t->data, l->data},
                  {"RLIMIT_AS (ulimit -v)", t->addresses, l->addresses}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].needed > limits[i].left) {
            *needed = limits[i].needed;
            *left = limits[i].left;
            return limits[i].name;
        }
    return NULL;
}

static bool refuse(enum memory_profile p, const struct memory_need *n,
                   const struct memory_limits *l, struct error *err)
{
    char text[4][32];
    uint64_t needed = 0, left = 0;
    const bool full = p == MEMORY_FULL;
    const struct taken t = taken_by(p, n);
    const char *limit = passed(&t, l, &needed, &left);
    error_set(
        err, "MEMORY-INSUFFICIENT",
        "profile %s needs %s (of it %s for weights, %s for keys and values), %s are left by "
        "%s; lower --context%s",
        names[p], memory_text(needed, text[0]), memory_text(full ? n->weights : n->token, text[1]),
        memory_text(full ? n->caches : n->low_caches, text[2]), memory_text(left, text[3]), limit,
        full ? " or choose --memory-profile low" : ", or give the process more memory");
    return error_at(err, n->folder, NULL, NULL);
}

static bool fits_with_room(const struct taken *t, const struct memory_limits *l)
{
    struct memory_limits room = *l;
    uint64_t needed, left;
    if (room.available != UINT64_MAX)
        room.available -= room.available / 10;
    return passed(t, &room, &needed, &left) == NULL;
}

static void describe(enum memory_profile asked, const struct memory_need *n,
                     const struct memory_limits *l, const struct taken *t, struct memory_plan *p)
{
    char text[4][32];
    char of[160] = "";
    if (l->available != UINT64_MAX)
        snprintf(of, sizeof of, " of %s (%s)", memory_text(l->available, text[0]), l->source);
    const int head = snprintf(p->line, sizeof p->line, "memory profile %s%s: ", names[p->profile],
                              asked == MEMORY_AUTO ? " (auto)" : "");
    char *rest = p->line + head;
    const size_t room = sizeof p->line - (size_t)head;
    if (p->profile == MEMORY_FULL && p->lock)
        snprintf(rest, room, "%s%s; weights are copied into huge pages and locked",
                 memory_text(t->machine, text[1]), of);
    else if (p->profile == MEMORY_FULL)
        snprintf(rest, room,
                 "%s%s; weights are copied into huge pages, not locked (RLIMIT_MEMLOCK leaves %s)",
                 memory_text(t->machine, text[1]), of, memory_text(l->lockable, text[2]));
    else
        snprintf(rest, room, "%s for weights in their files' pages%s%s, %s besides",
                 memory_text(n->weights, text[1]), of,
                 p->fits ? "" : ": more than fits, they are read again and again",
                 memory_text(t->data, text[2]));
}

bool memory_plan_make(enum memory_profile asked, const struct memory_need *n,
                      const struct memory_limits *l, struct memory_plan *out, struct error *err)
{
    uint64_t needed, left;
    *out = (struct memory_plan){.profile = asked};
    struct taken t = taken_by(MEMORY_FULL, n);
    if (asked == MEMORY_AUTO)
        out->profile = fits_with_room(&t, l) ? MEMORY_FULL : MEMORY_LOW;
    t = taken_by(out->profile, n);
    if (passed(&t, l, &needed, &left) != NULL)
        return refuse(out->profile, n, l, err);
    out->fits = l->available >= sum(n->weights, t.data);
    out->lock = out->profile == MEMORY_FULL && n->weights <= l->lockable;
    describe(asked, n, l, &t, out);
    return true;
}

bool memory_plan_device(enum memory_profile asked, const struct memory_need *n, const char *device,
                        uint64_t available, struct memory_plan *out, struct error *err)
{
    char text[4][32];
    const uint64_t needed =
        sum(sum(sum(n->weights, n->caches), sum(n->scratch, n->tables)), other_of_device);
    *out = (struct memory_plan){.profile = MEMORY_FULL, .fits = true, .device = true};
    if (asked == MEMORY_LOW) {
        error_set(err, "badValue",
                  "badValue(--memory-profile): %s keeps all weights in its own memory, there is no "
                  "low profile",
                  device);
        return error_at(err, NULL, "--memory-profile", names[asked]);
    }
    if (needed > available) {
        error_set(err, "MEMORY-INSUFFICIENT",
                  "profile full needs %s (of it %s for weights, %s for keys and values), %s are "
                  "free on %s; lower --context, or end what else uses it",
                  memory_text(needed, text[0]), memory_text(n->weights, text[1]),
                  memory_text(n->caches, text[2]), memory_text(available, text[3]), device);
        return error_at(err, n->folder, NULL, NULL);
    }
    snprintf(out->line, sizeof out->line,
             "memory profile full%s: %s of %s (free on %s); weights are copied to it",
             asked == MEMORY_AUTO ? " (auto)" : "", memory_text(needed, text[0]),
             memory_text(available, text[1]), device);
    return true;
}
