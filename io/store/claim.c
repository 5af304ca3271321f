/* SPDX-License-Identifier: MIT
 *
 * One cairnfs serves the store as a host: STORE/.cairn/<host>/alive is its claim, which names it,
 * and whose times it sets again as long as it lives (hosts.c). A lock alone does not do: two
 * clients of a network filesystem, on two machines or on one, may each grant it.
 *
 *   no claim                 link(2) makes ours; of two that do it one gets EEXIST
 *   the claim of a dead one  link(2) makes ours after.<its instance>, too, for one of those who
 *                            found it dead, who then renames it to "alive"
 *   killed between the two   after.<instance> is the claim: current() finds it, and the next one is
 *                            made after it in turn
 *
 * after.X stays until no client remembers that "alive" was X's: only link(2) is asked of the server
 * for sure. All is read back at the end.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "inside.h"
#include "io/entries.h"
#include "io/full.h"
#include "io/scope.h"

#define SAYS_MAX 512
#define CHAIN_MAX 16 /* killed in the middle of a claim, one after the other */
#define OWN "claim." /* + our instance: what is linked */
#define AFTER "after." /* + the instance of the claim before it */
#define AFTER_S 60 /* no client remembers names, attributes or bytes for longer */
#define ASKS "asks" /* see is_silent() */

static char own_instance[IO_INSTANCE + 1];

/* A keeper that opens the store again finds its own claim. */
static const char *instance(void)
{
	unsigned long long random;

	if (!own_instance[0]) {
		if (getrandom(&random, sizeof(random), 0) != sizeof(random))
			random = (unsigned long long)time(NULL) << 32 | (unsigned)getpid();
		snprintf(own_instance, sizeof(own_instance), "%016llx", random);
	}
	return own_instance;
}

void io_boot_id(char out[37])
{
	CLEANUP_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	out[fd >= 0 && read(fd, out, 36) == 36 ? 36 : 0] = 0;
}

/* Two processes that reach the store by one client see each other's locks: by one superblock, or
 * both by the local filesystem itself, wherever it is mounted. */
static void name_client(int dir, char out[24])
{
	struct stat st = {.st_dev = 0};

	if (io_fs_is_local(dir))
		strcpy(out, IO_CLIENT_LOCAL);
	else if (!fstat(dir, &st))
		snprintf(out, 24, "%u:%u", major(st.st_dev), minor(st.st_dev));
}

/* ---- the text ---- */

int io_said_write(int fd, const struct io_host *h)
{
	char boot[37], client[24] = "", machine[65] = "", text[SAYS_MAX];

	io_boot_id(boot);
	name_client(fd, client);
	gethostname(machine, sizeof(machine) - 1);
	int n = snprintf(text, sizeof(text),
			 "boot %s\nmachine %s\ninstance %s\nclient %s\npid %d\nsince %lld\n"
			 "version %s\nleft %llu\n",
			 boot, machine, instance(), client, h->pid, (long long)h->since, h->version,
			 (unsigned long long)h->left);
	errno = 0;
	if (pwrite(fd, text, (size_t)n, 0) != n)
		return errno ? -errno : -ENOSPC;
	return ftruncate(fd, n) ? -errno : 0;
}

/* A key that this version does not know is passed over, and so is a value that is too long. */
static void take_line(struct io_host *h, const char *line)
{
	long long since;
	unsigned long long left;

	sscanf(line, "boot %36[0-9a-f-]", h->boot);
	sscanf(line, "machine %64[!-~]", h->machine);
	sscanf(line, "instance %16[0-9a-f]", h->instance);
	sscanf(line, "client %23[!-~]", h->client);
	sscanf(line, "pid %d", &h->pid);
	sscanf(line, "version %31[!-~]", h->version);
	if (sscanf(line, "since %lld", &since) == 1)
		h->since = since;
	if (sscanf(line, "left %llu", &left) == 1)
		h->left = left;
}

