/* SPDX-License-Identifier: MIT
 * Files larger than memory, written by the kernel alone.
 *
 *	outgrow WAY PATH MIB SEED MOUNT
 *
 * writes PATH in the given WAY, never further ahead than AHEAD_MIB of what the daemon has made
 * space for, and reads it back:
 *	append	from the beginning to the end; others may write it meanwhile, none may read it
 *	fsync	the same, with an fsync before the last MiB
 *	patch	records of 2 MiB whose head is written again after each, as zip does
 *	cut	all of it, then cut in the middle of a page, and written on from there
 *	sparse	every other 4 MiB
 *	sized	made as long as it will be, then written from the beginning to the end
 *	alloc	the same by fallocate
 *	parts	made as long, then four parts of it written in turn
 *	again	all of it, then some bytes of the beginning: the close says EIO
 *	hold	all of it, then waits for the end of standard input, not closed
 *	check	only reads
 */
#include <stdlib.h>

#include "check.h"

#define PIECE (4 * MIB)
#define AHEAD_MIB 48

static long seed, budget;
static bool paced;	/* in the relay lane the daemon does it */
static const char *mnt;

static const char *status(void)
{
	static char text[65536];
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/.cairn/status.json", mnt);
	int fd = OK(open(path, O_RDONLY));
	long n = OK(read(fd, text, sizeof(text) - 1));
	OK(close(fd));
	text[n] = 0;
	return text;
}

static long status_number(const char *key)
{
	const char *at = strstr(status(), key);
	if (!at)
		FAIL("no %s in status.json", key);
	return atol(at + strlen(key));
}

/* As a disk would hold a writer up, so that no timing decides how far he is ahead. */
static void pace(int fd)
{
	for (int i = 0; paced && status_number("\"used_bytes\": ") > budget + AHEAD_MIB * MIB; i++) {
		if (i == 12000 * slow())
			FAIL("staging stays over its budget, after %ld bytes: %s", (long)lseek(fd, 0, SEEK_END), status());
		usleep(5000);
	}
}

static void fill_words(char *buf, long off, long len)
{
	for (long i = 0; i < len; i += 8) {
		unsigned long v = (unsigned long)(off + i) * 0x9e3779b97f4a7c15ul + (unsigned long)seed;
		memcpy(buf + i, &v, 8);
	}
}

static char buf[PIECE], want[PIECE];

static void put_words(int fd, long off, long end)
{
	for (long n; off < end; off += n) {
		n = end - off < PIECE ? end - off : PIECE;
		fill_words(buf, off, n);
		if (OK(pwrite(fd, buf, (size_t)n, off)) != n)
			FAIL("short write at %ld", off);
		pace(fd);
	}
}

static void same_words(const char *path, long size, bool sparse)
{
	int fd = OK(open(path, O_RDONLY));
	struct stat st;
	OK(fstat(fd, &st));
	if (st.st_size != size)
		FAIL("%s has %ld bytes, want %ld", path, (long)st.st_size, size);
	for (long off = 0, n; off < size; off += n) {
		n = size - off < PIECE ? size - off : PIECE;
		fill_words(want, off, n);
		if (sparse && off / PIECE % 2)
			memset(want, 0, (size_t)n);
		if (OK(pread(fd, buf, (size_t)n, off)) != n || memcmp(buf, want, (size_t)n))
			FAIL("%s differs at %ld", path, off);
	}
	OK(close(fd));
}

static void others_wait(const char *path)
{
	int fd = open(path, O_RDONLY);
	if (fd >= 0 || errno != EBUSY)
		FAIL("a reader of what is in two places: %s", fd < 0 ? strerror(errno) : "let in");
	if (open(path, O_RDWR) >= 0 || errno != EBUSY)
		FAIL("O_RDWR: %s", strerror(errno));
	OK(close(OK(open(path, O_WRONLY))));
}

int main(int argc, char **argv)
{
	if (argc != 6) {
		fprintf(stderr, "outgrow: see the head of outgrow.c\n");
		return 2;
	}
	const char *way = argv[1], *path = argv[2];
	long size = atol(argv[3]) * MIB, cut = size / 2 + 12345 / 8 * 8;
	bool sparse = !strcmp(way, "sparse");
	char c;

	env.name = way;
	seed = atol(argv[4]);
	mnt = argv[5];
	if (!strcmp(way, "check")) {
		same_words(path, size, false);
		return 0;
	}
	paced = strstr(status(), "\"passthrough\": true");
	budget = status_number("\"budget_bytes\": ");
	paced &= strcmp(way, "parts") != 0;	/* only the first of them can make space */
	long moved = status_number("\"outgrown\": {\"files\": ");
	int fd = OK(open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644));
	if (!strcmp(way, "sized") || !strcmp(way, "parts"))
		OK(ftruncate(fd, size));
	if (!strcmp(way, "alloc"))
		OK(fallocate(fd, 0, 0, size));
	for (long off = 0; !strcmp(way, "parts") && off < size / 4; off += 1000 * 1000)
		for (long part = 0; part < 4; part++, usleep(2000))
			put_words(fd, part * (size / 4) + off, part * (size / 4) + (off + 1000 * 1000 < size / 4 ?
				  off + 1000 * 1000 : size / 4));
	for (long off = 0; sparse && off < size; off += 2 * PIECE)
		put_words(fd, off, off + PIECE);
	for (long off = 0; !strcmp(way, "patch") && off < size; off += 2 * MIB) {
		fill_words(buf, off, 2 * MIB);
		memset(buf, 0, 64);
		OK(pwrite(fd, buf, 2 * MIB, off));
		fill_words(buf, off, 64);
		OK(pwrite(fd, buf, 64, off));
		pace(fd);
	}
	if (!sparse && strcmp(way, "patch") && strcmp(way, "parts"))
		put_words(fd, 0, strcmp(way, "fsync") ? size : size - MIB);
	if (sparse)
		OK(ftruncate(fd, size));
	bool out = status_number("\"outgrown\": {\"files\": ") > moved;
	if (out)
		others_wait(path);
	if (!strcmp(way, "fsync")) {
		OK(fsync(fd));
		put_words(fd, size - MIB, size);
	} else if (!strcmp(way, "cut")) {
		OK(ftruncate(fd, cut));
		put_words(fd, cut, size);
	} else if (!strcmp(way, "again")) {
		OK(pwrite(fd, "other bytes", 11, 1000));
		if (out && (fsync(fd) == 0 || errno != EIO))
			FAIL("fsync of what was written again where it had moved");
		int rc = close(fd);
		if (out && (rc == 0 || errno != EIO))
			FAIL("close: %s", rc ? strerror(errno) : "success");
		if (out && (open(path, O_RDONLY) >= 0 || errno != EIO))
			FAIL("read after that: %s", strerror(errno));
		OK(unlink(path));
		return 0;
	} else if (!strcmp(way, "hold")) {
		puts("written");
		fflush(stdout);
		while (read(0, &c, 1) > 0)
			;
	}
	OK(close(fd));
	same_words(path, size, sparse);
	return 0;
}
