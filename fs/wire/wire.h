/* SPDX-License-Identifier: MIT
 * The FUSE connection.
 */
#ifndef CAIRN_FS_WIRE_H
#define CAIRN_FS_WIRE_H

#include "fs/request/request.h"

extern const struct fuse_lowlevel_ops fs_ops; /* dispatch.c */
/* receive.c: init is the first request, which the keeper has read; then all threads answer. resend:
 * asks the kernel for what the last worker took and did not answer. 0 or -errno. */
int wire_run(struct fs *fs, const void *init, size_t init_len, bool resend);

#endif
