/* SPDX-License-Identifier: MIT */
#include "tests/unit/remote_shim.h"

#include "fs/remote/remote.h"

int shim_remote_parse(const void *bytes, size_t len, struct remote_list **out)
{
	return remote_parse(bytes, len, out);
}

void shim_remote_free(struct remote_list *l)
{
	remote_free(l);
}

unsigned shim_remote_count(const struct remote_list *l)
{
	return l->n;
}

unsigned shim_remote_left_out(const struct remote_list *l)
{
	return l->left_out;
}

unsigned shim_remote_checkpoints(const struct remote_list *l)
{
	return (unsigned)l->checkpoints;
}

static struct shim_remote shown(const struct remote_node *n)
{
	if (!n)
		return (struct shim_remote){0};
	return (struct shim_remote){.path = n->path,
				    .size = (uint64_t)n->st.st_size,
				    .mode = n->st.st_mode,
				    .checkpoint = n->checkpoint,
				    .damaged = atomic_load(&n->damaged),
				    .has_step = n->kind.has_step,
				    .step = n->kind.step};
}

struct shim_remote shim_remote_at(const struct remote_list *l, unsigned i)
{
	return shown(&l->v[i]);
}

struct shim_remote shim_remote_find(const struct remote_list *l, const char *path)
{
	return shown(remote_find(l, path));
}

struct shim_remote shim_remote_by_id(const struct remote_list *l, const char *path)
{
	return shown(remote_of_id(l, remote_find(l, path)->id));
}

struct shim_remote shim_remote_child(const struct remote_list *l, const char *dir, const char *name)
{
	return shown(remote_child(l, remote_find(l, dir), name));
}

struct shim_remote shim_remote_checkpoint(const struct remote_list *l, const char *path)
{
	return shown(remote_checkpoint(l, remote_find(l, path)));
}

struct shim_remote shim_remote_nth(const struct remote_list *l, const char *dir, unsigned i)
{
	uint32_t at = remote_find(l, dir)->first;

	while (at && i--)
		at = l->v[at].next;
	return shown(at ? &l->v[at] : NULL);
}

uint64_t shim_remote_bytes(const struct remote_list *l, const char *path)
{
	return remote_bytes(l, remote_find(l, path));
}

int shim_remote_may(const struct remote_list *l, const char *path, uid_t uid, gid_t gid, unsigned want)
{
	const struct caller who = {.uid = uid, .gid = gid};

	return remote_may(l, remote_find(l, path), &who, want);
}
