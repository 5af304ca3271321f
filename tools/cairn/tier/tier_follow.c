/* SPDX-License-Identifier: MIT
 *
 * cairn tier push --follow: pushes what becomes complete, until it is ended. For a mount with
 * -o tier= its keeper starts this (fs/process/tier.c), with the mount's store: what that has is an
 * earlier state of the mount (P1), so no call goes to the mount, which can be unmounted at any
 * time. Nothing of the store is open between two looks.
 *
 * A look compares names, sizes and times with what is known of each checkpoint:
 *
 *	NEW ──complete──▶ WAITING ──pushed──▶ SENT
 *	 └───────◀─── its files changed ───◀───┘
 *
 * What an earlier follower sent (sent.json, tier_state.c) is WAITING, too, until a push has found
 * it in the tier; but what was not sent comes first. So a follower that is killed again and again
 * gets on. SENT becomes WAITING, too, when the tier has it no longer (tier_there.c).
 */
#include "tier_follow.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>

#define LOOK_S 5.0 /* where no event tells of changes; a look takes milliseconds */
#define LOOK_SHARE 100.0 /* at most this part of the time */
#define HOST_AGAIN_S 1.0 /* what another host has not sent, or not committed, yet */
#define MARK_S 86400.0 /* between two marks that this store writes to it */
#define ASKED_S 0.5 /* somebody asks what the tier has (io/tier.h) */
#define EVENTS_NS 300000000 /* between two looks that events cause */
#define RETRY_MIN_S 1.0
#define RETRY_MAX_S 60.0
#define KEEP_AGAIN_S 600.0 /* a copy was found bad, which takes reading it */
#define CHECK_S 1.0 /* of what was sent before, between two looks, if something happened */
#define BESIDE_MAX_S 60.0 /* between two tries of one in which only what lies beside changes */
#define RETRY_ONE_MAX_S 3600.0 /* of one checkpoint that cannot be sent as it is */

volatile sig_atomic_t follow_stop;

static void on_end(int sig)
{
	(void)sig;
	follow_stop = 1;
}

static double jittered(double s)
{
	return s * (0.75 + 0.5 * (double)random() / RAND_MAX);
}

/* ---- what is known ---------------------------------------------------------------- */

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct known *)a)->path, ((const struct known *)b)->path);
}

struct known *follow_find(const struct follow *f, const char *path)
{
	const struct known key = {.path = (char *)path};

	return f->n ? bsearch(&key, f->v, f->n, sizeof(*f->v), by_path) : NULL;
}

void follow_sort(struct follow *f)
{
	if (f->n)
		qsort(f->v, f->n, sizeof(*f->v), by_path);
}

static struct known *add_known(struct follow *f, const char *path)
{
	struct known *v = reallocarray(f->v, f->n + 1, sizeof(*v));
	char *own = strdup(path);

	if (v)
		f->v = v;
	if (!v || !own) {
		free(own);
		return NULL;
	}
	v[f->n++] = (struct known){.path = own};
	follow_sort(f);
	return follow_find(f, path);
}

void follow_set_sent_before(struct follow *f, struct known *k, bool sent)
{
	f->sent.changed |= k->sent_before != sent;
	k->sent_before = sent;
}

static void drop_unseen(struct follow *f)
{
	size_t n = 0;

	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].seen) {
			f->v[n++] = f->v[i];
		} else {
			follow_set_sent_before(f, &f->v[i], false);
			free(f->v[i].path);
		}
	f->changed |= n != f->n;
	f->n = n;
}

struct printing {
	const struct ckpt *c;
	struct print *out;
	struct names inside;
};

static int mix(void *ctx, const char *name, const struct stat *st)
{
	const uint64_t v[3] = {(uint64_t)st->st_size, (uint64_t)st->st_mtim.tv_sec,
			       (uint64_t)st->st_mtim.tv_nsec};
	const uint64_t inode[3] = {(uint64_t)st->st_ino, (uint64_t)st->st_ctim.tv_sec,
				   (uint64_t)st->st_ctim.tv_nsec};
	uint64_t named = tier_hash(TIER_HASH_BEGIN, name, strlen(name));
	uint64_t h = tier_hash(named, v, sizeof(v)), i = tier_hash(named, inode, sizeof(inode));
	const struct printing *g = ctx;
	struct print *p = g->out;

	p->hash += h * (h | 1); /* the order does not count */
	if (!g->c->alone && ckpt_is_beside(g->c->kind.format, &g->inside, name))
		p->beside += h * (h | 1);
	p->inodes += i * (i | 1);
	p->bytes += v[0];
	p->files++;
	return 0;
}

