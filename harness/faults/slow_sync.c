/* Preloaded into a controller: while there is a file SLOW_SYNC_FILE, every sync takes SLOW_SYNC_MS longer, as on a
 * disk that is far away. Syncs of different files do not wait for each other.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_for_the_disk(void) {
    const char *text = getenv("SLOW_SYNC_MS"), *file = getenv("SLOW_SYNC_FILE");
    if (text && file && access(file, F_OK) == 0) usleep((useconds_t)atoi(text) * 1000);
}

#define SLOW(name) \
    int name(int fd) { \
        static int (*real)(int); \
        if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, #name); \
        wait_for_the_disk(); \
        return real(fd); \
    }

SLOW(fsync)
SLOW(fdatasync)
