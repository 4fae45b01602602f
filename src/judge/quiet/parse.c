/* See parse.h. */
#include "judge/quiet/parse.h"

#include "base/buffer.h"
#include "base/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIELD_MAX = 64 };

static const double CELSIUS_MIN = -55, CELSIUS_MAX = 150; /* what silicon sensors are made for */

bool parse_celsius_is_usable(double celsius)
{
    return isfinite(celsius) && celsius > CELSIUS_MIN && celsius < CELSIUS_MAX;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* text[0..length) without blanks at its ends, into out; false: it is too long for any number. */
static bool copy_trimmed(const char *text, size_t length, char out[FIELD_MAX])
{
    while (length > 0 && is_blank(*text)) {
        text++;
        length--;
    }
    while (length > 0 && is_blank(text[length - 1]))
        length--;
    if (length >= FIELD_MAX)
        return false;
    memcpy(out, text, length);
    out[length] = '\0';
    return true;
}

static size_t line_length(const char *text)
{
    return strcspn(text, "\n");
}

static void drop_end(char *text, const char *end)
{
    if (text_ends(text, end))
        text[strlen(text) - strlen(end)] = '\0';
}

bool parse_celsius_line(const char *text, double *celsius)
{
    char line[FIELD_MAX];
    double value;
    if (!copy_trimmed(text, line_length(text), line))
        return false;
    drop_end(line, "C");
    drop_end(line, "\xc2\xb0"); /* the degree sign */
    while (*line && is_blank(line[strlen(line) - 1]))
        line[strlen(line) - 1] = '\0';
    if (!number_double(line[0] == '+' ? line + 1 : line, &value) || !parse_celsius_is_usable(value))
        return false;
    *celsius = value;
    return true;
}

bool parse_millidegrees(const char *text, double *celsius)
{
    char line[FIELD_MAX];
    int64_t thousandths;
    if (!copy_trimmed(text, line_length(text), line) ||
        !number_int64(line, -1000000, 1000000, &thousandths) ||
        !parse_celsius_is_usable((double)thousandths / 1000))
        return false;
    *celsius = (double)thousandths / 1000;
    return true;
}

bool parse_count(const char *text, uint64_t *count)
{
    char line[FIELD_MAX];
    return copy_trimmed(text, line_length(text), line) && number_uint64(line, INT64_MAX, count);
}

bool parse_kilohertz(const char *text, double *mhz)
{
    uint64_t kilohertz;
    if (!parse_count(text, &kilohertz) || kilohertz == 0 || kilohertz > 100000000u)
        return false;
    *mhz = (double)kilohertz / 1000;
    return true;
}

bool parse_load(const char *text, double *load)
{
    char field[FIELD_MAX];
    double value;
    if (!copy_trimmed(text, strcspn(text, " \n"), field) || !number_double(field, &value) ||
        value < 0)
        return false;
    *load = value;
    return true;
}

/* Decimal digits at *at, blanks before them passed over; moves on. */
static bool take_number(const char **at, uint64_t *out)
{
    const char *p = *at;
    uint64_t value = 0;
    while (is_blank(*p))
        p++;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (value > (UINT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(*p - '0');
    }
    *at = p;
    *out = value;
    return true;
}

/* user nice system idle iowait irq softirq steal; guest time is part of user already. */
static bool take_ticks(const char *at, struct cpu_ticks *out)
{
    enum { IDLE = 3, IOWAIT = 4, STEAL = 7, FIELDS = 8 };
    static const uint64_t SANE = UINT64_C(1) << 60; /* eight of them can be added */
    struct cpu_ticks ticks = {0};
    for (int i = 0; i < FIELDS; i++) {
        uint64_t value;
        if (!take_number(&at, &value))
            return false;
        if (value > SANE)
            return false;
        ticks.all += value;
        if (i != IDLE && i != IOWAIT)
            ticks.busy += value;
        if (i == STEAL)
            ticks.stolen = value;
    }
    *out = ticks;
    return true;
}

bool parse_stat(const char *text, struct cpu_times *out)
{
    out->count = 0;
    if (!text_starts(text, "cpu ") || !take_ticks(text + 4, &out->whole))
        return false;
    for (text += line_length(text); *text == '\n' && text_starts(text + 1, "cpu");
         text += line_length(text)) {
        const char *at = text + 4;
        uint64_t number;
        struct cpu_ticks ticks;
        text++;
        if (!take_number(&at, &number) || number >= QUIET_CPUS_MAX || number < out->count ||
            !take_ticks(at, &ticks))
            continue;
        while (out->count < number)
            out->each[out->count++] = (struct cpu_ticks){0};
        out->each[out->count++] = ticks;
    }
    return true;
}

bool parse_process(const char *text, pid_t *parent, uint64_t *ticks)
{
    enum { PARENT = 1, UTIME = 11, CSTIME = 14 }; /* fields after the name, from 0 */
    static const uint64_t SANE = UINT64_C(1) << 60;
    const char *at = strrchr(text, ')'); /* the name may hold anything, this too */
    uint64_t sum = 0, found = 0;
    if (!at)
        return false;
    at++;
    for (int i = 0; i <= CSTIME; i++) {
        while (is_blank(*at))
            at++;
        const char *digits = at;
        uint64_t value = 0;
        if (i == PARENT || i >= UTIME) {
            if (!take_number(&digits, &value) || value > SANE)
                return false;
            if (i == PARENT)
                found = value;
            else
                sum += value;
        }
        if (!*at || *at == '\n')
            return false;
        at += strcspn(at, " \t\r\n");
    }
    if (found > INT32_MAX)
        return false;
    *parent = (pid_t)found;
    *ticks = sum;
    return true;
}

bool parse_run_delay(const char *text, double *seconds)
{
    uint64_t ran, waited; /* nanoseconds */
    if (!take_number(&text, &ran) || !take_number(&text, &waited))
        return false;
    *seconds = (double)waited * 1e-9;
    return true;
}

size_t parse_cpuinfo_clocks(const char *text, double *mhz, size_t room)
{
    size_t count = 0;
    while (*text && count < room) {
        const size_t length = line_length(text);
        const char *colon = memchr(text, ':', length);
        if (text_starts(text, "cpu MHz") && colon) {
            char field[FIELD_MAX];
            double value;
            colon++;
            const bool good = copy_trimmed(colon, (size_t)(text + length - colon), field) &&
                              number_double(field, &value) && value > 0 && value < 100000;
            mhz[count++] = good ? value : NAN;
        }
        text += length + (text[length] == '\n');
    }
    return count;
}

/* One field of a CSV line; *text moves past its comma. False at the end of the line. */
static bool take_field(const char **text, char out[FIELD_MAX])
{
    const size_t length = strcspn(*text, ",\n");
    const bool comma = (*text)[length] == ',';
    const bool fits = copy_trimmed(*text, length, out);
    *text += length + comma;
    return fits;
}

/* A number in [0, max], or NAN for what stands in brackets; false for anything else. */
static bool read_field(const char *field, double max, double *out)
{
    *out = NAN;
    if (field[0] == '[')
        return text_ends(field, "]");
    double value;
    if (!number_double(field, &value) || value < 0 || value > max)
        return false;
    *out = value;
    return true;
}

static bool read_bits(const char *field, uint64_t *out)
{
    *out = 0;
    if (field[0] == '[')
        return text_ends(field, "]");
    if (!text_starts(field, "0x") || strlen(field) > 18 || strlen(field) < 3 ||
        strspn(field + 2, "0123456789abcdefABCDEF") != strlen(field) - 2)
        return false;
    *out = strtoull(field + 2, NULL, 16);
    return true;
}

bool parse_nvidia_smi(const char *text, bool with_throttle, struct gpu_reading *out)
{
    out->count = 0;
    while (*text && out->count < QUIET_GPUS_MAX) {
        char field[FIELD_MAX];
        const char *end = text + line_length(text);
        struct gpu_device d = {0};
        if (!take_field(&text, field) || !read_field(field, 100, &d.use) ||
            !take_field(&text, field) || !read_field(field, CELSIUS_MAX, &d.celsius) ||
            !take_field(&text, field) || !read_field(field, 100000, &d.clock_mhz))
            return false;
        if (with_throttle && (!take_field(&text, field) || !read_bits(field, &d.throttle)))
            return false;
        if (text != end)
            return false;
        d.use /= 100;
        out->each[out->count++] = d;
        text += *text == '\n';
    }
    return out->count > 0;
}
