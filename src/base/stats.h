/* Statistics of small samples. Every function leaves its input as it is; n is the count. */
#ifndef MLXFAST_BASE_STATS_H
#define MLXFAST_BASE_STATS_H

#include <stddef.h>

double stats_mean(const double *x, size_t n);
double stats_median(const double *x, size_t n); /* mean of the two middle values if n is even */
double stats_lower_median(const double *x, size_t n); /* lower of the two middle values */
double stats_sample_sd(const double *x, size_t n);    /* NaN for n < 2: spread is not known */
double stats_min(const double *x, size_t n);
double stats_max(const double *x, size_t n);
double stats_quantile(const double *x, size_t n, double q); /* linear interpolation, q in 0..1 */

#endif
