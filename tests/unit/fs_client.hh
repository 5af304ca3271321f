// SPDX-License-Identifier: MIT
//
// The kernel's side of a mount without one: requests as the kernel builds them (linux/fuse.h), answered by the real
// operations (fs_ops) on the real threads (fs/base/session.c). One at a time, or sent and awaited for interleavings.
#pragma once

#include <linux/fuse.h>
#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/xattr.h>

#include <algorithm>

#include "tests/unit/fs_fixture.hh"
#include "tests/unit/session_shim.h"

// Installed headers may be older.
#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#define RENAME_EXCHANGE 2
#endif

struct File {
	uint64_t id = 0, fh = 0;
};

struct Listed {
	uint64_t ino, id;	// id: of a READDIRPLUS that the kernel holds from now on; else 0
	unsigned type;
	uint64_t off;
};

// What a request says: its head is added when it is sent.
class Body {
public:
	template <typename T>
	Body &add(const T &t)
	{
		bytes.append(reinterpret_cast<const char *>(&t), sizeof(t));
		return *this;
	}
	Body &name(const std::string &s)
	{
		bytes.append(s.c_str(), s.size() + 1);
		return *this;
	}
	Body &raw(const std::string &s)
	{
		bytes += s;
		return *this;
	}
	std::string bytes;
};

class Client {
public:
	static constexpr uint64_t root = STAGING_ROOT_DIR, resent_bit = 1ull << 63;
	static constexpr unsigned most = 128u << 10;	// bytes in one READ or WRITE

