/* SPDX-License-Identifier: MIT
 * The statistics of a mount: collected once, then written as text (status), as status.json or as
 * metrics. One table lists the fields of the last two.
 */
#include "fs/parser/parser.h"
#include "fs/control/stats.h"
#include "fs/remote/remote.h"
#include "io/goes_on.h"
#include "io/refused.h"
#include "io/scope.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOTICES 16u

/* Names that wait for other nodes. */
struct stats_holds {
	bool any;
	uint64_t names, since_s;
	char text[640]; /* the first, and what is missing; "" = none */
};

/* The other hosts of the store. */
struct stats_hosts {
	uint64_t alive, gone;
	struct host_gone told[HOSTS_TOLD];
	char taker[sizeof(((struct hosts *)0)->taker)];
	unsigned n;
};

/* The tier, as its follower told last. */
struct stats_tier {
	bool on, running, killed; /* killed: nothing starts it again */
	const char *place;
	uint64_t pid, starts, runner, guard, runner_starts;
	uint64_t waits_s, eta_s, error_s, retry_s, last_s, last_ago_s;
	struct tier_report r;
};

/* The store does not answer. */
struct stats_silent {
	bool is;
	uint64_t ns, s, calls;
};

struct stats_now {
	uint64_t uptime_s, worker_uptime_s, closing, closing_s;
	bool space_known, inodes_known;
	uint64_t space_free, space_size, free_inodes, oldest_s, previous_s;
	struct staging_pending pending;
	struct stats_holds holds;
	struct stats_hosts hosts;
	struct stats_tier tier;
	struct remote_stats fetch;
	struct stats_silent silent;
	bool keeper_alive;
	const char *host;
	const struct timings *timings;
};
struct wait_calls {
	uint64_t now, asked;
};
struct notice_list {
	char text[NOTICES][256];
	unsigned n;
};

struct stats {
	struct staging_stats s;
	struct stats_now now;
	struct io_counts calls; /* calls to the store */
	const char *version, *store, *mountpoint, *store_id, *engine, *fsync, *staging_dir;
	/* gone: the store's filesystem */
	bool passthrough, ro, keeper_gone, gone, halted, refused;
	int gone_error;
	uint64_t pid, keeper_pid, restarts, keepers_replaced, parser_failures, free, queue_depth,
		bytes_read, gone_s, halted_s;
	uint64_t lanes[N_LANES];
	struct wait_calls wait_calls;
	struct notice_list notices;
};

static const char hidden[] = "(shown to root and to the mount's owner)";

/* Names of files, which may be in private directories, are shown only to root and to the user who
 * mounted; others see that there are some. Text added to staging_stats must be covered here. */
static void redact(struct staging_stats *s, bool all)
{
	char *why = strrchr(s->last_error, ':');

	if (all)
		return;
	if (s->halted.path[0])
		snprintf(s->halted.path, sizeof(s->halted.path), "%s", hidden);
	if (s->last_error[0]) {
		char text[sizeof(s->last_error)];
		snprintf(text, sizeof(text), "%s%.100s", hidden, why ? why : "");
		memcpy(s->last_error, text, sizeof(text));
	}
	if (s->waiting_mapped[0])
		snprintf(s->waiting_mapped, sizeof(s->waiting_mapped), "%s\n", hidden);
	if (s->held.path[0])
		snprintf(s->held.path, sizeof(s->held.path), "%s", hidden);
	s->held.what[0] = 0;
	if (s->previous.path[0])
		snprintf(s->previous.path, sizeof(s->previous.path), "%s", hidden);
}

static uint64_t seconds_since(uint64_t ns)
{
	return ns ? (monotonic_ns() - ns) / 1000000000u : 0;
}

static void collect_hosts(struct fs *fs, struct stats_hosts *out)
{
	LOCK_SCOPE(&fs->hosts.lock);

	out->alive = fs->hosts.alive;
	out->gone = fs->hosts.gone;
	out->n = fs->hosts.gone < HOSTS_TOLD ? fs->hosts.gone : HOSTS_TOLD;
	memcpy(out->told, fs->hosts.told, sizeof(out->told));
	memcpy(out->taker, fs->hosts.taker, sizeof(out->taker));
}

static uint64_t ago(uint64_t then_s)
{
	uint64_t now = (uint64_t)time(NULL);

	return then_s && then_s < now ? now - then_s : 0;
}

static void collect_tier(struct fs *fs, struct stats_tier *t, bool all)
{
	const struct tier_shared *s = fs->tier.shared;
	struct pollfd done = {.fd = fs->tier.done};

	memset(t, 0, sizeof(*t));
	t->on = fs->o.tier;
	t->place = fs->o.tier;
	if (!s)
		return;
	tier_shared_get(s, &t->r);
	t->killed = fs->tier.done >= 0 && poll(&done, 1, 0) > 0;
	t->pid = t->killed ? 0 : (uint64_t)atomic_load(&s->pid);
	t->running = t->pid;
	t->starts = atomic_load(&s->starts);
	t->runner = (uint64_t)atomic_load(&s->runner);
	t->guard = (uint64_t)atomic_load(&s->guard);
	t->runner_starts = atomic_load(&s->runner_starts);
	t->waits_s = ago(t->r.oldest_s);
	t->last_ago_s = ago(t->r.last_s);
	t->eta_s = t->r.rate ? t->r.pending_bytes / t->r.rate : 0;
	t->error_s = ago(t->r.error_s);
	t->retry_s = t->r.retry_s > (uint64_t)time(NULL) ? t->r.retry_s - (uint64_t)time(NULL) : 0;
	if (!all && *t->r.error)
		snprintf(t->r.error, sizeof(t->r.error), "%s", hidden);
	if (!all)
		t->r.sending[0] = t->r.last[0] = t->r.other[0] = 0;
	text_plain(t->r.other, 0);
}

static void collect_fetch(struct fs *fs, struct remote_stats *out, bool all)
{
	remote_stats(fs, out);
	text_plain(out->error, 0);
	if (!all && *out->error)
		snprintf(out->error, sizeof(out->error), "%s", hidden);
	text_plain(out->damaged_path, 0);
	if (!all && *out->damaged_path)
		snprintf(out->damaged_path, sizeof(out->damaged_path), "%s", hidden);
	if (!all && *out->fetching)
		snprintf(out->fetching, sizeof(out->fetching), "%s", hidden);
}

