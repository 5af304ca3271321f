/* SPDX-License-Identifier: MIT
 *
 * cairn status:  the daemon's status.json, unchanged or as text.
 * cairn metrics: its metrics, and whether it answers.
 * cairn retry:   writes to the control file.
 */
#include "commands.h"
#include "io/goes_on.h"
#include "tools/cairn/tier/tier_where.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <string.h>

/* Of two readings of the status. */
struct rates {
	double at; /* of the last reading; 0: none */
	double staged, written, read; /* bytes a second */
	uint64_t last[3];
	bool known; /* there were two readings of one worker */
};

struct doc {
	const struct json_doc *d;
	const char *top;
};

static unsigned long long u64(const struct doc *s, const char *keys)
{
	return json_u64(s->d, json_at(s->d, 0, keys));
}

static char *text(const struct doc *s, const char *keys)
{
	return json_bytes(s->d, json_at(s->d, 0, keys));
}

#define FEW_INODES 1024u

static const char *size(const struct doc *s, const char *keys, char buf[32])
{
	return human_bytes(u64(s, keys), buf);
}

static const char *since(const struct doc *s, const char *keys, char buf[32])
{
	return human_time((double)u64(s, keys), buf);
}

static bool flag(const struct doc *s, const char *keys)
{
	return json_bool(s->d, json_at(s->d, 0, keys));
}

/* Whether an older daemon has no such key, or its value is null. */
static bool is_absent(const struct doc *s, const char *keys)
{
	int at = json_at(s->d, 0, keys);

	return at < 0 || json_is_null(s->d, at);
}

static const char *or_dash(const char *s)
{
	return s && *s ? s : "-";
}

/* A path of the document, for print_line(). */
static char *path(const struct doc *s, const char *keys)
{
	CLEANUP_FREE char *raw = text(s, keys);

	return name_in_line(or_dash(raw));
}

/* ---- is all safe? ---------------------------------------------------------------- */

static bool is_all_durable(const struct doc *s)
{
	return !u64(s, "log.pending") && !u64(s, "versions.open") && !u64(s, "versions.failed") &&
	       !u64(s, "recovered.kept") && is_absent(s, "refused");
}

/* "3 files, 1.2 GiB pending, 800.0 MiB/s, ETA 0:02" */
static void print_pending(const struct doc *s, const struct rates *r)
{
	unsigned long long files = u64(s, "not_durable.files"), bytes = u64(s, "not_durable.bytes");
	char a[COUNT_ROOM], b[COUNT_ROOM], c[COUNT_ROOM], size[32], rate[32], eta[32], at[96] = "";

	if (r->known && r->written >= 1)
		snprintf(at, sizeof(at), ", %s/s, ETA %s", human_bytes((uint64_t)r->written, rate),
			 human_time((double)bytes / r->written, eta));
	if (files)
		print_line(NULL, "not everything is durable: %s pending, %s%s, the oldest for %s",
			   count_of(files, "file", a), human_bytes(bytes, size), at,
			   since(s, "not_durable.oldest_s", b));
	else if (u64(s, "log.pending"))
		print_line(NULL, "not everything is durable: %s of names pending",
			   count_of(u64(s, "log.pending"), "change", a));
	else
		print_line(NULL, "not everything is durable");
	if (u64(s, "versions.open"))
		print_line("", "%s open, durable after the close",
			   count_of(u64(s, "versions.open"), "file", b));
	if (u64(s, "versions.failed"))
		print_line(
			"",
			"%s FAILED: see `cairn ls -l`, then `cairn retry`, or write it again, or "
			"`cairn discard`",
			count_of(u64(s, "versions.failed"), "file", c));
}

static void print_durable(const struct doc *s, const struct rates *r)
{
	if (is_all_durable(s))
		print_line(NULL, "everything is durable");
	else
		print_pending(s, r);
}

/* ---- what does not proceed, and why ------------------------------------------------ */

