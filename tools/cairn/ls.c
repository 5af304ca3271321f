/* SPDX-License-Identifier: MIT
 *
 * cairn ls: the entries of a directory and their states; for a checkpoint also
 * its kind and whether it is complete.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"
#include "io/number.h"
#include "tools/cairn/tier/tier_where.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <string.h>
#include <time.h>

struct opts {
	bool longer, json, exact;
};

struct row {
	const char *name;
	struct stat st;
	char state[16], lane[16], sum[48], error[1024], pending[24];
	char *target; /* of a symlink */
	uint64_t files, bytes; /* of a directory: in all of it */
	struct ckpt_kind kind; /* NONE: not a checkpoint */
	struct ckpt_verdict verdict;
	const char *tier; /* "in the tier", or not; NULL: unknown */
	uint64_t own_files, own_bytes; /* of a checkpoint of loose files */
	double age_s;
};

struct listing {
	const struct opts *o;
	const struct location *p;
	struct row *rows;
	size_t n;
	struct names remote; /* what only the tier has */
	bool incomplete; /* something could not be read, and was reported */
	struct ckpt self; /* of the directory listed; kind NONE: not a checkpoint */
	struct row self_row;
};

/* ---- gather ----------------------------------------------------------------------- */

static bool is_top(const struct location *p)
{
	return !*p->below;
}

static void sum_up(struct listing *l, int dirfd, struct row *r)
{
	CLEANUP_CLOSE int fd =
		openat(dirfd, r->name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	/* .cairn, closed to others, is only at the top of a store */
	bool skip = !l->p->on_mount && is_top(l->p) && !strcmp(r->name, ".");
	int err = fd < 0 ? -errno : walk_open(fd, -1, skip ? ".cairn" : NULL, &w);

	while (!err && walk_next(w, &it) != WALK_END) {
		if (it.what == WALK_ERROR)
			err = it.err == -ENOENT ? 0 : it.err; /* removed meanwhile */
		if (it.what != WALK_ENTRY || !S_ISREG(it.st.st_mode))
			continue;
		r->files++;
		r->bytes += (uint64_t)it.st.st_size;
	}
	if (err && err != -ENOENT) {
		complain("%s/%s: %s", l->p->arg, r->name, strerror(-err));
		l->incomplete = true;
	}
}

static char *link_target(int dirfd, const char *name)
{
	char buf[PATH_MAX];
	ssize_t n = readlinkat(dirfd, name, buf, sizeof(buf) - 1);

	if (n < 0)
		return NULL;
	buf[n] = '\0';
	return strdup(buf);
}

static bool is_remote(const struct row *r)
{
	return !strcmp(r->state, "remote") || !strcmp(r->state, "damaged");
}

/* What only the tier has has a manifest: it is complete, unless a fetch found that it is not. To
 * read a file of it would fetch it. */
static void judge_row(struct row *r, struct ckpt *c)
{
	if (c->kind.format == CKPT_NONE || (!is_remote(r) && ckpt_read(c, false, NULL, NULL)))
		return;
	r->kind = c->kind;
	r->age_s = c->quiet_s;
	if (!strcmp(r->state, "damaged"))
		r->verdict = (struct ckpt_verdict){.state = CKPT_INCOMPLETE,
						   .why = "damaged in the tier"};
	else if (is_remote(r))
		r->verdict.state = CKPT_COMPLETE;
	else
		ckpt_verdict(c, &r->verdict);
	for (size_t i = 0; i < c->names.n; i++) {
		if (!ckpt_is_own(c, i))
			continue;
		r->own_files++;
		r->own_bytes += c->name[i].size;
	}
}

/* An entry that is a checkpoint: a directory, or a file among others. */
static void look_for_ckpt(struct listing *l, int dirfd, struct row *r)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	struct ckpt_kind file = {0};

	if (l->self.kind.format != CKPT_NONE &&
	    !(ckpt_is_loose(&l->self.kind) &&
	      (S_ISDIR(r->st.st_mode) || ckpt_is_one_file(r->name))))
		return; /* the parts of a checkpoint are not checkpoints */
	if (S_ISREG(r->st.st_mode))
		ckpt_recognize_file(r->name, &file);
	if (!S_ISDIR(r->st.st_mode) && file.format == CKPT_NONE)
		return;
	if (ckpt_open(dirfd, r->name, r->name, l->p->on_mount, &c))
		return; /* its own row reports the error */
	ckpt_look_inside(&c);
	judge_row(r, &c);
}

