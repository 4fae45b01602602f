#include "engine/decode/pick.h"

#include <math.h>

/* The largest logit, NaNs passed over; -Inf when there is none. Eight running maxima, so that the
 * compiler can use vectors: a maximum does not depend on the order. */
static float largest(const float *logits, int vocab)
{
    enum { LANES = 8 };
    float m[LANES];
    for (int l = 0; l < LANES; l++)
        m[l] = -INFINITY;
    int i = 0;
    for (; i + LANES <= vocab; i += LANES)
        for (int l = 0; l < LANES; l++)
            m[l] = logits[i + l] > m[l] ? logits[i + l] : m[l];
    for (; i < vocab; i++)
        m[0] = logits[i] > m[0] ? logits[i] : m[0];
    for (int l = 1; l < LANES; l++)
        m[0] = m[l] > m[0] ? m[l] : m[0];
    return m[0];
}

int32_t pick_argmax(const float *logits, int vocab)
{
    const float m = largest(logits, vocab);
    for (int i = 0; i < vocab; i++)
        if (logits[i] == m)
            return i;
    return -1; /* nothing equals -Inf either: all are NaN */
}

int pick_top_k(const float *logits, int vocab, int k, struct top_logit *out)
{
    int found = 0;
    if (k <= 0)
        return 0;
    for (int i = 0; i < vocab; i++) {
        const float v = logits[i];
        if (isnan(v) || (found == k && !(v > out[k - 1].logit)))
            continue;
        /* Later ids go behind equal logits: ties stay in ascending id. */
        int at = found < k ? found++ : k - 1;
        for (; at > 0 && v > out[at - 1].logit; at--)
            out[at] = out[at - 1];
        out[at] = (struct top_logit){.token = i, .logit = v};
    }
    return found;
}
