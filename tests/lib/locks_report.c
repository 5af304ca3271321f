/* SPDX-License-Identifier: MIT
 * build/tests/cairnfs reports a wrong order of locks to the file CAIRNFS_REPORT, which fails its
 * case: the worker, which aborts, is replaced, and its stderr is closed.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/locks.h"

/* Opened before main(): the worker cannot open it. Not among the standard descriptors, which main()
 * fills. */
__attribute__((constructor)) static void open_report(void)
{
	const char *path = getenv("CAIRNFS_REPORT");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;

	if (fd < 0)
		return;
	locks_report_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	close(fd);
}
