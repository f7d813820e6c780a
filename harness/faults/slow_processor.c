/* Gives every process a slow processor: after each turn of its event loop it sleeps, in proportion to the processor time that it
 * has spent meanwhile (all its threads included). SLOW_PROCESSOR=10 makes a process as slow as if its processor were ten
 * times slower, while the file that SLOW_PROCESSOR_FILE names is there. Other processes keep the processor that it does not use:
 * so a few cores are enough to see what brokers do that each have a machine to themselves.
 *
 *   cc -shared -fPIC -O1 -o slow_processor.so slow_processor.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static double spent(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static void pay(void) {
    static double paid = -1, factor = 0;
    static const char *file;
    if (paid < 0) {
        const char *asked = getenv("SLOW_PROCESSOR");
        factor = asked ? atof(asked) : 0;
        file = getenv("SLOW_PROCESSOR_FILE");
        paid = spent();
    }
    if (factor <= 1)
        return;
    double since = spent() - paid;
    if (since < 0.001) /* too short to be slept, and not forgotten */
        return;
    paid += since;
    if (file && access(file, F_OK) != 0)
        return;
    double sleep = since * (factor - 1);
    struct timespec pause = {(time_t)sleep, (long)((sleep - (time_t)sleep) * 1e9)};
    nanosleep(&pause, NULL);
}

int epoll_wait(int epfd, struct epoll_event *events, int count, int timeout) {
    static int (*real)(int, struct epoll_event *, int, int);
    if (!real)
        real = dlsym(RTLD_NEXT, "epoll_wait");
    pay();
    return real(epfd, events, count, timeout);
}

int epoll_pwait(int epfd, struct epoll_event *events, int count, int timeout, const sigset_t *signals) {
    static int (*real)(int, struct epoll_event *, int, int, const sigset_t *);
    if (!real)
        real = dlsym(RTLD_NEXT, "epoll_pwait");
    pay();
    return real(epfd, events, count, timeout, signals);
}
