/* Preloaded into a serving process: while the file STUCK_SYNC_FILE has a name, every sync of files with that name in their
 * path waits, as on a disk that does not answer. When the file is gone, all of them go on.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_stuck(const char *path) {
    const char *control = getenv("STUCK_SYNC_FILE");
    char name[128] = {0};
    int fd = control ? open(control, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    ssize_t got = read(fd, name, sizeof name - 1);
    close(fd);
    return got > 0 && strstr(path, name) != NULL;
}

static void wait_for_the_disk(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    while (is_stuck(path)) usleep(20 * 1000);
}

#define STUCK(name) \
    int name(int fd) { \
        static int (*real)(int); \
        if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        wait_for_the_disk(fd); \
        return real(fd); \
    }

STUCK(fsync)
STUCK(fdatasync)
