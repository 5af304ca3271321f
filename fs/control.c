/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn: found by name, never listed in its parent (checkpoint readers
 * glob and rmtree). Its files are written when they are opened. */
#include "fs/fs.h"
#include "fs/formats/formats.h"
#include "io/scope.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { C_STATUS = CONTROL_DIR + 1, C_JSON, C_METRICS, C_CONTROL, C_END };
static const struct { const char *name; mode_t mode; } files[] = {
	{"status", 0444}, {"status.json", 0444}, {"metrics", 0444}, {"control", 0200},
};
#define VIEWS_NAME "views"

/* What has code of its own, by its place in enum control_tree. */
static const struct {
	const char *name;
	const struct control_ops *ops;
} trees[] = {
	[CONTROL_LATEST] = {"latest", &latest_ops}, [CONTROL_BUFFERS] = {"buffers", &buffers_ops},
};
#define N_TREES (sizeof(trees) / sizeof(trees[0]))

struct text {
	struct text *next;
	uint64_t fh;
	char *buf;
	size_t len;
};
static pthread_mutex_t texts_lock = PTHREAD_MUTEX_INITIALIZER;
static struct text *texts;

static const char *const lane_names[] = {"none", "fast", "spill", "read", "relay"};

/* ---- what there is to tell ---- */

/* Names of files, which may lie in private directories, are for root and for who mounted it; others are
 * told that there are some. Whatever text is added to these has to pass by here. */
static void redact(struct staging_stats *s, bool all)
{
	static const char hidden[] = "(shown to root and to the mount's owner)";
	char *why = strrchr(s->last_error, ':');

	if (all)
		return;
	if (s->halted_path[0])
		snprintf(s->halted_path, sizeof(s->halted_path), "%s", hidden);
	if (s->last_error[0]) {
		char text[sizeof(s->last_error)];
		snprintf(text, sizeof(text), "%s%.100s", hidden, why ? why : "");
		memcpy(s->last_error, text, sizeof(text));
	}
	if (s->waiting_mapped[0])
		snprintf(s->waiting_mapped, sizeof(s->waiting_mapped), "%s\n", hidden);
	if (s->held[0])
		snprintf(s->held, sizeof(s->held), "%s", hidden);
}

static void json_string(FILE *f, const char *s)
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

