/* SPDX-License-Identifier: MIT
 * careless FILE BYTES SEED: writes a file as many programs do, which look at what write(2) says and
 * not at what close(2) says. Exit code: the errno of open or write, 0 when both succeeded. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	static unsigned char buf[1 << 20];

	if (argc != 4)
		return 2;
	memset(buf, atoi(argv[3]), sizeof(buf));
	long left = atol(argv[2]);
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (fd < 0) {
		printf("open: %s\n", strerror(errno));
		return errno;
	}
	while (left > 0) {
		ssize_t n = write(fd, buf, left < (long)sizeof(buf) ? (size_t)left : sizeof(buf));
		if (n < 0) {
			printf("write: %s, %ld bytes left\n", strerror(errno), left);
			return errno;	/* exit(2) closes it */
		}
		left -= n;
	}
	close(fd);
	return 0;
}
