/* A disk that forgets what was not synced.
 *
 * Preloaded into a process, it watches the files of one directory and keeps beside them, in another directory, what a
 * power cut would leave: every write, truncation and new name goes there only when it is synced. After a number of
 * operations the process ends as if the power had gone; of the writes that were not synced a random part survives,
 * some of them torn.
 *
 *   UNSYNCED_DIR    the directory that is watched (its files *.lock and *.reserve are not)
 *   UNSYNCED_IMAGE  where the image is kept; at the start a copy of the directory
 *   UNSYNCED_AFTER  crash before the n-th write, truncation or sync (0: never)
 *   UNSYNCED_SEED   decides what survives
 *   UNSYNCED_FAIL   every n-th sync of a file fails, and as Linux does, the cache takes what it could not write for
 *                   written: the process still reads it, a later sync succeeds, and the disk never gets it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct op { struct op *next; int truncates; off_t at; size_t length; char bytes[]; } op;
typedef struct file {
    struct file *next;
    char name[256], durable[256]; /* what the process calls it; what the disk does until the directory is synced */
    int image;         /* descriptor of the file in the image */
    int named;         /* its name is durable */
    op *first, **last; /* since the last sync */
} file;

#define FDS 4096
static file *watched[FDS];
static char is_directory[FDS];
static file *files;
static const char *directory, *image;
static long after, seen, fail_every, syncs;
static uint64_t state;
static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static int (*real_open)(const char *, int, ...);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int), (*real_fdatasync)(int), (*real_close)(int), (*real_unlink)(const char *);
static int (*real_rename)(const char *, const char *);
static int (*real_dup2)(int, int), (*real_dup3)(int, int, int);

__attribute__((constructor)) static void start(void) {
    real_open = dlsym(RTLD_NEXT, "open64");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_write = dlsym(RTLD_NEXT, "write");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_close = dlsym(RTLD_NEXT, "close");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_dup2 = dlsym(RTLD_NEXT, "dup2");
    real_dup3 = dlsym(RTLD_NEXT, "dup3");
    const char *value;
    directory = getenv("UNSYNCED_DIR");
    image = getenv("UNSYNCED_IMAGE");
    after = (value = getenv("UNSYNCED_AFTER")) ? atol(value) : 0;
    fail_every = (value = getenv("UNSYNCED_FAIL")) ? atol(value) : 0;
    state = ((value = getenv("UNSYNCED_SEED")) ? strtoull(value, 0, 10) : 1) * 0x9E3779B97F4A7C15u + 1;
}

static uint64_t chance(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below ? state % below : 0;
}

static void perform(file *f, op *o, size_t length) {
    if (o->truncates) {
        if (real_ftruncate(f->image, o->at)) abort();
    } else if (real_pwrite(f->image, o->bytes, length, o->at) != (ssize_t)length) abort();
}

static void forget(file *f) {
    while (f->first) {
        op *o = f->first;
        f->first = o->next;
        free(o);
    }
    f->last = &f->first;
}

static void rename_in_image(file *f) {
    char from[PATH_MAX], to[PATH_MAX];
    if (!strcmp(f->name, f->durable)) return;
    snprintf(from, sizeof from, "%s/%s", image, f->durable);
    snprintf(to, sizeof to, "%s/%s", image, f->name);
    if (real_rename(from, to)) abort();
    strcpy(f->durable, f->name);
}

static void crash(void) {
    int mood = chance(3); /* nothing survives, everything, or anything */
    for (file *f = files; f; f = f->next) {
        for (op *o = f->first; o; o = o->next) {
            if (mood == 0 || (mood == 2 && chance(2))) continue;
            size_t length = o->length;
            if (mood == 2 && length > 512 && chance(4) == 0) length = 512 * (1 + chance(length / 512));
            perform(f, o, length > o->length ? o->length : length);
        }
        if (!f->named) {
            char path[PATH_MAX];
            snprintf(path, sizeof path, "%s/%s", image, f->durable);
            real_unlink(path);
        } else if (chance(2)) rename_in_image(f);
    }
    _exit(137);
}

static void count(void) {
    if (after && ++seen >= after) crash();
}

static void journal(file *f, int truncates, off_t at, const void *bytes, size_t length) {
    op *o = malloc(sizeof *o + length);
    o->next = 0, o->truncates = truncates, o->at = at, o->length = length;
    if (length) memcpy(o->bytes, bytes, length);
    *f->last = o, f->last = &o->next;
}

static void synced(file *f) {
    for (op *o = f->first; o; o = o->next) perform(f, o, o->length);
    forget(f);
}

static const char *name_of(const char *path) {
    if (!directory || !image) return 0;
    size_t length = strlen(directory);
    if (strncmp(path, directory, length) || path[length] != '/') return 0;
    const char *name = path + length + 1;
    size_t n = strlen(name);
    if (!n || strchr(name, '/') || n > 255) return 0;
    if (n > 5 && !strcmp(name + n - 5, ".lock")) return 0;
    if (n > 8 && !strcmp(name + n - 8, ".reserve")) return 0;
    return name;
}

static file *find(const char *name) {
    for (file *f = files; f; f = f->next)
        if (!strcmp(f->name, name)) return f;
    return 0;
}

