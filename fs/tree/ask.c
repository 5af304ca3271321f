/* SPDX-License-Identifier: MIT
 * Questions to the store. The store may answer late or never (NFS, a dying disk), so it is not
 * asked with the tree lock held: an operation that needs an answer returns ASK_AGAIN, unlocks,
 * asks, and starts over with the answer (ask_store). What it did before that is undone or
 * idempotent; after fs_record() it cannot start over.
 *
 * An answer is valid while nothing changed here, since the question was asked, in what it is about:
 * a name of a directory (fs->name_changed) or a node (n->changed). `applied` tells which pending
 * records the answer includes. So it is equivalent to an answer obtained with the lock held.
 *
 * A thread without such a loop (replay, unit tests of the tree) asks at once.
 */
#include "fs/tree/inside.h"
#include "io/entries.h"
#include "io/number.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIES 8u /* to find a file that the publisher moves meanwhile */

enum what { NAME, STAT, OPEN, LINK, XATTRS, VALUE, LIST, SET_MARK, MAY_MOVE, SAVES, NEXT_SAVE };

struct answer {
	struct answer *next;
	enum what what;
	uint64_t id; /* of a directory (NAME, LIST, VALUE by name) or a node */
	char *name, *key;
	bool done;
	unsigned tries;
	uint64_t asked, applied;
	/* where the node is, then where it will be; a directory: its id */
	struct place *places;
	int from; /* OPEN: a descriptor of the file; -1 */
	struct born known; /* NAME: the file last seen there */
	int err, fd, ino_rc;
	struct born b;
	uint64_t ino, log; /* NAME: as in struct named */
	char *text;
	size_t len;
	struct xattr *xattrs;
	struct listed list;
};

static _Thread_local struct {
	bool active; /* this thread has a loop that asks */
	unsigned depth, outer; /* nested loops: how many, a bit for each active outer one */
	struct answer *all, *wanted;
	struct node_ref *refs;
} mine;

/* Keeps a node while the store is asked about it: freed and looked up again, it would get another
 * id. */
struct node_ref {
	struct node_ref *next, *mine_next;
	struct node *n;
	atomic_bool done;
};

/* ---- answers ---- */

bool xattr_is_absent(ssize_t err)
{
	return err == -ENODATA || err == -EOPNOTSUPP || err == -EPERM || err == -EACCES ||
	       err == -ERANGE;
}

bool name_is_absent(int err)
{
	return err == -ENOENT || err == -ENOTDIR;
}

static void listed_clear(struct listed *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i].name);
	free(l->v);
	*l = (struct listed){.rounds = l->rounds};
}