static void collect_silent(struct fs *fs, struct stats_silent *out)
{
	uint64_t since = io_store_silent_since(fs->store);

	*out = (struct stats_silent){.is = since};
	if (!since)
		return;
	out->ns = monotonic_ns() - since;
	out->s = out->ns / 1000000000u;
	out->calls = atomic_load(&fs->slots.n_asking);
}

static void collect_now(struct fs *fs, struct stats_now *now)
{
	now->uptime_s = seconds_since(fs->procs.mounted_ns);
	now->worker_uptime_s = seconds_since(fs->procs.worker_ns);
	now->closing = atomic_load(&fs->timings.closing);
	now->closing_s = now->closing ? seconds_since(atomic_load(&fs->timings.closing_ns)) : 0;
	store_space_look(fs);
	now->space_free = atomic_load(&fs->space.free);
	now->space_size = atomic_load(&fs->space.size);
	now->space_known = now->space_size;
	now->free_inodes = atomic_load(&fs->space.free_inodes);
	now->inodes_known = now->space_known && now->free_inodes != SPACE_NO_LIMIT;
	staging_get_pending(fs->s, &now->pending);
	collect_hosts(fs, &now->hosts);
	collect_silent(fs, &now->silent);
	now->keeper_alive = !atomic_load(&fs->procs.keeper_gone);
	now->host = fs->procs.host;
	now->timings = &fs->timings;
	now->oldest_s = now->pending.oldest_ns / 1000000000u;
}

static void collect(struct fs *fs, struct stats *st, bool all)
{
	time_t now = time(NULL);

	staging_get_stats(fs->s, &st->s);
	collect_now(fs, &st->now);
	collect_tier(fs, &st->now.tier, all);
	collect_fetch(fs, &st->now.fetch, all);
	redact(&st->s, all);
	st->now.holds.any = st->s.held.count || st->s.held.behind;
	st->now.holds.names = st->s.held.count;
	st->now.holds.since_s = st->s.held.since ? (uint64_t)(now - st->s.held.since) : 0;
	st->now.previous_s = st->s.previous.since ? (uint64_t)(now - st->s.previous.since) : 0;
	st->now.holds.text[0] = 0;
	if (st->s.held.count)
		snprintf(st->now.holds.text, sizeof(st->now.holds.text), "%s%s%s", st->s.held.path,
			 st->s.held.what[0] ? ": " : "", st->s.held.what);
	io_engine_counts(fs->engine, &st->calls);
	st->version = CAIRN_VERSION;
	st->store = fs->o.store;
	st->mountpoint = fs->o.mountpoint;
	st->store_id = io_store_id(fs->store);
	st->engine = io_engine_name(fs->engine);
	st->fsync = fs->o.fsync_staged ? "staged" : "strict";
	st->staging_dir = fs->place.path;
	st->passthrough = atomic_load(&fs->lanes.passthrough);
	st->ro = fs->o.ro;
	st->pid = (uint64_t)getpid();
	st->keeper_pid = (uint64_t)atomic_load(&fs->procs.keeper_pid);
	st->keeper_gone = atomic_load(&fs->procs.keeper_gone);
	st->keepers_replaced = keepers_replaced(fs);
	st->restarts = fs->procs.restarts;
	st->parser_failures = parser_failures();
	st->gone = fs->away.since;
	st->gone_s = st->gone ? (uint64_t)(now - fs->away.since) : 0;
	st->gone_error = fs->away.error;
	st->halted = st->s.halted.error;
	st->halted_s = st->halted ? (uint64_t)(now - st->s.halted.since) : 0;
	st->refused = st->s.refused.count;
	st->free = st->s.budget > st->s.used ? st->s.budget - st->s.used : 0;
	st->queue_depth = st->s.queue_depth;
	st->bytes_read = fs->lanes.bytes_read;
	st->wait_calls.now = atomic_load(&fs->waits.n);
	st->wait_calls.asked = atomic_load(&fs->waits.asked);
	for (unsigned i = 0; i < N_LANES; i++)
		st->lanes[i] = fs->lanes.opens[i];
	pthread_mutex_lock(&fs->notices.lock);
	/* notices contain names of files */
	st->notices.n = !all ? 0 : fs->notices.n < NOTICES ? fs->notices.n : NOTICES;
	for (unsigned i = 0; i < st->notices.n; i++)
		memcpy(st->notices.text[i],
		       fs->notices.text[(fs->notices.n - st->notices.n + i) % NOTICES],
		       sizeof(st->notices.text[i]));
	pthread_mutex_unlock(&fs->notices.lock);
}

/* ---- the table ---- */

enum kind {
	TEXT, /* char * */
	CHARS, /* char[] */
	CHARS_OR_NULL, /* char[], null where it is empty */
	LINES, /* char[], a list with '\n' between */
	NOTICE_LIST, /* the notices */
	HOST_LIST, /* struct stats_hosts: those that are gone */
	ERROR, /* int, -errno */
	FLAG, /* bool */
	COUNT, /* uint64_t */
	SECONDS, /* uint64_t, in nanoseconds */
};

#define AT(field) offsetof(struct stats, field)
#define JSON(group_, key_, kind_, field)                                                           \
	.group = group_, .key = key_, .kind = kind_, .at = AT(field)
#define COUNTER(name, text) .metric = name, .type = "counter", .help = text
#define GAUGE(name, text) .metric = name, .type = "gauge", .help = text
/* one more sample of the previous metric */
#define ALSO(name, labels) .metric = name, .label = labels