int follow_print(const struct ckpt *c, struct print *out)
{
	struct printing g = {.c = c, .out = out};
	int err = ckpt_inside(c, &g.inside);

	*out = (struct print){0};
	if (!err)
		err = ckpt_each_file(c, mix, &g, &out->others);
	names_free(&g.inside);
	return err;
}

static int print_now(const struct push *p, const char *path, struct print *out)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	int err = ckpt_open(p->s.fd, path, path, p->s.on_mount, &c);

	return err ? err : follow_print(&c, out);
}

static bool is_same(const struct print *a, const struct print *b)
{
	return a->hash == b->hash && a->files == b->files &&
	       (!a->inodes || a->inodes == b->inodes); /* an earlier version kept none */
}

/* ---- a look ------------------------------------------------------------------------ */

/* Says also why not. */
static bool is_complete(struct follow *f, struct push *p, struct known *k)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	char why[sizeof(k->why)];
	struct ckpt_verdict v;

	if (ckpt_search_judge(&p->s, p->at, &c, &v))
		return false;
	if (ckpt_is_safe(&c, &v))
		return true;
	ckpt_say_unsafe(&v, why);
	f->changed |= strcmp(why, k->why) != 0;
	snprintf(k->why, sizeof(k->why), "%s", why);
	k->since_s = (uint64_t)time(NULL) - (c.quiet_s > 0 ? (uint64_t)c.quiet_s : 0);
	return false;
}

/* A log beside the tensors may be written all the time: when only such has changed it is sent
 * after 0, 1, 2, 4, ... 60 seconds, until it is quiet for a minute. */
static void changed(struct known *k, const struct print *now)
{
	bool beside =
		k->state != KNOWN_NEW && k->print.hash - k->print.beside == now->hash - now->beside;

	if (!beside) {
		k->fails = 0;
		*k->failed = '\0';
		k->retry_at = k->waits_since = k->beside_s = 0;
	} else if (k->state == KNOWN_SENT) {
		double t = now_s(), s = t > k->retry_at + BESIDE_MAX_S ? 0 : k->beside_s;

		k->retry_at = t + s;
		k->beside_s = !s ? 1 : s * 2 > BESIDE_MAX_S ? BESIDE_MAX_S : s * 2;
	}
	k->print = *now;
	k->state = KNOWN_NEW;
}

static int look_at(struct follow *f, struct push *p)
{
	const char *path = p->s.v[p->at].path;
	struct known *k = follow_find(f, path);
	struct print now;
	int err = print_now(p, path, &now);

	if (err)
		return err == -ENOENT || err == -ENOTDIR ? 0 : err; /* gone meanwhile */
	if (!k)
		k = add_known(f, path);
	if (!k)
		return -ENOMEM;
	k->seen = true;
	if (!is_same(&k->print, &now)) {
		changed(k, &now);
		follow_set_sent_before(f, k, false);
		f->changed = true;
	}
	k->print.inodes = now.inodes;
	/* what was sent was complete; the push judges it again */
	if (k->state == KNOWN_NEW && (k->sent_before || is_complete(f, p, k))) {
		k->state = KNOWN_WAITING;
		*k->why = '\0';
		k->since_s = (uint64_t)time(NULL);
		f->changed = true;
	}
	return 0;
}

static int look(struct follow *f, struct push *p)
{
	double begun = now_s();
	int err = ckpt_search(&p->s);

	for (size_t i = 0; i < f->n; i++)
		f->v[i].seen = false;
	/* the newest first in s.v */
	for (p->at = p->s.n; !err && p->at-- > 0;)
		if (tier_wants(f->o, p->s.v[p->at].path, NULL))
			err = look_at(f, p);
	if (!err && !p->s.incomplete)
		drop_unseen(f);
	f->look_s = now_s() - begun;
	return err;
}

