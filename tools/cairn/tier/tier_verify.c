/* SPDX-License-Identifier: MIT
 *
 * cairn tier ls, cairn tier verify: what is in a tier, and is it what was sent?
 */
#include "tier.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

enum finding { GOOD, MISSING, MISMATCH, UNREADABLE, N_FINDINGS };

static const char *const finding_name[N_FINDINGS] = {"ok", "missing", "mismatch", "unreadable"};

struct look {
	struct tier t;
	const struct tier_opts *o;
	struct json_out j;
	struct progress bar;
	uint64_t bytes, count[N_FINDINGS];
	struct names complete, begun; /* paths of checkpoints */
	bool failed;
};

static int open_tier(struct look *l, const char *name)
{
	struct tier_why why;
	int err = tier_open_to_read(&l->t, name, &why);

	if (!err) {
		err = manifest_list(&l->t, TIER_MANIFEST, &l->complete);
		if (!err)
			err = manifest_list(&l->t, TIER_BEGUN, &l->begun);
		if (err)
			tier_told(&why, err, "%s/" TIER_MANIFESTS ": %s", name,
				  tier_strerror(&l->t, err));
	}
	if (!err)
		return CAIRN_OK;
	complain("%s", why.text);
	return err == -ENOENT || err == -ENOTDIR || err == -EOPNOTSUPP ? CAIRN_USAGE : CAIRN_FAILED;
}

static void close_tier(struct look *l)
{
	names_free(&l->complete);
	names_free(&l->begun);
	tier_close(&l->t);
}

static bool has_name(const struct names *n, const char *name)
{
	for (size_t i = 0; i < n->n; i++)
		if (!strcmp(n->v[i], name))
			return true;
	return false;
}

/* ---- ls --------------------------------------------------------------------------- */

/* The first of its files that is not there with its size; NULL: all are. */
static const char *first_missing(const struct look *l, const struct manifest *m)
{
	for (size_t i = 0; i < m->n; i++) {
		struct stat st;

		if (tier_stat(&l->t, m->v[i].path, &st) || !S_ISREG(st.st_mode) ||
		    (uint64_t)st.st_size != m->v[i].size)
			return m->v[i].path;
	}
	return NULL;
}

static void ls_text(const struct manifest *m, const char *path, const char *state, const char *why)
{
	char buf[32], count[COUNT_ROOM], when[32];
	time_t at = (time_t)m->time_s;
	struct tm tm;

	printf("%-8s  ", state);
	print_name(stdout, path);
	if (m->path) {
		printf("  %s", m->format);
		if (m->has_step)
			printf(", step %llu", (unsigned long long)m->step);
		printf(", %s, %s", count_of(m->n, "file", count),
		       human_bytes(manifest_bytes(m), buf));
		if (m->generation > 1)
			printf(", generation %llu", (unsigned long long)m->generation);
		localtime_r(&at, &tm);
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
		printf(", %s", when);
	}
	if (why) {
		fputs(": ", stdout);
		print_name(stdout, why);
	}
	putchar('\n');
}

static void ls_json(struct json_out *j, const struct manifest *m, const char *path,
		    const char *state, const char *why)
{
	json_open(j, NULL, '{');
	json_put_path(j, "path", path);
	json_put_string(j, "state", state);
	if (m->path) {
		json_put_string(j, "format", m->format);
		if (m->has_step)
			json_put_u64(j, "step", m->step);
		json_put_u64(j, "files", m->n);
		json_put_u64(j, "bytes", manifest_bytes(m));
		json_put_u64(j, "generation", m->generation);
		json_put_u64(j, "time_s", m->time_s);
	}
	json_put_path(j, "why", why);
	json_close(j, '}');
}

static void ls_one(struct look *l, const char *path, bool complete)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	const char *state = complete ? "complete" : "partial", *why = NULL;
	int err = complete ? manifest_load(&l->t, path, TIER_MANIFEST, &m) : 0;

	if (err == -ENOENT)
		return; /* removed meanwhile */
	if (err) {
		why = err == -EBADMSG ? "its manifest is damaged" : tier_strerror(&l->t, err);
	} else if (complete) {
		why = first_missing(l, &m);
	}
	if (why)
		state = "damaged";
	l->failed |= why != NULL;
	if (l->o->json)
		ls_json(&l->j, &m, path, state, why);
	else
		ls_text(&m, path, state, why);
}

int tier_ls(const char *tier, const struct tier_opts *o)
{
	struct look l = {.o = o};
	int code = open_tier(&l, tier);

	json_begin(&l.j, stdout);
	if (!code && o->json) {
		json_open(&l.j, NULL, '{');
		json_put_path(&l.j, "tier", tier);
		json_open(&l.j, "checkpoints", '[');
	}
	for (size_t i = 0; !code && i < l.complete.n; i++)
		ls_one(&l, l.complete.v[i], true);
	for (size_t i = 0; !code && i < l.begun.n; i++)
		if (!has_name(&l.complete, l.begun.v[i]))
			ls_one(&l, l.begun.v[i], false);
	if (!code && o->json) {
		json_close(&l.j, ']');
		json_close(&l.j, '}');
	}
	close_tier(&l);
	return code ? code : l.failed ? CAIRN_FAILED : CAIRN_OK;
}

/* ---- verify ----------------------------------------------------------------------- */