/* In the order of both files. */
static const struct field {
	/* in status.json: the object ("": outermost); no key: not there */
	const char *group, *key;
	enum kind kind;
	size_t at;
	size_t needs; /* the group is null unless this bool is set; 0: none */
	const char *metric, *type, *help, *label; /* in metrics; no metric: not there */
} fields[] = {
	{JSON("", "version", TEXT, version)},
	{JSON("", "pid", COUNT, pid)},
	{JSON("", "keeper_pid", COUNT, keeper_pid)},
	{JSON("", "store", TEXT, store)},
	{JSON("", "mountpoint", TEXT, mountpoint)},
	{JSON("", "store_id", TEXT, store_id)},
	{JSON("", "engine", TEXT, engine)},
	{JSON("", "passthrough", FLAG, passthrough)},
	{JSON("", "fsync", TEXT, fsync)},
	{JSON("", "ro", FLAG, ro)},
	{JSON("", "restarts", COUNT, restarts),
	 COUNTER("worker_restarts_total", "Worker restarts.")},
	{JSON("", "parser_failures", COUNT, parser_failures),
	 COUNTER("parser_failures_total", "Parsers that died or were killed.")},
	{JSON("", "keepers_replaced", COUNT, keepers_replaced),
	 COUNTER("keepers_replaced_total", "Keepers that were killed and replaced by a spare.")},
	{JSON("", "keeper_gone", FLAG, keeper_gone),
	 GAUGE("keeper_gone",
	       "1 if keeper and spare were killed: the worker cannot be restarted.")},
	{.at = AT(now.keeper_alive),
	 .kind = FLAG,
	 GAUGE("keeper_alive", "1 if a keeper or its spare would restart the worker.")},
	{JSON("", "uptime_s", COUNT, now.uptime_s),
	 GAUGE("uptime_seconds", "Time since the mount.")},
	{JSON("", "worker_uptime_s", COUNT, now.worker_uptime_s),
	 GAUGE("worker_uptime_seconds", "Time since the worker's last start.")},
	{JSON("closing", "files", COUNT, now.closing)},
	{JSON("closing", "since_s", COUNT, now.closing_s)},
	{JSON("not_durable", "files", COUNT, now.pending.files),
	 GAUGE("pending_files", "Versions of files that are closed and not durable.")},
	{JSON("not_durable", "bytes", COUNT, now.pending.bytes),
	 GAUGE("pending_bytes", "Their bytes that are not written to the store yet.")},
	{JSON("not_durable", "oldest_s", COUNT, now.oldest_s)},
	{.at = AT(now.pending.oldest_ns),
	 .kind = SECONDS,
	 GAUGE("oldest_pending_seconds", "Age of the oldest change that is not durable.")},
	{JSON("space", "free_bytes", COUNT, now.space_free), .needs = AT(now.space_known),
	 GAUGE("store_free_bytes", "Free space of the store's filesystem.")},
	{JSON("space", "size_bytes", COUNT, now.space_size), .needs = AT(now.space_known),
	 GAUGE("store_size_bytes", "Size of the store's filesystem.")},
	{JSON("space", "free_inodes", COUNT, now.free_inodes), .needs = AT(now.inodes_known),
	 GAUGE("store_free_inodes", "Files that the store's filesystem may get, if limited.")},
	{JSON("staging", "dir", TEXT, staging_dir)},
	{JSON("staging", "budget_bytes", COUNT, s.budget),
	 GAUGE("budget_bytes", "Staging budget.")},
	{JSON("staging", "used_bytes", COUNT, s.used),
	 GAUGE("budget_used_bytes", "Staging budget in use.")},
	{JSON("staging", "pool_bytes", COUNT, s.pool),
	 GAUGE("pool_bytes", "Free staging memory held ready in the page pool.")},
	{JSON("staging", "pool_target_bytes", COUNT, s.pool_target)},
	/* as they were called until 0.1.0 */
	{JSON("staging", "ballast_bytes", COUNT, s.pool),
	 GAUGE("ballast_bytes", "The same as pool_bytes.")},
	{JSON("staging", "ballast_target_bytes", COUNT, s.pool_target)},
	{JSON("staging", "free_bytes", COUNT, free)},
	{JSON("versions", "open", COUNT, s.versions.open),
	 GAUGE("versions", "Staged files by state."), .label = "state=\"open\""},
	{JSON("versions", "staged", COUNT, s.versions.sealed),
	 ALSO("versions", "state=\"staged\"")},
	{JSON("versions", "persisting", COUNT, s.versions.persisting),
	 ALSO("versions", "state=\"persisting\"")},
	{JSON("versions", "durable_cached", COUNT, s.versions.durable),
	 ALSO("versions", "state=\"durable\"")},
	{JSON("versions", "failed", COUNT, s.versions.failed),
	 ALSO("versions", "state=\"failed\"")},
	{.at = AT(s.versions.failed),
	 .kind = COUNT,
	 GAUGE("failed_files", "Files whose close failed and that wait for space.")},
	{JSON("log", "last_seq", COUNT, s.log.last_seq)},
	{JSON("log", "applied_seq", COUNT, s.log.applied)},
	{JSON("log", "durable_seq", COUNT, s.log.durable)},
	{JSON("log", "pending", COUNT, s.log.pending),
	 GAUGE("pending_records", "Changes not yet in the store.")},
	{JSON("log", "bytes", COUNT, s.log.bytes)},
	{JSON("opens", "fast", COUNT, lanes[LANE_FAST]), COUNTER("opens_total", "Opens by lane."),
	 .label = "lane=\"fast\""},
	{JSON("opens", "spill", COUNT, lanes[LANE_SPILL]), ALSO("opens_total", "lane=\"spill\"")},
	{JSON("opens", "read", COUNT, lanes[LANE_READ]), ALSO("opens_total", "lane=\"read\"")},
	{JSON("opens", "relay", COUNT, lanes[LANE_RELAY]), ALSO("opens_total", "lane=\"relay\"")},
	{JSON("bytes", "staged", COUNT, s.bytes_staged),
	 COUNTER("staged_bytes_total", "Bytes accepted into staging.")},
	{JSON("bytes", "early", COUNT, s.bytes_early),
	 COUNTER("early_bytes_total",
		 "Bytes written to the store while their files were written.")},
	{JSON("bytes", "unchanged", COUNT, s.bytes_unchanged),
	 COUNTER("unchanged_bytes_total",
		 "Bytes of files opened again that the version before has in the store.")},
	{JSON("bytes", "persisted", COUNT, s.bytes_persisted),
	 COUNTER("persisted_bytes_total", "Bytes published and durable.")},
	{JSON("bytes", "written", COUNT, calls.write_bytes),
	 COUNTER("store_written_bytes_total", "Bytes written to files in the store.")},
	{JSON("bytes", "read", COUNT, bytes_read),
	 COUNTER("read_bytes_total",
		 "Bytes read through the daemon (passthrough reads are not seen).")},
	{JSON("", "queue_depth", COUNT, queue_depth),
	 GAUGE("queue_depth", "Store writes in flight.")},
	{JSON("outgrown", "files", COUNT, s.outgrown.files),
	 COUNTER("outgrown_files_total", "Files that outgrew memory while they were written.")},
	{JSON("outgrown", "bytes", COUNT, s.outgrown.bytes),
	 COUNTER("outgrown_bytes_total", "Their bytes written to the store before the close.")},
	{JSON("buffers", "count", COUNT, s.buffers.count),
	 GAUGE("buffers", "Staged files lent to clients.")},
	{JSON("buffers", "bytes", COUNT, s.buffers.bytes),
	 GAUGE("buffer_bytes", "Memory of the budget that buffers use.")},
	{JSON("buffers", "lent_bytes", COUNT, s.buffers.lent_bytes),
	 GAUGE("buffer_lent_bytes", "Bytes of buffers committed but not durable yet.")},
	{JSON("dedup", "files", COUNT, s.dedup.files),
	 COUNTER("dedup_files_total", "Files that share the blocks of an equal file.")},
	{JSON("dedup", "bytes", COUNT, s.dedup.bytes),
	 COUNTER("dedup_bytes_total", "Bytes stored once: equal files share their blocks.")},
	{JSON("dedup", "clones", COUNT, s.dedup.clones),
	 COUNTER("dedup_clones_total", "Of these, copies made by cloning.")},
	{JSON("previous", "kept", COUNT, s.previous.kept),
	 GAUGE("previous_kept", "Checkpoints that are kept while they are overwritten in place.")},
	{JSON("previous", "bytes", COUNT, s.previous.bytes),
	 GAUGE("previous_bytes", "Room in the store that these take.")},
	{JSON("previous", "since_s", COUNT, now.previous_s)},
	{JSON("previous", "lost", COUNT, s.previous.lost),
	 GAUGE("previous_lost", "Checkpoints that are overwritten in place and not kept, for lack "
				"of room or hard links.")},
	{JSON("previous", "checkpoint", CHARS, s.previous.path)},
	{JSON("waits", "count", COUNT, s.waits)},
	{JSON("waits", "seconds", SECONDS, s.wait_ns),
	 COUNTER("writer_wait_seconds_total", "Time opens, writes and closes waited for space, "
					      "memory or the previous version.")},
	{JSON("wait_calls", "now", COUNT, wait_calls.now),
	 GAUGE("wait_calls", "Calls of user.cairn.wait that wait.")},
	{JSON("wait_calls", "asked", COUNT, wait_calls.asked),
	 COUNTER("wait_calls_total", "Calls of user.cairn.wait.")},
	{JSON("errors", "count", COUNT, s.errors),
	 COUNTER("errors_total", "Versions and syncs that failed, each counted once.")},
	{JSON("errors", "last", CHARS, s.last_error)},
	{.at = AT(calls.errors),
	 .kind = COUNT,
	 COUNTER("store_call_errors_total",
		 "Calls to the store that failed, including retried ones.")},
	{.at = AT(gone),
	 .kind = FLAG,
	 GAUGE("store_gone", "1 while the store's filesystem is gone.")},
	{JSON("store_gone", "error", ERROR, gone_error), .needs = AT(gone)},
	{JSON("store_gone", "since_s", COUNT, gone_s), .needs = AT(gone)},
	{JSON("store_gone", "taker", CHARS_OR_NULL, now.hosts.taker), .needs = AT(gone)},
	{.at = AT(now.silent.ns),
	 .kind = SECONDS,
	 GAUGE("store_silent_seconds", "How long the store has not answered; 0: it answers.")},
	{JSON("store_silent", "since_s", COUNT, now.silent.s), .needs = AT(now.silent.is)},
	{JSON("store_silent", "calls", COUNT, now.silent.calls), .needs = AT(now.silent.is)},
	{.at = AT(halted),
	 .kind = FLAG,
	 GAUGE("halted", "1 while publication is halted by a failing store.")},
	{JSON("halted", "path", CHARS, s.halted.path), .needs = AT(halted)},
	{JSON("halted", "error", ERROR, s.halted.error), .needs = AT(halted)},
	{JSON("halted", "since_s", COUNT, halted_s), .needs = AT(halted)},
	{JSON("halted", "remedy", CHARS, s.halted.remedy), .needs = AT(halted)},
	{JSON("refused", "count", COUNT, s.refused.count), .needs = AT(refused),
	 GAUGE("refused_changes", "Accepted changes that the store refused for good.")},
	{JSON("refused", "kept", COUNT, s.refused.kept), .needs = AT(refused)},
	{JSON("refused", "path", CHARS, s.refused.path), .needs = AT(refused)},
	{JSON("refused", "error", ERROR, s.refused.error), .needs = AT(refused)},
	{JSON("", "waiting_mapped", LINES, s.waiting_mapped)},
	{JSON("", "held", CHARS_OR_NULL, now.holds.text)},
	{JSON("holds", "names", COUNT, now.holds.names), .needs = AT(now.holds.any),
	 GAUGE("held_names", "Names that wait until files of other nodes are in the store.")},
	{JSON("holds", "changes_behind", COUNT, s.held.behind), .needs = AT(now.holds.any),
	 GAUGE("held_changes", "Changes that wait behind such names.")},
	{JSON("holds", "since_s", COUNT, now.holds.since_s), .needs = AT(now.holds.any),
	 GAUGE("held_seconds", "Since when the first of these names waits.")},
	{JSON("holds", "late", FLAG, s.held.late), .needs = AT(now.holds.any),
	 GAUGE("held_late", "1 if one of them waits longer than commit_wait.")},
	{JSON("holds", "nothing_else_pending", FLAG, s.held.only), .needs = AT(now.holds.any)},
	{JSON("hosts", "alive", COUNT, now.hosts.alive),
	 GAUGE("hosts_alive", "Other hosts of the store that are alive.")},
	{JSON("hosts", "gone", COUNT, now.hosts.gone),
	 GAUGE("hosts_gone", "Other hosts of the store that are silent and did not unmount it.")},
	{JSON("", "hosts_gone", HOST_LIST, now.hosts)},
	{JSON("tier", "place", TEXT, now.tier.place), .needs = AT(now.tier.on)},
	{JSON("tier", "running", FLAG, now.tier.running), .needs = AT(now.tier.on),
	 GAUGE("tier_running", "1 while the process that sends to the tier runs.")},
	{JSON("tier", "pid", COUNT, now.tier.pid), .needs = AT(now.tier.on)},
	{JSON("tier", "starts", COUNT, now.tier.starts), .needs = AT(now.tier.on),
	 COUNTER("tier_starts_total", "Starts of that process.")},
	{JSON("tier", "runner", COUNT, now.tier.runner), .needs = AT(now.tier.on)},
	{JSON("tier", "guard", COUNT, now.tier.guard), .needs = AT(now.tier.on)},
	{JSON("tier", "runner_starts", COUNT, now.tier.runner_starts), .needs = AT(now.tier.on),
	 COUNTER("tier_runner_starts_total", "Starts of the process that starts it.")},
	{JSON("tier", "killed", FLAG, now.tier.killed), .needs = AT(now.tier.on),
	 GAUGE("tier_killed", "1 if all these processes were killed: nothing is sent.")},
	{JSON("tier", "looked_ms", COUNT, now.tier.r.looked_ms), .needs = AT(now.tier.on)},
	{JSON("tier", "listed_ms", COUNT, now.tier.r.listed_ms), .needs = AT(now.tier.on)},
	{JSON("tier", "pending", COUNT, now.tier.r.pending), .needs = AT(now.tier.on),
	 GAUGE("tier_pending_checkpoints", "Complete checkpoints that are not in the tier.")},
	{JSON("tier", "pending_bytes", COUNT, now.tier.r.pending_bytes), .needs = AT(now.tier.on),
	 GAUGE("tier_pending_bytes", "Their bytes that are not there.")},
	{JSON("tier", "oldest_s", COUNT, now.tier.waits_s), .needs = AT(now.tier.on),
	 GAUGE("tier_oldest_pending_seconds", "Since when the first of them waits.")},
	{JSON("tier", "sending", CHARS_OR_NULL, now.tier.r.sending), .needs = AT(now.tier.on)},
	{JSON("tier", "rate", COUNT, now.tier.r.rate), .needs = AT(now.tier.on),
	 GAUGE("tier_rate_bytes", "Bytes a second that are being sent.")},
	{JSON("tier", "eta_s", COUNT, now.tier.eta_s), .needs = AT(now.tier.on)},
	{JSON("tier", "sent", COUNT, now.tier.r.sent), .needs = AT(now.tier.on),
	 COUNTER("tier_sent_checkpoints_total", "Checkpoints sent by the running process.")},
	{JSON("tier", "sent_bytes", COUNT, now.tier.r.sent_bytes), .needs = AT(now.tier.on),
	 COUNTER("tier_sent_bytes_total", "Their bytes that were sent.")},
	{JSON("tier", "last", CHARS_OR_NULL, now.tier.r.last), .needs = AT(now.tier.on)},
	{JSON("tier", "last_ago_s", COUNT, now.tier.last_ago_s), .needs = AT(now.tier.on)},
	{JSON("tier", "removed", COUNT, now.tier.r.removed), .needs = AT(now.tier.on),
	 COUNTER("tier_removed_checkpoints_total", "Checkpoints removed from the store by "
						   "tier_keep.")},
	{JSON("tier", "error", CHARS_OR_NULL, now.tier.r.error), .needs = AT(now.tier.on)},
	{JSON("tier", "error_since_s", COUNT, now.tier.error_s), .needs = AT(now.tier.on),
	 GAUGE("tier_error_seconds", "Since when the tier takes nothing; 0: it does.")},
	{JSON("tier", "retry_s", COUNT, now.tier.retry_s), .needs = AT(now.tier.on)},
	{JSON("tier", "other", CHARS_OR_NULL, now.tier.r.other), .needs = AT(now.tier.on)},
	{JSON("fetch", "listed", FLAG, now.fetch.listed), .needs = AT(now.fetch.on)},
	{JSON("fetch", "checkpoints", COUNT, now.fetch.checkpoints), .needs = AT(now.fetch.on),
	 GAUGE("tier_checkpoints", "Checkpoints in the tier, when it was listed last.")},
	{JSON("fetch", "damaged", COUNT, now.fetch.damaged), .needs = AT(now.fetch.on),
	 GAUGE("tier_damaged_checkpoints", "Checkpoints of the tier that a fetch found damaged.")},
	{JSON("fetch", "damaged_path", CHARS_OR_NULL, now.fetch.damaged_path),
	 .needs = AT(now.fetch.on)},
	{JSON("fetch", "bytes", COUNT, now.fetch.bytes), .needs = AT(now.fetch.on)},
	{JSON("fetch", "fetching", CHARS_OR_NULL, now.fetch.fetching), .needs = AT(now.fetch.on)},
	{JSON("fetch", "done_bytes", COUNT, now.fetch.done), .needs = AT(now.fetch.on),
	 GAUGE("tier_fetching_done_bytes", "Bytes that are there of what is being fetched.")},
	{JSON("fetch", "total_bytes", COUNT, now.fetch.total), .needs = AT(now.fetch.on),
	 GAUGE("tier_fetching_bytes", "Bytes of what is being fetched.")},
	{JSON("fetch", "fetched", COUNT, now.fetch.fetched), .needs = AT(now.fetch.on),
	 COUNTER("tier_fetched_checkpoints_total", "Checkpoints fetched for readers.")},
	{JSON("fetch", "failed", COUNT, now.fetch.failed), .needs = AT(now.fetch.on),
	 COUNTER("tier_fetch_failures_total", "Fetches for readers that failed.")},
	{JSON("fetch", "error", CHARS_OR_NULL, now.fetch.error), .needs = AT(now.fetch.on)},
	{JSON("", "notices", NOTICE_LIST, notices)},
	{JSON("recovered", "versions", COUNT, s.recovered.versions)},
	{JSON("recovered", "records", COUNT, s.recovered.records)},
	{JSON("recovered", "lost_found", COUNT, s.recovered.lost_found)},
	{JSON("recovered", "kept", COUNT, s.recovered.kept),
	 GAUGE("kept_files", "Unclosed files of an earlier run, still to be moved to lost+found.")},
	{JSON("recovered", "kept_bytes", COUNT, s.recovered.kept_bytes),
	 GAUGE("kept_bytes", "Their bytes, of which staging has the only copy.")},
};
#define N_FIELDS (sizeof(fields) / sizeof(fields[0]))

