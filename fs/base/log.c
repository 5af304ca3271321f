/* SPDX-License-Identifier: MIT
 * Log output: to STORE/.cairn/<host>/log, and to stderr in the foreground (with levels for the
 * journal, if that reads it: sd-daemon(3)), else to syslog. The newest notices are kept for status.
 */
#include "fs/base/base.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "fs/formats/formats.h"
#include "io/thread.h"

#define LINES 8u
#define BURST 5u /* equal lines in WINDOW_S; further ones are counted */
#define WINDOW_S 60u
#define QUEUED_MAX 1000u
#define END_MS 1000u /* how long the end waits for what is queued */

/* A line that was logged lately. */
struct line {
	uint64_t hash;
	uint64_t since_ns; /* 0: unused */
	unsigned n, level;
	char text[256]; /* its begin */
};

/* A line on its way to the store's file. */
struct queued {
	struct queued *next;
	size_t n;
	char text[];
};

static struct log_output {
	/* guards terminal: other threads log while it is closed; lines; and what is queued */
	pthread_mutex_t lock;
	/* in the foreground stderr; else the starting process's until the mount answers, then -1 */
	int terminal;
	int file; /* STORE/.cairn/<host>/log, or -1 */
	int syslog; /* -1 in the foreground */
	bool stays; /* the foreground */
	bool journal; /* reads stderr */
	unsigned level;
	struct line lines[LINES];
	/* A store that does not answer must not hold up who logs, perhaps with a lock held: from
	 * fs_log_aside() on a thread writes the file. */
	bool aside;
	struct queued *queue, **queue_end;
	unsigned n_queued; /* and being written */
	pthread_cond_t cond;
} to = {.lock = RANKED_MUTEX(RANK_LOG),
	.terminal = 2,
	.file = -1,
	.syslog = -1,
	.level = LOG_NOTICE,
	.cond = PTHREAD_COND_INITIALIZER};

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

/* A text's level and, behind it, the text. Only of a text that begins with a constant. */
static unsigned level_of(const char **text)
{
	const char *t = *text;

	if (t[0] != '<' || t[1] < '0' || t[1] > '7' || t[2] != '>')
		return LOG_NOTICE;
	*text += 3;
	return (unsigned)(t[1] - '0');
}

#define WHEN_ROOM 40

/* As RFC 3339 has it, with the difference to UTC. */
static void write_time(const struct tm *tm, char when[WHEN_ROOM])
{
	long minutes = labs(tm->tm_gmtoff) / 60;
	size_t n = strftime(when, WHEN_ROOM, "%F %T", tm);

	snprintf(when + n, WHEN_ROOM - n, "%c%02ld:%02ld", tm->tm_gmtoff < 0 ? '-' : '+',
		 minutes / 60, minutes % 60);
}

static void write_file(const char *line, size_t n)
{
	if (write(to.file, line, n) != (ssize_t)n)
		return; /* the store is full or gone */
}

static void *file_main(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "cairn-log");
	pthread_mutex_lock(&to.lock);
	for (;;) {
		struct queued *q = to.queue;
		if (!q) {
			pthread_cond_wait(&to.cond, &to.lock);
			continue;
		}
		to.queue = q->next;
		if (!to.queue)
			to.queue_end = &to.queue;
		pthread_mutex_unlock(&to.lock);
		write_file(q->text, q->n);
		free(q);
		pthread_mutex_lock(&to.lock);
		to.n_queued--;
	}
	return NULL;
}

void fs_log_aside(void)
{
	to.queue_end = &to.queue;
	to.aside = !thread_detached(file_main, NULL);
}

/* What is too much is not in the file: the store has not answered for long. */
static void queue_line(const char *line, size_t n)
{
	struct queued *q = malloc(sizeof(*q) + n);

	LOCK_SCOPE(&to.lock);
	if (!q || to.n_queued == QUEUED_MAX) {
		free(q);
		return;
	}
	*q = (struct queued){.n = n};
	memcpy(q->text, line, n);
	*to.queue_end = q;
	to.queue_end = &q->next;
	to.n_queued++;
	pthread_cond_signal(&to.cond);
}

static bool all_written(void)
{
	LOCK_SCOPE(&to.lock);
	return !to.n_queued;
}

void fs_log_end(void)
{
	fs_log_look(true);
	for (unsigned ms = 0; to.aside && ms < END_MS && !all_written(); ms += 5)
		sleep_ms(5);
}

