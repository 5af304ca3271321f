/* SPDX-License-Identifier: MIT
 *
 * Opening a store: its descriptors, its lock, its id, its filesystem's features.
 * None of this goes through the engine's table: a fault plan counts from the
 * first operation on an open store.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>

#include "inside.h"
#include "io/entries.h"
#include "io/scope.h"

#define CAIRN_DIR ".cairn"
/* free bytes with which a store is opened: an xattr of 64 KiB, with what xfs reserves for it */
#define OPEN_ROOM (512u << 10)

bool io_cairn_name_is_taken(const char *name)
{
	static const char *const taken[] = {"id", "lost+found", "meta", "previous"};

	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
		if (!strcmp(name, taken[i]))
			return true;
	return false;
}

void io_store_host_name(const char *wanted, char out[72])
{
	char raw[65] = "";
	size_t n = 0;

	if (wanted)
		snprintf(raw, sizeof(raw), "%s", wanted);
	else
		gethostname(raw, sizeof(raw) - 1);
	for (; raw[n]; n++) {
		char c = raw[n];
		bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
			  (c >= '0' && c <= '9') || c == '-' || c == '_' || (c == '.' && n);

		out[n] = ok ? c : '_';
	}
	out[n] = 0;
	if (!n)
		strcpy(out, "localhost");
	if (io_cairn_name_is_taken(out))
		strcat(out, "_");
}

