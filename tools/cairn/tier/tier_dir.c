/* SPDX-License-Identifier: MIT
 *
 * A tier that is a directory of any filesystem. What is not finished is in
 * .cairn/tmp/<host>.<pid>/, which its process holds locked (flock). Other processes of that host
 * remove what is not locked, those of other hosts, which may not see the lock, only what is old.
 */
#include "io/full.h"
#include "tier.h"

#include "tools/tier/wire.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#define TMP ".cairn/tmp"
#define OLD_S (7 * 86400) /* no file takes so long to be sent */
#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define READ_FLAGS (O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
#define COPY_BYTES (4u << 20) /* large enough that calls cost nothing beside the bytes */

int tier_told(struct tier_why *w, int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(w->text, sizeof(w->text), fmt, ap);
	va_end(ap);
	return err;
}

bool tier_wants(const struct tier_opts *o, const char *path, bool *hit)
{
	bool wanted = !o->n_dirs;

	for (size_t i = 0; i < o->n_dirs; i++) {
		const char *dir = o->dirs[i];
		size_t n = strlen(dir);

		if (strncmp(path, dir, n) || (n && path[n] && path[n] != '/'))
			continue;
		wanted = true;
		if (hit)
			hit[i] = true;
	}
	return wanted;
}

/* ---- names ------------------------------------------------------------------------ */

int tier_open_at(const struct tier *t, const char *path, int flags)
{
	struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC,
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS};
	int fd = (int)syscall(SYS_openat2, t->root, *path ? path : ".", &how, sizeof(how));

	return fd < 0 ? -errno : fd;
}

/* An object has neither mode nor owner. */
static void make_mode(const struct tier *t, struct stat *out)
{
	*out = (struct stat){
		.st_mode = S_IFREG | (0666 & ~t->mask), .st_uid = geteuid(), .st_gid = getegid()};
}

int tier_mode(const struct tier *t, const char *path, struct stat *out)
{
	CLEANUP_CLOSE int fd = t->s3 ? -1 : tier_open_at(t, path, O_PATH | O_NOFOLLOW);

	if (t->s3)
		make_mode(t, out);
	else if (fd < 0 || fstat(fd, out))
		return fd < 0 ? fd : -errno;
	return 0;
}

int tier_stat(const struct tier *t, const char *path, struct stat *out)
{
	uint64_t size = 0;
	int err = tier_mode(t, path, out);

	if (err || !t->s3)
		return err;
	err = tier_s3_do(t->s3, S3_HEAD, path, -1, &size, NULL);
	out->st_size = (off_t)size;
	return err;
}

int tier_make_like(const struct tier *t, int fd, const char *path)
{
	struct stat st;

	if (t->like < 0 || fstatat(t->like, path, &st, 0) || !S_ISDIR(st.st_mode))
		return 0;
	if (!geteuid() && fchown(fd, st.st_uid, st.st_gid))
		st.st_mode &= 0700;
	return fchmod(fd, st.st_mode & 07777) ? -errno : 0;
}

/* Makes the directory, durably; 0 also if it is there. */
static int make_dir(const struct tier *t, int up, const char *name, const char *path)
{
	bool ours = !strncmp(path, ".cairn", 6) && (!path[6] || path[6] == '/');
	CLEANUP_CLOSE int fd = -1;
	int err;

	if (mkdirat(up, name, ours || t->like < 0 ? 0777 : 0700))
		return errno == EEXIST ? 0 : -errno;
	fd = openat(up, name, OPEN_DIR);
	err = fd < 0 ? -errno : ours ? 0 : tier_make_like(t, fd, path);
	if (!err && fsync(up))
		err = -errno;
	if (err)
		unlinkat(up, name, AT_REMOVEDIR);
	return err;
}

int tier_make_dirs(const struct tier *t, char *dir)
{
	CLEANUP_CLOSE int up = tier_open_at(t, "", O_RDONLY | O_DIRECTORY);
	int err = up < 0 ? up : 0;

	for (char *name = dir, *slash; !err && name; name = slash ? slash + 1 : NULL) {
		int fd;

		slash = strchr(name, '/');
		if (slash)
			*slash = '\0';
		err = make_dir(t, up, name, dir);
		fd = err ? -1 : openat(up, name, OPEN_DIR);
		if (!err && fd < 0)
			err = -errno;
		close(up);
		up = fd;
		if (slash)
			*slash = '/';
	}
	return err;
}

