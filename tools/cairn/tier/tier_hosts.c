/* SPDX-License-Identifier: MIT
 *
 * Several hosts of one store that send to one tier (docs/SCALE.md). A file's number (KEY_INO)
 * begins with that of the host that made it. Whoever is silent, or has ended, or sends elsewhere,
 * does not count: its files are sent by others.
 */
#include "tier_hosts.h"

#include "io/keys.h"
#include "io/tier.h"
#include "staging/ids.h"
#include "tier.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct reading {
	struct tier_hosts *out;
	int cairn;
	int64_t now;
	const char *own, *tier;
	int err;
};

/* Does its follower run, and send there? */
static bool sends_to(int cairn, const char *host, const char *tier)
{
	CLEANUP_FREE char *text = NULL, *place = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	char path[128];
	size_t len;

	snprintf(path, sizeof(path), "%s/" TIER_DIR "/status.json", host);
	if (read_small_file(cairn, path, STATUS_MAX, &text, &len) || json_parse(text, len, &d))
		return false;
	place = json_bytes(d, json_at(d, 0, "tier"));
	return place && !strcmp(place, tier) && json_bool(d, json_at(d, 0, "running"));
}

static void take(void *ctx, const struct io_host *h)
{
	struct reading *r = ctx;
	bool own = !strcmp(h->name, r->own);
	bool heard = h->said == IO_HOST_ALIVE && r->now - h->heard < IO_HOST_SILENT_S;
	struct tier_host *v;

	if (!h->number)
		return;
	v = reallocarray(r->out->v, r->out->n + 1, sizeof(*v));
	if (!v) {
		r->err = -ENOMEM;
		return;
	}
	r->out->v = v;
	v += r->out->n++;
	*v = (struct tier_host){.number = h->number,
				.sends = own || (heard && sends_to(r->cairn, h->name, r->tier))};
	memcpy(v->name, h->name, sizeof(v->name));
}

int tier_hosts_read(struct tier_hosts *h, int store, const char *own, const char *tier)
{
	CLEANUP_CLOSE int cairn = openat(store, ".cairn", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct reading r = {.out = h, .cairn = cairn, .own = own, .tier = tier};
	int err = cairn < 0 ? -errno : io_hosts_clock(cairn, &r.now);

	*h = (struct tier_hosts){0};
	if (!err)
		err = io_hosts_each(cairn, true, take, &r);
	for (size_t i = 0; i < h->n; i++)
		if (!strcmp(h->v[i].name, own))
			h->own = &h->v[i];
	return err ? err : r.err;
}

void tier_hosts_free(struct tier_hosts *h)
{
	free(h->v);
	*h = (struct tier_hosts){0};
}

bool tier_hosts_share(const struct tier_hosts *h)
{
	return h->own && h->n > 1;
}

const struct tier_host *tier_hosts_owner(const struct tier_hosts *h, int fd)
{
	char text[256]; /* a mark may follow the number */
	uint64_t bits;

	if (xattr_of_fd(fd, KEY_INO, text, sizeof(text)))
		return NULL;
	bits = strtoull(text, NULL, 10) >> ID_HOST_SHIFT;
	for (size_t i = 0; i < h->n; i++)
		if (h->v[i].sends && staging_host_bits(h->v[i].number) == bits)
			return &h->v[i];
	return NULL;
}

const struct tier_host *tier_hosts_first(const struct tier_hosts *h)
{
	const struct tier_host *first = NULL;

	for (size_t i = 0; i < h->n; i++)
		if (h->v[i].sends && (!first || h->v[i].number < first->number))
			first = &h->v[i];
	return first;
}
