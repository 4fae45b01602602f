/* How wide the next round should be, learnt while decoding: what a round of each width takes, and
 * how often the i-th draft is accepted once those before it were. Chooses the width with the most
 * expected tokens per second, and 1 (no draft) unless another is better by a margin. Nothing that
 * it does can change a token, only the time. */
#ifndef MLXFAST_ENGINE_DECODE_WIDTH_H
#define MLXFAST_ENGINE_DECODE_WIDTH_H

enum { WIDTH_MOST = 16 };

struct width_policy {
    int most;
    int rounds;                     /* noted so far */
    int probe_in, probe_wait;       /* serial rounds until a draft is tried again; the next wait */
    int again;                      /* after a block accepted whole: try this width next; 0: none */
    int last;                       /* width of the last round */
    int serial_in;                  /* rounds until one is serial, to know what that takes */
    double seconds[WIDTH_MOST + 1]; /* of one round; by width */
    int seen[WIDTH_MOST + 1];       /* samples of it */
    double accepted[WIDTH_MOST - 1]; /* share of the i-th drafts, those before it accepted */
};

/* most: the widest round, 1 .. WIDTH_MOST. */
void width_policy_begin(struct width_policy *p, int most);
int width_policy_next(struct width_policy *p);
/* A round of `width` rows took so long and had its first `accepted` drafts accepted. */
void width_policy_note(struct width_policy *p, int width, int accepted, double seconds);

#endif
