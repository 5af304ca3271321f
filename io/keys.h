/* SPDX-License-Identifier: MIT
 *
 * The xattrs user.cairn.*: those of the store's files, and those that a mount computes.
 * CKPT_OVER_KEY is in fs/formats/formats.h.
 */
#ifndef CAIRN_IO_KEYS_H
#define CAIRN_IO_KEYS_H

#define KEY_PREFIX "user.cairn."

/* of files in the store */
#define KEY_CHECKSUM KEY_PREFIX "checksum"
/* the st_ino that the mount shows; in a store of several hosts also which save of its directory the
 * version is of (fs/tree/save_tag.c) */
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

#endif
