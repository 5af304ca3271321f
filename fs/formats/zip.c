/* SPDX-License-Identifier: MIT
 *
 * Zip archives, as far as torch.save uses them.
 *
 * The central directory is read through a window, so memory is proportional to the entries actually
 * there, not to the counts that the end record claims.
 */
#include "fs/formats/inside.h"

#include <inttypes.h>
#define END_LEN 22u
#define LOCATOR_LEN 20u
#define END64_LEN 56u
#define CENTRAL_LEN 46u
#define LOCAL_LEN 30u
#define TAIL_FIRST 4096u /* torch's archives have shorter ends */
#define TAIL_MAX (END_LEN + 65535u)
#define WINDOW (256u << 10) /* larger than any directory entry */

struct zip_inside {
	struct arena names;
};

struct directory {
	uint64_t at, size, entries;
};

/* ---- the end ---------------------------------------------------------------------- */

/* The offset of the end record in the last `n` bytes of the source, or -1. */
static int64_t find_end(const uint8_t *tail, size_t n)
{
	for (size_t i = n < END_LEN ? 0 : n - END_LEN + 1; i-- > 0;)
		if (get32(tail + i) == 0x06054b50 && get16(tail + i + 20) == n - i - END_LEN)
			return (int64_t)i;
	return -1;
}

static int end_record(const struct fmt_source *s, uint8_t *tail, size_t n, uint64_t *at,
		      uint8_t record[END_LEN])
{
	int64_t i;
	int err = fmt_read(s, s->size - n, tail, n);

	if (err)
		return err;
	i = find_end(tail, n);
	if (i < 0)
		return -ENOENT;
	*at = s->size - n + (uint64_t)i;
	memcpy(record, tail + i, END_LEN);
	return 0;
}

static int find_record(const struct fmt_source *s, uint64_t *at, uint8_t record[END_LEN],
		       struct fmt_error *e)
{
	uint8_t first[TAIL_FIRST];
	CLEANUP_FREE uint8_t *all = NULL;
	int err = end_record(s, first, s->size < TAIL_FIRST ? s->size : TAIL_FIRST, at, record);

	if (err == -ENOENT && s->size > TAIL_FIRST) {
		all = malloc(TAIL_MAX);
		if (!all)
			return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
		err = end_record(s, all, s->size < TAIL_MAX ? s->size : TAIL_MAX, at, record);
	}
	if (err == -ENOENT)
		return fmt_fail(e, -EBADMSG, s->size,
				"no end record of a zip archive: truncated, or not a zip");
	return err ? fmt_fail(e, err, s->size, "cannot read the end: %s", strerror(-err)) : 0;
}

/* If there is a zip64 end record, its numbers are used; *end is its offset. */
static int zip64_record(const struct fmt_source *s, uint64_t *end, struct directory *d, bool *found,
			struct fmt_error *e)
{
	uint8_t b[END64_LEN];
	uint64_t at;
	int err;

	*found = false;
	if (*end < LOCATOR_LEN)
		return 0;
	err = fmt_read(s, *end - LOCATOR_LEN, b, LOCATOR_LEN);
	if (err)
		return fmt_fail(e, err, *end, "cannot read: %s", strerror(-err));
	if (get32(b) != 0x07064b50)
		return 0;
	at = get64(b + 8);
	if (*end < LOCATOR_LEN + END64_LEN || at > *end - LOCATOR_LEN - END64_LEN)
		return fmt_fail(e, -EBADMSG, *end - LOCATOR_LEN,
				"the zip64 end record should be at %llu", (unsigned long long)at);
	err = fmt_read(s, at, b, END64_LEN);
	if (err)
		return fmt_fail(e, err, at, "cannot read: %s", strerror(-err));
	if (get32(b) != 0x06064b50)
		return fmt_fail(e, -EBADMSG, at, "not a zip64 end record");
	if (get32(b + 16) || get32(b + 20) || get64(b + 24) != get64(b + 32))
		return fmt_fail(e, -ENOTSUP, at, "a zip archive in several parts");
	*d = (struct directory){get64(b + 48), get64(b + 40), get64(b + 32)};
	*end = at;
	*found = true;
	return 0;
}

static int find_directory(const struct fmt_source *s, struct directory *d, struct fmt_error *e)
{
	uint8_t r[END_LEN];
	uint64_t end;
	bool is64;
	int err = find_record(s, &end, r, e);

	if (!err)
		err = zip64_record(s, &end, d, &is64, e);
	if (err)
		return err;
	if (!is64) {
		if (get16(r + 4) || get16(r + 6) || get16(r + 8) != get16(r + 10))
			return fmt_fail(e, -ENOTSUP, end, "a zip archive in several parts");
		*d = (struct directory){get32(r + 16), get32(r + 12), get16(r + 10)};
	}
	if (d->size > end || d->at != end - d->size)
		return fmt_fail(e, -EBADMSG, end, "the zip directory should be %llu bytes at %llu",
				(unsigned long long)d->size, (unsigned long long)d->at);
	return 0;
}

/* ---- the directory ---------------------------------------------------------------- */

