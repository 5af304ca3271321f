/* SPDX-License-Identifier: MIT
 * The names of .cairn/views: what each stands for, and its attributes.
 */
#include "fs/views/inside.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define RANKS_MAX 65536u

bool vkind_is_dir(enum vkind k)
{
	return k == V_DIR || k == V_SPLIT || k == V_RESHARD || k == V_WORLD || k == V_TENSORS;
}

/* ---- names ---- */

bool vname_encode(const char *name, char buf[MAX_NAME + 1])
{
	size_t n = 0;
	for (; *name && n + 7 <= MAX_NAME; name++) {
		if (*name == '/' || *name == '%')
			n += (size_t)sprintf(buf + n, "%s", *name == '/' ? "%2F" : "%25");
		else
			buf[n++] = *name;
	}
	strcpy(buf + n, ".npy");
	return !*name;
}

/* Decodes a tensor's name: its length, or -1: not a valid name. */
static ssize_t name_decode(const char *file, char buf[MAX_NAME + 1])
{
	size_t len = strlen(file), n = 0;
	if (len < 4 || len > MAX_NAME || strcmp(file + len - 4, ".npy"))
		return -1;
	for (const char *p = file; p < file + len - 4; p++) {
		if (*p != '%') {
			buf[n++] = *p;
			continue;
		}
		if (strncmp(p, "%2F", 3) && strncmp(p, "%25", 3))
			return -1;
		buf[n++] = p[2] == 'F' ? '/' : '%';
		p += 2;
	}
	return (ssize_t)n;
}

/* A decimal number in canonical form. */
static bool number(const char *s, size_t len, uint64_t max, uint64_t *out)
{
	*out = 0;
	if (!len || len > 9 || (*s == '0' && len > 1))
		return false;
	for (size_t i = 0; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return false;
		*out = *out * 10 + (uint64_t)(s[i] - '0');
	}
	return *out <= max;
}

const struct vspecial vspecials[N_VSPECIALS] = {
	{"model.safetensors", V_MODEL}, {"split-5G", V_SPLIT},	{"reshard", V_RESHARD},
	{"tensors", V_TENSORS},		{"refused", V_REFUSED},
};

bool vspecial_has(const struct vckpt *c, enum vkind k)
{
	return k == V_REFUSED ? *c->why : k == V_TENSORS ? c->set != NULL : c->set && !*c->why;
}

/* In a directory of the mount: the views of the checkpoint there, or a subdirectory. *path is the
 * buffer that key->path points to; the caller frees it. */
static int find_in_dir(struct fs *fs, const struct view_key *dir, const char *name,
		       struct view_key *key, char **path)
{
	struct vckpt *c;
	size_t i = 0;
	while (i < N_VSPECIALS && strcmp(name, vspecials[i].name))
		i++;
	int err = i < N_VSPECIALS ? vckpt_get(fs, dir->path, false, &c) : -ENOENT;
	if (err == -EIO)
		return err; /* it is not known whether there is one */
	if (!err) {
		bool has = vspecial_has(c, vspecials[i].kind);
		*key = (struct view_key){
			.kind = vspecials[i].kind, .path = dir->path, .version = c->version};
		vckpt_put(c);
		if (has)
			return 0;
	}
	*path = path_join(dir->path, name);
	if (!*path)
		return -ENOMEM;
	*key = (struct view_key){.kind = V_DIR, .path = *path};
	return 0; /* view_key_stat() checks that it exists */
}

static int find_tensor(struct fs *fs, const struct view_key *dir, const char *name,
		       struct view_key *key)
{
	char buf[MAX_NAME + 1];
	ssize_t len = name_decode(name, buf);
	struct vckpt *c;
	int err = len < 0 ? -ENOENT : vckpt_get_version(fs, dir->path, dir->version, &c);
	if (err)
		return err;
	const struct fmt_tensor *t = c->set ? fmt_set_find(c->set, buf, (size_t)len) : NULL;
	key->kind = V_NPY;
	key->i = t ? (uint64_t)(t - c->set->tensor) : 0;
	vckpt_put(c);
	return t ? 0 : -ENOENT;
}

int view_key_find(struct fs *fs, const struct view_key *dir, const char *name, struct view_key *key,
		  char **path)
{
	size_t len = strlen(name);
	uint64_t n;
	unsigned part, of;
	char again[64];

	*key = *dir;
	switch (dir->kind) {
	case V_DIR: return find_in_dir(fs, dir, name, key, path);
	case V_TENSORS: return find_tensor(fs, dir, name, key);
	case V_SPLIT:
		key->kind = !strcmp(name, "model.safetensors.index.json") ? V_INDEX : V_PART;
		if (key->kind == V_INDEX)
			return 0;
		if (sscanf(name, "model-%u-of-%u.safetensors", &part, &of) != 2 || !part)
			return -ENOENT;
		snprintf(again, sizeof(again), VIEW_PART_NAME, (size_t)part, (size_t)of);
		key->i = part - 1;
		key->ranks = of;
		return strcmp(again, name) ? -ENOENT : 0;
	case V_RESHARD:
		key->kind = V_WORLD;
		if (!number(name, len, RANKS_MAX, &n) || !n)
			return -ENOENT;
		key->ranks = (uint32_t)n;
		return 0;
	case V_WORLD:
		key->kind = V_RANK;
		if (len < 18 || strncmp(name, "rank-", 5) ||
		    strcmp(name + len - 12, ".safetensors") ||
		    !number(name + 5, len - 17, dir->ranks - 1, &key->i))
			return -ENOENT;
		return 0;
	default: return -ENOTDIR;
	}
}

int view_key_version(struct fs *fs, const struct view_key *key, struct vckpt **c)
{
	*c = NULL;
	if (key->kind == V_DIR)
		return 0;
	int err = vckpt_get(fs, key->path, false, c);
	if (!err && (*c)->version != key->version) {
		vckpt_put(*c);
		*c = NULL;
		err = -ENOENT;
	}
	return err;
}

/* ---- attributes ---- */

int views_dir_stat(struct fs *fs, const struct caller *who, const char *path, struct stat *st)
{
	struct node *n;
	int err = reach(fs, who, path, &n);
	if (err)
		return err;
	node_attr(fs, n, st);
	if (!S_ISDIR(st->st_mode))
		err = -ENOENT;
	st->st_mode = S_IFDIR | (st->st_mode & 0555);
	st->st_nlink = 2;
	st->st_size = 4096;
	st->st_blocks = 8;
	reach_done(fs, n);
	return err;
}

int view_key_stat(struct fs *fs, const struct caller *who, const struct view_key *key,
		  struct vckpt *c, struct stat *st)
{
	if (vkind_is_dir(key->kind))
		return views_dir_stat(fs, who, key->path, st);
	*st = (struct stat){0};
	vckpt_stat(c, st);
	if (key->kind == V_REFUSED) {
		st->st_size = (off_t)strlen(c->why) + 1;
	} else {
		struct vlayout *l;
		int err = vlayout_get(fs, key, &l);
		if (err)
			return err;
		st->st_size = (off_t)view_size(l->view);
		vlayout_put(l);
	}
	st->st_nlink = 1;
	st->st_blksize = BLKSIZE;
	st->st_blocks = (st->st_size + 511) / 512;
	st->st_atim = st->st_ctim = st->st_mtim;
	return 0;
}