/* ---- status.json ---- */

void stats_json_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (const unsigned char *p = (const unsigned char *)s; *p; p++)
		if (*p == '"' || *p == '\\')
			fprintf(f, "\\%c", *p);
		else if (*p < 0x20 || *p >= 0x7f)
			fprintf(f, "\\u%04x", *p);
		else
			fputc(*p, f);
	fputc('"', f);
}

static void json_lines(FILE *f, char *lines)
{
	fputc('[', f);
	for (char *save = NULL, *p = strtok_r(lines, "\n", &save), *first = p; p;
	     p = strtok_r(NULL, "\n", &save)) {
		fputs(p == first ? "" : ", ", f);
		stats_json_string(f, p);
	}
	fputc(']', f);
}

static void json_notices(FILE *f, const struct stats *st)
{
	fputc('[', f);
	for (unsigned i = 0; i < st->notices.n; i++) {
		fputs(i ? ", " : "", f);
		stats_json_string(f, st->notices.text[i]);
	}
	fputc(']', f);
}

static void json_hosts(FILE *f, const struct stats_hosts *h)
{
	fputc('[', f);
	for (unsigned i = 0; i < h->n; i++) {
		fputs(i ? ", {\"name\": " : "{\"name\": ", f);
		stats_json_string(f, h->told[i].name);
		fprintf(f, ", \"since_s\": %llu}",
			(unsigned long long)seconds_since(h->told[i].since_ns));
	}
	fputc(']', f);
}