static void clear(struct answer *a)
{
	for (struct place *p = a->places, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	a->places = NULL;
	if (a->fd >= 0)
		close(a->fd);
	if (a->from >= 0)
		close(a->from);
	a->fd = a->from = -1;
	free(a->text);
	a->text = NULL;
	xattrs_free(a->xattrs);
	a->xattrs = NULL;
	a->done = false;
}

static void drop_all(void)
{
	for (struct answer *a = mine.all, *next; a; a = next) {
		next = a->next;
		clear(a);
		listed_clear(&a->list);
		free(a->name);
		free(a->key);
		free(a);
	}
	mine.all = mine.wanted = NULL;
	for (struct node_ref *h = mine.refs, *next; h; h = next) {
		next = h->mine_next;
		atomic_store(&h->done, true); /* ask_let_go() unlocks the rest */
	}
	mine.refs = NULL;
}

void ask_release(struct fs *fs, struct node *n)
{
	struct node_ref *h = mine.refs;
	if (!mine.wanted || n == fs->tree.root) {
		node_release(fs, n);
		return;
	}
	while (h && h->n != n)
		h = h->mine_next;
	if (h || !(h = calloc(1, sizeof(*h))))
		return; /* without memory the node stays longer */
	n->refs++;
	*h = (struct node_ref){.next = fs->tree.refs, .mine_next = mine.refs, .n = n};
	fs->tree.refs = mine.refs = h;
}

void ask_let_go(struct fs *fs)
{
	for (struct node_ref **pp = &fs->tree.refs, *h; (h = *pp);) {
		if (!atomic_load(&h->done)) {
			pp = &h->next;
			continue;
		}
		*pp = h->next;
		h->n->refs--;
		node_release(fs, h->n);
		free(h);
	}
}

static bool same(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

/* This thread's answer, created on demand. NULL: no memory. */
static struct answer *find(enum what what, uint64_t id, const char *name, const char *key)
{
	struct answer *a = mine.all;
	while (a && (a->what != what || a->id != id || !same(a->name, name) || !same(a->key, key)))
		a = a->next;
	if (a || !(a = calloc(1, sizeof(*a))))
		return a;
	*a = (struct answer){.next = mine.all, .what = what, .id = id, .fd = -1, .from = -1};
	mine.all = a;
	if ((name && !(a->name = strdup(name))) || (key && !(a->key = strdup(key)))) {
		mine.all = a->next;
		free(a->name);
		free(a);
		return NULL;
	}
	return a;
}

static void run(struct fs *fs, struct answer *a);

/* Lock held. 0: a->err is the answer. Else ASK_AGAIN. */
static int put(struct fs *fs, struct answer *a)
{
	a->asked = fs->tree.changes;
	a->applied = fs_applied(fs);
	if (mine.active) {
		mine.wanted = a;
		return ASK_AGAIN;
	}
	run(fs, a);
	return 0;
}

static struct answer *question(enum what what, uint64_t id, const char *name, const char *key)
{
	if (!mine.depth)
		drop_all(); /* the previous answer, which was asked for at once */
	return find(what, id, name, key);
}

void ask_begin(void)
{
	mine.outer = mine.outer << 1 | mine.active;
	mine.depth++;
	mine.active = true;
}

void ask_end(void)
{
	mine.active = mine.outer & 1;
	mine.outer >>= 1;
	if (--mine.depth == 0)
		drop_all();
}

void ask_no_more(void)
{
	mine.active = false;
	mine.outer = 0;
}

bool ask_store(struct fs *fs, int err)
{
	struct answer *a = mine.wanted;
	struct asking asking;

	if (err != ASK_AGAIN || !a) {
		ask_end();
		return false;
	}
	mine.wanted = NULL;
	session_asks(fs, &asking);
	run(fs, a);
	if (session_asked(fs, &asking))
		return true;
	ask_end();
	return false;
}

/* ---- asking; no lock needed ---- */

typedef int at_fn(struct fs *fs, int dirfd, const char *name, struct answer *a);

static int run_at(struct fs *fs, uint64_t dir, const char *name, at_fn *fn, struct answer *a)
{
	int fd, err = staging_dir_get(fs->s, dir, &fd);
	if (!err) {
		err = fn(fs, fd, name, a);
		staging_dir_put(fs->s, dir);
	}
	return err;
}

/* The publisher renames before it counts the record as applied: a file that is not at its current
 * place is at the next one, or will be in a moment. Its old place may hold another file by then. */
static int at_places(struct fs *fs, struct answer *a, at_fn *fn)
{
	int err = -ENOENT;

	if (!a->places)
		return err;
	for (unsigned tries = 0; tries < TRIES; tries++) {
		err = -ENOENT;
		for (struct place *p = a->places; err == -ENOENT && p; p = p->next)
			err = run_at(fs, p->dir, p->name, fn, a);
		bool moved = false;
		for (struct place *p; (p = a->places->next) && fs_is_applied(fs, p->seq);
		     moved = true) {
			free(a->places);
			a->places = p;
		}
		if (!moved && (err != -ENOENT || !a->places->next))
			break;
	}
	return err;
}

static int where(struct fs *fs, struct answer *a, at_fn *fn)
{
	return a->name	   ? run_at(fs, a->id, a->name, fn, a)
	       : a->places ? at_places(fs, a, fn)
			   : run_at(fs, a->id, NULL, fn, a);
}

static bool is_known(const struct answer *a)
{
	return a->known.st.st_ino == a->b.st.st_ino &&
	       (!a->known.birth || !a->b.birth || a->known.birth == a->b.birth);
}

/* The inode number to show for dirfd/name, whose stat is st, and the log that published it. 0 or
 * -errno. */
static int store_ino(struct fs *fs, int dirfd, const char *name, const struct stat *st,
		     uint64_t *ino, uint64_t *log)
{
	char text[ASK_VALUE_MAX];
	*ino = st->st_ino;
	if (!S_ISREG(st->st_mode) && !S_ISDIR(st->st_mode))
		return 0;
	ssize_t n = io_get_xattr(fs->store, dirfd, name, KEY_INO, text, sizeof(text) - 1);
	if (n <= 0)
		return n && !xattr_is_absent(n) ? (int)n : 0;
	text[n] = 0;
	uint64_t shown = number_first(text); /* more may follow */
	if (shown)
		*ino = shown;
	*log = key_ino_log(text);
	return 0;
}

static int name_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	int err = io_stat_born(fs->store, dirfd, name, &a->b.st, &a->b.birth);
	a->ino = a->b.st.st_ino;
	a->log = 0;
	a->ino_rc = err || is_known(a) ? 0 : store_ino(fs, dirfd, name, &a->b.st, &a->ino, &a->log);
	return err;
}

static int stat_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	return io_stat_born(fs->store, dirfd, name, &a->b.st, &a->b.birth);
}

