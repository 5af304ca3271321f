/* SPDX-License-Identifier: MIT */
#include "tests/unit/store_faults.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- answers that come late ---- */

static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t late_cond = PTHREAD_COND_INITIALIZER;
static const char *late_name;	/* of the call that is to be late */
static bool is_late;

void shim_answer_late(const char *name)
{
	pthread_mutex_lock(&late_lock);
	late_name = name;
	is_late = false;
	pthread_mutex_unlock(&late_lock);
}

void shim_await_late(void)
{
	pthread_mutex_lock(&late_lock);
	while (!is_late)
		pthread_cond_wait(&late_cond, &late_lock);
	pthread_mutex_unlock(&late_lock);
}

void shim_let_answer(void)
{
	pthread_mutex_lock(&late_lock);
	is_late = false;
	pthread_cond_broadcast(&late_cond);
	pthread_mutex_unlock(&late_lock);
}

/* After the call itself. */
static void be_late(const char *name)
{
	int err = errno;
	pthread_mutex_lock(&late_lock);
	if (late_name && !strcmp(late_name, name)) {
		late_name = NULL;
		is_late = true;
		pthread_cond_broadcast(&late_cond);
		while (is_late)
			pthread_cond_wait(&late_cond, &late_lock);
	}
	pthread_mutex_unlock(&late_lock);
	errno = err;
}

int closedir(DIR *d)
{
	static int (*real)(DIR *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "closedir");
	be_late("closedir");
	return real(d);
}

/* ---- calls of the store and of staging that fail ---- */

/* Threads ask for these while a test changes them. */
static const char *_Atomic failing;
static atomic_int failing_errno;

void shim_fail(const char *name, int err)
{
	failing_errno = err;
	failing = name;
}

static bool fails(const char *name)
{
	const char *what = failing;
	if (!what || !name || strcmp(name, what))
		return false;
	errno = failing_errno;
	return true;
}

static _Atomic ino_t real_ino[4], shown_ino;
static atomic_uint n_real;

void shim_show_ino(uint64_t real, uint64_t shown)
{
	shown_ino = shown;
	if (real)
		real_ino[n_real] = real;
	n_real = real ? n_real + 1 : 0;
}

static uint64_t shown(uint64_t ino)
{
	for (unsigned i = 0; i < n_real; i++)
		if (real_ino[i] == ino)
			return shown_ino;
	return ino;
}

int fstatat(int dirfd, const char *restrict name, struct stat *restrict st, int flags)
{
	static int (*real)(int, const char *, struct stat *, int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fstatat64");
	int rc = fails(name) ? -1 : real(dirfd, name, st, flags);
	if (!rc)
		st->st_ino = shown(st->st_ino);
	return rc;
}

int fstat(int fd, struct stat *st)
{
	static int (*real)(int, struct stat *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fstat64");
	int rc = real(fd, st);
	if (!rc)
		st->st_ino = shown(st->st_ino);
	return rc;
}

int statx(int dirfd, const char *restrict name, int flags, unsigned mask, struct statx *restrict x)
{
	static int (*real)(int, const char *, int, unsigned, struct statx *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "statx");
	int rc = fails(name) ? -1 : real(dirfd, name, flags, mask, x);
	be_late(name);
	if (!rc)
		x->stx_ino = shown(x->stx_ino);
	return rc;
}

/* ---- a worker that dies between two calls of the publisher ---- */

static atomic_int calls_left;	/* of the publisher's changes of names; 0 = it never stops */
static atomic_bool publisher_stopped;

void shim_stop_publisher(int calls)
{
	atomic_store(&calls_left, calls);
}

bool shim_publisher_stopped(void)
{
	return atomic_load(&publisher_stopped);
}

/* Before and after each call in the store: the last that is left never returns. Not of what is staged,
 * which it removes with a lock that others want. */
static void count_call(int dirfd)
{
	char name[16] = "";
	struct statfs st;
	if (!atomic_load(&calls_left) || fstatfs(dirfd, &st) || st.f_type == TMPFS_MAGIC ||
	    pthread_getname_np(pthread_self(), name, sizeof(name)) || strcmp(name, "cairn-publish") ||
	    atomic_fetch_sub(&calls_left, 1) > 1)
		return;
	atomic_store(&publisher_stopped, true);
	for (;;)
		pause();
}

int renameat(int d1, const char *n1, int d2, const char *n2)
{
	static int (*real)(int, const char *, int, const char *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "renameat");
	count_call(d2);
	int rc = real(d1, n1, d2, n2), err = errno;
	count_call(d2);
	errno = err;
	be_late("renameat");
	return rc;
}

int linkat(int d1, const char *n1, int d2, const char *n2, int flags)
{
	static int (*real)(int, const char *, int, const char *, int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "linkat");
	count_call(d2);
	int rc = real(d1, n1, d2, n2, flags), err = errno;
	count_call(d2);
	errno = err;
	return rc;
}

int unlinkat(int dirfd, const char *name, int flags)
{
	static int (*real)(int, const char *, int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
	count_call(dirfd);
	int rc = real(dirfd, name, flags), err = errno;
	count_call(dirfd);
	errno = err;
	return rc;
}

int mkdirat(int dirfd, const char *name, mode_t mode)
{
	static int (*real)(int, const char *, mode_t);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "mkdirat");
	count_call(dirfd);
	int rc = real(dirfd, name, mode), err = errno;
	count_call(dirfd);
	errno = err;
	return rc;
}

int openat(int dirfd, const char *name, int flags, ...)
{
	static int (*real)(int, const char *, int, ...);
	va_list ap;
	va_start(ap, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "openat64");
	return fails(name) ? -1 : real(dirfd, name, flags, mode);
}
