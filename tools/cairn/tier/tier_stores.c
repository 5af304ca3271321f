/* SPDX-License-Identifier: MIT
 *
 * Which stores write to a tier: PLACE/.cairn/stores/<id of the store>, with host and path. Two that
 * write to one tier replace each other's checkpoints of equal paths. That is told, and nothing is
 * refused for it: an empty store that goes on with the tier of a dead node is another one, too.
 */
#include "tier_push.h"

#include <fcntl.h>
#include <string.h>
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

struct search {
	const struct tier *t;
	char own[ID_LEN + 1];
	unsigned n; /* marks that were read */
	char *out;
	size_t room;
};

/* Of another store, of late: it is in out. */
static int look_at(void *ctx, const char *id)
{
	CLEANUP_FREE char *text = NULL, *host = NULL, *path = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	char name[sizeof(STORES) + 1 + ID_LEN];
	struct search *s = ctx;
	uint64_t time_s;
	size_t len;

	if (!is_mark(id) || !strcmp(id, s->own) || *s->out || s->n++ >= MARKS_MAX)
		return 0;
	snprintf(name, sizeof(name), STORES "/%s", id);
	if (tier_read_small(s->t, name, MARK_MAX, &text, &len) || json_parse(text, len, &d) ||
	    !json_is_u64(d, json_at(d, 0, "time_s"), &time_s) ||
	    time_s + OLD_S < (uint64_t)time(NULL))
		return 0;
	host = json_bytes(d, json_at(d, 0, "host"));
	path = json_bytes(d, json_at(d, 0, "path"));
	if (host && path)
		snprintf(s->out, s->room, "store %s (%.64s:%.150s)", id, host, path);
	return 0;
}

static void look_at_files(const struct tier *t, struct search *s)
{
	CLEANUP_CLOSE int fd = tier_open_at(t, STORES, O_RDONLY | O_DIRECTORY);
	struct names names = {0};

	if (fd < 0 || names_read(fd, &names))
		return;
	for (size_t i = 0; i < names.n; i++)
		look_at(s, names.v[i]);
	names_free(&names);
}

void stores_other(const struct tier *t, int store, char *out, size_t room)
{
	struct search s = {.t = t, .out = out, .room = room};

	read_id(store, s.own);
	*out = '\0';
	if (!t->s3)
		look_at_files(t, &s);
	else if (tier_s3_keys(t->s3, STORES "/", look_at, &s))
		return; /* it is not known then */
}
