/* SPDX-License-Identifier: MIT
 * An engine whose calls are seen before they are made. In C: io/engine/table.h is no C++. */
#ifndef CAIRN_ENGINE_SHIM_H
#define CAIRN_ENGINE_SHIM_H

#include "io/engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

enum shim_kind { SHIM_NAME, SHIM_SYNC, SHIM_SYNC_BYTES, SHIM_WRITE, SHIM_ALLOCATE, SHIM_XATTR, SHIM_OTHER };

/* Called before each call of the store, by whichever thread makes it; may block. SHIM_NAME: a name is
 * made, moved or removed; SHIM_SYNC: the sync of names; SHIM_WRITE: bytes, but
 * not those of a queue; SHIM_XATTR: a user's xattr is set. Not 0: the call is not made, that is its answer. */
typedef int (*shim_seen_fn)(void *ctx, enum shim_kind kind, int fd);

/* One engine at a time; until it is closed. */
void shim_engine(struct io_engine *e, shim_seen_fn seen, void *ctx);

#ifdef __cplusplus
}
#endif
#endif
