#include "engine/serve/local_socket.h"

#include "base/arena.h"
#include "base/buffer.h"
#include "base/file.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 16 };

bool local_path_check(const char *path, const char *field, struct error *err)
{
    const size_t length = strlen(path);
    bool control = false;
    for (const char *p = path; *p; p++)
        control |= (unsigned char)*p < 0x20 || *p == 0x7f;
    if (length > 0 && length < sizeof((struct sockaddr_un *)0)->sun_path && !control)
        return true;
    error_set(err, "badValue",
              "badValue(%s): the path of a socket has 1 to 107 bytes, no control characters",
              field);
    return error_at(err, NULL, field, path);
}

static int open_socket(const char *path, struct sockaddr_un *address, struct error *err)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    text_copy(address->sun_path, sizeof address->sun_path, path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        error_errno(err, path, "making a socket");
    return fd;
}

int local_connect(const char *path, struct error *err)
{
    struct sockaddr_un address;
    const int fd = open_socket(path, &address, err);
    if (fd < 0)
        return -1;
    int done;
    do
        done = connect(fd, (const struct sockaddr *)&address, sizeof address);
    while (done != 0 && errno == EINTR);
    if (done == 0)
        return fd;
    error_errno(err, path, "connecting");
    close(fd);
    return -1;
}

static bool taken(const char *path, const char *why, struct error *err)
{
    error_set(err, "RESIDENT-SOCKET-TAKEN", "%s", why);
    return error_at(err, path, "--socket", NULL);
}

/* A socket whose listener is gone refuses; one whose queue is full, or that we may not write to,
 * does not. */
static bool is_stale(const char *path)
{
    struct sockaddr_un address;
    struct error ignored;
    const int fd = open_socket(path, &address, &ignored);
    if (fd < 0)
        return false;
    const bool refused = connect(fd, (const struct sockaddr *)&address, sizeof address) != 0 &&
                         errno == ECONNREFUSED;
    close(fd);
    return refused;
}

bool local_listen_check(const char *path, struct error *err)
{
    struct stat s;
    struct arena arena = {0};
    char *folder = arena_strdup(&arena, path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    bool ok = access(slash ? folder : ".", W_OK | X_OK) == 0 ||
              error_errno(err, slash ? folder : ".", "a socket cannot be made in its folder");
    if (ok && lstat(path, &s) == 0) {
        if (!S_ISSOCK(s.st_mode))
            ok = taken(path, "something that is no socket stands there", err);
        else if (s.st_uid != geteuid())
            ok = taken(path, "a socket of another user stands there", err);
        else if (!is_stale(path))
            ok = taken(path, "somebody listens there already", err);
    }
    arena_free(&arena);
    return ok;
}

int local_listen(const char *path, struct error *err)
{
    struct sockaddr_un address;
    if (!local_listen_check(path, err))
        return -1;
    const int fd = open_socket(path, &address, err);
    if (fd < 0)
        return -1;
    unlink(path);
    const mode_t before = umask(0177);
    const bool bound = bind(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    const int why = errno;
    umask(before);
    errno = why;
    if (bound && listen(fd, BACKLOG) == 0)
        return fd;
    error_errno(err, path, "listening");
    close(fd);
    if (bound)
        unlink(path);
    return -1;
}