static void print_refused(const struct doc *s)
{
	CLEANUP_FREE char *where = path(s, "refused.path");
	CLEANUP_FREE char *why = text(s, "refused.error");
	CLEANUP_FREE char *top = name_in_line(s->top);
	char n[COUNT_ROOM], kept[REFUSED_KEPT];

	if (is_absent(s, "refused"))
		return;
	print_line("REFUSED", "%s by the store, the last at %s: %s",
		   count_of(u64(s, "refused.count"), "change", n), or_dash(where), or_dash(why));
	print_line("", "%s; when you have handled it, `cairn retry %s`", kept_of(s->d, kept),
		   or_dash(top));
}

static bool print_gone(const struct doc *s)
{
	CLEANUP_FREE char *gone = text(s, "store_gone.error");
	CLEANUP_FREE char *taker = text(s, "store_gone.taker");
	char t[32];

	if (is_absent(s, "store_gone"))
		return false;
	if (taker) {
		print_line("CLAIM LOST",
			   "for %s: another cairnfs serves the store as this host: %s",
			   since(s, "store_gone.since_s", t), taker);
		print_line("", "nothing is lost; this one goes on when that one is unmounted");
		print_line("", "(mount one of them with -o host=NAME)");
		return true;
	}
	print_line("STORE GONE", "for %s: %s", since(s, "store_gone.since_s", t), or_dash(gone));
	print_line("", "nothing is lost; it is opened again when it is back at its path");
	print_line("", "(read-only now? unmount its filesystem, repair it, mount it again)");
	return true;
}

static void print_silent(const struct doc *s)
{
	CLEANUP_FREE char *store = path(s, "store");
	char t[32], n[COUNT_ROOM];

	if (is_absent(s, "store_silent"))
		return;
	print_line("STORE SILENT", "for %s: no call to it has an answer, %s here wait",
		   since(s, "store_silent.since_s", t),
		   count_of(u64(s, "store_silent.calls"), "call", n));
	print_line("", "nothing is lost; see whether its server runs, and `ls %s` answers",
		   or_dash(store));
}

static void print_kept(const struct doc *s)
{
	CLEANUP_FREE char *top = name_in_line(s->top);
	char a[32], n[COUNT_ROOM];

	if (!u64(s, "recovered.kept"))
		return;
	print_line("KEPT",
		   "%s never closed by an earlier run, %s, could not be moved to lost+found yet",
		   count_of(u64(s, "recovered.kept"), "file", n),
		   size(s, "recovered.kept_bytes", a));
	print_line("", "free space in the store or repair it" GOES_ON " %s", or_dash(top));
}

static void print_halted(const struct doc *s)
{
	CLEANUP_FREE char *where = path(s, "halted.path");
	CLEANUP_FREE char *why = text(s, "halted.error");
	CLEANUP_FREE char *remedy = text(s, "halted.remedy");
	CLEANUP_FREE char *top = name_in_line(s->top);
	char t[32];

	if (is_absent(s, "halted"))
		return;
	print_line("HALTED", "for %s at %s: %s", since(s, "halted.since_s", t), or_dash(where),
		   or_dash(why));
	print_line("", "nothing is lost; %s" GOES_ON " %s", or_dash(remedy), or_dash(top));
}

static void print_list(const struct doc *s, const char *keys, const char *label)
{
	int list = json_at(s->d, 0, keys);

	for (int i = 0, n = json_count(s->d, list); i < n; i++) {
		CLEANUP_FREE char *line = json_bytes(s->d, json_item(s->d, list, i));

		print_line(label, "%s", or_dash(line));
	}
}

static void print_hosts_gone(const struct doc *s)
{
	int list = json_at(s->d, 0, "hosts_gone");

	for (int i = 0, n = json_count(s->d, list); i < n; i++) {
		int host = json_item(s->d, list, i);
		CLEANUP_FREE char *name = json_bytes(s->d, json_at(s->d, host, "name"));
		char t[32];

		print_line("HOST GONE", "%s is silent for %s, and did not unmount the store",
			   or_dash(name),
			   human_time((double)json_u64(s->d, json_at(s->d, host, "since_s")), t));
	}
	if (u64(s, "hosts.gone") > (unsigned)json_count(s->d, list))
		print_line("", "and others; see `cairn hosts`");
}

