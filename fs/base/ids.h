/* SPDX-License-Identifier: MIT
 * Ids of inodes that are not files of the tree: those of .cairn and below (staging/ids.h has the
 * bits).
 */
#ifndef CAIRN_FS_IDS_H
#define CAIRN_FS_IDS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "staging/staging.h"

#define ROOT_ID STAGING_ROOT_DIR
#define CONTROL_DIR_NAME ".cairn"
#define CONTROL_DIR 2ull
#define CONTROL_LAST 15ull
#define VIEWS_DIR 15ull /* .cairn/views */
#define VIEWS_FIRST ID_VIEW_BIT /* all below it */
/* Other directories below .cairn have ids with a bit that no other id has, the number of their
 * tree, and a hash of the path in it. */
#define CONTROL_TREE_BIT ID_TREE_BIT
enum control_tree { CONTROL_LATEST, CONTROL_BUFFERS, CONTROL_REMOTE, CONTROL_TREES };

_Static_assert(CONTROL_LAST < STAGING_FIRST_ID && VIEWS_DIR <= CONTROL_LAST,
	       "names of .cairn have fixed ids");
_Static_assert(CONTROL_TREES <= 1u << ID_SALT_BITS,
	       "a tree's number fits between its hash and its bit");

static inline uint64_t control_tree_id(enum control_tree t, uint64_t hash)
{
	hash &= (1ull << ID_SALT_SHIFT) - 1;
	return CONTROL_TREE_BIT | (uint64_t)t << ID_SALT_SHIFT | hash;
}

static inline bool is_view(uint64_t id)
{
	return id == VIEWS_DIR || id >= VIEWS_FIRST;
}

static inline bool is_control(uint64_t id)
{
	return (id >= CONTROL_DIR && id <= CONTROL_LAST) || id & CONTROL_TREE_BIT || is_view(id);
}

static inline bool name_is_control(uint64_t parent, const char *name)
{
	return parent == ROOT_ID && !strcmp(name, CONTROL_DIR_NAME);
}

#endif