struct window {
	const struct fmt_source *s;
	uint8_t *buf;
	uint64_t at, end; /* at: offset of buf[pos]; end: of the directory */
	size_t pos, have;
};

/* Makes at least n bytes available at buf + pos. */
static int need(struct window *w, size_t n, struct fmt_error *e)
{
	uint64_t left = w->end - w->at;
	size_t more;
	int err;

	if (n <= w->have - w->pos)
		return 0;
	if (n > left)
		return fmt_fail(e, -EBADMSG, w->at, "the zip directory is truncated");
	memmove(w->buf, w->buf + w->pos, w->have - w->pos);
	w->have -= w->pos;
	w->pos = 0;
	more = WINDOW - w->have;
	if (more > left - w->have)
		more = (size_t)(left - w->have);
	err = fmt_read(w->s, w->at + w->have, w->buf + w->have, more);
	if (err)
		return fmt_fail(e, err, w->at, "cannot read the zip directory: %s", strerror(-err));
	w->have += more;
	return 0;
}

/* Takes the 64-bit values for those 32-bit values that are all ones. */
static int extra64(const uint8_t *x, size_t n, uint64_t *size, uint64_t *packed, uint64_t *local)
{
	uint64_t *want[3] = {size, packed, local};

	while (n >= 4) {
		size_t len = get16(x + 2);

		if (len > n - 4)
			return -EBADMSG;
		if (get16(x) == 1) {
			const uint8_t *v = x + 4;

			for (int i = 0; i < 3; i++) {
				if (*want[i] != UINT32_MAX)
					continue;
				if (len < 8)
					return -EBADMSG;
				*want[i] = get64(v);
				v += 8;
				len -= 8;
			}
			return 0;
		}
		x += 4 + len;
		n -= 4 + len;
	}
	return 0;
}

static int check_entry(const struct zip_entry *t, const uint8_t *c, uint64_t packed, uint64_t end,
		       uint64_t at, struct fmt_error *e)
{
	if (get16(c + 8) & 1)
		return fmt_fail(e, -ENOTSUP, at, "%.100s is encrypted", t->name);
	if (get16(c + 10))
		return fmt_fail(e, -ENOTSUP, at, "%.100s is compressed", t->name);
	if (packed != t->size)
		return fmt_fail(e, -EBADMSG, at, "%.100s is stored in %llu bytes but has %llu",
				t->name, (unsigned long long)packed, (unsigned long long)t->size);
	if (t->local > end || t->size > end - t->local || end - t->local - t->size < LOCAL_LEN)
		return fmt_fail(e, -EBADMSG, at,
				"%.100s reaches beyond the archive: %llu bytes at %llu", t->name,
				(unsigned long long)t->size, (unsigned long long)t->local);
	return 0;
}

static int add_entry(struct zip *z, struct window *w, size_t *cap, struct fmt_error *e)
{
	struct zip_entry t = {0}, *v = z->entry;
	const uint8_t *c;
	size_t name_len, extra_len, all;
	uint64_t packed;
	int err = need(w, CENTRAL_LEN, e);

	if (err)
		return err;
	c = w->buf + w->pos;
	if (get32(c) != 0x02014b50)
		return fmt_fail(e, -EBADMSG, w->at, "not an entry of a zip directory");
	name_len = get16(c + 28);
	extra_len = get16(c + 30);
	all = CENTRAL_LEN + name_len + extra_len + get16(c + 32);
	err = need(w, all, e);
	if (err)
		return err;
	c = w->buf + w->pos;
	t.crc = get32(c + 16);
	packed = get32(c + 20);
	t.size = get32(c + 24);
	t.local = get32(c + 42);
	t.name = arena_string(&z->inside->names, (const char *)c + CENTRAL_LEN, name_len);
	if (z->n_entries == *cap) {
		*cap = *cap ? *cap * 2 : 16;
		v = reallocarray(v, *cap, sizeof(*v));
	}
	if (v)
		z->entry = v;
	if (!v || !t.name)
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	if (strlen(t.name) != name_len)
		return fmt_fail(e, -EBADMSG, w->at, "a name in the zip that contains a NUL");
	if (extra64(c + CENTRAL_LEN + name_len, extra_len, &t.size, &packed, &t.local))
		return fmt_fail(e, -EBADMSG, w->at, "%.100s: a broken zip64 field", t.name);
	err = check_entry(&t, c, packed, z->end, w->at, e);
	z->entry[z->n_entries++] = t;
	w->pos += all;
	w->at += all;
	return err;
}

static int read_directory(const struct fmt_source *s, const struct directory *d, struct zip *z,
			  struct fmt_error *e)
{
	CLEANUP_FREE uint8_t *buf = malloc(WINDOW);
	struct window w = {.s = s, .buf = buf, .at = d->at, .end = d->at + d->size};
	size_t cap = 0;
	int err = 0;

	if (!buf)
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	while (!err && w.at < w.end)
		err = add_entry(z, &w, &cap, e);
	if (!err && z->n_entries != d->entries)
		err = fmt_fail(e, -EBADMSG, d->at, "the zip directory has %zu entries, not %llu",
			       z->n_entries, (unsigned long long)d->entries);
	return err;
}

