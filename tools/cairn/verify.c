/* SPDX-License-Identifier: MIT
 *
 * cairn verify: reads files from the store's disk and compares them with the
 * checksums computed when they were persisted. On a mount the tree is
 * walked in the mount and, in parallel, in the store underneath.
 */
#include "commands.h"
#include "verify.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <string.h>

#include "disk.h"

static const char *const finding_word[N_FINDINGS] = {
	[IS_OK] = "ok",
	[IS_MISMATCH] = "mismatch",
	[IS_UNREADABLE] = "unreadable",
	[IS_UNVERIFIABLE] = "unverifiable",
	[IS_NOT_DURABLE] = "not-durable",
};

/* ---- tell ------------------------------------------------------------------------------ */

static bool is_bad(enum finding r)
{
	return r == IS_MISMATCH || r == IS_UNREADABLE;
}

static void tell(struct verify *v, const struct file *f, enum finding r)
{
	v->count[r]++;
	if (r == IS_GONE || (!v->verbose && (r == IS_OK || r == IS_UNVERIFIABLE)))
		return;
	if (v->json) {
		json_open(&v->j, NULL, '{');
		json_put_path(&v->j, "path", f->path);
		json_put_string(&v->j, "result", finding_word[r]);
		json_put_string(&v->j, "expected", *f->want ? f->want : NULL);
		json_put_string(&v->j, "got", *f->got ? f->got : NULL);
		json_put_string(&v->j, "why", *f->why ? f->why : NULL);
		json_close(&v->j, '}');
		return;
	}
	progress_end(&v->bar);
	printf("%-12s ", finding_word[r]);
	print_name(stdout, f->path);
	if (*f->why) {
		fputs(": ", stdout);
		print_name(stdout, f->why);
	}
	putchar('\n');
	fflush(stdout);
}

static void tell_error(struct verify *v, const char *path, int err)
{
	struct file f = {.path = path};

	tell(v, &f, unreadable(&f, "cannot be listed", err));
}

static void totals(struct verify *v)
{
	double s = now_s() - v->bar.start;
	char a[32], b[32];

	progress_end(&v->bar);
	if (v->json) {
		json_close(&v->j, ']');
		json_put_u64(&v->j, "ok", v->count[IS_OK]);
		json_put_u64(&v->j, "mismatch", v->count[IS_MISMATCH]);
		json_put_u64(&v->j, "unreadable", v->count[IS_UNREADABLE]);
		json_put_u64(&v->j, "unverifiable", v->count[IS_UNVERIFIABLE]);
		json_put_u64(&v->j, "not_durable", v->count[IS_NOT_DURABLE]);
		json_put_u64(&v->j, "through_cache", v->cached);
		json_put_u64(&v->j, "bytes", v->bytes);
		json_close(&v->j, '}');
		return;
	}
	printf("%llu ok, %llu mismatched, %llu unreadable, %llu unverifiable (no checksum), %llu "
	       "not durable yet; %s read, %s/s\n",
	       (unsigned long long)v->count[IS_OK], (unsigned long long)v->count[IS_MISMATCH],
	       (unsigned long long)v->count[IS_UNREADABLE],
	       (unsigned long long)v->count[IS_UNVERIFIABLE],
	       (unsigned long long)v->count[IS_NOT_DURABLE], human_bytes(v->bytes, a),
	       human_bytes(s > 0 ? (uint64_t)((double)v->bytes / s) : 0, b));
	if (v->cached)
		printf("%llu of them could not be read past the page cache (no O_DIRECT)\n",
		       (unsigned long long)v->cached);
}

/* ---- trees ------------------------------------------------------------------------------- */

static void verify_file(struct verify *v, struct file *f)
{
	tell(v, f, judge(v, f));
}

static const char *store_skip(const struct verify *v)
{
	return !v->p->on_mount && !*v->p->below ? ".cairn" : NULL;
}

static uint64_t tree_bytes(const struct verify *v, int fd)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	uint64_t sum = 0;

	if (walk_open(fd, -1, store_skip(v), &w))
		return 0;
	while (walk_next(w, &it) != WALK_END)
		if (it.what == WALK_ENTRY && S_ISREG(it.st.st_mode))
			sum += (uint64_t)it.st.st_size;
	return sum;
}

static int verify_tree(struct verify *v, int fd, int peer)
{
	CLEANUP_WALK struct walk *w = NULL;
	struct walk_item it;
	int err = walk_open(fd, peer, store_skip(v), &w);

	if (err)
		return err;
	while (walk_next(w, &it) != WALK_END) {
		CLEANUP_FREE char *path = NULL, *below = NULL;
		struct file f = {.dirfd = it.dirfd, .peer = it.peer, .name = it.name};

		if (it.what == WALK_LEAVE || (it.what == WALK_ENTRY && !S_ISREG(it.st.st_mode)))
			continue;
		if (asprintf(&path, "%s/%s", v->p->arg, it.path) < 0 ||
		    asprintf(&below, "%s%s%s", v->p->below, *v->p->below ? "/" : "", it.path) < 0)
			return -ENOMEM;
		f.path = path;
		f.below = below;
		if (it.what == WALK_ENTRY)
			verify_file(v, &f);
		else if (it.err != -ENOENT)
			tell_error(v, path, it.err);
	}
	return 0;
}

