/* SPDX-License-Identifier: MIT
 * MOUNT/.cairn: found by name, never listed in its parent (checkpoint readers
 * glob and rmtree). Its files are written when they are opened. */
#include "fs/fs.h"

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
static const struct tree {
	const char *name;
	void (*lookup)(fuse_req_t, uint64_t parent, const char *name);
	void (*getattr)(fuse_req_t, uint64_t id);
	void (*readlink)(fuse_req_t, uint64_t id);	/* NULL: no symlinks */
	void (*readdir)(fuse_req_t, uint64_t id, size_t, off_t, bool plus);
	void (*forget)(uint64_t id, uint64_t count);	/* NULL: does not count */
} trees[] = {
	[CONTROL_LATEST] = {"latest", latest_lookup, latest_getattr, latest_readlink, latest_readdir, latest_forget},
	[CONTROL_BUFFERS] = {.name = "buffers", .lookup = buffers_lookup, .getattr = buffers_getattr,
			     .readdir = buffers_readdir},
};
#define N_TREES (sizeof(trees) / sizeof(trees[0]))

static const struct tree *tree_of(uint64_t id)
{
	unsigned t = id >> 56 & 63;
	return id & CONTROL_TREE_BIT && !is_view(id) && t < N_TREES ? &trees[t] : NULL;
}

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

