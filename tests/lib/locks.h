/* SPDX-License-Identifier: MIT
 * Checks of the order of locks (io/locks.h), in every test program and in build/tests/cairnfs: the
 * linker leads their calls of pthread_mutex_lock() and the like here (Makefile, CHECK_LOCKS). A
 * thread that breaks the order is reported, with its stack, and the process aborts.
 */
#ifndef CAIRN_TESTS_LOCKS_H
#define CAIRN_TESTS_LOCKS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Locks with a rank that the calling thread holds. */
unsigned locks_held(void);

/* Where it is reported: stderr, if nothing else is set. */
extern int locks_report_fd;

#ifdef __cplusplus
}
#endif

#endif
