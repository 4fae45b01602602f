/* The machine that this program runs on. */
#include "arena/doctor/disk.h"
#include "arena/doctor/machine.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_BYTES_MOST = 1 << 20 };

static double now(void *context)
{
    (void)context;
    return (double)clock_now_ns() / 1e9;
}

static bool sleep_for(void *context, double seconds)
{
    (void)context;
    const int64_t end = clock_now_ns() + (int64_t)(seconds * 1e9);
    for (int64_t left; !interrupt_requested() && (left = end - clock_now_ns()) > 0;) {
        /* In steps: a signal before the call would not end it. */
        const int64_t step = left < 50000000 ? left : 50000000;
        const struct timespec t = {0, step};
        nanosleep(&t, NULL);
    }
    return !interrupt_requested();
}

static const char *variable(void *context, const char *name)
{
    (void)context;
    return getenv(name);
}

/* On the reader's thread, which has ended when child_end returns. */
static void keep_first_line(void *context, const char *line, size_t length)
{
    struct buffer *first = context;
    if (first->length == 0)
        buffer_append(first, line, length < 400 ? length : 400);
}

static enum asked ask(void *context, const char *const *argv, double seconds, struct buffer *out,
                      struct buffer *complaint)
{
    (void)context;
    struct child *c = NULL;
    struct error err = {0};
    buffer_clear(out);
    buffer_clear(complaint);
    buffer_text(out, "");
    buffer_text(complaint, "");
    const int64_t deadline = clock_now_ns() + (int64_t)(seconds * 1e9);
    const struct child_options o = {.argv = argv,
                                    .envp = (const char *const *)environ,
                                    .on_stderr_line = keep_first_line,
                                    .context = complaint};
    if (interrupt_requested())
        return ASKED_INTERRUPTED;
    if (!child_start(&o, &c, &err)) {
        buffer_text(complaint, err.message);
        return ASKED_IN_VAIN;
    }
    child_close_input(c);
    const enum child_read_result r = child_read_rest(c, ANSWER_BYTES_MOST, deadline, out, &err);
    child_end(c, r == CHILD_READ_EOF ? 200 : 0);
    const bool well = child_exited_normally(c);
    child_free(c);
    if (interrupt_requested())
        return ASKED_INTERRUPTED;
    if (r == CHILD_READ_TIMEOUT || r == CHILD_READ_TOO_LONG)
        return ASKED_TOO_LONG;
    return r == CHILD_READ_EOF && well ? ASKED_WELL : ASKED_FAILED;
}

static bool answers(void *context, const char *path)
{
    (void)context;
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    if (!text_copy(place.sun_path, sizeof place.sun_path, path))
        return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    /* EAGAIN: a full queue is somebody's. */
    const bool yes = connect(fd, (const struct sockaddr *)&place, sizeof place) == 0 ||
                     errno == EAGAIN || errno == EACCES;
    close(fd);
    return yes;
}

static bool space(void *context, const char *folder, uint64_t *free_bytes, struct error *err)
{
    (void)context;
    struct statvfs s;
    if (statvfs(folder, &s) != 0)
        return error_errno(err, folder, "cannot see how full the disk is");
    *free_bytes = (uint64_t)s.f_bavail * s.f_frsize;
    return true;
}

static bool read_disk(void *context, struct arena *a, const char *folder, double seconds,
                      struct disk_rate *out, struct error *err)
{
    (void)context;
    return disk_read_rate(a, folder, seconds, out, err);
}

/* The repository: a few folders above this program, whose sources it then holds, or where one
 * stands. */
static const char *find_repository(struct arena *a, const char *build)
{
    char real[PATH_MAX];
    const char *from = realpath(".", real) ? arena_strdup(a, real) : NULL;
    const char *starts[] = {build, from};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        char *folder = starts[i] ? arena_strdup(a, starts[i]) : NULL;
        for (int up = 0; folder && up < 4; up++) {
            if (file_exists(path_join(a, folder, "src/programs/mlxfast.c")))
                return folder;
            char *slash = strrchr(folder, '/');
            if (!slash || slash == folder)
                break;
            *slash = '\0';
        }
    }
    return NULL;
}

static const char *own_folder(struct arena *a)
{
    char path[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return "build";
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    if (slash && slash != path)
        *slash = '\0';
    return arena_strdup(a, path);
}

void machine_open(struct machine *m, struct arena *a)
{
    const char *root = getenv("MLXFAST_SYSTEM_FILES"), *temporary = getenv("TMPDIR");
    const long ticks = sysconf(_SC_CLK_TCK), page = sysconf(_SC_PAGESIZE);
    *m = (struct machine){.root = root ? root : "",
                          .build = own_folder(a),
                          .temporary = temporary && temporary[0] == '/' ? temporary : "/tmp",
                          .self = getpid(),
                          .user = geteuid(),
                          .ticks = ticks > 0 ? (double)ticks : 100,
                          .page_bytes = page > 0 ? (uint64_t)page : 4096,
                          .now = now,
                          .sleep = sleep_for,
                          .variable = variable,
                          .ask = ask,
                          .answers = answers,
                          .space = space,
                          .read_disk = read_disk};
    m->repository = find_repository(a, m->build);
}
