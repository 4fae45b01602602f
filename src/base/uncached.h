/* Reading and writing what is larger than memory should hold: weights. Where the kernel can (Linux
 * 6.14, on file systems that know it) the pages go as soon as they were read, or are on the disk;
 * what was in the page cache before stays there. Elsewhere these are pread and write. */
#ifndef MLXFAST_BASE_UNCACHED_H
#define MLXFAST_BASE_UNCACHED_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

ssize_t uncached_pread(int fd, void *out, size_t length, uint64_t at);
ssize_t uncached_write(int fd, const void *data, size_t length);
ssize_t uncached_pwrite(int fd, const void *data, size_t length, uint64_t at);

#endif
