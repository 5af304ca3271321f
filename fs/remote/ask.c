/* SPDX-License-Identifier: MIT
 * Asks the server of the tier, a process of its own (tools/cairn/tier/tier_serve.c), for listings
 * and for checkpoints, and keeps the requests that wait for them. The socket to it outlives workers
 * and servers; what either has not answered when it is killed is asked again.
 *
 * No thread of the session waits for the tier: one thread, cairn-remote, reads the answers and
 * answers the requests. If the worker dies, the kernel sends them to the next one.
 */
#include "fs/remote/inside.h"
#include "io/full.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECOND 1000000000ull
#define OLD_NS (10 * SECOND) /* a listing that is asked for anew when it is used */
#define OLD_SHARE 20u /* and as old as this many times what it took */
#define FAILED_NS (3 * SECOND) /* after a listing failed */
#define AGAIN_NS (5 * SECOND) /* a request without an answer is made again */
#define SILENCE_TEXT 96
#define KILLED_NS (SECOND / 2) /* and one whose process was killed, so long after that */

/* A file of a fetch that may be read, as far as it is there. */
struct ready {
	struct ready *next;
	struct remote_file f;
	char path[];
};

/* A checkpoint that is being fetched. */
struct remote_fetch {
	struct remote_fetch *next;
	unsigned waiting; /* requests */
	bool done;
	int err; /* of done: 0 or -errno */
	uint64_t bytes, total;
	uint64_t asked_ns, heard_ns; /* CLOCK_MONOTONIC */
	uint64_t killed_ns; /* its process was, and nothing came since; 0: no */
	struct ready *ready;
	char *first; /* the file that was asked for */
	char path[];
};

static struct ask {
	pthread_mutex_t lock; /* guards all of it */
	pthread_cond_t cond; /* a listing came, or could not be had */
	bool started, stop;
	pthread_t thread;
	struct fs *fs;
	int wake; /* an eventfd */
	struct remote_list *list; /* NULL: none yet */
	uint64_t listed_ns, took_ns; /* when it was asked for, and how long that took */
	uint64_t asked_ns; /* since when a listing is awaited; 0: none is */
	uint64_t tried_ns, failed_ns; /* the last request; the last failure, 0: none since */
	struct remote_job *jobs;
	struct remote_fetch *fetches;
	bool killed; /* who listed it was, since asked_ns */
	bool silent; /* no listing came for tier_wait seconds, and none since */
	uint64_t fetched, failed;
	char list_error[512], fetch_error[512], left_out[512]; /* "" = none */
} ask = {.lock = RANKED_MUTEX(RANK_REMOTE), .cond = PTHREAD_COND_INITIALIZER, .wake = -1};

static uint64_t patience_ns(const struct fs *fs)
{
	return fs->o.tier_wait_s * SECOND;
}

static void wake(void)
{
	const uint64_t one = 1;

	if (ask.wake >= 0 && write(ask.wake, &one, sizeof(one)) < 0)
		return; /* it is readable already */
}

/* What does not fit is lost: it is asked for again. */
static void send_ask(struct fs *fs, const struct tier_message *m)
{
	if (write(fs->tier.ask, m, sizeof(*m)) < 0)
		return;
}

static void say(struct fs *fs, enum tier_ask what, const char *path, size_t checkpoint)
{
	struct tier_message m = {.what = what, .checkpoint_bytes = (uint32_t)checkpoint};

	snprintf(m.path, sizeof(m.path), "%s", path);
	send_ask(fs, &m);
}

/* ---- listings; the lock is held ---------------------------------------------------------- */

static void ask_for_list(struct fs *fs, uint64_t now)
{
	if (!ask.asked_ns) {
		ask.asked_ns = now;
		ask.killed = false;
	}
	ask.tried_ns = now;
	say(fs, TIER_ASK_LIST, "", 0);
}

