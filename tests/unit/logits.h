/* How far two tables of logits are apart: for tests of models against their oracles. */
#ifndef MLXFAST_TESTS_LOGITS_H
#define MLXFAST_TESTS_LOGITS_H

#include <math.h>
#include <stddef.h>

/* max |a - b| / max |b|, the largest over rows; infinite where a value of a is not finite. */
static inline double worst_relative(const float *a, const float *b, size_t rows, size_t vocab)
{
    double worst = 0;
    for (size_t p = 0; p < rows; p++) {
        double difference = 0, size = 0;
        for (size_t i = p * vocab; i < (p + 1) * vocab; i++) {
            if (!isfinite(a[i]))
                return INFINITY;
            difference = fmax(difference, fabs((double)a[i] - b[i]));
            size = fmax(size, fabs(b[i]));
        }
        worst = fmax(worst, difference / size);
    }
    return worst;
}

#endif
