/* GPUs: what is there, its driver and toolkit, and whether this build has code for it. */
#include "arena/doctor/examine.h"

#include "base/number.h"

#include <stdlib.h>
#include <string.h>

enum { CARDS_MOST = 64, OLDEST = 80 /* that the backend is written for (docs/cuda.md) */ };

/* Cards on the bus, whatever their driver: the maker's number and a display or compute class. */
static size_t count_cards(const struct patient *p, const char *maker)
{
    const char **names;
    size_t cards = 0;
    const size_t count = machine_list(p->m, p->a, "/sys/bus/pci/devices", 4096, &names);
    for (size_t i = 0; i < count; i++) {
        const char *folder = arena_printf(p->a, "/sys/bus/pci/devices/%s", names[i]);
        const char *vendor = machine_line(p->m, p->a, arena_printf(p->a, "%s/vendor", folder));
        const char *class = machine_line(p->m, p->a, arena_printf(p->a, "%s/class", folder));
        cards += vendor && class && strcmp(vendor, maker) == 0 && strncmp(class, "0x03", 4) == 0;
    }
    return cards;
}

/* "release 12.4," of nvcc's text. NULL: no nvcc, or it says no such thing. */
static bool ask_toolkit(const struct patient *p, const char **version)
{
    struct buffer out = {0}, complaint = {0};
    const char *home = machine_variable(p->m, "CUDA_HOME");
    const char *nvcc = machine_program(p->m, p->a, "nvcc");
    const char *const places[] = {nvcc, home ? arena_printf(p->a, "%s/bin/nvcc", home) : NULL,
                                  "/usr/local/cuda/bin/nvcc"};
    enum asked how = ASKED_IN_VAIN;
    *version = NULL;
    for (size_t i = 0; i < 3 && how == ASKED_IN_VAIN; i++) {
        const char *const argv[] = {places[i], "--version", NULL};
        if (places[i])
            how = patient_ask(p, argv, 2, &out, &complaint);
    }
    const char *at = how == ASKED_WELL ? strstr(out.data, "release ") : NULL;
    if (at)
        *version = arena_strndup(p->a, at + 8, strcspn(at + 8, ",\n"));
    buffer_free(&out);
    buffer_free(&complaint);
    return how != ASKED_INTERRUPTED;
}

/* "9.0" as 90; false for anything else. */
static bool parse_capability(const char *text, int *out)
{
    double value;
    if (!number_double(text, &value) || value < 1 || value > 99)
        return false;
    *out = (int)(value * 10 + 0.5);
    return true;
}

/* Code for a capability runs on the same major one and an equal or higher minor one; the last one
 * is there in the form that the driver compiles for any later card. */
static bool has_code(const struct engine_facts *e, int capability)
{
    for (size_t i = 0; i < e->capability_count; i++)
        if (e->capabilities[i] <= capability &&
            (e->capabilities[i] / 10 == capability / 10 || i + 1 == e->capability_count))
            return true;
    return false;
}

struct cards {
    size_t count, without_code, too_old; /* of these no build has code */
    const char *text; /* "NVIDIA H200, compute capability 9.0" of the first, and how many */
    const char *driver;
};

/* Lines "name, driver, capability" of nvidia-smi. False: it is none. */
static bool parse_cards(const struct patient *p, const char *text, struct cards *out)
{
    *out = (struct cards){0};
    while (*text && out->count < CARDS_MOST) {
        const size_t n = strcspn(text, "\n");
        char *line = arena_strndup(p->a, text, n), *field[3] = {line};
        int fields = 1, capability;
        for (char *c = line; *c; c++)
            if (c[0] == ',' && c[1] == ' ' && fields < 3) {
                *c = '\0';
                field[fields++] = c + 2;
            }
        if (fields != 3 || !parse_capability(field[2], &capability))
            return false;
        if (out->count++ == 0) {
            out->text = arena_printf(p->a, "%s, compute capability %s", field[0], field[2]);
            out->driver = field[1];
        }
        out->too_old += capability < OLDEST;
        out->without_code += capability >= OLDEST && !has_code(&p->m->engine, capability);
        text += n + (text[n] == '\n');
    }
    if (out->count > 1)
        out->text = arena_printf(p->a, "%zu GPUs, the first %s", out->count, out->text);
    return out->count > 0;
}