/* The directory that path is in, and its name there. make: creates what is missing. */
static int open_parent_of(const struct tier *t, const char *path, bool make, const char **name)
{
	const char *slash = strrchr(path, '/');
	CLEANUP_FREE char *dir = strndup(path, slash ? (size_t)(slash - path) : 0);
	int fd, err;

	if (!dir)
		return -ENOMEM;
	*name = slash ? slash + 1 : path;
	fd = tier_open_at(t, dir, O_RDONLY | O_DIRECTORY);
	if (fd != -ENOENT || !make)
		return fd;
	err = tier_make_dirs(t, dir);
	return err ? err : tier_open_at(t, dir, O_RDONLY | O_DIRECTORY);
}

/* ---- open ------------------------------------------------------------------------- */

static int empty_dir(int fd)
{
	struct names names = {0};
	int err = names_read(fd, &names);

	for (size_t i = 0; !err && i < names.n; i++)
		if (unlinkat(fd, names.v[i], 0) && errno != ENOENT)
			err = -errno;
	names_free(&names);
	return err;
}

/* Removes what is left of a process that has ended. host: "NAME.", ours. */
static void drop_dead(int tmp, const char *name, const char *host, time_t now)
{
	CLEANUP_CLOSE int fd = openat(tmp, name, OPEN_DIR);
	bool ours = !strncmp(name, host, strlen(host)) && !strchr(name + strlen(host), '.');
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || (!ours && now - st.st_mtime < OLD_S) ||
	    flock(fd, LOCK_EX | LOCK_NB))
		return;
	if (!empty_dir(fd))
		unlinkat(tmp, name, AT_REMOVEDIR);
}

/* Our directory below tmp: locked, and not taken for a dead one's before it was. */
static int make_tmp(struct tier *t, int tmp, const char *host)
{
	struct stat a, b;

	snprintf(t->tmp_name, sizeof(t->tmp_name), "%s%d", host, (int)getpid());
	for (int tries = 0; tries < 100; tries++) {
		if (mkdirat(tmp, t->tmp_name, 0700) && errno != EEXIST)
			return -errno;
		t->tmp = openat(tmp, t->tmp_name, OPEN_DIR);
		if (t->tmp < 0 && errno == ENOENT)
			continue;
		if (t->tmp < 0)
			return -errno;
		/* without locks nothing is removed */
		if (flock(t->tmp, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
			return -EBUSY;
		if (!fstat(t->tmp, &a) && !fstatat(tmp, t->tmp_name, &b, AT_SYMLINK_NOFOLLOW) &&
		    a.st_ino == b.st_ino)
			return empty_dir(t->tmp);
		close(t->tmp);
		t->tmp = -1;
	}
	return -EBUSY;
}

static int make_tmp_of(struct tier *t, const char *wanted)
{
	CLEANUP_CLOSE int tmp = tier_open_at(t, TMP, O_RDONLY | O_DIRECTORY);
	char host[96], name[65] = "";
	struct names names = {0};
	struct stat st;
	int err = tmp < 0 ? tmp : 0;

	if (!wanted && gethostname(name, sizeof(name) - 1))
		name[0] = '\0';
	snprintf(host, sizeof(host), "%s.", wanted ? wanted : *name ? name : "localhost");
	for (char *c = host; *c; c++)
		*c = *c == '/' ? '_' : *c;
	if (!err)
		err = make_tmp(t, tmp, host);
	if (!err && (fstat(t->tmp, &st) || (err = names_read(tmp, &names))))
		err = err ? err : -errno;
	for (size_t i = 0; !err && i < names.n; i++)
		if (strcmp(names.v[i], t->tmp_name))
			drop_dead(tmp, names.v[i], host, st.st_mtime);
	names_free(&names);
	return err;
}

static bool is_below(int fd, int top)
{
	char link[64], a[PATH_MAX], b[PATH_MAX];
	ssize_t n, m;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, a, sizeof(a) - 2);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", top);
	m = readlink(link, b, sizeof(b) - 2);
	if (n < 0 || m < 0)
		return false;
	a[n] = b[m] = '/';
	return n >= m && !memcmp(a, b, (size_t)m + 1);
}

static mode_t read_mask(void)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];
	unsigned mask = 0077;

	while (f && fgets(line, sizeof(line), f) && sscanf(line, "Umask: %o", &mask) != 1)
		;
	if (f)
		fclose(f);
	return (mode_t)mask;
}

