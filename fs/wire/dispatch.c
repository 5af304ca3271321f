/* SPDX-License-Identifier: MIT
 * The operations that libfuse calls: common checks, then dispatch. An inode belongs to the tree or
 * to .cairn; for the latter, one of control.c's tables has the operation. Neither part knows the
 * other.
 *
 * Changes on a read-only mount are refused here. Changes of names or attributes first make space in
 * the log and wait for the closes that were sent before them.
 */
#include "fs/control/control.h"
#include "fs/latest/latest.h"
#include "fs/ops/ops.h"
#include "fs/remote/remote.h"
#include "fs/wire/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statfs.h>

/* RELEASE is a background request. Beyond this limit (default 12) the kernel queues them
 * (fs/fuse/dev.c, flush_bg_queue), and a program's later requests would overtake its closes. */
#define MAX_BACKGROUND 65535u
#define RESEND_MINOR 40u /* of the protocol that can resend requests: Linux 6.9 */

static void init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;
	struct statfs st;

	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_READ);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_WRITE);
	fuse_unset_feature_flag(conn, FUSE_CAP_SPLICE_MOVE);
	fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	/* else a lookup that waits for the store holds up all others in its directory */
	fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	/* a handle would be valid only while the kernel happens to cache its inode */
	fuse_set_feature_flag(conn, FUSE_CAP_NO_EXPORT_SUPPORT);
	if (!fs->o.nopassthrough && fs->uid == 0 &&
	    fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH)) {
		bool stacked = statfs(fs->o.store, &st) == 0 && st.f_type == OVERLAYFS_SUPER_MAGIC;
		conn->max_backing_stack_depth =
			stacked ? FUSE_BACKING_STACKED_OVER : FUSE_BACKING_STACKED_UNDER;
		atomic_store(&fs->lanes.passthrough, true);
	} else if (!fs->o.nopassthrough && fs->procs.restarts == 0) {
		fs_notice(fs,
			  fs->uid ? "no passthrough without root: every file takes the relay lane"
				  : "this kernel has no FUSE passthrough (before 6.9): every file "
				    "takes the relay lane");
	}
	fs->waits.resent = conn->proto_minor >= RESEND_MINOR;
	conn->time_gran = 1;
	conn->max_background = MAX_BACKGROUND;
	conn->congestion_threshold = MAX_BACKGROUND;
}

/* NULL: the tree's. */
static const struct control_ops *control_of(fuse_ino_t id)
{
	return is_control(id) ? control_ops_of(id) : NULL;
}

/* ---- changes ---- */

/* Whether a name may be created or removed there: 0, -EROFS, -ENAMETOOLONG, -EPERM. */
static int may_change(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (req_fs(req)->o.ro || is_view(parent))
		return -EROFS;
	if (strlen(name) > MAX_NAME)
		return -ENAMETOOLONG;
	return is_control(parent) || name_is_control(parent, name) ? -EPERM : 0;
}

/* False: the change was refused and answered. */
static bool begin_change(fuse_req_t req, int err)
{
	if (err) {
		fuse_reply_err(req, -err);
		return false;
	}
	log_space(req_fs(req));
	release_barrier(req_fs(req));
	return true;
}

static void do_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	if (begin_change(req, may_change(req, parent, name)))
		op_mkdir(req, parent, name, mode);
}

static void do_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	if (begin_change(req, may_change(req, parent, name)))
		op_mknod(req, parent, name, mode, rdev);
}

static void do_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	if (begin_change(req, may_change(req, parent, name)))
		op_symlink(req, target, parent, name);
}

static void do_link(fuse_req_t req, fuse_ino_t id, fuse_ino_t parent, const char *name)
{
	int err = may_change(req, parent, name);
	if (begin_change(req, err ? err : is_control(id) ? -EPERM : 0))
		op_link(req, id, parent, name);
}

static void do_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (begin_change(req, may_change(req, parent, name)))
		op_unlink(req, parent, name);
}

static void do_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (begin_change(req, may_change(req, parent, name)))
		op_rmdir(req, parent, name);
}

static void do_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t parent2,
		      const char *name2, unsigned flags)
{
	int err = may_change(req, parent, name);
	if (begin_change(req, err ? err : may_change(req, parent2, name2)))
		op_rename(req, parent, name, parent2, name2, flags);
}