static int open_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	if (a->fd >= 0)
		close(a->fd);
	a->fd = a->from >= 0 ? fcntl(a->from, F_DUPFD_CLOEXEC, 0)
			     : io_open_read(fs->store, dirfd, name, 0);
	int err = a->fd < 0 ? a->from >= 0 ? -errno : a->fd : 0;
	a->b = (struct born){0};
	if (!err) /* without it the file cannot be told from another */
		io_stat_born(fs->store, a->fd, NULL, &a->b.st, &a->b.birth);
	return err;
}

static int keep_text(struct answer *a, const char *text, ssize_t len)
{
	if (len < 0)
		return (int)len;
	free(a->text);
	a->text = malloc((size_t)len + 1);
	if (!a->text)
		return -ENOMEM;
	memcpy(a->text, text, (size_t)len);
	a->text[len] = 0;
	a->len = (size_t)len;
	return 0;
}

static int link_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	char buf[PATH_MAX + 1];
	return keep_text(a, buf, io_readlink(fs->store, dirfd, name, buf, sizeof(buf)));
}

static int value_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	char buf[ASK_VALUE_MAX];
	return keep_text(a, buf, io_get_xattr(fs->store, dirfd, name, a->key, buf, sizeof(buf)));
}

static int set_mark_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	return io_set_xattr(fs->store, dirfd, name, -1, KEY_INO, a->key, strlen(a->key), 0);
}

static int may_move_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	(void)a;
	return io_dir_may_move(fs->store, dirfd, name);
}

static int xattrs_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	char list[65536], val[65536];
	ssize_t len = io_list_xattr(fs->store, dirfd, name, list, sizeof(list));

	xattrs_free(a->xattrs);
	a->xattrs = NULL;
	if (len < 0)
		return len == -EOPNOTSUPP ? 0 : (int)len;
	for (char *k = list; k < list + len; k += strlen(k) + 1) {
		if (strncmp(k, "user.", 5) || xattr_is_ours(k))
			continue;
		ssize_t v = io_get_xattr(fs->store, dirfd, name, k, val, sizeof(val));
		if (v >= 0 && !xattr_add(&a->xattrs, k, val, (uint32_t)v))
			return -ENOMEM;
		if (v < 0 && !xattr_is_absent(v))
			return (int)v; /* else the next version would lack it */
	}
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct listed_name *)a)->name, ((const struct listed_name *)b)->name);
}

