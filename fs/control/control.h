/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn: its files, and who answers for what is below it.
 */
#ifndef CAIRN_FS_CONTROL_H
#define CAIRN_FS_CONTROL_H

#include "fs/request/request.h"

/* Of an inode of .cairn or below; ROOT_ID: for a lookup of .cairn itself. */
const struct control_ops *control_ops_of(uint64_t id);

#endif
