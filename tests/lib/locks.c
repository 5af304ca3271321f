/* SPDX-License-Identifier: MIT */
#include "tests/lib/locks.h"

#include <execinfo.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "io/locks.h"

#define HELD_MAX 64u /* before a fork, libcairn holds the locks of all stages */
#define STACK_MAX 48

int locks_report_fd = 2;

#define RANK_NAME(rank, lock, file, flags) [rank] = lock " (" file ")",
static const char *const names[] = {LOCK_RANKS(RANK_NAME)};
#define RANK_FLAGS(rank, lock, file, flags) [rank] = (flags),
static const unsigned char rank_flags[] = {LOCK_RANKS(RANK_FLAGS)};

static _Thread_local struct {
	const void *lock;
	unsigned rank;
} held[HELD_MAX];
static _Thread_local unsigned n_held;

/* backtrace() opens a library at its first call, which the worker may not do. */
__attribute__((constructor)) static void prepare(void)
{
	void *stack[1];
	backtrace(stack, 1);
}

static void report_held(void)
{
	dprintf(locks_report_fd, "held, in the order of taking:\n");
	for (unsigned i = 0; i < n_held; i++)
		dprintf(locks_report_fd, "    %s\n", names[held[i].rank]);
}

__attribute__((format(printf, 1, 2), noreturn)) static void refuse(const char *fmt, ...)
{
	void *stack[STACK_MAX];
	va_list ap;

	dprintf(locks_report_fd, "order of locks: ");
	va_start(ap, fmt);
	vdprintf(locks_report_fd, fmt, ap);
	va_end(ap);
	dprintf(locks_report_fd, "\n");
	report_held();
	backtrace_symbols_fd(stack, backtrace(stack, STACK_MAX), locks_report_fd);
	abort();
}

/* 0: of a library, which has its own order. */
static unsigned rank_of(const pthread_mutex_t *m)
{
	return m->__data.__kind == PTHREAD_MUTEX_TIMED_NP ? (unsigned)m->__data.__spins : RANK_NONE;
}

static bool holds_rank(unsigned rank)
{
	for (unsigned i = 0; i < n_held; i++)
		if (held[i].rank == rank)
			return true;
	return false;
}

unsigned locks_held(void)
{
	return n_held;
}

static void check_order(unsigned rank)
{
	for (unsigned i = 0; i < n_held; i++) {
		if (held[i].rank < rank)
			continue;
		if (held[i].rank == rank && rank_flags[rank] & RANK_ALL && holds_rank(rank - 1))
			continue;
		refuse("takes %s with %s held", names[rank], names[held[i].rank]);
	}
}

/* A thread is about to wait for something else than a lock: the store, or a condition (what: the
 * lock that it is waited for with). */
static void check_wait(const char *what)
{
	for (unsigned i = 0; i < n_held; i++)
		if (!(rank_flags[held[i].rank] & RANK_LONG))
			refuse("waits for %s with %s held", what, names[held[i].rank]);
}

static void took(const void *lock, unsigned rank)
{
	if (rank >= N_RANKS || n_held == HELD_MAX)
		refuse("a lock of rank %u, the %uth that is held", rank, n_held + 1);
	held[n_held].lock = lock;
	held[n_held++].rank = rank;
}

static void gave(const void *lock, unsigned rank)
{
	unsigned i = n_held;

	while (i && held[i - 1].lock != lock)
		i--;
	if (!i)
		refuse("releases %s, which it does not hold", names[rank]);
	for (n_held--; i <= n_held; i++)
		held[i - 1] = held[i];
}

/* ---- what the linker calls in place of the functions without __wrap_ ---- */

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __real_pthread_rwlock_wrlock(pthread_rwlock_t *l);
int __real_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t);
/* not in every program */
__attribute__((weak)) void __real_io_engine_run_check(void *e);

int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l);
int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t);
void __wrap_io_engine_run_check(void *e);

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	unsigned rank = rank_of(m);
	int err;

	if (rank)
		check_order(rank);
	err = __real_pthread_mutex_lock(m);
	if (rank && !err)
		took(m, rank);
	return err;
}

/* It does not wait: it may be asked for in any order. */
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
	unsigned rank = rank_of(m);
	int err = __real_pthread_mutex_trylock(m);

	if (rank && !err)
		took(m, rank);
	return err;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	unsigned rank = rank_of(m);

	if (rank)
		gave(m, rank);
	return __real_pthread_mutex_unlock(m);
}

int __wrap_pthread_rwlock_rdlock(pthread_rwlock_t *l)
{
	unsigned rank = l->__data.__pad3;
	int err;

	if (rank)
		check_order(rank);
	err = __real_pthread_rwlock_rdlock(l);
	if (rank && !err)
		took(l, rank);
	return err;
}

int __wrap_pthread_rwlock_wrlock(pthread_rwlock_t *l)
{
	unsigned rank = l->__data.__pad3;
	int err;

	if (rank)
		check_order(rank);
	err = __real_pthread_rwlock_wrlock(l);
	if (rank && !err)
		took(l, rank);
	return err;
}

int __wrap_pthread_rwlock_unlock(pthread_rwlock_t *l)
{
	if (l->__data.__pad3)
		gave(l, l->__data.__pad3);
	return __real_pthread_rwlock_unlock(l);
}

/* A wait releases its lock, and takes it again with all others held. */
static unsigned wait_begins(const pthread_mutex_t *m)
{
	unsigned rank = rank_of(m);

	if (rank)
		gave(m, rank);
	check_wait(rank ? names[rank] : "a condition");
	if (rank)
		check_order(rank);
	return rank;
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	unsigned rank = wait_begins(m);
	int err = __real_pthread_cond_wait(c, m);

	if (rank)
		took(m, rank);
	return err;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *t)
{
	unsigned rank = wait_begins(m);
	int err = __real_pthread_cond_timedwait(c, m, t);

	if (rank)
		took(m, rank);
	return err;
}

void __wrap_io_engine_run_check(void *e)
{
	check_wait("the store");
	__real_io_engine_run_check(e);
}
