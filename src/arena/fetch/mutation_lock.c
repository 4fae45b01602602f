/* The mutation lock: see lock.h. A file that is locked with flock, which dies with its holder, and
 * that says who holds it; where a file system keeps flock to one machine, the time of its last
 * touch speaks for the others. */
#include "arena/fetch/lock.h"
#include "base/buffer.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char NAME[] = ".mlxfast-mutation.lock";
static const int64_t TOUCH_NS = INT64_C(10000000000), TELL_NS = INT64_C(15000000000);

enum attempt { TAKEN, HELD, BROKEN };

/* What stands in the lock: "pid N host H"; its age since the last touch in seconds. */
static void read_holder(const struct mutation_lock *l, char *out, size_t size, double *age)
{
    struct stat st;
    struct timespec now;
    const ssize_t n = pread(l->fd, out, size - 1, 0);
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    clock_gettime(CLOCK_REALTIME, &now);
    *age = fstat(l->fd, &st) == 0 ? (double)(now.tv_sec - st.st_mtim.tv_sec) +
                                        (double)(now.tv_nsec - st.st_mtim.tv_nsec) * 1e-9
                                  : 0;
}

static bool is_of_this_machine(const char *holder)
{
    char host[256] = "";
    const char *at = strstr(holder, " host ");
    gethostname(host, sizeof host - 1);
    return !at || strcmp(at + 6, host) == 0;
}

static bool write_holder(struct mutation_lock *l, struct error *err)
{
    char host[256] = "";
    struct buffer text = {0};
    gethostname(host, sizeof host - 1);
    buffer_printf(&text, "pid %ld host %s\n", (long)getpid(), host);
    const bool ok = ftruncate(l->fd, 0) == 0 &&
                    pwrite(l->fd, text.data, text.length, 0) == (ssize_t)text.length;
    buffer_free(&text);
    return ok || error_errno(err, l->path, "cannot write");
}

static enum attempt try_once(struct mutation_lock *l, int64_t stale, char *holder, size_t size,
                             struct error *err)
{
    struct stat by_fd, by_name;
    double age;
    l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (l->fd < 0) {
        error_errno(err, l->path, "cannot open the lock");
        return BROKEN;
    }
    if (flock(l->fd, LOCK_EX | LOCK_NB) != 0) {
        const bool held = errno == EWOULDBLOCK || errno == EINTR;
        if (held)
            read_holder(l, holder, size, &age);
        else
            error_errno(err, l->path, "cannot lock");
        return held ? HELD : BROKEN;
    }
    /* The last holder may have removed the file between our open and our lock. */
    if (fstat(l->fd, &by_fd) != 0 || stat(l->path, &by_name) != 0 || by_fd.st_ino != by_name.st_ino)
        return HELD;
    read_holder(l, holder, size, &age);
    if (holder[0] && !is_of_this_machine(holder) && age < (double)stale)
        return HELD;
    return write_holder(l, err) ? TAKEN : BROKEN;
}

bool mutation_lock_take(struct arena *a, const char *folder, int64_t timeout, int64_t stale,
                        void (*tell)(double waited, const char *holder), struct mutation_lock *l,
                        struct error *err)
{
    char holder[512] = "";
    const int64_t started = clock_now_ns();
    int64_t told = started - TELL_NS;
    *l = (struct mutation_lock){.fd = -1, .path = path_join(a, folder, NAME)};
    for (;;) {
        const enum attempt result = try_once(l, stale, holder, sizeof holder, err);
        if (result == TAKEN)
            return true;
        if (l->fd >= 0)
            close(l->fd);
        l->fd = -1;
        if (result == BROKEN)
            return false;
        if (interrupt_requested())
            return error_set(err, "INTERRUPTED", "stopped by a signal");
        const int64_t now = clock_now_ns();
        if (now - started >= timeout * INT64_C(1000000000)) {
            error_set(err, "FETCH-LOCKED",
                      "another set-up works in this folder; waited %" PRId64 " s for it", timeout);
            return error_at(err, l->path, "holder", holder);
        }
        if (tell && holder[0] && now - told >= TELL_NS) {
            tell(clock_seconds(started), holder);
            told = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
}

void mutation_lock_touch(struct mutation_lock *l)
{
    if (l->fd < 0 || clock_now_ns() - l->touched_ns < TOUCH_NS)
        return;
    l->touched_ns = clock_now_ns();
    futimens(l->fd, NULL);
}

void mutation_lock_release(struct mutation_lock *l)
{
    if (l->fd < 0)
        return;
    unlink(l->path); /* while it is ours: who waits opens a new one */
    close(l->fd);
    l->fd = -1;
}