static enum finding check_file(const struct look *l, const struct tier_file *f,
			       struct tier_why *why)
{
	char sum[IO_CHECKSUM_LEN];
	struct stat st = {0};
	uint64_t size = 0;
	int err = tier_stat(&l->t, f->path, &st);

	if (err == -ENOENT) {
		tier_told(why, 0, "not there");
		return MISSING;
	}
	size = (uint64_t)st.st_size;
	if (!err && size == f->size)
		err = tier_sum(&l->t, f->path, &size, sum);
	if (!err && size != f->size) {
		tier_told(why, 0, "expected %llu bytes, has %llu", (unsigned long long)f->size,
			  (unsigned long long)size);
		return MISMATCH;
	}
	if (err) {
		tier_told(why, 0, "%s", tier_strerror(&l->t, err));
		return UNREADABLE;
	}
	if (!strcmp(sum, f->sum))
		return GOOD;
	tier_told(why, 0, "expected %s, read %s", f->sum, sum);
	return MISMATCH;
}

/* A push may be replacing it: was this file listed like that until now? */
static bool is_still_listed(const struct look *l, const char *checkpoint, const struct tier_file *f)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	const struct tier_file *now = NULL;

	if (!manifest_load(&l->t, checkpoint, TIER_MANIFEST, &m))
		now = manifest_find(&m, f->path);
	return now && !strcmp(now->sum, f->sum);
}

static void show_file(struct look *l, const char *path, enum finding r, const char *why)
{
	progress_end(&l->bar);
	if (l->o->json) {
		json_open(&l->j, NULL, '{');
		json_put_path(&l->j, "path", path);
		json_put_string(&l->j, "result", finding_name[r]);
		json_put_path(&l->j, "why", why);
		json_close(&l->j, '}');
		return;
	}
	printf("%-10s  ", finding_name[r]);
	print_name(stdout, path);
	fputs(": ", stdout);
	print_name(stdout, why);
	putchar('\n');
}

static void verify_one(struct look *l, const char *path, uint64_t total)
{
	CLEANUP_MANIFEST struct manifest m = {0};
	struct tier_why why = {.text = "its manifest is damaged"};
	int err = manifest_load(&l->t, path, TIER_MANIFEST, &m);

	if (err == -ENOENT)
		return;
	if (err) {
		if (err != -EBADMSG)
			tier_told(&why, err, "%s", tier_strerror(&l->t, err));
		l->count[UNREADABLE]++;
		show_file(l, path, UNREADABLE, why.text);
		return;
	}
	for (size_t i = 0; i < m.n; i++) {
		enum finding r;

		progress_done(&l->bar, l->bytes, total, m.v[i].path);
		r = check_file(l, &m.v[i], &why);
		if (r != GOOD && !is_still_listed(l, path, &m.v[i]))
			continue;
		l->bytes += m.v[i].size;
		l->count[r]++;
		if (r != GOOD)
			show_file(l, m.v[i].path, r, why.text);
	}
}

static uint64_t bytes_of(const struct look *l, const char *path)
{
	CLEANUP_MANIFEST struct manifest m = {0};

	return manifest_load(&l->t, path, TIER_MANIFEST, &m) ? 0 : manifest_bytes(&m);
}

static void totals(struct look *l)
{
	char buf[32];

	progress_end(&l->bar);
	if (!l->o->json) {
		printf("%llu ok, %llu missing, %llu mismatched, %llu unreadable, %s\n",
		       (unsigned long long)l->count[GOOD], (unsigned long long)l->count[MISSING],
		       (unsigned long long)l->count[MISMATCH],
		       (unsigned long long)l->count[UNREADABLE], human_bytes(l->bytes, buf));
		return;
	}
	json_close(&l->j, ']');
	for (enum finding r = 0; r < N_FINDINGS; r++)
		json_put_u64(&l->j, finding_name[r], l->count[r]);
	json_put_u64(&l->j, "bytes", l->bytes);
	json_close(&l->j, '}');
}

static int verify_all(struct look *l, const char *tier)
{
	CLEANUP_FREE bool *hit = calloc(l->o->n_dirs + 1, sizeof(*hit));
	uint64_t total = 0;

	if (!hit)
		return CAIRN_FAILED;
	json_begin(&l->j, stdout);
	if (l->o->json) {
		json_open(&l->j, NULL, '{');
		json_put_path(&l->j, "tier", tier);
		json_open(&l->j, "files", '[');
	}
	for (size_t i = 0; i < l->complete.n; i++)
		if (tier_wants(l->o, l->complete.v[i], NULL))
			total += bytes_of(l, l->complete.v[i]);
	for (size_t i = 0; i < l->complete.n; i++)
		if (tier_wants(l->o, l->complete.v[i], hit))
			verify_one(l, l->complete.v[i], total);
	for (size_t i = 0; i < l->o->n_dirs; i++)
		if (!hit[i]) {
			complain("%s/%s: no complete checkpoint in this tier", tier, l->o->dirs[i]);
			l->failed = true;
		}
	totals(l);
	for (enum finding r = GOOD + 1; r < N_FINDINGS; r++)
		l->failed |= l->count[r] > 0;
	return l->failed ? CAIRN_FAILED : CAIRN_OK;
}

int tier_verify(const char *tier, const struct tier_opts *o)
{
	struct look l = {.o = o};
	int code = open_tier(&l, tier);

	progress_start(&l.bar, "verify", o->quiet);
	if (!code)
		code = verify_all(&l, tier);
	close_tier(&l);
	return code;
}
