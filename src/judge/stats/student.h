/* Student's t and the normal distribution: what intervals and power need of them. */
#ifndef MLXFAST_JUDGE_STATS_STUDENT_H
#define MLXFAST_JUDGE_STATS_STUDENT_H

/* P(T <= t) with `freedom` degrees of freedom, 1 or more (need not be whole). */
double student_cdf(double t, double freedom);

/* The t that T stays below with probability p; 0 < p < 1. Right to 1e-12 relative. */
double student_quantile(double p, double freedom);

/* The distance of the true mean from 0, in standard errors, at which a two-sided t test at
 * `confidence` sees it, on its right side, with probability `power`: the noncentrality of the t
 * distribution, exactly, not its normal approximation. 0 < confidence, power < 1. */
double student_detectable(double confidence, double power, double freedom);

/* P(Z <= z) of the standard normal distribution. */
double normal_cdf(double z);

#endif
