/* SPDX-License-Identifier: MIT
 *
 * Pieces of tensors: their files, the positions of their elements, and whether two of them
 * are equal.
 */
#include "ckpt.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define OPEN_FILES 128u /* descriptors kept; a checkpoint may have thousands of files */
#define WINDOW (256u << 10)

/* ---- payload ---------------------------------------------------------------------- */

static void row_major(const uint64_t *size, unsigned ndim, uint64_t *stride)
{
	uint64_t s = 1;

	for (unsigned d = ndim; d-- > 0;) {
		stride[d] = s;
		s *= size[d] ? size[d] : 1; /* the extent was checked: no overflow */
	}
}

static int strides_of(const struct fmt_tensor *t, const struct fmt_piece *p, uint64_t at,
		      struct payload *out)
{
	out->at = at + p->at;
	if (p->stride)
		memcpy(out->stride, p->stride, t->ndim * sizeof(*p->stride));
	else
		row_major(p->size, t->ndim, out->stride);
	return 0;
}

static int refused(struct fmt_error *e, int err, uint64_t at, const char *name, const char *why)
{
	e->at = at;
	snprintf(e->text, sizeof(e->text), "%.100s: %s", name, why);
	return err;
}

static int item_payload(const struct fmt_tensor *t, const struct fmt_piece *p,
			const struct fmt_source *s, struct fmt_set *set, struct payload *out,
			struct fmt_error *e)
{
	struct fmt_source item = fmt_part(s, p->at, p->length);
	const struct fmt_tensor *have;
	int err = dcp_item_read(set, &item, e);

	if (err) {
		if (e->at != FMT_NOWHERE)
			e->at += p->at;
		return err;
	}
	have = &set->tensor[0];
	if (have->piece[0].refusal)
		return refused(e, -ENOTSUP, p->at, t->name, have->piece[0].refusal);
	if (have->dtype != t->dtype)
		return refused(e, -EBADMSG, p->at, t->name, "its item has another dtype");
	if (have->ndim != t->ndim || memcmp(have->shape, p->size, t->ndim * sizeof(*p->size)))
		return refused(e, -EBADMSG, p->at, t->name, "its item has another shape");
	return strides_of(have, &have->piece[0], p->at, out);
}

int ckpt_payload(const struct fmt_tensor *t, const struct fmt_piece *p, const struct fmt_source *s,
		 struct payload *out, struct fmt_error *e)
{
	struct fmt_set *set;
	int err;

	if (p->refusal)
		return refused(e, -ENOTSUP, p->at, t->name, p->refusal);
	if (p->at > s->size || p->length > s->size - p->at)
		return refused(e, -EBADMSG, s->size, t->name,
			       "the file ends before its extent does");
	if (p->payload != FMT_ITEM)
		return strides_of(t, p, 0, out);
	set = fmt_set_new();
	if (!set)
		return refused(e, -ENOMEM, FMT_NOWHERE, t->name, "no memory");
	err = item_payload(t, p, s, set, out, e);
	fmt_set_free(set);
	return err;
}

/* ---- files ------------------------------------------------------------------------ */

int files_open(struct files *f, const struct ckpt *c)
{
	*f = (struct files){.c = c};
	f->v = calloc(c->set->n_files ? c->set->n_files : 1, sizeof(*f->v));
	if (!f->v)
		return -ENOMEM;
	for (size_t i = 0; i < c->set->n_files; i++)
		f->v[i].fd = f->v[i].direct = -1;
	return 0;
}

static void drop_unused(struct files *f)
{
	for (size_t i = 0; i < f->c->set->n_files; i++) {
		struct one_file *o = &f->v[i];

		if (o->fd < 0 || o->users)
			continue;
		close(o->fd);
		if (o->direct >= 0)
			close(o->direct);
		o->fd = o->direct = -1;
		f->n_open--;
	}
}

void files_close(struct files *f)
{
	if (f->v)
		drop_unused(f);
	free(f->v);
	*f = (struct files){0};
}

bool is_on_fuse(int fd)
{
	struct statfs fs;

	return !fstatfs(fd, &fs) && fs.f_type == FUSE_SUPER_MAGIC;
}

