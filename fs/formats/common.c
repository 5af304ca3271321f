/* SPDX-License-Identifier: MIT
 *
 * Errors, sources, dtypes, UTF-8 and the arena.
 */
#include "fs/formats/inside.h"
#include "io/full.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- errors ----------------------------------------------------------------------- */

void fmt_say(struct fmt_error *e, uint64_t at, const char *fmt, ...)
{
	char line[sizeof(e->text)];
	size_t n = 0;
	va_list ap;

	if (!e)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	e->at = at;
	for (const unsigned char *c = (const unsigned char *)line; *c && n + 5 < sizeof(e->text);
	     c++) {
		if (*c >= 0x20 && *c != 0x7f)
			e->text[n++] = (char)*c;
		else
			n += (size_t)snprintf(e->text + n, 5, "\\x%02x", *c);
	}
	e->text[n] = '\0';
}

/* ---- sources ---------------------------------------------------------------------- */

int fmt_read(const struct fmt_source *s, uint64_t off, void *buf, size_t len)
{
	if (off > s->size || len > s->size - off)
		return -EBADMSG;
	return len ? s->read(s->ctx, s->base + off, buf, len) : 0;
}

struct fmt_source fmt_part(const struct fmt_source *s, uint64_t off, uint64_t size)
{
	struct fmt_source part = *s;

	if (off > s->size)
		off = s->size;
	part.base += off;
	part.size = size < s->size - off ? size : s->size - off;
	return part;
}

static int file_read(void *ctx, uint64_t off, void *buf, size_t len)
{
	ssize_t n = full_pread((int)(intptr_t)ctx, buf, len, off);

	return n < 0 ? (int)n : (size_t)n < len ? -EIO : 0; /* it was truncated */
}

int fmt_file(int fd, struct fmt_source *out)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return fd < 0 ? fd : -errno;
	*out = (struct fmt_source){
		.size = (uint64_t)st.st_size, .read = file_read, .ctx = (void *)(intptr_t)fd};
	return S_ISREG(st.st_mode) ? 0 : -EINVAL;
}

int fmt_file_own(int fd, struct fmt_source *out)
{
	int err = fmt_file(fd, out);

	if (err && fd >= 0)
		close(fd);
	return err;
}

void fmt_file_close(void *ctx, struct fmt_source *s)
{
	(void)ctx;
	close((int)(intptr_t)s->ctx);
}

static int memory_read(void *ctx, uint64_t off, void *buf, size_t len)
{
	memcpy(buf, (const char *)ctx + off, len);
	return 0;
}

struct fmt_source fmt_memory(const void *bytes, size_t len)
{
	return (struct fmt_source){.size = len, .read = memory_read, .ctx = (void *)bytes};
}

/* ---- dtypes ----------------------------------------------------------------------- */

static const struct fmt_dtype dtypes[] = {
	{"float32", "F32", "FloatStorage", 32},
	{"bfloat16", "BF16", "BFloat16Storage", 16},
	{"float16", "F16", "HalfStorage", 16},
	{"float64", "F64", "DoubleStorage", 64},
	{"int64", "I64", "LongStorage", 64},
	{"int32", "I32", "IntStorage", 32},
	{"int16", "I16", "ShortStorage", 16},
	{"int8", "I8", "CharStorage", 8},
	{"uint8", "U8", "ByteStorage", 8},
	{"uint16", "U16", NULL, 16},
	{"uint32", "U32", NULL, 32},
	{"uint64", "U64", NULL, 64},
	{"bool", "BOOL", "BoolStorage", 8},
	{"complex64", "C64", "ComplexFloatStorage", 64},
	{"complex128", NULL, "ComplexDoubleStorage", 128},
	{"complex32", NULL, NULL, 32},
	{"float8_e4m3fn", "F8_E4M3", NULL, 8},
	{"float8_e5m2", "F8_E5M2", NULL, 8},
	{"float8_e4m3fnuz", "F8_E4M3FNUZ", NULL, 8},
	{"float8_e5m2fnuz", "F8_E5M2FNUZ", NULL, 8},
	{"float8_e8m0fnu", "F8_E8M0", NULL, 8},
	{"float4_e2m1fn_x2", NULL, NULL, 8}, /* two values in one element */
	/* dtypes of safetensors for which PyTorch has no name */
	{"float4_e2m1", "F4", NULL, 4},
	{"float6_e2m3", "F6_E2M3", NULL, 6},
	{"float6_e3m2", "F6_E3M2", NULL, 6},
};

#define N_DTYPES (sizeof(dtypes) / sizeof(dtypes[0]))

static bool is(const char *have, const char *name, size_t len)
{
	return have && strlen(have) == len && !memcmp(have, name, len);
}

const struct fmt_dtype *fmt_dtype_torch(const char *name, size_t len)
{
	for (size_t i = 0; i < N_DTYPES; i++)
		if (is(dtypes[i].name, name, len))
			return &dtypes[i];
	return NULL;
}

const struct fmt_dtype *fmt_dtype_safetensors(const char *name, size_t len)
{
	for (size_t i = 0; i < N_DTYPES; i++)
		if (is(dtypes[i].safetensors, name, len))
			return &dtypes[i];
	return NULL;
}

