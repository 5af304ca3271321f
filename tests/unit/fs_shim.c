/* SPDX-License-Identifier: MIT */
#include "tests/unit/fs_shim.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fs/fs.h"
#include "staging/file/file.h"

/* ---- answers that come late ---- */

static pthread_mutex_t late_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t late_cond = PTHREAD_COND_INITIALIZER;
static const char *late_name;	/* of the call that is to be late */
static bool is_late;

void shim_answer_late(const char *name)
{
	pthread_mutex_lock(&late_lock);
	late_name = name;
	is_late = false;
	pthread_mutex_unlock(&late_lock);
}

void shim_await_late(void)
{
	pthread_mutex_lock(&late_lock);
	while (!is_late)
		pthread_cond_wait(&late_cond, &late_lock);
	pthread_mutex_unlock(&late_lock);
}

void shim_let_answer(void)
{
	pthread_mutex_lock(&late_lock);
	is_late = false;
	pthread_cond_broadcast(&late_cond);
	pthread_mutex_unlock(&late_lock);
}

/* After the call itself. */
static void be_late(const char *name)
{
	int err = errno;
	pthread_mutex_lock(&late_lock);
	if (late_name && !strcmp(late_name, name)) {
		late_name = NULL;
		is_late = true;
		pthread_cond_broadcast(&late_cond);
		while (is_late)
			pthread_cond_wait(&late_cond, &late_lock);
	}
	pthread_mutex_unlock(&late_lock);
	errno = err;
}

int closedir(DIR *d)
{
	static int (*real)(DIR *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "closedir");
	be_late("closedir");
	return real(d);
}

/* ---- calls of the store and of staging that fail ---- */

static const char *failing;
static int failing_errno;

void shim_fail(const char *name, int err)
{
	failing = name;
	failing_errno = err;
}

static bool fails(const char *name)
{
	if (!failing || !name || strcmp(name, failing))
		return false;
	errno = failing_errno;
	return true;
}

static ino_t real_ino[4], shown_ino;
static unsigned n_real;

void shim_show_ino(uint64_t real, uint64_t shown)
{
	real_ino[n_real++] = real;
	shown_ino = shown;
	if (!real)
		n_real = 0;
}

static uint64_t shown(uint64_t ino)
{
	for (unsigned i = 0; i < n_real; i++)
		if (real_ino[i] == ino)
			return shown_ino;
	return ino;
}

int fstatat(int dirfd, const char *restrict name, struct stat *restrict st, int flags)
{
	static int (*real)(int, const char *, struct stat *, int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fstatat64");
	int rc = fails(name) ? -1 : real(dirfd, name, st, flags);
	if (!rc)
		st->st_ino = shown(st->st_ino);
	return rc;
}

int fstat(int fd, struct stat *st)
{
	static int (*real)(int, struct stat *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "fstat64");
	int rc = real(fd, st);
	if (!rc)
		st->st_ino = shown(st->st_ino);
	return rc;
}

int statx(int dirfd, const char *restrict name, int flags, unsigned mask, struct statx *restrict x)
{
	static int (*real)(int, const char *, int, unsigned, struct statx *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "statx");
	int rc = fails(name) ? -1 : real(dirfd, name, flags, mask, x);
	be_late(name);
	if (!rc)
		x->stx_ino = shown(x->stx_ino);
	return rc;
}

/* ---- a worker that dies between two calls of the publisher ---- */

static atomic_int calls_left;	/* of the publisher's changes of names; 0 = it never stops */
static atomic_bool publisher_stopped;

void shim_stop_publisher(int calls)
{
	atomic_store(&calls_left, calls);
}

bool shim_publisher_stopped(void)
{
	return atomic_load(&publisher_stopped);
}

/* Before and after each call in the store: the last that is left never returns. Not of what is staged,
 * which it removes with a lock that others want. */
static void count_call(int dirfd)
{
	char name[16] = "";
	struct statfs st;
	if (!atomic_load(&calls_left) || fstatfs(dirfd, &st) || st.f_type == TMPFS_MAGIC || pthread_getname_np(pthread_self(), name, sizeof(name)) ||
	    strcmp(name, "cairn-publish") || atomic_fetch_sub(&calls_left, 1) > 1)
		return;
	atomic_store(&publisher_stopped, true);
	for (;;)
		pause();
}

int renameat(int d1, const char *n1, int d2, const char *n2)
{
	static int (*real)(int, const char *, int, const char *);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "renameat");
	count_call(d2);
	int rc = real(d1, n1, d2, n2), err = errno;
	count_call(d2);
	errno = err;
	be_late("renameat");
	return rc;
}