/* Not in a FUSE mount: ours would pass the reads through the daemon. */
static int open_direct(int fd)
{
	char path[32];

	if (is_on_fuse(fd))
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

int files_get(struct files *f, uint32_t i, struct one_file **out)
{
	struct one_file *o = &f->v[i];
	struct stat st;
	int err;

	*out = o;
	if (o->fd >= 0)
		return 0;
	if (f->n_open >= OPEN_FILES)
		drop_unused(f);
	o->fd = ckpt_open_file(f->c, f->c->set->file[i].name);
	if (o->fd < 0)
		return o->fd;
	err = fmt_file(o->fd, &o->source);
	if (!err && fstat(o->fd, &st))
		err = -errno;
	if (err) {
		close(o->fd);
		o->fd = -1;
		return err;
	}
	f->n_open++;
	if (f->whole) {
		o->direct = open_direct(o->fd);
		posix_fadvise(o->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	}
	o->dev = st.st_dev;
	o->ino = st.st_ino;
	xattr_of_fd(o->fd, KEY_CHECKSUM, o->sum, sizeof(o->sum));
	return 0;
}

/* ---- comparison ------------------------------------------------------------------- */

struct side { /* one of the two, read through a window */
	const struct fmt_source *s;
	uint64_t end; /* of the extent: nothing beyond it is read */
	char *buf;
	uint64_t at; /* of the window, in the file */
	size_t have;
	uint64_t base; /* of the first element of the box */
	const uint64_t *stride;
};

/* n <= WINDOW bytes at `at`; the bytes after them are read, too: short runs follow each other. */
static int window(struct side *x, uint64_t at, size_t n, const char **out, uint64_t *read)
{
	size_t want = WINDOW;
	int err;

	if (at < x->at || at + n > x->at + x->have) {
		if (at > x->end || n > x->end - at)
			return -EIO;
		if (want > x->end - at)
			want = (size_t)(x->end - at);
		x->have = 0;
		err = fmt_read(x->s, at, x->buf, want);
		if (err)
			return err;
		x->at = at;
		x->have = want;
		*read += want;
	}
	*out = x->buf + (at - x->at);
	return 0;
}

static int same_run(struct side *a, struct side *b, uint64_t at_a, uint64_t at_b, uint64_t n,
		    bool *same, uint64_t *read)
{
	int err = 0;

	while (!err && n && *same) {
		size_t part = n < WINDOW ? (size_t)n : WINDOW;
		const char *x, *y;

		err = window(a, at_a, part, &x, read);
		if (!err)
			err = window(b, at_b, part, &y, read);
		if (!err)
			*same = !memcmp(x, y, part);
		at_a += part;
		at_b += part;
		n -= part;
	}
	return err;
}

/* How many of the last dimensions of the box form one run on both sides, and its length
 * in elements. */
static unsigned run_of(const uint64_t *size, unsigned ndim, const uint64_t *sa, const uint64_t *sb,
		       uint64_t *run)
{
	unsigned d = ndim;

	for (*run = 1; d > 0 && (size[d - 1] == 1 || (sa[d - 1] == *run && sb[d - 1] == *run)); d--)
		*run *= size[d - 1];
	return d;
}

/* Every element of the box, in order, in runs as long as both sides allow. */
static int same_box(struct side *a, struct side *b, const uint64_t *size, unsigned ndim,
		    unsigned bytes, bool *same, uint64_t *read)
{
	uint64_t run, index[FMT_MAX_DIMS] = {0};
	unsigned outer = run_of(size, ndim, a->stride, b->stride, &run), d;
	int err = 0;

	do {
		uint64_t at_a = 0, at_b = 0;

		for (d = 0; d < outer; d++) {
			at_a += index[d] * a->stride[d];
			at_b += index[d] * b->stride[d];
		}
		err = same_run(a, b, a->base + at_a * bytes, b->base + at_b * bytes, run * bytes,
			       same, read);
		for (d = outer; d > 0 && ++index[d - 1] == size[d - 1]; d--)
			index[d - 1] = 0;
	} while (!err && *same && d > 0);
	return err;
}

/* The intersection of both pieces; false: none. from_a, from_b: where it begins in each. */
static bool meet(const struct fmt_piece *p, const struct fmt_piece *q, unsigned ndim,
		 uint64_t *from_a, uint64_t *from_b, uint64_t *size)
{
	for (unsigned d = 0; d < ndim; d++) {
		uint64_t lo = p->offset[d] > q->offset[d] ? p->offset[d] : q->offset[d];
		uint64_t end_p = p->offset[d] + p->size[d], end_q = q->offset[d] + q->size[d];
		uint64_t hi = end_p < end_q ? end_p : end_q;

		if (lo >= hi)
			return false;
		from_a[d] = lo - p->offset[d];
		from_b[d] = lo - q->offset[d];
		size[d] = hi - lo;
	}
	return true;
}

static int get_side(struct files *f, const struct fmt_tensor *t, const struct fmt_piece *p,
		    struct payload *pay, struct side *out, struct fmt_error *e)
{
	struct one_file *o;
	int err = p->file == FMT_NO_FILE ? -ENOENT : files_get(f, p->file, &o);

	if (err) {
		e->at = FMT_NOWHERE;
		snprintf(e->text, sizeof(e->text), "%.60s: %.80s: %s", t->name,
			 p->file == FMT_NO_FILE ? "?" : f->c->set->file[p->file].name,
			 strerror(-err));
		return err;
	}
	out->s = &o->source;
	out->end = p->at + p->length;
	err = ckpt_payload(t, p, &o->source, pay, e);
	out->base = pay->at;
	out->stride = pay->stride;
	return err;
}

static bool same_strides(const uint64_t *a, const uint64_t *b, unsigned ndim)
{
	return a && b ? !memcmp(a, b, ndim * sizeof(*a)) : !a && !b;
}

/* The same extent of files with the same bytes: nothing needs to be read. */
static bool is_same_extent(struct compare *c, const struct fmt_piece *p, const struct fmt_piece *q,
			   unsigned ndim)
{
	struct one_file *a, *b;

	if (p->file == FMT_NO_FILE || q->file == FMT_NO_FILE || p->at != q->at ||
	    p->length != q->length || p->payload != q->payload ||
	    !same_strides(p->stride, q->stride, ndim) || files_get(&c->a, p->file, &a) ||
	    files_get(&c->b, q->file, &b))
		return false;
	if (a->source.size != b->source.size)
		return false;
	return (a->dev == b->dev && a->ino == b->ino) ||
	       (!strncmp(a->sum, "xxh3:", 5) && !strcmp(a->sum, b->sum));
}

static bool same_place(const struct fmt_piece *p, const struct fmt_piece *q, unsigned ndim)
{
	return !ndim || (!memcmp(p->offset, q->offset, ndim * sizeof(*p->offset)) &&
			 !memcmp(p->size, q->size, ndim * sizeof(*p->size)));
}

static int same_pair(struct compare *c, const struct fmt_tensor *t, const struct fmt_tensor *u,
		     const struct fmt_piece *p, const struct fmt_piece *q, bool *same,
		     struct fmt_error *e)
{
	uint64_t from_a[FMT_MAX_DIMS], from_b[FMT_MAX_DIMS], size[FMT_MAX_DIMS];
	struct payload pa, pb;
	struct side a = {.buf = c->buf}, b = {.buf = c->buf + WINDOW};
	unsigned bytes = t->dtype->bits / 8;
	int err;

	if (!meet(p, q, t->ndim, from_a, from_b, size))
		return 0;
	if (same_place(p, q, t->ndim) && is_same_extent(c, p, q, t->ndim))
		return 0;
	err = get_side(&c->a, t, p, &pa, &a, e);
	if (!err)
		err = get_side(&c->b, u, q, &pb, &b, e);
	if (err)
		return err;
	for (unsigned d = 0; d < t->ndim; d++) {
		a.base += from_a[d] * pa.stride[d] * bytes;
		b.base += from_b[d] * pb.stride[d] * bytes;
	}
	err = same_box(&a, &b, size, t->ndim, bytes, same, &c->read);
	if (err) {
		e->at = FMT_NOWHERE;
		snprintf(e->text, sizeof(e->text), "%.100s: %s", t->name, strerror(-err));
	}
	return err;
}

int compare_open(struct compare *c, const struct ckpt *a, const struct ckpt *b)
{
	int err;

	*c = (struct compare){.buf = malloc(2 * WINDOW)};
	err = c->buf ? files_open(&c->a, a) : -ENOMEM;
	if (!err)
		err = files_open(&c->b, b);
	if (err)
		compare_close(c);
	return err;
}

void compare_close(struct compare *c)
{
	files_close(&c->a);
	files_close(&c->b);
	free(c->buf);
	c->buf = NULL;
}

#define MAX_PAIRS 100000000u

/* Split alike? *known: and each pair of pieces is one extent, so nothing needs to be read. */
static bool is_paired(struct compare *c, const struct fmt_tensor *t, const struct fmt_tensor *u,
		      bool *known)
{
	*known = t->n_pieces == u->n_pieces;
	if (!*known)
		return false;
	for (size_t i = 0; i < t->n_pieces; i++) {
		if (!same_place(&t->piece[i], &u->piece[i], t->ndim))
			return *known = false;
		*known = *known && is_same_extent(c, &t->piece[i], &u->piece[i], t->ndim);
	}
	return true;
}

int compare_tensors(struct compare *c, const struct fmt_tensor *t, const struct fmt_tensor *u,
		    bool *same, struct fmt_error *e)
{
	const char *why = NULL;
	bool known, paired = is_paired(c, t, u, &known);
	int err = 0;

	*same = true;
	if (known)
		return 0;
	if (!t->dtype)
		why = "an unknown dtype";
	else if (t->dtype->bits % 8)
		why = "elements of less than a byte";
	else if (!paired && t->n_pieces && u->n_pieces > MAX_PAIRS / t->n_pieces)
		why = "too many pieces";
	if (why)
		return refused(e, -ENOTSUP, FMT_NOWHERE, t->name, why);
	for (size_t i = 0; !err && *same && i < t->n_pieces; i++) {
		size_t from = paired ? i : 0, end = paired ? i + 1 : u->n_pieces;

		for (size_t j = from; !err && *same && j < end; j++)
			err = same_pair(c, t, u, &t->piece[i], &u->piece[j], same, e);
	}
	return err;
}

/* The value in an item, as bytes that are equal for equal values; NULL: not a plain value. A value
 * from a torch.save file already has this form. */
static const struct fmt_blob *value_of(const struct fmt_blob *b, const struct fmt_source *s,
				       struct fmt_set *set)
{
	struct fmt_source item;
	struct fmt_error e;

	if (b->pickle)
		return b;
	item = fmt_part(s, b->at, b->length);
	return torchfile_read_value(set, &item, &e) || !set->n_blobs ? NULL : &set->blob[0];
}

/* Archives of one value differ by their writer and time. */
static int same_values(const struct fmt_blob *x, const struct fmt_source *sx,
		       const struct fmt_blob *y, const struct fmt_source *sy, bool *same)
{
	struct fmt_set *a = fmt_set_new(), *b = fmt_set_new();
	int err = a && b ? 0 : -ENOMEM;

	if (!err) {
		x = value_of(x, sx, a);
		y = value_of(y, sy, b);
		*same = x && y && x->length == y->length &&
			!memcmp(x->pickle, y->pickle, x->length);
	}
	fmt_set_free(a);
	fmt_set_free(b);
	return err;
}

static int blob_side(struct files *f, const struct fmt_blob *b, struct side *out)
{
	struct one_file *o;
	int err;

	if (b->pickle)
		return 0;
	err = b->file == FMT_NO_FILE ? -ENOENT : files_get(f, b->file, &o);
	if (err)
		return err;
	out->s = &o->source;
	out->end = b->at + b->length;
	return out->end > o->source.size ? -EIO : 0;
}

int compare_blobs(struct compare *c, const struct fmt_blob *x, const struct fmt_blob *y, bool *same,
		  struct fmt_error *e)
{
	struct fmt_piece p = {.file = x->file, .at = x->at, .length = x->length};
	struct fmt_piece q = {.file = y->file, .at = y->at, .length = y->length};
	struct side l = {.buf = c->buf}, r = {.buf = c->buf + WINDOW};
	bool bytes = !x->pickle && !y->pickle;
	int err;

	*same = true;
	if (bytes && is_same_extent(c, &p, &q, 0))
		return 0;
	err = blob_side(&c->a, x, &l);
	if (!err)
		err = blob_side(&c->b, y, &r);
	*same = bytes && x->length == y->length;
	if (!err && *same)
		err = same_run(&l, &r, x->at, y->at, x->length, same, &c->read);
	if (!err && !*same)
		err = same_values(x, l.s, y, r.s, same);
	return err ? refused(e, err, FMT_NOWHERE, x->name, strerror(-err)) : 0;
}

int object_open(const struct fmt_source *item, struct zip **out, struct fmt_error *e)
{
	uint8_t first = 0;

	*out = NULL;
	if (item->size && !fmt_read(item, 0, &first, 1) && first == 0x80)
		return 0;
	return zip_open(item, out, e);
}

int object_check(const struct fmt_source *item, char *buf, size_t n, struct fmt_error *e)
{
	struct zip *z;
	int err = object_open(item, &z, e);

	for (size_t i = 0; !err && z && i < z->n_entries; i++)
		err = zip_check(item, z, &z->entry[i], buf, n, NULL, NULL, e);
	zip_close(z);
	return err;
}