/* ---- pushing ------------------------------------------------------------------------ */

static void add_up(struct follow *f)
{
	struct tier_report *r = &f->report;

	r->pending = r->pending_bytes = r->oldest_s = 0;
	for (size_t i = 0; i < f->n; i++) {
		const struct known *k = &f->v[i];

		if (k->state != KNOWN_WAITING)
			continue;
		r->pending++;
		r->pending_bytes += k->print.bytes;
		if (!r->oldest_s || k->since_s < r->oldest_s)
			r->oldest_s = k->since_s;
	}
	if (*r->sending)
		r->pending_bytes -= f->now < r->pending_bytes ? f->now : r->pending_bytes;
}

static void tell(struct follow *f)
{
	add_up(f);
	if (f->shared)
		tier_shared_put(f->shared, &f->report);
}

static void on_part(struct push *p, uint64_t bytes)
{
	struct follow *f = p->ctx;
	struct known *k = follow_find(f, p->s.v[p->at].path);
	double t = now_s(), s = t - f->rate_at;

	if (k && k->sent_before) { /* the tier has it not any more */
		follow_set_sent_before(f, k, false);
		follow_remember(f, true);
	}
	f->now += bytes;
	f->rate_bytes += bytes;
	if (s < 0.5)
		return;
	f->report.rate = (uint64_t)((double)f->rate_bytes / s);
	f->rate_at = t;
	f->rate_bytes = 0;
	tell(f);
}

/* Of this checkpoint as it is: others can be sent. */
static bool is_of_one(int err)
{
	return err == -EAGAIN || err == -ESTALE || err == -EINPROGRESS || err == -EBADMSG ||
	       err == -EEXIST || err == -EINVAL || err == -ENOENT || err == -ENAMETOOLONG ||
	       err == -EILSEQ;
}

static void failed(struct follow *f, int err, const char *why)
{
	bool hint =
		!strncmp(f->tier, "s3://", 5) && (err == -EACCES || strcasestr(why, "credential"));
	struct tier_report *r = &f->report;

	snprintf(
		r->error, sizeof(r->error), "%.380s%s", why,
		hint ? "; credentials: see cairn-tier(7), CREDENTIALS; what is renewed is taken up "
		       "by the next try"
		     : "");
	if (!r->error_s)
		r->error_s = (uint64_t)time(NULL);
	f->changed = true;
}

/* For who waits for it. */
static void note_failure(struct known *k, int result, const char *why)
{
	if (result == -ESTALE)
		why = "it changed while it was sent; that is tried again";
	snprintf(k->failed, sizeof(k->failed), "%.299s", result == -EAGAIN ? "" : why);
}

/* It is looked at again soon; of one that is alive and does nothing it is told. */
static void wait_for_host(struct follow *f, struct push *p, struct known *k)
{
	f->report.sent_bytes += p->sent;
	if (!k->waits_since || p->sent)
		k->waits_since = now_s();
	k->fails = 0;
	k->retry_at = now_s() + jittered(HOST_AGAIN_S);
	if (now_s() - k->waits_since > IO_HOST_SILENT_S) {
		k->fails = 1;
		note_failure(k, -EINPROGRESS, p->why->text);
		failed(f, -EINPROGRESS, p->why->text);
	}
}

/* Is it another one, or gone, since it was looked at? Then it did not fail. */
static bool has_changed(const struct push *p, const struct known *k)
{
	struct print now;
	int err = print_now(p, k->path, &now);

	if (err)
		return err == -ENOENT || err == -ENOTDIR;
	return !is_same(&k->print, &now);
}