/* Opens the directory's counterpart in the store; -1 if it does not exist (yet). */
static int open_peer(const struct verify *v, const char *below)
{
	return openat(v->store, *below ? below : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int verify_one_file(struct verify *v)
{
	struct file f = {.path = v->p->arg, .below = v->p->below};
	CLEANUP_CLOSE int up = open_parent(v->p->root, f.below, &f.name);
	CLEANUP_CLOSE int peer = open_parent(v->store, f.below, &f.name);

	if (up < 0)
		return up;
	f.dirfd = up;
	f.peer = peer;
	verify_file(v, &f);
	return 0;
}

static int verify_place(struct verify *v)
{
	CLEANUP_CLOSE int peer = -1;
	struct stat st;

	if (fstatat(v->p->fd, "", &st, AT_EMPTY_PATH))
		return -errno;
	if (S_ISREG(st.st_mode)) {
		progress_done(&v->bar, v->bytes, v->bytes + (uint64_t)st.st_size, "reading");
		return verify_one_file(v);
	}
	if (!S_ISDIR(st.st_mode))
		return -EINVAL;
	if (!v->bar.quiet)
		progress_done(&v->bar, v->bytes, v->bytes + tree_bytes(v, v->p->fd), "reading");
	peer = v->p->on_mount ? open_peer(v, v->p->below) : dup(v->p->fd);
	return verify_tree(v, v->p->fd, peer);
}

/* The store under a mount, as named by the daemon, if the same directory is visible here. */
static int open_store(struct verify *v)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	CLEANUP_FREE char *path = NULL, *want = NULL, *id = NULL;
	size_t len;
	int err = location_status(v->p, &d);

	if (err)
		return complain_status(v->p, err);
	path = json_bytes(d, json_at(d, 0, "store"));
	want = json_bytes(d, json_at(d, 0, "store_id"));
	v->store = path ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if (v->store < 0) {
		complain("%s: its store %s cannot be opened: %s; verify reads the store itself: "
			 "run it where the daemon runs",
			 v->p->arg, path ? path : "?",
			 path ? strerror(errno) : "not named in its status");
		return CAIRN_FAILED;
	}
	if (want && !read_small_file(v->store, ".cairn/id", 4096, &id, &len) &&
	    strncmp(id, want, strlen(want))) {
		complain("%s: what is at %s here is not its store (another machine or container?)",
			 v->p->arg, path);
		return CAIRN_FAILED;
	}
	return CAIRN_OK;
}

static int verify_path(struct verify *v, const char *path)
{
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	int code = location_need(path, false, &p), err;

	if (code)
		return code;
	v->p = &p;
	v->store = -1;
	if (p.on_mount)
		code = open_store(v);
	else
		v->store = dup(p.root);
	err = code ? 0 : verify_place(v);
	if (err == -EINVAL)
		complain("%s: neither a file nor a directory", path);
	else if (err)
		complain_location(path, err);
	sidecar_close(v->side);
	v->side = NULL;
	v->p = NULL;
	if (v->store >= 0)
		close(v->store);
	return code ? code : err ? CAIRN_FAILED : CAIRN_OK;
}

static int verify_all(struct verify *v, char **path)
{
	int worst = CAIRN_OK;
	bool any = false;

	json_begin(&v->j, stdout);
	if (v->json) {
		json_open(&v->j, NULL, '{');
		json_open(&v->j, "files", '[');
	}
	for (; *path; path++) {
		int code = verify_path(v, *path);

		worst = code > worst ? code : worst;
	}
	for (enum finding r = 0; r < N_FINDINGS; r++)
		any |= v->count[r] > 0;
	/* else nothing was read, and the reason was reported */
	if (any || v->json || worst == CAIRN_OK)
		totals(v);
	for (enum finding r = 0; r < N_FINDINGS; r++)
		if (is_bad(r) && v->count[r] && worst == CAIRN_OK)
			worst = CAIRN_FAILED;
	return worst;
}

int cmd_verify(int argc, char **argv)
{
	static const struct option opts[] = {
		{"json", no_argument, NULL, 'j'},
		{"quiet", no_argument, NULL, 'q'},
		{"verbose", no_argument, NULL, 'v'},
		{0},
	};
	struct verify v = {.store = -1};
	bool quiet = false;
	int c, code;

	while ((c = getopt_long(argc, argv, "jqv", opts, NULL)) != -1) {
		if (c == 'j')
			v.json = true;
		else if (c == 'q')
			quiet = true;
		else if (c == 'v')
			v.verbose = true;
		else
			return complain_option("verify", argv);
	}
	if (optind == argc)
		return complain_usage("verify", "which PATH?");
	progress_start(&v.bar, "verify", quiet);
	v.disk = disk_new();
	if (!v.disk) {
		complain("%m");
		return CAIRN_FAILED;
	}
	code = verify_all(&v, argv + optind);
	disk_free(v.disk);
	return code;
}
