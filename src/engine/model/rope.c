/* Rotary tables. Every operation is written out: IEEE doubles, no contraction, no libm for the
 * sines, so that no machine's table differs from another's. */
#include "engine/model/rope.h"

#include <math.h>

/* pi/2 in three doubles, each the rounding of what the ones before it leave. */
static const double half_pi_1 = 0x1.921fb54442d18p+0;
static const double half_pi_2 = 0x1.1a62633145c07p-54;
static const double half_pi_3 = -0x1.f1976b7ed8fbcp-110;
static const double two_over_pi = 0x1.45f306dc9c883p-1;

double rope_derived_magnitude(double factor)
{
    return factor > 1 ? 0.1 * log(factor) + 1 : 1.0;
}

/* The dimension whose wave turns `rotations` times within the original context. */
static double correction_dimension(const struct rope_parameters *p, double rotations)
{
    return p->dim * log(p->original_positions / (rotations * 2 * M_PI)) / (2 * log(p->theta));
}

void rope_inverse_frequencies(const struct rope_parameters *p, double *out)
{
    int half = p->dim / 2;
    for (int i = 0; i < half; i++)
        out[i] = pow(p->theta, -2.0 * i / p->dim);
    if (!p->yarn)
        return;
    double low = fmax(floor(correction_dimension(p, p->beta_fast)), 0);
    double high = fmin(ceil(correction_dimension(p, p->beta_slow)), p->dim - 1);
    double span = high != low ? high - low : 0.001; /* a ramp has some width (5.3) */
    for (int i = 0; i < half; i++) {
        double ramp = fmin(fmax((i - low) / span, 0), 1);
        out[i] = (1 - ramp) * out[i] + ramp * out[i] / p->factor;
    }
}

/* sin and cos of r + tail, |r| <= pi/4 (a little more), tail below one unit in r's last place.
 * Taylor series: the first term left out is below 1e-19. */
static void sincos_kernel(double r, double tail, double *sine, double *cosine)
{
    double z = r * r;
    double s = 1.0 / 355687428096000.0;   /* 17! */
    s = -1.0 / 1307674368000.0 + z * s;   /* 15! */
    s = 1.0 / 6227020800.0 + z * s;       /* 13! */
    s = -1.0 / 39916800.0 + z * s;        /* 11! */
    s = 1.0 / 362880.0 + z * s;           /* 9! */
    s = -1.0 / 5040.0 + z * s;            /* 7! */
    s = 1.0 / 120.0 + z * s;              /* 5! */
    s = -1.0 / 6.0 + z * s;               /* 3! */
    double c = -1.0 / 6402373705728000.0; /* 18! */
    c = 1.0 / 20922789888000.0 + z * c;   /* 16! */
    c = -1.0 / 87178291200.0 + z * c;     /* 14! */
    c = 1.0 / 479001600.0 + z * c;        /* 12! */
    c = -1.0 / 3628800.0 + z * c;         /* 10! */
    c = 1.0 / 40320.0 + z * c;            /* 8! */
    c = -1.0 / 720.0 + z * c;             /* 6! */
    c = 1.0 / 24.0 + z * c;               /* 4! */
    *sine = r + (r * z * s + tail * (1 - 0.5 * z));
    /* 1 - z/2 rounded, what that rounding lost, and the rest. */
    double half = 0.5 * z, w = 1 - half;
    *cosine = w + (((1 - w) - half) + (z * z * c - r * tail));
}

void rope_sincos(double x, double *sine, double *cosine)
{
    /* The first step is exact: x - k*half_pi_1 is a multiple of 2^-52 below 1 (or k is 0). */
    double k = rint(x * two_over_pi);
    double r = fma(-k, half_pi_1, x);
    double head = fma(-k, half_pi_2, r);
    double tail = fma(-k, half_pi_2, r - head);
    tail = fma(-k, half_pi_3, tail);
    double s, c;
    sincos_kernel(head, tail, &s, &c);
    switch ((int64_t)k & 3) {
    case 0:
        *sine = s;
        *cosine = c;
        break;
    case 1:
        *sine = c;
        *cosine = -s;
        break;
    case 2:
        *sine = -s;
        *cosine = -c;
        break;
    default:
        *sine = -c;
        *cosine = s;
        break;
    }
}

struct rope_table rope_table_new(struct arena *arena, const struct rope_parameters *p,
                                 int64_t positions, enum yarn_magnitude magnitude)
{
    int half = p->dim / 2;
    double *frequency = arena_array(arena, (size_t)half, sizeof *frequency);
    rope_inverse_frequencies(p, frequency);
    /* The magnitude is applied once, to the table or to q and k, never to both and never squared
     * (cases.md A-SM4). */
    float table_scale = 1, input_scale = 1;
    if (p->yarn && magnitude == YARN_DERIVED)
        input_scale = (float)rope_derived_magnitude(p->factor);
    else if (p->yarn)
        table_scale = (float)(p->has_attention_factor ? p->attention_factor
                                                      : rope_derived_magnitude(p->factor));
    size_t count = (size_t)positions * (size_t)half;
    float *cosine = arena_array(arena, count, sizeof *cosine);
    float *sine = arena_array(arena, count, sizeof *sine);
    for (int64_t position = 0; position < positions; position++)
        for (int i = 0; i < half; i++) {
            float angle = (float)position * (float)frequency[i];
            double s, c;
            rope_sincos(angle, &s, &c);
            size_t at = (size_t)position * (size_t)half + (size_t)i;
            cosine[at] = (float)c * table_scale;
            sine[at] = (float)s * table_scale;
        }
    return (struct rope_table){.dim = p->dim,
                               .positions = positions,
                               .cosine = cosine,
                               .sine = sine,
                               .input_scale = input_scale};
}