static void write_json(struct fs *fs, FILE *f)
{
	struct staging_stats s;
	struct io_counts c;
	bool first = true;

	staging_get_stats(fs->s, &s);
	io_engine_counts(fs->engine, &c);
	fprintf(f, "{\n \"version\": \"%s\",\n \"pid\": %d,\n \"keeper_pid\": %d,\n \"store\": ", CAIRN_VERSION,
		(int)getpid(), fs->keeper_pid);
	json_string(f, fs->o.store);
	fprintf(f, ",\n \"mountpoint\": ");
	json_string(f, fs->o.mountpoint);
	fprintf(f, ",\n \"store_id\": \"%s\",\n \"engine\": \"%s\",\n \"passthrough\": %s,\n \"fsync\": \"%s\",\n"
		" \"ro\": %s,\n \"restarts\": %u,\n", io_store_id(fs->store), io_engine_name(fs->engine),
		atomic_load(&fs->passthrough) ? "true" : "false", fs->o.fsync_staged ? "staged" : "strict",
		fs->o.ro ? "true" : "false", fs->restarts);
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
		fprintf(f, "%s\"%s\": %llu", i == LANE_FAST ? "" : ", ", lane_names[i], fs->lanes[i]);
	fprintf(f, "},\n \"bytes\": {\"staged\": %llu, \"persisted\": %llu, \"read\": %llu},\n \"queue_depth\": %u,\n",
		(unsigned long long)s.bytes_staged, (unsigned long long)s.bytes_persisted, fs->bytes_read, s.queue_depth);
	fprintf(f, " \"outgrown\": {\"files\": %llu, \"bytes\": %llu},\n", (unsigned long long)s.outgrown_files,
		(unsigned long long)s.outgrown_bytes);
	fprintf(f, " \"buffers\": {\"count\": %llu, \"bytes\": %llu, \"lent_bytes\": %llu},\n",
		(unsigned long long)s.n_buffers, (unsigned long long)s.buffer_bytes, (unsigned long long)s.lent_bytes);
	fprintf(f, " \"dedup\": {\"files\": %llu, \"bytes\": %llu, \"clones\": %llu},\n", (unsigned long long)s.dedup_files,
		(unsigned long long)s.dedup_bytes, (unsigned long long)s.clones);
	fprintf(f, " \"waits\": {\"count\": %llu, \"seconds\": %.3f},\n \"errors\": {\"count\": %llu, \"last\": ",
		(unsigned long long)s.waits, (double)s.wait_ns / 1e9, (unsigned long long)s.errors + c.errors);
	json_string(f, s.last_error);
	fprintf(f, "},\n \"halted\": ");
	if (s.halted_error) {
		fprintf(f, "{\"path\": ");
		json_string(f, s.halted_path);
		fprintf(f, ", \"error\": ");
		json_string(f, strerror(-s.halted_error));
		fprintf(f, ", \"since_s\": %lld}", (long long)(time(NULL) - s.halted_since));
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
	pthread_mutex_lock(&fs->notice_lock);
	unsigned n = fs->n_notices < 16 ? fs->n_notices : 16;
	for (unsigned i = 0; i < n; i++) {
		fputs(i ? ", " : "", f);
		json_string(f, fs->notices[(fs->n_notices - n + i) % 16]);
	}
	pthread_mutex_unlock(&fs->notice_lock);
	fprintf(f, "],\n \"recovered\": {\"versions\": %llu, \"records\": %llu, \"lost_found\": %llu}\n}\n",
		(unsigned long long)s.recovered_files, (unsigned long long)s.recovered_records,
		(unsigned long long)s.lost_found);
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

static void write_status(struct fs *fs, FILE *f)
{
	struct staging_stats s;
	char a[24], b[24], c[24];

	staging_get_stats(fs->s, &s);
	fprintf(f, "%s on %s\n", fs->o.store, fs->o.mountpoint);
	if (s.halted_error)
		fprintf(f, "  HALTED     %s: %s; staging keeps everything. Mend the store, then: cairn retry\n",
			s.halted_path, strerror(-s.halted_error));
	fprintf(f, "  durable    %s\n", s.pending_records || s.n_open || s.n_failed ? "not everything yet" : "everything");
	fprintf(f, "  versions   %llu open, %llu staged, %llu persisting, %llu durable (cached), %llu failed\n",
		(unsigned long long)s.n_open, (unsigned long long)s.n_sealed, (unsigned long long)s.n_persisting,
		(unsigned long long)s.n_durable, (unsigned long long)s.n_failed);
	fprintf(f, "  staging    %s of %s used, ballast %s\n", size_text(s.used, a), size_text(s.budget, b),
		size_text(s.ballast, c));
	fprintf(f, "  moved      %s staged, %s persisted, %s read through the daemon\n", size_text(s.bytes_staged, a),
		size_text(s.bytes_persisted, b), size_text(fs->bytes_read, c));
	fprintf(f, "  opens      %llu fast, %llu spill, %llu read, %llu relay\n", fs->lanes[LANE_FAST],
		fs->lanes[LANE_SPILL], fs->lanes[LANE_READ], fs->lanes[LANE_RELAY]);
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
		fs->o.fsync_staged ? "staged" : "strict", atomic_load(&fs->passthrough) ? "yes" : "no",
		fs->o.ro ? " read only," : "", fs->restarts);
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

static void metric(FILE *f, const char *name, const char *type, const char *help, double v)
{
	fprintf(f, "# HELP cairnfs_%s %s\n# TYPE cairnfs_%s %s\ncairnfs_%s %.17g\n", name, help, name, type, name, v);
}

static void write_metrics(struct fs *fs, FILE *f)
{
	struct staging_stats s;
	struct io_counts c;

	staging_get_stats(fs->s, &s);
	io_engine_counts(fs->engine, &c);
	metric(f, "staged_bytes_total", "counter", "Bytes accepted into staging.", (double)s.bytes_staged);
	metric(f, "persisted_bytes_total", "counter", "Bytes published and durable.", (double)s.bytes_persisted);
	metric(f, "read_bytes_total", "counter", "Bytes read through the daemon (passthrough reads are not seen).", (double)fs->bytes_read);
	metric(f, "outgrown_files_total", "counter", "Files that outgrew memory while they were written.", (double)s.outgrown_files);
	metric(f, "outgrown_bytes_total", "counter", "Their bytes that went to the store before the close.", (double)s.outgrown_bytes);
	metric(f, "dedup_bytes_total", "counter", "Bytes stored once: equal files share their blocks.", (double)s.dedup_bytes);
	metric(f, "dedup_files_total", "counter", "Files that have the blocks of an equal one.", (double)s.dedup_files);
	metric(f, "dedup_clones_total", "counter", "Of these, copies that were not written.", (double)s.clones);
	metric(f, "budget_bytes", "gauge", "Staging budget.", (double)s.budget);
	metric(f, "budget_used_bytes", "gauge", "Staging budget in use.", (double)s.used);
	metric(f, "ballast_bytes", "gauge", "Touched free memory held ready.", (double)s.ballast);
	metric(f, "buffers", "gauge", "Staged files on loan to clients.", (double)s.n_buffers);
	metric(f, "buffer_bytes", "gauge", "Memory that buffers hold of the budget.", (double)s.buffer_bytes);
	metric(f, "buffer_lent_bytes", "gauge", "Bytes of buffers that are committed and not durable yet.",
	       (double)s.lent_bytes);
	metric(f, "queue_depth", "gauge", "Store writes in flight.", s.queue_depth);
	metric(f, "pending_records", "gauge", "Changes not yet in the store.", (double)s.pending_records);
	metric(f, "errors_total", "counter", "Errors of the store.", (double)(s.errors + c.errors));
	metric(f, "worker_restarts_total", "counter", "Workers started again.", fs->restarts);
	metric(f, "writer_wait_seconds_total", "counter", "Time writers waited for room.", (double)s.wait_ns / 1e9);
	metric(f, "halted", "gauge", "1 while publication is halted by a failing store.", s.halted_error != 0);
	fprintf(f, "# HELP cairnfs_versions Staged files by state.\n# TYPE cairnfs_versions gauge\n"
		"cairnfs_versions{state=\"open\"} %llu\ncairnfs_versions{state=\"staged\"} %llu\n"
		"cairnfs_versions{state=\"persisting\"} %llu\ncairnfs_versions{state=\"durable\"} %llu\n"
		"cairnfs_versions{state=\"failed\"} %llu\n", (unsigned long long)s.n_open, (unsigned long long)s.n_sealed,
		(unsigned long long)s.n_persisting, (unsigned long long)s.n_durable, (unsigned long long)s.n_failed);
	fprintf(f, "# HELP cairnfs_opens_total Opens by lane.\n# TYPE cairnfs_opens_total counter\n");
	for (int i = LANE_FAST; i < N_LANES; i++)
		fprintf(f, "cairnfs_opens_total{lane=\"%s\"} %llu\n", lane_names[i], fs->lanes[i]);
	fprintf(f, "# HELP cairnfs_persist_latency_seconds From seal to durable.\n"
		"# TYPE cairnfs_persist_latency_seconds histogram\n");
	unsigned long long sum = 0;
	double le = 0.001;
	for (unsigned i = 0; i < STAGING_LATENCY_BUCKETS; i++, le *= 4) {
		sum += s.latency[i];
		if (i + 1 < STAGING_LATENCY_BUCKETS)
			fprintf(f, "cairnfs_persist_latency_seconds_bucket{le=\"%.10g\"} %llu\n", le, sum);
		else
			fprintf(f, "cairnfs_persist_latency_seconds_bucket{le=\"+Inf\"} %llu\n", sum);
	}
	fprintf(f, "cairnfs_persist_latency_seconds_sum %.6f\ncairnfs_persist_latency_seconds_count %llu\n",
		(double)s.latency_sum_us / 1e6, (unsigned long long)s.latency_count);
}

/* ---- as files ---- */

int control_stat(struct fs *fs, uint64_t id, struct stat *st)
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

void control_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fs *fs = req_fs(req);
	uint64_t id = parent == ROOT_ID ? CONTROL_DIR : 0;
	const struct tree *t = tree_of(parent);

	for (unsigned i = 0; parent == CONTROL_DIR && i < N_TREES; i++)
		if (!strcmp(name, trees[i].name))
			t = &trees[i];
	if (t) {
		t->lookup(req, parent, name);
		return;
	}

	if (is_view(parent)) {
		views_lookup(req, parent, name);
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
	if (!id || control_stat(fs, id, &e.attr))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_entry(req, &e);
}

void control_getattr(fuse_req_t req, fuse_ino_t id)
{
	const struct tree *t = tree_of(id);
	struct stat st;
	if (is_view(id))
		views_getattr(req, id);
	else if (t)
		t->getattr(req, id);
	else if (control_stat(req_fs(req), id, &st))
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_attr(req, &st, 1);
}

void control_readlink(fuse_req_t req, fuse_ino_t id)
{
	const struct tree *t = tree_of(id);
	if (t && t->readlink)
		t->readlink(req, id);
	else
		fuse_reply_err(req, EINVAL);
}

void control_forget(uint64_t id, uint64_t count)
{
	const struct tree *t = tree_of(id);
	if (is_view(id))
		views_forget(id, count);
	else if (t && t->forget)
		t->forget(id, count);
}

static struct text *make_text(struct fs *fs, uint64_t id, uint64_t fh)
{
	struct text *t = calloc(1, sizeof(*t));
	FILE *f = t ? open_memstream(&t->buf, &t->len) : NULL;
	if (!f) {
		free(t);
		return NULL;
	}
	if (id == C_STATUS)
		write_status(fs, f);
	else if (id == C_JSON)
		write_json(fs, f);
	else if (id == C_METRICS)
		write_metrics(fs, f);
	fclose(f);
	t->fh = fh;
	pthread_mutex_lock(&texts_lock);
	t->next = texts;
	texts = t;
	pthread_mutex_unlock(&texts_lock);
	return t;
}

void control_open(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	if (id == CONTROL_DIR || tree_of(id)) {
		fuse_reply_err(req, EISDIR);
		return;
	}
	if (is_view(id)) {
		views_open(req, id, fi);
		return;
	}
	if ((fi->flags & O_ACCMODE) != O_RDONLY && id != C_CONTROL) {
		fuse_reply_err(req, EACCES);
		return;
	}
	session_may_block(fs);
	fi->fh = staging_new_id(fs->s);
	fi->direct_io = 1;	/* sizes are not known beforehand */
	if (!make_text(fs, id, fi->fh))
		fuse_reply_err(req, ENOMEM);
	else
		fuse_reply_open(req, fi);
}

void control_read(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, struct fuse_file_info *fi)
{
	struct text *t;
	if (is_view(id)) {
		views_read(req, id, size, off);
		return;
	}
	pthread_mutex_lock(&texts_lock);
	for (t = texts; t && t->fh != fi->fh; t = t->next)
		;
	pthread_mutex_unlock(&texts_lock);
	if (!t)		/* opened under the worker before this one */
		t = make_text(req_fs(req), id, fi->fh);
	if (!t)
		fuse_reply_err(req, ENOMEM);
	else if ((size_t)off >= t->len)
		fuse_reply_buf(req, NULL, 0);
	else
		fuse_reply_buf(req, t->buf + off, t->len - (size_t)off < size ? t->len - (size_t)off : size);
}

void control_release(fuse_req_t req, fuse_ino_t id, struct fuse_file_info *fi)
{
	if (is_view(id)) {
		views_release(req, fi);
		return;
	}
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

void control_write(fuse_req_t req, fuse_ino_t id, const char *buf, size_t size, struct fuse_file_info *fi)
{
	struct fs *fs = req_fs(req);
	(void)fi;
	session_may_block(fs);
	if (id == C_CONTROL && says(buf, size, "retry")) {
		staging_retry(fs->s);
		retry_failed(fs);
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

void control_readdir(fuse_req_t req, fuse_ino_t id, size_t size, off_t off, bool plus)
{
	char buf[4096];
	size_t used = 0;
	const unsigned n = sizeof(files) / sizeof(files[0]) + 1;

	if (is_view(id)) {
		views_readdir(req, id, size, off, plus);
		return;
	}
	if (tree_of(id)) {
		tree_of(id)->readdir(req, id, size, off, plus);
		return;
	}
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
