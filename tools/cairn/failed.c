/* SPDX-License-Identifier: MIT
 * Which files of a mount are failed: those that .cairn/files.json has as such. The last error of
 * status.json may be that of a file that was written again since.
 */
#include "failed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/cairn/base/json.h"

#define FILES_MAX (16u << 20) /* of files.json */
#define NAMED 3

static bool is_failed(const struct json_doc *d, int file)
{
	CLEANUP_FREE char *waits_for = json_bytes(d, json_at(d, file, "waits_for"));

	return waits_for && !strcmp(waits_for, "retry");
}

/* Why path, below the mount's root, failed. NULL: it is not, any more. */
static char *reason_of(const struct location *p, const char *path)
{
	char why[1024];
	CLEANUP_CLOSE int fd = openat(p->root, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || xattr_of_fd(fd, KEY_ERROR, why, sizeof(why)))
		return NULL;
	return strdup(why);
}

static void write_one(const struct location *p, const char *path, FILE *f, unsigned n, char **why)
{
	CLEANUP_FREE char *reason = reason_of(p, path);

	fprintf(f, "%s%s: %s", n ? "; " : "", path, reason ? reason : "?");
	if (!n) {
		*why = reason;
		reason = NULL;
	}
}

char *failed_files(const struct location *p, char **why)
{
	CLEANUP_FREE char *raw = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	char *out = NULL;
	size_t len;
	unsigned n = 0;

	*why = NULL;
	if (read_small_file(p->root, ".cairn/files.json", FILES_MAX, &raw, &len) ||
	    json_parse(raw, len, &d))
		return NULL;
	FILE *f = open_memstream(&out, &len);
	int list = json_at(d, 0, "files");
	for (int i = 0; f && i < json_count(d, list); i++) {
		int file = json_item(d, list, i);
		CLEANUP_FREE char *path =
			is_failed(d, file) ? json_bytes(d, json_at(d, file, "path")) : NULL;
		if (path && n < NAMED)
			write_one(p, path, f, n, why);
		n += path != NULL;
	}
	if (f && n > NAMED)
		fprintf(f, "; and %u more", n - NAMED);
	if (f)
		fclose(f);
	if (!n) {
		free(out);
		out = NULL;
	}
	return out;
}
