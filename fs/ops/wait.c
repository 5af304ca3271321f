/* SPDX-License-Identifier: MIT
 * user.cairn.wait, user.cairn.wait.MS: a getxattr(2) that is answered once all that is at or below
 * a node is durable, or will not become so, or after MS milliseconds.
 *
 * No thread waits for it: the request is kept in a list, and one thread, cairn-waits, answers all
 * of them. It looks when staging says that something moved (waits_wake), once at what is open for
 * all who wait; what is pending it knows from the nodes. If the worker dies, the kernel sends the
 * requests to the next one. A kernel that cannot would leave their callers waiting for ever: there,
 * and where too many wait, callers get an error and poll.
 */
#include "fs/ops/inside.h"
#include "io/number.h"

#include <stdlib.h>
#include <string.h>

#define WAITS_MAX 4096u /* some 200 bytes each, here and in libfuse */
#define WAITS_PER_USER 1024u
#define MS_MAX 1000000000ull
#define WAIT_VALUE_MAX 16u /* bytes that the longest answer fits into */

/* One request. cairn-waits alone takes it out of the list. */
struct wait {
	struct wait *next;
	fuse_req_t req;
	uint32_t uid;
	struct node *node; /* it is not freed: node->waits */
	uint64_t seq; /* and everything up to this record is to be durable */
	uint64_t until_ns; /* UINT64_MAX: no limit */
	uint64_t look; /* staging_ask_waiting(); 0: not asked for */
	/* whoever added it does not use the request any more */
	atomic_bool ready;
	atomic_bool interrupted;
	/* the answer: */
	int err; /* 0 or -errno */
	const char *value; /* NULL without err: it goes on waiting */
};

bool wait_parse(const char *key, uint64_t *ms)
{
	const char *p = key + sizeof(KEY_WAIT) - 1;

	*ms = UINT64_MAX;
	if (strncmp(key, KEY_WAIT, sizeof(KEY_WAIT) - 1))
		return false;
	if (!*p)
		return true;
	return *p == '.' && number_is(p + 1, ms) && *ms <= MS_MAX;
}

/* ---- what the answer is; the tree lock is held ---- */

static bool is_removed(const struct fs *fs, const struct node *n)
{
	return n != fs->tree.root && !n->names && (S_ISDIR(n->attr.mode) || !n->attr.unknown);
}

/* What is late may have been removed, or its files may have come, since it was asked about. */
static bool is_held(struct fs *fs, struct wait *w, struct node *n)
{
	if (!staging_waits_long(fs->s) || !waits_below(fs, n))
		return false;
	if (!w->look)
		w->look = staging_ask_waiting(fs->s);
	return staging_has_asked_waiting(fs->s, w->look);
}

/* After below_look_all(). */
static void judge(struct fs *fs, struct wait *w, bool halted, uint64_t now)
{
	struct node *n = node_current(fs, w->node->id);
	enum below_rank rank = below_seen(fs, n);

	if (rank == BELOW_DURABLE && staging_durable(fs->s) < w->seq)
		rank = BELOW_STAGED;
	if (is_removed(fs, n))
		w->err = -ENOENT;
	else if (rank == BELOW_DURABLE || rank == BELOW_FAILED)
		w->value = below_name(rank);
	else if (halted)
		w->value = "halted";
	else if (is_held(fs, w, n))
		w->value = "held";
	else if (now >= w->until_ns)
		w->value = below_name(rank == BELOW_OPEN ? rank : BELOW_STAGED);
}

static bool is_halted(struct fs *fs)
{
	int err;
	staging_halted_at(fs->s, &err);
	return err;
}

/* ---- the thread ---- */

/* Takes out of the list what has an answer. The tree lock is held. */
static struct wait *take_answered(struct fs *fs)
{
	struct wait *out = NULL;
	LOCK_SCOPE(&fs->waits.lock);

	for (struct wait **at = &fs->waits.list, *w; (w = *at);) {
		if (!w->err && !w->value) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		w->next = out;
		out = w;
		atomic_fetch_sub(&fs->waits.n, 1);
	}
	return out;
}

/* Those to be answered. *until_ns: when the next one's time is over. */
static struct wait *look(struct fs *fs, bool last, uint64_t *until_ns)
{
	uint64_t now = monotonic_ns();
	struct wait *out, *w;

	*until_ns = UINT64_MAX;
	TREE_SCOPE(fs);
	below_look_all(fs);
	bool halted = is_halted(fs);
	/* others only put new ones in front */
	pthread_mutex_lock(&fs->waits.lock);
	w = fs->waits.list;
	pthread_mutex_unlock(&fs->waits.lock);
	for (; w; w = w->next) {
		if (!atomic_load(&w->ready))
			continue;
		judge(fs, w, halted, now);
		if (!w->err && !w->value)
			w->err = last ? -ENOTCONN : atomic_load(&w->interrupted) ? -EINTR : 0;
		if (!w->err && !w->value && w->until_ns < *until_ns)
			*until_ns = w->until_ns;
	}
	out = take_answered(fs);
	for (w = out; w; w = w->next) {
		w->node->waits--;
		node_release(fs, w->node);
	}
	return out;
}

