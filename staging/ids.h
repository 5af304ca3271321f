/* SPDX-License-Identifier: MIT
 *
 * The layout of ids. A 64-bit id names a node to the kernel (FUSE's nodeid) and an object to
 * staging; the number of a new node is also the st_ino that users see, and stays with the file
 * (user.cairn.ino).
 *
 *	bits 63		a node of .cairn/views (fs/views/views_node.c)
 *	     62		a directory below .cairn/latest or .cairn/buffers; 61..56: which tree,
 *			55..0: a hash
 *	     63, 62 0	given by staging_new_id: files, directories, handles, staged files,
 *			unpublished files
 *	     61..50	the host's number in the store (io_store_host_number), spread so that
 *			55..52 are not 0110: no two hosts of a store give the same id
 *	     49..20	seconds since 2024 when the staging area was made
 *	     19..0	the fraction of that second; a counter runs from there into the bits above
 *	ids below 16	the root, and fixed names below .cairn
 *
 * A host without a number, and a staging area that an earlier version made, until it is empty at an
 * unmount:
 *	     61..56	random, once per staging area
 *	     55..24	seconds since 1970, of which the uppermost 4 bits are 0110 always
 *	     23..0	the fraction of that second, and the counter
 *
 * An id is never reused on a host, since the counter is slower than the clock: overtaking it would
 * take a million ids a second.
 *
 * 0.1.0 put a hash of the hostname into bits 62..56. In its stores user.cairn.ino may have bit 62
 * set: that number is only shown, never looked up, so it is shown unchanged. In its logs nodes may
 * have it set: a start replays their names and gives new ids from then on (log_open).
 */
#ifndef CAIRN_STAGING_IDS_H
#define CAIRN_STAGING_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define ID_VIEW_SHIFT 63
#define ID_TREE_SHIFT 62
#define ID_SALT_SHIFT 56
#define ID_SALT_BITS 6
#define ID_SECOND_SHIFT 24
#define ID_SECOND_BITS 32
#define ID_HOST_SHIFT 50
#define ID_HOST_SECOND_SHIFT 20
#define ID_HOST_SECOND_BITS 30
#define ID_HOST_EPOCH 1704067200 /* 2024-01-01 */

#define ID_VIEW_BIT (1ull << ID_VIEW_SHIFT)
#define ID_TREE_BIT (1ull << ID_TREE_SHIFT)
#define ID_SALT_MASK ((1u << ID_SALT_BITS) - 1)

#define STAGING_ROOT_DIR 1ull /* id of the store's root directory */
#define STAGING_FIRST_ID 16ull /* ids below are reserved */
#define STAGING_ID_MASK (ID_TREE_BIT - 1)

#ifdef __cplusplus
#define ID_ASSERT(what) static_assert(what, #what)
#else
#define ID_ASSERT(what) _Static_assert(what, #what)
#endif
ID_ASSERT(ID_SECOND_SHIFT + ID_SECOND_BITS == ID_SALT_SHIFT);
ID_ASSERT(ID_SALT_SHIFT + ID_SALT_BITS == ID_TREE_SHIFT);
ID_ASSERT(ID_HOST_SECOND_SHIFT + ID_HOST_SECOND_BITS == ID_HOST_SHIFT);
ID_ASSERT(ID_TREE_SHIFT + 1 == ID_VIEW_SHIFT);
ID_ASSERT(STAGING_ROOT_DIR < STAGING_FIRST_ID);

/* May staging give this id? */
static inline bool staging_id_is_valid(uint64_t id)
{
	return id >= STAGING_FIRST_ID && id <= STAGING_ID_MASK;
}

/* The bits from ID_HOST_SHIFT on of the host with this number, from 1 to IO_HOST_NUMBERS. Of each
 * 64 values, 4 are those of hosts without a number. */
static inline uint64_t staging_host_bits(unsigned number)
{
	uint64_t low = number % 60;

	return (uint64_t)(number / 60) << 6 | (low < 24 ? low : low + 4);
}

/* The first id of a staging area that is made now, on that host. */
static inline uint64_t staging_first_id_of(const struct timespec *now, unsigned number)
{
	uint64_t host = staging_host_bits(number);
	uint64_t second =
		(uint64_t)(now->tv_sec - ID_HOST_EPOCH) & ((1ull << ID_HOST_SECOND_BITS) - 1);
	uint64_t fraction = ((uint64_t)now->tv_nsec << ID_HOST_SECOND_SHIFT) / 1000000000u;

	return host << ID_HOST_SHIFT | second << ID_HOST_SECOND_SHIFT | fraction;
}

/* The same on a host without one. */
static inline uint64_t staging_first_id(const struct timespec *now, unsigned salt)
{
	uint64_t low = (1ull << (ID_SECOND_BITS - 4)) - 1;
	uint64_t second = ((uint64_t)now->tv_sec & low) | 6 * (low + 1);
	uint64_t fraction = ((uint64_t)now->tv_nsec << ID_SECOND_SHIFT) / 1000000000u;
	uint64_t id = (uint64_t)(salt & ID_SALT_MASK) << ID_SALT_SHIFT | second << ID_SECOND_SHIFT |
		      fraction;

	return id < STAGING_FIRST_ID ? STAGING_FIRST_ID : id;
}

#endif