/* Asks for a newer one, where that is due. */
static void look_at_age(struct fs *fs)
{
	uint64_t now = monotonic_ns(), old = OLD_SHARE * ask.took_ns;

	if (ask.asked_ns) {
		if (now - ask.tried_ns > AGAIN_NS)
			ask_for_list(fs, now);
	} else if (ask.failed_ns) {
		if (now - ask.failed_ns > FAILED_NS)
			ask_for_list(fs, now);
	} else if (!ask.list || now - ask.listed_ns > (old > OLD_NS ? old : OLD_NS)) {
		ask_for_list(fs, now);
	}
}

/* Whether nothing is known of the tier, and will not be soon. */
static bool is_unknown(uint64_t until_ns)
{
	return !ask.list &&
	       (ask.silent || (ask.failed_ns && !ask.asked_ns) || monotonic_ns() >= until_ns);
}

static void put_list(struct remote_list *l)
{
	if (l && !--l->refs)
		remote_free(l);
}

/* Whether this changes it. The lock is held. */
static bool mark(struct remote_list *l, const char *path, bool damaged)
{
	const struct remote_node *n = l ? remote_find(l, path) : NULL;

	return n && n->checkpoint && atomic_exchange(&l->v[n - l->v].damaged, damaged) != damaged;
}

void remote_mark_damaged(const char *path)
{
	LOCK_SCOPE(&ask.lock);

	if (mark(ask.list, path, true))
		ask.list->marked_ns = monotonic_ns();
}

/* The present listing was asked for before those of old were found damaged. */
static void keep_marks(const struct remote_list *old)
{
	for (uint32_t i = 0; i < old->n; i++)
		if (old->v[i].checkpoint && atomic_load(&old->v[i].damaged))
			mark(ask.list, old->v[i].path, true);
	ask.list->marked_ns = old->marked_ns;
}

void remote_put(struct remote_list *l)
{
	LOCK_SCOPE(&ask.lock);
	put_list(l);
}

int remote_hold(struct fs *fs, struct remote_list **out)
{
	uint64_t until = monotonic_ns() + patience_ns(fs);
	struct timespec t;

	*out = NULL;
	if (!fs->o.tier)
		return 0;
	if (fs->tier.ask < 0)
		return -EIO;
	LOCK_SCOPE(&ask.lock);
	look_at_age(fs);
	wake();
	while (!ask.list && !ask.stop && !is_unknown(until)) {
		clock_gettime(CLOCK_REALTIME, &t); /* the thread wakes it, in any case */
		t.tv_sec += 1;
		pthread_cond_timedwait(&ask.cond, &ask.lock, &t);
	}
	if (!ask.list)
		return -EIO;
	ask.list->refs++;
	*out = ask.list;
	return 0;
}

/* ---- what is told ------------------------------------------------------------------------ */

#define NOTICE_MAX 900

