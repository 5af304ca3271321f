// SPDX-License-Identifier: MIT
/* check: is this tree a prefix of the recorded history?
 *
 *   check [-a] [-k] [-m] [-q] [-t NAME]... HIST TREE | check -l HIST
 *
 *   -a  everything is drained: all that was answered must be there
 *   -k  the trainers were killed, too: what was open may have been closed by their
 *       death, and the write they died in may be there in part
 *   -m  a file closed while it is mapped takes its place at the munmap (relay lane)
 *   -q  print nothing when all is well
 *   -t  the daemon says that it lost a version of a file of that name: it may be missing
 *   -l  list the history instead
 *
 * Exit 0: it is. 1: it is not (VIOLATION lines say why). 2: the history is no use.
 *
 * What is decided. Operations are intervals [begin, end] of one clock; a came before b
 * if a.end < b.begin. A set S of operations is a moment of the mount's history if with
 * each b it holds every a that came before b. The tree is right if for some such S that
 * holds every finished fsync (P6; with -a: every finished operation, P5) it shows for
 * each object exactly what the operations of S made of it (P1, P2).
 *
 * Objects are entries (directory object, name), the bytes of a file, its mode and its
 * user xattr. The load never lets two operations on one object overlap, so the operations
 * on an object form a chain and its state depends only on how many of them are in S.
 * Overlapping operations thus touch different objects: all orders of S agree.
 *
 * How. Start with the least S: what is required, closed under "came before". While some
 * object shows something else than S says: its chain must advance to the next state that
 * does match, so those operations, and all that came before them, join S. If there is no
 * such state, the tree is wrong. The sets that are right for an object and closed under
 * "came before" are closed under intersection, hence each operation added is in every
 * right S; the search is exact, never goes back, and ends with the least right S.
 * "Closed under came-before" is one number: all a with a.end < B, B = the largest begin
 * in S. In the simplest case this says: no visible operation may have begun after the end
 * of a missing one.
 *
 * An operation that was answered with an error may or may not have taken place: its state
 * is one more that the object may show ("maybe"). */
#include <dirent.h>
#include <stdarg.h>
#include <sys/xattr.h>

#include "replay.h"

enum what { W_NONE, W_FILE, W_DIR, W_SYM, W_ANY };
enum chain_kind { C_NAME, C_DATA, C_MODE, C_XATTR };

struct state {
	enum what what;
	uint32_t val;	/* fid, directory number, version, mode ... */
};

struct elem {
	struct op *op;
	struct state st;
	bool maybe;
	signed char match;	/* C_DATA: -1 = not compared yet */
};

struct chain {
	enum chain_kind kind;
	uint32_t dir, fid;
	const char *name;
	struct elem *el;
	uint32_t n, cap;
	uint32_t at;		/* elements in S */
	uint32_t unsealed;	/* C_NAME: file that stands there and was never closed */
	struct state seen;
};

/* One name under which the tree shows a file. */
struct sight {
	struct sight *next;
	char path[512];
	void *data;
	uint64_t size;
	ino_t ino;
	uint32_t mode, xattr;
};

struct file {
	struct chain data, mode, xattr;
	struct chain *place, *place2;	/* while never closed; 2: a rename without answer */
	bool sealed;
	uint32_t last_ver, sealed_ver;	/* last begun, last closed */
	uint32_t lent_ver;		/* which no death closes: it has no name before its link */
	uint64_t last_stamp;		/* of a call on it */
	struct sight *seen, *older;
};

struct check {
	struct replay p;
	bool all, killed, late_maps, quiet, list;
	struct file *files;
	struct chain **names;	/* hash table */
	uint32_t n_names, cap_names;
	struct op *deaths;	/* closes by death */
	uint32_t n_deaths;
	uint64_t bound;		/* B */
	const struct op *why;	/* the operation that set it */
	uint32_t violations, wild;
	char **told;		/* names of versions that the daemon says are lost */
	unsigned n_told;
};

#define NO_XATTR UINT32_MAX

