/* Numbers with their units, for people. Texts live as long as the arena; NULL (shown as a dash)
 * for what is not finite, so that an absent figure is never shown as 0. */
#ifndef MLXFAST_JUDGE_PAGE_UNITS_H
#define MLXFAST_JUDGE_PAGE_UNITS_H

#include "base/arena.h"

/* A scale for one axis: value * factor is in `name`. */
struct unit {
    const char *name;
    double factor;
};
struct unit unit_of_seconds(double largest); /* s, ms or µs */

const char *unit_seconds(struct arena *a, double seconds);
const char *unit_scaled(struct arena *a, double value, struct unit unit); /* four digits */
const char *unit_bytes(struct arena *a, double bytes);                    /* 6.43 MB */
const char *unit_ratio(struct arena *a, double ratio);                    /* 1.0120 */
const char *unit_percent(struct arena *a, double share);                  /* 0.012: 1.20% */
const char *unit_number(struct arena *a, double value,
                        const char *name);                           /* 41.5 °C; name or NULL */
const char *unit_interval(struct arena *a, double low, double high); /* 0.9980 to 1.0020 */
const char *unit_rate(struct arena *a, double seconds_per_token);    /* 3028 tok/s; > 0 */

#endif