__attribute__((format(printf, 2, 3))) static void notice(struct fs *fs, const char *fmt, ...)
{
	char text[NOTICE_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	text_plain(text + strlen(LEVEL_WARNING), 0);
	fs_notice(fs, text);
}

static void tell_list(struct fs *fs, const char *why)
{
	bool again;

	{
		LOCK_SCOPE(&ask.lock);
		again = !strcmp(ask.list_error, why);
		snprintf(ask.list_error, sizeof(ask.list_error), "%s", why);
	}
	if (!again)
		notice(fs,
		       LEVEL_WARNING "what is in the tier is not known: %.480s; it is asked again "
				     "when it is used",
		       why);
}

static void tell_left_out(struct fs *fs, const char *why, unsigned n)
{
	char text[512];
	bool again;

	snprintf(text, sizeof(text), "%s", why);
	if (!*why && n)
		snprintf(text, sizeof(text), "%u names of manifests that no checkpoint may have",
			 n);
	{
		LOCK_SCOPE(&ask.lock);
		again = !strcmp(ask.left_out, text);
		snprintf(ask.left_out, sizeof(ask.left_out), "%s", text);
	}
	if (!again && *text)
		notice(fs, LEVEL_WARNING "not all of the tier is shown: %.480s", text);
}

static void tell_fetch(struct fs *fs, const char *path, const char *why)
{
	{
		LOCK_SCOPE(&ask.lock);
		ask.failed++;
		snprintf(ask.fetch_error, sizeof(ask.fetch_error), "%.200s: %.300s", path, why);
	}
	notice(fs,
	       LEVEL_WARNING
	       "%.200s cannot be fetched from the tier: %.480s; it is tried again when "
	       "it is read",
	       path, why);
}

/* ---- fetches; the lock is held ----------------------------------------------------------- */

static struct remote_fetch *find_fetch(const char *path)
{
	struct remote_fetch *f = ask.fetches;

	while (f && (f->done || strcmp(f->path, path)))
		f = f->next;
	return f;
}

/* For the bytes that j waits for, now. */
static void ask_for_file(struct fs *fs, const struct remote_job *j)
{
	struct tier_message m = {.what = TIER_ASK_RANGE,
				 .checkpoint_bytes = (uint32_t)strlen(j->fetch->path)};

	if (j->want == REMOTE_READ) {
		m.offset = (uint64_t)j->off;
		m.bytes = j->size;
	}
	snprintf(m.path, sizeof(m.path), "%s", j->file);
	send_ask(fs, &m);
}

/* With all that is waited for of it. */
static void ask_for(struct fs *fs, struct remote_fetch *f)
{
	f->asked_ns = monotonic_ns();
	say(fs, TIER_ASK_FETCH, f->first, strlen(f->path));
	for (const struct remote_job *j = ask.jobs; j; j = j->next)
		if (j->fetch == f && j->file)
			ask_for_file(fs, j);
}

static void close_ready(struct ready *r)
{
	close(r->f.fd);
	if (r->f.told >= 0)
		close(r->f.told);
}

static void free_fetch(struct remote_fetch *f)
{
	while (f->ready) {
		struct ready *r = f->ready;

		f->ready = r->next;
		close_ready(r);
		free(r);
	}
	free(f->first);
	free(f);
}

static struct ready *find_ready(const struct remote_fetch *f, const char *file)
{
	struct ready *r = f->ready;

	while (r && strcmp(r->path, file))
		r = r->next;
	return r;
}

/* Whether j need not wait for more of its file; also when that is damaged. */
static bool is_ready(const struct remote_job *j)
{
	const struct ready *r = j->file ? find_ready(j->fetch, j->file) : NULL;

	return r && (j->want != REMOTE_READ || remote_may_read(&r->f, j->off, j->size));
}

/* Takes over the descriptors. */
static void set_ready(struct remote_fetch *f, const char *file, const struct remote_file *how)
{
	struct ready *r = find_ready(f, file);

	if (r) {
		close_ready(r);
		r->f = *how;
		return;
	}
	r = malloc(sizeof(*r) + strlen(file) + 1);
	if (!r) {
		close_ready(&(struct ready){.f = *how});
		return; /* it is asked for again */
	}
	strcpy(r->path, file);
	r->f = *how;
	r->next = f->ready;
	f->ready = r;
}

/* file: NULL, or the one that is waited for. */
static struct remote_fetch *get_fetch(struct fs *fs, const char *path, const char *file)
{
	const struct remote_node *n = ask.list ? remote_find(ask.list, path) : NULL;
	struct remote_fetch *f = find_fetch(path);

	if (f)
		return f;
	f = calloc(1, sizeof(*f) + strlen(path) + 1);
	if (!f || !(f->first = strdup(file ? file : path))) {
		free(f);
		return NULL;
	}
	strcpy(f->path, path);
	f->heard_ns = monotonic_ns();
	f->total = n ? remote_bytes(ask.list, n) : 0;
	f->next = ask.fetches;
	ask.fetches = f;
	ask_for(fs, f);
	return f;
}

static void end_fetch(struct remote_fetch *f, int err)
{
	f->done = true;
	f->err = err;
}

/* Frees those that are done, and that no request waits for. */
static void drop_fetches(void)
{
	for (struct remote_fetch **at = &ask.fetches, *f; (f = *at);) {
		if (f->done && !f->waiting) {
			*at = f->next;
			free_fetch(f);
		} else {
			at = &f->next;
		}
	}
}

/* ---- messages ---------------------------------------------------------------------------- */

/* fd: what came with it, or -1. */
static ssize_t receive(int sock, struct tier_message *m, int fd[2])
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} u = {0};
	struct iovec v = {.iov_base = m, .iov_len = sizeof(*m)};
	struct msghdr h = {.msg_iov = &v,
			   .msg_iovlen = 1,
			   .msg_control = u.room,
			   .msg_controllen = sizeof(u.room)};
	ssize_t n = recvmsg(sock, &h, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&h);

	fd[0] = fd[1] = -1;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	    c->cmsg_len >= CMSG_LEN(sizeof(int)))
		memcpy(fd, CMSG_DATA(c),
		       c->cmsg_len >= CMSG_LEN(2 * sizeof(int)) ? 2 * sizeof(int) : sizeof(int));
	return n;
}

