#include "judge/ranked/machine.h"

#include "base/buffer.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The rest of the first line of a file that begins with the key (""): any line), without spaces at
 * its ends; null where there is none, or it is no text. */
static json_t *line_of(const char *path, const char *key)
{
    char line[512];
    json_t *found = NULL;
    FILE *f = fopen(path, "re");
    while (f != NULL && found == NULL && fgets(line, sizeof line, f)) {
        if (!text_starts(line, key))
            continue;
        const char *value = line + strlen(key);
        value += strspn(value, " \t:");
        size_t n = strlen(value);
        while (n > 0 && strchr(" \t\n", value[n - 1]))
            n--;
        found = json_stringn(value, n); /* NULL: not UTF-8 */
    }
    if (f != NULL)
        fclose(f);
    return found != NULL ? found : json_null();
}

static json_t *gpus(void)
{
    json_t *list = json_array();
    glob_t g = {0};
    if (glob("/proc/driver/nvidia/gpus/*/information", 0, NULL, &g) == 0)
        for (size_t i = 0; i < g.gl_pathc; i++)
            json_array_append_new(list, line_of(g.gl_pathv[i], "Model"));
    globfree(&g);
    return list;
}

json_t *machine_describe(void)
{
    struct utsname system;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    json_t *o = json_object();
    json_object_set_new(o, "processor", line_of("/proc/cpuinfo", "model name"));
    json_object_set_new(o, "processors", json_integer(sysconf(_SC_NPROCESSORS_ONLN)));
    json_object_set_new(o, "memory_bytes",
                        pages > 0 && page > 0 ? json_integer((json_int_t)pages * page)
                                              : json_null());
    json_object_set_new(o, "kernel",
                        uname(&system) == 0 ? json_sprintf("%s %s", system.sysname, system.release)
                                            : json_null());
    json_object_set_new(o, "governor",
                        line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", ""));
    json_object_set_new(o, "gpus", gpus());
    return o;
}