static void violation(struct check *c, const char *fmt, ...)
{
	va_list ap;

	c->violations++;
	printf("VIOLATION: ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	putchar('\n');
}

static void broken(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "check: unusable: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(2);
}

static void *need(void *p)
{
	if (!p)
		broken("no memory");
	return p;
}

/* ---- chains -------------------------------------------------------------- */

static struct chain *name_find(struct check *c, uint32_t dir, const char *name, bool make)
{
	uint64_t hash = mix64(dir);

	for (const char *s = name; *s; s++)
		hash = mix64(hash ^ (uint64_t)(unsigned char)*s);
	for (;; hash++) {
		struct chain **slot = &c->names[hash % c->cap_names];

		if (*slot && ((*slot)->dir != dir || strcmp((*slot)->name, name)))
			continue;
		if (!*slot && make) {
			*slot = need(calloc(1, sizeof(**slot)));
			(*slot)->dir = dir;
			(*slot)->name = name;
			c->n_names++;
		}
		return *slot;
	}
}

static void chain_add(struct check *c, struct chain *ch, struct op *op, struct state st, bool maybe)
{
	if (ch->n && !maybe && ch->el[ch->n - 1].op->end != NEVER &&
	    ch->el[ch->n - 1].op->end > op->begin)
		broken("overlapping operations on one object (%s, file %u)",
		       ch->name ? ch->name : "-", ch->fid);
	if (ch->n == ch->cap) {
		ch->cap = ch->cap ? ch->cap * 2 : 4;
		ch->el = need(realloc(ch->el, ch->cap * sizeof(*ch->el)));
	}
	maybe |= op->rec && op->rec->end && op->rec->result < 0;
	c->wild += st.what == W_ANY;
	ch->el[ch->n++] = (struct elem){ .op = op, .st = st, .maybe = maybe, .match = -1 };
}

/* What the chain's first n elements make of the object, doubts aside. */
static struct state chain_state(const struct chain *ch, uint32_t n)
{
	while (n--)
		if (!ch->el[n].maybe)
			return ch->el[n].st;
	switch (ch->kind) {
	case C_MODE: return (struct state){ W_FILE, 0644 };
	case C_XATTR: return (struct state){ W_FILE, NO_XATTR };
	default: return (struct state){ W_NONE, 0 };
	}
}

static void add_seal(struct check *c, struct op *op, bool maybe)
{
	struct file *f = &c->files[op->fid];

	chain_add(c, &f->data, op, (struct state){ W_FILE, op->ver }, maybe);
	f->sealed_ver = op->ver;
	if (!f->sealed && f->place) {
		struct state st = { W_FILE, op->fid };

		chain_add(c, f->place, op, st, maybe || f->place2);
		if (f->place2)
			chain_add(c, f->place2, op, st, true);
		f->place->unsealed = 0;
	}
	f->sealed = true;
}

static void add_rename(struct check *c, struct op *op)
{
	const struct hist_rec *r = op->rec;
	struct chain *from = name_find(c, r->dir, r->name, true);
	struct chain *to = name_find(c, r->dir2, r->name2, true);
	struct state moved = chain_state(from, from->n);

	if (!from->unsealed) {
		if (moved.what == W_NONE)
			moved.what = W_ANY;
		chain_add(c, from, op, (struct state){ W_NONE, 0 }, false);
		chain_add(c, to, op, moved, false);
		return;
	}
	struct file *f = &c->files[from->unsealed];
	if (!op->ok) {
		f->place2 = to;
		return;
	}
	if (chain_state(to, to->n).what != W_NONE)	/* the old one may stay till the close */
		chain_add(c, to, op, (struct state){ W_NONE, 0 }, true);
	f->place = to;
	to->unsealed = from->unsealed;
	from->unsealed = 0;
}

static void add_unlink(struct check *c, struct op *op)
{
	struct chain *ch = name_find(c, op->rec->dir, op->rec->name, true);

	if (ch->unsealed && op->ok) {
		c->files[ch->unsealed].place = NULL;
		ch->unsealed = 0;
	}
	chain_add(c, ch, op, (struct state){ W_NONE, 0 }, false);
}

static void add_link(struct check *c, struct op *op)
{
	const struct hist_rec *r = op->rec;
	struct chain *from = name_find(c, r->dir, r->name, true);
	struct state st = chain_state(from, from->n);

	if (from->unsealed || st.what != W_FILE)
		st.what = W_ANY;
	chain_add(c, name_find(c, r->dir2, r->name2, true), op, st, false);
}

static void add_open(struct check *c, struct op *op)
{
	const struct hist_rec *r = op->rec;
	struct file *f = &c->files[r->fid];

	f->last_ver = r->ver;
	if (r->flags & HF_LENT)
		f->lent_ver = r->ver;
	if (!(r->flags & HF_CREATE))
		return;
	f->place = name_find(c, r->dir, r->name, true);
	f->place->unsealed = r->fid;
}

/* A trainer writes NAME.part, and the daemon tells of the name that the file has by then. */
static bool is_told(const struct check *c, const char *name)
{
	for (unsigned i = 0; i < c->n_told; i++) {
		size_t n = strlen(c->told[i]);
		if (!strncmp(c->told[i], name, n) && (!name[n] || !strcmp(name + n, ".part")))
			return true;
	}
	return false;
}

static void add_op(struct check *c, struct op *op)
{
	const struct hist_rec *r = op->rec;
	struct file *f = &c->files[r->fid < c->p.n_fids ? r->fid : 0];
	struct chain *here = NULL;

	if (r->kind == H_MKDIR || r->kind == H_RMDIR || r->kind == H_SYMLINK)
		here = name_find(c, r->dir, r->name, true);
	else if (r->kind <= H_CLOSE)
		f->last_stamp = r->end ? r->end : r->begin;
	switch ((enum hist_kind)r->kind) {
	case H_OPEN: add_open(c, op); break;
	case H_SEAL: add_seal(c, op, is_told(c, r->name)); break;
	case H_RENAME: add_rename(c, op); break;
	case H_UNLINK: add_unlink(c, op); break;
	case H_LINK: add_link(c, op); break;
	case H_SYMLINK: chain_add(c, here, op, (struct state){ W_SYM, r->ver }, false); break;
	case H_MKDIR: chain_add(c, here, op, (struct state){ W_DIR, r->fid }, false); break;
	case H_RMDIR: chain_add(c, here, op, (struct state){ W_NONE, 0 }, false); break;
	case H_CHMOD: chain_add(c, &f->mode, op, (struct state){ W_FILE, r->ver }, false); break;
	case H_XATTR: chain_add(c, &f->xattr, op, (struct state){ W_FILE, r->ver }, false); break;
	case H_WRITE: case H_TRUNC: f->last_ver = r->ver; break;
	default: break;
	}
}

/* A killed trainer's descriptors are closed by its death: one more version of each file
 * it had changed since the last close or fsync. */
static void add_deaths(struct check *c)
{
	c->deaths = need(calloc(c->p.n_fids + 1, sizeof(*c->deaths)));
	for (uint32_t fid = 1; fid < c->p.n_fids; fid++) {
		struct file *f = &c->files[fid];
		struct op *op = &c->deaths[c->n_deaths];

		if (f->last_ver <= f->sealed_ver || f->last_ver == f->lent_ver)
			continue;
		*op = (struct op){ .begin = f->last_stamp, .end = NEVER, .fid = fid,
				   .ver = f->last_ver };
		c->n_deaths++;
		add_seal(c, op, true);
	}
}

/* Without passthrough the daemon hears of the last close only when the mapping goes:
 * such a close lasts until then. */
static void delay_mapped(struct check *c)
{
	uint64_t *until = need(calloc(c->p.n_fids, sizeof(*until)));

	for (uint32_t i = c->p.n_ops; i--;) {
		struct op *op = &c->p.ops[i];

		if (op->rec->kind == H_WRITE && (op->rec->flags & HF_MAPPED))
			until[op->fid] = op->end;
		else if (op->rec->kind == H_SEAL && (op->rec->flags & HF_MAPPED) && op->ok)
			op->end = until[op->fid] ? until[op->fid] : NEVER;
		op->ok &= op->end != NEVER;
	}
	free(until);
}

static void build(struct check *c)
{
	c->files = need(calloc(c->p.n_fids + 1, sizeof(*c->files)));
	c->cap_names = 4 * c->p.n_ops + 64;
	c->names = need(calloc(c->cap_names, sizeof(*c->names)));
	for (uint32_t f = 0; f < c->p.n_fids; f++) {
		c->files[f].data.kind = C_DATA;
		c->files[f].mode.kind = C_MODE;
		c->files[f].xattr.kind = C_XATTR;
		c->files[f].data.fid = c->files[f].mode.fid = c->files[f].xattr.fid = f;
	}
	if (c->late_maps)
		delay_mapped(c);
	/* the kernel's own write-back of them died with the mount, and munmap can't say so */
	c->p.maps_loose = c->late_maps && c->killed;
	for (uint32_t i = 0; i < c->p.n_ops; i++)
		add_op(c, &c->p.ops[i]);
	if (c->killed)
		add_deaths(c);
}

/* ---- bytes --------------------------------------------------------------- */

static bool bytes_mixed(const struct image *a, const struct image *b, const char *d, uint64_t size)
{
	uint64_t lo = a->size < b->size ? a->size : b->size;
	uint64_t hi = a->size < b->size ? b->size : a->size;

	if (size < lo || size > hi)
		return false;
	for (uint64_t i = 0; i < size; i++) {
		char x = i < a->size ? a->data[i] : 0, y = i < b->size ? b->data[i] : 0;

		if (d[i] != x && d[i] != y)
			return false;
	}
	return true;
}

/* Is what was seen version ver of fid, all of it and nothing else? */
static bool bytes_match(struct check *c, uint32_t fid, uint32_t ver, const void *d, uint64_t size)
{
	struct image a = { 0 }, b = { 0 };
	bool same = false;
	uint64_t lo = replay_size(&c->p, fid, ver, false), hi = replay_size(&c->p, fid, ver, true);

	if (lo == hi && size != lo)
		return false;
	if (replay_image(&c->p, fid, ver, false, &a))
		broken("no memory");
	same = a.size == size && !memcmp(a.data, d, size);
	if (same && a.killed && !c->killed)
		same = false;	/* published before its mapping was gone */
	if (!same && a.torn && (!a.killed || c->killed)) {
		if (replay_image(&c->p, fid, ver, true, &b))
			broken("no memory");
		same = bytes_mixed(&a, &b, d, size);
	}
	free(a.data);
	free(b.data);
	return same;
}

static bool data_match(struct check *c, struct chain *ch, struct elem *e)
{
	if (e->match < 0) {
		e->match = 1;
		for (struct sight *s = c->files[ch->fid].seen; s && e->match; s = s->next)
			e->match = bytes_match(c, ch->fid, e->st.val, s->data, s->size);
	}
	return e->match;
}

/* ---- looking at the tree ------------------------------------------------- */

/* A file that does not say who it is (empty, or a hole first): whoever stood there. */
static uint32_t guess_file(struct check *c, struct chain *ch, const void *d, uint64_t size)
{
	for (uint32_t i = ch->n; i--;) {
		const struct state *st = &ch->el[i].st;
		struct chain *data = &c->files[st->val].data;

		if (st->what != W_FILE)
			continue;
		for (uint32_t j = 0; j < data->n; j++)
			if (bytes_match(c, st->val, data->el[j].st.val, d, size))
				return st->val;
	}
	return 0;
}

static uint32_t read_xattr(const char *path)
{
	char text[32] = "";
	ssize_t n = lgetxattr(path, "user.load", text, sizeof(text) - 1);

	return n > 0 ? (uint32_t)strtoul(text, NULL, 10) : NO_XATTR;
}

static void see_file(struct check *c, struct chain *ch, const char *path, const struct stat *st)
{
	struct sight *s = need(calloc(1, sizeof(*s)));
	uint32_t fid = 0, ver;
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	snprintf(s->path, sizeof(s->path), "%s", path);
	s->size = (uint64_t)st->st_size;
	s->ino = st->st_ino;
	s->mode = st->st_mode & 07777;
	s->data = need(malloc(s->size + 1));
	ssize_t got = 0, n = 1;
	while (fd >= 0 && n > 0 && (uint64_t)got < s->size) {
		n = pread(fd, (char *)s->data + got, s->size - (uint64_t)got, got);
		got += n > 0 ? n : 0;
	}
	if (fd < 0 || (uint64_t)got != s->size)
		violation(c, "%s: cannot be read: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
	s->xattr = read_xattr(path);
	if (!content_id(s->data, s->size, &fid, &ver) || fid >= c->p.n_fids)
		fid = guess_file(c, ch, s->data, s->size);
	ch->seen = (struct state){ W_FILE, fid };
	if (!fid) {
		violation(c, "%s: %llu bytes that are no version of any file there", path,
			  (unsigned long long)s->size);
		ch->seen.what = W_ANY;
	}
	s->next = c->files[fid].seen;
	c->files[fid].seen = s;
}

static void see_tree(struct check *c, const char *path, uint32_t dir);

static void see_entry(struct check *c, const char *path, uint32_t dir, const char *name)
{
	struct chain *ch = name_find(c, dir, name, false);
	char full[512], target[64] = "";
	struct stat st;

	if ((size_t)snprintf(full, sizeof(full), "%s/%s", path, name) >= sizeof(full))
		broken("path too long");
	if (!ch) {
		violation(c, "%s: a name that nobody made", full);
		return;
	}
	if (lstat(full, &st)) {
		violation(c, "%s: listed, but %s", full, strerror(errno));
		return;
	}
	const char *dash = strrchr(S_ISLNK(st.st_mode) ? target : name, '-');
	if (S_ISREG(st.st_mode)) {
		see_file(c, ch, full, &st);
	} else if (S_ISLNK(st.st_mode)) {
		ssize_t n = readlink(full, target, sizeof(target) - 1);

		dash = n > 0 ? strrchr(target, '-') : NULL;
		ch->seen = (struct state){ W_SYM, dash ? (uint32_t)atoi(dash + 1) : 0 };
	} else if (S_ISDIR(st.st_mode)) {
		ch->seen = (struct state){ W_DIR, dash ? (uint32_t)atoi(dash + 1) : 0 };
		see_tree(c, full, ch->seen.val);
	} else {
		violation(c, "%s: of a strange type", full);
	}
}

static void see_tree(struct check *c, const char *path, uint32_t dir)
{
	DIR *dp = opendir(path);
	struct dirent *e;

	if (!dp && (dir || errno != ENOENT))
		violation(c, "%s: cannot be listed: %s", path, strerror(errno));
	if (!dp)
		return;	/* the root itself may not be durable yet */
	while ((e = readdir(dp)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			see_entry(c, path, dir, e->d_name);
	closedir(dp);
}

/* ---- the search ---------------------------------------------------------- */

static bool in_prefix(const struct check *c, const struct op *op)
{
	return op->in || op->end < c->bound;
}

static void take(struct check *c, struct op *op, const struct op *why)
{
	op->in = true;
	if (op->begin > c->bound) {
		c->bound = op->begin;
		c->why = why;
	}
}

static bool shows(struct check *c, struct chain *ch, struct state st, struct elem *e)
{
	struct file *f = &c->files[ch->fid];

	switch (ch->kind) {
	case C_NAME:
		return st.what == W_ANY || ch->seen.what == W_ANY ||
		       (st.what == ch->seen.what && (st.what == W_NONE || st.val == ch->seen.val));
	case C_DATA:
		return !f->seen || (e && data_match(c, ch, e));
	case C_MODE:
		for (struct sight *s = f->seen; s; s = s->next)
			if (s->mode != st.val)
				return false;
		return true;
	case C_XATTR:
		for (struct sight *s = f->seen; s; s = s->next)
			if (s->xattr != st.val)
				return false;
		return true;
	}
	return false;
}

/* May the object look as it does when the chain's first n operations are done? */
static bool chain_fits(struct check *c, struct chain *ch, uint32_t n)
{
	while (n && ch->el[n - 1].maybe) {
		if (shows(c, ch, ch->el[n - 1].st, &ch->el[n - 1]))
			return true;
		n--;
	}
	return shows(c, ch, chain_state(ch, n), n ? &ch->el[n - 1] : NULL);
}

/* Moves the chain on to the next state that fits. 0 = it fits already, 1 = moved,
 * -1 = nothing fits. */
static int chain_advance(struct check *c, struct chain *ch)
{
	uint32_t n;

	while (ch->at < ch->n && in_prefix(c, ch->el[ch->at].op))
		ch->at++;
	for (n = ch->at; n <= ch->n; n++)
		if (chain_fits(c, ch, n))
			break;
	if (n > ch->n)
		return -1;
	if (n == ch->at)
		return 0;
	for (uint32_t i = ch->at; i < n; i++)
		take(c, ch->el[i].op, ch->el[i].op);
	ch->at = n;
	return 1;
}

static void say_op(const struct op *op, char *out, size_t cap)
{
	const struct hist_rec *r = op ? op->rec : NULL;

	if (!op)
		snprintf(out, cap, "all that was answered");
	else if (!r)
		snprintf(out, cap, "the close of file %u by its writer's death", op->fid);
	else
		snprintf(out, cap, "%s%s %u:%s%s%s file %u.%u rank %u [%llu,%llu]%s",
			 r->flags & HF_SYNC ? "synced " : "", hist_kind_name[r->kind], r->dir,
			 r->name, *r->name2 ? " -> " : "", r->name2, r->fid, r->ver, r->rank,
			 (unsigned long long)r->begin, (unsigned long long)r->end,
			 r->end && r->result < 0 ? " (failed)" : "");
}

static const char *say_state(struct state st, char *out, size_t cap)
{
	static const char *const word[] = { "nothing", "file", "directory", "symlink", "anything" };

	snprintf(out, cap, "%s %u", word[st.what], st.val);
	return st.what == W_NONE ? "nothing" : out;
}

/* The one story worth telling: what is seen is of an earlier moment than S, or of none. */
static void explain(struct check *c, struct chain *ch)
{
	static const char *const part[] = { "name", "bytes", "mode", "xattr" };
	char why[256], last[256] = "the start", seen[64], want[64];
	const struct sight *s = ch->kind == C_NAME ? NULL : c->files[ch->fid].seen;
	bool old = false;
	uint32_t n = ch->at;

	say_op(c->why, why, sizeof(why));
	while (n-- && !old)
		old = chain_fits(c, ch, n);
	if (ch->at)
		say_op(ch->el[ch->at - 1].op, last, sizeof(last));
	if (ch->kind == C_NAME)
		violation(c, "%s of %u:%s: shows %s, must show %s", old ? "order" : part[ch->kind],
			  ch->dir, ch->name, say_state(ch->seen, seen, sizeof(seen)),
			  say_state(chain_state(ch, ch->at), want, sizeof(want)));
	else
		violation(c, "%s of %s (file %u): %s", old ? "order" : part[ch->kind],
			  s ? s->path : "?", ch->fid,
			  old ? "those of an earlier version" : "not those of any version");
	printf("  missing: %s\n  yet there: %s\n", last, why);
}

/* Advances all chains; returns whether any moved. A wrong chain is told once. */
static bool sweep(struct check *c, struct chain **all, uint32_t n, bool tell)
{
	bool moved = false;

	for (uint32_t i = 0; i < n; i++) {
		int r = chain_advance(c, all[i]);

		moved |= r > 0;
		if (r < 0 && tell)
			explain(c, all[i]);
	}
	return moved;
}

static void search(struct check *c)
{
	struct chain **all = need(calloc(c->n_names + 3 * (size_t)c->p.n_fids + 1, sizeof(*all)));
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->cap_names; i++)
		if (c->names[i])
			all[n++] = c->names[i];
	for (uint32_t f = 1; f < c->p.n_fids; f++)
		if (c->files[f].seen) {
			all[n++] = &c->files[f].data;
			all[n++] = &c->files[f].mode;
			all[n++] = &c->files[f].xattr;
		}
	for (uint32_t i = 0; i < c->p.n_ops; i++) {
		struct op *op = &c->p.ops[i];

		if (op->ok && (c->all || (op->rec->flags & HF_SYNC)))
			take(c, op, c->all ? NULL : op);
	}
	while (sweep(c, all, n, false))
		;
	sweep(c, all, n, true);
	free(all);
}

/* The latest version that s shows, 0: none. */
static uint32_t version_of(struct check *c, uint32_t f, const struct sight *s)
{
	for (uint32_t v = c->files[f].last_ver; v; v--)
		if (bytes_match(c, f, v, s->data, s->size))
			return v;
	return 0;
}

/* A file with several names is published name by name (docs/DURABILITY.md, Limits): at a kill one
 * file, and no more than one, may stand between two of its versions. What is older is then not
 * looked at. */
static void forgive_one_between(struct check *c)
{
	uint32_t between = 0;

	for (uint32_t f = 1; f < c->p.n_fids; f++) {
		uint32_t newest = 0, oldest = UINT32_MAX;
		bool split = false;

		for (struct sight *s = c->files[f].seen; s && s->next; s = s->next)
			split |= s->ino != s->next->ino;
		for (struct sight *s = split ? c->files[f].seen : NULL; s; s = s->next) {
			uint32_t v = version_of(c, f, s);

			newest = v > newest ? v : newest;
			oldest = v < oldest ? v : oldest;
		}
		if (!split || !oldest || newest == oldest || between++)
			continue;
		for (struct sight **p = &c->files[f].seen; *p;)
			if (version_of(c, f, *p) < newest) {
				struct sight *s = *p;

				*p = s->next;
				s->next = c->files[f].older;
				c->files[f].older = s;
			} else {
				p = &(*p)->next;
			}
	}
}

/* Two names of one file must be one inode. */
static void check_links(struct check *c)
{
	for (uint32_t f = 1; f < c->p.n_fids; f++)
		for (struct sight *s = c->files[f].seen; s && s->next; s = s->next)
			if (s->ino != s->next->ino)
				violation(c, "%s and %s: links of one file are two files", s->path,
					  s->next->path);
}

static bool has_effect(const struct op *op)
{
	switch ((enum hist_kind)op->rec->kind) {
	case H_SEAL: case H_RENAME: case H_UNLINK: case H_LINK: case H_SYMLINK:
	case H_MKDIR: case H_RMDIR: case H_CHMOD: case H_XATTR:
		return true;
	default:
		return false;
	}
}

static void report(struct check *c)
{
	uint32_t acked = 0, there = 0, synced = 0, failed = 0, lent = 0;
	uint64_t stall = 0;

	for (uint32_t i = 0; i < c->p.n_ops; i++) {
		const struct op *op = &c->p.ops[i];
		const struct hist_rec *r = op->rec;

		if (r->end && r->t1_ns - r->t0_ns > stall)
			stall = r->t1_ns - r->t0_ns;
		failed += r->end && r->result < 0;
		synced += op->ok && (r->flags & HF_SYNC);
		if (!has_effect(op) || !op->ok)
			continue;
		acked++;
		lent += r->kind == H_SEAL && r->ver == c->files[r->fid].lent_ver;
		there += in_prefix(c, op);
	}
	if (!c->quiet || c->violations)
		printf("check: acked=%u there=%u lost=%u synced=%u failed=%u wild=%u lent=%u longest_ms=%llu "
		       "violations=%u seed=%llu\n",
		       acked, there, acked - there, synced, failed, c->wild, lent,
		       (unsigned long long)(stall / 1000000), c->violations,
		       (unsigned long long)c->p.h.head->seed);
}

static int list(const struct check *c)
{
	char text[256];

	for (uint32_t i = 0; i < c->p.n_ops; i++) {
		const struct hist_rec *r = c->p.ops[i].rec;

		say_op(&c->p.ops[i], text, sizeof(text));
		printf("%s +%llu %llu = %d\n", text, (unsigned long long)r->off,
		       (unsigned long long)r->len, r->result);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct check c = { 0 };
	int opt;

	c.told = need(calloc((size_t)argc, sizeof(*c.told)));
	while ((opt = getopt(argc, argv, "akmqlt:")) != -1)
		switch (opt) {
		case 'a': c.all = true; break;
		case 'k': c.killed = true; break;
		case 'm': c.late_maps = true; break;
		case 'q': c.quiet = true; break;
		case 'l': c.list = true; break;
		case 't': c.told[c.n_told++] = optarg; break;
		default: return 2;
		}
	if (argc - optind != (c.list ? 1 : 2)) {
		fprintf(stderr, "usage: check [-a] [-k] [-m] [-q] [-t NAME]... HIST TREE | check -l HIST\n");
		return 2;
	}
	int err = replay_open(&c.p, argv[optind]);
	if (err)
		broken("%s: %s", argv[optind], strerror(-err));
	if (c.list)
		return list(&c);
	build(&c);
	if (atomic_load(&c.p.h.head->failed))
		violation(&c, "a trainer saw an error that it must not see, or died: its words are above");
	see_tree(&c, argv[optind + 1], 0);
	if (!c.all)
		forgive_one_between(&c);
	search(&c);
	check_links(&c);
	report(&c);
	return c.violations ? 1 : 0;
}