/* The listing in fd, which is memory of the server's. */
static int read_list(int fd, struct remote_list **out)
{
	struct stat st;
	CLEANUP_FREE char *buf = NULL;

	*out = NULL;
	if (fd < 0 || fstat(fd, &st) || st.st_size < 0 || st.st_size > TIER_LIST_MAX)
		return -EBADMSG;
	buf = malloc((size_t)st.st_size + 1);
	if (!buf)
		return -ENOMEM;
	if (full_pread(fd, buf, (size_t)st.st_size, 0) != st.st_size)
		return -EBADMSG;
	return remote_parse(buf, (size_t)st.st_size, out);
}

static void set_list(struct remote_list *l)
{
	uint64_t now = monotonic_ns();
	LOCK_SCOPE(&ask.lock);

	if (l) {
		struct remote_list *old = ask.list;

		l->refs = 1;
		ask.list = l;
		ask.listed_ns = ask.asked_ns ? ask.asked_ns : now;
		if (old && old->marked_ns >= ask.listed_ns)
			keep_marks(old);
		put_list(old);
		ask.took_ns = now - ask.listed_ns;
		*ask.list_error = '\0';
	}
	ask.failed_ns = l ? 0 : now;
	ask.asked_ns = 0;
	ask.silent = false;
	pthread_cond_broadcast(&ask.cond);
}

/* The path of one that the listing says is damaged, and that was not known to be; malloc()ed. */
static char *newly_damaged(const struct remote_list *l)
{
	LOCK_SCOPE(&ask.lock);

	for (uint32_t i = 0; i < l->n; i++) {
		const struct remote_node *n = &l->v[i], *old;

		if (!n->checkpoint || !atomic_load(&n->damaged))
			continue;
		old = ask.list ? remote_find(ask.list, n->path) : NULL;
		if (!old || !atomic_load(&old->damaged))
			return strdup(n->path);
	}
	return NULL;
}

static void on_listed(struct fs *fs, const struct tier_message *m, int fd)
{
	struct remote_list *l = NULL;
	int err = m->err ? m->err : read_list(fd, &l);
	CLEANUP_FREE char *damaged = l ? newly_damaged(l) : NULL;

	set_list(l);
	if (damaged)
		notice(fs,
		       LEVEL_WARNING "%.200s is damaged in the tier, as `cairn tier verify` shows; "
				     "`latest` leads to an earlier one until it is sent again",
		       damaged);
	if (m->err)
		tell_list(fs, m->why);
	else if (err)
		tell_list(fs, err == -ENOMEM ? "no memory" : "the answer cannot be read");
	else
		tell_left_out(fs, m->why, l->left_out);
}

