/* SPDX-License-Identifier: MIT
 *
 * cairn rm: retention. Of the checkpoints in a directory that have a step, the last N safe ones
 * are kept and those of every K-th step. Also kept is what is not a known checkpoint, what is newer
 * than the newest safe one, and what is being written. The newest safe one is always kept.
 */
#include "commands.h"
#include "tools/cairn/ckpt/ckpt.h"
#include "io/number.h"

#include <fcntl.h>
#include <getopt.h>
#include <string.h>

struct item {
	struct ckpt_verdict verdict;
	bool safe, remove, failed;
	double quiet_s;
	uint64_t bytes;
	const char *why; /* it is kept or removed */
};

struct retain {
	const char *top;
	int fd;
	bool on_mount, dry_run, json;
	uint64_t keep_last, keep_every;
	struct ckpt_found *v; /* sorted, newest first; one item each */
	struct item *item;
	size_t n;
	uint64_t removed, freed;
	bool failed;
};

/* ---- gather ----------------------------------------------------------------------- */

static int add(struct retain *r, const char *name, const struct ckpt *c, const struct stat *st)
{
	struct ckpt_found *v = reallocarray(r->v, r->n + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	r->v = v;
	v[r->n] = (struct ckpt_found){.path = strdup(name), .kind = c->kind, .time = st->st_mtim};
	return v[r->n].path ? (r->n++, 0) : -ENOMEM;
}

/* Directories, and .ckpt files; other files are parts of something, or unknown. */
static int look_at(struct retain *r, const char *name)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	struct ckpt_kind file;
	struct stat st;

	if (!strcmp(name, ".cairn") || fstatat(r->fd, name, &st, AT_SYMLINK_NOFOLLOW))
		return 0;
	ckpt_recognize_file(name, &file);
	if (!S_ISDIR(st.st_mode) && !(S_ISREG(st.st_mode) && file.format == CKPT_LIGHTNING))
		return 0;
	if (ckpt_open(r->fd, name, name, r->on_mount, &c) || c.kind.format == CKPT_NONE ||
	    !c.kind.has_step)
		return 0;
	return add(r, name, &c, &st);
}

static int read_item(struct retain *r, size_t i, struct item *out)
{
	CLEANUP_CKPT struct ckpt c = CKPT_EMPTY;
	int err = ckpt_open(r->fd, r->v[i].path, r->v[i].path, r->on_mount, &c);

	if (!err)
		err = ckpt_read(&c, false, NULL, NULL);
	if (err)
		return err;
	*out = (struct item){.quiet_s = c.quiet_s};
	ckpt_verdict(&c, &out->verdict);
	out->safe = ckpt_is_safe(&c, &out->verdict);
	for (size_t j = 0; j < c.names.n; j++)
		out->bytes += c.name[j].size;
	return 0;
}

static int read_all(struct retain *r)
{
	r->n = ckpt_found_sort(r->v, r->n);
	r->item = calloc(r->n ? r->n : 1, sizeof(*r->item));
	if (!r->item)
		return -ENOMEM;
	for (size_t i = 0; i < r->n; i++) {
		int err = read_item(r, i, &r->item[i]);

		if (err)
			return err;
	}
	for (size_t i = 0; i < r->n; i++) {
		ssize_t before = ckpt_found_before(r->v, r->n, i);
		struct item *t = &r->item[i];

		if (before >= 0)
			ckpt_expect_ranks(&r->v[i].kind, r->item[before].verdict.ranks, t->quiet_s,
					  &t->verdict);
		t->safe = t->safe && t->verdict.state == CKPT_COMPLETE;
	}
	return 0;
}

/* ---- decide ----------------------------------------------------------------------- */

/* Newest first. Nothing is removed before a safe one was found. */
static void decide(struct retain *r)
{
	uint64_t safe = 0;

	for (size_t i = 0; i < r->n; i++) {
		struct item *t = &r->item[i];

		t->remove = false;
		safe += t->safe;
		if (t->safe && safe == 1)
			t->why = "the newest safe one";
		else if (!safe)
			t->why = "newer than any safe one";
		else if (t->verdict.state == CKPT_WRITING)
			t->why = "being written";
		else if (t->verdict.state == CKPT_COMPLETE && !t->safe)
			t->why = "not durable yet";
		else if (t->safe && safe <= r->keep_last)
			t->why = "one of the last";
		else if (t->safe && r->keep_every && r->v[i].kind.step % r->keep_every == 0)
			t->why = "every so many steps";
		else
			t->remove = true;
		if (t->remove)
			t->why = t->safe ? "older" : t->verdict.why;
	}
}

/* ---- remove ----------------------------------------------------------------------- */

/* Checked again: it may be being written again. */
static int remove_one(struct retain *r, size_t i)
{
	const char *name = r->v[i].path;
	struct item now;
	int err = read_item(r, i, &now);

	if (err == -ENOENT)
		return 0;
	if (!err && now.verdict.state == CKPT_WRITING)
		return -EBUSY;
	if (!err && r->v[i].kind.format == CKPT_LIGHTNING)
		return unlinkat(r->fd, name, 0) ? -errno : 0;
	return err ? err : ckpt_remove(r->fd, name);
}

