/* SPDX-License-Identifier: MIT
 *
 * For the fault engine's lostsync: what was written and not synced, so that a
 * failed sync can lose it, as ext4 and xfs do.
 */
#ifndef CAIRN_IO_FAULT_LOST_H
#define CAIRN_IO_FAULT_LOST_H

#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>

struct lost_file;

struct fault_lost {
	pthread_mutex_t lock;
	struct lost_file *files; /* newest first */
	unsigned n;
};

void fault_lost_init(struct fault_lost *l);
void fault_lost_free(struct fault_lost *l);
void fault_lost_wrote(struct fault_lost *l, int fd, uint64_t off, uint64_t len);
/* fd -1 = every file. -EIO: fd's bytes were lost to a sync of all; returned once. */
int fault_lost_synced(struct fault_lost *l, int fd);
void fault_lost_drop(struct fault_lost *l, int fd);

#endif