static void print_tier(const struct doc *s)
{
	CLEANUP_FREE char *place = path(s, "tier.place");
	CLEANUP_FREE char *error = text(s, "tier.error");
	CLEANUP_FREE char *other = text(s, "tier.other");
	CLEANUP_FREE char *last = path(s, "tier.last");
	char a[32], b[32], c[32], n[COUNT_ROOM];

	if (is_absent(s, "tier"))
		return;
	if (u64(s, "tier.pending"))
		print_line("tier", "%s, %s not there yet, the first for %s, %s/s, ETA %s: %s",
			   count_of(u64(s, "tier.pending"), "checkpoint", n),
			   size(s, "tier.pending_bytes", a), since(s, "tier.oldest_s", b),
			   size(s, "tier.rate", c),
			   u64(s, "tier.rate") ? since(s, "tier.eta_s", (char[32]){0}) : "-",
			   or_dash(place));
	else if (!is_absent(s, "tier.listed_ms") && !u64(s, "tier.listed_ms"))
		print_line("tier", "what it has is not known: %s", or_dash(place));
	else
		print_line("tier", "has all that is complete%s%s: %s", last ? ", the last: " : "",
			   last ? last : "", or_dash(place));
	if (error && *error)
		print_line("TIER", "nothing is sent, for %s: %s; next try in %s",
			   since(s, "tier.error_since_s", a), error, since(s, "tier.retry_s", b));
	if (other && *other)
		print_line("TIER",
			   "%s writes to this tier, too: checkpoints of equal names replace each "
			   "other; give each its own prefix or directory",
			   other);
	if (flag(s, "tier.killed"))
		print_line("TIER", "all processes that send to it were killed; mount again");
	else if (!flag(s, "tier.running"))
		print_line("TIER", "the process that sends to it does not run");
}

/* Checkpoints that are not sent because they are not complete, and are not being written: for those
 * who may know where each is. */
static void print_incomplete(const struct location *p, const struct doc *s)
{
	const struct tier_where_one *first = NULL;
	struct tier_where w = {0};
	uint64_t n = 0, now = (uint64_t)time(NULL);
	char count[COUNT_ROOM], age[32];
	int err = is_absent(s, "tier") ? -ENOENT : tier_where_read(p, &w);

	for (size_t i = 0; !err && i < w.n; i++) {
		if (!w.v[i].incomplete)
			continue;
		n++;
		if (!first || w.v[i].since_s < first->since_s)
			first = &w.v[i];
	}
	if (first)
		print_line(
			"TIER", "%s not sent, the oldest unchanged for %s: %s: %s",
			count_of(n, "incomplete checkpoint", count),
			human_time(now > first->since_s ? (double)(now - first->since_s) : 0, age),
			first->path, first->why);
	tier_where_free(&w);
}

/* What is read from the tier. */
static void print_fetch(const struct doc *s)
{
	CLEANUP_FREE char *fetching = path(s, "fetch.fetching");
	CLEANUP_FREE char *error = text(s, "fetch.error");
	CLEANUP_FREE char *damaged = text(s, "fetch.damaged_path");
	char a[32], b[32];

	if (!is_absent(s, "fetch.fetching"))
		print_line("fetching", "%s, %s of %s", fetching, size(s, "fetch.done_bytes", a),
			   size(s, "fetch.total_bytes", b));
	if (error && *error)
		print_line("FETCH", "%s", error);
	if (damaged && *damaged)
		print_line("FETCH",
			   "%llu damaged in the tier, such as %s: `latest` leads past it until it "
			   "is sent again",
			   u64(s, "fetch.damaged"), damaged);
}

static void print_troubles(const struct doc *s)
{
	CLEANUP_FREE char *top = name_in_line(s->top);
	struct held_text held;

	print_refused(s);
	print_kept(s);
	print_silent(s);
	if (!print_gone(s))
		print_halted(s);
	if (held_of(or_dash(top), s->d, &held)) {
		print_line("held", "%s", held.what);
		print_line("", "%s", held.remedy);
	}
	print_list(s, "waiting_mapped", "mapped");
	print_hosts_gone(s);
}