int linkat(int d1, const char *n1, int d2, const char *n2, int flags)
{
	static int (*real)(int, const char *, int, const char *, int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "linkat");
	count_call(d2);
	int rc = real(d1, n1, d2, n2, flags), err = errno;
	count_call(d2);
	errno = err;
	return rc;
}

int unlinkat(int dirfd, const char *name, int flags)
{
	static int (*real)(int, const char *, int);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "unlinkat");
	count_call(dirfd);
	int rc = real(dirfd, name, flags), err = errno;
	count_call(dirfd);
	errno = err;
	return rc;
}

int mkdirat(int dirfd, const char *name, mode_t mode)
{
	static int (*real)(int, const char *, mode_t);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "mkdirat");
	count_call(dirfd);
	int rc = real(dirfd, name, mode), err = errno;
	count_call(dirfd);
	errno = err;
	return rc;
}

int openat(int dirfd, const char *name, int flags, ...)
{
	static int (*real)(int, const char *, int, ...);
	va_list ap;
	va_start(ap, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "openat64");
	return fails(name) ? -1 : real(dirfd, name, flags, mode);
}

int shim_open(const struct staging_opts *o, bool first, bool start, struct fs **out)
{
	struct fs *fs = calloc(1, sizeof(*fs));
	if (!fs)
		return -ENOMEM;
	pthread_mutex_init(&fs->tree.lock, NULL);
	pthread_mutex_init(&fs->notices.lock, NULL);
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&fs->tree.busy_cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
	fs->store = o->store;
	fs->engine = o->engine;
	fs->still.fd = -1;
	*out = fs;
	int rc = tree_init(fs);
	if (!rc)
		rc = staging_open(o, &fs->s);
	if (!rc)
		rc = staging_replay(fs->s, first ? NULL : fs_replay, fs);
	if (!rc)
		rc = staging_sweep(fs->s, first);
	return rc || !start ? rc : shim_start(fs);
}

int shim_start(struct fs *fs)
{
	int rc = staging_start(fs->s);
	if (!rc)
		seal_restored(fs);
	return rc;
}

