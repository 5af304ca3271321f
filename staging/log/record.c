/* SPDX-License-Identifier: MIT
 * Records as bytes: encoding, and decoding of untrusted bytes. */
#include "staging/staging.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define REC_MAGIC 0x4e524943u /* "CIRN" */
#define REC_NAME_MAX 255u

/* A record as encoded in the log; little-endian hosts only (x86-64, arm64):
 * staging never leaves the machine it was made on. */
struct disk_time {
	int64_t sec;
	uint32_t nsec;
} __attribute__((packed));

struct disk_rec {
	uint32_t magic;
	uint32_t total; /* this header and what follows, padded to 8 */
	uint64_t sum; /* XXH3-64 of everything after this field */
	uint64_t seq, unique;
	uint32_t type, flags;
	uint64_t node, node2, dir, dir2, sf, ino, size, fh, mask;
	int64_t backing;
	uint32_t mode, uid, gid, lane;
	struct disk_time atime, mtime, when;
	uint16_t name_len, name2_len;
	uint32_t data_len;
} __attribute__((packed));

static struct disk_time time_out(struct timespec t)
{
	return (struct disk_time){.sec = t.tv_sec, .nsec = (uint32_t)t.tv_nsec};
}

static struct timespec time_in(struct disk_time d)
{
	return (struct timespec){.tv_sec = d.sec, .tv_nsec = (long)(d.nsec % 1000000000u)};
}

static uint64_t sum_of(const struct disk_rec *d, const void *whole)
{
	size_t skip = offsetof(struct disk_rec, seq);
	return XXH3_64bits((const char *)whole + skip, d->total - skip);
}

ssize_t rec_encode(const struct rec *r, void *buf, size_t cap)
{
	size_t n1 = r->name ? strlen(r->name) : 0, n2 = r->name2 ? strlen(r->name2) : 0;
	/* each string keeps its NUL, so that a decoded one can be used in place */
	size_t total = sizeof(struct disk_rec) + n1 + 1 + n2 + 1 + r->data_len;
	size_t padded = (total + 7) & ~(size_t)7;

	if (n1 > REC_NAME_MAX || n2 > REC_NAME_MAX || r->data_len > REC_DATA_MAX || padded > cap)
		return -ENOBUFS;
	struct disk_rec d = {
		.magic = REC_MAGIC,
		.total = (uint32_t)padded,
		.seq = r->seq,
		.unique = r->unique,
		.type = r->type,
		.flags = r->flags,
		.node = r->node,
		.node2 = r->node2,
		.dir = r->dir,
		.dir2 = r->dir2,
		.sf = r->sf,
		.ino = r->ino,
		.size = r->size,
		.fh = r->fh,
		.mask = r->mask,
		.backing = r->backing,
		.mode = r->mode,
		.uid = r->uid,
		.gid = r->gid,
		.lane = r->lane,
		.atime = time_out(r->atime),
		.mtime = time_out(r->mtime),
		.when = time_out(r->when),
		.name_len = (uint16_t)n1,
		.name2_len = (uint16_t)n2,
		.data_len = r->data_len,
	};
	char *p = (char *)buf + sizeof(d);
	memset((char *)buf + padded - 8, 0, 8);
	if (n1)
		memcpy(p, r->name, n1);
	p[n1] = 0;
	p += n1 + 1;
	if (n2)
		memcpy(p, r->name2, n2);
	p[n2] = 0;
	p += n2 + 1;
	if (r->data_len)
		memcpy(p, r->data, r->data_len);
	memcpy(buf, &d, sizeof(d));
	d.sum = sum_of(&d, buf);
	memcpy(buf, &d, sizeof(d));
	return (ssize_t)padded;
}

static bool name_ok(const char *name, size_t len, bool may_be_long)
{
	if (memchr(name, 0, len) || name[len])
		return false;
	return may_be_long || !memchr(name, '/', len);
}

