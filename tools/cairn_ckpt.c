/* SPDX-License-Identifier: MIT
 *
 * Checkpoints: see cairn_ckpt.h.
 */
#include "cairn_ckpt.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#define OPEN_FILE (O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)

/* ---- open ------------------------------------------------------------------------- */

static int look_at(struct ckpt *c, size_t i, struct timespec *newest)
{
	struct ckpt_name *n = &c->name[i];
	char state[16] = "";
	struct stat st;

	n->name = c->names.v[i];
	if (fstatat(c->dir, n->name, &st, 0))
		return errno == ENOENT ? 0 : -errno;	/* gone, or a link to nowhere */
	n->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
	n->dir = S_ISDIR(st.st_mode);
	if (c->on_mount && S_ISREG(st.st_mode)) {
		xattr_at(c->dir, n->name, XATTR_STATE, state, sizeof(state));
		n->open = !strcmp(state, "open");
	}
	if (st.st_mtim.tv_sec > newest->tv_sec)
		*newest = st.st_mtim;
	return 0;
}

static int look_at_all(struct ckpt *c)
{
	struct timespec newest = { 0 }, now;
	struct stat st;
	int err = 0;

	c->name = calloc(c->names.n ? c->names.n : 1, sizeof(*c->name));
	if (!c->name)
		return -ENOMEM;
	if (!c->alone && !fstat(c->dir, &st))
		newest = st.st_mtim;	/* a rename or an unlink counts too */
	for (size_t i = 0; !err && i < c->names.n; i++)
		err = look_at(c, i, &newest);
	clock_gettime(CLOCK_REALTIME, &now);
	c->quiet_s = difftime(now.tv_sec, newest.tv_sec);
	return err;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int one_name(struct ckpt *c, const char *name)
{
	c->names.v = calloc(1, sizeof(*c->names.v));
	if (!c->names.v)
		return -ENOMEM;
	c->names.v[0] = strdup(base_name(name));
	c->names.n = 1;
	return c->names.v[0] ? 0 : -ENOMEM;
}

/* The directory a file is in: what the path says, or dirfd itself. */
static int parent_of(int dirfd, const char *name)
{
	CLEANUP_FREE char *dir = strdup(name);
	char *slash = dir ? strrchr(dir, '/') : NULL;
	int fd;

	if (!dir)
		return -ENOMEM;
	if (slash)
		slash[slash == dir] = '\0';
	fd = openat(dirfd, slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* The last component of where the directory really is: "." and links have no step. */
static void real_name(int fd, const char *path, char *buf, size_t cap)
{
	char link[64], real[4096];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, real, sizeof(real) - 1);
	real[n < 0 ? 0 : n] = '\0';
	snprintf(buf, cap, "%.255s", base_name(n > 0 ? real : path));
}

int ckpt_open(int dirfd, const char *name, const char *path, bool on_mount, struct ckpt *out)
{
	char real[256];
	int err = 0;

	*out = CKPT_EMPTY;
	out->on_mount = on_mount;
	out->path = strdup(path);
	out->dir = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (out->dir < 0 && errno == ENOTDIR) {
		out->alone = true;
		out->dir = parent_of(dirfd, name);
		err = out->dir < 0 ? out->dir : one_name(out, name);
	} else {
		err = out->dir < 0 ? -errno : names_read(out->dir, &out->names);
	}
	if (!err && !out->path)
		err = -ENOMEM;
	if (!err)
		err = look_at_all(out);
	if (err) {
		ckpt_close(out);
		return err;
	}
	real_name(out->dir, path, real, sizeof(real));
	if (out->alone)
		ckpt_recognize_file(out->names.v[0], &out->kind);
	else
		ckpt_recognize(real, out->name, out->names.n, &out->kind);
	return 0;
}

void ckpt_close(struct ckpt *c)
{
	for (size_t i = 0; c->name && i < c->names.n; i++)
		free((char *)c->name[i].fault);
	free(c->name);
	names_free(&c->names);
	if (c->dir >= 0)
		close(c->dir);
	fmt_set_free(c->set);
	free(c->index.v);
	free((char *)c->path);
	*c = CKPT_EMPTY;
}

int ckpt_need(const char *path, struct ckpt *out)
{
	CLEANUP_PLACE struct place p = PLACE_NONE;
	int err = place_find(path, &p);

	*out = CKPT_EMPTY;
	if (!err || err == -ENODEV || err == -EXDEV)	/* plain files will do */
		err = ckpt_open(AT_FDCWD, path, path, p.on_mount, out);
	if (err) {
		complain("%s: %s", path, strerror(-err));
		return CAIRN_USAGE;
	}
	if (out->kind.format == CKPT_NONE) {
		complain("%s: no checkpoint that is known here", path);
		ckpt_close(out);
		return CAIRN_USAGE;
	}
	return CAIRN_OK;
}

/* ---- files ------------------------------------------------------------------------ */

/* Symlinks are followed as long as they stay below (Hugging Face's cache is full of them,
 * which lead out: those are followed for a name in the directory itself). */
int ckpt_open_file(const struct ckpt *c, const char *name)
{
	struct open_how how = {.flags = OPEN_FILE,
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
	int fd = (int)syscall(SYS_openat2, c->dir, name, &how, sizeof(how));

	if (fd < 0 && errno == EXDEV && !strchr(name, '/'))
		fd = openat(c->dir, name, OPEN_FILE);
	return fd < 0 ? -errno : fd;
}

static int read_fd(void *ctx, uint64_t off, void *buf, size_t len)
{
	int fd = *(int *)ctx;

	for (size_t got = 0; got < len;) {
		ssize_t n = pread(fd, (char *)buf + got, len - got, (off_t)(off + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			return -EIO;	/* shorter than it was a moment ago */
		got += (size_t)n;
	}
	return 0;
}

int ckpt_source(int *fd, struct fmt_source *out)
{
	struct stat st;

	if (fstat(*fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	*out = (struct fmt_source){ .size = (uint64_t)st.st_size, .read = read_fd, .ctx = fd };
	return 0;
}

ssize_t ckpt_find(const struct ckpt *c, const char *name)
{
	size_t lo = 0, hi = c->names.n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		int d = strcmp(c->names.v[mid], name);

		if (!d)
			return (ssize_t)mid;
		if (d < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

/* ---- read ------------------------------------------------------------------------- */

struct reading {
	struct ckpt *c;
	ckpt_bad_fn bad;
	void *ctx;
	int fatal;		/* -ENOMEM */
};

static void found_bad(struct reading *r, const char *file, const struct fmt_error *e, int err)
{
	ssize_t i = ckpt_find(r->c, file);
	char *fault;

	if (err == -ENOMEM)
		r->fatal = err;
	if (r->bad)
		r->bad(r->ctx, file, e, err);
	if (i < 0 || r->c->name[i].fault || err == -ENOTSUP)
		return;		/* what is not supported is not broken */
	fault = strdup(e->text);
	if (!fault)
		r->fatal = -ENOMEM;
	r->c->name[i].fault = fault;
}

static int cannot_open(struct fmt_error *e, int err)
{
	e->at = FMT_NOWHERE;
	snprintf(e->text, sizeof(e->text), "%s", strerror(-err));
	return err;
}

/* A whole small file in memory; the caller frees. */
static int slurp(const struct ckpt *c, const char *name, char **out, size_t *len,
		 struct fmt_error *e)
{
	CLEANUP_CLOSE int fd = ckpt_open_file(c, name);
	struct fmt_source s;
	int err = fd < 0 ? fd : ckpt_source(&fd, &s);

	*out = NULL;
	if (!err && s.size > PICKLE_MAX_BYTES)
		err = -EFBIG;
	if (!err)
		*out = malloc(s.size ? s.size : 1);
	if (!err && !*out)
		err = -ENOMEM;
	if (!err)
		err = fmt_read(&s, 0, *out, s.size);
	*len = err ? 0 : s.size;
	return err ? cannot_open(e, err) : 0;
}

static void read_metadata(struct reading *r, const char *name)
{
	CLEANUP_FREE char *bytes = NULL;
	struct fmt_error e;
	size_t len;
	int err = slurp(r->c, name, &bytes, &len, &e);

	if (!err)
		err = dcp_read(r->c->set, bytes, len, &e);
	if (err)
		found_bad(r, name, &e, err);
}

/* One file of tensors. `prefix`: before its tensors' names. */
static void read_file(struct reading *r, const char *name, const char *prefix)
{
	CLEANUP_CLOSE int fd = ckpt_open_file(r->c, name);
	struct fmt_error e = { .at = FMT_NOWHERE };
	struct fmt_source s;
	int err = fd < 0 ? fd : ckpt_source(&fd, &s);
	int64_t file;

	if (err) {
		cannot_open(&e, err);
	} else {
		file = fmt_set_file(r->c->set, name, strlen(name), &e);
		err = file < 0 ? (int)file : ckpt_is_safetensors(name) ?
		      safetensors_read(r->c->set, (uint32_t)file, &s, &e) :
		      torchfile_read(r->c->set, (uint32_t)file, prefix, &s, &e);
	}
	if (err)
		found_bad(r, name, &e, err);
}

/* Only the end of the zip: is it whole? */
static void read_end(struct reading *r, const char *name)
{
	CLEANUP_CLOSE int fd = ckpt_open_file(r->c, name);
	struct fmt_error e = { .at = FMT_NOWHERE };
	struct fmt_source s;
	struct zip *z = NULL;
	uint8_t magic[2] = { 0 };
	int err = fd < 0 ? fd : ckpt_source(&fd, &s);

	if (err)
		cannot_open(&e, err);
	else if (s.size < 2 || fmt_read(&s, 0, magic, 2) || magic[0] != 0x80)
		err = zip_open(&s, &z, &e);	/* else the old format, which has no end */
	zip_close(z);
	if (err)
		found_bad(r, name, &e, err);
}

static void read_index(struct reading *r)
{
	for (size_t i = 0; i < r->c->names.n; i++) {
		const char *name = r->c->names.v[i];
		size_t n = strlen(name), m = strlen(".safetensors.index.json");
		CLEANUP_FREE char *text = NULL;
		struct fmt_error e;
		size_t len;
		int err;

		if (n < m || strcmp(name + n - m, ".safetensors.index.json") || r->c->index.v)
			continue;
		err = slurp(r->c, name, &text, &len, &e);
		if (!err)
			err = safetensors_index_read(r->c->set, text, len, &r->c->index, &e);
		if (err)
			found_bad(r, name, &e, err);
	}
}

/* With an index only its files count: others (consolidated copies) may stand beside them. */
static bool is_listed(const struct ckpt *c, const char *name, size_t n_indexed)
{
	if (!c->index.v)
		return true;
	for (size_t i = 0; i < n_indexed; i++)
		if (!strcmp(c->set->file[i].name, name))
			return true;
	return false;
}

static void read_safetensors(struct reading *r)
{
	size_t n_indexed;

	read_index(r);
	n_indexed = r->c->set->n_files;
	for (size_t i = 0; i < r->c->names.n && !r->fatal; i++)
		if (ckpt_is_safetensors(r->c->names.v[i]) &&
		    is_listed(r->c, r->c->names.v[i], n_indexed))
			read_file(r, r->c->names.v[i], "");
}

static void read_torch(struct reading *r, bool deep, bool prefixed)
{
	size_t n = 0;

	for (size_t i = 0; i < r->c->names.n; i++)
		n += ckpt_is_torch(r->c->names.v[i]);
	for (size_t i = 0; i < r->c->names.n && !r->fatal; i++) {
		const char *name = r->c->names.v[i];
		CLEANUP_FREE char *prefix = NULL;

		if (!ckpt_is_torch(name))
			continue;
		if (!deep) {
			read_end(r, name);
			continue;
		}
		if ((n > 1 || prefixed) && asprintf(&prefix, "%s:", name) < 0)
			r->fatal = -ENOMEM;
		else
			read_file(r, name, prefix ? prefix : "");
	}
}

static void read_dcp(struct reading *r)
{
	bool global = ckpt_find(r->c, ".metadata") >= 0;
	bool any = false;

	for (size_t i = 0; i < r->c->names.n && !r->fatal; i++)
		if (ckpt_is_metadata(r->c->names.v[i], global)) {
			read_metadata(r, r->c->names.v[i]);
			any = true;
		}
	if (!any) {
		fmt_set_free(r->c->set);
		r->c->set = NULL;
	}
}

/* Files whose header alone says where things are. */
static void read_headers(struct reading *r)
{
	for (uint32_t f = 0; f < r->c->set->n_files; f++) {
		struct fmt_error e = { .at = FMT_NOWHERE };
		struct fmt_source s;
		int err;

		if (!dcp_wants_header(r->c->set, f))
			continue;
		CLEANUP_CLOSE int fd = ckpt_open_file(r->c, r->c->set->file[f].name);

		if (fd == -ENOENT)
			continue;	/* told by who compares names */
		err = fd < 0 ? cannot_open(&e, fd) : ckpt_source(&fd, &s);
		if (!err)
			err = dcp_read_header(r->c->set, f, &s, &e);
		if (err)
			found_bad(r, r->c->set->file[f].name, &e, err);
	}
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct ckpt_name *)a)->name, ((const struct ckpt_name *)b)->name);
}

static int add_name(struct ckpt *c, const char *name, uint64_t size)
{
	char **v = reallocarray(c->names.v, c->names.n + 1, sizeof(*v));
	struct ckpt_name *n;

	if (v)
		c->names.v = v;
	n = v ? reallocarray(c->name, c->names.n + 1, sizeof(*n)) : NULL;
	if (n)
		c->name = n;
	if (!n || !(v[c->names.n] = strdup(name)))
		return -ENOMEM;
	n[c->names.n] = (struct ckpt_name){ .name = v[c->names.n], .size = size };
	c->names.n++;
	return 0;
}

/* Files in directories below, which metadata may list, join the names. */
static void add_nested(struct reading *r)
{
	struct ckpt *c = r->c;
	size_t had = c->names.n;

	for (size_t i = 0; i < c->set->n_files && !r->fatal; i++) {
		const char *name = c->set->file[i].name;
		CLEANUP_CLOSE int fd = strchr(name, '/') ? ckpt_open_file(c, name) : -1;
		struct stat st;

		if (fd >= 0 && !fstat(fd, &st) && S_ISREG(st.st_mode))
			r->fatal = add_name(c, name, (uint64_t)st.st_size);
	}
	if (c->names.n == had)
		return;
	qsort(c->name, c->names.n, sizeof(*c->name), by_name);
	for (size_t i = 0; i < c->names.n; i++)
		c->names.v[i] = (char *)c->name[i].name;
}

int ckpt_read(struct ckpt *c, bool deep, ckpt_bad_fn bad, void *ctx)
{
	struct reading r = { .c = c, .bad = bad, .ctx = ctx };

	c->set = fmt_set_new();
	if (!c->set)
		return -ENOMEM;
	if (ckpt_is_dcp(c->kind.format))
		read_dcp(&r);
	else if (c->kind.format != CKPT_ORBAX)
		read_safetensors(&r);
	if (!r.fatal && c->set && c->kind.format != CKPT_ORBAX &&
	    c->kind.format != CKPT_SAFETENSORS)
		read_torch(&r, deep,
			   c->kind.format == CKPT_MEGATRON || c->kind.format == CKPT_TRAINER);
	if (!c->set)
		return r.fatal;
	add_nested(&r);
	fmt_set_finish(c->set);
	if (ckpt_is_dcp(c->kind.format))
		read_headers(&r);
	return r.fatal;
}

/* ---- judge ------------------------------------------------------------------------ */

void ckpt_verdict(const struct ckpt *c, struct ckpt_verdict *out)
{
	ckpt_judge(&c->kind, c->name, c->names.n, c->set, c->index.v ? &c->index : NULL, c->quiet_s,
		   out);
}

void ckpt_durability(const struct ckpt *c, char *buf, size_t cap)
{
	*buf = '\0';
	if (!c->on_mount)
		return;
	if (c->alone)
		xattr_at(c->dir, c->names.v[0], XATTR_STATE, buf, cap);
	else
		xattr_of_fd(c->dir, XATTR_STATE, buf, cap);
}

bool ckpt_is_safe(const struct ckpt *c, const struct ckpt_verdict *v)
{
	char state[16];

	ckpt_durability(c, state, sizeof(state));
	return v->state == CKPT_COMPLETE && (!c->on_mount || !strcmp(state, "durable"));
}

/* ---- text ------------------------------------------------------------------------- */

const char *shape_text(const uint64_t *v, unsigned n, const char *between, char *buf, size_t cap)
{
	size_t at = 0;

	buf[0] = '\0';
	for (unsigned i = 0; i < n && at < cap; i++)
		at += (size_t)snprintf(buf + at, cap - at, "%s%llu", i ? between : "",
				       (unsigned long long)v[i]);
	if (at >= cap)
		snprintf(buf, cap, "?");
	return buf;
}