static void put(unsigned level, const char *text)
{
	char line[1200], when[WHEN_ROOM];
	int pid = (int)getpid(), n;

	n = snprintf(line, sizeof(line), "<%u>cairnfs[%d]: %s", LOG_DAEMON | level, pid, text);
	if (to.syslog >= 0 && write(to.syslog, line, (size_t)n) != n)
		n = 0; /* nobody reads it; the file has it */
	pthread_mutex_lock(&to.lock);
	if (to.terminal >= 0 && to.journal)
		dprintf(to.terminal, "<%u>%s\n", level, text);
	else if (to.terminal >= 0)
		dprintf(to.terminal, "cairnfs: %s\n", text);
	pthread_mutex_unlock(&to.lock);
	time_t now = time(NULL);
	struct tm tm;
	localtime_r(&now, &tm);
	write_time(&tm, when);
	n = snprintf(line, sizeof(line), "%s [%d] %s%s\n", when, pid,
		     level <= LOG_ERR	    ? "error: "
		     : level == LOG_WARNING ? "warning: "
					    : "",
		     text);
	size_t len = (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1;
	if (to.file >= 0 && to.aside)
		queue_line(line, len);
	else if (to.file >= 0)
		write_file(line, len);
}

/* ---- equal lines ---- */

/* The line, or one whose place it may take: the oldest that holds no count. */
static struct line *find_line(uint64_t hash)
{
	struct line *free = NULL;

	for (struct line *l = to.lines; l < to.lines + LINES; l++) {
		if (l->since_ns && l->hash == hash)
			return l;
		if (l->n <= BURST && (!free || l->since_ns < free->since_ns))
			free = l;
	}
	return free ? free : to.lines;
}

/* False: equal lines were logged too often lately; this one is counted. */
static bool is_logged(unsigned level, const char *text)
{
	uint64_t hash = hash_text(0, text);

	LOCK_SCOPE(&to.lock);
	struct line *l = find_line(hash);
	if (l->since_ns && l->hash == hash)
		return ++l->n <= BURST;
	*l = (struct line){.hash = hash, .since_ns = monotonic_ns(), .n = 1, .level = level};
	snprintf(l->text, sizeof(l->text), "%s", text);
	return true;
}

/* Ends the window of one line whose time is over, or of any. True: text says how often it came
 * besides. */
static bool end_window(bool any, unsigned *level, char *text, size_t size)
{
	uint64_t now = monotonic_ns();

	LOCK_SCOPE(&to.lock);
	for (struct line *l = to.lines; l < to.lines + LINES; l++) {
		unsigned s = (unsigned)((now - l->since_ns) / 1000000000);
		if (!l->since_ns || (!any && s < WINDOW_S))
			continue;
		unsigned more = l->n > BURST ? l->n - BURST : 0;
		*level = l->level;
		snprintf(text, size, "%u more times in %u s: %s", more, s, l->text);
		*l = (struct line){0};
		if (more)
			return true;
	}
	return false;
}

void fs_log_look(bool end)
{
	char text[320];
	unsigned level;

	while (end_window(end, &level, text, sizeof(text)))
		put(level, text);
}

/* ---- what is logged ---- */

static void log_line(unsigned level, const char *text)
{
	if (level > to.level)
		return;
	fs_log_look(false);
	if (is_logged(level, text))
		put(level, text);
}

void fs_log(const char *fmt, ...)
{
	unsigned level = level_of(&fmt);
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	text_plain(text, 0);
	log_line(level, text);
}

void fs_notice(void *ctx, const char *text)
{
	struct fs *fs = ctx;
	unsigned level = level_of(&text);
	char plain[1024];

	if (level <= LOG_NOTICE) {
		pthread_mutex_lock(&fs->notices.lock);
		unsigned i = fs->notices.n++ % 16;
		snprintf(fs->notices.text[i], sizeof(fs->notices.text[i]), "%s", text);
		pthread_mutex_unlock(&fs->notices.lock);
	}
	snprintf(plain, sizeof(plain), "%s", text);
	text_plain(plain, 0);
	log_line(level, plain);
}

/* Whether the journal reads stderr: JOURNAL_STREAM is its device and inode (systemd.exec(5)). */
static bool journal_reads(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && !fstat(2, &st) &&
	       st.st_dev == dev && st.st_ino == ino;
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

static void open_file(struct fs *fs)
{
	int host = io_store_tmp(fs->store);

	if (to.file >= 0)
		close(to.file);
	to.file = -1;
	if (host >= 0)
		to.file = openat(host, "../log",
				 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void fs_log_again(struct fs *fs)
{
	open_file(fs);
}

void fs_log_start(struct fs *fs)
{
	/* neither a socket nor /etc can be opened later (trust.c) */
	tzset();
	open_file(fs);
	to.stays = fs->o.foreground;
	to.journal = to.stays && journal_reads();
	if (!to.stays)
		open_syslog();
	to.terminal = -1; /* it has these already */
	for (unsigned i = 0; i < fs->notices.n && to.level >= LOG_NOTICE; i++)
		put(LOG_NOTICE, fs->notices.text[i % 16]);
	to.terminal = to.stays ? 2 : fcntl(2, F_DUPFD_CLOEXEC, 3);
}

void fs_log_level(unsigned level)
{
	to.level = level;
}

void fs_log_leave_terminal(void)
{
	/* else another thread could write its line to the next file that gets this number */
	pthread_mutex_lock(&to.lock);
	if (to.terminal >= 0 && !to.stays) {
		close(to.terminal);
		to.terminal = -1;
	}
	pthread_mutex_unlock(&to.lock);
}
