/* SPDX-License-Identifier: MIT
 *
 * The xattrs user.cairn.*: those of the store's files, and those that a mount computes.
 * CKPT_OVER_KEY is in fs/formats/formats.h.
 */
#ifndef CAIRN_IO_KEYS_H
#define CAIRN_IO_KEYS_H

#include <stdint.h>
#include <string.h>

#define KEY_PREFIX "user.cairn."

/* of files in the store */
#define KEY_CHECKSUM KEY_PREFIX "checksum"
/* The st_ino that the mount shows. In a store of several hosts "INO:LOG", with the number of
 * staging's log that published it (staging_log_id), and perhaps which save of its directory the
 * version is of (fs/tree/save_tag.c). */
#define KEY_INO KEY_PREFIX "ino"
/* of .cairn/.saves, the count; in staging's log, of which save a version is */
#define KEY_SAVE KEY_PREFIX "save"
#define KEY_PROBE KEY_PREFIX "probe" /* set and removed again: has this store xattrs? */

/* computed by a mount */
#define KEY_STATE KEY_PREFIX "state"
#define KEY_ERROR KEY_PREFIX "error"
#define KEY_PENDING KEY_PREFIX "pending"
#define KEY_HELD KEY_PREFIX "held"
#define KEY_LANE KEY_PREFIX "lane"
#define KEY_LATEST KEY_PREFIX "latest"
#define KEY_WAIT KEY_PREFIX "wait"
#define KEY_BUFFER KEY_PREFIX "buffer"

/* requests to a mount */
#define KEY_DEVICE KEY_PREFIX "device" /* the only one that users set; it is not listed */
#define KEY_FREEZE KEY_PREFIX "freeze" /* by the freezer only */

/* LOG in a value of KEY_INO, which is untrusted; 0: it has none. */
#define KEY_INO_LOG_DIGITS 8u
static inline uint64_t key_ino_log(const char *value)
{
	static const char hex[] = "0123456789abcdef";
	uint64_t log = 0;

	value += strspn(value, "0123456789");
	if (*value++ != ':' || strspn(value, hex) != KEY_INO_LOG_DIGITS)
		return 0;
	for (unsigned i = 0; i < KEY_INO_LOG_DIGITS; i++)
		log = log << 4 | (uint64_t)(strchr(hex, value[i]) - hex);
	return log;
}

#endif
