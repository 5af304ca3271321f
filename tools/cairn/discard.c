/* SPDX-License-Identifier: MIT
 *
 * cairn discard: discards versions whose close failed. This is never done automatically: the
 * bytes exist nowhere else.
 */
#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *reason(int err)
{
	switch (err) {
	case -EINVAL: return "its state is not failed: there is nothing to discard";
	case -EBUSY: return "it is open; close it first";
	case -EAGAIN:
		return "the previous version is not in the store yet; `cairn wait` and try again";
	case -EACCES:
	case -EPERM: return "only root and the user who mounted it may";
	default: return strerror(-err);
	}
}

static int ask(const struct location *p, uint64_t ino)
{
	CLEANUP_CLOSE int fd = openat(p->root, ".cairn/control", O_WRONLY | O_CLOEXEC);
	char line[40];
	int n = snprintf(line, sizeof(line), "discard %llu", (unsigned long long)ino);

	return fd < 0 || write(fd, line, (size_t)n) < 0 ? -errno : 0;
}

static int discard(const char *path)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	struct stat st;
	int code = location_need(path, true, &p);

	if (code)
		return code;
	int err = fstatat(p.fd, "", &st, AT_EMPTY_PATH) ? -errno
		  : S_ISREG(st.st_mode)			? ask(&p, st.st_ino)
							: -EINVAL;
	bool gone = err == -ENODATA; /* the store has no version: only the name is left */

	if (gone)
		err = unlink(path) ? -errno : 0;
	if (err) {
		complain("%s: %s", path, reason(err));
		return CAIRN_FAILED;
	}
	printf("%s: discarded; %s\n", path,
	       gone ? "there was no previous version, so it is removed"
		    : "the previous version is in force again");
	return CAIRN_OK;
}

int cmd_discard(int argc, char **argv)
{
	int worst = CAIRN_OK;

	if (getopt(argc, argv, "") != -1)
		return complain_option("discard", argv);
	if (optind == argc)
		return complain_usage("discard", "which PATH?");
	for (int i = optind; i < argc; i++) {
		int code = discard(argv[i]);
		worst = code ? code : worst;
	}
	return worst;
}