static void answer(fuse_req_t req, const struct wait *w)
{
	if (w->err)
		fuse_reply_err(req, -w->err);
	else
		fuse_reply_buf(req, w->value, strlen(w->value));
}

/* Until something moved, or until that time. True: it is the last look. */
static bool await_moves(struct fs *fs, uint64_t until_ns)
{
	struct timespec t = {.tv_sec = (time_t)(until_ns / 1000000000u),
			     .tv_nsec = (long)(until_ns % 1000000000u)};
	LOCK_SCOPE(&fs->waits.lock);

	while (!fs->waits.moved && !fs->waits.stop && monotonic_ns() < until_ns)
		if (until_ns == UINT64_MAX)
			pthread_cond_wait(&fs->waits.cond, &fs->waits.lock);
		else
			pthread_cond_timedwait(&fs->waits.cond, &fs->waits.lock, &t);
	fs->waits.moved = false;
	return fs->waits.stop;
}

static void *waits_main(void *arg)
{
	struct fs *fs = arg;
	uint64_t until_ns = UINT64_MAX;
	bool last = false;

	pthread_setname_np(pthread_self(), "cairn-waits");
	while (!last) {
		last = await_moves(fs, until_ns);
		for (struct wait *w = look(fs, last, &until_ns), *next; w; w = next) {
			next = w->next;
			answer(w->req, w);
			free(w);
		}
	}
	return NULL;
}

void waits_stop(struct fs *fs)
{
	if (!fs->waits.started)
		return;
	staging_tell_moves(fs->s, NULL, NULL);
	pthread_mutex_lock(&fs->waits.lock);
	fs->waits.stop = true;
	pthread_cond_signal(&fs->waits.cond);
	pthread_mutex_unlock(&fs->waits.lock);
	pthread_join(fs->waits.thread, NULL);
	fs->waits.started = fs->waits.stop = false;
}

/* ---- a request ---- */

/* libfuse has read an INTERRUPT of req, which is not freed meanwhile. */
static void interrupt(fuse_req_t req, void *data)
{
	struct fs *fs = data;
	LOCK_SCOPE(&fs->waits.lock);

	for (struct wait *w = fs->waits.list; w; w = w->next)
		if (w->req == req) {
			atomic_store(&w->interrupted, true);
			fs->waits.moved = true;
			pthread_cond_signal(&fs->waits.cond);
		}
}

static bool too_many(const struct fs *fs, uint32_t uid)
{
	unsigned theirs = 0;

	for (const struct wait *w = fs->waits.list; w; w = w->next)
		theirs += w->uid == uid;
	return theirs >= WAITS_PER_USER || atomic_load(&fs->waits.n) >= WAITS_MAX;
}

/* Puts w into the list, not ready. 0; -ENODATA: the kernel could not send it again; -EAGAIN. The
 * tree lock is held. */
static int keep(struct fs *fs, struct wait *w)
{
	bool starts = false;

	if (!fs->waits.resent)
		return -ENODATA;
	{
		LOCK_SCOPE(&fs->waits.lock);
		if (too_many(fs, w->uid))
			return -EAGAIN;
		if (!fs->waits.started) {
			starts = !pthread_create(&fs->waits.thread, NULL, waits_main, fs);
			fs->waits.started = starts;
		}
		if (!fs->waits.started)
			return -EAGAIN;
		w->next = fs->waits.list;
		fs->waits.list = w;
		atomic_fetch_add(&fs->waits.n, 1);
	}
	w->node->waits++;
	if (starts)
		staging_tell_moves(fs->s, waits_wake, fs);
	return 0;
}

/* Answers at once if it can: 0. -EINPROGRESS: w is in the list. Other errors: w is not. */
static int begin(struct fs *fs, fuse_ino_t id, struct wait *w)
{
	TREE_SCOPE(fs);
	struct node *n = node_current(fs, id);

	if (!n || n->buf)
		return n ? -ENODATA : -ESTALE;
	w->node = n;
	w->seq = n == fs->tree.root ? staging_last_seq(fs->s) : 0;
	below_look_all(fs);
	judge(fs, w, is_halted(fs), monotonic_ns());
	if (w->err || w->value)
		return 0;
	int err = keep(fs, w);
	return err ? err : -EINPROGRESS;
}

void wait_ask(fuse_req_t req, fuse_ino_t id, uint64_t ms, size_t size)
{
	struct fs *fs = req_fs(req);
	struct wait *w = NULL;
	int err = 0;

	atomic_fetch_add(&fs->waits.asked, 1);
	if (size < WAIT_VALUE_MAX) {
		if (size)
			fuse_reply_err(req, ERANGE);
		else
			fuse_reply_xattr(req, WAIT_VALUE_MAX);
		return;
	}
	if (!(w = calloc(1, sizeof(*w)))) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	w->req = req;
	w->uid = fuse_req_ctx(req)->uid;
	w->until_ns = ms == UINT64_MAX ? UINT64_MAX : monotonic_ns() + ms * 1000000u;
	err = begin(fs, id, w);
	if (err == -EINPROGRESS) {
		/* not before it is in the list, where it may be interrupted already */
		fuse_req_interrupt_func(req, interrupt, fs);
		atomic_store(&w->ready, true);
		waits_wake(fs);
		return;
	}
	if (err)
		w->err = err;
	answer(req, w);
	free(w);
}
