/* SPDX-License-Identifier: MIT
 * Says to the other hosts of the store that this one is alive, and looks which of them are gone
 * (io/store/hosts.c). A host that is alone on a local disk says it once, at its start: so the disk
 * of a machine that is idle may rest. It sees another host within IO_HOST_BEAT_S, and from then on
 * both say it each IO_HOST_BEAT_S.
 */
#include "fs/process/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/thread.h"

#define END_S 5 /* how long a clean end waits for the store */
/* Nobody takes the claim of one that said so long ago that it is alive, or less. */
#define SURE_S (IO_HOST_LIVE_S - 5)
/* Hosts asked about at each beat, on average: with 160 of them, all are asked every 100 s. So what
 * the store has to answer grows with the hosts, not with their square. */
#define ASKS_PER_BEAT 16u

struct others {
	const char *own;
	struct heard {
		char name[72];
		int64_t at; /* by the store's clock */
	} * v;
	size_t n, cap;
};

static void take(void *ctx, const struct io_host *h)
{
	struct others *o = ctx;

	if (!strcmp(h->name, o->own))
		return;
	if (o->n == o->cap) {
		size_t cap = o->cap ? o->cap * 2 : 64;
		void *more = realloc(o->v, cap * sizeof(*o->v));

		if (!more)
			return;
		o->v = more;
		o->cap = cap;
	}
	memcpy(o->v[o->n].name, h->name, sizeof(h->name));
	o->v[o->n++].at = h->heard;
}

static void tell(struct fs *fs, const struct others *o, int64_t now)
{
	struct hosts *t = &fs->hosts;
	LOCK_SCOPE(&t->lock);

	t->alive = t->gone = 0;
	for (size_t i = 0; i < o->n; i++) {
		int64_t silent = now - o->v[i].at;

		if (silent < IO_HOST_SILENT_S) {
			t->alive++;
			continue;
		}
		if (t->gone < HOSTS_TOLD) {
			struct host_gone *g = &t->told[t->gone];

			memcpy(g->name, o->v[i].name, sizeof(g->name));
			g->since_ns = monotonic_ns() - (uint64_t)silent * 1000000000u;
		}
		t->gone++;
	}
}

/* ---- the claim ---- */

bool hosts_refused(struct fs *fs, int err, const struct io_host *by, char *text, size_t cap)
{
	struct hosts *t = &fs->hosts;
	char who[sizeof(t->taker)] = "";

	if (err == -EADDRINUSE) {
		snprintf(who, sizeof(who), by->pid ? "pid %d%s%s" : "it has ended", by->pid,
			 by->machine[0] ? " on " : "", by->machine);
		snprintf(text, cap,
			 LEVEL_ERROR
			 "another cairnfs serves this store as the host %.72s (%s), or did a "
			 "moment ago; this one publishes nothing, staging keeps everything, and it "
			 "goes on when the other is unmounted; mount one of them with -o host=NAME",
			 io_store_host(fs->store), who);
	} else {
		snprintf(text, cap, LEVEL_ERROR "the store %.120s cannot be opened again: %s",
			 fs->o.store, strerror(-err));
	}
	LOCK_SCOPE(&t->lock);
	bool is_new = err != atomic_load(&fs->away.error) || strcmp(who, t->taker);
	strcpy(t->taker, who);
	atomic_store(&fs->away.error, err);
	return is_new;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t); /* while a machine sleeps its claim may be taken */
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* How a question about the claim that began at `asked` ended: err. If another has the claim this
 * worker ends, and the keeper closes the store (keeper.c). */
static int asked_claim(struct fs *fs, uint64_t asked, int err)
{
	if (err == -EADDRINUSE && keeper_is_there(fs))
		worker_exit(fs, EXIT_CLAIM_LOST);
	if (err != -EADDRINUSE) /* of one that has none, or a store that fails, nothing is known */
		atomic_store(&fs->hosts.sure_ns, asked);
	return err;
}

/* now NULL: without a word to others. */
static int heartbeat(struct fs *fs, int64_t *now)
{
	uint64_t asked = now_ns();

	return asked_claim(fs, asked, io_host_beat(fs->store, now));
}

int hosts_may_publish(void *ctx)
{
	struct fs *fs = ctx;
	int64_t now;

	if (fs->o.ro || now_ns() - atomic_load(&fs->hosts.sure_ns) < SURE_S * 1000000000ull)
		return 0;
	return heartbeat(fs, &now) == -EADDRINUSE ? -EADDRINUSE : 0;
}