int rec_decode(const void *buf, size_t len, struct rec *out, size_t *used)
{
	struct disk_rec d;

	if (len < sizeof(d))
		return -EAGAIN;
	memcpy(&d, buf, sizeof(d));
	if (d.magic == 0)
		return -EAGAIN;
	if (d.magic != REC_MAGIC || d.total % 8 || d.total < sizeof(d) + 2)
		return -EBADMSG;
	if (d.total > len)
		return -EAGAIN;
	if (d.sum != sum_of(&d, buf))
		return -EBADMSG;
	size_t need = sizeof(d) + (size_t)d.name_len + 1 + d.name2_len + 1 + d.data_len;
	if (d.name_len > REC_NAME_MAX || d.name2_len > REC_NAME_MAX || d.data_len > REC_DATA_MAX ||
	    need > d.total || d.total - need > 7)
		return -EBADMSG;
	const char *n1 = (const char *)buf + sizeof(d), *n2 = n1 + d.name_len + 1;
	if (!name_ok(n1, d.name_len, false) ||
	    !name_ok(n2, d.name2_len, d.type == REC_XATTR || d.type == REC_XATTR_DEL))
		return -EBADMSG;
	if (d.type == 0 || d.type >= REC_SESSION_END ||
	    (d.type >= REC_ORDERED_END && d.type < REC_CREATE))
		return -EBADMSG;
	*out = (struct rec){
		.seq = d.seq,
		.unique = d.unique,
		.type = d.type,
		.flags = d.flags,
		.node = d.node,
		.node2 = d.node2,
		.dir = d.dir,
		.dir2 = d.dir2,
		.sf = d.sf,
		.ino = d.ino,
		.size = d.size,
		.fh = d.fh,
		.mask = d.mask,
		.backing = d.backing,
		.mode = d.mode,
		.uid = d.uid,
		.gid = d.gid,
		.lane = d.lane,
		.atime = time_in(d.atime),
		.mtime = time_in(d.mtime),
		.when = time_in(d.when),
		.name = n1,
		.name2 = n2,
		.data = n2 + d.name2_len + 1,
		.data_len = d.data_len,
	};
	*used = d.total;
	return 0;
}

/* Packed data of a SEAL: entries {u8 kind, u8 key_len, u32 val_len, u64 dir, key, NUL, val}. */
struct packed {
	uint8_t kind, key_len;
	uint32_t val_len;
	uint64_t dir;
} __attribute__((packed));

static size_t packed_size(const char *key, uint32_t val_len)
{
	return sizeof(struct packed) + strlen(key) + 1 + val_len;
}

static char *pack_one(char *p, uint8_t kind, uint64_t dir, const char *key, const void *val,
		      uint32_t len)
{
	struct packed h = {
		.kind = kind, .key_len = (uint8_t)strlen(key), .val_len = len, .dir = dir};
	memcpy(p, &h, sizeof(h));
	p += sizeof(h);
	memcpy(p, key, (size_t)h.key_len + 1);
	p += h.key_len + 1;
	if (len)
		memcpy(p, val, len);
	return p + len;
}

ssize_t rec_pack(const struct rec_name *names, unsigned n_names, const struct rec_pair *pairs,
		 unsigned n_pairs, void **out)
{
	size_t total = 0;
	for (unsigned i = 0; i < n_names; i++)
		total += packed_size(names[i].name, 0);
	for (unsigned i = 0; i < n_pairs; i++)
		total += packed_size(pairs[i].key, pairs[i].len);
	if (total > REC_DATA_MAX)
		return -E2BIG;
	char *buf = malloc(total ? total : 1), *p = buf;
	if (!buf)
		return -ENOMEM;
	for (unsigned i = 0; i < n_names; i++)
		p = pack_one(p, 1, names[i].dir, names[i].name, NULL, 0);
	for (unsigned i = 0; i < n_pairs; i++)
		p = pack_one(p, 2, 0, pairs[i].key, pairs[i].val, pairs[i].len);
	*out = buf;
	return (ssize_t)total;
}

int rec_unpack(const void *data, uint32_t len, uint32_t *pos, struct rec_name *name,
	       struct rec_pair *pair)
{
	struct packed h;
	const char *base = data;

	if (*pos == len)
		return 0;
	if (len - *pos < sizeof(h) || *pos > len)
		return -EBADMSG;
	memcpy(&h, base + *pos, sizeof(h));
	uint32_t left = len - *pos - (uint32_t)sizeof(h);
	if ((uint32_t)h.key_len + 1 > left || h.val_len > left - h.key_len - 1u)
		return -EBADMSG;
	const char *key = base + *pos + sizeof(h);
	if (!h.key_len || !name_ok(key, h.key_len, h.kind == 2))
		return -EBADMSG;
	*pos += (uint32_t)sizeof(h) + h.key_len + 1u + h.val_len;
	if (h.kind == 1) {
		*name = (struct rec_name){.dir = h.dir, .name = key};
		return 1;
	}
	if (h.kind != 2)
		return -EBADMSG;
	*pair = (struct rec_pair){.key = key, .val = key + h.key_len + 1, .len = h.val_len};
	return 2;
}

bool rec_has_one_name(const struct rec *r)
{
	struct rec_name name;
	struct rec_pair pair;
	uint32_t pos = 0;
	unsigned n = 0;
	int kind;

	while ((kind = rec_unpack(r->data, r->data_len, &pos, &name, &pair)) > 0)
		n += kind == 1;
	return n == 1;
}