/* Opens a file of ours in the store without a name (or soon without). */
static int nameless(struct io_store *s, int dirfd, int flags)
{
	int fd = openat(dirfd, ".", O_TMPFILE | flags | O_CLOEXEC, 0600);
	char name[17];

	if (fd >= 0)
		return fd;
	io_scratch_name(s, name);
	fd = openat(dirfd, name, O_CREAT | O_EXCL | O_NOFOLLOW | flags | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	unlinkat(dirfd, name, 0);
	return fd;
}

/* Our user on this filesystem: NFS with root_squash and some others give root's files another
 * owner. */
static uid_t our_uid(struct io_store *s)
{
	CLEANUP_CLOSE int fd = geteuid() ? -1 : nameless(s, s->root, O_RDWR);
	struct stat st;

	return fd < 0 || fstat(fd, &st) ? geteuid() : st.st_uid;
}

/* Only we, or root, may have created what we rely on; without root also the owner of the store
 * itself. With a root daemon the store's owner could otherwise make it destroy or disclose other
 * users' files. */
static int trusted(struct io_store *s, int dir, const struct stat *store)
{
	char path[IO_PROC_PATH];
	struct stat st;

	if (fstat(dir, &st))
		return -errno;
	if (st.st_uid && st.st_uid != our_uid(s) && (!geteuid() || st.st_uid != store->st_uid))
		return -EPERM;
	if (st.st_mode & 022)
		return -EPERM;
	/* files in it get their owner and mode before their name; closed until then */
	io_proc_path(path, dir, NULL);
	if ((st.st_mode & 077) && chmod(path, 0700))
		return errno == EPERM || errno == EROFS || errno == EOPNOTSUPP ? 0 : -errno;
	return 0;
}

/* Descriptor of dirfd/name, created (0700) if missing. */
static int own_dir(struct io_store *s, int dirfd, const char *name, int flags,
		   const struct stat *store)
{
	CLEANUP_CLOSE int fd = -1;
	int err;

	if (mkdirat(dirfd, name, 0700) && errno != EEXIST)
		return -errno;
	fd = io_open_beneath(dirfd, name, flags | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	err = trusted(s, fd, store);
	return err ? err : scope_keep(&fd);
}

static int holder(int lock)
{
	char text[16] = "";
	ssize_t n = pread(lock, text, sizeof(text) - 1, 0);

	return n > 0 ? atoi(text) : 0;
}

static int take_lock(struct io_store *s, struct io_served *by)
{
	struct stat st, named;

	s->lock = io_open_beneath(s->host, "lock", O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);
	if (s->lock < 0)
		return s->lock;
	if (fstat(s->lock, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	if (flock(s->lock, LOCK_EX | LOCK_NB)) {
		if (errno == EWOULDBLOCK)
			by->pid = holder(s->lock);
		return -errno;
	}
	/* a start that failed may have removed it meanwhile (io_store_forget_host) */
	return fstatat(s->host, "lock", &named, AT_SYMLINK_NOFOLLOW) || named.st_ino != st.st_ino
		       ? -ESTALE
		       : 0;
}

int io_store_lock_pid(struct io_store *s, int pid)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%d\n%d\n", pid, s->locked_by);

	if (s->lock < 0)
		return -EBADF;
	errno = 0;
	if (pwrite(s->lock, text, (size_t)n, 0) != n)
		return errno ? -errno : -EIO;
	return ftruncate(s->lock, n) ? -errno : 0;
}

int io_store_read_id(int cairn, char id[IO_ID_LEN + 1])
{
	CLEANUP_CLOSE int fd = io_open_beneath(cairn, "id", O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
	char text[IO_ID_LEN + 2];
	ssize_t n;

	if (fd < 0)
		return fd;
	n = read(fd, text, sizeof(text));
	if (n < 0)
		return -errno;
	if (n < IO_ID_LEN || n > IO_ID_LEN + 1 || (n > IO_ID_LEN && text[IO_ID_LEN] != '\n'))
		return -EBADMSG;
	text[IO_ID_LEN] = 0;
	if (strspn(text, "0123456789abcdef") != IO_ID_LEN)
		return -EBADMSG;
	memcpy(id, text, IO_ID_LEN + 1);
	return 0;
}

static int write_new_id(struct io_store *s, const char *scratch)
{
	CLEANUP_CLOSE int fd =
		openat(s->tmp, scratch, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	unsigned char raw[IO_ID_LEN / 2];
	char text[IO_ID_LEN + 2];

	if (fd < 0)
		return -errno;
	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		return -EIO;
	for (size_t i = 0; i < sizeof(raw); i++)
		sprintf(text + 2 * i, "%02x", raw[i]);
	text[IO_ID_LEN] = '\n';
	errno = 0;
	if (write(fd, text, IO_ID_LEN + 1) != IO_ID_LEN + 1)
		return errno ? -errno : -ENOSPC;
	return fsync(fd) ? -errno : 0;
}

static int sync_id(struct io_store *s)
{
	CLEANUP_CLOSE int fd = openat(s->cairn, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) || fsync(s->root_rd) ? -errno : 0;
}

/* Two hosts may do this at the same time: the first to name it wins, both read that one. */
static int make_id(struct io_store *s)
{
	char scratch[17];
	int err;

	io_scratch_name(s, scratch);
	err = write_new_id(s, scratch);
	if (!err)
		err = io_name_new(s->tmp, scratch, s->cairn, "id");
	unlinkat(s->tmp, scratch, 0);
	if (!err || err == -EEXIST)
		err = sync_id(s);
	return err ? err : io_store_read_id(s->cairn, s->id);
}

int io_store_new_id(struct io_store *s)
{
	char scratch[17];
	int err;

	if (s->ro)
		return -EROFS;
	io_scratch_name(s, scratch);
	unlinkat(s->tmp, scratch, 0);
	err = write_new_id(s, scratch);
	if (!err && renameat(s->tmp, scratch, s->cairn, "id"))
		err = -errno;
	if (err)
		unlinkat(s->tmp, scratch, 0);
	else
		err = sync_id(s);
	return err ? err : io_store_read_id(s->cairn, s->id);
}

int io_store_drop_scratch(struct io_store *s)
{
	CLEANUP_DIR DIR *d = entries_at(s->tmp, ".");
	struct dirent *e;

	if (!d)
		return -errno;
	while ((e = entries_next(d)))
		if (e->d_name[0] == 'l' && strlen(e->d_name) == 16)
			unlinkat(s->tmp, e->d_name, 0);
	return 0;
}

/* xfs sets no xattr and makes no file without a free block, so what a full store can do would not
 * be known. The reserve (staging/memory/reserve.c) is for this, too. */
static void make_room(struct io_store *s)
{
	CLEANUP_CLOSE int fd =
		io_open_beneath(s->host, "reserve", O_RDWR | O_NONBLOCK | O_CLOEXEC, 0);
	struct statvfs v;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || io_store_statvfs(s, &v) ||
	    (uint64_t)v.f_bavail * v.f_frsize >= OPEN_ROOM)
		return;
	off_t more = st.st_size / 2 < (off_t)OPEN_ROOM ? st.st_size / 2 : (off_t)OPEN_ROOM;
	/* freed blocks are given out again after the commit */
	if (!ftruncate(fd, st.st_size - more))
		fsync(fd);
}

/* ext4's limit is 16 TiB, others differ, and it is only known from the error. */
static uint64_t longest_file(struct io_store *s)
{
	uint64_t fits = 0, not = (uint64_t)INT64_MAX + 1;
	CLEANUP_CLOSE int fd = nameless(s, s->tmp, O_WRONLY);

	if (fd < 0)
		return UINT64_MAX;
	for (uint64_t size = INT64_MAX; not -fits > 1; size = fits + (not -fits) / 2) {
		if (!ftruncate(fd, (off_t)size))
			fits = size;
		else if (errno == EFBIG || errno == EINVAL)
			not = size;
		else
			return UINT64_MAX; /* another error: not to be reported here */
	}
	return fits;
}

static bool links_to(struct io_store *s, size_t len)
{
	char scratch[17], target[PATH_MAX];

	memset(target, 'x', len);
	target[len] = 0;
	io_scratch_name(s, scratch);
	if (symlinkat(target, s->tmp, scratch))
		return errno != ENAMETOOLONG && errno != EPERM && errno != EOPNOTSUPP;
	unlinkat(s->tmp, scratch, 0);
	return true;
}

/* 1023 on xfs and where a block is 1 KiB. */
static size_t longest_link(struct io_store *s)
{
	size_t fits = PATH_MAX - 1, not = PATH_MAX;

	if (!links_to(s, fits))
		for (fits = 0, not = PATH_MAX - 1; not -fits > 1;) {
			size_t len = fits + (not -fits) / 2;

			if (links_to(s, len))
				fits = len;
			else
				not = len;
		}
	return fits;
}

static int open_root(struct io_store *s, const char *path, struct stat *st)
{
	s->root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (s->root < 0)
		return -errno;
	s->root_rd = openat(s->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->root_rd < 0 || fstat(s->root, st))
		return -errno;
	if (!s->ro && faccessat(s->root, ".", W_OK | X_OK, AT_EACCESS))
		return -errno;
	s->fs.frees_early = io_fs_frees_early(s->root_rd);
	s->fs.frees_at_close = io_fs_is_local(s->root_rd);
	return io_fs_kind(s->root_rd, &s->fs);
}

/* Stores a descriptor, or returns its error. */
static int into(int *slot, int fd)
{
	*slot = fd < 0 ? -1 : fd;
	return fd < 0 ? fd : 0;
}

/* Without a number the ids of this host are random. */
static int take_number(struct io_store *s)
{
	int err = io_host_number(s->cairn, s->host_name, true, &s->host_number);

	switch (err) {
	case -EUSERS:
	case -ENOSPC:
	case -EDQUOT:
	case -EPERM:
	case -EOPNOTSUPP:
	case -ENOSYS: return 0;
	default: return err;
	}
}

/* Changes nothing that another cairnfs of this host relies on. A store so full that it takes no
 * claim is served nevertheless: what is staged for it may be removals. */
static int take_host(struct io_store *s, struct io_served *by)
{
	struct io_claim last;
	int err = take_lock(s, by);

	if (err && err != -EWOULDBLOCK)
		return err;
	int seen = io_claim_look(s, &last);
	by->of = last.of;
	if (err || seen)
		return seen ? seen : err;
	make_room(s);
	io_claim_begin(&last);
	err = io_claim_take(s, &last);
	if (err && err != -ENOSPC && err != -EDQUOT)
		return err;
	s->locked_by = (int)getpid();
	return io_store_lock_pid(s, s->locked_by);
}

#define RACES 10u

static void shut(int *slot)
{
	if (*slot >= 0)
		close(*slot);
	*slot = -1;
}

static int open_host(struct io_store *s, const struct stat *st, struct io_served *by)
{
	int err = -ENOENT;

	/* a start that fails may remove the directory meanwhile (io_store_forget_host) */
	for (unsigned i = 0; i < RACES && (err == -ENOENT || err == -ESTALE); i++) {
		shut(&s->lock);
		shut(&s->host);
		s->made_host = !mkdirat(s->cairn, s->host_name, 0700);
		err = into(&s->host, own_dir(s, s->cairn, s->host_name, O_RDONLY, st));
		if (!err)
			err = take_host(s, by);
	}
	return err;
}

static int open_rw(struct io_store *s, const struct stat *st, const char *host,
		   struct io_served *by)
{
	int err;

	io_store_host_name(host, s->host_name);
	err = into(&s->cairn, own_dir(s, s->root, CAIRN_DIR, O_PATH, st));
	if (!err)
		err = open_host(s, st, by);
	if (!err)
		err = into(&s->tmp, own_dir(s, s->host, "tmp", O_PATH, st));
	if (!err)
		err = into(&s->lostfound, own_dir(s, s->cairn, "lost+found", O_PATH, st));
	if (!err)
		err = take_number(s);
	if (!err)
		err = io_mark_open(s);
	if (err)
		return err;
	/* an older store that is full may have no space for it */
	into(&s->previous, own_dir(s, s->cairn, "previous", O_PATH, st));
	s->has_xattr = io_xattr_probe(s->host, false);
	s->xattr_space = s->has_xattr ? io_xattr_space(s->host) : 0;
	if (!s->has_xattr) {
		io_lacks(s->e, IO_NOTE_NO_XATTR);
		err = into(&s->meta, own_dir(s, s->cairn, "meta", O_PATH, st));
	}
	if (!err)
		err = io_store_drop_scratch(s);
	if (err)
		return err;
	io_tmp_probe(s);
	io_lend_recover(s);
	s->max.file = longest_file(s);
	s->max.link = longest_link(s);
	err = io_store_read_id(s->cairn, s->id);
	return err == -ENOENT ? make_id(s) : err;
}

/* Uses what exists, and creates nothing. */
static int open_ro(struct io_store *s)
{
	const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	int err;

	s->has_xattr = io_xattr_probe(s->root_rd, true);
	err = into(&s->cairn, io_open_beneath(s->root, CAIRN_DIR, flags, 0));
	if (err)
		return err == -ENOENT ? 0 : err;
	into(&s->lostfound, io_open_beneath(s->cairn, "lost+found", flags, 0));
	if (!s->has_xattr)
		into(&s->meta, io_open_beneath(s->cairn, "meta", flags, 0));
	err = io_store_read_id(s->cairn, s->id);
	return err == -ENOENT ? 0 : err;
}

void io_store_forget_host(struct io_store *s)
{
	struct stat st;

	if (s->host < 0)
		return;
	if (s->made_host || !fstatat(s->host, "ended", &st, AT_SYMLINK_NOFOLLOW))
		unlinkat(s->host, "alive", 0);
	if (!s->made_host)
		return;
	unlinkat(s->host, "mark", 0);
	unlinkat(s->host, "tmp", AT_REMOVEDIR);
	unlinkat(s->host, "lock", 0);
	unlinkat(s->cairn, s->host_name, AT_REMOVEDIR);
}

bool io_store_is_shared(const struct io_store *s)
{
	return atomic_load(&s->claim.others);
}

/* Whether .cairn/name is a host's: 1, 0, -errno. */
static int is_host(const struct io_store *s, const char *name)
{
	char lock[300];
	struct stat st;

	if (name[0] == '.')
		return 0;
	snprintf(lock, sizeof(lock), "%s/lock", name);
	if (!fstatat(s->cairn, lock, &st, AT_SYMLINK_NOFOLLOW))
		return 1;
	return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
}

bool io_store_has_host(const struct io_store *s, const char *host)
{
	char name[72];

	io_store_host_name(host, name);
	return s->cairn >= 0 && is_host(s, name);
}

int io_store_shared(struct io_store *s)
{
	CLEANUP_DIR DIR *d = s->cairn < 0 ? NULL : entries_at(s->cairn, ".");
	int hosts = 0, is = 0;
	struct dirent *e;

	if (s->cairn < 0)
		return 0;
	while (hosts < 2 && is >= 0 && (e = entries_next(d))) {
		is = is_host(s, e->d_name);
		hosts += is > 0;
	}
	if (hosts > 1)
		atomic_store(&s->claim.others, true);
	return hosts > 1 ? 1 : is < 0 ? is : -errno; /* entries_next() has set it */
}

int io_store_open(struct io_engine *e, const char *path, bool ro, const char *host,
		  struct io_served *by, struct io_store **out)
{
	struct io_served nobody = {0}, *served = by ? by : &nobody;
	struct io_store *s = calloc(1, sizeof(*s));
	struct stat st;
	int err;

	if (!s)
		return -ENOMEM;
	*served = nobody;
	s->e = e;
	s->ro = ro;
	s->max.file = UINT64_MAX;
	s->max.link = PATH_MAX - 1;
	s->root = s->root_rd = s->cairn = s->host = -1;
	s->tmp = s->lostfound = s->meta = s->previous = s->lock = s->mark = -1;
	lock_init(&s->meta_lock, RANK_SIDECAR);
	lock_init(&s->lend.lock, RANK_LEND);
	pthread_cond_init(&s->lend.cond, NULL);
	s->path = strdup(path);
	err = s->path ? open_root(s, path, &st) : -ENOMEM;
	if (!err)
		err = ro ? open_ro(s) : open_rw(s, &st, host, served);
	if (err) {
		if (s->made_host && s->claim.ino)
			io_store_forget_host(s);
		io_store_close(s);
		return err;
	}
	*out = s;
	return 0;
}

static void close_all(struct io_store *s)
{
	/* no LOCK_UN: a child that inherited the lock keeps it */
	int *fds[] = {&s->lostfound, &s->meta, &s->previous, &s->tmp,	  &s->mark,
		      &s->lock,	     &s->host, &s->cairn,    &s->root_rd, &s->root};

	for (size_t i = 0; i < sizeof(fds) / sizeof(*fds); i++) {
		scope_close(fds[i]);
		*fds[i] = -1;
	}
}

void io_store_detach(struct io_store *s)
{
	s->away = true;
	close_all(s);
}

bool io_store_took_over(const struct io_store *s)
{
	return s->claim.took_over;
}

bool io_store_is_detached(const struct io_store *s)
{
	return s->away;
}

void io_store_close(struct io_store *s)
{
	if (!s)
		return;
	close_all(s);
	pthread_mutex_destroy(&s->meta_lock);
	pthread_cond_destroy(&s->lend.cond);
	pthread_mutex_destroy(&s->lend.lock);
	free(s->path);
	free(s);
}

int io_store_root(const struct io_store *s)
{
	return s->root;
}

int io_store_tmp(const struct io_store *s)
{
	return s->tmp;
}

int io_store_lostfound(const struct io_store *s)
{
	return s->lostfound;
}

int io_store_previous(const struct io_store *s)
{
	return s->previous;
}

const char *io_store_id(const struct io_store *s)
{
	return s->id;
}

bool io_store_frees_early(const struct io_store *s)
{
	return s->fs.frees_early;
}

bool io_store_frees_at_close(const struct io_store *s)
{
	return s->fs.frees_at_close;
}

enum io_fs_kind io_store_fs(const struct io_store *s)
{
	return s->fs.kind;
}

size_t io_store_xattr_space(const struct io_store *s)
{
	return s->xattr_space;
}

uint64_t io_store_max_file(const struct io_store *s)
{
	return s->max.file;
}

size_t io_store_max_link(const struct io_store *s)
{
	return s->max.link;
}

bool io_store_has_xattr(const struct io_store *s)
{
	return s->has_xattr;
}