static int open_root(struct tier *t, const char *name, struct tier_why *w)
{
	*t = TIER_NONE;
	t->name = name;
	t->mask = read_mask();
	if (!strncmp(name, "s3://", 5))
		return tier_s3_open(&t->s3, name, w);
	t->root = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return t->root < 0 ? tier_told(w, -errno, "%s: %m", name) : 0;
}

static int not_a_tier(const struct tier *t, struct tier_why *w)
{
	return tier_told(w, -ENOENT,
			 "%s: not a tier: it has no " TIER_MANIFESTS
			 "; `cairn tier push` makes one",
			 t->name);
}

/* Are there manifests? Also the first request: says whether the bucket can be reached. */
static int look_at_objects(const struct tier *t, struct tier_why *w, uint64_t *keys)
{
	CLEANUP_CLOSE int fd = memfd_create("keys", MFD_CLOEXEC);
	int err = fd < 0 ? -errno : tier_s3_do(t->s3, S3_LIST, TIER_MANIFESTS "/", fd, keys, NULL);

	return err ? tier_told(w, err, "%s: %s", t->name, tier_strerror(t, err)) : 0;
}

int tier_open_to_read(struct tier *t, const char *name, struct tier_why *w)
{
	int err = open_root(t, name, w);
	uint64_t keys = 0;

	if (!err && t->s3 && (err = look_at_objects(t, w, &keys)))
		return err == -EPIPE ? err : -EIO;
	if (!err && t->s3)
		return keys ? 0 : not_a_tier(t, w);
	if (!err && faccessat(t->root, TIER_MANIFESTS, F_OK, 0))
		err = errno == ENOENT ? not_a_tier(t, w)
				      : tier_told(w, -errno, "%s/" TIER_MANIFESTS ": %m", name);
	return err;
}

int tier_open_listed(struct tier *t, const char *name, struct tier_why *w)
{
	return strncmp(name, "s3://", 5) ? tier_open_to_read(t, name, w) : open_root(t, name, w);
}

static int make_ours(struct tier *t, const char *host, struct tier_why *w)
{
	char tmp[] = TMP, manifests[] = TIER_MANIFESTS;
	int err = tier_make_dirs(t, tmp);

	if (!err)
		err = tier_make_dirs(t, manifests);
	if (!err)
		err = make_tmp_of(t, host);
	return err ? tier_told(w, err, "%s/.cairn: %s", t->name, strerror(-err)) : 0;
}

int tier_open_to_write(struct tier *t, const char *name, const char *host, int store,
		       struct tier_why *w)
{
	int err = open_root(t, name, w);
	uint64_t keys;

	if (err || t->s3)
		return err ? err : look_at_objects(t, w, &keys);
	t->like = store;
	if (is_below(t->root, store) || is_below(store, t->root))
		return tier_told(w, -EINVAL,
				 "%s: in the store, or the store is in it; name a directory "
				 "elsewhere",
				 name);
	if (!faccessat(t->root, ".cairn/id", F_OK, 0))
		return tier_told(w, -EINVAL, "%s: a store of cairnfs; name another directory",
				 name);
	err = make_dir(t, t->root, ".cairn", ".cairn");
	if (err)
		return tier_told(w, err, "%s/.cairn: %s", name, strerror(-err));
	return make_ours(t, host, w);
}

void tier_limit(struct tier *t, struct pace *pace, const volatile sig_atomic_t *stop)
{
	t->pace = pace;
	t->stop = stop;
	if (t->s3)
		tier_s3_limit(t->s3, pace->rate, stop);
}

void tier_close(struct tier *t)
{
	char path[160];

	snprintf(path, sizeof(path), TMP "/%s", t->tmp_name);
	if (t->tmp >= 0) {
		unlinkat(t->root, path, AT_REMOVEDIR); /* not, if something is in it */
		close(t->tmp);
	}
	if (t->root >= 0)
		close(t->root);
	tier_s3_close(t->s3);
	t->s3 = NULL;
	t->root = t->tmp = -1;
}

const char *tier_strerror(const struct tier *t, int err)
{
	return t->s3 && *tier_s3_why(t->s3) ? tier_s3_why(t->s3) : strerror(-err);
}

/* ---- files ------------------------------------------------------------------------ */