static void free_node(struct node *n)
{
	for (struct place *p = n->stored.places, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	for (struct xattr *x = n->xattrs, *next; x; x = next) {
		next = x->next;
		free(x->key);
		free(x);
	}
	free(n->target);
	free(n);
}

/* Memory only: nothing is logged, closed or given back. */
void shim_kill(struct fs *fs)
{
	if (fs->s)
		staging_close(fs->s);
	for (unsigned i = 0; i < 4096; i++)
		for (struct handle *h = fs->tree.handles[i], *next; h; h = next) {
			next = h->hash_next;
			if (h->fd >= 0)
				close(h->fd);
			free(h);
		}
	for (unsigned i = 0; i < NODE_BUCKETS; i++) {
		for (struct dentry *d = fs->tree.dentries[i], *next; d; d = next) {
			next = d->hash_next;
			free(d);
		}
		for (struct node *n = fs->tree.nodes[i], *next; n; n = next) {
			next = n->hash_next;
			free_node(n);
		}
	}
	if (!fs->forks.started)		/* its thread ends with the process, and waits in there */
		free(fs);
}

struct staging *shim_staging(struct fs *fs)
{
	return fs->s;
}

/* As the operations do: with the lock, but not while the store is asked. */
#define ASKING(fs, rc, call)                  \
	do {                                  \
		ask_begin();                  \
		do {                          \
			TREE_SCOPE(fs);       \
			(rc) = (call);        \
		} while (ask_store(fs, rc));  \
	} while (0)

static struct node *known(struct node *n)
{
	n->nlookup = 1;	/* the kernel knows it until it forgets */
	return n;
}

static int try_lookup(struct fs *fs, uint64_t dir, const char *name, uint64_t *id)
{
	struct node *d = node_find(fs, dir), *n;
	int rc = d ? tree_lookup(fs, d, name, &n, NULL) : -ESTALE;
	if (!rc)
		*id = known(n)->id;
	return rc;
}

int shim_lookup(struct fs *fs, uint64_t dir, const char *name, uint64_t *id)
{
	int rc;
	ASKING(fs, rc, try_lookup(fs, dir, name, id));
	return rc;
}

/* lock held; 0 when the name is free */
static int begin(struct fs *fs, uint64_t dir, const char *name)
{
	struct node *d = node_find(fs, dir), *n;
	int rc = d ? tree_lookup(fs, d, name, &n, NULL) : -ESTALE;
	return rc == -ENOENT ? 0 : rc ? rc : -EEXIST;
}

static int try_make(struct fs *fs, struct rec *r, uint64_t dir, const char *name, uint64_t *id)
{
	int rc = begin(fs, dir, name);
	if (rc)
		return rc;
	r->uid = geteuid();
	r->gid = getegid();
	r->dir = dir;
	r->name = name;
	r->node = r->ino = staging_new_id(fs->s);
	rc = fs_record(fs, r);
	if (!rc)
		*id = known(node_find(fs, r->node))->id;
	return rc;
}

static int make(struct fs *fs, struct rec *r, uint64_t dir, const char *name, uint64_t *id)
{
	int rc;
	ASKING(fs, rc, try_make(fs, r, dir, name, id));
	return rc;
}

int shim_mkdir(struct fs *fs, uint64_t dir, const char *name, uint64_t *id)
{
	struct rec r = rec_new(REC_MKDIR);
	r.mode = 0755;
	return make(fs, &r, dir, name, id);
}

int shim_symlink(struct fs *fs, uint64_t dir, const char *name, const char *target)
{
	struct rec r = rec_new(REC_SYMLINK);
	uint64_t id;
	r.mode = 0777;
	r.data = target;
	r.data_len = (uint32_t)strlen(target) + 1;
	return make(fs, &r, dir, name, &id);
}

static int open_node(struct fs *fs, struct node *n, int flags, uint64_t *fh)
{
	struct rec r = rec_new(REC_OPEN);
	r.fh = staging_new_id(fs->s);
	r.node = n->id;
	r.sf = n->sf ? staged_id(n->sf) : 0;
	r.mask = (uint64_t)(unsigned)flags;
	r.lane = LANE_RELAY;
	if ((flags & O_ACCMODE) != O_RDONLY)
		r.flags = REC_WRITE;
	*fh = r.fh;
	return fs_record(fs, &r);
}

static int try_create(struct fs *fs, uint64_t dir, const char *name, uint64_t *id, uint64_t *fh)
{
	struct rec r = rec_new(REC_CREATE);
	struct staged *sf;
	int rc = begin(fs, dir, name);
	if (rc)
		return rc;
	r.node = r.ino = staging_new_id(fs->s);
	rc = staged_create(fs->s, r.node, expect_size(fs, node_find(fs, dir), name), &sf);
	if (rc)
		return rc;
	r.mode = 0640;
	r.uid = geteuid();
	r.gid = getegid();
	r.dir = dir;
	r.name = name;
	r.sf = staged_id(sf);
	r.flags = (staged_spilled(sf) ? REC_SPILLED : 0) | (staged_huge(sf) ? REC_HUGE : 0);
	rc = fs_record(fs, &r);
	staged_unref(sf);
	if (rc)
		return rc;
	*id = known(node_find(fs, r.node))->id;
	return open_node(fs, node_find(fs, r.node), O_WRONLY, fh);
}

int shim_create(struct fs *fs, uint64_t dir, const char *name, uint64_t *id, uint64_t *fh)
{
	int rc;
	ASKING(fs, rc, try_create(fs, dir, name, id, fh));
	return rc;
}

static int try_open_file(struct fs *fs, uint64_t id, int flags, uint64_t *fh)
{
	struct node *n = node_find(fs, id);
	int rc = n->fork.to ? -ESTALE : 0;
	if (!rc && (flags & O_ACCMODE) != O_RDONLY)
		rc = node_make_writable(fs, n, flags & O_TRUNC);
	if (rc)
		return rc;
	node_check_sf(fs, n);
	return open_node(fs, n, flags, fh);
}

int shim_open_file(struct fs *fs, uint64_t dir, const char *name, int flags, uint64_t *fh)
{
	int rc = -ESTALE;
	for (int tries = 0; rc == -ESTALE && tries < 3; tries++) {
		uint64_t id;
		rc = shim_lookup(fs, dir, name, &id);
		if (!rc)
			ASKING(fs, rc, try_open_file(fs, id, flags, fh));
	}
	return rc;
}

int shim_write(struct fs *fs, uint64_t fh, const void *buf, size_t len, uint64_t off)
{
	pthread_mutex_lock(&fs->tree.lock);
	struct handle *h = handle_find(fs, fh);
	struct staged *sf = h && h->writer && h->node->sf ? staged_ref(h->node->sf) : NULL;
	pthread_mutex_unlock(&fs->tree.lock);
	if (!sf)
		return -EBADF;
	ssize_t n = staged_write(sf, buf, len, off);
	staged_unref(sf);
	return n < 0 ? (int)n : n == (ssize_t)len ? 0 : -EIO;
}

int shim_close(struct fs *fs, uint64_t fh)
{
	TREE_SCOPE(fs);
	struct handle *h = handle_find(fs, fh);
	if (!h)
		return -EBADF;
	struct node *n = h->node;
	struct rec r = rec_new(REC_CLOSE);
	r.fh = fh;
	r.node = n->id;
	int rc = fs_record(fs, &r);
	struct staged_info i = {.state = STAGED_EVICTED};
	if (n->sf && !n->writers && !n->fork.to)
		staged_get_info(n->sf, &i);
	if (!rc && i.state == STAGED_OPEN) {
		if (staged_changed(n->sf))
			rc = node_seal_closed(fs, n);
		else
			staged_unchanged(n->sf);
	}
	return rc;
}

static int try_flush(struct fs *fs, uint64_t fh)
{
	struct handle *h = handle_find(fs, fh);
	if (!h)
		return -EBADF;
	h->flushed = true;
	return fs_flushed(fs, h->node);
}

int shim_flush(struct fs *fs, uint64_t fh)
{
	int rc;
	ASKING(fs, rc, try_flush(fs, fh));
	return rc;
}

unsigned shim_close_all(struct fs *fs)
{
	return close_all(fs);
}

static int try_remove(struct fs *fs, uint64_t dir, const char *name, bool want_dir)
{
	struct node *d = node_find(fs, dir), *n;
	struct dentry *e;
	int rc = d ? tree_lookup(fs, d, name, &n, &e) : -ESTALE;
	if (!rc && want_dir != !!S_ISDIR(n->attr.mode))
		rc = want_dir ? -ENOTDIR : -EISDIR;
	if (!rc && want_dir)
		rc = tree_dir_empty(fs, n);
	if (rc)
		return rc;
	struct rec r = rec_new(want_dir ? REC_RMDIR : REC_UNLINK);
	r.node = n->id;
	r.dir = dir;
	r.name = name;
	r.flags = e->store_has ? 0 : REC_GHOST;
	r.node2 = want_dir || (node_links(n) <= 1 && !n->writers) ? n->id : 0;
	return fs_record(fs, &r);
}

static int remove_name(struct fs *fs, uint64_t dir, const char *name, bool want_dir)
{
	int rc;
	ASKING(fs, rc, try_remove(fs, dir, name, want_dir));
	return rc;
}

int shim_unlink(struct fs *fs, uint64_t dir, const char *name)
{
	return remove_name(fs, dir, name, false);
}

int shim_rmdir(struct fs *fs, uint64_t dir, const char *name)
{
	return remove_name(fs, dir, name, true);
}

static int try_rename(struct fs *fs, uint64_t dir, const char *name, uint64_t dir2, const char *name2)
{
	struct node *d1 = node_find(fs, dir), *d2 = node_find(fs, dir2), *n, *victim = NULL;
	int rc = d1 && d2 ? tree_lookup(fs, d1, name, &n, NULL) : -ESTALE;
	if (rc)
		return rc;
	rc = tree_lookup(fs, d2, name2, &victim, NULL);
	if (rc == -ENOENT)
		victim = NULL;
	else if (rc)
		return rc;
	if (victim && S_ISDIR(n->attr.mode) != S_ISDIR(victim->attr.mode))
		return S_ISDIR(n->attr.mode) ? -ENOTDIR : -EISDIR;
	rc = victim && S_ISDIR(victim->attr.mode) ? tree_dir_empty(fs, victim) : 0;
	if (rc || victim == n)
		return rc;
	struct rec r = rec_new(REC_RENAME);
	r.node = n->id;
	r.node2 = victim && (S_ISDIR(victim->attr.mode) || node_links(victim) <= 1) ? victim->id : 0;
	r.dir = dir;
	r.name = name;
	r.dir2 = dir2;
	r.name2 = name2;
	struct dentry *e = dentry_find(fs, d1, name);
	r.flags = (S_ISDIR(n->attr.mode) ? REC_DIR : 0) |
		  (e->sealed ? 0 : e->store_has ? REC_SHADOW : REC_GHOST);
	return fs_record(fs, &r);
}

int shim_rename(struct fs *fs, uint64_t dir, const char *name, uint64_t dir2, const char *name2)
{
	int rc;
	ASKING(fs, rc, try_rename(fs, dir, name, dir2, name2));
	return rc;
}

static int try_link(struct fs *fs, uint64_t id, uint64_t dir, const char *name)
{
	struct node *n = node_current(fs, id);
	int rc = begin(fs, dir, name);
	if (!rc && (!n || !n->names))
		rc = -ENOENT;
	if (rc)
		return rc;
	struct rec r = rec_new(REC_LINK);
	struct dentry *d = n->names;
	while (d->name_next && !d->sealed)
		d = d->name_next;
	r.node = n->id;
	r.flags = d->sealed ? 0 : REC_GHOST;
	r.dir = d->dir->id;
	r.name = d->name;
	r.dir2 = dir;
	r.name2 = name;
	return fs_record(fs, &r);
}

int shim_link(struct fs *fs, uint64_t id, uint64_t dir, const char *name)
{
	int rc;
	ASKING(fs, rc, try_link(fs, id, dir, name));
	return rc;
}

int shim_chmod(struct fs *fs, uint64_t id, mode_t mode)
{
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);
	if (!n || (!n->names && n != fs->tree.root))
		return -ESTALE;
	struct rec r = rec_new(REC_ATTR);
	r.node = n->id;
	r.mask = REC_MODE;
	r.mode = mode;
	rec_aim(fs, &r, n);
	return fs_record(fs, &r);
}