static void json_value(FILE *f, struct stats *st, const struct field *fd)
{
	void *at = (char *)st + fd->at;

	switch (fd->kind) {
	case TEXT: stats_json_string(f, *(char **)at); break;
	case CHARS: stats_json_string(f, at); break;
	case CHARS_OR_NULL:
		if (*(char *)at)
			stats_json_string(f, at);
		else
			fputs("null", f);
		break;
	case LINES: json_lines(f, at); break;
	case NOTICE_LIST: json_notices(f, st); break;
	case HOST_LIST: json_hosts(f, at); break;
	case ERROR: stats_json_string(f, strerror(-*(int *)at)); break;
	case FLAG: fputs(*(bool *)at ? "true" : "false", f); break;
	case COUNT: fprintf(f, "%llu", (unsigned long long)*(uint64_t *)at); break;
	case SECONDS: fprintf(f, "%.3f", (double)*(uint64_t *)at / 1e9); break;
	}
}

static void write_json(struct stats *st, FILE *f)
{
	const char *group = "";
	bool open = false; /* an object within the outermost */

	for (const struct field *fd = fields; fd < fields + N_FIELDS; fd++) {
		if (!fd->key)
			continue;
		bool null = fd->needs && !*(bool *)((char *)st + fd->needs);
		if (!*fd->group || strcmp(fd->group, group)) {
			fprintf(f, "%s%s\n ", open ? "}" : "", fd == fields ? "{" : ",");
			group = fd->group;
			open = *group && !null;
			if (*group)
				fprintf(f, "\"%s\": %s", group, null ? "null" : "{");
		} else if (!null) {
			fputs(", ", f);
		}
		if (null)
			continue;
		fprintf(f, "\"%s\": ", fd->key);
		json_value(f, st, fd);
	}
	fputs("}\n}\n", f);
}