const struct fmt_dtype *fmt_dtype_storage(const char *name, size_t len)
{
	for (size_t i = 0; i < N_DTYPES; i++)
		if (is(dtypes[i].storage, name, len))
			return &dtypes[i];
	return NULL;
}

bool fmt_volume(const uint64_t *size, unsigned n, uint64_t *out)
{
	uint64_t v = 1;
	bool fits = true;

	for (unsigned i = 0; i < n; i++) {
		if (!size[i]) {
			*out = 0;
			return true;
		}
		fits = fits && !__builtin_mul_overflow(v, size[i], &v);
	}
	*out = v;
	return fits;
}

bool fmt_bytes(const struct fmt_dtype *t, uint64_t elements, uint64_t *out)
{
	uint64_t bits;

	if (__builtin_mul_overflow(elements, (uint64_t)t->bits, &bits)) {
		if (t->bits % 8 || __builtin_mul_overflow(elements, (uint64_t)(t->bits / 8), out))
			return false;
		return true;
	}
	*out = bits / 8;
	return bits % 8 == 0;
}

/* ---- text ------------------------------------------------------------------------- */

size_t fmt_utf8(const char *text, size_t n)
{
	const unsigned char *s = (const unsigned char *)text;
	unsigned char c = s[0];
	unsigned char lo = 0x80, hi = 0xbf; /* bounds of the second byte */
	size_t len;

	if (c < 0x80)
		return 1;
	if (c >= 0xc2 && c <= 0xdf) {
		len = 2;
	} else if (c >= 0xe0 && c <= 0xef) {
		len = 3;
		lo = c == 0xe0 ? 0xa0 : 0x80; /* overlong */
		hi = c == 0xed ? 0x9f : 0xbf; /* surrogates */
	} else if (c >= 0xf0 && c <= 0xf4) {
		len = 4;
		lo = c == 0xf0 ? 0x90 : 0x80;
		hi = c == 0xf4 ? 0x8f : 0xbf; /* beyond U+10FFFF */
	} else {
		return 0;
	}
	if (n < len || s[1] < lo || s[1] > hi)
		return 0;
	for (size_t i = 2; i < len; i++)
		if (s[i] < 0x80 || s[i] > 0xbf)
			return 0;
	return len;
}

bool fmt_is_utf8(const char *text, size_t n)
{
	for (size_t len; n; text += len, n -= len) {
		len = fmt_utf8(text, n);
		if (!len)
			return false;
	}
	return true;
}

/* ---- arena ------------------------------------------------------------------------ */

#define BLOCK_MIN 4096u
#define BLOCK_MAX (8u << 20)
/* Blocks from this size on are multiples of it, and in huge pages where available: page faults of
 * small pages took a quarter of the time of large metadata. */
#define HUGE_PAGE (2u << 20)

struct arena_block {
	struct arena_block *next;
	size_t size;
	_Alignas(16) unsigned char bytes[];
};

void arena_init(struct arena *a, uint64_t limit)
{
	*a = (struct arena){.limit = limit};
}

void arena_free(struct arena *a)
{
	while (a->block) {
		struct arena_block *next = a->block->next;

		if (a->block->size < HUGE_PAGE - sizeof(*a->block))
			free(a->block);
		else
			munmap(a->block, sizeof(*a->block) + a->block->size);
		a->block = next;
	}
	a->next = NULL;
	a->left = 0;
}

/* *size: the block's; may be rounded up. NULL: no memory. */
static struct arena_block *get_block(size_t *size)
{
	void *b;

	if (*size < HUGE_PAGE)
		return calloc(1, *size);
	*size = (*size + HUGE_PAGE - 1) & ~((size_t)HUGE_PAGE - 1);
	b = mmap(NULL, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED)
		return NULL;
	madvise(b, *size, MADV_HUGEPAGE);
	return b;
}

static int add_block(struct arena *a, size_t need)
{
	size_t size = a->block ? (sizeof(*a->block) + a->block->size) * 2 : BLOCK_MIN;
	struct arena_block *b;

	if (size > BLOCK_MAX)
		size = BLOCK_MAX;
	if (size < need + sizeof(*b))
		size = need + sizeof(*b);
	b = get_block(&size);
	if (!b)
		return -ENOMEM;
	size -= sizeof(*b);
	b->size = a->left = size;
	b->next = a->block;
	a->block = b;
	a->next = b->bytes;
	return 0;
}

void *arena_get_more(struct arena *a, size_t size)
{
	size_t need = (size + 7) & ~(size_t)7;

	if (need < size || need > a->limit || a->used > a->limit - need) {
		a->err = -E2BIG;
		return NULL;
	}
	if (a->left < need && add_block(a, need)) {
		a->err = -ENOMEM;
		return NULL;
	}
	return arena_get(a, size);
}

void *arena_array(struct arena *a, size_t n, size_t size)
{
	size_t bytes;

	if (__builtin_mul_overflow(n, size, &bytes)) {
		a->err = -E2BIG;
		return NULL;
	}
	return arena_get(a, bytes);
}

char *arena_string(struct arena *a, const char *p, size_t n)
{
	char *s = arena_get(a, n + 1);

	if (s)
		memcpy(s, p, n);
	return s;
}