static void one_ended(struct follow *f, struct push *p, struct known *k, int result)
{
	struct tier_report *r = &f->report;
	double s, most;

	*r->sending = '\0';
	f->now = 0;
	f->changed = true;
	if (result >= 0) {
		k->state = KNOWN_SENT;
		follow_set_sent_before(f, k, true);
		k->waits_since = 0;
		f->keep_due = true;
		k->fails = 0;
		*k->failed = '\0';
		r->sent += result > 0;
		r->sent_bytes += p->sent;
		r->last_s = (uint64_t)time(NULL);
		snprintf(r->last, sizeof(r->last), "%s", k->path);
		if (!f->for_mount && result > 0)
			print_name(stdout, k->path), puts("  sent"), fflush(stdout);
		return;
	}
	if (follow_stop)
		return;
	if (is_of_one(result))
		follow_set_sent_before(f, k, false);
	if (result == -EINPROGRESS) {
		wait_for_host(f, p, k);
		return;
	}
	if (is_of_one(result) && has_changed(p, k))
		result = -ESTALE;
	note_failure(k, result, p->why->text);
	if (result == -EAGAIN || result == -ESTALE)
		k->state = KNOWN_NEW; /* the next look judges it */
	k->fails_there = !is_of_one(result);
	most = k->fails_there ? RETRY_MAX_S : RETRY_ONE_MAX_S;
	s = jittered(RETRY_MIN_S * (double)(1u << k->fails));
	k->retry_at = now_s() + (s < most ? s : most);
	k->fails += k->fails < 12;
	if (result != -EAGAIN && result != -ESTALE)
		failed(f, result, p->why->text);
}

static bool is_due(const struct known *k)
{
	return k && k->state == KNOWN_WAITING && k->retry_at <= now_s();
}

static int push_this(struct follow *f, struct push *p, struct known *k)
{
	int result;

	snprintf(f->report.sending, sizeof(f->report.sending), "%s", k->path);
	f->rate_at = now_s();
	f->rate_bytes = 0;
	tell(f);
	result = push_one(p);
	one_ended(f, p, k, result);
	push_drop(p);
	f->tries.fails = result >= 0 ? 0 : f->tries.fails;
	follow_remember(f, result > 0);
	tell(f);
	follow_write(f);
	return result >= 0 || is_of_one(result) ? 0 : result;
}

/* Has what was sent before been checked for so long that it is time to look for new ones? */
static bool is_look_due(const struct follow *f, double begun)
{
	struct pollfd p = {.fd = f->events, .events = POLLIN};
	double s = poll(&p, 1, 0) > 0 ? CHECK_S : LOOK_S;

	return now_s() - begun >= (s > f->look_s ? s : f->look_s);
}

enum turn { TURN_NEW, TURN_FAILED, TURN_SENT_BEFORE, TURNS };

static enum turn turn_of(const struct known *k)
{
	return k->sent_before ? TURN_SENT_BEFORE : k->fails ? TURN_FAILED : TURN_NEW;
}

/* Of those that are due; the oldest first. */
static int push_these(struct follow *f, struct push *p, enum turn turn)
{
	double begun = now_s();
	int err = 0;

	for (p->at = p->s.n; !err && p->at-- > 0 && !follow_stop && !f->cut;) {
		struct known *k = follow_find(f, p->s.v[p->at].path);

		if (!is_due(k) || turn_of(k) != turn)
			continue;
		err = push_this(f, p, k);
		f->cut = turn == TURN_SENT_BEFORE && is_look_due(f, begun);
	}
	return err;
}

/* -errno: the tier does not take anything now. */
static int push_due(struct follow *f, struct push *p)
{
	int err = 0;

	for (enum turn t = TURN_NEW; !err && t < TURNS; t++)
		err = push_these(f, p, t);
	return err;
}

static bool any_due(const struct follow *f)
{
	for (size_t i = 0; i < f->n; i++)
		if (is_due(&f->v[i]))
			return true;
	return false;
}

static bool any_failing(const struct follow *f)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].state == KNOWN_WAITING && f->v[i].fails)
			return true;
	return f->keep_fails;
}

static bool any_waits_for_host(const struct follow *f)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->v[i].state == KNOWN_WAITING && f->v[i].waits_since)
			return true;
	return false;
}

static bool is_keep_due(const struct follow *f)
{
	return f->o->keep && f->keep_due && now_s() >= f->keep_at;
}

/* What is pushed does not wait for a copy that is bad. */
static void keep(struct follow *f, struct push *p)
{
	int err = follow_keep(f, p, p->why);

	f->keep_due = f->keep_fails = err != 0;
	f->keep_at = f->keep_fails ? now_s() + jittered(KEEP_AGAIN_S) : 0;
	if (f->keep_fails)
		failed(f, err, p->why->text);
}

