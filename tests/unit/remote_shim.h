// SPDX-License-Identifier: MIT
//
// Listings of a tier, for fs_remote.cc: fs/ is C.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct remote_list;
struct shim_remote {
	const char *path;	// NULL: there is no such node
	uint64_t size;
	unsigned mode;
	int checkpoint, damaged, has_step;
	uint64_t step;
};

int shim_remote_parse(const void *bytes, size_t len, struct remote_list **out);
void shim_remote_free(struct remote_list *l);
unsigned shim_remote_count(const struct remote_list *l);
unsigned shim_remote_left_out(const struct remote_list *l);
unsigned shim_remote_checkpoints(const struct remote_list *l);
struct shim_remote shim_remote_at(const struct remote_list *l, unsigned i);
struct shim_remote shim_remote_find(const struct remote_list *l, const char *path);
// by its id, which is looked up by its path
struct shim_remote shim_remote_by_id(const struct remote_list *l, const char *path);
struct shim_remote shim_remote_child(const struct remote_list *l, const char *dir, const char *name);
struct shim_remote shim_remote_checkpoint(const struct remote_list *l, const char *path);
// the i-th of a directory
struct shim_remote shim_remote_nth(const struct remote_list *l, const char *dir, unsigned i);
uint64_t shim_remote_bytes(const struct remote_list *l, const char *path);
int shim_remote_may(const struct remote_list *l, const char *path, uid_t uid, gid_t gid, unsigned want);

#ifdef __cplusplus
}
#endif
