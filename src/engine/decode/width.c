/* The width policy. Its constants only trade how soon it learns against what a wrong try costs. */
#include "engine/decode/width.h"

#include <stdbool.h>
#include <stddef.h>

static const int candidates[] = {1, 2, 3, 4, 5, 6, 8, 12, 16};
enum {
    CANDIDATES = sizeof candidates / sizeof *candidates,
    FIRST_WAIT = 32,
    LONGEST_WAIT = 1024,
    SERIAL_EVERY = 16
};
static const double margin = 1.04;       /* a draft must promise this much more than none */
static const double prior = 0.6;         /* acceptance before anything is known */
static const double memory_share = 0.08; /* weight of a new acceptance */
/* Times follow the middle of what is measured, by a few percent a round at most: a round in which
 * something else had the core takes ten times as long and says nothing about its width. */
static const double seconds_share = 0.3, seconds_reach = 0.1;

void width_policy_begin(struct width_policy *p, int most)
{
    *p = (struct width_policy){.most = most < WIDTH_MOST ? most : WIDTH_MOST,
                               .probe_in = FIRST_WAIT,
                               .probe_wait = FIRST_WAIT,
                               .serial_in = SERIAL_EVERY};
    for (int i = 0; i < WIDTH_MOST - 1; i++)
        p->accepted[i] = prior;
}

/* The time of a width that was never tried: on the line through its nearest tried neighbours, one
 * on each side where there are such, else the two nearest on the one side; never falling with
 * width. */
static double seconds_of(const struct width_policy *p, int width)
{
    int below[2] = {0}, above[2] = {0};
    if (p->seen[width])
        return p->seconds[width];
    for (int w = width - 1; w >= 1 && !below[1]; w--)
        if (p->seen[w])
            below[below[0] != 0] = w;
    for (int w = width + 1; w <= p->most && !above[1]; w++)
        if (p->seen[w])
            above[above[0] != 0] = w;
    const int a = below[0] ? below[0] : above[0];
    const int b = !below[0] ? above[1] : above[0] ? above[0] : below[1];
    if (a == 0)
        return 1;
    const double slope = b ? (p->seconds[b] - p->seconds[a]) / (b - a) : 0;
    const double guess = p->seconds[a] + (slope > 0 ? slope : 0) * (width - a);
    return guess > p->seconds[a] / 2 ? guess : p->seconds[a] / 2;
}

static double rate_of(const struct width_policy *p, int width)
{
    double tokens = 1, chain = 1;
    for (int i = 0; i < width - 1; i++) {
        chain *= p->accepted[i];
        tokens += chain;
    }
    return tokens / seconds_of(p, width);
}

static int best_width(const struct width_policy *p, int least)
{
    int best = least;
    for (int i = 0; i < CANDIDATES; i++)
        if (candidates[i] >= least && candidates[i] <= p->most &&
            rate_of(p, candidates[i]) > rate_of(p, best))
            best = candidates[i];
    return best;
}

int width_policy_next(struct width_policy *p)
{
    /* Blocks of 4 behind each other, as later ones will be: where a block of 2 loses by the
     * drafter's own time, a wider one may gain, and behind serial rounds none shows what it takes.
     * The last two only if first drafts have been right as often as is presumed. */
    static const int first[] = {1, 1, 1, 2, 4, 4, 4, 4};
    enum { ALWAYS = 6 };
    if (p->most < 2)
        return 1;
    if (p->rounds < ALWAYS ||
        ((size_t)p->rounds < sizeof first / sizeof *first && p->accepted[0] >= prior))
        return first[p->rounds] < p->most ? first[p->rounds] : p->most;
    const int best = best_width(p, 2), again = p->again;
    const bool pays = rate_of(p, best) > margin * rate_of(p, 1);
    p->again = 0;
    if (pays || again)
        p->probe_in = p->probe_wait = FIRST_WAIT;
    if (again && (!pays || p->seen[again] < 2))
        return again;
    if (pays) {
        if (p->serial_in-- > 0)
            return best;
        p->serial_in = SERIAL_EVERY;
        return 1;
    }
    if (p->probe_in-- > 0)
        return 1;
    p->probe_wait = p->probe_wait < LONGEST_WAIT / 2 ? 2 * p->probe_wait : LONGEST_WAIT;
    p->probe_in = p->probe_wait;
    return 2; /* the cheapest; `again` widens it while all of it is accepted */
}

void width_policy_note(struct width_policy *p, int width, int accepted, double seconds)
{
    p->rounds++;
    if (width < 1 || width > p->most)
        return;
    /* A block after serial rounds also takes in the hidden rows of those: not what a block takes.
     */
    const bool typical = width == 1 || p->last > 1;
    double *known = &p->seconds[width];
    p->last = width;
    if (p->seen[width] == 0 || (p->seen[width] < 5 && seconds < *known))
        *known = seconds; /* the first ones are cold */
    else if (typical) {
        const double most = seconds_reach * *known, off = seconds - *known;
        *known += seconds_share * (off > most ? most : off < -most ? -most : off);
    }
    if (p->seen[width] == 0 || typical)
        p->seen[width] += p->seen[width] < 1 << 20;
    /* Right drafts come in runs: a block that was accepted whole is followed by a wider one that is
     * worth its time if all of it is right, also while serial rounds promise more. */
    p->again = 0;
    if (width > 1 && accepted == width - 1) {
        for (int i = CANDIDATES - 1; i >= 0; i--)
            if (candidates[i] > width && candidates[i] <= p->most &&
                seconds_of(p, candidates[i]) < candidates[i] * seconds_of(p, 1))
                p->again = candidates[i]; /* the narrowest of these */
        if (!p->again && p->seen[width] < 3)
            p->again = width;
    }
    for (int i = 0; i < width - 1 && i <= accepted; i++)
        p->accepted[i] += memory_share * ((i < accepted ? 1 : 0) - p->accepted[i]);
}