/* ---- the rest ---------------------------------------------------------------------- */

static void print_head(const struct doc *s)
{
	CLEANUP_FREE char *store = path(s, "store");
	CLEANUP_FREE char *top = name_in_line(s->top);

	print_line("mount", "%s on %s", or_dash(top), or_dash(store));
}

static void print_memory(const struct doc *s)
{
	CLEANUP_FREE char *dir = path(s, "staging.dir");
	char a[32], b[32], c[32], d[32], n[COUNT_ROOM], inodes[64] = "";

	if (!is_absent(s, "space.free_inodes") && u64(s, "space.free_inodes") < FEW_INODES)
		snprintf(inodes, sizeof(inodes), ", only %s",
			 count_of(u64(s, "space.free_inodes"), "free inode", n));
	if (!is_absent(s, "space"))
		print_line("store", "%s of %s free%s, %s queued", size(s, "space.free_bytes", a),
			   size(s, "space.size_bytes", b), inodes,
			   count_of(u64(s, "queue_depth"), "operation", n));
	print_line("staging", "%s of %s used, page pool %s of %s, in %s",
		   size(s, "staging.used_bytes", a), size(s, "staging.budget_bytes", b),
		   size(s, "staging.pool_bytes", c), size(s, "staging.pool_target_bytes", d),
		   or_dash(dir));
	print_line("versions",
		   "%llu open, %llu staged, %llu persisting, %llu durable in cache, %llu failed",
		   u64(s, "versions.open"), u64(s, "versions.staged"),
		   u64(s, "versions.persisting"), u64(s, "versions.durable_cached"),
		   u64(s, "versions.failed"));
}

static void print_counts(const struct doc *s, const struct rates *r, bool watch)
{
	char a[32], b[32], c[32], n[COUNT_ROOM], m[COUNT_ROOM];

	print_line("changes", "%llu accepted, %llu in the store, %llu durable, %llu pending",
		   u64(s, "log.last_seq"), u64(s, "log.applied_seq"), u64(s, "log.durable_seq"),
		   u64(s, "log.pending"));
	print_line("opens", "%llu fast, %llu spill, %llu read, %llu relay", u64(s, "opens.fast"),
		   u64(s, "opens.spill"), u64(s, "opens.read"), u64(s, "opens.relay"));
	print_line("bytes", "%s staged, %s persisted, %s read", size(s, "bytes.staged", a),
		   size(s, "bytes.persisted", b), size(s, "bytes.read", c));
	if (watch && r->known)
		print_line("now", "%s/s staged, %s/s written, %s/s read",
			   human_bytes((uint64_t)r->staged, a),
			   human_bytes((uint64_t)r->written, b), human_bytes((uint64_t)r->read, c));
	if (u64(s, "dedup.bytes"))
		print_line("dedup", "%s saved: %s with the blocks of equal ones, %s",
			   size(s, "dedup.bytes", a), count_of(u64(s, "dedup.files"), "file", n),
			   count_of(u64(s, "dedup.clones"), "clone", m));
	CLEANUP_FREE char *over = text(s, "previous.checkpoint");
	if (u64(s, "previous.kept"))
		print_line("previous", "%s kept while overwritten, for %s: %s more; %s",
			   count_of(u64(s, "previous.kept"), "checkpoint", n),
			   human_time((double)u64(s, "previous.since_s"), b),
			   size(s, "previous.bytes", a), over ? over : "");
	if (u64(s, "previous.lost"))
		print_line("previous", "%s overwritten and not kept: no room or hard links; %s",
			   count_of(u64(s, "previous.lost"), "checkpoint", n), over ? over : "");
	print_line("waits", "%s, %.1f s in all", count_of(u64(s, "waits.count"), "wait", n),
		   json_double(s->d, json_at(s->d, 0, "waits.seconds")));
	CLEANUP_FREE char *last = text(s, "errors.last");
	print_line("errors", "%llu%s%s", u64(s, "errors.count"),
		   last && *last ? ", the last: " : "", last ? last : "");
}