static void on_moved(const struct tier_message *m)
{
	LOCK_SCOPE(&ask.lock);
	struct remote_fetch *f = find_fetch(m->path);

	if (!f)
		return;
	f->heard_ns = monotonic_ns();
	if (m->bytes > f->bytes)
		f->killed_ns = 0;
	f->bytes = m->bytes;
}

/* fd: taken over are -1 afterwards. */
static void on_file(const struct tier_message *m, int fd[2])
{
	const struct remote_file how = {.fd = fd[0], .told = fd[1], .bytes = m->bytes};
	CLEANUP_FREE char *path = strndup(m->path, m->checkpoint_bytes);
	LOCK_SCOPE(&ask.lock);
	struct remote_fetch *f = path ? find_fetch(path) : NULL;

	if (!f)
		return;
	f->heard_ns = monotonic_ns();
	if (fd[0] < 0 || (fd[1] >= 0 && !m->bytes))
		return; /* those who wait look again */
	set_ready(f, m->path, &how);
	fd[0] = fd[1] = -1;
}

static void on_done(struct fs *fs, const struct tier_message *m)
{
	{
		LOCK_SCOPE(&ask.lock);
		struct remote_fetch *f = find_fetch(m->path);

		if (!f)
			return; /* of a worker before this one, which is asked again */
		ask.fetched += !m->err;
		if (!m->err) {
			*ask.fetch_error = '\0';
			mark(ask.list, m->path, false); /* it was fetched */
		}
		end_fetch(f, m->err);
	}
	if (m->err)
		tell_fetch(fs, m->path, m->why);
}

static void on_damaged(struct fs *fs, const struct tier_message *m)
{
	remote_mark_damaged(m->path);
	notice(fs,
	       LEVEL_WARNING "%.200s is damaged in the tier: %.480s; `latest` leads to an earlier "
			     "one until it is sent again",
	       m->path, m->why);
}

static void on_list_killed(struct fs *fs, const char *why)
{
	bool tell;

	{
		LOCK_SCOPE(&ask.lock);
		if (!ask.asked_ns)
			return;
		tell = !ask.killed;
		ask.killed = true;
		ask.tried_ns = monotonic_ns() - AGAIN_NS + KILLED_NS;
	}
	if (tell)
		notice(fs, LEVEL_WARNING "%.480s; the tier is listed again", why);
}

/* Again, unless it goes on like that for too long without a byte of the tier. */
static void on_fetch_killed(struct fs *fs, const struct tier_message *m)
{
	uint64_t now = monotonic_ns();
	bool first, end;

	{
		LOCK_SCOPE(&ask.lock);
		struct remote_fetch *f = find_fetch(m->path);

		if (!f)
			return;
		first = !f->killed_ns;
		end = !first && now - f->killed_ns > patience_ns(fs);
		if (first)
			f->killed_ns = now;
		if (end)
			end_fetch(f, -EIO);
		f->bytes = 0; /* the next one counts what it moves itself */
		f->asked_ns = now - AGAIN_NS + KILLED_NS;
	}
	if (end)
		tell_fetch(fs, m->path, m->why);
	else if (first)
		notice(fs, LEVEL_WARNING "%.200s: %.480s; it is fetched again", m->path, m->why);
}

/* Another server: it knows nothing of what was asked. */
static void ask_all(struct fs *fs)
{
	LOCK_SCOPE(&ask.lock);

	if (ask.asked_ns || !ask.list)
		ask_for_list(fs, monotonic_ns());
	for (struct remote_fetch *f = ask.fetches; f; f = f->next)
		if (!f->done)
			ask_for(fs, f);
}

