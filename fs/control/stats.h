/* SPDX-License-Identifier: MIT
 * The statistics that MOUNT/.cairn shows.
 */
#ifndef CAIRN_FS_STATS_H
#define CAIRN_FS_STATS_H

#include "fs/tree/tree.h"

enum stats_form { STATS_TEXT, STATS_JSON, STATS_METRICS };
/* Writes status, status.json or metrics to f. all: including names of files. */
void stats_write(struct fs *fs, FILE *f, enum stats_form form, bool all);
/* s as a JSON string. */
void stats_json_string(FILE *f, const char *s);
/* files.json (pending.c): each file that is not durable. Names: only for root and the owner. 0 or
 * -ENOMEM: nothing is written. */
int pending_write(struct fs *fs, FILE *f);

#endif