struct listed_name *listed_find(const struct listed *l, const char *name)
{
	const struct listed_name key = {.name = (char *)name};
	return l->n ? bsearch(&key, l->v, l->n, sizeof(key), by_name) : NULL;
}

/* The names of a directory; or, in a second round, whether the doubtful names exist. */
static int list_at(struct fs *fs, int dirfd, const char *name, struct answer *a)
{
	struct listed *l = &a->list;
	struct stat st;
	struct dirent *e;
	(void)name;

	for (size_t i = 0; l->read && i < l->n; i++) {
		if (!l->v[i].doubt)
			continue;
		int err = io_stat(fs->store, dirfd, l->v[i].name, &st);
		if (err && !name_is_absent(err))
			return err;
		l->v[i] = (struct listed_name){.name = l->v[i].name,
					       .ino = l->v[i].ino,
					       .type = l->v[i].type,
					       .gone = err,
					       .asked = a->asked,
					       .applied = a->applied};
	}
	if (l->read)
		return 0;
	CLEANUP_DIR DIR *d = entries_of(io_open_list(fs->store, dirfd));
	int err = d ? 0 : -errno;
	size_t cap = 0;
	while (!err && (e = entries_next(d))) {
		if (l->n == cap) {
			void *more = realloc(l->v, (cap = cap ? cap * 2 : 64) * sizeof(*l->v));
			err = more ? 0 : -ENOMEM;
			l->v = more ? more : l->v;
		}
		char *copy = err ? NULL : strdup(e->d_name);
		if (copy)
			l->v[l->n++] = (struct listed_name){.name = copy,
							    .ino = e->d_ino,
							    .type = DTTOIF(e->d_type),
							    .asked = a->asked,
							    .applied = a->applied};
		else
			err = -ENOMEM;
	}
	err = err ? err : -errno; /* an incomplete listing is an error */
	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_name);
	l->read = !err;
	return err;
}

static int count_of(struct fs *fs, struct answer *a)
{
	return io_saves_count(fs->store, a->name, &a->ino);
}

int ask_others(struct fs *fs)
{
	int shared = atomic_load(&fs->hosts.others) ? 1 : io_store_shared(fs->store);

	if (shared > 0)
		atomic_store(&fs->hosts.others, true);
	return shared;
}

static int next_save(struct fs *fs, const struct answer *a)
{
	int others = ask_others(fs);

	return others > 0 ? io_saves_raise(fs->store, a->name, number_or_0(a->key)) : others;
}

static int ask_now(struct fs *fs, struct answer *a)
{
	static at_fn *const fn[] = {
		[NAME] = name_at, [STAT] = stat_at,	    [OPEN] = open_at,
		[LINK] = link_at, [XATTRS] = xattrs_at,	    [VALUE] = value_at,
		[LIST] = list_at, [SET_MARK] = set_mark_at, [MAY_MOVE] = may_move_at,
	};
	if (a->what == SAVES || a->what == NEXT_SAVE)
		return a->what == SAVES ? count_of(fs, a) : next_save(fs, a);
	if (a->what == OPEN && a->from >= 0)
		return open_at(fs, -1, NULL, a);
	return where(fs, a, fn[a->what]);
}

static void run(struct fs *fs, struct answer *a)
{
	if (a->what == LIST && !a->list.read) {
		listed_clear(&a->list);
		a->list.asked = a->asked;
		a->list.applied = a->applied;
	}
	a->err = ask_now(fs, a);
	if (a->what == LIST && a->err)
		a->list.read = false;
	a->done = true;
}

/* ---- questions; lock held ---- */

