/* Preloaded into a controller: writes down, in one order, what goes to its files and to its sockets.
 *
 * A record is a line "<kind> <descriptor> <length>\n", then <length> bytes of data, then "\n":
 *   W  data was written to a file of the store (logged when the write has returned)
 *   B  a sync of a file of the store begins          E  it has returned without an error (both with the file's path)
 *   M  a file got a name below the directory by a rename (its path; logged when the call has returned)
 *   N  data is about to go out on a socket (logged before the call: it cannot leave earlier)
 *   D  so much of it was taken (a number in decimal; 0 when the call failed)
 *   R  data was read from a socket (logged when the call has returned)
 * Files of the store are those below the directory TRACE_DATA; the records go to the file TRACE_LOG.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;

static void put(const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        long done = syscall(SYS_write, log_fd, at, size);
        if (done <= 0) _exit(97); /* a trace with a hole proves nothing */
        at += done;
        size -= (size_t)done;
    }
}

static void record(char kind, int fd, const struct iovec *parts, int count, size_t size) {
    char head[64];
    pthread_mutex_lock(&turn);
    if (log_fd < 0) {
        int opened = (int)syscall(SYS_openat, AT_FDCWD, getenv("TRACE_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        log_fd = fcntl(opened, F_DUPFD_CLOEXEC, 900);
        if (log_fd < 0) _exit(98);
        syscall(SYS_close, opened);
    }
    put(head, (size_t)snprintf(head, sizeof head, "%c %d %zu\n", kind, fd, size));
    for (int i = 0; i < count && size > 0; i++) {
        size_t part = parts[i].iov_len < size ? parts[i].iov_len : size;
        put(parts[i].iov_base, part);
        size -= part;
    }
    put("\n", 1);
    pthread_mutex_unlock(&turn);
}

static void record_one(char kind, int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    record(kind, fd, &part, 1, size);
}

static ssize_t taken(int fd, ssize_t done) {
    char text[24];
    int saved = errno;
    record_one('D', fd, text, (size_t)snprintf(text, sizeof text, "%zd", done < 0 ? 0 : done));
    errno = saved;
    return done;
}

static size_t length_of(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

static int is_socket(int fd) {
    struct stat found;
    int saved = errno;
    int result = fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
    errno = saved;
    return result;
}

#define PATH_SIZE 4096

static int is_our_path(const char *path) {
    const char *data = getenv("TRACE_DATA");
    return data != NULL && strncmp(path, data, strlen(data)) == 0 && strstr(path, "-shm") == NULL;
}

static int our_path(int fd, char *path) {
    char link[64];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, PATH_SIZE - 1);
    errno = saved;
    if (size <= 0) return 0;
    path[size] = 0;
    return is_our_path(path);
}

static int is_ours(int fd) {
    char path[PATH_SIZE];
    return our_path(fd, path);
}

#define REAL(name) \
    static __typeof__(name) *real; \
    if (real == NULL) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0 && is_ours(fd)) record_one('W', fd, data, (size_t)done);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0 && is_ours(fd)) record_one('W', fd, data, (size_t)done);
    return done;
}

int fsync(int fd) {
    REAL(fsync);
    char path[PATH_SIZE];
    int ours = our_path(fd, path);
    if (ours) record_one('B', fd, path, strlen(path));
    int result = real(fd);
    if (ours && result == 0) record_one('E', fd, path, strlen(path));
    return result;
}

int fdatasync(int fd) {
    REAL(fdatasync);
    char path[PATH_SIZE];
    int ours = our_path(fd, path);
    if (ours) record_one('B', fd, path, strlen(path));
    int result = real(fd);
    if (ours && result == 0) record_one('E', fd, path, strlen(path));
    return result;
}

int rename(const char *from, const char *to) {
    REAL(rename);
    int result = real(from, to);
    if (result == 0 && is_our_path(to)) record_one('M', -1, to, strlen(to));
    return result;
}

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    int out = is_socket(fd);
    if (out) record_one('N', fd, data, size);
    ssize_t done = real(fd, data, size);
    if (out) return taken(fd, done);
    if (done > 0 && is_ours(fd)) record_one('W', fd, data, (size_t)done);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    if (!is_socket(fd)) return real(fd, parts, count);
    record('N', fd, parts, count, length_of(parts, count));
    return taken(fd, real(fd, parts, count));
}

ssize_t send(int fd, const void *data, size_t size, int flags) {
    REAL(send);
    record_one('N', fd, data, size);
    return taken(fd, real(fd, data, size, flags));
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    int count = (int)message->msg_iovlen;
    record('N', fd, message->msg_iov, count, length_of(message->msg_iov, count));
    return taken(fd, real(fd, message, flags));
}

ssize_t read(int fd, void *data, size_t size) {
    REAL(read);
    ssize_t done = real(fd, data, size);
    if (done > 0 && is_socket(fd)) record_one('R', fd, data, (size_t)done);
    return done;
}

ssize_t recv(int fd, void *data, size_t size, int flags) {
    REAL(recv);
    ssize_t done = real(fd, data, size, flags);
    if (done > 0 && !(flags & MSG_PEEK)) record_one('R', fd, data, (size_t)done);
    return done;
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    REAL(recvmsg);
    ssize_t done = real(fd, message, flags);
    if (done > 0 && !(flags & MSG_PEEK)) record('R', fd, message->msg_iov, (int)message->msg_iovlen, (size_t)done);
    return done;
}