int io_said_read(int dir, const char *file, struct io_host *h)
{
	CLEANUP_CLOSE int fd = io_open_beneath(dir, file, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
	char text[SAYS_MAX + 1];
	struct stat st;
	ssize_t n = fd < 0 ? fd : fstat(fd, &st) ? -errno : full_pread(fd, text, SAYS_MAX, 0);

	if (n < 0)
		return (int)n;
	h->heard = st.st_mtim.tv_sec;
	text[n] = 0;
	for (char *save = NULL, *p = strtok_r(text, "\n", &save); p;
	     p = strtok_r(NULL, "\n", &save))
		take_line(h, p);
	if (!h->instance[0]) /* of an earlier version */
		snprintf(h->instance, sizeof(h->instance), "%llx", (unsigned long long)st.st_ino);
	return 0;
}

bool io_host_is_us(const struct io_host *h)
{
	return !strcmp(h->instance, instance());
}

/* ---- whose it is ---- */

static int read_name(struct io_store *s, const char *name, struct io_host *h)
{
	*h = (struct io_host){.said = IO_HOST_SAID_NOTHING};
	return io_said_read(s->host, name, h);
}

static int current(struct io_store *s, struct io_claim *c)
{
	char after[32];
	struct io_host next;
	int err = read_name(s, "alive", &c->of);

	strcpy(c->alive, c->of.instance);
	for (int i = 0; !err && i < CHAIN_MAX; i++) {
		snprintf(after, sizeof(after), AFTER "%s", c->of.instance);
		err = read_name(s, after, &next);
		if (!err)
			c->of = next;
	}
	return err == -ENOENT ? 0 : err;
}

static bool is_ours(const struct io_claim *c)
{
	return io_host_is_us(&c->of) && !strcmp(c->alive, c->of.instance);
}

/* Then it is dead, if we have the lock. An earlier version does not name its client. */
bool io_host_shares_locks(int dir, const struct io_host *h)
{
	char boot[37], client[24] = "";

	io_boot_id(boot);
	name_client(dir, client);
	if (!strcmp(h->client, IO_CLIENT_LOCAL) || !strcmp(client, IO_CLIENT_LOCAL))
		return !h->client[0] || !strcmp(h->client, client);
	return (!h->boot[0] || !boot[0] || !strcmp(h->boot, boot)) &&
	       (!h->client[0] || !strcmp(h->client, client));
}

static bool is_long_ago(int64_t then, int64_t now)
{
	int64_t ago = now - then; /* it may lie ahead: by a clock that was wrong */

	return ago <= -IO_HOST_LIVE_S || ago >= IO_HOST_LIVE_S;
}

/* Whoever is alone on a local disk sets no times, unless the file "asks" appears
 * (io_host_asked). */
static bool is_silent(struct io_store *s, const struct io_host *h, int64_t now)
{
	struct stat st;

	if (strcmp(h->client, IO_CLIENT_LOCAL))
		return is_long_ago(h->heard, now);
	CLEANUP_CLOSE int fd =
		openat(s->host, ASKS, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd >= 0 && !fstat(fd, &st) && is_long_ago(st.st_mtim.tv_sec, now) &&
	       is_long_ago(h->heard, now);
}

void io_claim_begin(const struct io_claim *c)
{
	if (!is_ours(c))
		own_instance[0] = 0;
}

int io_claim_look(struct io_store *s, struct io_claim *c)
{
	int64_t now;
	int err = current(s, c);

	if (err || !c->alive[0] || is_ours(c) || io_host_shares_locks(s->host, &c->of))
		return err;
	err = io_hosts_clock(s->cairn, &now);
	return err || is_silent(s, &c->of, now) ? err : -EADDRINUSE;
}

bool io_host_asked(struct io_store *s)
{
	return s->host >= 0 && !unlinkat(s->host, ASKS, 0);
}

/* ---- taken ---- */

int io_name_new(int fromdir, const char *from, int todir, const char *to)
{
	/* a link first: NFS supports it, but not RENAME_NOREPLACE */
	int err = linkat(fromdir, from, todir, to, 0) ? -errno : 0;

	if (!err || err == -EEXIST || err == -ENOENT)
		return err;
	if (!renameat2(fromdir, from, todir, to, RENAME_NOREPLACE))
		return 0;
	return errno == EINVAL ? -EOPNOTSUPP : -errno;
}

static int write_own(struct io_store *s, const char *own)
{
	struct io_host h = {.pid = (int)getpid(), .since = time(NULL), .version = ""};

	unlinkat(s->host, own, 0);
	CLEANUP_CLOSE int fd =
		openat(s->host, own, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : io_said_write(fd, &h);
}

/* What was left by those who were killed here, and by those who came too late. `now`: just set. */
static void clean(struct io_store *s, const struct stat *now)
{
	CLEANUP_DIR DIR *d = entries_at(s->host, ".");
	struct dirent *e;
	struct stat st;

	while ((e = entries_next(d)))
		if (!strcmp(e->d_name, ASKS) || !strncmp(e->d_name, OWN, strlen(OWN)) ||
		    (!strncmp(e->d_name, AFTER, strlen(AFTER)) &&
		     !fstatat(s->host, e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
		     st.st_ino != now->st_ino &&
		     llabs((long long)now->st_ctime - st.st_ctime) > AFTER_S))
			unlinkat(s->host, e->d_name, 0);
}

/* Ours in place of the dead one, which it comes after. */
static int replace(struct io_store *s, const struct io_claim *dead, const char *own,
		   const char *after)
{
	struct io_host now;
	int err = read_name(s, "alive", &now);

	if (err == -ENOENT || (!err && strcmp(now.instance, dead->alive)))
		err = -EADDRINUSE;
	else if (!err)
		err = renameat(s->host, own, s->host, "alive") ? -errno : 0;
	if (err)
		unlinkat(s->host, after, 0);
	return err;
}

static int claim(struct io_store *s, const struct io_claim *dead)
{
	char own[32], after[32];

	snprintf(own, sizeof(own), OWN "%s", instance());
	snprintf(after, sizeof(after), AFTER "%s", dead->of.instance);
	int err = write_own(s, own);
	if (!err)
		err = io_name_new(s->host, own, s->host, dead->alive[0] ? after : "alive");
	if (!err && dead->alive[0] && faccessat(s->host, own, F_OK, 0))
		err = write_own(s, own); /* it was moved: there are no links */
	if (!err && dead->alive[0])
		err = replace(s, dead, own, after);
	unlinkat(s->host, own, 0);
	return err;
}

int io_claim_take(struct io_store *s, const struct io_claim *dead)
{
	int err = is_ours(dead) ? 0 : claim(s, dead);
	struct io_claim now;
	struct stat st;

	if (err && err != -EEXIST && err != -ENOENT)
		return err;
	err = current(s, &now);
	if (err)
		return err;
	if (!is_ours(&now) || fstatat(s->host, "alive", &st, AT_SYMLINK_NOFOLLOW))
		return -EADDRINUSE;
	s->claim.ino = st.st_ino;
	s->claim.took_over =
		dead->alive[0] && !is_ours(dead) && !io_host_shares_locks(s->host, &dead->of);
	clean(s, &st);
	return 0;
}
