// SPDX-License-Identifier: MIT
/* godown DIR: the power cut. The filesystem that DIR is on stops at once, without
 * flushing its journal; only what is on stable storage is there at the next mount.
 * ext4 and xfs share the request's number and the flag's value.
 * What this can't show: a drive that loses its write cache (the image keeps every
 * block it was sent, flushed or not). */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FS_IOC_GOINGDOWN _IOR('X', 125, uint32_t)
#define GOING_NOLOGFLUSH 2u

int main(int argc, char **argv)
{
	uint32_t how = GOING_NOLOGFLUSH;
	struct stat root, st;

	if (argc != 2) {
		fprintf(stderr, "usage: godown DIR\n");
		return 2;
	}
	int fd = open(argv[1], O_RDONLY | O_DIRECTORY);

	if (fd < 0 || fstat(fd, &st) || stat("/", &root)) {
		fprintf(stderr, "godown: %s: %s\n", argv[1], strerror(errno));
		return 2;
	}
	if (st.st_dev == root.st_dev) {
		fprintf(stderr, "godown: %s is on the root filesystem; refused\n", argv[1]);
		return 2;
	}
	if (ioctl(fd, FS_IOC_GOINGDOWN, &how)) {
		fprintf(stderr, "godown: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	return 0;
}