/* Other hosts that send to it, if the store has any. */
static int find_hosts(struct follow *f, struct push *p, struct tier_hosts *h)
{
	int err = f->for_mount ? tier_hosts_read(h, p->s.fd, f->for_mount, f->tier) : 0;

	p->hosts = tier_hosts_share(h) ? h : NULL;
	return err ? tier_told(p->why, err, "%s: its hosts: %s", f->store, strerror(-err)) : 0;
}

static int push_to_tier(struct follow *f, struct push *p)
{
	CLEANUP_TIER struct tier t = TIER_NONE;
	CLEANUP_TIER_HOSTS struct tier_hosts hosts = {0};
	int err = follow_check_tier(f, p->why);

	p->t = &t;
	if (!err)
		err = find_hosts(f, p, &hosts);
	if (!err)
		err = tier_open_to_write(&t, f->tier, f->for_mount, p->s.fd, p->why);
	if (!err)
		err = follow_mark_tier(f, &t, p->why);
	if (err) {
		there_failed(f, err != -ENOSPC && err != -EDQUOT); /* full: it is there */
		failed(f, err, p->why->text);
		return err;
	}
	tier_limit(&t, &f->pace, &follow_stop);
	if (now_s() >= f->there.mark_at) {
		stores_mark(&t, p->s.fd, f->store, f->for_mount);
		f->there.mark_at = now_s() + MARK_S;
	}
	err = push_due(f, p);
	if (err)
		there_failed(f, false);
	if (!err && !follow_stop && is_keep_due(f))
		keep(f, p);
	p->hosts = NULL;
	return err;
}

/* Which of those that were sent does it have? */
static int list_tier(struct follow *f, struct push *p)
{
	int err = there_list(f, p->s.fd, p->why);

	if (err && !follow_stop)
		failed(f, err, p->why->text);
	if (f->changed) {
		add_up(f);
		follow_write(f); /* as above: before it is told */
	}
	tell(f);
	return err;
}

/* A mount appends to its timeline when something became durable. */
static void watch_store(struct follow *f)
{
	char path[64];

	if (f->events >= 0 || f->own_host < 0)
		return;
	f->events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", f->own_host);
	if (f->events >= 0 && inotify_add_watch(f->events, path, IN_MODIFY | IN_CREATE) < 0) {
		close(f->events);
		f->events = -1;
	}
}

/* Somebody waits for what changed() holds back, or the tier has refused. */
static void release(struct follow *f)
{
	for (size_t i = 0; i < f->n; i++) {
		struct known *k = &f->v[i];
		bool held = k->fails ? k->fails_there : k->beside_s > 0;

		if (held && k->retry_at > now_s())
			k->retry_at = now_s();
	}
}

static int use_tier(struct follow *f, struct push *p)
{
	double begun = now_s();
	int err = 0;

	if (follow_stop || (begun < f->tries.retry_at && !there_hurries(f)))
		return 0;
	there_try(f);
	if (there_is_asked(f))
		release(f);
	if (there_is_due(f))
		err = list_tier(f, p);
	if (!err && !follow_stop && (any_due(f) || is_keep_due(f)))
		err = push_to_tier(f, p);
	f->tries.fails = err ? f->tries.fails : 0;
	there_tried(f, begun);
	return err;
}