static void do_setattr(fuse_req_t req, fuse_ino_t id, struct stat *a, int set,
		       struct fuse_file_info *fi)
{
	if (is_view(id))
		fuse_reply_err(req, EROFS);
	else if (is_control(id))
		/* shell redirection truncates first; accept */
		control_of(id)->getattr(req, id);
	else if (req_fs(req)->o.ro)
		fuse_reply_err(req, EROFS);
	else
		op_setattr(req, id, a, set, fi);
}

static void do_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
		      struct fuse_file_info *fi)
{
	const struct control_ops *c = control_of(parent);
	int err = may_change(req, parent, name);

	if (err == -EPERM && c && c->create)
		c->create(req, name, mode, fi);
	else if (err)
		fuse_reply_err(req, -err);
	else {
		session_timed(TIMED_OPEN);
		op_create(req, parent, name, mode, fi);
	}
}

/* ---- names and attributes ---- */

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	if (is_control(parent) || name_is_control(parent, name))
		control_ops_of(parent)->lookup(req, parent, name);
	else
		op_lookup(req, parent, name);
}

static void forget_one(fuse_req_t req, fuse_ino_t id, uint64_t count)
{
	const struct control_ops *c = control_of(id);

	if (c && c->forget)
		c->forget(id, count);
	else if (!c)
		node_forget(req_fs(req), id, count);
}

static void do_forget(fuse_req_t req, fuse_ino_t id, uint64_t count)
{
	{
		TREE_SCOPE(req_fs(req));
		forget_one(req, id, count);
	}
	fuse_reply_none(req);
}

static void do_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *f)
{
	{
		TREE_SCOPE(req_fs(req));
		for (size_t i = 0; i < count; i++)
			forget_one(req, f[i].ino, f[i].nlookup);
	}
	fuse_reply_none(req);
}

static void do_getattr(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	if (is_control(id))
		control_of(id)->getattr(req, id);
	else
		op_getattr(req, id, fi);
}

static void do_readlink(fuse_req_t req, fuse_ino_t id)
{
	const struct control_ops *c = control_of(id);

	if (c && c->readlink)
		c->readlink(req, id);
	else if (c)
		fuse_reply_err(req, EINVAL);
	else
		op_readlink(req, id);
}

static void readdir_of(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		       struct fuse_file_info *fi, bool plus)
{
	if (is_control(id))
		control_of(id)->readdir(req, id, size, off, plus);
	else if (plus)
		op_readdirplus(req, id, size, off, fi);
	else
		op_readdir(req, id, size, off, fi);
}

static void do_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		       struct fuse_file_info *fi)
{
	readdir_of(req, id, size, off, fi, false);
}

static void do_readdirplus(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
			   struct fuse_file_info *fi)
{
	readdir_of(req, id, size, off, fi, true);
}

/* ---- open files ---- */

static void do_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	const struct control_ops *c = control_of(id);

	if (c && c->open)
		c->open(req, id, fi);
	else if (c)
		fuse_reply_err(req, EISDIR);
	else if (req_fs(req)->o.ro && (fi->flags & O_TRUNC || (fi->flags & O_ACCMODE) != O_RDONLY))
		fuse_reply_err(req, EROFS);
	else {
		session_timed(TIMED_OPEN);
		op_open(req, id, fi);
	}
}

static void do_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off,
		    struct fuse_file_info *fi)
{
	const struct control_ops *c = control_of(id);

	if (c && c->read)
		c->read(req, id, size, off, fi);
	else if (c)
		fuse_reply_err(req, EISDIR);
	else
		op_read(req, id, size, off, fi);
}

static void do_write(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, off_t off,
		     struct fuse_file_info *fi)
{
	const struct control_ops *c = control_of(id);

	if (c && c->write)
		c->write(req, id, buf, size, fi);
	else if (c)
		fuse_reply_err(req, EINVAL);
	else
		op_write(req, id, buf, size, off, fi);
}

static void do_flush(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	if (is_control(id))
		fuse_reply_err(req, 0);
	else {
		session_timed(TIMED_CLOSE);
		op_flush(req, id, fi);
	}
}

static void do_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	const struct control_ops *c = control_of(id);

	if (c && c->release)
		c->release(req, id, fi);
	else if (c)
		fuse_reply_err(req, 0);
	else
		op_release(req, id, fi);
}