static void take_message(struct fs *fs, struct tier_message *m, int fd[2])
{
	m->path[sizeof(m->path) - 1] = m->why[sizeof(m->why) - 1] = '\0';
	if (m->err > 0 || m->err < -4095)
		m->err = -EIO;
	switch (m->what) {
	case TIER_ASK_HELLO: ask_all(fs); break;
	case TIER_ASK_LISTED: on_listed(fs, m, fd[0]); break;
	case TIER_ASK_MOVED: on_moved(m); break;
	case TIER_ASK_FILE: on_file(m, fd); break;
	case TIER_ASK_DONE: on_done(fs, m); break;
	case TIER_ASK_DAMAGED: on_damaged(fs, m); break;
	case TIER_ASK_KILLED:
		if (*m->path)
			on_fetch_killed(fs, m);
		else
			on_list_killed(fs, m->why);
		break;
	}
}

static void take_messages(struct fs *fs)
{
	struct tier_message m;
	ssize_t n;
	int fd[2];

	while ((n = receive(fs->tier.ask, &m, fd)) > 0) {
		if (n == sizeof(m))
			take_message(fs, &m, fd);
		for (int i = 0; i < 2; i++)
			if (fd[i] >= 0)
				close(fd[i]);
	}
}

/* ---- time -------------------------------------------------------------------------------- */

/* The path of a fetch of which nothing was heard for too long, and which is given up; NULL: none.
 * The server goes on, if it can. */
static char *give_up_one(struct fs *fs, bool *killed)
{
	uint64_t now = monotonic_ns();
	LOCK_SCOPE(&ask.lock);

	for (struct remote_fetch *f = ask.fetches; f; f = f->next)
		if (!f->done && now - f->heard_ns > patience_ns(fs)) {
			end_fetch(f, -EIO);
			*killed = f->killed_ns;
			return strdup(f->path);
		}
	return NULL;
}

/* A listing that does not come: requests do not wait for it any more. */
static bool give_up_list(struct fs *fs, bool *killed)
{
	uint64_t now = monotonic_ns();
	LOCK_SCOPE(&ask.lock);

	if (!ask.asked_ns || now - ask.asked_ns <= patience_ns(fs))
		return false;
	*killed = ask.killed;
	ask.silent = true;
	ask.failed_ns = now;
	ask.asked_ns = 0;
	return true;
}

static const char *silence(const struct fs *fs, bool killed, char out[SILENCE_TEXT])
{
	snprintf(out, SILENCE_TEXT, "nothing came for %u s (tier_wait)%s", fs->o.tier_wait_s,
		 killed ? ", the process that read it was killed" : "");
	return out;
}

static void look_at_time(struct fs *fs)
{
	char why[SILENCE_TEXT], *path;
	bool killed;

	while ((path = give_up_one(fs, &killed))) {
		tell_fetch(fs, path, silence(fs, killed, why));
		free(path);
	}
	if (give_up_list(fs, &killed))
		tell_list(fs, silence(fs, killed, why));
	LOCK_SCOPE(&ask.lock);
	for (struct remote_fetch *f = ask.fetches; f; f = f->next)
		if (!f->done && monotonic_ns() - f->asked_ns > AGAIN_NS)
			ask_for(fs, f);
	if (ask.asked_ns)
		look_at_age(fs);
	pthread_cond_broadcast(&ask.cond);
}

/* ---- requests ---------------------------------------------------------------------------- */

/* The lock is held: it waits for a listing, or for the end of a fetch. */
static bool still_waits(const struct remote_job *j)
{
	if (fuse_req_interrupted(j->req) || ask.stop)
		return false;
	if (!j->fetch)
		return !ask.list && !is_unknown(j->until_ns);
	return !j->fetch->done && !is_ready(j);
}

static struct remote_job *take_job(void)
{
	LOCK_SCOPE(&ask.lock);

	for (struct remote_job **at = &ask.jobs, *j; (j = *at); at = &j->next)
		if (!still_waits(j)) {
			*at = j->next;
			return j;
		}
	drop_fetches();
	return NULL;
}