static file *watch(const char *name, int fd, int is_new) {
    file *f = find(name);
    if (f) return f;
    char path[PATH_MAX], buffer[65536];
    f = calloc(1, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    strcpy(f->durable, f->name);
    snprintf(path, sizeof path, "%s/%s", image, name);
    f->image = real_open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (f->image < 0) abort();
    f->named = !is_new;
    f->last = &f->first;
    f->next = files, files = f;
    off_t at = 0; /* what was there before counts as synced */
    for (ssize_t n; (n = pread(fd, buffer, sizeof buffer, at)) > 0; at += n)
        if (real_pwrite(f->image, buffer, n, at) != n) abort();
    return f;
}

static int opened(const char *path, int flags, mode_t mode) {
    pthread_mutex_lock(&mutex);
    const char *name = name_of(path);
    int is_new = name && access(path, F_OK) != 0;
    int fd = real_open(path, flags, mode);
    if (fd >= 0 && fd < FDS) {
        struct stat found;
        watched[fd] = 0;
        is_directory[fd] = directory && !strcmp(path, directory);
        if (name && !fstat(fd, &found) && S_ISREG(found.st_mode)) {
            watched[fd] = watch(name, fd, is_new);
            if (flags & O_TRUNC) journal(watched[fd], 1, 0, 0, 0);
        }
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

#define OPEN(symbol)                                                       \
    int symbol(const char *path, int flags, ...) {                         \
        va_list more;                                                      \
        va_start(more, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                      \
        return opened(path, flags, mode);                                  \
    }
OPEN(open)
OPEN(open64)

static file *of(int fd) { return fd >= 0 && fd < FDS ? watched[fd] : 0; }

static ssize_t written(int fd, const void *bytes, size_t length, off_t at) {
    pthread_mutex_lock(&mutex);
    file *f = of(fd);
    if (f) count();
    ssize_t done = real_pwrite(fd, bytes, length, at);
    if (f && done > 0) journal(f, 0, at, bytes, done);
    pthread_mutex_unlock(&mutex);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) { return written(fd, bytes, length, at); }
ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) { return written(fd, bytes, length, at); }

ssize_t write(int fd, const void *bytes, size_t length) {
    if (!of(fd)) return real_write(fd, bytes, length);
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t done = written(fd, bytes, length, at);
    if (done > 0) lseek(fd, at + done, SEEK_SET);
    return done;
}

static int truncated(int fd, off_t size) {
    pthread_mutex_lock(&mutex);
    file *f = of(fd);
    if (f) count();
    int result = real_ftruncate(fd, size);
    if (f && !result) journal(f, 1, size, 0, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}

int ftruncate(int fd, off_t size) { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) { return truncated(fd, size); }

static int sync_of(int fd, int (*real)(int)) {
    pthread_mutex_lock(&mutex);
    file *f = of(fd);
    int of_directory = fd >= 0 && fd < FDS && is_directory[fd];
    if (f || of_directory) count();
    if (f && fail_every && ++syncs % fail_every == 0) {
        forget(f);
        pthread_mutex_unlock(&mutex);
        errno = EIO;
        return -1;
    }
    int result = real(fd);
    if (f && !result) synced(f);
    if (of_directory && !result)
        for (file *each = files; each; each = each->next) each->named = 1, rename_in_image(each);
    pthread_mutex_unlock(&mutex);
    return result;
}

int fsync(int fd) { return sync_of(fd, real_fsync); }
int fdatasync(int fd) { return sync_of(fd, real_fdatasync); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) watched[fd] = 0, is_directory[fd] = 0;
    return real_close(fd);
}

static void moved(int from, int to) {
    if (to >= 0 && to < FDS) watched[to] = of(from), is_directory[to] = 0;
}

int dup2(int from, int to) {
    int result = real_dup2(from, to);
    if (result >= 0) moved(from, to);
    return result;
}

int dup3(int from, int to, int flags) {
    int result = real_dup3(from, to, flags);
    if (result >= 0) moved(from, to);
    return result;
}

int rename(const char *from, const char *to) {
    pthread_mutex_lock(&mutex);
    const char *name = name_of(from), *other = name_of(to);
    file *f = name ? find(name) : 0;
    if (f) count();
    int result = real_rename(from, to);
    if (f && other && !result) snprintf(f->name, sizeof f->name, "%s", other);
    pthread_mutex_unlock(&mutex);
    return result;
}

int unlink(const char *path) {
    pthread_mutex_lock(&mutex);
    const char *name = name_of(path);
    file *f = name ? find(name) : 0;
    if (f) count();
    int result = real_unlink(path);
    if (f && !result) { /* gone at once: the harder case, since an older log would only be read again */
        char gone[PATH_MAX];
        snprintf(gone, sizeof gone, "%s/%s", image, f->durable);
        real_unlink(gone);
        forget(f);
        real_close(f->image);
        for (file **at = &files; *at; at = &(*at)->next)
            if (*at == f) { *at = f->next; break; }
        for (int fd = 0; fd < FDS; fd++)
            if (watched[fd] == f) watched[fd] = 0;
        free(f);
    }
    pthread_mutex_unlock(&mutex);
    return result;
}