static int say(struct fs *fs, enum io_host_said said, uint64_t left)
{
	uint64_t up_s = (monotonic_ns() - fs->procs.mounted_ns) / 1000000000u;
	struct io_host h = {.said = said,
			    .pid = atomic_load(&fs->procs.keeper_pid),
			    .since = time(NULL) - (int64_t)up_s,
			    .left = left};

	snprintf(h.version, sizeof(h.version), "%s", CAIRN_VERSION);
	uint64_t asked = now_ns();
	return asked_claim(fs, asked, io_host_say(fs->store, &h));
}

/* True: this host ends. */
static bool wait_beat(struct hosts *t, unsigned seconds)
{
	struct timespec until;
	LOCK_SCOPE(&t->lock);

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += seconds;
	while (!t->ends && pthread_cond_timedwait(&t->cond, &t->lock, &until) != ETIMEDOUT)
		;
	return t->ends;
}

/* As a start finds it; seen: one that beats. A host whose start failed is none any more: it removed
 * its directory. */
static void look_for_others(struct fs *fs, bool seen)
{
	int shared = io_store_shared(fs->store);

	if (seen || shared >= 0)
		atomic_store(&fs->hosts.others, seen || shared);
}

/* An alone one begins to beat up to IO_HOST_BEAT_S after another came: none is told before. */
static void beat_until_end(struct fs *fs, struct others *o)
{
	bool local = io_store_frees_at_close(fs->store);
	bool said = !say(fs, IO_HOST_ALIVE, 0);
	unsigned next_look = 1;
	int64_t now;

	for (unsigned beat = 1; !wait_beat(&fs->hosts, IO_HOST_BEAT_S); beat++) {
		bool look = beat >= next_look, asked = local && io_host_asked(fs->store);
		size_t before = o->n;

		if (look) {
			o->n = 0;
			io_hosts_each(io_store_cairn(fs->store), false, take, o);
			next_look = beat + 1 + (unsigned)(o->n / ASKS_PER_BEAT);
			look_for_others(fs, o->n);
		}
		if (said && local && !o->n && !before && !asked) {
			atomic_store(&fs->hosts.beats, false);
			heartbeat(fs, NULL);
			continue;
		}
		int err = said ? heartbeat(fs, &now) : -ENOENT;
		bool again = err == -ENOENT;
		if (again)
			err = say(fs, IO_HOST_ALIVE, 0);
		said = !err || !again;
		if (err == -EADDRINUSE) /* and no keeper closes the store: publication halts */
			err = 0;
		atomic_store(&fs->hosts.beats, !err);
		if (!again && err)
			atomic_store(&fs->away.look, true);
		else if (!again && look && beat > 1)
			tell(fs, o, now);
	}
}

static void *hosts_main(void *arg)
{
	struct fs *fs = arg;
	struct others o = {.own = io_store_host(fs->store)};

	pthread_setname_np(pthread_self(), "cairn-hosts");
	beat_until_end(fs, &o);
	say(fs, IO_HOST_ENDED, fs->hosts.left);
	if (fs->hosts.all)
		staged_in_end(fs, fs->hosts.log);
	free(o.v);
	LOCK_SCOPE(&fs->hosts.lock);
	fs->hosts.runs = false;
	pthread_cond_broadcast(&fs->hosts.cond);
	return NULL;
}

int hosts_start(struct fs *fs)
{
	if (fs->o.ro || io_store_is_detached(fs->store))
		return 0;
	fs->hosts.runs = true;
	int err = thread_detached(hosts_main, fs);
	if (err)
		fs->hosts.runs = false;
	return err;
}

void hosts_end(struct fs *fs, bool all)
{
	struct hosts *t = &fs->hosts;
	struct staging_stats st;
	struct timespec until;

	if (fs->o.ro)
		return;
	staging_get_stats(fs->s, &st);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += END_S;
	LOCK_SCOPE(&t->lock);
	t->left = st.log.pending;
	t->log = staging_log_id(fs->s);
	t->all = all;
	t->ends = true;
	pthread_cond_broadcast(&t->cond);
	while (t->runs && pthread_cond_timedwait(&t->cond, &t->lock, &until) != ETIMEDOUT)
		;
}