int shim_forget(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	if (!n || n == fs->tree.root)
		return -ESTALE;
	n->nlookup = 0;
	node_release(fs, n);
	ask_let_go(fs);
	node_gc(fs);
	return 0;
}

void shim_held(struct fs *fs, size_t *nodes, size_t *names)
{
	TREE_SCOPE(fs);
	ask_let_go(fs);
	node_gc(fs);
	*nodes = fs->tree.n_nodes;
	*names = 0;
	for (unsigned i = 0; i < NODE_BUCKETS; i++)
		for (struct dentry *d = fs->tree.dentries[i]; d; d = d->hash_next)
			++*names;
}

static int try_stat(struct fs *fs, uint64_t id, struct stat *st)
{
	struct node *n = node_find(fs, id);
	return n ? node_stat(fs, n, st) : -ESTALE;
}

int shim_stat(struct fs *fs, uint64_t id, struct stat *st)
{
	int rc;
	ASKING(fs, rc, try_stat(fs, id, st));
	return rc;
}

static ssize_t try_read(struct fs *fs, uint64_t id, void *buf, size_t cap)
{
	struct node *n = node_find(fs, id);
	if (!n)
		return -ESTALE;
	node_check_sf(fs, n);
	if (n->sf) {
		ssize_t got = staged_read(n->sf, buf, cap, 0);
		if (got != -ENODATA)
			return got;
	}
	int fd = node_open_store(fs, n);
	if (fd < 0)
		return fd;
	ssize_t got = pread(fd, buf, cap, 0);
	close(fd);
	return got;
}

