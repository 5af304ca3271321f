/* SPDX-License-Identifier: MIT
 * The statistics that MOUNT/.cairn shows.
 */
#ifndef CAIRN_FS_STATS_H
#define CAIRN_FS_STATS_H

#include "fs/tree/tree.h"

enum stats_form { STATS_TEXT, STATS_JSON, STATS_METRICS };
/* Writes status, status.json or metrics to f. all: including names of files. */
void stats_write(struct fs *fs, FILE *f, enum stats_form form, bool all);

#endif
