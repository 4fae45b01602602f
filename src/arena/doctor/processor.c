/* Processors: kernels, how many, their siblings, clocks, power, the timer. */
#include "arena/doctor/examine.h"

#include "base/number.h"

#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

enum { CPUS_MOST = 4096 };
#define CPU_FOLDER "/sys/devices/system/cpu"

static const char *model_name(const struct patient *p)
{
    struct buffer text = {0};
    struct utsname u;
    const char *name = NULL;
    if (machine_read(p->m, "/proc/cpuinfo", &text)) {
        name = text_value(p->a, text.data, "model name");
        if (!name)
            name = text_value(p->a, text.data, "Model"); /* boards with ARM */
    }
    buffer_free(&text);
    return name ? name : uname(&u) == 0 ? arena_strdup(p->a, u.machine) : "unknown processor";
}

void examine_kernels(const struct patient *p)
{
    static const char *const variables[] = {"MLXFAST_CPU", "BENCH_WORKER_CPU"};
    const struct engine_facts *e = &p->m->engine;
    const char *model = model_name(p), *named = NULL;
    for (size_t i = 0; !named && i < 2; i++)
        named = machine_variable(p->m, variables[i]) ? variables[i] : NULL;
    const char *unset = named ? arena_printf(p->a, "unset %s", named) : NULL;
    if (e->kernels_fault.name[0])
        finding_add(p->f, "cpu", FINDING_FIX, unset, "%s: %s", model, e->kernels_fault.message);
    else if (strcmp(e->kernels, e->best_kernels) != 0)
        finding_add(p->f, "cpu", FINDING_WARN, unset,
                    "%s: the engine takes its %s kernels, because %s says so; it has %s ones",
                    model, e->kernels, named ? named : "a variable", e->best_kernels);
    else if (strcmp(e->kernels, "portable") == 0)
        finding_add(p->f, "cpu", FINDING_WARN,
                    "on a virtual machine, give it its host's processor (QEMU: -cpu host)",
                    "%s: without AVX2, FMA and F16C the engine takes its portable kernels, the "
                    "slowest",
                    model);
    else
        finding_add(p->f, "cpu", FINDING_OK, NULL, "%s: the engine takes its %s kernels", model,
                    e->kernels);
}

/* "0-3,8" or "7": how many. */
static size_t count_of_list(const char *text)
{
    size_t count = 0;
    while (text && *text) {
        char one[32];
        size_t n = strcspn(text, ",");
        if (n > 0 && n < sizeof one) {
            int64_t from, to;
            memcpy(one, text, n);
            one[n] = '\0';
            char *dash = strchr(one, '-');
            if (dash)
                *dash = '\0';
            if (number_int64(one, 0, 1 << 20, &from) &&
                (!dash || number_int64(dash + 1, from, 1 << 20, &to)))
                count += dash ? (size_t)(to - from) + 1 : 1;
        }
        text += n + (text[n] == ',');
    }
    return count;
}

void examine_processors(const struct patient *p)
{
    static const char *const variables[] = {"MLXFAST_THREADS", "BENCH_WORKER_THREADS"};
    const struct engine_facts *e = &p->m->engine;
    const char *list = machine_line(p->m, p->a, CPU_FOLDER "/online");
    const size_t online = count_of_list(list);
    const int all = online > 0 ? (int)online : e->processors_in_mask;
    int64_t asked = 0;
    const char *named = NULL;
    for (size_t i = 0; !named && i < 2; i++)
        named = machine_variable(p->m, variables[i]) ? variables[i] : NULL;
    if (named && !number_int64(machine_variable(p->m, named), 0, 1024, &asked)) {
        finding_add(p->f, "processors", FINDING_FIX, arena_printf(p->a, "unset %s", named),
                    "%s is no number of threads from 0 to 1024: \"%s\"", named,
                    machine_variable(p->m, named));
        return;
    }
    if (asked > 0 && asked != e->processors)
        finding_add(p->f, "processors", FINDING_WARN, arena_printf(p->a, "unset %s", named),
                    "%d may be used, and %s asks for %d threads", e->processors, named, (int)asked);
    else if (e->processors < e->processors_in_mask)
        finding_add(p->f, "processors", FINDING_WARN,
                    "raise the control group's cpu.max (docker run --cpus, CPUQuota= of systemd)",
                    "%d of %d may be used: a control group's quota pays for no more", e->processors,
                    all);
    else if (e->processors_in_mask < all)
        finding_add(p->f, "processors", FINDING_WARN, arena_printf(p->a, "taskset -pc %s $$", list),
                    "%d of %d may be used: the affinity mask of this shell leaves the others out",
                    e->processors_in_mask, all);
    else
        finding_add(p->f, "processors", FINDING_OK, NULL, "%d may be used, of %d", e->processors,
                    all);
}

