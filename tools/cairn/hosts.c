/* SPDX-License-Identifier: MIT
 *
 * cairn hosts: who serves a store, who is gone, and what each of them left there. It reads the
 * store itself, so that it also answers where no cairnfs does.
 */
#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <string.h>
#include <time.h>

#include "hosts.h"

struct host {
	struct io_host h;
	const char *state;
	uint64_t files, bytes; /* unpublished */
};

struct hosts {
	struct host *v;
	size_t n, cap;
	int64_t now; /* by the store's clock */
	bool local; /* the store is on a local disk here */
	bool no_memory;
};

static void take(void *ctx, const struct io_host *h)
{
	struct hosts *all = ctx;

	if (all->n == all->cap) {
		size_t cap = all->cap ? all->cap * 2 : 16;
		void *more = realloc(all->v, cap * sizeof(*all->v));

		all->no_memory |= !more;
		if (!more)
			return;
		all->v = more;
		all->cap = cap;
	}
	all->v[all->n++] = (struct host){.h = *h};
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct host *)a)->h.name, ((const struct host *)b)->h.name);
}

/* A boot id is read where the store may be served by processes of this machine under other names
 * (containers). */
static bool is_of_this_boot(const struct io_host *h)
{
	char ours[37];

	io_boot_id(ours);
	return ours[0] && !strcmp(ours, h->boot);
}

/* local: one kernel serves the store's filesystem, and knows each lock. Another client of a network
 * filesystem on this machine has locks that this one may not see: only the heartbeat tells. */
static const char *state_of(const struct io_host *h, int64_t now, bool local)
{
	if (h->locked) /* some network filesystems know the locks of all machines */
		return is_of_this_boot(h) ? "here" : "alive";
	switch (h->said) {
	case IO_HOST_SAID_NOTHING: return "unknown";
	case IO_HOST_ENDED: return "ended";
	case IO_HOST_ALIVE: break;
	}
	if (local && is_of_this_boot(h) && (!h->client[0] || !strcmp(h->client, IO_CLIENT_LOCAL)))
		return "silent";
	if (now - h->heard < IO_HOST_SILENT_S)
		return "alive";
	return hosts_is_hidden(h, local) ? "unknown" : "silent";
}

