/* Reading /proc, /sys and the paths of control groups. */
#include "engine/memory/system.h"

#include "base/number.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 << 10 };

bool system_read(const char *path, struct buffer *out)
{
    const char *root = getenv("MLXFAST_SYSTEM_FILES");
    struct buffer name = {0};
    buffer_printf(&name, "%s%s", root ? root : "", path);
    const int fd = open(name.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    buffer_free(&name);
    buffer_clear(out);
    if (fd < 0)
        return false;
    char piece[4096];
    ssize_t n;
    while (out->length < MOST && (n = read(fd, piece, sizeof piece)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0)
            buffer_append(out, piece, (size_t)n);
    }
    close(fd);
    return out->length > 0;
}

bool system_read_number(const char *path, uint64_t *out)
{
    struct buffer text = {0};
    bool ok = system_read(path, &text);
    if (ok) {
        text.data[strcspn(text.data, " \n")] = '\0';
        if (strcmp(text.data, "max") == 0)
            *out = UINT64_MAX;
        else
            ok = number_uint64(text.data, UINT64_MAX, out);
    }
    buffer_free(&text);
    return ok;
}

bool system_find_number(const char *text, const char *key, uint64_t *out)
{
    const size_t length = strlen(key);
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) != 0)
            continue;
        const char *digits = line + length + strspn(line + length, " \t");
        char number[24];
        const size_t n = strspn(digits, "0123456789");
        if (n == 0 || n >= sizeof number)
            return false;
        memcpy(number, digits, n);
        number[n] = '\0';
        return number_uint64(number, UINT64_MAX, out);
    }
    return false;
}

/* Is the controller one of the comma-separated names? */
static bool names_hold(const char *names, size_t length, const char *controller)
{
    const size_t wanted = strlen(controller);
    for (const char *end = names + length; names < end;) {
        const size_t n = strcspn(names, ",:");
        if (n == wanted && memcmp(names, controller, n) == 0)
            return true;
        names += n + 1;
    }
    return false;
}

bool system_cgroup_path(const char *controller, struct buffer *out)
{
    struct buffer text = {0};
    bool found = false;
    buffer_clear(out);
    system_read("/proc/self/cgroup", &text);
    /* "ID:NAMES:/path"; version 2 has no names. */
    for (char *line = text.length ? text.data : NULL; line && *line && !found;) {
        char *end = line + strcspn(line, "\n");
        char *next = *end ? end + 1 : end;
        *end = '\0';
        const char *names = strchr(line, ':');
        const char *path = names ? strchr(names + 1, ':') : NULL;
        if (path) {
            const size_t length = (size_t)(path - names - 1);
            found = controller ? names_hold(names + 1, length, controller) : length == 0;
            if (found)
                buffer_text(out, path + 1);
        }
        line = next;
    }
    buffer_free(&text);
    return found;
}

static void visit_upwards(const char *mount, const char *path, bool version2,
                          system_group_visit *visit, void *context)
{
    struct buffer folder = {0};
    buffer_text(&folder, mount);
    const size_t root = folder.length;
    if (strcmp(path, "/") != 0)
        buffer_text(&folder, path);
    for (;;) {
        visit(context, folder.data, version2);
        char *slash = folder.length > root ? strrchr(folder.data, '/') : NULL;
        if (slash == NULL || (size_t)(slash - folder.data) < root)
            break;
        *slash = '\0';
        folder.length = (size_t)(slash - folder.data);
    }
    buffer_free(&folder);
}

void system_visit_groups(const char *controller, system_group_visit *visit, void *context)
{
    struct buffer path = {0}, mount = {0};
    if (system_cgroup_path(NULL, &path)) {
        visit_upwards("/sys/fs/cgroup", path.data, true, visit, context);
        visit_upwards("/sys/fs/cgroup/unified", path.data, true, visit, context); /* beside 1 */
    }
    if (system_cgroup_path(controller, &path)) {
        buffer_printf(&mount, "/sys/fs/cgroup/%s", controller);
        visit_upwards(mount.data, path.data, false, visit, context);
    }
    buffer_free(&path);
    buffer_free(&mount);
}
