/* A small disk that can fill up and fail. It is asked through the environment, at every operation anew.
 *
 *   FAILING_DIR    the directory that is the disk
 *   FAILING_SPACE  how many bytes fit in it, all files together
 *   FAILING_SYNC   a file's name: syncing that file fails with EIO
 *   FAILING_LOG    a file to which each sync of a watched file is noted: "ok NAME", "failed NAME"
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void *real(const char *symbol) { return dlsym(RTLD_NEXT, symbol); }

/* The name of a file on this disk, or null. */
static const char *name_of(int fd, char *path) {
    const char *directory = getenv("FAILING_DIR");
    char link[64];
    if (!directory) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    size_t length = strlen(directory);
    return !strncmp(path, directory, length) && path[length] == '/' ? path + length + 1 : 0;
}

static long long free_space(void) {
    const char *space = getenv("FAILING_SPACE"), *directory = getenv("FAILING_DIR");
    if (!space || !directory) return LLONG_MAX;
    long long left = atoll(space);
    DIR *listing = opendir(directory);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        struct stat found;
        if (!fstatat(dirfd(listing), entry->d_name, &found, 0) && S_ISREG(found.st_mode)) left -= found.st_size;
    }
    if (listing) closedir(listing);
    return left;
}

static int fits(int fd, long long end) {
    char path[PATH_MAX];
    struct stat found;
    if (!name_of(fd, path) || fstat(fd, &found) || end <= found.st_size) return 1;
    return end - found.st_size <= free_space();
}

static ssize_t written(int fd, const void *bytes, size_t length, off_t at) {
    ssize_t (*next)(int, const void *, size_t, off_t) = real("pwrite64");
    if (!fits(fd, at + (long long)length)) return errno = ENOSPC, -1;
    return next(fd, bytes, length, at);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return written(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) { return written(fd, bytes, length, at); }

ssize_t write(int fd, const void *bytes, size_t length) {
    ssize_t (*next)(int, const void *, size_t) = real("write");
    if (fd > 2 && !fits(fd, lseek(fd, 0, SEEK_CUR) + (long long)length)) return errno = ENOSPC, -1;
    return next(fd, bytes, length);
}

static int allocated(int fd, off_t at, off_t length) {
    int (*next)(int, off_t, off_t) = real("posix_fallocate64");
    return fits(fd, at + length) ? next(fd, at, length) : ENOSPC;
}

int posix_fallocate(int fd, off_t at, off_t length) { return allocated(fd, at, length); }
int posix_fallocate64(int fd, off64_t at, off64_t length) { return allocated(fd, at, length); }

static int synced(int fd, const char *symbol) {
    int (*next)(int) = real(symbol);
    char path[PATH_MAX];
    const char *name = name_of(fd, path), *failing = getenv("FAILING_SYNC"), *log = getenv("FAILING_LOG");
    int fails = name && failing && !strcmp(name, failing);
    if (name && log) {
        FILE *notes = fopen(log, "a");
        fprintf(notes, "%s %s\n", fails ? "failed" : "ok", name);
        fclose(notes);
    }
    return fails ? (errno = EIO, -1) : next(fd);
}

int fsync(int fd) { return synced(fd, "fsync"); }
int fdatasync(int fd) { return synced(fd, "fdatasync"); }
