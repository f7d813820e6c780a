/* Preloaded into a controller: while there is a file HANG_FILE, calls for files whose path has its first word in it do not
 * return, as on a disk that does not answer; its other words say which: sync, write, read, open. When the file is gone they
 * go on as if nothing had been. Nothing fails.
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

static int hangs(const char *path, const char *what) {
    char text[256] = {0}, *name, *word;
    const char *control = getenv("HANG_FILE");
    if (!control) return 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    long got = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    char *rest = text;
    if (got <= 0 || !(name = strsep(&rest, " \n")) || !*name || !strstr(path, name)) return 0;
    while ((word = strsep(&rest, " \n")))
        if (strcmp(word, what) == 0) return 1;
    return 0;
}

static void wait_for(const char *path, const char *what) {
    int saved = errno;
    while (hangs(path, what)) usleep(5000);
    errno = saved;
}

static void wait_for_fd(int fd, const char *what) {
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n <= 0 || path[0] != '/') return;
    path[n] = 0;
    wait_for(path, what);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define SYNC(name) \
    int name(int fd) { \
        REAL(name); \
        wait_for_fd(fd, "sync"); \
        return real(fd); \
    }

#define TRANSFER(name, buffer, offset, what) \
    ssize_t name(int fd, buffer data, size_t size, offset at) { \
        REAL(name); \
        wait_for_fd(fd, what); \
        return real(fd, data, size, at); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        int mode = va_arg(rest, int); \
        va_end(rest); \
        wait_for(path, "open"); \
        return real(path, flags, mode); \
    }

SYNC(fsync)
SYNC(fdatasync)
TRANSFER(pwrite, const void *, off_t, "write")
TRANSFER(pwrite64, const void *, off64_t, "write")
TRANSFER(pread, void *, off_t, "read")
TRANSFER(pread64, void *, off64_t, "read")
OPEN(open)
OPEN(open64)