ssize_t shim_read(struct fs *fs, uint64_t id, void *buf, size_t cap)
{
	ssize_t rc;
	ASKING(fs, rc, try_read(fs, id, buf, cap));
	return rc;
}

int shim_readlink(struct fs *fs, uint64_t id, char *buf, size_t cap)
{
	int rc;
	ASKING(fs, rc, ask_link(fs, node_find(fs, id), buf, cap));
	return rc;
}

int shim_list(struct fs *fs, uint64_t dir, int (*fn)(void *arg, const char *name), void *arg)
{
	int rc;
	ASKING(fs, rc, dir_names(fs, node_find(fs, dir), fn, arg));
	return rc;
}

uint64_t shim_staged(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	return n && n->sf ? staged_id(n->sf) : 0;
}

void shim_evict(struct fs *fs)
{
	LOCK_SCOPE(&fs->s->lock);
	sf_evict(fs->s, UINT64_MAX);
}

unsigned shim_places(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	unsigned n = 0;
	for (struct place *p = node_find(fs, id)->stored.places; p; p = p->next)
		n++;
	return n;
}

static int try_open_kept(struct fs *fs, uint64_t fh)
{
	struct handle *h = handle_find(fs, fh);
	return h ? node_open_store(fs, h->node) : -EBADF;
}