static void write_json(struct fs *fs, FILE *f, bool all)
{
	struct staging_stats s;
	struct io_counts c;
	bool first = true;

	staging_get_stats(fs->s, &s);
	redact(&s, all);
	io_engine_counts(fs->engine, &c);
	fprintf(f, "{\n \"version\": \"%s\",\n \"pid\": %d,\n \"keeper_pid\": %d,\n \"store\": ", CAIRN_VERSION,
		(int)getpid(), fs->procs.keeper_pid);
	json_string(f, fs->o.store);
	fprintf(f, ",\n \"mountpoint\": ");
	json_string(f, fs->o.mountpoint);
	fprintf(f, ",\n \"store_id\": \"%s\",\n \"engine\": \"%s\",\n \"passthrough\": %s,\n \"fsync\": \"%s\",\n"
		" \"ro\": %s,\n \"restarts\": %u,\n \"keepers_replaced\": %u,\n \"keeper_gone\": %s,\n",
		io_store_id(fs->store), io_engine_name(fs->engine),
		atomic_load(&fs->lanes.passthrough) ? "true" : "false", fs->o.fsync_staged ? "staged" : "strict",
		fs->o.ro ? "true" : "false", fs->procs.restarts, keepers_replaced(fs),
		atomic_load(&fs->procs.keeper_gone) ? "true" : "false");
	fprintf(f, " \"staging\": {\"dir\": ");
	json_string(f, fs->place.path);
	fprintf(f, ", \"budget_bytes\": %llu, \"used_bytes\": %llu, \"ballast_bytes\": %llu, "
		"\"ballast_target_bytes\": %llu, \"free_bytes\": %llu},\n",
		(unsigned long long)s.budget, (unsigned long long)s.used, (unsigned long long)s.ballast,
		(unsigned long long)s.ballast_target, (unsigned long long)(s.budget > s.used ? s.budget - s.used : 0));
	fprintf(f, " \"versions\": {\"open\": %llu, \"staged\": %llu, \"persisting\": %llu, \"durable_cached\": %llu, "
		"\"failed\": %llu},\n", (unsigned long long)s.n_open, (unsigned long long)s.n_sealed,
		(unsigned long long)s.n_persisting, (unsigned long long)s.n_durable, (unsigned long long)s.n_failed);
	fprintf(f, " \"log\": {\"last_seq\": %llu, \"applied_seq\": %llu, \"durable_seq\": %llu, \"pending\": %llu, "
		"\"bytes\": %llu},\n", (unsigned long long)s.last_seq, (unsigned long long)s.applied,
		(unsigned long long)s.durable, (unsigned long long)s.pending_records, (unsigned long long)s.log_bytes);
	fprintf(f, " \"opens\": {");
	for (int i = LANE_FAST; i < N_LANES; i++)
		fprintf(f, "%s\"%s\": %llu", i == LANE_FAST ? "" : ", ", lane_names[i], fs->lanes.opens[i]);
	fprintf(f, "},\n \"bytes\": {\"staged\": %llu, \"persisted\": %llu, \"read\": %llu},\n \"queue_depth\": %u,\n",
		(unsigned long long)s.bytes_staged, (unsigned long long)s.bytes_persisted,
		fs->lanes.bytes_read, s.queue_depth);
	fprintf(f, " \"outgrown\": {\"files\": %llu, \"bytes\": %llu},\n", (unsigned long long)s.outgrown_files,
		(unsigned long long)s.outgrown_bytes);
	fprintf(f, " \"buffers\": {\"count\": %llu, \"bytes\": %llu, \"lent_bytes\": %llu},\n",
		(unsigned long long)s.n_buffers, (unsigned long long)s.buffer_bytes, (unsigned long long)s.lent_bytes);
	fprintf(f, " \"dedup\": {\"files\": %llu, \"bytes\": %llu, \"clones\": %llu},\n", (unsigned long long)s.dedup_files,
		(unsigned long long)s.dedup_bytes, (unsigned long long)s.clones);
	fprintf(f, " \"waits\": {\"count\": %llu, \"seconds\": %.3f},\n \"errors\": {\"count\": %llu, \"last\": ",
		(unsigned long long)s.waits, (double)s.wait_ns / 1e9, (unsigned long long)s.errors);
	json_string(f, s.last_error);
	fprintf(f, "},\n \"store_gone\": ");
	if (fs->away.since) {
		fprintf(f, "{\"error\": ");
		json_string(f, strerror(-fs->away.error));
		fprintf(f, ", \"since_s\": %lld}", (long long)(time(NULL) - fs->away.since));
	} else {
		fprintf(f, "null");
	}
	fprintf(f, ",\n \"halted\": ");
	if (s.halted_error) {
		fprintf(f, "{\"path\": ");
		json_string(f, s.halted_path);
		fprintf(f, ", \"error\": ");
		json_string(f, strerror(-s.halted_error));
		fprintf(f, ", \"since_s\": %lld}", (long long)(time(NULL) - s.halted_since));
	} else {
		fprintf(f, "null");
	}
	fprintf(f, ",\n \"refused\": ");
	if (s.n_refused) {
		fprintf(f, "{\"count\": %llu, \"path\": ", (unsigned long long)s.n_refused);
		json_string(f, s.refused_path);
		fprintf(f, ", \"error\": ");
		json_string(f, strerror(-s.refused_error));
		fputc('}', f);
	} else {
		fprintf(f, "null");
	}
	fprintf(f, ",\n \"waiting_mapped\": [");
	for (char *save = NULL, *p = strtok_r(s.waiting_mapped, "\n", &save); p; p = strtok_r(NULL, "\n", &save)) {
		fputs(first ? "" : ", ", f);
		json_string(f, p);
		first = false;
	}
	fprintf(f, "],\n \"held\": ");
	if (s.held[0])
		json_string(f, s.held);
	else
		fprintf(f, "null");
	fprintf(f, ",\n \"notices\": [");
	pthread_mutex_lock(&fs->notices.lock);
	unsigned n = fs->notices.n < 16 ? fs->notices.n : 16;
	for (unsigned i = 0; i < n && all; i++) {	/* they tell of files by name */
		fputs(i ? ", " : "", f);
		json_string(f, fs->notices.text[(fs->notices.n - n + i) % 16]);
	}
	pthread_mutex_unlock(&fs->notices.lock);
	fprintf(f, "],\n \"recovered\": {\"versions\": %llu, \"records\": %llu, \"lost_found\": %llu, \"kept\": %llu}\n}\n",
		(unsigned long long)s.recovered_files, (unsigned long long)s.recovered_records,
		(unsigned long long)s.lost_found, (unsigned long long)s.n_kept);
}

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

