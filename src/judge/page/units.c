#include "judge/page/units.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

struct unit unit_of_seconds(double largest)
{
    if (isfinite(largest) && largest >= 1)
        return (struct unit){"s", 1};
    if (isfinite(largest) && largest >= 1e-3)
        return (struct unit){"ms", 1e3};
    return (struct unit){"µs", 1e6};
}

/* Four significant digits, never in exponents where a person would not expect them. */
static const char *digits(struct arena *a, double value)
{
    const double size = fabs(value);
    if (value == 0)
        return "0";
    if (size >= 1e9 || size < 1e-5)
        return arena_printf(a, "%.3e", value);
    int decimals = 3 - (int)floor(log10(size));
    decimals = decimals < 0 ? 0 : decimals;
    return arena_printf(a, "%.*f", decimals, value);
}

const char *unit_scaled(struct arena *a, double value, struct unit unit)
{
    return isfinite(value * unit.factor) ? digits(a, value * unit.factor) : NULL;
}

const char *unit_seconds(struct arena *a, double seconds)
{
    const struct unit unit = unit_of_seconds(fabs(seconds));
    return isfinite(seconds)
               ? seconds == 0
                     ? "0 s"
                     : arena_printf(a, "%s %s", digits(a, seconds * unit.factor), unit.name)
               : NULL;
}

const char *unit_bytes(struct arena *a, double bytes)
{
    static const struct unit units[] = {{"TB", 1e-12}, {"GB", 1e-9}, {"MB", 1e-6}, {"kB", 1e-3}};
    if (!isfinite(bytes))
        return NULL;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (bytes * units[i].factor >= 1)
            return arena_printf(a, "%.2f %s", bytes * units[i].factor, units[i].name);
    return arena_printf(a, "%.0f B", bytes);
}

const char *unit_ratio(struct arena *a, double ratio)
{
    if (!isfinite(ratio))
        return NULL;
    return fabs(ratio) < 1e6 ? arena_printf(a, "%.4f", ratio) : digits(a, ratio);
}

const char *unit_percent(struct arena *a, double share)
{
    if (!isfinite(share * 100))
        return NULL;
    return fabs(share) < 1e6 ? arena_printf(a, "%.2f%%", share * 100)
                             : arena_printf(a, "%s%%", digits(a, share * 100));
}

/* "41.80" -> "41.8", "8.000" -> "8". */
static const char *without_zeros(struct arena *a, const char *text)
{
    size_t length = strlen(text);
    if (!strchr(text, '.') || strchr(text, 'e'))
        return text;
    while (text[length - 1] == '0')
        length--;
    return arena_strndup(a, text, text[length - 1] == '.' ? length - 1 : length);
}

const char *unit_number(struct arena *a, double value, const char *name)
{
    if (!isfinite(value))
        return NULL;
    return arena_printf(a, "%s%s%s", without_zeros(a, digits(a, value)), name ? " " : "",
                        name ? name : "");
}

const char *unit_interval(struct arena *a, double low, double high)
{
    return isfinite(low) && isfinite(high)
               ? arena_printf(a, "%s to %s", unit_ratio(a, low), unit_ratio(a, high))
               : NULL;
}

const char *unit_rate(struct arena *a, double seconds_per_token)
{
    return isfinite(seconds_per_token) && seconds_per_token > 0
               ? arena_printf(a, "%s tok/s", digits(a, 1 / seconds_per_token))
               : NULL;
}
