/* SPDX-License-Identifier: MIT
 * Log output: to stderr in the foreground, else to STORE/.cairn/<host>/log and syslog. The newest
 * notices are kept for status.
 */
#include "fs/base/base.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "fs/formats/formats.h"

static struct log_output {
	pthread_mutex_t lock; /* guards terminal: other threads log while it is closed */
	/* the starting process's stderr until the mount answers; then -1 */
	int terminal;
	int file; /* STORE/.cairn/<host>/log, -1 in the foreground */
	int syslog;
} to = {RANKED_MUTEX(RANK_LOG), -1, -1, -1};

void text_plain(char *text, char but)
{
	size_t len;
	for (unsigned char *u = (unsigned char *)text; *u; u += len) {
		len = fmt_utf8((char *)u, strnlen((char *)u, 4));
		bool c1 = *u == 0xc2 && u[1] < 0xa0; /* U+0080 to U+009F */
		if (!len || c1 || ((*u < 0x20 || *u == 0x7f) && *u != (unsigned char)but)) {
			len = 1;
			*u = '?';
		}
	}
}

/* stderr in the foreground; else syslog and STORE/.cairn/<host>/log. */
void fs_log(const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	text_plain(text, 0);
	pthread_mutex_lock(&to.lock);
	int err = to.file < 0 ? 2 : to.terminal;
	if (err >= 0)
		dprintf(err, "cairnfs: %s\n", text);
	pthread_mutex_unlock(&to.lock);
	if (to.file < 0)
		return;
	char line[1200], when[32];
	time_t now = time(NULL);
	struct tm tm;
	strftime(when, sizeof(when), "%F %T", localtime_r(&now, &tm));
	int n = snprintf(line, sizeof(line), "%s [%d] %s\n", when, (int)getpid(), text);
	if (write(to.file, line, (size_t)n) == n || to.syslog < 0)
		return;
	n = snprintf(line, sizeof(line), "<%d>cairnfs[%d]: %s", LOG_DAEMON | LOG_NOTICE,
		     (int)getpid(), text);
	if (write(to.syslog, line, (size_t)n) != n)
		return; /* stderr is closed too */
}

void fs_notice(void *ctx, const char *text)
{
	struct fs *fs = ctx;
	pthread_mutex_lock(&fs->notices.lock);
	unsigned i = fs->notices.n++ % 16;
	snprintf(fs->notices.text[i], sizeof(fs->notices.text[i]), "%s", text);
	pthread_mutex_unlock(&fs->notices.lock);
	fs_log("%s", text);
}

/* Opened now: syslog(3) would make its socket at the first message, when the filter forbids it
 * (trust.c). */
static void open_syslog(void)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};

	to.syslog = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (to.syslog >= 0 && connect(to.syslog, (struct sockaddr *)&addr, sizeof(addr))) {
		close(to.syslog);
		to.syslog = -1;
	}
}

/* Without a store, everything goes to syslog. */
static void open_file(struct fs *fs)
{
	int host = io_store_tmp(fs->store);

	if (to.file >= 0)
		close(to.file);
	to.file = -1;
	if (host >= 0)
		to.file = openat(host, "../log",
				 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (to.file < 0 && io_store_is_detached(fs->store))
		to.file = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void fs_log_again(struct fs *fs)
{
	if (to.file >= 0)
		open_file(fs);
}

void fs_log_to_background(struct fs *fs)
{
	/* neither a socket nor /etc can be opened later (trust.c) */
	open_syslog();
	tzset();
	open_file(fs);
	to.terminal = fcntl(2, F_DUPFD_CLOEXEC, 3);
	if (to.file < 0)
		to.file = open("/dev/null", O_RDWR | O_CLOEXEC);
}

void fs_log_leave_terminal(void)
{
	/* else another thread could write its line to the next file that gets this number */
	pthread_mutex_lock(&to.lock);
	if (to.terminal >= 0)
		close(to.terminal);
	to.terminal = -1;
	pthread_mutex_unlock(&to.lock);
}