static void write_status(struct fs *fs, FILE *f, bool all)
{
	struct staging_stats s;
	char a[24], b[24], c[24];

	staging_get_stats(fs->s, &s);
	redact(&s, all);
	text_plain(s.halted_path, 0);
	text_plain(s.last_error, 0);
	text_plain(s.held, 0);
	fprintf(f, "%s on %s\n", fs->o.store, fs->o.mountpoint);
	if (fs->away.since)
		fprintf(f, "  STORE GONE for %lld s: %s; staging keeps everything. It is opened again when it is back there\n",
			(long long)(time(NULL) - fs->away.since), strerror(-fs->away.error));
	else if (s.halted_error)
		fprintf(f, "  HALTED     %s: %s; staging keeps everything. Mend the store, then: cairn retry\n",
			s.halted_path, strerror(-s.halted_error));
	if (s.n_refused)
		fprintf(f, "  REFUSED    %llu changes, the last at %s: %s. Versions are in lost+found. When it is dealt with: "
			"cairn retry\n", (unsigned long long)s.n_refused, s.refused_path, strerror(-s.refused_error));
	fprintf(f, "  durable    %s\n", s.n_refused ? "not what was refused" :
		s.pending_records || s.n_open || s.n_failed ? "not everything yet" : "everything");
	fprintf(f, "  versions   %llu open, %llu staged, %llu persisting, %llu durable (cached), %llu failed\n",
		(unsigned long long)s.n_open, (unsigned long long)s.n_sealed, (unsigned long long)s.n_persisting,
		(unsigned long long)s.n_durable, (unsigned long long)s.n_failed);
	fprintf(f, "  staging    %s of %s used, ballast %s\n", size_text(s.used, a), size_text(s.budget, b),
		size_text(s.ballast, c));
	fprintf(f, "  moved      %s staged, %s persisted, %s read through the daemon\n", size_text(s.bytes_staged, a),
		size_text(s.bytes_persisted, b), size_text(fs->lanes.bytes_read, c));
	fprintf(f, "  opens      %llu fast, %llu spill, %llu read, %llu relay\n", fs->lanes.opens[LANE_FAST],
		fs->lanes.opens[LANE_SPILL], fs->lanes.opens[LANE_READ], fs->lanes.opens[LANE_RELAY]);
	if (s.outgrown_files)
		fprintf(f, "  outgrown   %llu files outgrew memory while they were written: %s went to the store before their close\n",
			(unsigned long long)s.outgrown_files, size_text(s.outgrown_bytes, a));
	if (s.n_buffers)
		fprintf(f, "  buffers    %llu of clients, %s, of these %s on their way to the store\n",
			(unsigned long long)s.n_buffers, size_text(s.buffer_bytes, a), size_text(s.lent_bytes, b));
	if (s.dedup_bytes)
		fprintf(f, "  dedup      %s saved: %llu files have the blocks of equal ones, %llu of them as clones\n",
			size_text(s.dedup_bytes, a), (unsigned long long)s.dedup_files, (unsigned long long)s.clones);
	fprintf(f, "  order      %llu changes, %llu in the store, %llu pending\n", (unsigned long long)s.last_seq,
		(unsigned long long)s.applied, (unsigned long long)s.pending_records);
	fprintf(f, "  engine     %s, fsync=%s, passthrough %s,%s worker restarts %u\n", io_engine_name(fs->engine),
		fs->o.fsync_staged ? "staged" : "strict", atomic_load(&fs->lanes.passthrough) ? "yes" : "no",
		fs->o.ro ? " read only," : "", fs->procs.restarts);
	if (s.waiting_mapped[0]) {
		fprintf(f, "  waiting    still mapped for writing, and what comes later waits behind:\n");
		for (char *save = NULL, *p = strtok_r(s.waiting_mapped, "\n", &save); p; p = strtok_r(NULL, "\n", &save))
			fprintf(f, "               %s\n", p);
	}
	if (s.held[0])
		fprintf(f, "  waiting    for another node, and what comes later waits behind: %s\n", s.held);
	if (s.last_error[0])
		fprintf(f, "  last error %s\n", s.last_error);
}

