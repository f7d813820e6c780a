/* Preloaded into a controller: its data directory lies on a disk of DISK_SIZE_FILE's size.
 *
 * A write, a truncation or an allocation that would make the files below DISK_ROOT larger than that, taken together,
 * fails with ENOSPC, as on a full disk; statvfs tells what is left. The size is read from the file each time, so that a
 * test can make room while the server runs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static long long disk_size(void) {
    char text[32] = {0};
    int fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("DISK_SIZE_FILE"), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    long got = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return got > 0 ? atoll(text) : -1;
}

static long long used_below(const char *path) {
    long long used = 0;
    DIR *directory = opendir(path);
    if (directory == NULL) return 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        char inner[4096];
        struct stat found;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (lstat(inner, &found) != 0) continue;
        used += S_ISDIR(found.st_mode) ? used_below(inner) : (long long)found.st_size;
    }
    closedir(directory);
    return used;
}

static int is_here(int fd) {
    char link[64], path[4096];
    const char *root = getenv("DISK_ROOT");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0 || root == NULL) return 0;
    path[size] = 0;
    return strncmp(path, root, strlen(root)) == 0;
}

/* Whether making the file at least `end` long is more than the disk holds. */
static int too_much(int fd, long long end) {
    struct stat found;
    int saved = errno, result = 0;
    if (fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && end > found.st_size && is_here(fd)) {
        long long limit = disk_size();
        result = limit >= 0 && used_below(getenv("DISK_ROOT")) + end - found.st_size > limit;
    }
    errno = saved;
    return result;
}

static int full(void) {
    errno = ENOSPC;
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    return too_much(fd, offset + (long long)size) ? full() : real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    return too_much(fd, offset + (long long)size) ? full() : real(fd, data, size, offset);
}

int ftruncate(int fd, off_t length) {
    REAL(ftruncate);
    return too_much(fd, length) ? full() : real(fd, length);
}

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    return too_much(fd, length) ? full() : real(fd, length);
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    REAL(posix_fallocate);
    return too_much(fd, offset + length) ? ENOSPC : real(fd, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) {
    REAL(posix_fallocate64);
    return too_much(fd, offset + length) ? ENOSPC : real(fd, offset, length);
}

static void shrink(const char *path, unsigned long unit, unsigned long long *available) {
    const char *root = getenv("DISK_ROOT");
    if (root == NULL || strncmp(path, root, strlen(root)) != 0) return;
    long long limit = disk_size();
    if (limit < 0 || unit == 0) return;
    long long left = limit - used_below(root);
    *available = left > 0 ? (unsigned long long)left / unit : 0;
}

int statvfs(const char *path, struct statvfs *found) {
    REAL(statvfs);
    int result = real(path, found);
    unsigned long long available = found->f_bavail;
    if (result == 0) shrink(path, found->f_frsize, &available);
    found->f_bavail = found->f_bfree = available;
    return result;
}

int statvfs64(const char *path, struct statvfs64 *found) {
    REAL(statvfs64);
    int result = real(path, found);
    unsigned long long available = found->f_bavail;
    if (result == 0) shrink(path, found->f_frsize, &available);
    found->f_bavail = found->f_bfree = available;
    return result;
}