/* One look, and what it finds. -errno: try again later. */
static int pass(struct follow *f)
{
	CLEANUP_CLOSE int fd = open(f->store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct tier_why why = {.text = ""};
	struct push p = {
		.o = f->o,
		.why = &why,
		.seen = on_part,
		.ctx = f,
		.s = {.top = f->store, .fd = fd, .everyone = true, .on_mount = f->on_mount}};
	struct timespec begun;
	int err = fd < 0 ? -errno : 0;

	clock_gettime(CLOCK_REALTIME, &begun);
	progress_start(&p.bar, "push", true);
	if (!err)
		err = follow_open_own(f, fd);
	watch_store(f);
	f->cut = false;
	follow_recall(f);
	if (!err)
		err = look(f, &p);
	if (err) {
		tier_told(&why, err, "%s: %s", f->store, strerror(-err));
		failed(f, err, why.text);
	}
	if (!err)
		f->report.looked_ms =
			(uint64_t)begun.tv_sec * 1000 + (uint64_t)begun.tv_nsec / 1000000;
	if (f->changed) {
		add_up(f);
		follow_write(f); /* before the look is told: who waits for that reads this */
	}
	tell(f);
	if (!err)
		err = use_tier(f, &p);
	follow_remember(f, true);
	ckpt_search_free(&p.s);
	follow_close_own(f);
	return err;
}

/* ---- waiting ------------------------------------------------------------------------- */

static void wait_for_change(struct follow *f, double at_most, const sigset_t *unblocked)
{
	struct pollfd p = {.fd = f->events, .events = POLLIN};
	struct timespec gather = {0, EVENTS_NS};
	double until = now_s() + at_most, s;
	char buf[4096];
	int n = 0;

	while (!n && !there_is_asked(f) && !there_hurries(f) && (s = until - now_s()) > 0) {
		struct timespec t;

		s = f->shared && s > ASKED_S ? ASKED_S : s; /* no event tells that somebody asks */
		t = (struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
		n = ppoll(&p, 1, &t, unblocked);
	}
	if (n <= 0)
		return;
	ppoll(NULL, 0, &gather, unblocked); /* what comes together is one look */
	while (read(f->events, buf, sizeof(buf)) > 0)
		;
}

static void say_trouble(struct follow *f)
{
	if (f->for_mount || !strcmp(f->said, f->report.error))
		return;
	snprintf(f->said, sizeof(f->said), "%s", f->report.error);
	if (*f->said)
		complain("%s", f->said);
}

static void after_pass(struct follow *f, int err)
{
	struct tier_report *r = &f->report;

	if (err && !follow_stop) {
		double s = jittered(RETRY_MIN_S * (double)(1u << f->tries.fails));

		s = s < RETRY_MAX_S ? s : RETRY_MAX_S;
		f->tries.fails += f->tries.fails < 6;
		f->tries.retry_at = now_s() + s;
		r->retry_s = (uint64_t)time(NULL) + (uint64_t)(s + 0.5);
	} else if (!err && !f->tries.fails && !any_failing(f) && *r->error) {
		*r->error = '\0';
		r->error_s = r->retry_s = 0;
		f->changed = true;
	}
	if (!r->pending)
		r->rate = 0;
	tell(f);
	say_trouble(f);
}

static int follow(struct follow *f)
{
	sigset_t ends, before;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	while (!follow_stop) {
		after_pass(f, pass(f));
		sigprocmask(SIG_BLOCK, &ends, &before);
		if (!follow_stop) {
			double share = f->look_s * LOOK_SHARE;
			double s = share < LOOK_S ? LOOK_S : share > 300 ? 300 : share;

			if (f->tries.retry_at > now_s() && f->tries.retry_at - now_s() < s)
				s = f->tries.retry_at - now_s();
			else if (f->cut)
				s = 0;
			else if (any_waits_for_host(f) && s > HOST_AGAIN_S)
				s = HOST_AGAIN_S;
			wait_for_change(f, s, &before);
		}
		sigprocmask(SIG_SETMASK, &before, NULL);
	}
	f->ended = f->changed = true;
	pass(f); /* only looks: what is not in the tier? */
	return CAIRN_OK;
}

int tier_follow(const char *store, const char *tier, const struct tier_opts *o)
{
	CLEANUP_PLACE struct location l = LOCATION_NONE;
	struct follow f = {.store = store,
			   .tier = tier,
			   .o = o,
			   .for_mount = o->for_mount,
			   .pace = {.rate = o->rate},
			   .events = -1,
			   .changed = true,
			   .own = -1,
			   .own_host = -1};
	struct sigaction sa = {.sa_handler = on_end}; /* no SA_RESTART: calls return */
	int err = location_find(store, &l);

	if (err && err != -ENODEV && err != -EXDEV) {
		complain_location(store, err);
		return location_code(err);
	}
	f.on_mount = l.on_mount;
	location_close(&l);
	if (f.for_mount)
		f.shared = follow_shared();
	srandom((unsigned)getpid() ^ (unsigned)time(NULL));
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGINT, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
	return follow(&f);
}
