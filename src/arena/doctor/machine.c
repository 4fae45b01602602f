/* Reading a machine, made up or real. */
#include "arena/doctor/machine.h"

#include "base/file.h"
#include "base/number.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MOST = 1 << 20 };

bool machine_read(const struct machine *m, const char *path, struct buffer *out)
{
    struct buffer name = {0};
    char piece[4096];
    ssize_t n = -1;
    buffer_printf(&name, "%s%s", m->root, path);
    const int fd = open(name.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    buffer_free(&name);
    buffer_clear(out);
    buffer_text(out, "");
    while (fd >= 0 && out->length < FILE_BYTES_MOST && (n = read(fd, piece, sizeof piece)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        if (n > 0)
            buffer_append(out, piece, (size_t)n);
    }
    if (fd >= 0)
        close(fd);
    return fd >= 0 && n >= 0;
}

const char *machine_line(const struct machine *m, struct arena *a, const char *path)
{
    struct buffer text = {0};
    const char *line = NULL;
    if (machine_read(m, path, &text)) {
        size_t n = strcspn(text.data, "\n");
        while (n > 0 && strchr(" \t\r", text.data[n - 1]))
            n--;
        if (n > 0)
            line = arena_strndup(a, text.data, n);
    }
    buffer_free(&text);
    return line;
}

bool machine_number(const struct machine *m, const char *path, uint64_t *out)
{
    struct arena a = {0};
    const char *line = machine_line(m, &a, path);
    const bool ok = line && number_uint64(line, UINT64_MAX, out);
    arena_free(&a);
    return ok;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

size_t machine_list(const struct machine *m, struct arena *a, const char *folder, size_t most,
                    const char ***out)
{
    size_t count = 0;
    *out = arena_array(a, most, sizeof **out);
    DIR *d = opendir(arena_printf(a, "%s%s", m->root, folder));
    for (const struct dirent *e; d && count < most && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.')
            (*out)[count++] = arena_strdup(a, e->d_name);
    if (d)
        closedir(d);
    qsort(*out, count, sizeof **out, by_text);
    return count;
}

const char *text_value(struct arena *a, const char *text, const char *key)
{
    const size_t length = strlen(key);
    for (const char *line = text; *line;) {
        const size_t n = strcspn(line, "\n");
        const char *at = line + length;
        if (n > length && strncmp(line, key, length) == 0 && strchr(" \t:", *at)) {
            at += strspn(at, " \t");
            at += *at == ':';
            at += strspn(at, " \t");
            return at > line + n ? NULL : arena_strndup(a, at, (size_t)(line + n - at));
        }
        line += n + (line[n] == '\n');
    }
    return NULL;
}

const char *machine_program(const struct machine *m, struct arena *a, const char *name)
{
    const char *path = machine_variable(m, "PATH");
    while (path && *path) {
        const size_t n = strcspn(path, ":");
        /* An empty or relative part means the folder one stands in: never looked at. */
        if (n > 0 && path[0] == '/') {
            struct stat s;
            const char *file = path_join(a, arena_strndup(a, path, n), name);
            if (access(file, X_OK) == 0 && stat(file, &s) == 0 && S_ISREG(s.st_mode))
                return file;
        }
        path += n + (path[n] == ':');
    }
    return NULL;
}

const char *machine_variable(const struct machine *m, const char *name)
{
    const char *value = m->variable(m->context, name);
    return value && *value ? value : NULL;
}