/* ---- checks ----------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct zip_entry *x = a, *y = b;

	return x->local < y->local ? -1 : x->local > y->local;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct zip_entry *)a)->name, ((const struct zip_entry *)b)->name);
}

static int check_apart(struct zip *z, struct fmt_error *e)
{
	if (!z->n_entries)
		return 0;
	qsort(z->entry, z->n_entries, sizeof(*z->entry), by_place);
	for (size_t i = 1; i < z->n_entries; i++) {
		const struct zip_entry *a = &z->entry[i - 1], *b = &z->entry[i];

		if (b->local - a->local < LOCAL_LEN + a->size)
			return fmt_fail(e, -EBADMSG, b->local, "%.80s and %.80s overlap", a->name,
					b->name);
	}
	qsort(z->entry, z->n_entries, sizeof(*z->entry), by_name);
	for (size_t i = 1; i < z->n_entries; i++)
		if (!strcmp(z->entry[i - 1].name, z->entry[i].name))
			return fmt_fail(e, -EBADMSG, z->entry[i].local,
					"%.100s is in the zip twice", z->entry[i].name);
	return 0;
}

int zip_open(const struct fmt_source *s, struct zip **out, struct fmt_error *e)
{
	struct directory d;
	struct zip *z;
	int err = find_directory(s, &d, e);

	*out = NULL;
	if (err)
		return err;
	z = calloc(1, sizeof(*z));
	if (z)
		z->inside = calloc(1, sizeof(*z->inside));
	if (!z || !z->inside) {
		free(z);
		return fmt_fail(e, -ENOMEM, FMT_NOWHERE, "no memory");
	}
	arena_init(&z->inside->names, 2 * d.size + 4096);
	z->end = d.at;
	err = read_directory(s, &d, z, e);
	if (!err)
		err = check_apart(z, e);
	if (err)
		zip_close(z);
	else
		*out = z;
	return err;
}

void zip_close(struct zip *z)
{
	if (!z)
		return;
	arena_free(&z->inside->names);
	free(z->inside);
	free(z->entry);
	free(z);
}

struct zip_entry *zip_find(const struct zip *z, const char *name)
{
	struct zip_entry key = {.name = name};

	return z->n_entries ? bsearch(&key, z->entry, z->n_entries, sizeof(key), by_name) : NULL;
}

/* ---- one entry -------------------------------------------------------------------- */

static int same_name(const struct fmt_source *s, uint64_t at, const char *name, bool *same)
{
	char b[256];
	size_t n = strlen(name);
	int err = 0;

	*same = true;
	for (size_t i = 0; !err && *same && i < n; i += sizeof(b)) {
		size_t part = n - i < sizeof(b) ? n - i : sizeof(b);

		err = fmt_read(s, at + i, b, part);
		*same = !err && !memcmp(b, name + i, part);
	}
	return err;
}

int zip_data(const struct fmt_source *s, const struct zip *z, struct zip_entry *t,
	     struct fmt_error *e)
{
	uint8_t b[LOCAL_LEN];
	bool same;
	uint64_t data;
	int err;

	if (t->data)
		return 0;
	err = fmt_read(s, t->local, b, sizeof(b));
	if (err)
		return fmt_fail(e, err, t->local, "%.100s: cannot read: %s", t->name,
				strerror(-err));
	if (get32(b) != 0x04034b50)
		return fmt_fail(e, -EBADMSG, t->local, "%.100s: not a local header", t->name);
	data = t->local + LOCAL_LEN + get16(b + 26) + get16(b + 28);
	if (get16(b + 26) != strlen(t->name) || get16(b + 8) || data > z->end ||
	    t->size > z->end - data)
		return fmt_fail(e, -EBADMSG, t->local,
				"%.100s: its local header differs from the directory", t->name);
	err = same_name(s, t->local + LOCAL_LEN, t->name, &same);
	if (err)
		return fmt_fail(e, err, t->local, "%.100s: cannot read: %s", t->name,
				strerror(-err));
	if (!same)
		return fmt_fail(e, -EBADMSG, t->local, "%.100s: its local header has another name",
				t->name);
	t->data = data;
	return 0;
}

int zip_check(const struct fmt_source *s, const struct zip *z, struct zip_entry *entry, void *buf,
	      size_t n, void (*read)(void *ctx, uint64_t bytes), void *ctx, struct fmt_error *e)
{
	uint32_t crc = 0;
	int err = zip_data(s, z, entry, e);

	for (uint64_t off = 0; !err && entry->crc && off < entry->size; off += n) {
		size_t len = entry->size - off < n ? (size_t)(entry->size - off) : n;

		err = fmt_read(s, entry->data + off, buf, len);
		if (err)
			return fmt_fail(e, err, entry->data + off, "%.100s: cannot read: %s",
					entry->name, strerror(-err));
		crc = zip_crc(crc, buf, len);
		if (read)
			read(ctx, len);
	}
	if (!err && entry->crc != crc)
		err = fmt_fail(e, -EBADMSG, entry->data,
			       "%.100s: CRC is %08" PRIx32 ", not %08" PRIx32, entry->name, crc,
			       entry->crc);
	return err;
}
