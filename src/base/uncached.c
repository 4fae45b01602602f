#include "base/uncached.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    DONTCACHE = 0x80,     /* RWF_DONTCACHE, which older headers lack */
    WORTH_IT = 256 * 1024 /* less may well be read again soon */
};

static bool is_unknown(int why)
{
    return why == EOPNOTSUPP || why == EINVAL || why == ENOSYS;
}

ssize_t uncached_pread(int fd, void *out, size_t length, uint64_t at)
{
    if (length >= WORTH_IT) {
        const struct iovec to = {out, length};
        const ssize_t n = preadv2(fd, &to, 1, (off_t)at, DONTCACHE);
        if (n >= 0 || !is_unknown(errno))
            return n;
    }
    return pread(fd, out, length, (off_t)at);
}

/* at -1: where the descriptor stands. */
static ssize_t write_at(int fd, const void *data, size_t length, off_t at)
{
    if (length >= WORTH_IT) {
        const struct iovec from = {(void *)(uintptr_t)data, length};
        const ssize_t n = pwritev2(fd, &from, 1, at, DONTCACHE);
        if (n >= 0 || !is_unknown(errno))
            return n;
    }
    return at < 0 ? write(fd, data, length) : pwrite(fd, data, length, at);
}

ssize_t uncached_write(int fd, const void *data, size_t length)
{
    return write_at(fd, data, length, -1);
}

ssize_t uncached_pwrite(int fd, const void *data, size_t length, uint64_t at)
{
    return write_at(fd, data, length, (off_t)at);
}