/* mount="PATH", on each sample: a node may serve several mounts, and their files be scraped as one. */
static char *mount_label(const struct fs *fs)
{
	CLEANUP_FREE char *path = strdup(fs->o.mountpoint);
	char *label = path ? malloc(2 * strlen(path) + sizeof("mount=\"\"")) : NULL, *to = label;

	if (!label)
		return NULL;
	text_plain(path, 0);
	to = stpcpy(to, "mount=\"");
	for (const char *p = path; *p; p++) {
		if (*p == '"' || *p == '\\')
			*to++ = '\\';
		*to++ = *p;
	}
	strcpy(to, "\"");
	return label;
}

struct metrics {
	FILE *f;
	const char *label;
};

static void metric(const struct metrics *m, const char *name, const char *type, const char *help, double v)
{
	fprintf(m->f, "# HELP cairnfs_%s %s\n# TYPE cairnfs_%s %s\ncairnfs_%s{%s} %.17g\n", name, help, name, type, name,
		m->label, v);
}

static void write_metrics(struct fs *fs, FILE *f)
{
	CLEANUP_FREE char *label = mount_label(fs);
	const struct metrics m = {f, label};
	struct staging_stats s;
	struct io_counts c;

	if (!label)
		return;
	staging_get_stats(fs->s, &s);
	io_engine_counts(fs->engine, &c);
	metric(&m, "staged_bytes_total", "counter", "Bytes accepted into staging.", (double)s.bytes_staged);
	metric(&m, "persisted_bytes_total", "counter", "Bytes published and durable.", (double)s.bytes_persisted);
	metric(&m, "read_bytes_total", "counter", "Bytes read through the daemon (passthrough reads are not seen).",
	       (double)fs->lanes.bytes_read);
	metric(&m, "outgrown_files_total", "counter", "Files that outgrew memory while they were written.", (double)s.outgrown_files);
	metric(&m, "outgrown_bytes_total", "counter", "Their bytes that went to the store before the close.", (double)s.outgrown_bytes);
	metric(&m, "dedup_bytes_total", "counter", "Bytes stored once: equal files share their blocks.", (double)s.dedup_bytes);
	metric(&m, "dedup_files_total", "counter", "Files that have the blocks of an equal one.", (double)s.dedup_files);
	metric(&m, "dedup_clones_total", "counter", "Of these, copies that were not written.", (double)s.clones);
	metric(&m, "budget_bytes", "gauge", "Staging budget.", (double)s.budget);
	metric(&m, "budget_used_bytes", "gauge", "Staging budget in use.", (double)s.used);
	metric(&m, "ballast_bytes", "gauge", "Touched free memory held ready.", (double)s.ballast);
	metric(&m, "buffers", "gauge", "Staged files on loan to clients.", (double)s.n_buffers);
	metric(&m, "buffer_bytes", "gauge", "Memory that buffers hold of the budget.", (double)s.buffer_bytes);
	metric(&m, "buffer_lent_bytes", "gauge", "Bytes of buffers that are committed and not durable yet.",
	       (double)s.lent_bytes);
	metric(&m, "queue_depth", "gauge", "Store writes in flight.", s.queue_depth);
	metric(&m, "pending_records", "gauge", "Changes not yet in the store.", (double)s.pending_records);
	metric(&m, "errors_total", "counter", "Versions and syncs that failed, each counted once.", (double)s.errors);
	metric(&m, "store_call_errors_total", "counter", "Calls to the store that failed, those tried again too.",
	       (double)c.errors);
	metric(&m, "failed_files", "gauge", "Files whose close failed and that wait for room.", (double)s.n_failed);
	metric(&m, "worker_restarts_total", "counter", "Workers started again.", fs->procs.restarts);
	metric(&m, "writer_wait_seconds_total", "counter", "Time opens, writes and closes waited for room, memory or the version before.", (double)s.wait_ns / 1e9);
	metric(&m, "refused_changes", "gauge", "Accepted changes that the store refused for good.", (double)s.n_refused);
	metric(&m, "keeper_gone", "gauge", "1 when keeper and spare were killed: nobody starts another worker.",
	       atomic_load(&fs->procs.keeper_gone));
	metric(&m, "keepers_replaced_total", "counter", "Keepers that were killed, and a spare took over.",
	       keepers_replaced(fs));
	metric(&m, "store_gone", "gauge", "1 while the store's filesystem is gone.", fs->away.since != 0);
	metric(&m, "halted", "gauge", "1 while publication is halted by a failing store.", s.halted_error != 0);
	const struct { const char *state; uint64_t n; } v[] = {
		{"open", s.n_open}, {"staged", s.n_sealed}, {"persisting", s.n_persisting}, {"durable", s.n_durable},
		{"failed", s.n_failed},
	};
	fprintf(f, "# HELP cairnfs_versions Staged files by state.\n# TYPE cairnfs_versions gauge\n");
	for (size_t i = 0; i < sizeof(v) / sizeof(*v); i++)
		fprintf(f, "cairnfs_versions{%s,state=\"%s\"} %llu\n", label, v[i].state, (unsigned long long)v[i].n);
	fprintf(f, "# HELP cairnfs_opens_total Opens by lane.\n# TYPE cairnfs_opens_total counter\n");
	for (int i = LANE_FAST; i < N_LANES; i++)
		fprintf(f, "cairnfs_opens_total{%s,lane=\"%s\"} %llu\n", label, lane_names[i], fs->lanes.opens[i]);
	fprintf(f, "# HELP cairnfs_persist_latency_seconds From seal to durable.\n"
		"# TYPE cairnfs_persist_latency_seconds histogram\n");
	unsigned long long sum = 0;
	double le = 0.001;
	for (unsigned i = 0; i < STAGING_LATENCY_BUCKETS; i++, le *= 4) {
		sum += s.latency[i];
		if (i + 1 < STAGING_LATENCY_BUCKETS)
			fprintf(f, "cairnfs_persist_latency_seconds_bucket{%s,le=\"%.10g\"} %llu\n", label, le, sum);
		else
			fprintf(f, "cairnfs_persist_latency_seconds_bucket{%s,le=\"+Inf\"} %llu\n", label, sum);
	}
	fprintf(f, "cairnfs_persist_latency_seconds_sum{%s} %.6f\ncairnfs_persist_latency_seconds_count{%s} %llu\n", label,
		(double)s.latency_sum_us / 1e6, label, (unsigned long long)s.latency_count);
}

