/* SPDX-License-Identifier: MIT
 *
 * Which stores write to a tier: PLACE/.cairn/stores/<id of the store>, with host and path. Two that
 * write to one tier replace each other's checkpoints of equal paths. That is told, and nothing is
 * refused for it: an empty store that goes on with the tier of a dead node is another one, too.
 */
#include "tier_push.h"

#include "tools/tier/wire.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define STORES ".cairn/stores"
#define ID_LEN 32u
#define OLD_S (7 * 86400) /* since it was written last: nobody writes by it any more */
#define MARK_MAX 16384u
#define MARKS_MAX 64u /* that are read */

/* "" : it is no store. */
static void read_id(int store, char out[ID_LEN + 1])
{
	CLEANUP_FREE char *text = NULL;
	size_t len = 0;

	*out = '\0';
	if (!read_small_file(store, ".cairn/id", 64, &text, &len) &&
	    strspn(text, "0123456789abcdef") == ID_LEN)
		snprintf(out, ID_LEN + 1, "%s", text);
}

void stores_mark(struct tier *t, int store, const char *path, const char *host)
{
	CLEANUP_FREE char *text = NULL;
	char id[ID_LEN + 1], name[sizeof(STORES) + 1 + ID_LEN], machine[65] = "";
	struct json_out j;
	size_t len;
	FILE *out;

	read_id(store, id);
	out = *id ? open_memstream(&text, &len) : NULL;
	if (!out)
		return;
	if (!host && gethostname(machine, sizeof(machine) - 1))
		machine[0] = '\0';
	json_begin(&j, out);
	json_open(&j, NULL, '{');
	json_put_path(&j, "host", host ? host : machine);
	json_put_path(&j, "path", path);
	json_put_u64(&j, "time_s", (uint64_t)time(NULL));
	json_close(&j, '}');
	fputc('\n', out);
	snprintf(name, sizeof(name), STORES "/%s", id);
	if (!fclose(out))
		(void)tier_put(t, name, text, len); /* a push that cannot write says so itself */
}

static bool is_mark(const char *name)
{
	return strlen(name) == ID_LEN && strspn(name, "0123456789abcdef") == ID_LEN;
}

static bool read_mark(const struct tier *t, const char *id, char *out, size_t room)
{
	CLEANUP_FREE char *text = NULL, *host = NULL, *path = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	char name[sizeof(STORES) + 1 + ID_LEN];
	uint64_t time_s;
	size_t len;

	snprintf(name, sizeof(name), STORES "/%s", id);
	if (tier_read_small(t, name, MARK_MAX, &text, &len) || json_parse(text, len, &d) ||
	    !json_is_u64(d, json_at(d, 0, "time_s"), &time_s) ||
	    time_s + OLD_S < (uint64_t)time(NULL))
		return false;
	host = json_bytes(d, json_at(d, 0, "host"));
	path = json_bytes(d, json_at(d, 0, "path"));
	if (host && path)
		snprintf(out, room, "store %s (%.64s:%.150s)", id, host, path);
	return host && path;
}

/* Those of the marks; not all if there are many. */
static int list_objects(const struct tier *t, struct names *out)
{
	CLEANUP_CLOSE int fd = memfd_create("keys", MFD_CLOEXEC);
	uint64_t size = 0;
	int err = fd < 0 ? -errno : tier_s3_do(t->s3, S3_LIST, STORES "/", fd, &size, NULL);
	char *keys = err || !size ? NULL : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);

	if (keys == MAP_FAILED)
		return -errno;
	out->v = calloc(MARKS_MAX, sizeof(*out->v));
	for (uint64_t at = 0; out->v && at < size && out->n < MARKS_MAX;
	     at += strlen(keys + at) + 1) {
		const char *id = tier_s3_below(t->s3, keys + at, STORES "/");

		if (id && is_mark(id) && (out->v[out->n] = strdup(id)))
			out->n++;
	}
	if (keys)
		munmap(keys, size);
	return err;
}

static int list_files(const struct tier *t, struct names *out)
{
	CLEANUP_CLOSE int fd = tier_open_at(t, STORES, O_RDONLY | O_DIRECTORY);

	return fd < 0 ? fd : names_read(fd, out);
}

void stores_other(const struct tier *t, int store, char *out, size_t room)
{
	char id[ID_LEN + 1];
	struct names names = {0};
	int err = t->s3 ? list_objects(t, &names) : list_files(t, &names);

	read_id(store, id);
	*out = '\0';
	for (size_t i = 0; !err && !*out && i < names.n && i < MARKS_MAX; i++)
		if (is_mark(names.v[i]) && strcmp(names.v[i], id))
			(void)read_mark(t, names.v[i], out, room);
	names_free(&names);
}