/* The oldest first: if this is interrupted, the newer ones are left. */
static void remove_all(struct retain *r)
{
	for (size_t i = r->n; i-- > 0;) {
		struct item *t = &r->item[i];
		int err = !t->remove ? 0 : r->dry_run ? 0 : remove_one(r, i);

		if (err) {
			complain("%s/%s: %s", r->top, r->v[i].path,
				 err == -EBUSY ? "being written now; kept" : strerror(-err));
			t->failed = r->failed = true;
		} else if (t->remove) {
			r->removed++;
			r->freed += t->bytes;
		}
	}
}

/* ---- tell ------------------------------------------------------------------------- */

static void show_text(const struct retain *r)
{
	char buf[32];

	for (size_t i = 0; i < r->n; i++) {
		const struct item *t = &r->item[i];

		printf("%s  ", t->failed ? "FAILED" : !t->remove ? "keep  " : "remove");
		print_name(stdout, r->v[i].path);
		printf("  %s, %s", ckpt_state_name(t->verdict.state), human_bytes(t->bytes, buf));
		if (*t->why) {
			fputs(": ", stdout);
			print_name(stdout, t->why);
		}
		putchar('\n');
	}
	printf("%s %llu of %zu, %s\n", r->dry_run ? "would remove" : "removed",
	       (unsigned long long)r->removed, r->n, human_bytes(r->freed, buf));
}

static void show_json(const struct retain *r)
{
	struct json_out j;

	json_begin(&j, stdout);
	json_open(&j, NULL, '{');
	json_put_path(&j, "path", r->top);
	json_put_bool(&j, "dry_run", r->dry_run);
	json_put_u64(&j, "removed", r->removed);
	json_put_u64(&j, "bytes", r->freed);
	json_open(&j, "checkpoints", '[');
	for (size_t i = 0; i < r->n; i++) {
		const struct item *t = &r->item[i];

		json_open(&j, NULL, '{');
		json_put_path(&j, "name", r->v[i].path);
		json_put_string(&j, "format", ckpt_format_name(r->v[i].kind.format));
		json_put_u64(&j, "step", r->v[i].kind.step);
		json_put_string(&j, "state", ckpt_state_name(t->verdict.state));
		json_put_bool(&j, "safe", t->safe);
		json_put_u64(&j, "bytes", t->bytes);
		json_put_string(&j, "action", t->failed ? "failed" : t->remove ? "remove" : "keep");
		json_put_path(&j, "why", t->why);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
	putchar('\n');
}

/* ---- one DIR ---------------------------------------------------------------------- */

static int gather(struct retain *r)
{
	struct names names = {0};
	int err = names_read(r->fd, &names);

	for (size_t i = 0; !err && i < names.n; i++)
		err = look_at(r, names.v[i]);
	names_free(&names);
	return err ? err : read_all(r);
}

static int run(struct retain *r)
{
	int err = gather(r);
	bool any = false;

	if (err) {
		complain_location(r->top, err);
		return CAIRN_FAILED;
	}
	decide(r);
	for (size_t i = 0; i < r->n; i++)
		any |= r->item[i].safe;
	remove_all(r);
	if (r->json)
		show_json(r);
	else
		show_text(r);
	if (!any)
		complain("%s: no checkpoint with a step is safe: nothing is removed", r->top);
	return r->failed || !any ? CAIRN_FAILED : CAIRN_OK;
}

static int retain(struct retain *r)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_CLOSE int fd = open(r->top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int code, err = fd < 0 ? -errno : location_find(r->top, &p);

	if (fd < 0 || (err && err != -ENODEV && err != -EXDEV)) {
		complain_location(r->top, err);
		return location_code(err);
	}
	r->fd = fd;
	r->on_mount = p.on_mount;
	if (!err && !p.on_mount)
		code = location_hold(r->top, &p, "use the path on its mount");
	else
		code = CAIRN_OK;
	if (code)
		return code;
	code = run(r);
	for (size_t i = 0; i < r->n; i++)
		free(r->v[i].path);
	free(r->v);
	free(r->item);
	return code;
}

int cmd_rm(int argc, char **argv)
{
	static const struct option longs[] = {
		{"keep-last", required_argument, NULL, 'n'},
		{"keep-every", required_argument, NULL, 'k'},
		{"dry-run", no_argument, NULL, 'd'},
		{"json", no_argument, NULL, 'j'},
		{0},
	};
	struct retain r = {0};
	int c;

	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (c == 'd')
			r.dry_run = true;
		else if (c == 'j')
			r.json = true;
		else if (c != 'n' && c != 'k')
			return complain_option("rm", argv);
		else if (!(*(c == 'n' ? &r.keep_last : &r.keep_every) = number_or_0(optarg)))
			return complain_usage("rm",
					      "--keep-%s needs a positive integer, got \"%s\"",
					      c == 'n' ? "last" : "every", optarg);
	}
	if (!r.keep_last && !r.keep_every)
		return complain_usage("rm", "give --keep-last N, --keep-every K, or both");
	if (argc - optind != 1)
		return complain_usage("rm", "one directory");
	r.top = argv[optind];
	return retain(&r);
}
