/* SPDX-License-Identifier: MIT
 * What MOUNT/.cairn tells of the mount. */
#ifndef CAIRN_FS_STATS_H
#define CAIRN_FS_STATS_H

#include "fs/fs.h"

enum stats_form { STATS_TEXT, STATS_JSON, STATS_METRICS };
/* Writes status, status.json or metrics as of now to f. all: with the names of files, too. */
void stats_write(struct fs *fs, FILE *f, enum stats_form form, bool all);

#endif