static void report_cards(const struct patient *p, const struct cards *c, const char *toolkit)
{
    const bool cuda = p->m->engine.capability_count > 0;
    const char *nvcc = toolkit ? arena_printf(p->a, "nvcc %s", toolkit) : "no nvcc";
    if (!cuda)
        finding_add(p->f, "gpu", FINDING_OK, NULL,
                    "%s, driver %s, %s: not used, this build has the CPU engine alone", c->text,
                    c->driver, nvcc);
    else if (c->too_old == c->count)
        finding_add(p->f, "gpu", FINDING_OK, NULL,
                    "%s, driver %s, %s: not used, compute capability 8.0 is needed; the CPU engine "
                    "is used",
                    c->text, c->driver, nvcc);
    else if (c->without_code > 0 && toolkit)
        finding_add(p->f, "gpu", FINDING_FIX, "make CUDA=1",
                    "%s, driver %s, %s: this build has no code for %zu of %zu of them", c->text,
                    c->driver, nvcc, c->without_code, c->count);
    else if (c->without_code > 0)
        finding_add(p->f, "gpu", FINDING_FIX,
                    "install the CUDA toolkit so that nvcc is in PATH, then make CUDA=1",
                    "%s, driver %s, no nvcc: this build has no code for %zu of %zu of them",
                    c->text, c->driver, c->without_code, c->count);
    else
        finding_add(p->f, "gpu", FINDING_OK, NULL, "%s, driver %s, %s: this build has code for it",
                    c->text, c->driver, nvcc);
}

/* A card that cannot be asked. */
static void report_silence(const struct patient *p, size_t cards, const char *smi, const char *why)
{
    struct buffer text = {0};
    const bool driver = machine_read(p->m, "/proc/driver/nvidia/version", &text);
    const enum finding_state state = p->m->engine.capability_count > 0 ? FINDING_FIX : FINDING_WARN;
    buffer_free(&text);
    if (smi && why)
        finding_add(p->f, "gpu", state,
                    "restart the machine: a driver that was updated under a "
                    "running one answers nobody",
                    "nvidia-smi %s", why);
    else
        finding_add(p->f, "gpu", state,
                    driver ? "sudo apt-get install nvidia-smi"
                           : "sudo apt-get install nvidia-driver",
                    "%zu NVIDIA card%s, but no %s", cards, cards == 1 ? "" : "s",
                    driver ? "nvidia-smi to ask the driver by" : "driver");
}

bool examine_gpu(const struct patient *p)
{
    const char *smi = machine_program(p->m, p->a, "nvidia-smi");
    const size_t cards = count_cards(p, "0x10de");
    struct buffer out = {0}, complaint = {0};
    const char *toolkit = NULL;
    struct cards found;
    bool ok = true;
    if (!smi && cards == 0) {
        const size_t others = count_cards(p, "0x1002") + count_cards(p, "0x8086");
        finding_add(p->f, "gpu", FINDING_OK, NULL,
                    others ? "none that is used (no NVIDIA card), the "
                             "CPU engine is used"
                           : "none, the CPU engine is used");
        return true;
    }
    enum asked how = ASKED_IN_VAIN;
    if (smi) {
        const char *const argv[] = {smi, "--query-gpu=name,driver_version,compute_cap",
                                    "--format=csv,noheader", NULL};
        how = patient_ask(p, argv, 3, &out, &complaint);
        ok = how != ASKED_INTERRUPTED && ask_toolkit(p, &toolkit);
    }
    if (ok && how == ASKED_WELL && parse_cards(p, out.data, &found))
        report_cards(p, &found, toolkit);
    else if (ok && cards == 0 && how != ASKED_WELL && !p->m->engine.capability_count)
        finding_add(p->f, "gpu", FINDING_OK, NULL,
                    "none (nvidia-smi is here and finds none), the CPU engine is used");
    else if (ok)
        report_silence(p, cards, smi,
                       !smi                ? NULL
                       : how == ASKED_WELL ? "says nothing that can be read"
                       /* It complains on stdout. */
                       : complaint.length == 0 && out.length > 0
                           ? arena_strndup(p->a, out.data, strcspn(out.data, "\n"))
                           : asked_text(p, how, &complaint));
    buffer_free(&out);
    buffer_free(&complaint);
    return ok;
}
