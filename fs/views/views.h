/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn/views: checkpoints shown as other files.
 */
#ifndef CAIRN_FS_VIEWS_H
#define CAIRN_FS_VIEWS_H

#include "fs/request/request.h"

extern const struct control_ops views_ops;

#endif
