/* SPDX-License-Identifier: MIT
 * The -o options that have a meaning here: one table, in options_table.c. */
#ifndef CAIRN_FS_OPTIONS_H
#define CAIRN_FS_OPTIONS_H

#include "fs/fs.h"

/* ---- options_table.c ---- */
/* What holds without any option. */
void options_defaults(struct fs_opts *o);
/* Takes one option, "name" or "name=value". 1: it is ours, and done. 0: libfuse has it too. -EINVAL: stderr has why. */
int options_take(struct fs_opts *o, const char *opt);
/* The i-th name in the table, with "=" at its end if it takes a value. NULL: there are no more. */
const char *options_name(unsigned i);
/* A line to f for each option. */
void options_help(FILE *f);
/* "cairnfs: WHAT" or "cairnfs: WHAT: VALUE" to stderr. -EINVAL */
int options_refuse(const char *what, const char *value);

/* ---- options_unknown.c ---- */
/* One option that is not ours, "name" or "name=value": 0 if libfuse takes it, else -EINVAL and a line on stderr. */
int options_refuse_unknown(const char *opt);

#endif
