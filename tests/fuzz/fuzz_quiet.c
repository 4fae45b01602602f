/* Any bytes as what a thermometer's command, nvidia-smi, /proc or /sys say: read or refused, and
 * what is read is in range. The first byte chooses the reader. */
#include "judge/quiet/parse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void try_gpus(const char *text, bool with_throttle)
{
    struct gpu_reading r;
    if (!parse_nvidia_smi(text, with_throttle, &r))
        return;
    require(r.count >= 1 && r.count <= QUIET_GPUS_MAX);
    for (size_t i = 0; i < r.count; i++) {
        const struct gpu_device *d = &r.each[i];
        require(isnan(d->use) || (d->use >= 0 && d->use <= 1));
        require(isnan(d->celsius) || (d->celsius >= 0 && d->celsius <= 150));
        require(isnan(d->clock_mhz) || (d->clock_mhz >= 0 && d->clock_mhz <= 100000));
        require(with_throttle || d->throttle == 0);
    }
}

static void try_stat(const char *text)
{
    static struct cpu_times times;
    if (!parse_stat(text, &times))
        return;
    require(times.count <= QUIET_CPUS_MAX && times.whole.busy <= times.whole.all);
    for (size_t i = 0; i < times.count; i++)
        require(times.each[i].busy <= times.each[i].all);
}

static void try_clocks(const char *text)
{
    double mhz[16];
    const size_t count = parse_cpuinfo_clocks(text, mhz, 16);
    require(count <= 16);
    for (size_t i = 0; i < count; i++)
        require(isnan(mhz[i]) || (mhz[i] > 0 && mhz[i] < 100000));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    double x;
    uint64_t n;
    pid_t parent;
    if (size == 0)
        return 0;
    char *text = malloc(size); /* exactly as long: a byte too far is seen */
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] % 8) {
    case 0:
        require(!parse_celsius_line(text, &x) || parse_celsius_is_usable(x));
        break;
    case 1:
        try_gpus(text, true);
        break;
    case 2:
        try_gpus(text, false);
        break;
    case 3:
        try_stat(text);
        break;
    case 4:
        require(!parse_process(text, &parent, &n) || parent >= 0);
        break;
    case 5:
        try_clocks(text);
        break;
    case 6:
        require(!parse_load(text, &x) || (isfinite(x) && x >= 0));
        break;
    default:
        require(!parse_millidegrees(text, &x) || parse_celsius_is_usable(x));
        require(!parse_kilohertz(text, &x) || (x > 0 && x <= 100000));
        require(!parse_run_delay(text, &x) || (isfinite(x) && x >= 0));
        parse_count(text, &n);
    }
    free(text);
    return 0;
}
