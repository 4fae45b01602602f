/* NVML by its C interface, the few calls that are needed; the library is the driver's own and is
 * loaded where there is one. */
#include "judge/quiet/system.h"

#include "base/arena.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, TEMPERATURE_GPU = 0, CLOCK_SM = 1 };

struct utilization {
    unsigned gpu, memory; /* percent */
};
typedef void *device;

struct nvml {
    void *library;
    int (*shutdown)(void);
    int (*utilization)(device, struct utilization *);
    int (*temperature)(device, int, unsigned *);
    int (*clock)(device, int, unsigned *);
    int (*throttle)(device, unsigned long long *); /* may be NULL */
    size_t count;
    device devices[QUIET_GPUS_MAX];
};

/* A function pointer out of dlsym's object pointer, as POSIX has it. */
static bool find(void *library, const char *name, void *function)
{
    void *const symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static bool start(struct nvml *n)
{
    int (*init)(void), (*count)(unsigned *), (*handle)(unsigned, device *);
    unsigned found = 0;
    if (!find(n->library, "nvmlInit_v2", &init) ||
        !find(n->library, "nvmlShutdown", &n->shutdown) ||
        !find(n->library, "nvmlDeviceGetCount_v2", &count) ||
        !find(n->library, "nvmlDeviceGetHandleByIndex_v2", &handle) ||
        !find(n->library, "nvmlDeviceGetUtilizationRates", &n->utilization) ||
        !find(n->library, "nvmlDeviceGetTemperature", &n->temperature) ||
        !find(n->library, "nvmlDeviceGetClockInfo", &n->clock))
        return false;
    /* The older name; the newer one came when "throttle" became "event". */
    if (!find(n->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->throttle))
        find(n->library, "nvmlDeviceGetCurrentClocksEventReasons", &n->throttle);
    if (init() != SUCCESS)
        return false;
    if (count(&found) == SUCCESS)
        for (unsigned i = 0; i < found && n->count < QUIET_GPUS_MAX; i++)
            n->count += handle(i, &n->devices[n->count]) == SUCCESS;
    if (n->count == 0)
        n->shutdown();
    return n->count > 0;
}

struct nvml *nvml_open(void)
{
    struct nvml *n = memory_alloc(sizeof *n);
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (n->library && start(n))
        return n;
    if (n->library)
        dlclose(n->library);
    free(n);
    return NULL;
}

bool nvml_read(const struct nvml *n, struct gpu_reading *out)
{
    out->count = n->count;
    for (size_t i = 0; i < n->count; i++) {
        struct gpu_device *d = &out->each[i];
        struct utilization use;
        unsigned value;
        unsigned long long bits;
        *d = (struct gpu_device){NAN, NAN, NAN, 0};
        if (n->utilization(n->devices[i], &use) == SUCCESS && use.gpu <= 100)
            d->use = use.gpu / 100.0;
        if (n->temperature(n->devices[i], TEMPERATURE_GPU, &value) == SUCCESS &&
            parse_celsius_is_usable(value))
            d->celsius = value;
        if (n->clock(n->devices[i], CLOCK_SM, &value) == SUCCESS)
            d->clock_mhz = value;
        if (n->throttle && n->throttle(n->devices[i], &bits) == SUCCESS)
            d->throttle = bits;
    }
    return n->count > 0;
}

void nvml_close(struct nvml *n)
{
    if (!n)
        return;
    n->shutdown();
    dlclose(n->library);
    free(n);
}