/* ---- as files ---- */

static int stat_of(struct fs *fs, uint64_t id, struct stat *st)
{
	bool dir = id == CONTROL_DIR || id == VIEWS_DIR;
	if (!dir && (id < C_STATUS || id >= C_END))
		return -ENOENT;
	*st = (struct stat){
		.st_ino = id, .st_uid = fs->uid, .st_nlink = dir ? 2 : 1, .st_blksize = 4096,
		.st_mode = dir ? S_IFDIR | 0555 : S_IFREG | files[id - C_STATUS].mode,
	};
	clock_gettime(CLOCK_REALTIME, &st->st_mtim);
	st->st_atim = st->st_ctim = st->st_mtim;
	return 0;
}

static void lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	uint64_t id = parent == ROOT_ID ? CONTROL_DIR : 0;

	for (unsigned i = 0; parent == CONTROL_DIR && i < N_TREES; i++)
		if (!strcmp(name, trees[i].name)) {
			trees[i].ops->lookup(req, parent, name);
			return;
		}
	if (parent == CONTROL_DIR && still_lookup(req, name))
		return;
	if (parent == CONTROL_DIR && !strcmp(name, VIEWS_NAME))
		id = VIEWS_DIR;
	for (unsigned i = 0; parent == CONTROL_DIR && i < sizeof(files) / sizeof(files[0]); i++)
		if (!strcmp(name, files[i].name))
			id = C_STATUS + i;
	struct fuse_entry_param e = {.ino = id, .attr_timeout = 1, .entry_timeout = 60};
	if (!id || stat_of(fs, id, &e.attr))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_entry(req, &e);
}

static void getattr(fuse_req_t req, fuse_ino_t id)
{
	struct stat st;
	if (stat_of(req_fs(req), id, &st))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_attr(req, &st, 1);
}

static struct text *make_text(fuse_req_t req, uint64_t id, uint64_t fh)
{
	struct fs *fs = req_fs(req);
	uid_t who = fuse_req_ctx(req)->uid;
	bool all = !who || who == fs->uid;
	struct text *t = calloc(1, sizeof(*t));
	FILE *f = t ? open_memstream(&t->buf, &t->len) : NULL;
	if (!f) {
		free(t);
		return NULL;
	}
	if (id == C_STATUS)
		write_status(fs, f, all);
	else if (id == C_JSON)
		write_json(fs, f, all);
	else if (id == C_METRICS)
		write_metrics(fs, f);
	fclose(f);
	if (t->buf)
		text_plain(t->buf, '\n');
	t->fh = fh;
	pthread_mutex_lock(&texts_lock);
	t->next = texts;
	texts = t;
	pthread_mutex_unlock(&texts_lock);
	return t;
}