int ask_name(struct fs *fs, struct node *dir, const char *name, const struct node *known,
	     struct named *out)
{
	struct answer *a = question(NAME, dir->id, name, NULL);
	if (!a)
		return -ENOMEM;
	if (!a->done || name_changed(fs, dir->id, name) > a->asked) {
		clear(a);
		a->known = (struct born){.birth = known ? known->stored.birth : 0};
		a->known.st.st_ino = known ? known->stored.ino : 0;
		if (put(fs, a))
			return ASK_AGAIN;
	}
	*out = (struct named){.b = a->b,
			      .ino = a->ino,
			      .ino_rc = a->ino_rc,
			      .log = a->log,
			      .applied = a->applied};
	return a->err;
}

void ask_took(struct fs *fs, struct node *dir, const char *name, struct node *n,
	      const struct named *b)
{
	struct answer *a;
	if (!mine.active)
		return;
	if ((a = find(NAME, dir->id, name, NULL)))
		a->asked = fs->tree.changes;
	if (n && (a = find(STAT, n->id, NULL, NULL))) {
		clear(a);
		a->err = 0;
		a->b = b->b;
		a->asked = fs->tree.changes;
		a->applied = b->applied;
		a->done = true;
	}
}

static struct place *places_of(struct fs *fs, struct node *n)
{
	const struct place *p = node_place(fs, n);
	struct place *all = NULL, **end = &all;
	for (p = p ? p : n->stored.places; p; p = p->next) {
		size_t size = sizeof(*p) + strlen(p->name) + 1;
		struct place *copy = malloc(size);
		if (!copy)
			break;
		memcpy(copy, p, size);
		copy->next = NULL;
		*end = copy;
		end = &copy->next;
	}
	return all;
}

/* Asks what about n. 0: *out is the answer, out->err the store's result. -ENOENT: it is in none of
 * its places. */
static int of_node(struct fs *fs, enum what what, struct node *n, const char *key,
		   struct answer **out)
{
	struct answer *a = question(what, n->id, NULL, key);
	if (!a)
		return -ENOMEM;
	*out = a;
	bool missed = a->done && a->err == -ENOENT && fs_applied(fs) != a->applied;
	if (a->done && n->changed <= a->asked && (!missed || a->tries >= TRIES))
		return 0;
	a->tries += missed;
	clear(a);
	if (!S_ISDIR(n->attr.mode) && !(a->places = places_of(fs, n)))
		return -ENOENT;
	return put(fs, a);
}

int ask_stat(struct fs *fs, struct node *n, struct born *b, uint64_t *applied)
{
	struct answer *a;
	int err = of_node(fs, STAT, n, NULL, &a);
	if (err)
		return err;
	*b = a->b;
	*applied = a->applied;
	return a->err;
}

