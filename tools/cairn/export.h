/* SPDX-License-Identifier: MIT
 *
 * Shared by `cairn export` and `cairn import`: a checkpoint's set, laid out as the files of
 * another (fs/formats/view*.c), written whole or not at all.
 */
#ifndef CAIRN_EXPORT_H
#define CAIRN_EXPORT_H

#include "tools/cairn/ckpt/ckpt.h"

#include <signal.h>

enum export_format { EXPORT_SAFETENSORS, EXPORT_TORCH, EXPORT_DCP };

struct export
{
	struct ckpt ck;
	struct files files;
	struct view_base *base;
	struct view *view, *metadata; /* metadata: of DCP only */
	const char *out; /* as given by the user */
	const char *note; /* "exporting" */
	enum export_format format;
	bool quiet, bad;
	struct progress bar;
	uint64_t done; /* bytes of the files before this one */
};

#define EXPORT_EMPTY ((struct export){.ck = CKPT_EMPTY, .note = "exporting"})

/* Reads a checkpoint into x->ck and reports errors. Nothing is guessed: one that is
 * not whole, or not fully supported, gives CAIRN_FAILED; not a checkpoint, CAIRN_USAGE. */
int export_read(struct export *x, const char *path);
/* Can OUT be created at all? 0, or one line (of the subcommand `sub`) and CAIRN_USAGE. */
int export_need_out(const struct export *x, const char *sub);
/* Lays x->ck out and writes it to x->out, prints totals, or the error. */
int export_write(struct export *x);
void export_free(struct export *x);

/* ---- the files (put.c) ------------------------------------------------------ */

/* Signals that end us remove what is not finished. Call it before the first put. */
void put_catch_signals(void);
/* Between these a signal is blocked: what is created is also recorded. */
void put_block_signals(sigset_t *old);
void put_unblock_signals(const sigset_t *old);
/* Writes one line into e, and returns err. */
int put_told(struct fmt_error *e, int err, const char *name);
/* Creates x->out and its missing parent directories; whole or not at all. As a file: x->view, a
 * hidden file in the same directory, renamed when it is on stable storage; so is its name
 * afterwards. As a DCP checkpoint: x->view and x->metadata in a directory, which is created, or
 * empty. The data are on stable storage before .metadata gets its name, and both are afterwards. */
int put_out(struct export *x, struct fmt_error *e);
/* A directory without entries? 1, 0 or -errno. */
int put_is_empty(const char *path);

/* ---- their bytes (copy.c) --------------------------------------------------- */

/* All of v into fd, a new file open for writing, and x->done counts them. -errno, and e says
 * why. */
int copy_view(struct export *x, const struct view *v, int fd, struct fmt_error *e);

#endif