/* ---- status ---- */

static const char *size_text(uint64_t n, char buf[24])
{
	const char *unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double v = (double)n;
	unsigned u = 0;
	while (v >= 1024 && u < 4) {
		v /= 1024;
		u++;
	}
	snprintf(buf, 24, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
	return buf;
}

/* Why changes do not reach the store. */
static void write_trouble(const struct stats *st, FILE *f)
{
	const struct staging_stats *s = &st->s;
	char a[24], kept[REFUSED_KEPT];

	if (st->gone && st->gone_error == -EADDRINUSE)
		fprintf(f,
			"  CLAIM LOST for %llu s: another cairnfs serves the store as this host: "
			"%s; "
			"staging keeps everything. This one goes on when that one is unmounted\n",
			(unsigned long long)st->gone_s, st->now.hosts.taker);
	else if (st->gone)
		fprintf(f,
			"  STORE GONE for %llu s: %s; staging keeps everything. It is opened again "
			"when it is back\n",
			(unsigned long long)st->gone_s, strerror(-st->gone_error));
	else if (st->now.silent.is)
		fprintf(f,
			"  STORE SILENT for %llu s: no call to it has an answer, %llu calls here "
			"wait; staging keeps everything. See whether its server runs, and `ls %s` "
			"answers\n",
			(unsigned long long)st->now.silent.s,
			(unsigned long long)st->now.silent.calls, st->store);
	if (!st->gone && s->halted.error)
		fprintf(f, "  HALTED     %s: %s; staging keeps everything; %s" GOES_ON "\n",
			s->halted.path, strerror(-s->halted.error), s->halted.remedy);
	if (s->refused.count)
		fprintf(f,
			"  REFUSED    %llu changes, the last at %s: %s; %s. When it is dealt with: "
			"cairn retry\n",
			(unsigned long long)s->refused.count, s->refused.path,
			strerror(-s->refused.error),
			refused_kept(s->refused.count, s->refused.kept, kept));
	if (s->recovered.kept)
		fprintf(f,
			"  KEPT       %llu files that were never closed, %s, are not in lost+found "
			"yet: %s. Repair the store or free space in it" GOES_ON "\n",
			(unsigned long long)s->recovered.kept,
			size_text(s->recovered.kept_bytes, a), strerror(-s->recovered.kept_error));
}

/* What most mounts never have. */
static void write_rare(const struct staging_stats *s, FILE *f)
{
	char a[24], b[24];

	if (s->outgrown.files)
		fprintf(f,
			"  outgrown   %llu files outgrew memory while they were written: %s "
			"written to the store before their close\n",
			(unsigned long long)s->outgrown.files, size_text(s->outgrown.bytes, a));
	if (s->buffers.count)
		fprintf(f, "  buffers    %llu of clients, %s, of these %s pending\n",
			(unsigned long long)s->buffers.count, size_text(s->buffers.bytes, a),
			size_text(s->buffers.lent_bytes, b));
	if (s->dedup.bytes)
		fprintf(f,
			"  dedup      %s saved: %llu files share blocks with equal ones, %llu of "
			"them as clones\n",
			size_text(s->dedup.bytes, a), (unsigned long long)s->dedup.files,
			(unsigned long long)s->dedup.clones);
}

static void write_previous(const struct staging_stats_previous *p, FILE *f)
{
	char a[24];

	if (p->kept)
		fprintf(f, "  previous   %llu checkpoints are kept while overwritten: %s, %s\n",
			(unsigned long long)p->kept, size_text(p->bytes, a), p->path);
	if (p->lost)
		fprintf(f,
			"  previous   %llu checkpoints are overwritten and NOT kept: no room, or "
			"no "
			"hard links; %s\n",
			(unsigned long long)p->lost, p->path);
}

/* What pending changes wait for. */
static void write_waiting(struct staging_stats *s, FILE *f)
{
	if (s->waiting_mapped[0]) {
		fprintf(f, "  waiting    for files still mapped for writing; all later changes "
			   "wait, too:\n");
		for (char *save = NULL, *p = strtok_r(s->waiting_mapped, "\n", &save); p;
		     p = strtok_r(NULL, "\n", &save))
			fprintf(f, "               %s\n", p);
	}
}

static void write_held(const struct stats *st, FILE *f)
{
	const struct staging_stats_held *h = &st->s.held;

	if (!st->now.holds.any)
		return;
	fprintf(f, "  waiting    for another node, for %llu s: %s\n",
		(unsigned long long)st->now.holds.since_s, st->now.holds.text);
	fprintf(f, "               %u names wait, and %llu changes behind them%s\n", h->count,
		(unsigned long long)h->behind,
		h->late ? "; to publish as it is: cairn commit --force DIR" : "");
}

static void write_hosts(const struct stats_hosts *h, FILE *f)
{
	for (unsigned i = 0; i < h->n; i++)
		fprintf(f, "  HOST GONE  %s is silent for %llu s, and did not unmount the store\n",
			h->told[i].name, (unsigned long long)seconds_since(h->told[i].since_ns));
	if (h->gone > h->n)
		fprintf(f, "               and %llu more; see: cairn hosts\n",
			(unsigned long long)(h->gone - h->n));
}

static void write_tier(const struct stats_tier *t, FILE *f)
{
	char a[24], b[24];

	if (!t->on)
		return;
	if (t->r.pending)
		fprintf(f,
			"  tier       %llu checkpoints wait, %s, the first for %llu s; %s/s: %s\n",
			(unsigned long long)t->r.pending, size_text(t->r.pending_bytes, a),
			(unsigned long long)t->waits_s, size_text(t->r.rate, b), t->place);
	else if (t->r.listed_ms)
		fprintf(f, "  tier       has all that is complete: %s\n", t->place);
	else
		fprintf(f, "  tier       what it has is not known: %s\n", t->place);
	if (t->r.error[0])
		fprintf(f, "  TIER       for %llu s: %s; next try in %llu s\n",
			(unsigned long long)t->error_s, t->r.error, (unsigned long long)t->retry_s);
	if (t->r.other[0])
		fprintf(f, "  TIER       %s writes to this tier, too\n", t->r.other);
	if (!t->running)
		fprintf(f, "  TIER       the process that sends to it does not run\n");
}

static void write_fetch(const struct remote_stats *r, FILE *f)
{
	char a[24], b[24];

	if (*r->fetching)
		fprintf(f, "  fetching   %s, %s of %s\n", r->fetching, size_text(r->done, a),
			size_text(r->total, b));
	if (*r->error)
		fprintf(f, "  FETCH      %s\n", r->error);
	if (r->damaged)
		fprintf(f, "  FETCH      %llu damaged in the tier, such as %s\n",
			(unsigned long long)r->damaged, r->damaged_path);
}

static void write_status(struct stats *st, FILE *f)
{
	struct staging_stats *s = &st->s;
	char a[24], b[24], c[24];

	text_plain(s->halted.path, 0);
	text_plain(s->last_error, 0);
	text_plain(st->now.holds.text, 0);
	fprintf(f, "%s on %s\n", st->store, st->mountpoint);
	write_trouble(st, f);
	fprintf(f, "  durable    %s\n",
		s->refused.count ? "not what was refused"
		: s->log.pending || s->versions.open || s->versions.failed || s->recovered.kept
			? "not everything yet"
			: "everything");
	fprintf(f,
		"  versions   %llu open, %llu staged, %llu persisting, %llu durable (cached), %llu "
		"failed\n",
		(unsigned long long)s->versions.open, (unsigned long long)s->versions.sealed,
		(unsigned long long)s->versions.persisting, (unsigned long long)s->versions.durable,
		(unsigned long long)s->versions.failed);
	fprintf(f, "  staging    %s of %s used, page pool %s\n", size_text(s->used, a),
		size_text(s->budget, b), size_text(s->pool, c));
	fprintf(f, "  moved      %s staged, %s persisted, %s read through the daemon\n",
		size_text(s->bytes_staged, a), size_text(s->bytes_persisted, b),
		size_text(st->bytes_read, c));
	fprintf(f, "  opens      %llu fast, %llu spill, %llu read, %llu relay\n",
		(unsigned long long)st->lanes[LANE_FAST], (unsigned long long)st->lanes[LANE_SPILL],
		(unsigned long long)st->lanes[LANE_READ],
		(unsigned long long)st->lanes[LANE_RELAY]);
	write_rare(s, f);
	write_previous(&s->previous, f);
	fprintf(f, "  order      %llu changes, %llu in the store, %llu pending\n",
		(unsigned long long)s->log.last_seq, (unsigned long long)s->log.applied,
		(unsigned long long)s->log.pending);
	fprintf(f, "  engine     %s, fsync=%s, passthrough %s,%s worker restarts %llu\n",
		st->engine, st->fsync, st->passthrough ? "yes" : "no", st->ro ? " read only," : "",
		(unsigned long long)st->restarts);
	write_waiting(s, f);
	write_held(st, f);
	write_hosts(&st->now.hosts, f);
	write_tier(&st->now.tier, f);
	write_fetch(&st->now.fetch, f);
	if (s->last_error[0])
		fprintf(f, "  last error %s\n", s->last_error);
}

/* ---- metrics ---- */

/* NAME="VALUE", escaped as the format wants it. */
static void write_label(FILE *f, const char *name, const char *value)
{
	fprintf(f, "%s=\"", name);
	for (const char *p = value; *p; p++)
		fprintf(f, *p == '"' || *p == '\\' ? "\\%c" : "%c", *p);
	fputc('"', f);
}

/* The labels of each sample: mounts of several machines may be scraped together. NULL: no
 * memory. */
static char *common_labels(const struct stats *st)
{
	char *labels = NULL;
	size_t len;
	FILE *f = open_memstream(&labels, &len);

	if (!f)
		return NULL;
	write_label(f, "mount", st->mountpoint);
	fputc(',', f);
	write_label(f, "store", st->store);
	fputc(',', f);
	write_label(f, "host", st->now.host);
	if (fclose(f)) {
		free(labels);
		return NULL;
	}
	text_plain(labels, 0);
	return labels;
}

static void write_head(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP cairnfs_%s %s\n# TYPE cairnfs_%s %s\n", name, help, name, type);
}

/* The rows of a histogram whose first bucket goes up to `le` seconds, each to 4 times that of the
 * one before, and the last to infinity. */
static void write_histogram(FILE *f, const char *name, const char *labels, double le,
			    const uint64_t *buckets, unsigned n, uint64_t sum_us)
{
	unsigned long long sum = 0;

	for (unsigned i = 0; i < n; i++, le *= 4) {
		sum += buckets[i];
		if (i + 1 < n)
			fprintf(f, "cairnfs_%s_bucket{%s,le=\"%.10g\"} %llu\n", name, labels, le,
				sum);
		else
			fprintf(f, "cairnfs_%s_bucket{%s,le=\"+Inf\"} %llu\n", name, labels, sum);
	}
	fprintf(f, "cairnfs_%s_sum{%s} %.6f\ncairnfs_%s_count{%s} %llu\n", name, labels,
		(double)sum_us / 1e6, name, labels, sum);
}

static void write_timings(const struct stats *st, const char *labels, FILE *f)
{
	static const char *const ops[N_TIMED] = {
		[TIMED_OPEN] = "open", [TIMED_CLOSE] = "close", [TIMED_FSYNC] = "fsync"};
	const char *name = "operation_duration_seconds";

	write_head(f, name, "histogram", "From the arrival of a call to its answer.");
	for (unsigned op = TIMED_NONE + 1; op < N_TIMED; op++) {
		const struct timing *t = &st->now.timings->of[op];
		CLEANUP_FREE char *more = NULL;
		uint64_t buckets[TIMING_BUCKETS];

		for (unsigned i = 0; i < TIMING_BUCKETS; i++)
			buckets[i] = atomic_load(&t->buckets[i]);
		if (asprintf(&more, "%s,operation=\"%s\"", labels, ops[op]) < 0)
			more = NULL;
		if (more)
			write_histogram(f, name, more, 0.0001, buckets, TIMING_BUCKETS,
					atomic_load(&t->sum_us));
	}
}

static void write_build_info(const struct stats *st, const char *labels, FILE *f)
{
	write_head(f, "build_info", "gauge", "1; the version and how the store is served.");
	fprintf(f,
		"cairnfs_build_info{%s,version=\"%s\",engine=\"%s\",fsync=\"%s\",passthrough=\"%"
		"s\"} "
		"1\n",
		labels, st->version, st->engine, st->fsync, st->passthrough ? "yes" : "no");
}

static void write_hosts_gone(const struct stats_hosts *h, const char *labels, FILE *f)
{
	if (h->n)
		write_head(f, "host_gone_seconds", "gauge", "How long such a host is silent.");
	for (unsigned i = 0; i < h->n; i++)
		fprintf(f, "cairnfs_host_gone_seconds{%s,gone=\"%s\"} %llu\n", labels,
			h->told[i].name, (unsigned long long)seconds_since(h->told[i].since_ns));
}

static bool is_of_tier(const struct field *fd)
{
	return fd->group && (!strcmp(fd->group, "tier") || !strcmp(fd->group, "fetch"));
}

static void write_metrics(const struct stats *st, FILE *f)
{
	CLEANUP_FREE char *labels = common_labels(st);

	if (!labels)
		return;
	write_build_info(st, labels, f);
	for (const struct field *fd = fields; fd < fields + N_FIELDS; fd++) {
		const void *at = (const char *)st + fd->at;
		if (!fd->metric || (is_of_tier(fd) && !st->now.tier.on))
			continue;
		if (fd->help)
			write_head(f, fd->metric, fd->type, fd->help);
		double v = fd->kind == FLAG ? *(const bool *)at : (double)*(const uint64_t *)at;
		fprintf(f, "cairnfs_%s{%s%s%s} %.17g\n", fd->metric, labels, fd->label ? "," : "",
			fd->label ? fd->label : "", fd->kind == SECONDS ? v / 1e9 : v);
	}
	write_head(f, "persist_latency_seconds", "histogram", "From seal to durable.");
	write_histogram(f, "persist_latency_seconds", labels, 0.001, st->s.latency.buckets,
			STAGING_LATENCY_BUCKETS, st->s.latency.sum_us);
	write_timings(st, labels, f);
	write_hosts_gone(&st->now.hosts, labels, f);
}

void stats_write(struct fs *fs, FILE *f, enum stats_form form, bool all)
{
	struct stats st;

	collect(fs, &st, all);
	if (form == STATS_TEXT)
		write_status(&st, f);
	else if (form == STATS_JSON)
		write_json(&st, f);
	else
		write_metrics(&st, f);
}
