/* See thermometer.h. */
#include "judge/quiet/thermometer.h"

#include "base/number.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COMMAND_SECONDS = 5, COMMAND_BYTES = 4096 };

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void trim_line(struct buffer *text)
{
    text->length = strcspn(text->data, "\n");
    text->data[text->length] = '\0';
}

static bool is_one_of(const char *word, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

static void add_file(struct thermometer *t, const struct buffer *path)
{
    if (t->file_count < SENSORS_MAX &&
        text_copy(t->files[t->file_count], sizeof t->files[0], path->data))
        t->file_count++;
}

/* Every entry of a folder below the root, in the order of its name. */
struct entries {
    char names[SENSORS_MAX][48];
    size_t count;
};
static void list(const struct quiet_system *s, const char *folder, const char *prefix,
                 const char *suffix, struct entries *out)
{
    struct buffer path = {0};
    buffer_printf(&path, "%s%s", s->root, folder);
    DIR *d = opendir(path.data);
    const struct dirent *entry;
    out->count = 0;
    while (d && out->count < SENSORS_MAX && (entry = readdir(d)))
        if (text_starts(entry->d_name, prefix) && text_ends(entry->d_name, suffix) &&
            text_copy(out->names[out->count], sizeof out->names[0], entry->d_name))
            out->count++;
    if (d)
        closedir(d);
    qsort(out->names, out->count, sizeof out->names[0], by_name);
    buffer_free(&path);
}

/* All inputs of every chip of that name: a machine with two sockets has two. */
static bool find_chip(struct thermometer *t, const char *chip)
{
    struct entries chips, inputs;
    struct buffer path = {0}, text = {0};
    list(t->system, "/sys/class/hwmon", "hwmon", "", &chips);
    for (size_t i = 0; i < chips.count; i++) {
        buffer_clear(&path);
        buffer_printf(&path, "/sys/class/hwmon/%s/name", chips.names[i]);
        if (!quiet_system_read(t->system, path.data, &text))
            continue;
        trim_line(&text);
        if (strcmp(text.data, chip) != 0)
            continue;
        buffer_clear(&path);
        buffer_printf(&path, "/sys/class/hwmon/%s", chips.names[i]);
        list(t->system, path.data, "temp", "_input", &inputs);
        for (size_t j = 0; j < inputs.count; j++) {
            buffer_clear(&path);
            buffer_printf(&path, "/sys/class/hwmon/%s/%s", chips.names[i], inputs.names[j]);
            add_file(t, &path);
        }
    }
    buffer_free(&path);
    buffer_free(&text);
    return t->file_count > 0;
}

static bool find_zones(struct thermometer *t)
{
    static const char *const types[] = {"x86_pkg_temp", "cpu-thermal", "cpu_thermal",
                                        "soc-thermal",  "soc_thermal", NULL};
    struct entries zones;
    struct buffer path = {0}, text = {0};
    list(t->system, "/sys/class/thermal", "thermal_zone", "", &zones);
    for (size_t i = 0; i < zones.count; i++) {
        buffer_clear(&path);
        buffer_printf(&path, "/sys/class/thermal/%s/type", zones.names[i]);
        if (!quiet_system_read(t->system, path.data, &text))
            continue;
        trim_line(&text);
        if (!is_one_of(text.data, types))
            continue;
        if (t->file_count == 0) {
            text_copy(t->name, sizeof t->name, "thermal ");
            text_copy(t->name + 8, sizeof t->name - 8, text.data);
        }
        buffer_clear(&path);
        buffer_printf(&path, "/sys/class/thermal/%s/temp", zones.names[i]);
        add_file(t, &path);
    }
    buffer_free(&path);
    buffer_free(&text);
    return t->file_count > 0;
}

static bool find_files(struct thermometer *t)
{
    static const char *const chips[] = {"k10temp",     "coretemp",    "zenpower",
                                        "cpu_thermal", "cpu-thermal", "scpi_sensors"};
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (find_chip(t, chips[i])) {
            text_copy(t->name, sizeof t->name, "hwmon ");
            text_copy(t->name + 6, sizeof t->name - 6, chips[i]);
            return true;
        }
    return find_zones(t);
}

void thermometer_open(struct thermometer *t, const struct quiet_system *s, const struct gpu *gpu,
                      enum quiet_device device)
{
    static const char variable[] = "MLXFAST_GPU_TEMP_CMD";
    double celsius;
    *t = (struct thermometer){.system = s, .gpu = gpu};
    t->command = s->variable(s->context, variable);
    if (t->command && *t->command) {
        t->kind = THERMOMETER_COMMAND;
        text_copy(t->name, sizeof t->name, variable);
        return;
    }
    if (device == QUIET_GPU && gpu_name(gpu)) {
        t->kind = THERMOMETER_GPU;
        text_copy(t->name, sizeof t->name, gpu_name(gpu));
    } else if (device == QUIET_CPU && find_files(t)) {
        t->kind = THERMOMETER_FILES;
    }
    /* A sensor that gives nothing is no reader; a later failure is the gate's matter. */
    if (t->kind != THERMOMETER_NONE && !thermometer_read(t, &celsius))
        *t = (struct thermometer){.system = s, .gpu = gpu};
}

static bool ask_command(const struct thermometer *t, double *celsius)
{
    const struct quiet_system *s = t->system;
    struct buffer text = {0};
    const bool ok = s->command(s->context, t->command, COMMAND_SECONDS, COMMAND_BYTES, &text) &&
                    parse_celsius_line(text.data, celsius);
    buffer_free(&text);
    return ok;
}

static bool ask_gpu(const struct thermometer *t, double *celsius)
{
    struct gpu_reading r;
    if (!gpu_read(t->gpu, &r))
        return false;
    *celsius = gpu_celsius(&r);
    return parse_celsius_is_usable(*celsius);
}

static bool ask_files(const struct thermometer *t, double *celsius)
{
    struct buffer text = {0};
    double most = NAN;
    for (size_t i = 0; i < t->file_count; i++) {
        double value;
        if (quiet_system_read(t->system, t->files[i], &text) &&
            parse_millidegrees(text.data, &value))
            most = fmax(most, value);
    }
    buffer_free(&text);
    if (isnan(most))
        return false;
    *celsius = most;
    return true;
}

bool thermometer_read(const struct thermometer *t, double *celsius)
{
    switch (t->kind) {
    case THERMOMETER_COMMAND:
        return ask_command(t, celsius);
    case THERMOMETER_GPU:
        return ask_gpu(t, celsius);
    case THERMOMETER_FILES:
        return ask_files(t, celsius);
    case THERMOMETER_NONE:
        break;
    }
    return false;
}
