/* SPDX-License-Identifier: MIT
 * The -o options of cairnfs: one table, in options_table.c.
 */
#ifndef CAIRN_FS_OPTIONS_H
#define CAIRN_FS_OPTIONS_H

#include "fs/process/process.h"

/* ---- options_table.c ---- */
/* Sets the defaults. */
void options_defaults(struct fs_opts *o);
/* Takes one option, "name" or "name=value". 1: taken. 0: libfuse must have it, too. -EINVAL: the
 * reason is on stderr. */
int options_take(struct fs_opts *o, const char *opt);
/* The i-th name in the table, followed by "=" if it takes a value. NULL: there is none. */
const char *options_name(unsigned i);
/* Writes a line to f for each option. */
void options_help(FILE *f);
/* Prints "cairnfs: WHAT" or "cairnfs: WHAT: VALUE" to stderr, returns -EINVAL */
int options_refuse(const char *what, const char *value);

/* ---- options_unknown.c ---- */
/* An option that is not in the table, "name" or "name=value": 0 if libfuse takes it, else -EINVAL
 * and a line on stderr. */
int options_refuse_unknown(const char *opt);

/* ---- places.c: o->store and o->mountpoint are resolved ---- */
/* Refuses a mountpoint that is a store, or has files while the store has none: the two are probably
 * swapped. Warns of files that another mountpoint has. 0 or -EINVAL, as options_refuse(). */
int places_hide(const struct fs_opts *o);
/* Refuses a store in another one that is served, or around it, and a mountpoint in such. 0 or
 * -EINVAL, as options_refuse(). */
int places_nested(const struct fs_opts *o);

#endif
