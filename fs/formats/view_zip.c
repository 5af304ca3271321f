/* SPDX-License-Identifier: MIT
 *
 * torch.save archives in a view, and the pickles in them.
 *
 * The checksums of data are 0, as torch.serialization.set_crc32_options(False) leaves them: a
 * header precedes its data, which have not been read yet, and PyTorch does not check them.
 */
#include "fs/formats/view.h"

#define ALIGN 64u /* of data, as in torch.save */
#define LIMIT32 0xffffffffu

static void put16(struct view *v, unsigned n)
{
	view_add(v, (char[]){(char)n, (char)(n >> 8)}, 2);
}

static void put32(struct view *v, uint64_t n)
{
	put16(v, (unsigned)(n & 0xffff));
	put16(v, (unsigned)(n >> 16 & 0xffff));
}

static void put64(struct view *v, uint64_t n)
{
	put32(v, n & LIMIT32);
	put32(v, n >> 32);
}

static uint32_t below(uint64_t n)
{
	return n < LIMIT32 ? (uint32_t)n : LIMIT32;
}

/* The fields shared by local headers and the directory, from "version needed" on. */
static void put_common(struct view *v, const char *name, uint32_t crc, uint64_t size,
		       unsigned extra)
{
	put16(v, 45);
	put16(v, 0x800); /* names are UTF-8 */
	put16(v, 0); /* stored */
	put32(v, 0x00210000); /* 1980-01-01, so that the same tensors give the same bytes */
	put32(v, crc);
	put32(v, below(size));
	put32(v, below(size));
	put16(v, (unsigned)strlen(name));
	put16(v, extra);
}

/* The header of an entry whose data follow, padded to align them. */
static void begin_entry(struct view_zip *z, const char *name, uint32_t crc, uint64_t size)
{
	uint64_t at = z->v->size - z->start;
	bool large = size >= LIMIT32, far = at >= LIMIT32;
	unsigned fixed = 30 + (unsigned)strlen(name) + (large ? 20 : 0) + 4;
	unsigned pad = (unsigned)((ALIGN - (at + fixed) % ALIGN) % ALIGN);

	put32(z->v, 0x04034b50);
	put_common(z->v, name, crc, size, (large ? 20 : 0) + 4 + pad);
	view_add(z->v, name, strlen(name));
	if (large) {
		put16(z->v, 1);
		put16(z->v, 16);
		put64(z->v, size);
		put64(z->v, size);
	}
	put16(z->v, 0x4246); /* "FB", PyTorch's padding */
	put16(z->v, pad);
	for (unsigned i = 0; i < pad; i++)
		view_add(z->v, "Z", 1);

	put32(z->central, 0x02014b50);
	put16(z->central, 45);
	put_common(z->central, name, crc, size,
		   large || far ? 4 + (large ? 16 : 0) + (far ? 8 : 0) : 0);
	put16(z->central, 0);
	put16(z->central, 0);
	put16(z->central, 0);
	put32(z->central, 0);
	put32(z->central, below(at));
	view_add(z->central, name, strlen(name));
	if (large || far) {
		put16(z->central, 1);
		put16(z->central, (large ? 16 : 0) + (far ? 8 : 0));
	}
	if (large) {
		put64(z->central, size);
		put64(z->central, size);
	}
	if (far)
		put64(z->central, at);
	z->entries++;
}

void view_zip_add(struct view_zip *z, const char *name, const void *p, size_t len)
{
	begin_entry(z, name, zip_crc(0, p, len), len);
	view_add(z->v, p, len);
}

void view_zip_add_tensor(struct view_zip *z, const char *name, size_t tensor, uint64_t bytes)
{
	begin_entry(z, name, 0, bytes);
	view_add_tensor(z->v, tensor, 0, bytes);
}

int view_zip_begin(struct view_zip *z, struct view *v)
{
	*z = (struct view_zip){v, view_new(v->base), v->size, 0};
	return z->central ? 0 : -ENOMEM;
}

void view_zip_end(struct view_zip *z)
{
	uint64_t at = z->v->size - z->start, len = z->central->mem_len;

	view_add(z->v, z->central->mem, z->central->mem_len);
	put32(z->v, 0x06064b50); /* always with zip64's end record and locator */
	put64(z->v, 44);
	put16(z->v, 45);
	put16(z->v, 45);
	put32(z->v, 0);
	put32(z->v, 0);
	put64(z->v, z->entries);
	put64(z->v, z->entries);
	put64(z->v, len);
	put64(z->v, at);
	put32(z->v, 0x07064b50);
	put32(z->v, 0);
	put64(z->v, at + len);
	put32(z->v, 1);
	put32(z->v, 0x06054b50);
	put32(z->v, 0);
	put16(z->v, z->entries < 0xffff ? (unsigned)z->entries : 0xffff);
	put16(z->v, z->entries < 0xffff ? (unsigned)z->entries : 0xffff);
	put32(z->v, below(len));
	put32(z->v, below(at));
	put16(z->v, 0);
	z->v->no_memory |= z->central->no_memory;
	view_free(z->central);
	z->central = NULL;
}

/* ---- pickles ---------------------------------------------------------------------- */

void view_pickle_text(struct view *v, const char *s)
{
	view_add(v, "X", 1);
	put32(v, strlen(s));
	view_add(v, s, strlen(s));
}

void view_pickle_number(struct view *v, uint64_t n)
{
	if (n <= INT32_MAX) {
		view_add(v, "J", 1);
		put32(v, n);
	} else {
		view_add(v, "\x8a\x09", 2); /* nine bytes, so that it stays positive */
		put64(v, n);
		view_add(v, "", 1);
	}
}

static void pickle_strides(struct view *v, const struct fmt_tensor *t)
{
	view_add(v, "(", 1);
	for (unsigned d = 0; d < t->ndim; d++) {
		uint64_t s = 1;

		for (unsigned i = d + 1; i < t->ndim; i++)
			s *= t->shape[i] ? t->shape[i] : 1;
		view_pickle_number(v, s);
	}
	view_add(v, "t", 1);
}

/* torch._utils._rebuild_tensor_v2 on a storage of its own; v3 if there is no storage of that
 * type. */
void view_pickle_tensor(struct view *v, const struct fmt_tensor *t, const char *key, uint64_t bytes)
{
	const char *storage = t->dtype->storage;
	unsigned element = t->dtype->bits / 8;

	view_addf(v, "ctorch._utils\n_rebuild_tensor_%s\n((", storage ? "v2" : "v3");
	view_pickle_text(v, "storage");
	view_addf(v, "ctorch%s\n%s\n", storage ? "" : ".storage",
		  storage ? storage : "UntypedStorage");
	view_pickle_text(v, key);
	view_pickle_text(v, "cpu");
	view_pickle_number(v, storage ? bytes / element : bytes);
	view_add(v, "tQ", 2);
	view_pickle_number(v, 0);
	view_add(v, "(", 1);
	for (unsigned d = 0; d < t->ndim; d++)
		view_pickle_number(v, t->shape[d]);
	view_add(v, "t", 1);
	pickle_strides(v, t);
	view_addf(v, "\x89"
		     "ccollections\nOrderedDict\n)R");
	if (!storage)
		view_addf(v, "ctorch\n%s\n", t->dtype_name);
	view_add(v, "tR", 2);
}