static void open_text(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	if (id == CONTROL_DIR) {
		fuse_reply_err(req, EISDIR);
		return;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY && id != C_CONTROL) {
		fuse_reply_err(req, EACCES);
		return;
	}
	session_may_block(fs);
	fi->fh = staging_new_id(fs->s);
	fi->direct_io = 1;	/* sizes are not known beforehand */
	if (!make_text(req, id, fi->fh))
		fuse_reply_err(req, ENOMEM);
	else
		fuse_reply_open(req, fi);
}

static void read_text(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct text *t;
	pthread_mutex_lock(&texts_lock);
	for (t = texts; t && t->fh != fi->fh; t = t->next)
		;
	pthread_mutex_unlock(&texts_lock);
	if (!t)		/* opened under the worker before this one */
		t = make_text(req, id, fi->fh);
	if (!t)
		fuse_reply_err(req, ENOMEM);
	else if ((size_t)off >= t->len)
		fuse_reply_buf(req, NULL, 0);
	else
		fuse_reply_buf(req, t->buf + off, t->len - (size_t)off < size ? t->len - (size_t)off : size);
}

static void release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	(void)id;
	pthread_mutex_lock(&texts_lock);
	struct text **pp = &texts, *t;
	while ((t = *pp) && t->fh != fi->fh)
		pp = &t->next;
	if (t)
		*pp = t->next;
	pthread_mutex_unlock(&texts_lock);
	if (t) {
		free(t->buf);
		free(t);
	}
	fuse_reply_err(req, 0);
}

/* The word and nothing else; echo(1) ends it with a line's end. */
static bool says(const char *buf, size_t size, const char *word)
{
	size_t n = strlen(word);
	return !strncmp(buf, word, size < n ? size : n) && (size == n || (size == n + 1 && buf[n] == '\n'));
}

static void write_command(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	(void)fi;
	session_may_block(fs);
	if (id == C_CONTROL && says(buf, size, "retry")) {
		atomic_store(&fs->away.look, true);
		staging_retry(fs->s);
		retry_failed(fs);
		staging_keep_again(fs->s);
		fuse_reply_write(req, size);
	} else if (id == C_CONTROL && size > 8 && size < 40 && !strncmp(buf, "discard ", 8)) {
		char number[40] = "";
		memcpy(number, buf + 8, size - 8);
		int rc = discard_failed(fs, strtoull(number, NULL, 10));
		if (rc)
			fuse_reply_err(req, -rc);
		else
			fuse_reply_write(req, size);
	} else if (id == C_CONTROL && says(buf, size, "drain")) {
		int rc = staging_drain(fs->s, 60000);
		if (rc)
			fuse_reply_err(req, -rc);
		else
			fuse_reply_write(req, size);
	} else {
		fuse_reply_err(req, EINVAL);
	}
}

static void list(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus)
{
	char buf[4096];
	size_t used = 0;
	const unsigned n = sizeof(files) / sizeof(files[0]) + 1;

	(void)id;
	for (unsigned i = (unsigned)off; i < n + N_TREES; i++) {
		bool views = i == n - 1;
		/* no node (ino 0): the kernel looks a name up when somebody asks */
		struct fuse_entry_param e = {.attr = {.st_ino = views ? VIEWS_DIR : C_STATUS + i,
						      .st_mode = views ? S_IFDIR : i < n ? S_IFREG : 0}};
		const char *name = views ? VIEWS_NAME : i < n ? files[i].name : trees[i - n].name;
		size_t left = (size < sizeof(buf) ? size : sizeof(buf)) - used, need;
		need = plus ? fuse_add_direntry_plus(req, buf + used, left, name, &e, i + 1) :
			      fuse_add_direntry(req, buf + used, left, name, &e.attr, i + 1);
		if (need > left)
			break;
		used += need;
	}
	fuse_reply_buf(req, buf, used);
}

static const struct control_ops own_ops = {
	.lookup = lookup, .getattr = getattr, .open = open_text, .read = read_text, .write = write_command,
	.release = release, .readdir = list,
};

const struct control_ops *control_ops_of(uint64_t id)
{
	unsigned t = id >> ID_SALT_SHIFT & ID_SALT_MASK;
	return is_view(id) ? &views_ops : id & CONTROL_TREE_BIT && t < N_TREES ? trees[t].ops : &own_ops;
}