static void drop_staged(struct remote_job *j)
{
	if (j->staged.fd >= 0)
		close(j->staged.fd);
	if (j->staged.told >= 0)
		close(j->staged.told);
	j->staged.fd = j->staged.told = -1;
}

static void free_job(struct remote_job *j)
{
	if (!j)
		return;
	drop_staged(j);
	free(j->file);
	free(j);
}

/* The lock is held. -errno */
static int take_staged(struct remote_job *j, const struct remote_file *f)
{
	drop_staged(j);
	j->staged = (struct remote_file){
		.fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0), .told = -1, .bytes = f->bytes};
	if (j->staged.fd >= 0 && f->told >= 0)
		j->staged.told = fcntl(f->told, F_DUPFD_CLOEXEC, 0);
	if (j->staged.fd >= 0 && (f->told < 0 || j->staged.told >= 0))
		return 0;
	drop_staged(j);
	return -EIO;
}

/* What a program gets to know of a fetch: the rest is in the log. */
static int to_caller(int err)
{
	return err == -EINTR || err == -ENOSPC || err == -EDQUOT || err == -ENOMEM ? err : -EIO;
}

/* What its fetch came to, which it leaves: 0 or -errno. */
static int leave_fetch(struct remote_job *j)
{
	LOCK_SCOPE(&ask.lock);
	struct remote_fetch *f = j->fetch;
	bool ready = f && is_ready(j), there = ready || (f && f->done && !f->err);
	int err = fuse_req_interrupted(j->req) ? -EINTR : f && !there && f->done ? f->err : 0;

	if (f)
		f->waiting--;
	j->fetched |= f && f->done && !f->err;
	if (!err && ready && !j->fetched)
		err = take_staged(j, &find_ready(f, j->file)->f);
	j->fetch = NULL;
	return err ? to_caller(err) : ask.stop ? -ENOTCONN : 0;
}

/* Into the list: for a listing, or for path. False: no memory. */
static bool keep(struct fs *fs, struct remote_job *j, const char *path)
{
	LOCK_SCOPE(&ask.lock);
	struct remote_fetch *f = path ? get_fetch(fs, path, j->file) : NULL;

	if (path && !f)
		return false;
	if (f)
		f->waiting++;
	j->fetch = f;
	j->next = ask.jobs;
	ask.jobs = j;
	if (f && j->file)
		ask_for_file(fs, j);
	return true;
}

static struct remote_list *present_list(struct fs *fs)
{
	LOCK_SCOPE(&ask.lock);

	look_at_age(fs);
	if (ask.list)
		ask.list->refs++;
	return ask.list;
}

/* A request that waited, or that has just come to the thread. */
static void go_on(struct fs *fs, struct remote_job *j)
{
	CLEANUP_FREE char *path = NULL;
	struct remote_list *l;
	int err = leave_fetch(j);

	l = err ? NULL : present_list(fs);
	if (!err && !l)
		err = -EIO;
	if (!err)
		err = remote_answer(fs, j, l, &path);
	if (l)
		remote_put(l);
	if (err == -EINPROGRESS) {
		if (keep(fs, j, path))
			return;
		err = -ENOMEM;
	}
	if (err)
		fuse_reply_err(j->req, -err);
	free_job(j);
}

/* libfuse has read an INTERRUPT of req: the thread asks for that. */
static void interrupt(fuse_req_t req, void *data)
{
	(void)req;
	(void)data;
	wake();
}

static void wait_for_anything(struct fs *fs)
{
	struct pollfd p[] = {{.fd = fs->tier.ask, .events = POLLIN},
			     {.fd = ask.wake, .events = POLLIN}};
	bool busy;
	uint64_t n;

	{
		LOCK_SCOPE(&ask.lock);
		busy = ask.jobs || ask.fetches || ask.asked_ns;
	}
	poll(p, 2, busy ? 200 : -1);
	if (p[1].revents && read(ask.wake, &n, sizeof(n)) < 0)
		return;
	if (p[0].revents & (POLLHUP | POLLERR))
		sleep_ms(200); /* no server any more */
}

