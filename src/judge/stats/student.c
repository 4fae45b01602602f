#include "judge/stats/student.h"

#include <math.h>

/* The regularised incomplete beta function by its continued fraction (DLMF 8.17.22), evaluated
 * from the front by Lentz's method; it converges fast for x below (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x)
{
    static const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double value = d;
    for (int m = 1; m <= 1000; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        double step = 1;
        for (int half = 0; half < 2; half++) {
            const double term = half == 0 ? even : odd;
            d = 1 + term * d;
            c = 1 + term / c;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = fabs(c) < tiny ? tiny : c;
            step = c * d;
            value *= step;
        }
        if (fabs(step - 1) < 1e-16)
            break;
    }
    return value;
}

/* I_x(a, b); y is 1 - x, given apart so that neither end loses digits. */
static double beta_regularised(double a, double b, double x, double y)
{
    if (x <= 0)
        return 0;
    if (y <= 0)
        return 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(y));
    if (x < (a + 1) / (a + b + 2))
        return front * beta_fraction(a, b, x) / a;
    return 1 - front * beta_fraction(b, a, y) / b;
}

/* P(T > t), t >= 0. */
static double student_tail(double t, double freedom)
{
    const double square = t * t, sum = freedom + square;
    return 0.5 * beta_regularised(freedom / 2, 0.5, freedom / sum, square / sum);
}

double student_cdf(double t, double freedom)
{
    return t > 0 ? 1 - student_tail(t, freedom) : student_tail(-t, freedom);
}

double student_quantile(double p, double freedom)
{
    if (p == 0.5)
        return 0;
    const double pi = 3.14159265358979323846;
    const double wanted = p > 0.5 ? 1 - p : p;
    const double scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi);
    /* The tail is convex above 0: Newton's steps from 0 climb to the root and never pass it, but
     * for rounding, where they end. */
    double t = 0;
    for (int i = 0; i < 200; i++) {
        const double density = scale * pow(1 + t * t / freedom, -(freedom + 1) / 2);
        const double next = t + (student_tail(t, freedom) - wanted) / density;
        if (!(next > t))
            break;
        t = next;
    }
    return p > 0.5 ? t : -t;
}

double normal_cdf(double z)
{
    return 0.5 * erfc(-z / sqrt(2));
}

/* P((Z + shift) / W > t), W being chi / sqrt(freedom): over W's density, whose logarithm is
 * freedom ln w - freedom w^2 / 2 + ln w's share. Substituting w = exp(u) keeps the integrand smooth
 * at 0 for one degree of freedom too; Simpson's rule on it is right to 1e-9. */
static double power_above(double t, double shift, double freedom)
{
    enum { STEPS = 2000 };
    const double scale = log(2) + (freedom / 2) * log(freedom / 2) - lgamma(freedom / 2);
    const double low = -40 / freedom - 1, high = log(1 + 9 / sqrt(freedom));
    const double step = (high - low) / STEPS;
    double sum = 0;
    for (int i = 0; i <= STEPS; i++) {
        const double u = low + step * i, w = exp(u);
        const double density = exp(scale + freedom * u - freedom * w * w / 2);
        const double weight = i == 0 || i == STEPS ? 1 : i % 2 ? 4 : 2;
        sum += weight * density * normal_cdf(shift - t * w);
    }
    return sum * step / 3;
}

double student_detectable(double confidence, double power, double freedom)
{
    const double t = student_quantile(0.5 + confidence / 2, freedom);
    double low = 0, high = 1;
    while (power_above(t, high, freedom) < power && high < 1e6)
        high *= 2;
    for (int i = 0; i < 60; i++) {
        const double middle = low + (high - low) / 2;
        if (power_above(t, middle, freedom) < power)
            low = middle;
        else
            high = middle;
    }
    return high;
}
