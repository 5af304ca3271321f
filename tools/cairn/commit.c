/* SPDX-License-Identifier: MIT
 *
 * cairn commit --force: publishes a checkpoint's .metadata that waits for files of other nodes.
 * This is never done automatically: the checkpoint is incomplete.
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
	case -ENODATA: return "no name in it waits for other nodes; see `cairn status`";
	case -ETIMEDOUT:
		return "the store has not answered yet whether a name in it waits for other nodes; "
		       "see `cairn status`, then try again";
	case -ENOTDIR: return "not a directory";
	case -EACCES:
	case -EPERM: return "only root and the user who mounted it may";
	default: return strerror(-err);
	}
}

static int force(const struct location *p, uint64_t ino)
{
	CLEANUP_CLOSE int fd = openat(p->root, ".cairn/control", O_WRONLY | O_CLOEXEC);
	char line[40];
	int n = snprintf(line, sizeof(line), "force %llu", (unsigned long long)ino);

	return fd < 0 || write(fd, line, (size_t)n) < 0 ? -errno : 0;
}

int cmd_commit(int argc, char **argv)
{
	static const struct option options[] = {{"force", no_argument, NULL, 'f'}, {0}};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	bool forced = false;
	struct stat st;
	int c, err;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c != 'f')
			return complain_option("commit", argv);
		forced = true;
	}
	if (!forced)
		return complain_usage("commit", "--force is needed: without it a checkpoint is "
						"published when it is complete");
	if (argc - optind != 1)
		return complain_usage("commit", "which DIR?");
	int code = location_need(argv[optind], true, &p);
	if (code)
		return code;
	err = fstatat(p.fd, "", &st, AT_EMPTY_PATH) ? -errno
	      : S_ISDIR(st.st_mode)		    ? force(&p, st.st_ino)
						    : -ENOTDIR;
	if (err) {
		complain("%s: %s", argv[optind], reason(err));
		return CAIRN_FAILED;
	}
	printf("%s: it is published as it is\n", argv[optind]);
	return CAIRN_OK;
}
