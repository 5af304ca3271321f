/* SPDX-License-Identifier: MIT
 *
 * log_full DIR: changes until the log is longer than it may be, behind a file that is closed and
 * stays mapped. All of them must go on, and the mapping's last bytes must not be lost. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define VALUE 3000
#define RECORDS 48000		/* 150 MB; changes wait from 128 MiB on */

static void need(int ok, const char *what)
{
	if (ok)
		return;
	printf("FAIL: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void save(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
	need(fd >= 0, "create");
	need(write(fd, "x", 1) == 1, "write");
	need(!close(fd), "close");
}

int main(int argc, char **argv)
{
	static char value[VALUE];

	need(argc == 2 && !chdir(argv[1]), "chdir");
	int fd = open("mapped", O_RDWR | O_CREAT, 0644);
	need(fd >= 0 && !ftruncate(fd, 4096), "mapped");
	char *m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	need(m != MAP_FAILED, "mmap");
	memcpy(m, "first", 5);
	close(fd);
	save("changed");
	for (int i = 0; i < RECORDS; i++) {
		memcpy(value, &i, sizeof(i));
		need(!setxattr("changed", "user.k", value, sizeof(value), 0), "setxattr");
	}
	save("new");
	need(!mkdir("dir", 0755) && !rename("new", "dir/new") && !unlink("dir/new"), "names");
	memcpy(m + 5, "last", 4);
	munmap(m, 4096);
	return 0;
}
