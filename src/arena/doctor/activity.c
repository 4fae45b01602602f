/* What else happens on this machine: other processes at work, time stolen by a host, heat. */
#include "arena/doctor/examine.h"

#include "base/file.h"
#include "base/json.h"
#include "base/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a ranked run waits for (docs/quiet.md), and what is worth a word here. */
static const double others_most = 0.25, load_most = 2.0, stolen_most = 0.01;
static const double window_seconds = 0.5;
enum { TOP = 3 };

struct look {
    double at;
    bool known;
    struct machine_ticks ticks;
    struct process_table processes;
};

static void look(const struct patient *p, struct look *out)
{
    out->at = p->m->now(p->m->context);
    out->known = machine_ticks_read(p->m, &out->ticks);
    processes_read(p->m, p->a, &out->processes);
}

static uint64_t rise(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

/* ---- load ---- */

struct busy {
    const struct process *process;
    uint64_t ticks;
};

static int by_ticks(const void *a, const void *b)
{
    const struct busy *x = a, *y = b;
    if (x->ticks != y->ticks)
        return x->ticks < y->ticks ? 1 : -1;
    return x->process->pid < y->process->pid ? -1 : 1;
}

/* Ticks of a process between two looks, those of children that it saw end among them. Of a child
 * that was there at the first look, only what came after it. */
static uint64_t ticks_between(const struct process *now, const struct look *from,
                              const uint64_t *of_ended)
{
    const struct process *then = process_find(&from->processes, now->pid);
    if (!then || then->started != now->started)
        return now->all_ticks;
    return rise(then->all_ticks + of_ended[then - from->processes.items], now->all_ticks);
}

/* By process of the first look: what its children that have ended since had worked until then. */
static const uint64_t *sum_ended(const struct patient *p, const struct look *from,
                                 const struct look *to)
{
    uint64_t *sums = arena_array(p->a, from->processes.count + 1, sizeof *sums);
    for (size_t i = 0; i < from->processes.count; i++) {
        const struct process *then = &from->processes.items[i];
        const struct process *now = process_find(&to->processes, then->pid);
        const struct process *parent = process_find(&from->processes, then->parent);
        if (parent && (!now || now->started != then->started))
            sums[parent - from->processes.items] += then->all_ticks;
    }
    return sums;
}

/* "cc1 (pid 12) 98 %, ..."; "" where nobody worked. */
static const char *name_busiest(const struct patient *p, const struct look *from,
                                const struct look *to)
{
    const double window = (to->at - from->at) * p->m->ticks;
    const uint64_t *of_ended = sum_ended(p, from, to);
    struct busy *all = arena_array(p->a, to->processes.count + 1, sizeof *all);
    struct buffer text = {0};
    size_t count = 0;
    for (size_t i = 0; i < to->processes.count; i++) {
        const struct process *now = &to->processes.items[i];
        const uint64_t ticks = ticks_between(now, from, of_ended);
        if (now->pid != p->m->self && ticks > 0)
            all[count++] = (struct busy){now, ticks};
    }
    qsort(all, count, sizeof *all, by_ticks);
    for (size_t i = 0; i < count && i < TOP; i++) {
        const double percent = 100 * (double)all[i].ticks / window;
        if (percent < 1)
            break;
        buffer_printf(&text, "%s%s (pid %d) %.0f %%", i ? ", " : "", all[i].process->name,
                      (int)all[i].process->pid, percent);
    }
    const char *names = arena_strdup(p->a, text.data ? text.data : "");
    buffer_free(&text);
    return names;
}

static uint64_t own_ticks(const struct patient *p, const struct look *l)
{
    const struct process *self = process_find(&l->processes, p->m->self);
    return self ? self->all_ticks : 0;
}

static void report_load(const struct patient *p, const struct look *from, const struct look *to)
{
    const char *line = machine_line(p->m, p->a, "/proc/loadavg");
    double load = NAN;
    if (line && !number_double(arena_strndup(p->a, line, strcspn(line, " ")), &load))
        load = NAN;
    const double window = (to->at - from->at) * p->m->ticks;
    if (!from->known || !to->known || !(window > 0) || isnan(load)) {
        finding_add(p->f, "load", FINDING_WARN, NULL,
                    "/proc does not say what else runs here, and a ranked run cannot tell either");
        return;
    }
    const double work = (double)rise(from->ticks.work, to->ticks.work) -
                        (double)rise(own_ticks(p, from), own_ticks(p, to));
    const double others = fmax(0, work / window);
    const char *names = name_busiest(p, from, to);
    if (others >= others_most)
        finding_add(p->f, "load", FINDING_WARN,
                    names[0] ? "wait until they end, or end them" : "wait until it is over",
                    "others keep %.2f processors at work%s%s; 1-minute load %.2f", others,
                    names[0] ? ": " : "", names, load);
    else if (load >= load_most)
        finding_add(p->f, "load", FINDING_WARN, "wait a minute or two",
                    "quiet now (others: %.2f processors), but the 1-minute load is still %.2f; a "
                    "ranked run waits until it is below %.0f",
                    others, load, load_most);
    else
        finding_add(p->f, "load", FINDING_OK, NULL,
                    "others: %.2f processors%s%s%s; 1-minute load "
                    "%.2f",
                    others, names[0] ? " (" : "", names, names[0] ? ")" : "", load);
}

/* ---- virtual machine ---- */

static bool holds_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = text; at && (at = strstr(at, word)); at += n)
        if ((at == text || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0'))
            return true;
    return false;
}

/* NULL: none that shows. */
static const char *name_hypervisor(const struct patient *p)
{
    static const char *const products[] = {"KVM",
                                           "QEMU",
                                           "VMware",
                                           "VirtualBox",
                                           "Virtual Machine",
                                           "Google Compute Engine",
                                           "Amazon EC2",
                                           "OpenStack",
                                           "Droplet",
                                           "BHYVE"};
    const char *product = machine_line(p->m, p->a, "/sys/class/dmi/id/product_name");
    const char *vendor = machine_line(p->m, p->a, "/sys/class/dmi/id/sys_vendor");
    const char *xen = machine_line(p->m, p->a, "/sys/hypervisor/type");
    const char *arm = machine_line(p->m, p->a, "/proc/device-tree/hypervisor/compatible");
    struct buffer text = {0};
    const char *flags = NULL;
    if (machine_read(p->m, "/proc/cpuinfo", &text))
        flags = text_value(p->a, text.data, "flags");
    buffer_free(&text);
    if (flags && holds_word(flags, "hypervisor"))
        return product ? product : xen ? xen : "a virtual machine";
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        if ((product && strstr(product, products[i])) || (vendor && strstr(vendor, products[i])))
            return product ? product : vendor;
    return xen ? xen : arm;
}

static void report_virtual(const struct patient *p, const struct look *from, const struct look *to)
{
    static const char fix[] = "measure on a machine of your own, or with processors that the host "
                              "gives to nobody else";
    const char *name = name_hypervisor(p);
    const double all = (double)rise(from->ticks.all, to->ticks.all);
    const double now = all > 0 ? (double)rise(from->ticks.stolen, to->ticks.stolen) / all : 0;
    const double ever = to->ticks.all > 0 ? (double)to->ticks.stolen / (double)to->ticks.all : 0;
    if (now >= stolen_most)
        finding_add(p->f, "virtual-machine", FINDING_WARN, fix,
                    "%s: its host takes %.1f %% of the processors' time away",
                    name ? name : "a virtual machine", 100 * now);
    else if (ever >= stolen_most)
        finding_add(
            p->f, "virtual-machine", FINDING_WARN, fix,
            "%s: its host took %.1f %% of the processors' time away since the start, nothing "
            "now",
            name ? name : "a virtual machine", 100 * ever);
    else if (name)
        finding_add(p->f, "virtual-machine", FINDING_OK, NULL,
                    "%s: its host takes no time away now, %.2f %% since the start", name,
                    100 * ever);
    else
        finding_add(p->f, "virtual-machine", FINDING_OK, NULL, "none that shows");
}

/* ---- heat ---- */

/* What could give a reader: the module of the processor's own sensor, on a machine of its own. */
static const char *mend_reader(const struct patient *p)
{
    struct buffer text = {0};
    const char *vendor = NULL;
    if (machine_read(p->m, "/proc/cpuinfo", &text))
        vendor = text_value(p->a, text.data, "vendor_id");
    buffer_free(&text);
    if (!name_hypervisor(p) && vendor && strcmp(vendor, "AuthenticAMD") == 0)
        return "sudo modprobe k10temp";
    if (!name_hypervisor(p) && vendor && strcmp(vendor, "GenuineIntel") == 0)
        return "sudo modprobe coretemp";
    return "export MLXFAST_GPU_TEMP_CMD='a command that prints degrees Celsius'";
}

/* Intel counts how often a package had to slow down. */
static uint64_t throttled(const struct patient *p)
{
    uint64_t most = 0;
    const char **names;
    const size_t count = machine_list(p->m, p->a, "/sys/devices/system/cpu", 4096 + 64, &names);
    for (size_t i = 0; i < count; i++) {
        uint64_t n;
        if (strncmp(names[i], "cpu", 3) == 0 &&
            machine_number(p->m,
                           arena_printf(p->a,
                                        "/sys/devices/system/cpu/%s/thermal_throttle/"
                                        "package_throttle_count",
                                        names[i]),
                           &n) &&
            n > most)
            most = n;
    }
    return most;
}

/* The judge's own word, as `benchd quiet --json` gives it. False: it is not that. */
static bool report_judged_heat(const struct patient *p, const struct buffer *answer)
{
    json_t *o =
        json_parse_strict(answer->data, answer->length, JSON_DEPTH_DEFAULT, "benchd quiet", NULL);
    const json_t *t = json_object_get(o, "temperature");
    const json_t *reader = json_object_get(t, "reader"), *celsius = json_object_get(t, "celsius");
    const double limit = json_number_value(json_object_get(t, "limit"));
    const uint64_t times = throttled(p);
    const bool ok = json_is_object(t) && limit > 0;
    if (ok && !json_is_string(reader))
        finding_add(
            p->f, "thermal", FINDING_WARN, mend_reader(p),
            "no temperature can be read: local runs are not told that the machine is hot, and a "
            "ranked run is refused (TEMPERATURE-READER-MISSING)");
    else if (ok && !json_is_number(celsius))
        finding_add(p->f, "thermal", FINDING_WARN, "look at what the reader prints",
                    "%s gives no usable temperature", json_string_value(reader));
    else if (ok && json_number_value(celsius) > limit)
        finding_add(p->f, "thermal", FINDING_WARN, "let it cool down, or cool it better",
                    "%.1f C by %s: a ranked run waits for %.0f C", json_number_value(celsius),
                    json_string_value(reader), limit);
    else if (ok && times > 0)
        finding_add(p->f, "thermal", FINDING_WARN, "cool it better",
                    "%.1f C by %s, but the processor had to slow down %llu times since the start",
                    json_number_value(celsius), json_string_value(reader),
                    (unsigned long long)times);
    else if (ok)
        finding_add(p->f, "thermal", FINDING_OK, NULL, "%.1f C by %s (%.0f C at most)",
                    json_number_value(celsius), json_string_value(reader), limit);
    json_decref(o);
    return ok;
}

bool examine_activity(const struct patient *p)
{
    const char *judge = path_join(p->a, p->m->build, "benchd");
    const char *const argv[] = {judge, "quiet", "--json", NULL};
    struct buffer answer = {0}, complaint = {0};
    struct look from, to;
    look(p, &from);
    const enum asked how = patient_ask(p, argv, 4, &answer, &complaint);
    bool ok = how != ASKED_INTERRUPTED;
    if (ok && p->m->now(p->m->context) - from.at < window_seconds)
        ok = p->m->sleep(p->m->context, window_seconds);
    if (ok) {
        look(p, &to);
        report_virtual(p, &from, &to);
        report_load(p, &from, &to);
        /* Status 1 is its word for a machine that is not quiet. */
        if ((how != ASKED_WELL && how != ASKED_FAILED) || !report_judged_heat(p, &answer))
            finding_add(p->f, "thermal", FINDING_WARN, NULL,
                        "not known: `%s quiet`, which reads it, %s", judge,
                        asked_text(p, how, &complaint));
    }
    buffer_free(&answer);
    buffer_free(&complaint);
    return ok;
}