static void print_processes(const struct doc *s)
{
	CLEANUP_FREE char *version = text(s, "version");
	CLEANUP_FREE char *engine = text(s, "engine");
	CLEANUP_FREE char *fsync = text(s, "fsync");
	char a[32], b[32], n[COUNT_ROOM];

	print_line("cairnfs", "%s, up for %s, engine %s, %s, fsync=%s%s", or_dash(version),
		   since(s, "uptime_s", a), or_dash(engine),
		   flag(s, "passthrough") ? "passthrough" : "no passthrough (relay)",
		   or_dash(fsync), flag(s, "ro") ? ", read only" : "");
	print_line("worker", "pid %llu, for %s, %s", u64(s, "pid"), since(s, "worker_uptime_s", b),
		   count_of(u64(s, "restarts"), "restart", n));
	if (flag(s, "keeper_gone"))
		print_line("keeper", "GONE: nothing restarts the worker; unmount and start again");
	else
		print_line("keeper", "pid %llu, alive, replaced %s", u64(s, "keeper_pid"),
			   count_of(u64(s, "keepers_replaced"), "time", n));
}

static void print_person(const struct location *p, const struct doc *s, const struct rates *r,
			 bool watch)
{
	char a[COUNT_ROOM], b[COUNT_ROOM];

	print_durable(s, r);
	print_head(s);
	print_troubles(s);
	print_memory(s);
	print_counts(s, r, watch);
	print_tier(s);
	print_incomplete(p, s);
	print_fetch(s);
	print_processes(s);
	print_list(s, "notices", "notice");
	if (u64(s, "recovered.versions") || u64(s, "recovered.records") ||
	    u64(s, "recovered.lost_found"))
		print_line("recovered", "%s and %s of an earlier run, %llu to lost+found",
			   count_of(u64(s, "recovered.versions"), "file", a),
			   count_of(u64(s, "recovered.records"), "change", b),
			   u64(s, "recovered.lost_found"));
}

/* ---- once, or each second -------------------------------------------------------- */

#define SAMPLE_S 0.5 /* between two readings for a rate */

static void sample(struct rates *r, const struct doc *s)
{
	static const char *const key[3] = {"bytes.staged", "bytes.written", "bytes.read"};
	double *rate[3] = {&r->staged, &r->written, &r->read};
	double t = now_s(), dt = t - r->at;

	r->known = r->at > 0 && dt > 0;
	for (int i = 0; i < 3; i++) {
		uint64_t now = u64(s, key[i]);

		if (now < r->last[i]) /* a restarted worker counts from zero again */
			r->known = false;
		else if (r->known)
			*rate[i] = (double)(now - r->last[i]) / dt;
		r->last[i] = now;
	}
	r->at = t;
}

static int show_json(const struct location *p, bool one_line)
{
	CLEANUP_FREE char *raw = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	size_t len;
	int err = read_small_file(p->root, ".cairn/status.json", STATUS_MAX, &raw, &len);

	if (!err)
		err = json_parse(raw, len, &d);
	if (err)
		return complain_status(p, err);
	while (len && raw[len - 1] == '\n')
		raw[--len] = '\0';
	for (size_t i = 0; one_line && i < len; i++)
		if (raw[i] == '\n') /* never inside a string */
			raw[i] = ' ';
	puts(raw);
	return CAIRN_OK;
}

static int read_status(const struct location *p, struct json_doc **d, struct rates *r)
{
	struct doc s = {.top = p->top};
	int err = location_status(p, d);

	if (err)
		return complain_status(p, err);
	s.d = *d;
	sample(r, &s);
	return CAIRN_OK;
}

/* A rate needs two readings; nobody waits for it where nothing is pending. */
static int show_person(const struct location *p, struct rates *r, bool watch)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_JSON struct json_doc *later = NULL;
	struct doc s = {.top = p->top};
	int code = read_status(p, &d, r);

	s.d = d;
	bool moves = !code && is_absent(&s, "halted") && is_absent(&s, "store_gone");
	if (moves && !watch && u64(&s, "not_durable.files")) {
		sleep_s(SAMPLE_S);
		code = read_status(p, &later, r);
		s.d = later;
	}
	if (code)
		return code;
	if (watch)
		fputs(isatty(STDOUT_FILENO) ? "\033[H\033[J" : "", stdout);
	print_person(p, &s, r, watch);
	if (watch && !isatty(STDOUT_FILENO))
		putchar('\n');
	return CAIRN_OK;
}