static const char in_tier[] = "in the tier", not_in_tier[] = "not in the tier";
static const char stray[] = "not in the tier: no checkpoint"; /* a file beside checkpoints */

static void look_in_tier(const struct tier_where *w, const char *dir, const char *name,
			 struct row *r)
{
	const struct tier_where_one *one;
	CLEANUP_FREE char *path = NULL;

	if (r->kind.format == CKPT_NONE || is_remote(r) ||
	    asprintf(&path, "%s%s%s", dir, *dir && *name ? "/" : "", name) < 0)
		return;
	one = tier_where_find(w, path);
	r->tier = one && one->sent					 ? in_tier
		  : S_ISREG(r->st.st_mode) && !ckpt_is_one_file(r->name) ? stray
									 : not_in_tier;
}

/* Where a tier is set, and the caller may know. */
static void look_in_tier_all(struct listing *l)
{
	struct tier_where w;

	if (l->p->on_mount && !tier_where_read(l->p, &w)) {
		look_in_tier(&w, l->p->below, "", &l->self_row);
		for (size_t i = 0; i < l->n; i++)
			look_in_tier(&w, l->p->below, l->rows[i].name, &l->rows[i]);
		tier_where_free(&w);
	}
}

/* If the format does not specify the number of ranks: as many as one step before. */
static void expect_ranks(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++) {
		struct row *r = &l->rows[i], *before = NULL;

		for (size_t j = 0; r->kind.has_step && j < l->n; j++) {
			struct row *o = &l->rows[j];

			if (o->kind.format == r->kind.format && o->kind.has_step &&
			    o->kind.step < r->kind.step &&
			    (!before || o->kind.step > before->kind.step))
				before = o;
		}
		if (before)
			ckpt_expect_ranks(&r->kind, before->verdict.ranks, r->age_s, &r->verdict);
	}
}

