/* SPDX-License-Identifier: MIT
 *
 * STORE/.cairn/<host>/tier/damaged-<hash of the path>: JSON with path, version (of the manifest),
 * why, time_s.
 */
#include "tier_damaged.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define NAME_ROOM 64u
#define NOTE_MAX 65536u

static void name_of(const char *path, char out[NAME_ROOM])
{
	char sum[IO_CHECKSUM_LEN] = "";
	struct io_sum *m = io_sum_new();

	if (m) {
		io_sum_add(m, path, strlen(path));
		io_sum_text(m, sum);
	}
	io_sum_free(m);
	snprintf(out, NAME_ROOM, "damaged-%s", *sum ? sum + strlen("xxh3:") : "");
}

int damaged_note(const struct follow *f, const struct manifest *m, const char *why)
{
	CLEANUP_FREE char *text = NULL;
	char name[NAME_ROOM];
	struct json_out j;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	if (!out)
		return -ENOMEM;
	json_begin(&j, out);
	json_open(&j, NULL, '{');
	json_put_path(&j, "path", m->path);
	json_put_u64(&j, "version", manifest_version(m));
	json_put_path(&j, "why", why);
	json_put_u64(&j, "time_s", (uint64_t)time(NULL));
	json_close(&j, '}');
	fputc('\n', out);
	if (fclose(out))
		return -ENOMEM;
	name_of(m->path, name);
	return follow_write_own(f, name, text, len, true);
}

void damaged_forget(const struct follow *f, const char *path)
{
	char name[NAME_ROOM];

	name_of(path, name);
	unlinkat(f->own, name, 0);
}

bool damaged_is_noted(const struct follow *f, const struct manifest *m)
{
	CLEANUP_FREE char *text = NULL, *path = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	char name[NAME_ROOM];
	uint64_t version;
	size_t len;

	name_of(m->path, name);
	if (f->own < 0 || read_small_file(f->own, name, NOTE_MAX, &text, &len) ||
	    json_parse(text, len, &d) || !json_is_u64(d, json_at(d, 0, "version"), &version))
		return false;
	path = json_get_path(d, 0);
	if (path && !strcmp(path, m->path) && version == manifest_version(m))
		return true;
	unlinkat(f->own, name, 0);
	return false;
}
