/* SPDX-License-Identifier: MIT
 *
 * cairn status: the daemon's status.json, unchanged or as text.
 * cairn retry:  writes to the control file.
 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <string.h>

/* Values whose rate --watch shows. */
struct rates {
	double at, staged, persisted, read; /* bytes a second; at: when sampled */
	uint64_t last[3];
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

static const char *size(const struct doc *s, const char *keys, char buf[32])
{
	return human_bytes(u64(s, keys), buf);
}

static const char *or_dash(const char *s)
{
	return s && *s ? s : "-";
}

/* ---- as text -------------------------------------------------------------------- */

static void print_head(const struct doc *s)
{
	CLEANUP_FREE char *store = text(s, "store");
	CLEANUP_FREE char *version = text(s, "version");
	CLEANUP_FREE char *engine = text(s, "engine");
	CLEANUP_FREE char *fsync = text(s, "fsync");
	bool fast = json_bool(s->d, json_at(s->d, 0, "passthrough"));

	print_name(stdout, s->top);
	fputs(" on ", stdout);
	print_name(stdout, or_dash(store));
	printf("\n  cairnfs    %s, engine %s, %s, fsync=%s,%s worker %llu, keeper %llu, %llu "
	       "restarts\n",
	       or_dash(version), or_dash(engine), fast ? "passthrough" : "no passthrough (relay)",
	       or_dash(fsync), json_bool(s->d, json_at(s->d, 0, "ro")) ? " read only," : "",
	       u64(s, "pid"), u64(s, "keeper_pid"), u64(s, "restarts"));
}

static void print_staging(const struct doc *s)
{
	CLEANUP_FREE char *dir = text(s, "staging.dir");
	char a[32], b[32], c[32], d[32], e[32];

	printf("  staging    %s of %s used, page pool %s of %s, %s free in ",
	       size(s, "staging.used_bytes", a), size(s, "staging.budget_bytes", b),
	       size(s, "staging.pool_bytes", c), size(s, "staging.pool_target_bytes", d),
	       size(s, "staging.free_bytes", e));
	print_name(stdout, or_dash(dir));
	printf("\n  versions   %llu open, %llu staged, %llu persisting, %llu durable in cache, "
	       "%llu failed\n",
	       u64(s, "versions.open"), u64(s, "versions.staged"), u64(s, "versions.persisting"),
	       u64(s, "versions.durable_cached"), u64(s, "versions.failed"));
}

static void print_counts(const struct doc *s, const struct rates *r)
{
	char a[32], b[32], c[32];

	printf("  changes    %llu accepted, %llu in the store, %llu durable, %llu pending\n",
	       u64(s, "log.last_seq"), u64(s, "log.applied_seq"), u64(s, "log.durable_seq"),
	       u64(s, "log.pending"));
	printf("  opens      %llu fast, %llu spill, %llu read, %llu relay\n", u64(s, "opens.fast"),
	       u64(s, "opens.spill"), u64(s, "opens.read"), u64(s, "opens.relay"));
	printf("  bytes      %s staged, %s persisted, %s read\n", size(s, "bytes.staged", a),
	       size(s, "bytes.persisted", b), size(s, "bytes.read", c));
	if (u64(s, "dedup.bytes"))
		printf("  dedup      %s saved, %llu files share blocks with equal ones, %llu of "
		       "them as clones\n",
		       size(s, "dedup.bytes", a), u64(s, "dedup.files"), u64(s, "dedup.clones"));
	if (r && r->at > 0)
		printf("  now        %s/s staged, %s/s persisted, %s/s read\n",
		       human_bytes((uint64_t)r->staged, a), human_bytes((uint64_t)r->persisted, b),
		       human_bytes((uint64_t)r->read, c));
	printf("  store      %llu operations queued\n", u64(s, "queue_depth"));
	printf("  waits      %llu, %.1f s in all\n", u64(s, "waits.count"),
	       json_double(s->d, json_at(s->d, 0, "waits.seconds")));
}

static void print_refused(const struct doc *s)
{
	CLEANUP_FREE char *path = text(s, "refused.path");
	CLEANUP_FREE char *why = text(s, "refused.error");

	if (json_is_null(s->d, json_at(s->d, 0, "refused")))
		return;
	printf("  REFUSED    %llu changes by the store, the last at ", u64(s, "refused.count"));
	print_name(stdout, or_dash(path));
	fputs(": ", stdout);
	print_name(stdout, or_dash(why));
	fputs("\n	     versions are in lost+found; when you have handled it, `cairn retry ",
	      stdout);
	print_name(stdout, s->top);
	fputs("`\n", stdout);
}

static void print_troubles(const struct doc *s)
{
	CLEANUP_FREE char *last = text(s, "errors.last");
	CLEANUP_FREE char *path = text(s, "halted.path");
	CLEANUP_FREE char *why = text(s, "halted.error");

	printf("  errors     %llu", u64(s, "errors.count"));
	if (last && *last) {
		fputs(", last: ", stdout);
		print_name(stdout, last);
	}
	putchar('\n');
	print_refused(s);
	if (json_at(s->d, 0, "store_gone") >= 0 &&
	    !json_is_null(s->d, json_at(s->d, 0, "store_gone"))) {
		CLEANUP_FREE char *gone = text(s, "store_gone.error");

		printf("  STORE GONE for %.0f s: ",
		       json_double(s->d, json_at(s->d, 0, "store_gone.since_s")));
		print_name(stdout, or_dash(gone));
		fputs("\n             nothing is lost; it is opened again when it is back at its "
		      "path\n",
		      stdout);
		return;
	}
	if (json_is_null(s->d, json_at(s->d, 0, "halted")))
		return;
	printf("  HALTED     for %.0f s at ",
	       json_double(s->d, json_at(s->d, 0, "halted.since_s")));
	print_name(stdout, or_dash(path));
	fputs(": ", stdout);
	print_name(stdout, or_dash(why));
	fputs("\n             nothing is lost; repair the store, then `cairn retry ", stdout);
	print_name(stdout, s->top);
	fputs("`\n", stdout);
}

static void print_list(const struct doc *s, const char *keys, const char *label)
{
	int list = json_at(s->d, 0, keys);

	for (int i = 0, n = json_count(s->d, list); i < n; i++) {
		CLEANUP_FREE char *line = json_bytes(s->d, json_item(s->d, list, i));

		printf("  %-10s ", label);
		print_name(stdout, or_dash(line));
		putchar('\n');
	}
}

static void print_person(const struct doc *s, const struct rates *r)
{
	print_head(s);
	print_staging(s);
	print_counts(s, r);
	print_troubles(s);
	print_list(s, "waiting_mapped", "mapped");
	print_list(s, "notices", "notice");
	if (u64(s, "recovered.versions") || u64(s, "recovered.records") ||
	    u64(s, "recovered.lost_found"))
		printf("  recovered  %llu files and %llu changes of an earlier run, %llu to "
		       "lost+found\n",
		       u64(s, "recovered.versions"), u64(s, "recovered.records"),
		       u64(s, "recovered.lost_found"));
}

/* ---- once, or each second -------------------------------------------------------- */

static void sample(struct rates *r, const struct doc *s, double *since)
{
	static const char *const key[3] = {"bytes.staged", "bytes.persisted", "bytes.read"};
	double *rate[3] = {&r->staged, &r->persisted, &r->read};
	double t = now_s(), dt = t - *since;
	bool first = *since == 0;

	for (int i = 0; i < 3; i++) {
		uint64_t now = u64(s, key[i]);

		/* a restarted worker may count from zero again */
		*rate[i] =
			first || dt <= 0 || now < r->last[i] ? 0 : (double)(now - r->last[i]) / dt;
		r->last[i] = now;
	}
	r->at = first ? 0 : t;
	*since = t;
}

static int show_json(const struct location *p, bool one_line)
{
	CLEANUP_FREE char *raw = NULL;
	CLEANUP_JSON struct json_doc *d = NULL;
	size_t len;
	int err = read_small_file(p->root, ".cairn/status.json", 64u << 20, &raw, &len);

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

static int show_person(const struct location *p, struct rates *r, double *since)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	struct doc s = {.top = p->top};
	int err = location_status(p, &d);

	if (err)
		return complain_status(p, err);
	s.d = d;
	if (r) {
		sample(r, &s, since);
		fputs(isatty(STDOUT_FILENO) ? "\033[H\033[J" : "", stdout);
	}
	print_person(&s, r);
	if (r && !isatty(STDOUT_FILENO))
		putchar('\n');
	return CAIRN_OK;
}

static int show(const struct location *p, bool json, bool watch)
{
	struct rates r = {0};
	double since = 0;
	int code;

	for (;;) {
		code = json ? show_json(p, watch) : show_person(p, watch ? &r : NULL, &since);
		if (code || !watch || fflush(stdout))
			return code;
		sleep_s(1);
	}
}

/* The given mount, or the default one; CAIRN_OK or complained. */
static int need_mount(const char *sub, int argc, char **argv, struct location *out)
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
		complain("%s", err == -ENODEV ? "no cairnfs is mounted here" : strerror(-err));
		return CAIRN_USAGE;
	}
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
