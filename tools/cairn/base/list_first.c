/* SPDX-License-Identifier: MIT
 *
 * Many paths in one directory: it is listed before they are opened. The kernel keeps what a listing
 * brings (READDIRPLUS) for a second, so that opening them makes no request each.
 */
#include <fcntl.h>
#include <string.h>

#include "cli.h"
#include "io/entries.h"

#define LIST_MIN 256 /* paths; fewer are looked up in some milliseconds */
#define LIST_MAX 20000 /* listed and opened in less than a second */
/* the kernel asks for the attributes of further names while those of the last ones are used */
#define USED_EVERY 16
#define NAME_BYTES 256 /* the most that a name takes in a directory */

/* Whether the directory has few other names. */
static bool is_most_of(const struct stat *dir, int n)
{
	return dir->st_nlink <= 2 + 2 * (nlink_t)n && dir->st_size <= 65536 + (off_t)n * NAME_BYTES;
}

static void list(const char *path, size_t len, int n)
{
	CLEANUP_FREE char *name = len ? strndup(path, len) : strdup("/");
	CLEANUP_CLOSE int fd = name ? open(name, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	CLEANUP_DIR DIR *d = NULL;
	struct dirent *e;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || !is_most_of(&st, n))
		return;
	d = entries_at(fd, ".");
	for (int i = 0; i < 2 * n && (e = entries_next(d)); i++)
		if (i % USED_EVERY == 0)
			fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW);
}

int list_first(char **paths, int n)
{
	const char *slash = strrchr(paths[0], '/');
	size_t len = slash ? (size_t)(slash - paths[0]) : 0;
	int same = 1;

	while (slash && same < n && !strncmp(paths[same], paths[0], len + 1) &&
	       !strchr(paths[same] + len + 1, '/'))
		same++;
	if (same >= LIST_MIN && same <= LIST_MAX)
		list(paths[0], len, same);
	return same;
}