static int show(const struct location *p, bool json, bool watch)
{
	struct rates r = {0};
	int code;

	for (;;) {
		code = json ? show_json(p, watch) : show_person(p, &r, watch);
		if (code || !watch || fflush(stdout))
			return code;
		watch_answered();
		sleep_s(1);
	}
}

int need_mount(const char *sub, int argc, char **argv, struct location *out)
{
	CLEANUP_FREE char *path = NULL;
	int err = 0;

	if (argc > 1)
		return complain_usage(sub, "one MOUNT at a time");
	if (argc == 1)
		return location_need(argv[0], true, out);
	err = location_default(&path);
	if (err == -EEXIST) {
		complain("several cairnfs are mounted; name one:");
		print_mounts(stderr);
		return CAIRN_USAGE;
	}
	if (err) {
		complain("%s", err == -ENODEV	? "no cairnfs is mounted here"
			       : err == -ENOSYS ? NEEDS_PROC
						: strerror(-err));
		return CAIRN_USAGE;
	}
	watch_name(path);
	err = location_need(path, true, out);
	out->arg = out->top;
	return err;
}

int cmd_status(int argc, char **argv)
{
	static const struct option opts[] = {
		{"json", no_argument, NULL, 'j'},
		{"watch", no_argument, NULL, 'w'},
		{0},
	};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	bool json = false, watch = false;
	int c, code;

	while ((c = getopt_long(argc, argv, "jw", opts, NULL)) != -1) {
		if (c == 'j')
			json = true;
		else if (c == 'w')
			watch = true;
		else
			return complain_option("status", argv);
	}
	code = need_mount("status", argc - optind, argv + optind, &p);
	return code ? code : show(&p, json, watch);
}

static void print_up(const char *path, bool up)
{
	fputs("# HELP cairnfs_up Whether the mount answers.\n# TYPE cairnfs_up gauge\n"
	      "cairnfs_up{mount=\"",
	      stdout);
	for (; *path; path++)
		if (*path == '\n')
			fputs("\\n", stdout);
		else
			printf("%s%c", *path == '"' || *path == '\\' ? "\\" : "", *path);
	printf("\"} %d\n", up);
}

/* "Not up" is the answer that was asked for. */
int metrics_on_silence(const char *path)
{
	print_up(path, false);
	return CAIRN_OK;
}

int cmd_metrics(int argc, char **argv)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int code, err;

	if (getopt(argc, argv, "") != -1)
		return complain_option("metrics", argv);
	code = need_mount("metrics", argc - optind, argv + optind, &p);
	if (code == CAIRN_FAILED) /* dead */
		return metrics_on_silence(argv[optind] ? argv[optind] : ".");
	if (code)
		return code;
	err = read_small_file(p.root, ".cairn/metrics", STATUS_MAX, &text, &len);
	if (err)
		complain_location(p.top, err);
	else
		fputs(text, stdout);
	print_up(p.top, !err);
	return CAIRN_OK;
}

int cmd_retry(int argc, char **argv)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_CLOSE int fd = -1;
	int code, err;

	if (getopt(argc, argv, "") != -1)
		return complain_option("retry", argv);
	code = need_mount("retry", argc - optind, argv + optind, &p);
	if (code)
		return code;
	fd = openat(p.root, ".cairn/control", O_WRONLY | O_CLOEXEC);
	err = fd < 0 || write(fd, "retry\n", 6) < 0 ? call_error() : 0;
	if (err == -ENOTCONN)
		complain_location(p.top, err);
	else if (err)
		complain("%s/.cairn/control: %s%s", p.top, strerror(-err),
			 err == -EACCES || err == -EPERM
				 ? " (only root and the user who mounted it may)"
				 : "");
	if (err)
		return CAIRN_FAILED;
	printf("%s: retry requested; see `cairn status`\n", p.top);
	return CAIRN_OK;
}
