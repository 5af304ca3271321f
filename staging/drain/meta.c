/* SPDX-License-Identifier: MIT
 * A version's attributes: owner, mode, times, xattrs. A store may refuse some of them (a network
 * filesystem that squashes root, one without owners), or its inode may have no space for an xattr
 * because another program put one there. Then waiting does not help, and the bytes matter more:
 * they are published without, with a notice. */
#include "staging/drain/drain.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* a larger one may be too large for ext4's one xattr block */
#define XATTR_SMALL 512u
/* ENOSPC with so much free means the inode, not the store */
#define SPACE_ENOUGH (16ull << 20)

static const struct part {
	unsigned mask;
	const char *text;
} parts[] = {
	{IO_ATTR_OWNER, "the store does not let cairnfs set the owners of files; its own user owns "
			"them there. Run cairnfs as the user who writes, or allow root to be root "
			"there (NFS: no_root_squash)"},
	{IO_ATTR_MODE, "the store does not accept the modes of files; they have its own there"},
	{IO_ATTR_ATIME | IO_ATTR_MTIME,
	 "the store does not accept the times of files; they have its own there"},
};

/* EINVAL and EOVERFLOW come from a user namespace, for an owner that it does not know. EDQUOT: the
 * file got another owner since it was accepted, whose quota is used up. */
static bool refused(int err)
{
	return err == -EPERM || err == -EOPNOTSUPP || err == -ENOSYS || err == -EINVAL ||
	       err == -EOVERFLOW || err == -EDQUOT;
}

/* A quota has no say in mode and times. */
static bool refused_part(unsigned mask, int err)
{
	return refused(err) && (err != -EDQUOT || mask == IO_ATTR_OWNER);
}

static void tell_once(struct staging *s, const struct part *part, int err)
{
	char text[320];

	if (atomic_fetch_or(&s->drain.refused, part->mask) & part->mask)
		return;
	snprintf(text, sizeof(text), "%s (%s)", part->text, strerror(-err));
	s->o.notice(s->o.ctx, text);
}

static int set_attr(struct staging *s, struct pend *p)
{
	struct io_attr all = {
		.mask = IO_ATTR_MODE | IO_ATTR_ATIME | IO_ATTR_MTIME,
		.mode = p->r.mode & 07777,
		.uid = p->r.uid,
		.gid = p->r.gid,
		.atime = p->r.atime,
		.mtime = p->r.mtime,
	};
	struct stat st; /* perhaps it has its owner and its mode already */
	bool seen = p->r.uid == geteuid() && p->r.gid == getegid() && !fstat(p->tmp_fd, &st);
	if (!seen || st.st_uid != p->r.uid || st.st_gid != p->r.gid)
		all.mask |= IO_ATTR_OWNER;
	else if ((st.st_mode & 07777) == all.mode)
		all.mask &= ~(unsigned)IO_ATTR_MODE;
	int err = io_set_attr_fd(s->o.store, p->tmp_fd, &all);
	for (unsigned i = 0; refused(err) && i < sizeof(parts) / sizeof(parts[0]); i++) {
		struct io_attr a = all;
		a.mask &= parts[i].mask;
		int part_err = a.mask ? io_set_attr_fd(s->o.store, p->tmp_fd, &a) : 0;
		if (part_err && !refused_part(parts[i].mask, part_err))
			return part_err;
		if (part_err)
			tell_once(s, &parts[i], part_err);
		if (part_err && parts[i].mask == IO_ATTR_OWNER)
			all.mode &= 01777; /* or it would run with another user's rights */
	}
	return refused(err) ? 0 : err;
}

bool meta_inode_full(struct staging *s, size_t len)
{
	struct statvfs v;

	return len > XATTR_SMALL && !io_store_statvfs(s->o.store, &v) &&
	       (uint64_t)v.f_bavail * v.f_frsize >= SPACE_ENOUGH;
}

/* Will this xattr not get in, however much space the store has? */
static bool no_place(struct staging *s, struct pend *p, const struct rec_pair *pair, int err)
{
	if (err == -EDQUOT)
		return p->sf && sf_limited(p->sf);
	return err == -E2BIG || err == -ERANGE || refused(err) ||
	       (err == -ENOSPC && meta_inode_full(s, pair->len));
}

static int set_user(struct staging *s, struct pend *p, const struct rec_pair *pair)
{
	char text[320];
	int err = io_set_xattr(s->o.store, -1, NULL, p->tmp_fd, pair->key, pair->val, pair->len, 0);

	if (!err || !no_place(s, p, pair, err))
		return err;
	snprintf(text, sizeof(text),
		 LEVEL_WARNING
		 "the store's file has no space for %.80s of %.120s (%u bytes: %s); published "
		 "without",
		 pair->key, p->r.name, pair->len, strerror(-err));
	s->o.notice(s->o.ctx, text);
	return 0;
}

/* Where nobody else serves the store, nobody asks whose it is. */
size_t meta_ino(const struct staging *s, const struct rec *r, char text[META_INO_BYTES])
{
	int n = io_store_is_shared(s->o.store)
			? snprintf(text, META_INO_BYTES, "%llu:%0*llx", (unsigned long long)r->ino,
				   KEY_INO_LOG_DIGITS, (unsigned long long)log_id(s))
			: snprintf(text, META_INO_BYTES, "%llu", (unsigned long long)r->ino);

	return (size_t)n;
}

static int set_ino(struct staging *s, struct pend *p)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	char text[256];
	int kind;
	size_t n = meta_ino(s, &p->r, text);

	while ((kind = rec_unpack(p->r.data, p->r.data_len, &pos, &name, &pair)) > 0)
		if (kind == 2 && !strcmp(pair.key, KEY_SAVE) && pair.len < sizeof(text) / 2)
			n += (size_t)snprintf(text + n, sizeof(text) - n, " %.*s %llu",
					      (int)pair.len, (const char *)pair.val,
					      (unsigned long long)p->r.size);
	return io_set_xattr(s->o.store, -1, NULL, p->tmp_fd, KEY_INO, text, n, 0);
}

int meta_write(struct staging *s, struct pend *p)
{
	struct io_store *store = s->o.store;
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	int kind;

	/* ours first: they are small, and verify needs them */
	int err = set_ino(s, p);
	if (!err && p->checksum[0])
		err = io_set_xattr(store, -1, NULL, p->tmp_fd, KEY_CHECKSUM, p->checksum,
				   strlen(p->checksum), 0);
	while (!err && (kind = rec_unpack(p->r.data, p->r.data_len, &pos, &name, &pair)) > 0)
		if (kind == 2 && strcmp(pair.key, KEY_SAVE))
			err = set_user(s, p, &pair);
	return err ? err : set_attr(s, p);
}