static int count_unpublished(int cairn, struct host *h)
{
	CLEANUP_CLOSE int dir =
		openat(cairn, h->h.name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP_CLOSE int tmp =
		dir < 0 ? -1 : openat(dir, "tmp", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct names names;
	struct stat st;
	uint64_t id;
	int err = tmp < 0 ? -errno : names_read(tmp, &names);

	if (err)
		return err == -ENOENT ? 0 : err;
	for (size_t i = 0; i < names.n; i++) {
		if (!io_tmp_id(names.v[i], &id) ||
		    fstatat(tmp, names.v[i], &st, AT_SYMLINK_NOFOLLOW))
			continue;
		h->files++;
		h->bytes += (uint64_t)st.st_size;
	}
	names_free(&names);
	return 0;
}

static int collect(int cairn, struct hosts *all)
{
	int err = io_hosts_clock(cairn, &all->now);

	all->local = io_fs_is_local(cairn);
	if (err) /* read only: the clock of this machine must do */
		all->now = time(NULL);
	err = io_hosts_each(cairn, true, take, all);
	if (!err && all->no_memory)
		err = -ENOMEM;
	for (size_t i = 0; !err && i < all->n; i++) {
		all->v[i].state = state_of(&all->v[i].h, all->now, all->local);
		err = count_unpublished(cairn, &all->v[i]);
	}
	if (all->n)
		qsort(all->v, all->n, sizeof(*all->v), by_name);
	return err;
}

/* ---- output ---------------------------------------------------------------------------- */

static double ago(const struct hosts *all, const struct io_host *h)
{
	return all->now > h->heard ? (double)(all->now - h->heard) : 0;
}

static void put_state(const struct hosts *all, const struct host *h, char *buf, size_t cap)
{
	char t[32];

	human_time(ago(all, &h->h), t);
	if (!strcmp(h->state, "here"))
		snprintf(buf, cap, "served by this machine");
	else if (!strcmp(h->state, "alive"))
		snprintf(buf, cap, h->h.said ? "alive, heard of %s ago" : "alive", t);
	else if (!strcmp(h->state, "silent"))
		snprintf(buf, cap, "SILENT, last heard of %s ago", t);
	else if (!strcmp(h->state, "ended"))
		snprintf(buf, cap, "ended %s ago", t);
	else if (h->h.said)
		snprintf(buf, cap, "unknown: it reaches the store on a disk; ask its machine");
	else
		snprintf(buf, cap, "unknown: its cairnfs is older, or was never started again");
}

static void print_host(const struct hosts *all, const struct host *h)
{
	char state[96], n[COUNT_ROOM], m[COUNT_ROOM], size[32];

	put_state(all, h, state, sizeof(state));
	printf("%-20s %4u  %s", h->h.name, h->h.number, state);
	if (h->h.said == IO_HOST_ALIVE)
		printf(", cairnfs %s, pid %d", h->h.version, h->h.pid);
	if (h->files)
		printf("; %s not published, %s", count_of(h->files, "file", n),
		       human_bytes(h->bytes, size));
	if (h->h.left)
		printf("; %s in its staging", count_of(h->h.left, "change", m));
	putchar('\n');
}

static void print_json_host(struct json_out *j, const struct hosts *all, const struct host *h)
{
	json_open(j, NULL, '{');
	json_put_string(j, "name", h->h.name);
	json_put_u64(j, "number", h->h.number);
	json_put_string(j, "state", h->state);
	if (h->h.said) {
		json_put_i64(j, "heard_s_ago", (int64_t)ago(all, &h->h));
		json_put_i64(j, "since", h->h.since);
		json_put_string(j, "version", h->h.version);
		json_put_string(j, "boot_id", h->h.boot);
		json_put_i64(j, "pid", h->h.pid);
	}
	json_put_u64(j, "left_in_staging", h->h.left);
	json_open(j, "unpublished", '{');
	json_put_u64(j, "files", h->files);
	json_put_u64(j, "bytes", h->bytes);
	json_close(j, '}');
	json_close(j, '}');
}

static void print_json(const char *store, const struct hosts *all)
{
	struct json_out j;

	json_begin(&j, stdout);
	json_open(&j, NULL, '{');
	json_put_path(&j, "store", store);
	json_open(&j, "hosts", '[');
	for (size_t i = 0; i < all->n; i++)
		print_json_host(&j, all, &all->v[i]);
	json_close(&j, ']');
	json_close(&j, '}');
	putchar('\n');
}

/* ---- the store ------------------------------------------------------------------------- */

/* The store's path, malloc()ed; NULL: complained. */
static char *store_of(const struct location *p)
{
	CLEANUP_JSON struct json_doc *d = NULL;
	int err = p->on_mount ? location_status(p, &d) : 0;
	char *path = err	   ? NULL
		     : p->on_mount ? json_bytes(d, json_at(d, 0, "store"))
				   : strdup(p->top);

	if (err)
		complain_status(p, err);
	else if (!path)
		complain("%s: %s", p->top, strerror(ENOMEM));
	return path;
}

/* STORE/.cairn, and its hosts; or -errno, complained. The caller frees all->v. */
static int open_hosts(const char *store, struct hosts *all)
{
	watch_asks(store);
	CLEANUP_CLOSE int root = open(store, O_PATH | O_DIRECTORY | O_CLOEXEC);
	CLEANUP_CLOSE int cairn =
		root < 0 ? -1
			 : openat(root, ".cairn", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	int fd = cairn, err = cairn < 0 ? -errno : collect(cairn, all);

	watch_asks(NULL);
	if (err) {
		complain("%s/.cairn: %s%s", store, strerror(-err),
			 err == -EACCES ? " (only root and the user who mounts the store may)"
					: "");
		return err;
	}
	cairn = -1;
	return fd;
}

static int show(const char *store, bool json)
{
	struct hosts all = {0};
	CLEANUP_CLOSE int cairn = open_hosts(store, &all);
	int code = cairn < 0 ? CAIRN_FAILED : CAIRN_OK;

	if (cairn >= 0 && json)
		print_json(store, &all);
	for (size_t i = 0; cairn >= 0 && i < all.n; i++) {
		if (!json)
			print_host(&all, &all.v[i]);
		if (!strcmp(all.v[i].state, "silent"))
			code = CAIRN_FAILED;
	}
	free(all.v);
	return code;
}

static int end_for(const char *store, const char *name, bool adopt)
{
	struct hosts all = {0};
	CLEANUP_CLOSE int cairn = open_hosts(store, &all);
	const struct io_host *h = NULL;
	const char *why = NULL;
	int err = 0;

	for (size_t i = 0; cairn >= 0 && i < all.n; i++)
		if (!strcmp(all.v[i].h.name, name))
			h = &all.v[i].h;
	if (h)
		why = hosts_why_not(h, all.now, all.local);
	else if (cairn >= 0)
		why = "the store has no such host; `cairn hosts` lists them";
	if (h && !why)
		err = hosts_end_for(cairn, h, adopt);
	if (why)
		complain("%s: %s", name, why);
	else if (err)
		complain("%s: %s", name,
			 err == -EWOULDBLOCK ? "it is served again" : strerror(-err));
	free(all.v);
	return !h || why || err ? CAIRN_FAILED : CAIRN_OK;
}

/* The word that says what to do, or NULL. */
static const char *verb_of(int argc, char **argv)
{
	bool is = argc == 3 && (!strcmp(argv[0], "adopt") || !strcmp(argv[0], "discard"));

	return is ? argv[0] : NULL;
}

int cmd_hosts(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'}, {"force", no_argument, NULL, 'f'}, {0}};
	CLEANUP_PLACE struct location p = LOCATION_NONE;
	CLEANUP_FREE char *store = NULL;
	bool json = false, force = false;
	int c, code;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c != 'j' && c != 'f')
			return complain_option("hosts", argv);
		*(c == 'j' ? &json : &force) = true;
	}
	argc -= optind;
	argv += optind;
	const char *verb = verb_of(argc, argv);
	if (!verb && argc != 1)
		return complain_usage("hosts", "which store? Or: adopt, or discard, a store, "
					       "and which host");
	if (verb && !force)
		return complain_usage("hosts",
				      "--force is needed: that host may come back, and publish "
				      "what it left");
	code = location_need(argv[verb ? 1 : 0], false, &p);
	if (code)
		return code;
	store = store_of(&p);
	if (!store)
		return CAIRN_FAILED;
	return verb ? end_for(store, argv[2], !strcmp(verb, "adopt")) : show(store, json);
}
