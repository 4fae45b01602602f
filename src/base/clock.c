/* Clocks: see clock.h. */
#include "base/clock.h"

#include "base/number.h"

#include <stdlib.h>
#include <time.h>

int64_t clock_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double clock_seconds(int64_t since)
{
    return (double)(clock_now_ns() - since) * 1e-9;
}

char *clock_utc_text(char *out, size_t size)
{
    time_t now = time(NULL);
    const char *fixed = getenv("SOURCE_DATE_EPOCH");
    int64_t seconds;
    if (fixed && number_int64(fixed, 0, 253402300799 /* the end of year 9999 */, &seconds))
        now = (time_t)seconds;
    struct tm parts;
    gmtime_r(&now, &parts);
    if (strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts) == 0 && size > 0)
        out[0] = '\0';
    return out;
}