	// The socket is there, and nobody answers until serve().
	explicit Client(LiveTree &t) : t_(&t)
	{
		int pair[2], large = 1 << 20;
		EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		kernel_.reset(pair[0]);
		theirs_ = pair[1];
		for (int fd : pair)
			setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &large, sizeof(large));
	}
	Client(LiveTree &t, unsigned how) : Client(t) { serve(how); }	// how: SHIM_...
	Client(const Client &) = delete;
	Client &operator=(const Client &) = delete;
	~Client() { end(); }
	void serve(unsigned how = 0)
	{
		EXPECT_EQ(shim_serve(t_->fs, theirs_, how), 0);
		served_ = true;
		await(2);	// INIT's
		EXPECT_EQ(err, 0);
	}
	// The connection is gone, as after an unmount; nothing of the tree is.
	void end()
	{
		kernel_.reset(-1);
		if (served_ && t_->fs)
			shim_serve_end(t_->fs);
		served_ = false;
	}

	// ---- what the last answer said ----
	int err = 0;
	uint64_t id = 0, ino = 0;	// LOOKUP, MKDIR, ...
	fuse_attr attr = {};
	double attr_valid = 0;
	fuse_open_out opened = {};
	std::string bytes;		// READ, READLINK, GETXATTR, ...; of the others as it came
	std::map<std::string, Listed> names;	// read_dir()
	std::vector<fuse_out_header> told;	// notices of the daemon

	// ---- who asks ----
	uint32_t uid = 0, gid = 0, pid = (uint32_t)getpid();
	uint64_t last_unique = 2;	// of the requests that are not given a number

	std::function<void(uint64_t unique)> sent;	// called when a request of those below is sent, before its answer

	// ---- asynchronous: send, go on, await ----
	uint64_t send(unsigned opcode, uint64_t node, const Body &b = {}, uint64_t unique = 0)
	{
		fuse_in_header in = {};
		if (!unique)
			unique = last_unique += 2;
		in.len = (uint32_t)(sizeof(in) + b.bytes.size());
		in.opcode = opcode;
		in.unique = unique;
		in.nodeid = node;
		in.uid = uid;
		in.gid = gid;
		in.pid = pid;
		std::string all(reinterpret_cast<char *>(&in), sizeof(in));
		all += b.bytes;
		ssize_t n;
		while ((n = ::send(kernel_.get(), all.data(), all.size(), MSG_NOSIGNAL)) < 0 && errno == ENOBUFS)
			usleep(1000);	// the kernel is short of memory just now
		EXPECT_EQ(n, (ssize_t)all.size()) << strerror(errno);
		return unique & ~resent_bit;
	}
	// An answer is there. Takes notices and answers that came before it aside.
	bool is_answered(uint64_t unique)
	{
		while (!answers_.count(unique) && take(0))
			;
		return answers_.count(unique);
	}
	// err, as the kernel sees it. A minute without an answer is a failure, and ETIMEDOUT.
	int await(uint64_t unique)
	{
		while (!answers_.count(unique))
			if (!take(60000)) {
				ADD_FAILURE() << "no answer to request " << unique;
				return err = -ETIMEDOUT;
			}
		fuse_out_header h;
		std::string all = std::move(answers_[unique]);
		answers_.erase(unique);
		order_.erase(std::find(order_.begin(), order_.end(), unique));
		memcpy(&h, all.data(), sizeof(h));
		bytes = all.substr(sizeof(h));
		return err = h.error;
	}
	// The number of what is answered next, which is out of the way then.
	uint64_t next_answer()
	{
		while (answers_.empty())
			if (!take(60000))
				return 0;
		uint64_t unique = order_.front();
		await(unique);
		return unique;
	}
	bool any_answer() { return !answers_.empty() || (take(0) && !answers_.empty()); }
	int call(unsigned opcode, uint64_t node, const Body &b = {})
	{
		uint64_t unique = send(opcode, node, b);
		if (sent)
			sent(unique);
		return await(unique);
	}
	// What no answer follows.
	void tell(unsigned opcode, uint64_t node, const Body &b) { send(opcode, node, b); }

	// ---- the operations: 0 or -errno ----
	int lookup(uint64_t dir, const std::string &name)
	{
		call(FUSE_LOOKUP, dir, Body().name(name));
		return entry();
	}
	void forget(uint64_t node, uint64_t n = 1)
	{
		tell(FUSE_FORGET, node, Body().add(fuse_forget_in{n}));
		auto it = known_.find(node);
		if (it != known_.end() && (it->second -= std::min(n, it->second)) == 0)
			known_.erase(it);
	}
	// All of what this client was told of it. The daemon has read that when this returns.
	void forget_all(uint64_t node)
	{
		auto it = known_.find(node);
		if (it != known_.end())
			forget(node, it->second);
		flush({root, 0});
	}
	int getattr(uint64_t node)
	{
		call(FUSE_GETATTR, node, Body().add(fuse_getattr_in{}));
		return attributes();
	}
	int setattr(uint64_t node, const fuse_setattr_in &in)
	{
		call(FUSE_SETATTR, node, Body().add(in));
		return attributes();
	}
	int chmod(uint64_t node, mode_t mode)
	{
		fuse_setattr_in in = {};
		in.valid = FATTR_MODE;
		in.mode = mode;
		return setattr(node, in);
	}
	int chown(uint64_t node, int64_t owner, int64_t group)
	{
		fuse_setattr_in in = {};
		in.valid = (owner >= 0 ? FATTR_UID : 0) | (group >= 0 ? FATTR_GID : 0);
		in.uid = (uint32_t)owner;
		in.gid = (uint32_t)group;
		return setattr(node, in);
	}
	static Body truncation(uint64_t size, const File *f = nullptr)
	{
		fuse_setattr_in in = {};
		in.valid = FATTR_SIZE | (f ? FATTR_FH : 0);
		in.fh = f ? f->fh : 0;
		in.size = size;
		return Body().add(in);
	}
	int truncate(uint64_t node, uint64_t size, const File *f = nullptr)
	{
		call(FUSE_SETATTR, node, truncation(size, f));
		return attributes();
	}
	int utimes(uint64_t node, timespec a, timespec m)
	{
		fuse_setattr_in in = {};
		in.valid = (a.tv_nsec == UTIME_OMIT ? 0 : FATTR_ATIME) | (a.tv_nsec == UTIME_NOW ? FATTR_ATIME_NOW : 0) |
			   (m.tv_nsec == UTIME_OMIT ? 0 : FATTR_MTIME) | (m.tv_nsec == UTIME_NOW ? FATTR_MTIME_NOW : 0);
		in.atime = (uint64_t)a.tv_sec;
		in.atimensec = (uint32_t)a.tv_nsec;
		in.mtime = (uint64_t)m.tv_sec;
		in.mtimensec = (uint32_t)m.tv_nsec;
		return setattr(node, in);
	}
	int readlink(uint64_t node) { return call(FUSE_READLINK, node); }
	int mkdir(uint64_t dir, const std::string &name, mode_t mode = 0755)
	{
		call(FUSE_MKDIR, dir, Body().add(fuse_mkdir_in{mode, 0}).name(name));
		return entry();
	}
	int mknod(uint64_t dir, const std::string &name, mode_t mode, uint32_t rdev = 0)
	{
		call(FUSE_MKNOD, dir, Body().add(fuse_mknod_in{mode, rdev, 0, 0}).name(name));
		return entry();
	}
	int symlink(uint64_t dir, const std::string &name, const std::string &target)
	{
		call(FUSE_SYMLINK, dir, Body().name(name).name(target));
		return entry();
	}
	int link(uint64_t node, uint64_t dir, const std::string &name)
	{
		call(FUSE_LINK, dir, Body().add(fuse_link_in{node}).name(name));
		return entry();
	}
	int unlink(uint64_t dir, const std::string &name) { return call(FUSE_UNLINK, dir, Body().name(name)); }
	int rmdir(uint64_t dir, const std::string &name) { return call(FUSE_RMDIR, dir, Body().name(name)); }
	static Body renaming(const std::string &from, uint64_t dir2, const std::string &to)
	{
		return Body().add(fuse_rename_in{dir2}).name(from).name(to);
	}
	// As the kernel does: RENAME2 for what has flags.
	int rename(uint64_t dir, const std::string &from, uint64_t dir2, const std::string &to, unsigned flags = 0)
	{
		if (!flags)
			return call(FUSE_RENAME, dir, renaming(from, dir2, to));
		return call(FUSE_RENAME2, dir, Body().add(fuse_rename2_in{dir2, flags, 0}).name(from).name(to));
	}
	static Body creation(const std::string &name, int flags, mode_t mode)
	{
		return Body().add(fuse_create_in{(uint32_t)flags, mode | S_IFREG, 0, 0}).name(name);
	}
	int create(uint64_t dir, const std::string &name, File *f, int flags = O_RDWR | O_CREAT | O_EXCL, mode_t mode = 0640)
	{
		call(FUSE_CREATE, dir, creation(name, flags, mode));
		return created(f);
	}
	static Body opening(int flags) { return Body().add(fuse_open_in{(uint32_t)flags, 0}); }
	int open(uint64_t node, int flags, File *f)
	{
		call(FUSE_OPEN, node, opening(flags));
		return was_opened(node, f);
	}
	// As the kernel does: ESTALE has the name looked up again, once.
	int open_name(uint64_t dir, const std::string &name, int flags, File *f)
	{
		for (int i = 0; i < 2; i++) {
			if (lookup(dir, name))
				return err;
			if (open(id, flags, f) != -ESTALE)
				return err;
		}
		return err;
	}
	static Body reading(const File &f, uint64_t off, uint32_t size)
	{
		fuse_read_in in = {};
		in.fh = f.fh;
		in.offset = off;
		in.size = size;
		return Body().add(in);
	}
	int read(const File &f, uint64_t off, uint32_t size) { return call(FUSE_READ, f.id, reading(f, off, size)); }
	// The whole of it from the handle; what it says of an error is in err.
	std::string read_all(const File &f)
	{
		std::string all;
		while (!read(f, all.size(), most) && !bytes.empty())
			all += bytes;
		return all;
	}
	// flags: the descriptor's, of which the kernel sends all with each write(2)
	static Body writing(const File &f, const std::string &what, uint64_t off, int flags = 0)
	{
		fuse_write_in in = {};
		in.fh = f.fh;
		in.flags = (uint32_t)flags;
		in.offset = off;
		in.size = (uint32_t)what.size();
		return Body().add(in).raw(what);
	}
	int write(const File &f, const std::string &what, uint64_t off = 0, int flags = 0)
	{
		size_t at = 0;
		do {
			std::string part = what.substr(at, most);
			if (call(FUSE_WRITE, f.id, writing(f, part, off + at, flags)))
				return err;
			fuse_write_out out;
			memcpy(&out, bytes.data(), sizeof(out));
			EXPECT_EQ(out.size, part.size());
			at += part.size();
		} while (at < what.size());
		return 0;
	}
	static Body flushing(const File &f)
	{
		fuse_flush_in in = {};
		in.fh = f.fh;
		return Body().add(in);
	}
	int flush(const File &f) { return call(FUSE_FLUSH, f.id, flushing(f)); }
	static Body releasing(const File &f)
	{
		fuse_release_in in = {};
		in.fh = f.fh;
		return Body().add(in);
	}
	int release(const File &f) { return call(FUSE_RELEASE, f.id, releasing(f)); }
	// close(2), whose second half is over, too.
	int close(const File &f)
	{
		int rc = flush(f);
		release(f);
		return err = rc;
	}
	static Body syncing(const File &f)
	{
		fuse_fsync_in in = {};
		in.fh = f.fh;
		return Body().add(in);
	}
	int fsync(const File &f) { return call(FUSE_FSYNC, f.id, syncing(f)); }
	int fsync_dir(uint64_t dir) { return call(FUSE_FSYNCDIR, dir, syncing({})); }
	int fallocate(const File &f, int mode, uint64_t off, uint64_t len)
	{
		fuse_fallocate_in in = {};
		in.fh = f.fh;
		in.offset = off;
		in.length = len;
		in.mode = (uint32_t)mode;
		return call(FUSE_FALLOCATE, f.id, Body().add(in));
	}
	// Where it ends up, or -errno.
	int64_t lseek(const File &f, uint64_t off, int whence)
	{
		fuse_lseek_in in = {};
		in.fh = f.fh;
		in.offset = off;
		in.whence = (uint32_t)whence;
		if (call(FUSE_LSEEK, f.id, Body().add(in)))
			return err;
		fuse_lseek_out out;
		memcpy(&out, bytes.data(), sizeof(out));
		return (int64_t)out.offset;
	}
	int copy_file_range(const File &from, uint64_t off, const File &to, uint64_t off2, uint64_t len)
	{
		return call(FUSE_COPY_FILE_RANGE, from.id,
			    Body().add(fuse_copy_file_range_in{from.fh, off, to.id, to.fh, off2, len, 0}));
	}
	int statfs(fuse_kstatfs *out)
	{
		call(FUSE_STATFS, root);
		if (!err)
			memcpy(out, bytes.data(), sizeof(*out));
		return err;
	}
	int open_dir(uint64_t dir, File *f)
	{
		call(FUSE_OPENDIR, dir, opening(O_RDONLY | O_DIRECTORY));
		return was_opened(dir, f);
	}
	// One READDIR or READDIRPLUS; what it says is added to names. *off: where the next goes on.
	int read_some(const File &d, uint64_t *off, uint32_t size, bool plus)
	{
		call(plus ? FUSE_READDIRPLUS : FUSE_READDIR, d.id, reading(d, *off, size));
		return listed(off, plus);
	}
	int listed(uint64_t *off, bool plus)
	{
		for (size_t at = 0; !err && at < bytes.size();) {
			fuse_entry_out e = {};
			if (plus)
				memcpy(&e, bytes.data() + at, sizeof(e));
			at += plus ? sizeof(e) : 0;
			fuse_dirent d;
			memcpy(static_cast<void *>(&d), bytes.data() + at, FUSE_NAME_OFFSET);
			std::string name = bytes.substr(at + FUSE_NAME_OFFSET, d.namelen);
			at += FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + d.namelen);
			EXPECT_FALSE(names.count(name)) << name << " twice";
			names[name] = {d.ino, e.nodeid, d.type, d.off};
			*off = d.off;
			told_of(e.nodeid);
		}
		return err;
	}
	int release_dir(const File &d) { return call(FUSE_RELEASEDIR, d.id, releasing(d)); }
	int read_dir(uint64_t dir, bool plus = false, uint32_t size = 4096)
	{
		File d;
		uint64_t off = 0;
		names.clear();
		if (open_dir(dir, &d))
			return err;
		int rc;
		while (!(rc = read_some(d, &off, size, plus)) && !bytes.empty())
			;
		release_dir(d);
		return err = rc;
	}
	// Without "." and "..".
	std::string list(uint64_t dir, bool plus = false, uint32_t size = 4096)
	{
		std::string all;
		if (read_dir(dir, plus, size))
			return strerror(-err);
		for (auto &[name, what] : names)
			if (name != "." && name != "..")
				all += (all.empty() ? "" : " ") + name;
		return all;
	}
	int setxattr(uint64_t node, const std::string &key, const std::string &val, unsigned flags = 0)
	{
		// without FUSE_SETXATTR_EXT the kernel sends the first half only
		return call(FUSE_SETXATTR, node, Body().add((uint32_t)val.size()).add((uint32_t)flags).name(key).raw(val));
	}
	int getxattr(uint64_t node, const std::string &key, uint32_t size = 4096)
	{
		return call(FUSE_GETXATTR, node, Body().add(fuse_getxattr_in{size, 0}).name(key));
	}
	int listxattr(uint64_t node, uint32_t size = 4096)
	{
		return call(FUSE_LISTXATTR, node, Body().add(fuse_getxattr_in{size, 0}));
	}
	uint32_t xattr_size()	// that the last of these two, with size 0, answered
	{
		fuse_getxattr_out out = {};
		memcpy(&out, bytes.data(), sizeof(out));
		return out.size;
	}
	int removexattr(uint64_t node, const std::string &key)
	{
		return call(FUSE_REMOVEXATTR, node, Body().name(key));
	}

	// ---- what programs do ----
	// A whole new file, closed. Its id, 0 if that failed.
	uint64_t put(uint64_t dir, const std::string &name, const std::string &what, mode_t mode = 0640)
	{
		File f;
		if (create(dir, name, &f, O_WRONLY | O_CREAT | O_EXCL, mode))
			return 0;
		int rc = what.empty() ? 0 : write(f, what);
		int closed = close(f);
		err = rc ? rc : closed;
		return err ? 0 : f.id;
	}
	// open(O_TRUNC), write, close.
	int rewrite(uint64_t dir, const std::string &name, const std::string &what)
	{
		File f;
		if (open_name(dir, name, O_WRONLY | O_TRUNC, &f))
			return err;
		int rc = what.empty() ? 0 : write(f, what);
		int closed = close(f);
		return err = rc ? rc : closed;
	}
	// What a program reads that opens this name now.
	std::string get(uint64_t dir, const std::string &name)
	{
		File f;
		return open_name(dir, name, O_RDONLY, &f) ? strerror(-err) : rest_of(f);
	}
	// And one that knows this node, by whatever name.
	std::string get(uint64_t node)
	{
		File f;
		return open(node, O_RDONLY, &f) ? strerror(-err) : rest_of(f);
	}
	// The file is made, or what it has replaced.
	int save(uint64_t dir, const std::string &name, const std::string &what)
	{
		if (lookup(dir, name) == -ENOENT)
			put(dir, name, what);
		else if (!err)
			rewrite(dir, name, what);
		return err;
	}

	// ---- of answers to send() ----
	int entry() { return entry_of(nullptr); }
	int created(File *f)
	{
		if (entry_of(&opened))
			return err;
		*f = {id, opened.fh};
		return 0;
	}
	int was_opened(uint64_t node, File *f)
	{
		if (err)
			return err;
		memcpy(&opened, bytes.data(), sizeof(opened));
		*f = {node, opened.fh};
		return 0;
	}
	int attributes()
	{
		fuse_attr_out out;
		if (err)
			return err;
		memcpy(&out, bytes.data(), sizeof(out));
		return took(out.attr, (double)out.attr_valid);
	}

