/* Numbers from text and back: see number.h. The C locale is assumed: no program calls setlocale. */
#include "base/number.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool digits_to_uint64(const char *text, uint64_t *out)
{
    uint64_t value = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*text - '0'), &value))
            return false;
    }
    *out = value;
    return true;
}

bool number_int64(const char *text, int64_t min, int64_t max, int64_t *out)
{
    bool negative = *text == '-';
    uint64_t magnitude;
    if (!digits_to_uint64(text + negative, &magnitude))
        return false;
    if (magnitude > (uint64_t)INT64_MAX + negative)
        return false;
    int64_t value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    if (value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool number_uint64(const char *text, uint64_t max, uint64_t *out)
{
    uint64_t value;
    if (!digits_to_uint64(text, &value) || value > max)
        return false;
    *out = value;
    return true;
}

static size_t count_digits(const char *text)
{
    return strspn(text, "0123456789");
}

bool number_double(const char *text, double *out)
{
    /* JSON's grammar; strtod alone would take hex, "inf", "+1", ".5" and "1.". */
    const char *p = text;
    if (*p == '-')
        p++;
    size_t n = count_digits(p);
    if (n == 0 || (n > 1 && *p == '0'))
        return false;
    p += n;
    if (*p == '.') {
        n = count_digits(++p);
        if (n == 0)
            return false;
        p += n;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-')
            p++;
        n = count_digits(p);
        if (n == 0)
            return false;
        p += n;
    }
    if (*p)
        return false;
    double value = strtod(text, NULL);
    if (!isfinite(value))
        return false;
    *out = value;
    return true;
}

/* "%.*e" of a positive value as digits without trailing zeros and a decimal point position. */
struct decimal {
    char digits[20];
    int count;
    int point; /* value = 0.d1d2d3... * 10^point */
};

static bool decimal_reads_back(const struct decimal *d, double value)
{
    char text[40];
    snprintf(text, sizeof text, "0.%se%d", d->digits, d->point);
    return strtod(text, NULL) == value;
}

static void decimal_make(double value, int digits, struct decimal *d)
{
    char text[40];
    snprintf(text, sizeof text, "%.*e", digits - 1, value);
    char *e = strchr(text, 'e');
    int count = 0;
    for (char *p = text; p < e; p++)
        if (*p != '.')
            d->digits[count++] = *p;
    while (count > 1 && d->digits[count - 1] == '0')
        count--;
    d->digits[count] = '\0';
    d->count = count;
    d->point = (int)strtol(e + 1, NULL, 10) + 1;
}

/* Below a power of two the spacing halves, so the nearest decimal of a length may read back as
 * another double while its upper neighbour, a little further away, does not. */
static bool decimal_increment(struct decimal *d, int digits)
{
    while (d->count < digits)
        d->digits[d->count++] = '0';
    d->digits[digits] = '\0';
    int i = digits - 1;
    while (i >= 0 && d->digits[i] == '9')
        i--;
    if (i < 0)
        return false;
    d->digits[i]++;
    d->count = i + 1;
    d->digits[d->count] = '\0';
    return true;
}

static void decimal_shortest(double value, struct decimal *d)
{
    /* A normal double that has a decimal of 15 digits or fewer is exactly that decimal at 15. */
    for (int digits = value < DBL_MIN ? 1 : 15; digits < 17; digits++) {
        decimal_make(value, digits, d);
        if (decimal_reads_back(d, value))
            return;
        if (decimal_increment(d, digits) && decimal_reads_back(d, value))
            return;
    }
    decimal_make(value, 17, d);
}

char *number_format_double(double value, char *out, size_t size)
{
    if (!isfinite(value)) { /* no JSON number; callers check, and a reader refuses this */
        snprintf(out, size, "%s", isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity");
        return out;
    }
    const char *sign = signbit(value) ? "-" : "";
    if (value == 0) {
        snprintf(out, size, "%s0.0", sign);
        return out;
    }
    struct decimal d;
    decimal_shortest(fabs(value), &d);
    if (d.count <= d.point && d.point <= 16) {
        snprintf(out, size, "%s%s%.*s.0", sign, d.digits, d.point - d.count, "0000000000000000");
    } else if (d.point > 0 && d.point <= 16) {
        snprintf(out, size, "%s%.*s.%s", sign, d.point, d.digits, d.digits + d.point);
    } else if (d.point > -5 && d.point <= 0) {
        snprintf(out, size, "%s0.%.*s%s", sign, -d.point, "0000", d.digits);
    } else if (d.count == 1) {
        snprintf(out, size, "%s%se%d", sign, d.digits, d.point - 1);
    } else {
        snprintf(out, size, "%s%c.%se%d", sign, d.digits[0], d.digits + 1, d.point - 1);
    }
    return out;
}

bool size_multiply(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