int shim_open_kept(struct fs *fs, uint64_t fh)
{
	int rc;
	ASKING(fs, rc, try_open_kept(fs, fh));
	return rc;
}

uint64_t shim_handle(struct fs *fs, uint64_t fh, bool *writer)
{
	TREE_SCOPE(fs);
	struct handle *h = handle_find(fs, fh);
	if (h && writer)
		*writer = h->writer;
	return h ? h->node->id : 0;
}

bool shim_is_control(uint64_t id)
{
	return is_control(id);
}

unsigned shim_handles(struct fs *fs)
{
	TREE_SCOPE(fs);
	unsigned n = 0;
	for (unsigned i = 0; i < 4096; i++)
		for (struct handle *h = fs->tree.handles[i]; h; h = h->hash_next)
			n++;
	return n;
}

int shim_rotate(struct fs *fs)
{
	TREE_SCOPE(fs);
	return staging_rotate(fs->s, fs_emit, fs);
}

uint64_t shim_seal_seq(struct fs *fs, uint64_t id)
{
	TREE_SCOPE(fs);
	struct node *n = node_find(fs, id);
	return n ? n->seq.seal : 0;
}

uint64_t shim_name_seq(struct fs *fs, uint64_t dir, const char *name)
{
	TREE_SCOPE(fs);
	struct dentry *d = dentry_find(fs, node_find(fs, dir), name);
	return d && d->node ? d->seq : 0;
}

uint64_t shim_expect(struct fs *fs, uint64_t dir, const char *name)
{
	TREE_SCOPE(fs);
	return expect_size(fs, node_find(fs, dir), name);
}

void shim_expect_note(struct fs *fs, uint64_t dir, const char *name, uint64_t size)
{
	TREE_SCOPE(fs);
	struct node *n;
	if (!tree_lookup(fs, node_find(fs, dir), name, &n, NULL))
		expect_note(fs, n, size);
}
