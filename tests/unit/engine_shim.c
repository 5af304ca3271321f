/* SPDX-License-Identifier: MIT */
#include "engine_shim.h"

#include <string.h>

#include "io/engine/table.h"
#include "io/keys.h"

static struct io_ops patched;
static const struct io_ops *real;
static shim_seen_fn seen_fn;
static void *seen_ctx;

static enum shim_kind kind_of(const struct io_call *c)
{
	switch (c->op) {
	case IO_OP_RENAME:
	case IO_OP_LINK:
	case IO_OP_UNLINK:
	case IO_OP_RMDIR:
	case IO_OP_MKDIR:
	case IO_OP_SYMLINK:
	case IO_OP_MKNOD:
		return SHIM_NAME;
	case IO_OP_SYNC_DIR:
	case IO_OP_SYNC_ALL:
	case IO_OP_SYNC_MARK:
		return SHIM_SYNC;
	case IO_OP_WRITE:
		return SHIM_WRITE;
	case IO_OP_ALLOCATE:
		return SHIM_ALLOCATE;
	case IO_OP_SYNC_DATA:
		return SHIM_SYNC_BYTES;
	case IO_OP_XATTR_SET:
		return strncmp(c->key, KEY_PREFIX, sizeof(KEY_PREFIX) - 1) ? SHIM_XATTR : SHIM_OTHER;
	default:
		return SHIM_OTHER;
	}
}

static ssize_t shim_call(struct io_engine *e, const struct io_call *c)
{
	int rc = seen_fn(seen_ctx, kind_of(c), c->fd);

	return rc ? rc : real->call(e, c);
}

void shim_engine(struct io_engine *e, shim_seen_fn seen, void *ctx)
{
	real = e->ops;
	patched = *real;
	patched.call = shim_call;
	seen_fn = seen;
	seen_ctx = ctx;
	e->ops = &patched;
}
