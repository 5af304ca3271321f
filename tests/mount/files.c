/* SPDX-License-Identifier: MIT
 *
 * Files for the shell cases, made and checked by what their tag says is in them.
 *
 *	files put PATH BYTES TAG [fsync]	exit 28 = ENOSPC, and says from which call
 *	files same PATH BYTES TAG		the file is exactly that
 *	files make DIR N BYTES			f000000 …, the tag is the number
 *	files check DIR N BYTES			they are there, no more and no less
 *	files list DIR N			only the names: each once
 *	files remove DIR N
 *	files hold PATH BYTES TAG		put, but close only when stdin ends
 */
#include <dirent.h>

#include "check.h"

static void name_of(char path[static PATH_MAX], const char *dir, int i)
{
	snprintf(path, PATH_MAX, "%.3000s/f%06d", dir, i);
}

static int said(const char *call, const char *path)
{
	int err = errno;

	printf("%s %s: %s\n", call, path, strerrorname_np(err));
	return err == ENOSPC ? 28 : 1;
}

static int put_or_say(const char *path, size_t len, uint64_t tag, bool with_fsync)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644), rc = 0;
	char *buf = malloc(MIB);

	if (fd == -1)
		return said("open", path);
	for (size_t at = 0; at < len && !rc;) {
		size_t n = len - at < (size_t)MIB ? len - at : (size_t)MIB;
		ssize_t done;

		fill(buf, n, tag, at);
		done = write(fd, buf, n);
		if (done == -1)
			rc = said("write", path);
		else
			at += done;
	}
	free(buf);
	if (!rc && with_fsync && fsync(fd))
		rc = said("fsync", path);
	if (close(fd) && !rc)
		rc = said("close", path);
	return rc;
}

static void hold(const char *path, size_t len, uint64_t tag)
{
	int fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
	char c;

	write_tag(fd, len, tag, 0);
	puts("written");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	OK(close(fd));
}

/* Every name once, and nothing else. */
static void names_are(const char *dir, int n)
{
	char *seen = calloc(n + 1, 1);
	struct dirent *e;
	int count = 0;
	DIR *d = opendir(dir);

	if (!d)
		FAIL("%s: %s", dir, strerror(errno));
	while ((e = readdir(d))) {
		char *end;
		long i;

		if (e->d_name[0] == '.')
			continue;
		i = strtol(e->d_name + 1, &end, 10);
		if (e->d_name[0] != 'f' || *end || i < 0 || i >= n)
			FAIL("%s: unexpected entry %s", dir, e->d_name);
		if (seen[i]++)
			FAIL("%s: %s is listed twice", dir, e->d_name);
		count++;
	}
	if (count != n)
		FAIL("%s: %d entries, want %d", dir, count, n);
	closedir(d);
	free(seen);
}

int main(int argc, char **argv)
{
	const char *verb = argc > 3 ? argv[1] : "", *path = argc > 3 ? argv[2] : "";
	long n = argc > 3 ? atol(argv[3]) : 0, bytes = argc > 4 ? atol(argv[4]) : 0;
	char name[PATH_MAX];

	env.name = verb;
	if (!strcmp(verb, "put") && argc > 4)
		return put_or_say(path, n, bytes, argc > 5);
	if (!strcmp(verb, "same") && argc > 4)
		return same(path, n, bytes), 0;
	if (!strcmp(verb, "hold") && argc > 4)
		return hold(path, n, bytes), 0;
	if (!strcmp(verb, "list"))
		return names_are(path, n), 0;
	if (strcmp(verb, "make") && strcmp(verb, "check") && strcmp(verb, "remove")) {
		fprintf(stderr, "files: see the head of files.c\n");
		return 2;
	}
	if (!strcmp(verb, "check"))
		names_are(path, n);
	for (int i = 0; i < n; i++) {
		name_of(name, path, i);
		if (!strcmp(verb, "make"))
			put(name, bytes, i);
		else if (!strcmp(verb, "check"))
			same(name, bytes, i);
		else
			OK(unlink(name));
	}
	return 0;
}