int ask_open(struct fs *fs, struct node *n, struct born *b)
{
	struct answer *a;
	int err = of_node(fs, OPEN, n, NULL, &a);
	if (err || a->err)
		return err ? err : a->err;
	*b = a->b;
	int fd = fcntl(a->fd, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? -errno : fd;
}

int ask_born(struct fs *fs, struct node *n, int fd, struct born *b)
{
	struct answer *a = question(OPEN, n->id, NULL, "");
	if (!a)
		return -ENOMEM;
	if (!a->done) {
		clear(a);
		a->from = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		int err = a->from < 0 ? -errno : put(fs, a);
		if (err)
			return err;
	}
	*b = a->b;
	return a->err ? a->err : b->st.st_ino ? 0 : -EIO;
}

int ask_link(struct fs *fs, struct node *n, char *buf, size_t cap)
{
	struct answer *a;
	int err = of_node(fs, LINK, n, NULL, &a);
	if (err || a->err)
		return err ? err : a->err;
	if (a->len >= cap)
		return -ENAMETOOLONG;
	strcpy(buf, a->text);
	return 0;
}

static ssize_t value_of(const struct answer *a, char *buf, size_t cap)
{
	if (a->err)
		return a->err;
	if (a->len > cap)
		return -ERANGE;
	memcpy(buf, a->text, a->len);
	return (ssize_t)a->len;
}

ssize_t ask_value(struct fs *fs, struct node *n, const char *key, char *buf, size_t cap)
{
	struct answer *a;
	int err = of_node(fs, VALUE, n, key, &a);
	return err ? err : value_of(a, buf, cap);
}

/* A question about a name, which is asked again if the name has changed since. */
static int of_name(struct fs *fs, enum what what, struct node *dir, const char *name,
		   const char *key, struct answer **out)
{
	struct answer *a = question(what, dir->id, name, key);

	*out = a;
	if (!a)
		return -ENOMEM;
	if (a->done && name_changed(fs, dir->id, name) <= a->asked)
		return 0;
	clear(a);
	return put(fs, a) ? ASK_AGAIN : 0;
}

ssize_t ask_value_by_name(struct fs *fs, struct node *dir, const char *name, const char *key,
			  char *buf, size_t cap)
{
	struct answer *a;
	int err = of_name(fs, VALUE, dir, name, key, &a);
	return err ? err : value_of(a, buf, cap);
}

/* Once in an operation. */
static int of_saves(struct fs *fs, enum what what, const char *key, uint64_t least,
		    struct answer **out)
{
	char number[24];

	snprintf(number, sizeof(number), "%llu", (unsigned long long)least);
	struct answer *a = question(what, 0, key, number);
	*out = a;
	return !a ? -ENOMEM : !a->done && put(fs, a) ? ASK_AGAIN : a->err;
}

int ask_saves(struct fs *fs, const char *key, uint64_t *n)
{
	struct answer *a;
	int err = of_saves(fs, SAVES, key, 0, &a);
	*n = err ? 0 : a->ino;
	return err;
}

int ask_set_mark(struct fs *fs, struct node *dir, const char *name, const char *mark)
{
	struct answer *a = question(SET_MARK, dir->id, name, mark);
	return !a ? -ENOMEM : !a->done && put(fs, a) ? ASK_AGAIN : a->err;
}

int ask_may_move(struct fs *fs, struct node *dir, const char *name)
{
	struct answer *a;
	int err = of_name(fs, MAY_MOVE, dir, name, NULL, &a);
	return err ? err : a->err == -EXDEV ? a->err : 0;
}

int ask_next_save(struct fs *fs, const char *key, uint64_t least)
{
	struct answer *a;
	return of_saves(fs, NEXT_SAVE, key, least, &a);
}

/* Users' xattrs; the caller frees them. */
static int ask_xattrs(struct fs *fs, struct node *n, struct xattr **out)
{
	struct answer *a;
	int err = of_node(fs, XATTRS, n, NULL, &a);
	if (err || a->err)
		return err ? err : a->err;
	*out = a->xattrs;
	a->xattrs = NULL;
	a->done = false;
	return 0;
}

int node_load_xattrs(struct fs *fs, struct node *n)
{
	if (n->xattrs_loaded || (!S_ISREG(n->attr.mode) && !S_ISDIR(n->attr.mode)))
		return 0;
	int err = -ENOENT;
	if (fs_is_applied(fs, n->seq.born) &&
	    (n->names || n == fs->tree.root || S_ISREG(n->attr.mode)))
		err = ask_xattrs(fs, n, &n->xattrs);
	if (!err || err == -ENOENT)
		n->xattrs_loaded = true;
	return err == -ENOENT ? 0 : err;
}

int ask_list(struct fs *fs, struct node *dir, struct listed **out)
{
	struct answer *a = question(LIST, dir->id, NULL, NULL);
	if (!a)
		return -ENOMEM;
	*out = &a->list;
	if (!a->done) {
		clear(a);
		if (put(fs, a))
			return ASK_AGAIN;
	}
	return a->err;
}

int ask_list_again(struct fs *fs, struct node *dir)
{
	struct answer *a = question(LIST, dir->id, NULL, NULL);
	return !a ? -ENOMEM : put(fs, a) ? ASK_AGAIN : a->err;
}