void examine_siblings(const struct patient *p)
{
    size_t cpus = 0, shared = 0;
    for (size_t i = 0; i < CPUS_MOST; i++) {
        char path[96];
        snprintf(path, sizeof path, CPU_FOLDER "/cpu%zu/topology/thread_siblings_list", i);
        const char *list = machine_line(p->m, p->a, path);
        if (!list && i >= cpus + 64) /* numbers of processors that are off may be left out */
            break;
        cpus += list != NULL;
        shared += list && count_of_list(list) > 1;
    }
    const char *control = machine_line(p->m, p->a, CPU_FOLDER "/smt/control");
    const bool can = control && strcmp(control, "on") == 0;
    if (shared > 0)
        finding_add(p->f, "smt", FINDING_WARN,
                    can ? "echo off | sudo tee " CPU_FOLDER "/smt/control"
                        : "turn SMT (hyper-threading) off in the firmware, or for this virtual "
                          "machine on its host",
                    "%zu of %zu processors share a core with another one: what runs on one slows "
                    "the other",
                    shared, cpus);
    else if (cpus > 0)
        finding_add(p->f, "smt", FINDING_OK, NULL, "every processor is a core of its own");
    else
        finding_add(p->f, "smt", FINDING_OK, NULL, "the machine does not say which share a core");
}

void examine_governor(const struct patient *p)
{
    size_t cpus = 0, slow = 0, limited = 0;
    const char *first = NULL;
    for (size_t i = 0, gap = 0; i < CPUS_MOST && gap < 64; i++) {
        char path[96];
        uint64_t most, allowed;
        snprintf(path, sizeof path, CPU_FOLDER "/cpu%zu/cpufreq/scaling_governor", i);
        const char *governor = machine_line(p->m, p->a, path);
        gap = governor ? 0 : gap + 1;
        if (!governor)
            continue;
        cpus++;
        if (strcmp(governor, "performance") != 0) {
            slow++;
            first = first ? first : governor;
        }
        snprintf(path, sizeof path, CPU_FOLDER "/cpu%zu/cpufreq/scaling_max_freq", i);
        const bool known = machine_number(p->m, path, &allowed);
        snprintf(path, sizeof path, CPU_FOLDER "/cpu%zu/cpufreq/cpuinfo_max_freq", i);
        limited += known && machine_number(p->m, path, &most) && allowed < most;
    }
    if (slow > 0)
        finding_add(p->f, "governor", FINDING_WARN,
                    "echo performance | sudo tee " CPU_FOLDER "/cpu*/cpufreq/scaling_governor",
                    "%zu of %zu processors are clocked by \"%s\": the first tokens of a phase are "
                    "slow",
                    slow, cpus, first);
    else if (limited > 0)
        finding_add(p->f, "governor", FINDING_WARN,
                    "for c in " CPU_FOLDER "/cpu*/cpufreq; do sudo cp $c/cpuinfo_max_freq "
                    "$c/scaling_max_freq; done",
                    "performance, but %zu of %zu processors may not reach their highest clock",
                    limited, cpus);
    else if (cpus > 0)
        finding_add(p->f, "governor", FINDING_OK, NULL, "performance");
    else
        finding_add(p->f, "governor", FINDING_OK, NULL,
                    "none: firmware or the host chooses the clock");
}

void examine_power(const struct patient *p)
{
    const char **names;
    bool mains = false, plugged = false;
    const size_t count = machine_list(p->m, p->a, "/sys/class/power_supply", 64, &names);
    for (size_t i = 0; i < count; i++) {
        const char *folder = arena_printf(p->a, "/sys/class/power_supply/%s", names[i]);
        const char *type = machine_line(p->m, p->a, arena_printf(p->a, "%s/type", folder));
        uint64_t online = 0;
        if (!type || strcmp(type, "Mains") != 0)
            continue;
        mains = true;
        plugged |= machine_number(p->m, arena_printf(p->a, "%s/online", folder), &online) && online;
    }
    if (mains && !plugged)
        finding_add(p->f, "power", FINDING_WARN, "plug it in", "on battery: the clock is kept low");
    else
        finding_add(p->f, "power", FINDING_OK, NULL, "mains");
}

void examine_timer(const struct patient *p)
{
    static const char folder[] = "/sys/devices/system/clocksource/clocksource0";
    static const char *const slow[] = {"hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"};
    const char *source =
        machine_line(p->m, p->a, arena_printf(p->a, "%s/current_clocksource", folder));
    const char *others =
        machine_line(p->m, p->a, arena_printf(p->a, "%s/available_clocksource", folder));
    bool is_slow = false;
    for (size_t i = 0; source && i < sizeof slow / sizeof *slow; i++)
        is_slow |= strcmp(source, slow[i]) == 0;
    if (!source)
        finding_add(p->f, "timer", FINDING_OK, NULL, "the machine does not say how it keeps time");
    else if (!is_slow)
        finding_add(p->f, "timer", FINDING_OK, NULL, "%s", source);
    else
        finding_add(p->f, "timer", FINDING_WARN,
                    others && strstr(others, "tsc")
                        ? arena_printf(p->a, "echo tsc | sudo tee %s/current_clocksource", folder)
                        : "boot with tsc=reliable if the processor's counter is sound: dmesg | "
                          "grep -i tsc",
                    "%s: each look at the clock costs a microsecond and more", source);
}
