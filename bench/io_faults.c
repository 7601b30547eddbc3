/* Lets one write-side call of a build fail: the one whose number, over all its processes, is chosen.
 *
 * IO_FAULT_COUNT is a file that holds the number of calls so far, IO_FAULT_AT the one that fails,
 * IO_FAULT_KIND how: enospc, eio, kill, short.  Only calls on paths below IO_FAULT_BELOW count.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

static _Atomic long *counter(void) {
    static _Atomic long *count;
    if (!count && getenv("IO_FAULT_COUNT")) {
        int file = REAL(open)(getenv("IO_FAULT_COUNT"), O_RDWR);
        void *page = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) count = page;
        if (file >= 0) close(file);
    }
    return count;
}

/* Is it this call's turn?  `path` as it was given, or that of a descriptor. */
static int turn(int at, const char *path, int file) {
    char whole[PATH_MAX], link[64];
    const char *below = getenv("IO_FAULT_BELOW");
    if (!below || !counter()) return 0;
    if (path && path[0] != '/') {
        if (at == AT_FDCWD) {
            if (!getcwd(whole, sizeof whole - 300)) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t size = readlink(link, whole, sizeof whole - 300);
            if (size < 0) return 0;
            whole[size] = 0;
        }
        strncat(whole, "/", 2);
        strncat(whole, path, 250);
        path = whole;
    } else if (!path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t size = readlink(link, whole, sizeof whole - 1);
        if (size < 0) return 0;
        whole[size] = 0;
        path = whole;
    }
    if (strncmp(path, below, strlen(below))) return 0;
    if (strstr(path, "/.snakemake/") || strstr(path, "/logs/")) return 0;
    long number = atomic_fetch_add(counter(), 1);
    if (getenv("IO_FAULT_TRACE")) {
        int trace = REAL(open)(getenv("IO_FAULT_TRACE"), O_WRONLY | O_APPEND | O_CREAT, 0644);
        dprintf(trace, "%ld %s\n", number, path);
        close(trace);
    }
    return number == atol(getenv("IO_FAULT_AT"));
}

static int fails(void) {
    const char *kind = getenv("IO_FAULT_KIND");
    if (!strcmp(kind, "kill")) raise(SIGKILL);
    errno = !strcmp(kind, "eio") ? EIO : ENOSPC;
    return -1;
}

#define ONE(call, at, path, file) \
    if (turn(at, path, file)) return fails(); \
    return call

int rename(const char *a, const char *b) { ONE(REAL(rename)(a, b), AT_FDCWD, b, 0); }
int link(const char *a, const char *b) { ONE(REAL(link)(a, b), AT_FDCWD, b, 0); }
int linkat(int x, const char *a, int y, const char *b, int f) { ONE(REAL(linkat)(x, a, y, b, f), y, b, 0); }
int symlink(const char *a, const char *b) { ONE(REAL(symlink)(a, b), AT_FDCWD, b, 0); }
int unlink(const char *a) { ONE(REAL(unlink)(a), AT_FDCWD, a, 0); }
int unlinkat(int at, const char *a, int f) { ONE(REAL(unlinkat)(at, a, f), at, a, 0); }
int mkdir(const char *a, mode_t m) { ONE(REAL(mkdir)(a, m), AT_FDCWD, a, 0); }
int fsync(int file) { ONE(REAL(fsync)(file), 0, 0, file); }

static int creates(int flags) { return flags & (O_WRONLY | O_RDWR | O_CREAT); }

int open64(const char *a, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (creates(flags) && turn(AT_FDCWD, a, 0)) return fails();
    return REAL(open64)(a, flags, mode);
}
int openat64(int at, const char *a, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    if (creates(flags) && turn(at, a, 0)) return fails();
    return REAL(openat64)(at, a, flags, mode);
}

#define PIECE(real, size) \
    if (turn(0, 0, file)) { \
        if (strcmp(getenv("IO_FAULT_KIND"), "short")) return fails(); \
        size /= 2; \
    } \
    return real

ssize_t write(int file, const void *data, size_t size) { PIECE(REAL(write)(file, data, size), size); }
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    PIECE(REAL(pwrite64)(file, data, size, at), size);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    if (turn(0, 0, file)) return fails(), errno;
    return REAL(posix_fallocate64)(file, at, size);
}
