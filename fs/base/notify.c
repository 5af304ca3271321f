/* SPDX-License-Identifier: MIT
 * Tells the service manager how the mount is: sd_notify(3), without libsystemd.
 */
#include "fs/base/base.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PATIENCE 50 /* times 100 ms, where the manager's queue is full */

static int manager = -1;

/* Opened before the filter forbids it (trust.c). A name that begins with @ is an abstract one. */
void notify_start(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	const char *name = getenv("NOTIFY_SOCKET");
	size_t len = name ? strlen(name) : 0;

	if (len < 2 || len >= sizeof(addr.sun_path) || (*name != '/' && *name != '@'))
		return;
	memcpy(addr.sun_path, name, len);
	if (*name == '@')
		addr.sun_path[0] = '\0';
	/* the length is the abstract name's end; a path's 0 behind it may be there */
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (manager < 0 || !connect(manager, (struct sockaddr *)&addr, size))
		return;
	fs_log(LEVEL_WARNING "the service manager's socket %s: %s; it is not told of the mount",
	       name, strerror(errno));
	close(manager);
	manager = -1;
}

void notify_manager(const char *text)
{
	for (int i = 0; manager >= 0 && i < PATIENCE; i++) {
		if (write(manager, text, strlen(text)) >= 0)
			return;
		if (errno != EAGAIN && errno != EINTR)
			break;
		sleep_ms(100);
	}
	if (manager >= 0)
		fs_log(LEVEL_WARNING "the service manager does not take: %s", strerror(errno));
}

bool notify_status(const char *text)
{
	return write(manager, text, strlen(text)) >= 0;
}

bool notify_is_on(void)
{
	return manager >= 0;
}
