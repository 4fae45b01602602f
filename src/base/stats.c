/* Statistics of small samples: see stats.h. */
#include "base/stats.h"

#include "base/arena.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double *sorted_copy(const double *x, size_t n)
{
    double *copy = memory_alloc(n * sizeof *copy);
    memcpy(copy, x, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, compare);
    return copy;
}

double stats_mean(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    return n ? sum / (double)n : NAN;
}

double stats_median(const double *x, size_t n)
{
    if (n == 0)
        return NAN;
    double *s = sorted_copy(x, n);
    double m = n % 2 ? s[n / 2] : (s[n / 2 - 1] + s[n / 2]) / 2;
    free(s);
    return m;
}

double stats_lower_median(const double *x, size_t n)
{
    if (n == 0)
        return NAN;
    double *s = sorted_copy(x, n);
    double m = s[(n - 1) / 2];
    free(s);
    return m;
}

double stats_sample_sd(const double *x, size_t n)
{
    if (n < 2)
        return NAN;
    double mean = stats_mean(x, n), sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

double stats_min(const double *x, size_t n)
{
    double m = n ? x[0] : NAN;
    for (size_t i = 1; i < n; i++)
        m = x[i] < m ? x[i] : m;
    return m;
}

double stats_max(const double *x, size_t n)
{
    double m = n ? x[0] : NAN;
    for (size_t i = 1; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

double stats_quantile(const double *x, size_t n, double q)
{
    if (n == 0 || !(q >= 0 && q <= 1))
        return NAN;
    double *s = sorted_copy(x, n);
    double at = q * (double)(n - 1);
    size_t low = (size_t)at;
    size_t high = low + 1 < n ? low + 1 : low;
    double value = s[low] + (s[high] - s[low]) * (at - (double)low);
    free(s);
    return value;
}
