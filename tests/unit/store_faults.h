/* SPDX-License-Identifier: MIT
 * Faults of the store, by the system calls of the whole process: calls that fail, that return late, that show
 * another inode number, and a publisher that stands still. session_shim.h has those that an engine can have. */
#ifndef CAIRN_STORE_FAULTS_H
#define CAIRN_STORE_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on fstatat, statx and openat of this last component fail, in the whole process. NULL: none. */
void shim_fail(const char *name, int err);

/* The inode `real` shows this number from now on, as if it had got a freed one's. 0: none does. */
void shim_show_ino(uint64_t real, uint64_t shown);

/* The next statx of this last component, "renameat" or (by "closedir") reading of a directory is done, and
 * does not return until shim_let_answer(). */
void shim_answer_late(const char *name);
void shim_await_late(void);
void shim_let_answer(void);

/* After so many steps (a change of names in the store is two) the publisher stands still, as in a
 * worker that is killed there. For a process that ends by _exit(2). */
void shim_stop_publisher(int calls);
bool shim_publisher_stopped(void);

#ifdef __cplusplus
}
#endif
#endif