static void do_fsync(fuse_req_t req, fuse_ino_t id, int datasync, struct fuse_file_info *fi)
{
	if (is_control(id) || req_fs(req)->o.ro)
		fuse_reply_err(req, 0);
	else {
		session_timed(TIMED_FSYNC);
		op_fsync(req, id, datasync, fi);
	}
}

static void do_fallocate(fuse_req_t req, fuse_ino_t id, int mode, off_t off, off_t len,
			 struct fuse_file_info *fi)
{
	if (is_control(id))
		fuse_reply_err(req, EBADF);
	else
		op_fallocate(req, id, mode, off, len, fi);
}

static void do_lseek(fuse_req_t req, fuse_ino_t id, off_t off, int whence,
		     struct fuse_file_info *fi)
{
	const struct control_ops *c = control_of(id);

	if (c && c->lseek)
		c->lseek(req, id, off, whence);
	else if (c)
		fuse_reply_err(req, EBADF);
	else
		op_lseek(req, id, off, whence, fi);
}

/* ---- xattrs ---- */

static int key_error(const char *key)
{
	/* ACLs and capabilities would have to be enforced here: refuse them */
	/* "user." alone is not a name */
	return strncmp(key, "user.", 5) ? -EOPNOTSUPP : key[5] ? 0 : -EINVAL;
}

static bool begin_xattr(fuse_req_t req, fuse_ino_t id, const char *key)
{
	int err = key_error(key);

	if (!err && req_fs(req)->o.ro)
		err = -EROFS;
	if (err || is_control(id) || xattr_is_ours(key)) {
		fuse_reply_err(req, -err); /* cp -a copies states: accepted and ignored */
		return false;
	}
	session_may_block(req_fs(req));
	return begin_change(req, 0);
}

static void do_setxattr(fuse_req_t req, fuse_ino_t id, const char *key, const char *val,
			size_t size, int flags)
{
	if (!freeze_set(req, id, key, val, size) && begin_xattr(req, id, key))
		op_setxattr(req, id, key, val, size, flags);
}

static void do_removexattr(fuse_req_t req, fuse_ino_t id, const char *key)
{
	if (begin_xattr(req, id, key))
		op_removexattr(req, id, key);
}

static void do_getxattr(fuse_req_t req, fuse_ino_t id, const char *key, size_t size)
{
	const struct control_ops *c = control_of(id);
	int err = key_error(key);

	if (!err && c == &remote_ops && !strcmp(key, KEY_LATEST))
		latest_xattr_of_tier(req, id, size);
	else if (!err && c && c->getxattr)
		c->getxattr(req, id, key, size);
	else if (err || c)
		fuse_reply_err(req, err ? -err : ENODATA);
	else
		op_getxattr(req, id, key, size);
}

static void do_listxattr(fuse_req_t req, fuse_ino_t id, size_t size)
{
	if (!is_control(id))
		op_listxattr(req, id, size);
	else if (size)
		fuse_reply_buf(req, NULL, 0);
	else
		fuse_reply_xattr(req, 0);
}

const struct fuse_lowlevel_ops fs_ops = {
	.init = init,
	.lookup = do_lookup,
	.forget = do_forget,
	.forget_multi = do_forget_multi,
	.getattr = do_getattr,
	.setattr = do_setattr,
	.readlink = do_readlink,
	.mknod = do_mknod,
	.mkdir = do_mkdir,
	.unlink = do_unlink,
	.rmdir = do_rmdir,
	.symlink = do_symlink,
	.rename = do_rename,
	.link = do_link,
	.open = do_open,
	.create = do_create,
	.read = do_read,
	.write = do_write,
	.flush = do_flush,
	.release = do_release,
	.fsync = do_fsync,
	.opendir = op_opendir,
	.readdir = do_readdir,
	.readdirplus = do_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = do_fsync,
	.statfs = op_statfs,
	.setxattr = do_setxattr,
	.getxattr = do_getxattr,
	.listxattr = do_listxattr,
	.removexattr = do_removexattr,
	.fallocate = do_fallocate,
	.lseek = do_lseek,
	.copy_file_range = op_copy_file_range,
	/* no getlk, setlk, flock: the kernel keeps locks itself. No ioctl: ENOTTY. */
};
