/* SPDX-License-Identifier: MIT
 *
 * What the store refused for good: where it is now, in words for people.
 */
#ifndef CAIRN_IO_REFUSED_H
#define CAIRN_IO_REFUSED_H

#include <stdint.h>
#include <stdio.h>

#define REFUSED_KEPT 96

/* Only versions of files are kept; of a rename, say, there is nothing to keep. */
static inline const char *refused_kept(uint64_t count, uint64_t kept, char buf[REFUSED_KEPT])
{
	if (!kept)
		return "nothing of it is in .cairn/lost+found: make the change again, if it still "
		       "counts";
	if (kept == count)
		return "versions are in .cairn/lost+found of the store";
	snprintf(buf, REFUSED_KEPT, "versions of %llu are in .cairn/lost+found of the store",
		 (unsigned long long)kept);
	return buf;
}

#endif
