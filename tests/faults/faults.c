/* A disk that fails on purpose, for tests/it/disk_faults.rs.
 *
 * Loaded with LD_PRELOAD into the real program. It wraps the calls that write files whose
 * path contains FAULTS_DIR. The file FAULTS_CONTROL says how they behave, and is read at
 * every call, so that a test can change it while the program runs:
 *
 *   ok         nothing fails
 *   enospc     the disk is full
 *   erofs      the file system is read-only
 *   eio        writes fail
 *   short      a write takes half of the bytes
 *   hang       a sync does not end while this is so
 *   eio-sync   syncs fail
 *   clock      the wall clock is an hour ahead; the disk is as in ok
 *   clock-ten  the same by ten years
 *
 * After each sync the file is copied to the directory FAULTS_SYNCED: what a power failure
 * leaves at least. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int is_mode(const char *mode)
{
    char now[16] = "";
    const char *path = getenv("FAULTS_CONTROL");
    int file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        if (syscall(SYS_read, file, now, sizeof now - 1) < 0) now[0] = 0;
        syscall(SYS_close, file);
    }
    return strcmp(now, mode) == 0;
}

static int is_wrapped_path(const char *path)
{
    const char *dir = getenv("FAULTS_DIR");
    return dir && path && strstr(path, dir) != NULL;
}

static int path_of(int file, char *path, size_t size)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_wrapped_path(path);
}

static int is_wrapped(int file)
{
    char path[4096];
    return path_of(file, path, sizeof path);
}

/* The error of a call that changes a file, or 0. */
static int write_error(void)
{
    if (is_mode("enospc")) return ENOSPC;
    if (is_mode("erofs")) return EROFS;
    if (is_mode("eio")) return EIO;
    return 0;
}

static int open_error(const char *path, int flags)
{
    int is_writing = (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT);
    if (!is_writing || !is_wrapped_path(path)) return 0;
    if (is_mode("erofs")) return EROFS;
    /* A full disk has no room for a new file. */
    if (is_mode("enospc") && (flags & O_CREAT) && access(path, F_OK) != 0) return ENOSPC;
    return 0;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && clock == CLOCK_REALTIME && is_mode("clock")) time->tv_sec += 3600;
    if (result == 0 && clock == CLOCK_REALTIME && is_mode("clock-ten")) time->tv_sec += 315360000;
    return result;
}

#define WRAP_OPEN(name)                                                       \
    int name(const char *path, int flags, ...)                                \
    {                                                                         \
        va_list rest;                                                         \
        va_start(rest, flags);                                                \
        int mode = va_arg(rest, int);                                         \
        va_end(rest);                                                         \
        int error = open_error(path, flags);                                  \
        if (error) return errno = error, -1;                                  \
        return REAL(name)(path, flags, mode);                                 \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)

static ssize_t start_write(int file, size_t *size)
{
    if (!is_wrapped(file)) return 0;
    int error = write_error();
    if (error) return errno = error, -1;
    if (*size > 1 && is_mode("short")) *size /= 2;
    return 0;
}

ssize_t write(int file, const void *bytes, size_t size)
{
    if (start_write(file, &size) < 0) return -1;
    return REAL(write)(file, bytes, size);
}

ssize_t pwrite(int file, const void *bytes, size_t size, off_t offset)
{
    if (start_write(file, &size) < 0) return -1;
    return REAL(pwrite)(file, bytes, size, offset);
}

ssize_t pwrite64(int file, const void *bytes, size_t size, off64_t offset)
{
    if (start_write(file, &size) < 0) return -1;
    return REAL(pwrite64)(file, bytes, size, offset);
}

#define WRAP_TRUNCATE(name, type)                                             \
    int name(int file, type size)                                             \
    {                                                                         \
        int error = is_wrapped(file) ? write_error() : 0;                     \
        if (error) return errno = error, -1;                                  \
        return REAL(name)(file, size);                                        \
    }
WRAP_TRUNCATE(ftruncate, off_t)
WRAP_TRUNCATE(ftruncate64, off64_t)

/* Copies a synced file, under a temporary name first: the process may be killed here. */
static void keep_synced(const char *path)
{
    const char *dir = getenv("FAULTS_SYNCED");
    const char *name = strrchr(path, '/');
    char target[4096], part[4200], bytes[65536];
    if (!dir || !name || access(path, F_OK) != 0) return;
    snprintf(target, sizeof target, "%s%s", dir, name);
    snprintf(part, sizeof part, "%s.part", target);
    int from = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    int to = syscall(SYS_openat, AT_FDCWD, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t length = 0;
    while (from >= 0 && to >= 0 && (length = syscall(SYS_read, from, bytes, sizeof bytes)) > 0)
        if (syscall(SYS_write, to, bytes, length) != length) break;
    if (from >= 0) syscall(SYS_close, from);
    if (to >= 0) syscall(SYS_close, to);
    if (to >= 0 && length == 0) rename(part, target);
}

#define WRAP_SYNC(name)                                                       \
    int name(int file)                                                        \
    {                                                                         \
        char path[4096];                                                      \
        if (!path_of(file, path, sizeof path)) return REAL(name)(file);       \
        while (is_mode("hang")) usleep(2000);                                 \
        if (is_mode("eio-sync")) return errno = EIO, -1;                      \
        int result = REAL(name)(file);                                        \
        if (result == 0) keep_synced(path);                                   \
        return result;                                                        \
    }
WRAP_SYNC(fsync)
WRAP_SYNC(fdatasync)
