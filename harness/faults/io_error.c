/* Preloaded into a controller: while the file IO_ERROR_FILE has a name, every write, sync and opening of files with
 * that name in their path fails with EIO, as on a disk that died. When the file is gone the disk works again.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int failing(const char *path) {
    char name[128] = {0};
    const char *control = getenv("IO_ERROR_FILE");
    int saved = errno;
    if (!control) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno = saved, 0;
    long got = syscall(SYS_read, fd, name, sizeof name - 1);
    syscall(SYS_close, fd);
    errno = saved;
    return got > 0 && strstr(path, name) != NULL;
}

static int fails(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0 || path[0] != '/') return 0;
    path[n] = 0;
    return failing(path);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define DEAD return errno = EIO, -1

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    if (fails(fd)) DEAD;
    return real(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    if (fails(fd)) DEAD;
    return real(fd, data, size, at);
}

int fsync(int fd) {
    REAL(fsync);
    if (fails(fd)) DEAD;
    return real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    if (fails(fd)) DEAD;
    return real(fd);
}

int open(const char *path, int flags, ...) {
    REAL(open);
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    if (failing(path)) DEAD;
    return real(path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    if (failing(path)) DEAD;
    return real(path, flags, mode);
}