static int create_temp(struct tier *t, struct tier_temp *out)
{
	int fd;

	snprintf(out->name, sizeof(out->name), "%u", t->temps++);
	fd = openat(t->tmp, out->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		out->name[0] = '\0';
	return fd < 0 ? -errno : fd;
}

void tier_drop(struct tier *t, struct tier_temp *temp)
{
	if (!*temp->name)
		return;
	if (t->s3)
		close(temp->fd);
	else
		unlinkat(t->tmp, temp->name, 0);
	temp->name[0] = '\0';
}

/* ---- copies; f gets the checksums ------------------------------------------------------ */

/* t: the one whose limits count; NULL: none. */
static int copy_bytes(const struct tier *t, int in, int out, uint64_t size, struct io_sum *sum,
		      tier_seen_fn seen, void *ctx)
{
	size_t piece = t && t->pace ? pace_piece(t->pace, COPY_BYTES) : COPY_BYTES;
	CLEANUP_FREE char *buf = malloc(COPY_BYTES);
	uint64_t off = 0;
	int err = buf ? 0 : -ENOMEM;

	if (!err && size && fallocate(out, FALLOC_FL_KEEP_SIZE, 0, (off_t)size) &&
	    (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
		return -errno; /* before anything is written */
	while (!err) {
		ssize_t n = full_pread(in, buf, piece, off);

		if (n < 0)
			return (int)n;
		if (!n)
			break;
		off += (uint64_t)n;
		if (off > size)
			break; /* it grew */
		if (t && t->stop && *t->stop)
			return -ECANCELED;
		if (t && t->pace)
			pace_wait(t->pace, (uint64_t)n);
		io_sum_add(sum, buf, (size_t)n);
		err = full_write(out, buf, (size_t)n);
		if (!err && seen)
			seen(ctx, (uint64_t)n);
	}
	return err ? err : off == size ? 0 : -ESTALE;
}

int tier_finish(int fd, const struct stat *st, const char *sum)
{
	struct timespec times[2] = {st->st_mtim, st->st_mtim};
	mode_t mode = st->st_mode & 0777;

	if (!geteuid() && fchown(fd, st->st_uid, st->st_gid))
		mode &= 0700; /* a server that maps root: not to be read by others than before */
	if (sum && fsetxattr(fd, KEY_CHECKSUM, sum, strlen(sum), 0))
		errno = 0; /* `cairn verify` says that it has none; a mount has its own */
	if (fchmod(fd, mode) || futimens(fd, times) || fsync(fd))
		return -errno;
	return 0;
}

static int copy_summed(const struct tier *t, int in, int out, struct tier_file *f,
		       tier_seen_fn seen, void *ctx)
{
	struct io_sum *m = manifest_begin_sums(f);
	int err = m ? copy_bytes(t, in, out, f->size, m, seen, ctx) : -ENOMEM;

	if (!err)
		manifest_end_sums(f, m);
	io_sum_free(m);
	return err;
}

static int put_object(struct tier *t, const char *path, int fd, uint64_t size, char *sum)
{
	return tier_s3_do(t->s3, S3_PUT, path, fd, &size, sum);
}

bool tier_in_parts(const struct tier *t, uint64_t size)
{
	return t->s3 && size > S3_PART_BYTES;
}

int tier_begin_upload(const struct tier *t, const char *path, char **id)
{
	char upload[S3_UPLOAD_MAX + 1] = "";
	int err = tier_s3_upload(t->s3, S3_BEGIN, path, -1, NULL, NULL, upload, NULL);

	*id = NULL;
	if (err || !manifest_is_upload(upload))
		return err;
	*id = strdup(upload);
	return *id ? 0 : -ENOMEM;
}

int tier_abort_upload(const struct tier *t, const char *path, const char *id)
{
	return tier_s3_upload(t->s3, S3_ABORT, path, -1, NULL, NULL, (char *)id, NULL);
}

/* What is to be an object later. */
static int keep_bytes(int in, struct tier_file *f, struct tier_temp *out, tier_seen_fn seen,
		      void *ctx)
{
	int fd = memfd_create("object", MFD_CLOEXEC);
	int err = fd < 0 ? -errno : copy_summed(NULL, in, fd, f, seen, ctx);

	if (err) {
		if (fd >= 0)
			close(fd);
		return err;
	}
	*out = (struct tier_temp){.name = "object", .fd = fd, .size = f->size};
	return 0;
}

static int send_object(struct tier *t, int in, struct tier_file *f, tier_seen_fn seen, void *ctx)
{
	uint64_t sent = f->size, bytes = manifest_range_bytes(f->size);
	struct tier_ranges r = {
		.bytes = f->size > bytes ? bytes : 0, .done = manifest_add_range, .ctx = f};
	struct stat st;
	int err;

	free(f->ranges);
	f->ranges = NULL;
	f->range_bytes = bytes;
	err = tier_s3_upload(t->s3, S3_PUT, f->path, in, &sent, f->sum, f->upload, &r);
	manifest_end_sums(f, NULL);
	if (fstat(in, &st) || (uint64_t)st.st_size != f->size)
		return -ESTALE;
	if (!err && seen)
		seen(ctx, f->size);
	return err;
}

int tier_copy(struct tier *t, int in, struct tier_file *f, bool now, const struct stat *st,
	      struct tier_temp *out, tier_seen_fn seen, void *ctx)
{
	CLEANUP_CLOSE int fd = t->s3 ? -1 : create_temp(t, out);
	int err;

	if (t->s3 && now)
		return send_object(t, in, f, seen, ctx);
	if (t->s3)
		return keep_bytes(in, f, out, seen, ctx);
	err = fd < 0 ? fd : copy_summed(t, in, fd, f, seen, ctx);
	if (!err)
		err = tier_finish(fd, st, NULL);
	if (err)
		tier_drop(t, out);
	return err;
}

static int get_object(const struct tier *t, const char *path, int out, uint64_t len,
		      const struct tier_ranges *r, char *sum)
{
	uint64_t size = len;
	int err = tier_s3_upload(t->s3, S3_GET, path, out, &size, sum, NULL, r);

	return err ? err : size == len ? 0 : -ESTALE;
}

static int get_bytes(int in, int out, uint64_t len, uint64_t off, struct io_sum *m)
{
	CLEANUP_FREE char *buf = malloc(COPY_BYTES);
	int err = buf ? 0 : -ENOMEM;

	while (!err && len) {
		size_t want = len < COPY_BYTES ? (size_t)len : COPY_BYTES;
		ssize_t n = full_pread(in, buf, want, off);

		if (n <= 0)
			return n ? (int)n : -ESTALE;
		err = full_pwrite(out, buf, (size_t)n, off);
		io_sum_add(m, buf, (size_t)n); /* a range that is told is written */
		off += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return err;
}

int tier_get(const struct tier *t, const char *path, int out, uint64_t len,
	     const struct tier_ranges *r, char sum[IO_CHECKSUM_LEN])
{
	CLEANUP_CLOSE int in = t->s3 ? -1 : tier_open_at(t, path, READ_FLAGS);
	struct stat st;
	struct io_sum *m;
	int err;

	if (t->s3)
		return get_object(t, path, out, len, r, sum);
	if (in < 0 || fstat(in, &st))
		return in < 0 ? in : -errno;
	if (!S_ISREG(st.st_mode) || (!len && st.st_size))
		return -ESTALE;
	m = io_sum_new();
	err = m ? io_sum_ranges(m, r->bytes, r->done, r->ctx) : -ENOMEM;
	if (!err)
		err = get_bytes(in, out, len, r->off, m);
	if (!err) {
		io_sum_last_range(m);
		io_sum_text(m, sum);
	}
	io_sum_free(m);
	return err;
}

static int publish_object(struct tier *t, struct tier_temp *temp, const char *path)
{
	int err = put_object(t, path, temp->fd, temp->size, NULL);

	if (!err)
		tier_drop(t, temp);
	return err;
}

int tier_publish(struct tier *t, struct tier_temp *temp, const char *path)
{
	const char *name;
	CLEANUP_CLOSE int dir = t->s3 ? -1 : open_parent_of(t, path, true, &name);

	if (t->s3)
		return publish_object(t, temp, path);
	if (dir < 0)
		return dir;
	if (renameat(t->tmp, temp->name, dir, name))
		return -errno;
	temp->name[0] = '\0';
	return 0;
}

int tier_sync_dir(const struct tier *t, const char *path)
{
	const char *name;
	CLEANUP_CLOSE int dir = t->s3 ? -1 : open_parent_of(t, path, false, &name);

	if (t->s3)
		return 0;
	if (dir < 0)
		return dir;
	return fsync(dir) ? -errno : 0;
}

static int put_text(struct tier *t, const char *path, const char *text, size_t len)
{
	CLEANUP_CLOSE int fd = memfd_create("object", MFD_CLOEXEC);
	int err = fd < 0 ? -errno : full_write(fd, text, len);

	return err ? err : put_object(t, path, fd, len, NULL);
}

static int write_temp(struct tier *t, const char *text, size_t len, struct tier_temp *out)
{
	CLEANUP_CLOSE int fd = create_temp(t, out);
	int err = fd < 0 ? fd : full_write(fd, text, len);

	if (!err && (fchmod(fd, 0666 & ~t->mask) || fsync(fd)))
		err = -errno;
	return err;
}

int tier_put(struct tier *t, const char *path, const char *text, size_t len)
{
	struct tier_temp temp = {.fd = -1};
	int err;

	if (t->s3)
		return put_text(t, path, text, len);
	err = write_temp(t, text, len, &temp);
	if (!err)
		err = tier_publish(t, &temp, path);
	if (!err)
		err = tier_sync_dir(t, path);
	tier_drop(t, &temp);
	return err;
}

int tier_put_new(struct tier *t, const char *path, const char *text, size_t len)
{
	struct tier_temp temp = {.fd = -1};
	int err = write_temp(t, text, len, &temp);

	if (!err && linkat(t->tmp, temp.name, t->root, path, 0))
		err = errno == EEXIST	? 0
		      : errno == ENOENT ? -errno
					: tier_publish(t, &temp, path); /* no links there */
	if (!err)
		err = tier_sync_dir(t, path);
	tier_drop(t, &temp);
	return err;
}

int tier_remove(struct tier *t, const char *path)
{
	const char *name;
	CLEANUP_CLOSE int dir = t->s3 ? -1 : open_parent_of(t, path, false, &name);

	if (t->s3)
		return tier_s3_do(t->s3, S3_DELETE, path, -1, NULL, NULL);
	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	if (unlinkat(dir, name, 0))
		return errno == ENOENT ? 0 : -errno;
	return fsync(dir) ? -errno : 0;
}

int tier_remove_dir(struct tier *t, const char *path)
{
	const char *name;
	CLEANUP_CLOSE int dir = t->s3 ? -1 : open_parent_of(t, path, false, &name);

	if (t->s3)
		return 0;
	if (dir < 0)
		return dir == -ENOENT ? 0 : dir;
	if (unlinkat(dir, name, AT_REMOVEDIR))
		return errno == ENOENT ? 0 : errno == EEXIST ? -ENOTEMPTY : -errno;
	return fsync(dir) ? -errno : 0;
}

int tier_sum(const struct tier *t, const char *path, uint64_t *size, char sum[IO_CHECKSUM_LEN])
{
	CLEANUP_CLOSE int fd = t->s3 ? -1 : tier_open_at(t, path, READ_FLAGS);
	struct stat st;
	int err;

	*size = 0;
	if (t->s3)
		return tier_s3_do(t->s3, S3_GET, path, -1, size, sum);
	if (fd < 0 || fstat(fd, &st))
		return fd < 0 ? fd : -errno;
	*size = (uint64_t)st.st_size;
	err = io_sum_file(fd, sum);
	/* who writes to the tier takes the file as it is: not before it is on stable storage */
	return !err && t->tmp >= 0 && fsync(fd) ? -errno : err;
}

static void no_range(void *ctx, uint64_t number, const char sum[IO_CHECKSUM_LEN])
{
	(void)ctx;
	(void)number;
	(void)sum;
}

/* A part is asked for, of which the library asks in one request; of a whole object, in two. */
static int get_small(const struct tier *t, const char *path, int fd, uint64_t *size)
{
	const struct tier_ranges all = {.done = no_range};
	int err;

	*size = S3_PART_BYTES;
	err = tier_s3_upload(t->s3, S3_GET, path, fd, size, NULL, NULL, &all);
	if (err != -ESTALE && (err || *size < S3_PART_BYTES))
		return err;
	*size = 0; /* it is larger, or empty */
	return tier_s3_do(t->s3, S3_GET, path, fd, size, NULL);
}

int tier_read_small(const struct tier *t, const char *path, size_t max, char **text, size_t *len)
{
	CLEANUP_CLOSE int fd = -1;
	uint64_t size = 0;
	char *buf;
	int err;

	if (!t->s3)
		return read_small_file(t->root, path, max, text, len);
	fd = memfd_create("object", MFD_CLOEXEC);
	err = fd < 0 ? -errno : get_small(t, path, fd, &size);
	if (err || size > max)
		return err ? err : -EFBIG;
	buf = malloc(size + 1);
	if (!buf)
		return -ENOMEM;
	if (full_pread(fd, buf, size, 0) != (ssize_t)size) {
		free(buf);
		return -EIO;
	}
	buf[size] = '\0';
	*text = buf;
	*len = size;
	return 0;
}
