/* SPDX-License-Identifier: MIT
 *
 * STORE/.cairn/<host>/staged-in: the places whose staging may have what this host has not
 * published, a line "BOOT LOG PATH" each. A start writes its own, an end that leaves nothing there
 * removes it. A start with another place finds the others by it; one that finds no such log at the
 * path knows that it is gone. Not synced: a power cut takes what is staged, too.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "inside.h"
#include "io/full.h"
#include "io/scope.h"

#define FILE_NAME "staged-in"
#define PATH_AT (8 + 1 + 16 + 1) /* in a line */
#define TEXT_MAX (IO_STAGED_IN * (PATH_AT + sizeof(((struct io_place *)0)->path) + 1))

static int open_it(int host, int flags)
{
	return io_open_beneath(host, FILE_NAME, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
}

/* That of `name`, which a read-only store does not have open. Descriptor or -errno. */
static int open_host(const struct io_store *s, const char *name)
{
	char host[72];

	if (s->host >= 0)
		return openat(s->host, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	io_store_host_name(name, host);
	return s->cairn < 0 ? -ENOENT
			    : io_open_beneath(s->cairn, host, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
}

/* A line that no version wrote whole is left out. */
static void take_line(struct io_staged_in *in, const char *line)
{
	struct io_place *p = &in->v[in->n];
	int at = 0;

	if (in->n < IO_STAGED_IN &&
	    sscanf(line, "%8[0-9a-f] %16" SCNx64 "%n", p->boot, &p->log, &at) == 2 &&
	    at == PATH_AT - 1 && line[at] == ' ' && line[PATH_AT] == '/' &&
	    (size_t)snprintf(p->path, sizeof(p->path), "%s", line + PATH_AT) < sizeof(p->path))
		in->n++;
}

int io_staged_in_read(const struct io_store *s, const char *host, struct io_staged_in *out)
{
	CLEANUP_CLOSE int dir = open_host(s, host), fd = dir < 0 ? dir : open_it(dir, O_RDONLY);
	char text[TEXT_MAX + 1];
	ssize_t n = fd < 0 ? fd : full_pread(fd, text, TEXT_MAX, 0);

	out->n = 0;
	if (n < 0)
		return n == -ENOENT ? 0 : (int)n;
	text[n] = 0;
	for (char *save = NULL, *line = strtok_r(text, "\n", &save); line;
	     line = strtok_r(NULL, "\n", &save))
		take_line(out, line);
	return 0;
}

int io_staged_in_write(struct io_store *s, const struct io_staged_in *in)
{
	char text[TEXT_MAX + 1] = "";
	size_t n = 0;

	for (unsigned i = 0; i < in->n; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%.8s %016" PRIx64 " %s\n",
				      in->v[i].boot, in->v[i].log, in->v[i].path);
	CLEANUP_CLOSE int fd = s->host < 0 ? -EROFS : open_it(s->host, O_WRONLY | O_CREAT);
	if (fd < 0)
		return fd;
	int err = full_pwrite(fd, text, n, 0);
	return err ? err : ftruncate(fd, (off_t)n) ? -errno : 0;
}

int io_staged_in_has(struct io_store *s, const char *path, uint64_t log)
{
	struct io_staged_in in;
	int err = s->host < 0 ? 0 : io_staged_in_read(s, NULL, &in);

	if (err || s->host < 0)
		return err;
	for (unsigned i = 0; i < in.n; i++)
		if (!in.v[i].log && !strcmp(in.v[i].path, path)) {
			in.v[i].log = log;
			return io_staged_in_write(s, &in);
		}
	return 0;
}

int io_staged_in_drop(struct io_store *s, uint64_t log)
{
	struct io_staged_in was, now = {.n = 0};
	int err = s->host < 0 ? 0 : io_staged_in_read(s, NULL, &was);

	if (err || s->host < 0)
		return err;
	for (unsigned i = 0; i < was.n; i++)
		if (was.v[i].log != log)
			now.v[now.n++] = was.v[i];
	return now.n < was.n ? io_staged_in_write(s, &now) : 0;
}