/* Errors of xattrs leave a blank: a symlink has none, an unmounted store only the checksum. */
static int fill(struct listing *l, int dirfd, const char *name, struct row *r)
{
	const struct opts *o = l->o;

	r->name = name;
	if (fstatat(dirfd, name, &r->st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (l->p->on_mount)
		xattr_at(dirfd, name, KEY_STATE, r->state, sizeof(r->state));
	look_for_ckpt(l, dirfd, r);
	if (S_ISDIR(r->st.st_mode) && (o->longer || o->json || r->kind.format != CKPT_NONE))
		sum_up(l, dirfd, r);
	if (!o->longer && !o->json)
		return 0;
	if (S_ISREG(r->st.st_mode)) {
		xattr_at(dirfd, name, KEY_CHECKSUM, r->sum, sizeof(r->sum));
		if (l->p->on_mount)
			xattr_at(dirfd, name, KEY_LANE, r->lane, sizeof(r->lane));
		if (!strcmp(r->lane, "none"))
			r->lane[0] = '\0';
	}
	if (l->p->on_mount)
		xattr_at(dirfd, name, KEY_PENDING, r->pending, sizeof(r->pending));
	if (!strcmp(r->state, "failed"))
		xattr_at(dirfd, name, KEY_ERROR, r->error, sizeof(r->error));
	if (S_ISLNK(r->st.st_mode))
		r->target = link_target(dirfd, name);
	return 0;
}

static int gather(struct listing *l, int dirfd, const struct names *names)
{
	bool hide = !l->p->on_mount && is_top(l->p);

	l->rows = calloc(names->n ? names->n : 1, sizeof(*l->rows));
	if (!l->rows)
		return -ENOMEM;
	for (size_t i = 0; i < names->n; i++) {
		int err;

		if (hide && !strcmp(names->v[i], ".cairn"))
			continue;
		err = fill(l, dirfd, names->v[i], &l->rows[l->n]);
		if (!err) {
			l->n++;
		} else if (err != -ENOENT) {
			complain("%s/%s: %s", l->p->arg, names->v[i], strerror(-err));
			l->incomplete = true;
		}
	}
	expect_ranks(l);
	return 0;
}

/* ---- show ------------------------------------------------------------------------- */

static const char *dash(const char *s)
{
	return *s ? s : "-";
}

static const char *owner(const struct stat *st, char *buf, size_t cap)
{
	/* once per change of owner: getpwuid() may use the network */
	static char user[64], group[64];
	static uid_t uid;
	static gid_t gid;

	if (!*user || uid != st->st_uid) {
		struct passwd *pw = getpwuid(uid = st->st_uid);

		snprintf(user, sizeof(user), "%u", uid);
		if (pw)
			snprintf(user, sizeof(user), "%s", pw->pw_name);
	}
	if (!*group || gid != st->st_gid) {
		struct group *gr = getgrgid(gid = st->st_gid);

		snprintf(group, sizeof(group), "%u", gid);
		if (gr)
			snprintf(group, sizeof(group), "%s", gr->gr_name);
	}
	snprintf(buf, cap, "%s:%s", user, group);
	return buf;
}

static const char *mode_text(mode_t m, char buf[11])
{
	static const char rwx[] = "rwxrwxrwx";

	buf[0] = S_ISDIR(m)    ? 'd'
		 : S_ISLNK(m)  ? 'l'
		 : S_ISFIFO(m) ? 'p'
		 : S_ISSOCK(m) ? 's'
		 : S_ISBLK(m)  ? 'b'
		 : S_ISCHR(m)  ? 'c'
			       : '-';
	for (int i = 0; i < 9; i++)
		buf[1 + i] = m >> (8 - i) & 1 ? rwx[i] : '-';
	if (m & S_ISUID)
		buf[3] = m & S_IXUSR ? 's' : 'S';
	if (m & S_ISGID)
		buf[6] = m & S_IXGRP ? 's' : 'S';
	if (m & S_ISVTX)
		buf[9] = m & S_IXOTH ? 't' : 'T';
	buf[10] = '\0';
	return buf;
}

static uint64_t row_bytes(const struct row *r)
{
	return S_ISDIR(r->st.st_mode) ? r->bytes : (uint64_t)r->st.st_size;
}

static uint64_t ckpt_files(const struct row *r)
{
	return ckpt_is_loose(&r->kind) || !S_ISDIR(r->st.st_mode) ? r->own_files : r->files;
}

static uint64_t ckpt_bytes(const struct row *r)
{
	return ckpt_is_loose(&r->kind) ? r->own_bytes : row_bytes(r);
}

/* "  dcp, step 7, 2/2 ranks, 3 files, 15.5 KiB, complete, 0:12 old" */
static void show_ckpt(const struct row *r, bool exact)
{
	char buf[32];

	if (r->kind.format == CKPT_NONE)
		return;
	printf("  %s", ckpt_format_name(r->kind.format));
	if (r->kind.has_step)
		printf(", step %llu", (unsigned long long)r->kind.step);
	if (r->verdict.ranks_expected)
		printf(", %u/%u ranks", r->verdict.ranks, r->verdict.ranks_expected);
	if (S_ISDIR(r->st.st_mode))
		printf(", %llu file%s", (unsigned long long)ckpt_files(r),
		       ckpt_files(r) == 1 ? "" : "s");
	if (exact)
		printf(", %llu", (unsigned long long)ckpt_bytes(r));
	else
		printf(", %s", human_bytes(ckpt_bytes(r), buf));
	printf(", %s", ckpt_state_name(r->verdict.state));
	if (r->verdict.state == CKPT_COMPLETE && !strcmp(r->state, "durable"))
		fputs(" and durable", stdout);
	if (*r->verdict.why) {
		fputs(": ", stdout);
		print_name(stdout, r->verdict.why);
	}
	if (r->tier)
		printf(", %s", r->tier);
	printf(", %s old", human_time(r->age_s, buf));
}

/* Of a shard: its items in the metadata. */
static void show_shard(const struct listing *l, const struct row *r)
{
	const struct fmt_set *s = l->self.set;

	for (size_t i = 0; s && i < s->n_files; i++) {
		const struct fmt_file *f = &s->file[i];

		if (strcmp(f->name, r->name) || !f->items)
			continue;
		printf("  %llu item%s", (unsigned long long)f->items, f->items == 1 ? "" : "s");
		if ((uint64_t)r->st.st_size < f->need)
			printf(", %llu bytes are missing",
			       (unsigned long long)(f->need - (uint64_t)r->st.st_size));
	}
}

static void show_missing(const struct listing *l)
{
	const struct fmt_set *s = l->self.set;

	for (size_t i = 0; s && i < s->n_files; i++) {
		if (strchr(s->file[i].name, '/') || ckpt_find(&l->self, s->file[i].name) >= 0)
			continue;
		fputs("missing    ", stdout);
		print_name(stdout, s->file[i].name);
		printf("  %llu bytes are listed\n", (unsigned long long)s->file[i].need);
	}
}

static void show_long(const struct listing *l, const struct row *r, int owner_width)
{
	bool exact = l->o->exact;
	char who[160], mode[11], size[32], when[32];
	bool sum = !strncmp(r->sum, "xxh3:", 5);
	struct tm tm;

	if (exact)
		snprintf(size, sizeof(size), "%llu", (unsigned long long)row_bytes(r));
	else
		human_bytes(row_bytes(r), size);
	localtime_r(&r->st.st_mtime, &tm);
	strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
	printf("%s %-*s %*s  %-10s %-5s %-8.8s %s ", mode_text(r->st.st_mode, mode), owner_width,
	       owner(&r->st, who, sizeof(who)), exact ? 15 : 10, size, dash(r->state),
	       dash(r->lane), sum ? r->sum + 5 : "-", when);
	print_name(stdout, r->name);
	if (S_ISDIR(r->st.st_mode))
		printf("/ (%llu file%s)", (unsigned long long)r->files, r->files == 1 ? "" : "s");
	show_ckpt(r, exact);
	show_shard(l, r);
	if (r->target) {
		fputs(" -> ", stdout);
		print_name(stdout, r->target);
	}
	if (*r->error) {
		fputs(" [", stdout);
		print_name(stdout, r->error);
		putchar(']');
	}
	putchar('\n');
}

static void show_text(const struct listing *l)
{
	int width = 0;

	if (l->self.kind.format != CKPT_NONE) {
		printf("%-10s ./", dash(l->self_row.state));
		show_ckpt(&l->self_row, l->o->exact);
		putchar('\n');
	}
	for (size_t i = 0; i < l->n; i++) {
		char who[160];
		int n = (int)strlen(owner(&l->rows[i].st, who, sizeof(who)));

		width = n > width ? n : width;
	}
	for (size_t i = 0; i < l->n; i++) {
		const struct row *r = &l->rows[i];

		if (l->o->longer) {
			show_long(l, r, width);
			continue;
		}
		printf("%-10s ", dash(r->state));
		print_name(stdout, r->name);
		fputs(S_ISDIR(r->st.st_mode) ? "/" : "", stdout);
		show_ckpt(r, l->o->exact);
		putchar('\n');
	}
	if (l->o->longer)
		show_missing(l);
}

static const char *type_word(mode_t m)
{
	return S_ISREG(m)    ? "file"
	       : S_ISDIR(m)  ? "dir"
	       : S_ISLNK(m)  ? "symlink"
	       : S_ISFIFO(m) ? "fifo"
	       : S_ISSOCK(m) ? "socket"
			     : "device";
}

static const char *or_null(const char *s)
{
	return *s ? s : NULL;
}

static void json_ckpt(struct json_out *j, const struct row *r, bool on_mount)
{
	bool durable = !on_mount || !strcmp(r->state, "durable");

	if (r->kind.format == CKPT_NONE)
		return;
	json_open(j, "checkpoint", '{');
	json_put_string(j, "format", ckpt_format_name(r->kind.format));
	if (r->kind.has_step)
		json_put_u64(j, "step", r->kind.step);
	json_put_u64(j, "ranks", r->verdict.ranks);
	json_put_u64(j, "ranks_expected", r->verdict.ranks_expected);
	json_put_u64(j, "files", ckpt_files(r));
	json_put_u64(j, "bytes", ckpt_bytes(r));
	json_put_string(j, "state", ckpt_state_name(r->verdict.state));
	json_put_path(j, "why", or_null(r->verdict.why));
	json_put_bool(j, "safe", durable && r->verdict.state == CKPT_COMPLETE);
	json_put_i64(j, "age_s", (int64_t)r->age_s);
	if (r->tier)
		json_put_bool(j, "in_tier", r->tier == in_tier);
	json_close(j, '}');
}

static void json_row(struct json_out *j, const struct row *r, bool on_mount)
{
	char mode[8];

	snprintf(mode, sizeof(mode), "%04o", (unsigned)r->st.st_mode & 07777);
	json_open(j, NULL, '{');
	json_put_path(j, "name", r->name);
	json_put_string(j, "type", type_word(r->st.st_mode));
	json_put_string(j, "mode", mode);
	json_put_u64(j, "uid", r->st.st_uid);
	json_put_u64(j, "gid", r->st.st_gid);
	json_put_u64(j, "size", row_bytes(r));
	json_put_i64(j, "mtime_s", r->st.st_mtim.tv_sec);
	json_put_i64(j, "mtime_ns", r->st.st_mtim.tv_nsec);
	json_put_string(j, "state", or_null(r->state));
	if (*r->pending)
		json_put_u64(j, "pending", number_or_0(r->pending));
	if (S_ISREG(r->st.st_mode)) {
		json_put_string(j, "lane", or_null(r->lane));
		json_put_string(j, "checksum", or_null(r->sum));
	}
	if (S_ISDIR(r->st.st_mode))
		json_put_u64(j, "files", r->files);
	if (r->target)
		json_put_path(j, "target", r->target);
	if (*r->error)
		json_put_string(j, "error", r->error);
	json_ckpt(j, r, on_mount);
	json_close(j, '}');
}

static void show_json(struct json_out *j, const struct listing *l)
{
	json_open(j, NULL, '{');
	json_put_path(j, "path", l->p->arg);
	json_put_path(j, l->p->on_mount ? "mount" : "store", l->p->top);
	json_ckpt(j, &l->self_row, l->p->on_mount);
	json_open(j, "entries", '[');
	for (size_t i = 0; i < l->n; i++)
		json_row(j, &l->rows[i], l->p->on_mount);
	json_close(j, ']');
	json_close(j, '}');
}

/* ---- one PATH --------------------------------------------------------------------- */

/* The directory of a file, and its name there, from its location. */
static int parent_of(const struct location *p, char **name)
{
	CLEANUP_FREE char *dir = strdup(p->below);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	int fd;

	if (!dir)
		return -ENOMEM;
	*name = strdup(slash ? slash + 1 : dir);
	if (!*name)
		return -ENOMEM;
	if (slash)
		*slash = '\0';
	fd = openat(p->root, slash ? dir : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* The kind of the directory itself, and its sums, before its entries. */
static void read_self(struct listing *l)
{
	struct row *r = &l->self_row;

	r->name = ".";
	if (ckpt_open(l->p->fd, ".", l->p->arg, l->p->on_mount, &l->self))
		return;
	ckpt_look_inside(&l->self);
	if (l->p->on_mount)
		xattr_of_fd(l->p->fd, KEY_STATE, r->state, sizeof(r->state));
	judge_row(r, &l->self);
	if (r->kind.format == CKPT_NONE)
		return;
	fstatat(l->p->fd, "", &r->st, AT_EMPTY_PATH);
	if (!ckpt_is_loose(&r->kind)) /* theirs are counted one by one */
		sum_up(l, l->p->fd, r);
}

static int by_row(const void *a, const void *b)
{
	return strverscmp(((const struct row *)a)->name, ((const struct row *)b)->name);
}

static bool has_row(const struct listing *l, const char *name, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(l->rows[i].name, name))
			return true;
	return false;
}

static int add_remote(struct listing *l, int dirfd)
{
	size_t local = l->n;
	struct row *rows = reallocarray(l->rows, l->n + l->remote.n + 1, sizeof(*rows));

	if (!rows)
		return -ENOMEM;
	l->rows = rows;
	for (size_t i = 0; i < l->remote.n; i++) {
		const char *name = l->remote.v[i];

		rows[l->n] = (struct row){0};
		if (!has_row(l, name, local) && !fill(l, dirfd, name, &rows[l->n]))
			l->n++;
	}
	if (l->n)
		qsort(rows, l->n, sizeof(*rows), by_row);
	return 0;
}

/* What a mount's tier has there, and the store has not. */
static int read_remote(struct listing *l)
{
	CLEANUP_FREE char *path = NULL;
	CLEANUP_CLOSE int fd = -1;
	const char *below = l->p->below;

	if (!l->p->on_mount || !strncmp(below, ".cairn", 6) || l->self.kind.format != CKPT_NONE)
		return 0;
	if (asprintf(&path, TIER_SHOWN "%s%s", *below ? "/" : "", below) < 0)
		return -ENOMEM;
	fd = openat(l->p->root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == EIO) {
		complain("%s: what is in the tier is not known; see `cairn status`", l->p->arg);
		l->incomplete = true;
	}
	return fd < 0 || names_read(fd, &l->remote) ? 0 : add_remote(l, fd);
}

/* step-99 before step-100 */
static int by_number(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

static int read_listing(struct listing *l, struct names *names, int *dirfd)
{
	struct stat st;
	char *name = NULL;

	if (fstatat(l->p->fd, "", &st, AT_EMPTY_PATH))
		return -errno;
	if (S_ISDIR(st.st_mode)) {
		int err = names_read(l->p->fd, names);

		if (names->n)
			qsort(names->v, names->n, sizeof(*names->v), by_number);
		read_self(l);
		*dirfd = l->p->fd;
		err = err ? err : gather(l, *dirfd, names);
		if (!err)
			look_in_tier_all(l);
		if (!err)
			err = read_remote(l);
		return err;
	}
	*dirfd = parent_of(l->p, &name);
	names->v = malloc(sizeof(*names->v));
	if (*dirfd < 0 || !names->v) {
		free(name);
		return *dirfd < 0 ? *dirfd : -ENOMEM;
	}
	names->v[0] = name;
	names->n = 1;
	return gather(l, *dirfd, names);
}

/* A directory that only the tier of a mount has: where it is shown; malloc()ed, NULL: there is no
 * such. */
static char *shown_path(const char *arg)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_FREE char *below = NULL;
	struct stat st;
	char *out;

	if (!lstat(arg, &st) || errno != ENOENT || tier_where_above(arg, &p, &below) ||
	    !p.on_mount || asprintf(&out, "%s/" TIER_SHOWN "/%s", p.top, below) < 0)
		return NULL;
	if (!lstat(out, &st))
		return out;
	free(out);
	return NULL;
}

static int list(const char *arg, const struct opts *o, bool title, struct json_out *j)
{
	CLEANUP_FREE char *shown = shown_path(arg);
	const char *path = shown ? shown : arg;
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	struct listing l = {.o = o, .p = &p, .self = CKPT_EMPTY};
	struct names names = {0};
	int dirfd = -1, err, code = location_need(path, false, &p);

	if (code)
		return code;
	err = read_listing(&l, &names, &dirfd);
	if (err) {
		complain_location(path, err);
		code = CAIRN_FAILED;
	} else if (o->json) {
		show_json(j, &l);
	} else {
		if (title) {
			print_name(stdout, path);
			puts(":");
		}
		show_text(&l);
	}
	for (size_t i = 0; i < l.n; i++)
		free(l.rows[i].target);
	free(l.rows);
	ckpt_close(&l.self);
	names_free(&names);
	names_free(&l.remote);
	if (dirfd >= 0 && dirfd != p.fd)
		close(dirfd);
	return code ? code : l.incomplete ? CAIRN_FAILED : CAIRN_OK;
}

int cmd_ls(int argc, char **argv)
{
	static const struct option longs[] = {
		{"json", no_argument, NULL, 'j'},
		{"bytes", no_argument, NULL, 'b'},
		{0},
	};
	struct opts o = {0};
	struct json_out j;
	int c, worst = CAIRN_OK;
	bool title;

	while ((c = getopt_long(argc, argv, "ljb", longs, NULL)) != -1) {
		if (c == 'l')
			o.longer = true;
		else if (c == 'j')
			o.json = true;
		else if (c == 'b')
			o.exact = true;
		else
			return complain_option("ls", argv);
	}
	if (optind == argc)
		argv[--optind] = "."; /* over the subcommand's own name or an option */
	title = argc - optind > 1;
	json_begin(&j, stdout);
	if (o.json)
		json_open(&j, NULL, '[');
	for (int i = optind; i < argc; i++) {
		int code = list(argv[i], &o, title, &j);

		if (title && !o.json && i + 1 < argc)
			putchar('\n');
		worst = code > worst ? code : worst;
	}
	if (o.json)
		json_close(&j, ']');
	return worst;
}