private:
	std::string rest_of(const File &f)
	{
		std::string all = read_all(f);
		int rc = err;
		close(f);
		err = rc;
		return all;
	}
	bool take(int ms)
	{
		std::string buf(most + 4096, 0);
		pollfd p = {kernel_.get(), POLLIN, 0};
		if (poll(&p, 1, ms) != 1)
			return false;
		ssize_t n = recv(kernel_.get(), buf.data(), buf.size(), 0);
		fuse_out_header h;
		if (n < (ssize_t)sizeof(h))
			return false;
		memcpy(&h, buf.data(), sizeof(h));
		buf.resize((size_t)n);
		if (!h.unique) {
			told.push_back(h);
			return true;
		}
		answers_[h.unique & ~resent_bit] = buf;
		order_.push_back(h.unique & ~resent_bit);
		return true;
	}
	int entry_of(fuse_open_out *o)
	{
		fuse_entry_out e;
		if (err)
			return err;
		memcpy(&e, bytes.data(), sizeof(e));
		if (o)
			memcpy(o, bytes.data() + sizeof(e), sizeof(*o));
		id = e.nodeid;
		told_of(id);
		return took(e.attr, (double)e.attr_valid);
	}
	void told_of(uint64_t node)
	{
		if (node)
			known_[node]++;
	}
	int took(const fuse_attr &a, double valid)
	{
		attr = a;
		ino = a.ino;
		attr_valid = valid;
		return 0;
	}

	LiveTree *t_;
	Fd kernel_;
	int theirs_ = -1;
	bool served_ = false;
	std::map<uint64_t, uint64_t> known_;	// how often each node was told to the kernel
	std::map<uint64_t, std::string> answers_;
	std::vector<uint64_t> order_;
};

// A worker: its tree, and the kernel's side of it. What is destroyed is killed.
struct Worker {
	explicit Worker(Ground &ground, bool start = false, bool first = false, unsigned how = SHIM_NO_UPKEEP)
		: t(ground, start, first), k(t), fs(t.fs)
	{
		if (!t.err)
			k.serve(how | (first ? 0 : SHIM_RESEND));
	}
	int drain() { return staging_drain(t.s(), 60000); }
	LiveTree t;
	Client k;
	struct fs *fs;
};