static bool is_stopped(void)
{
	LOCK_SCOPE(&ask.lock);
	return ask.stop;
}

static void *ask_main(void *arg)
{
	struct fs *fs = arg;
	struct remote_job *j;

	pthread_setname_np(pthread_self(), "cairn-remote");
	do {
		take_messages(fs);
		look_at_time(fs);
		while ((j = take_job()))
			go_on(fs, j);
		if (!is_stopped())
			wait_for_anything(fs);
	} while (!is_stopped());
	while ((j = take_job()))
		go_on(fs, j);
	return NULL;
}

/* ---- for others -------------------------------------------------------------------------- */

void remote_ask(fuse_req_t req, const struct remote_job *what, const char *name)
{
	struct fs *fs = req_fs(req);
	CLEANUP_FREE char *path = NULL;
	bool asks_store =
		what->want == REMOTE_OPEN || what->want == REMOTE_READ || what->want == REMOTE_WAIT;
	struct remote_list *l = asks_store ? NULL : present_list(fs);
	struct remote_job *j = calloc(1, sizeof(*j) + strlen(name) + 1);
	int err = j ? -EINPROGRESS : -ENOMEM;

	if (j) {
		*j = *what;
		j->req = req;
		j->staged.fd = j->staged.told = -1;
		j->until_ns = monotonic_ns() + patience_ns(fs);
		strcpy(j->name, name);
	}
	if (j && l)
		err = remote_answer(fs, j, l, &path);
	if (l)
		remote_put(l);
	if (err != -EINPROGRESS) {
		if (err)
			fuse_reply_err(req, -err);
		free_job(j);
		return;
	}
	fuse_req_interrupt_func(req, interrupt, NULL);
	keep(fs, j, NULL);
	wake();
}

int remote_start(struct fs *fs)
{
	int err = 0;

	if (!fs->o.tier || fs->tier.ask < 0)
		return 0;
	LOCK_SCOPE(&ask.lock);
	ask.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ask.wake < 0)
		return -errno;
	ask_for_list(fs, monotonic_ns());
	err = pthread_create(&ask.thread, NULL, ask_main, fs);
	ask.started = !err;
	return -err;
}

void remote_stop(void)
{
	bool started;

	{
		LOCK_SCOPE(&ask.lock);
		started = ask.started;
		ask.stop = true;
		pthread_cond_broadcast(&ask.cond);
		wake();
	}
	if (started)
		pthread_join(ask.thread, NULL);
}

static void count_damaged(const struct remote_list *l, struct remote_stats *out)
{
	for (uint32_t i = 0; i < l->n; i++) {
		if (!l->v[i].checkpoint || !atomic_load(&l->v[i].damaged))
			continue;
		snprintf(out->damaged_path, sizeof(out->damaged_path), "%s", l->v[i].path);
		out->damaged++;
	}
}

void remote_stats(struct fs *fs, struct remote_stats *out)
{
	LOCK_SCOPE(&ask.lock);

	*out = (struct remote_stats){.on = fs->o.tier, .listed = ask.list};
	if (ask.list) {
		out->checkpoints = ask.list->checkpoints;
		out->bytes = ask.list->bytes;
		count_damaged(ask.list, out);
	}
	out->fetched = ask.fetched;
	out->failed = ask.failed;
	for (const struct remote_fetch *f = ask.fetches; f; f = f->next)
		if (!f->done) {
			snprintf(out->fetching, sizeof(out->fetching), "%s", f->path);
			out->done += f->bytes;
			out->total += f->total;
		}
	snprintf(out->error, sizeof(out->error), "%s",
		 *ask.list_error ? ask.list_error : ask.fetch_error);
}
