/* SPDX-License-Identifier: MIT
 *
 * cairn staging: lists the staging directories of this machine, whose stores may be gone, and
 * removes one.
 */
#include <fcntl.h>
#include <getopt.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>

#include "commands.h"
#include "io/entries.h"
#include "staging/log/left.h"

#define ID_LEN 32
#define SHARED_PREFIX "cairnfs-"

struct entry {
	char path[4096], id[ID_LEN + 1];
	int root, base; /* the directory that it is in, itself */
	const char *name; /* in root; in path */
	bool is_mounted; /* a tmpfs of its own */
	bool is_served, store_is_there;
	struct staging_left left;
};

struct listing {
	bool json, force;
	const char *want; /* an ID or a path; NULL: all */
	struct json_out j;
	int found, code;
};

/* ---- one directory ----------------------------------------------------------------- */

static bool is_id(const char *s)
{
	return strlen(s) == ID_LEN && strspn(s, "0123456789abcdef") == ID_LEN;
}

/* By the kernel's list: to take the lock would refuse a cairnfs that starts just then. */
static bool is_locked(int base)
{
	CLEANUP_FREE char *text = NULL;
	char want[64];
	struct stat st;
	size_t len;

	if (fstatat(base, "lock", &st, AT_SYMLINK_NOFOLLOW) ||
	    read_small_file(AT_FDCWD, "/proc/locks", STATUS_MAX, &text, &len))
		return false;
	snprintf(want, sizeof(want), " %02x:%02x:%llu ", major(st.st_dev), minor(st.st_dev),
		 (unsigned long long)st.st_ino);
	return strstr(text, want);
}

static bool store_is(const char *store, const char *id)
{
	CLEANUP_CLOSE int dir = *store ? open(store, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	CLEANUP_FREE char *text = NULL;
	size_t len;

	return dir >= 0 && !read_small_file(dir, ".cairn/id", 4096, &text, &len) &&
	       !strncmp(text, id, ID_LEN);
}

static int entry_open(int root, const char *dir, const char *name, const char *id, struct entry *e)
{
	struct stat st, up;
	int n;

	*e = (struct entry){.root = root, .base = -1};
	n = snprintf(e->path, sizeof(e->path), "%s/%s", dir, name);
	if (n < 0 || (size_t)n >= sizeof(e->path))
		return -ENAMETOOLONG;
	e->name = e->path + strlen(dir) + 1;
	snprintf(e->id, sizeof(e->id), "%s", id);
	e->base = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (e->base < 0 || fstat(e->base, &st) || fstat(root, &up))
		return -errno;
	e->is_mounted = st.st_dev != up.st_dev;
	e->is_served = is_locked(e->base);
	n = staging_left_read(e->base, id, &e->left);
	e->store_is_there = store_is(e->left.store, id);
	return n;
}

/* ---- remove -------------------------------------------------------------------------- */

static int remove_files(int base, const char *sub)
{
	CLEANUP_CLOSE int dir = openat(base, sub, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct names names = {0};
	int err = dir < 0 ? -errno : names_read(dir, &names);

	for (size_t i = 0; !err && i < names.n; i++)
		if (unlinkat(dir, names.v[i], 0) && errno != ENOENT && errno != EISDIR)
			err = -errno;
	names_free(&names);
	return err == -ENOENT ? 0 : err;
}

/* Under the lock. One of its own goes with its tmpfs. */
static int remove_dir(struct entry *e)
{
	static const char *const sub[] = {"huge", "small"};
	int err = 0;

	if (e->is_mounted)
		err = umount2(e->path, MNT_DETACH | UMOUNT_NOFOLLOW) ? -errno : 0;
	for (int i = 0; !e->is_mounted && !err && i < 2; i++) {
		err = remove_files(e->base, sub[i]);
		if (!err && unlinkat(e->base, sub[i], AT_REMOVEDIR) && errno != ENOENT)
			err = -errno;
	}
	if (!e->is_mounted && !err)
		err = remove_files(e->base, ".");
	if (!err && unlinkat(e->root, e->name, AT_REMOVEDIR))
		err = -errno;
	return err;
}

static bool holds(const struct staging_left *l)
{
	return l->unpublished_files || l->unpublished_changes || l->unreadable;
}

static int refuse(const struct entry *e)
{
	char a[COUNT_ROOM], b[32], c[COUNT_ROOM];

	if (e->left.unreadable)
		complain("%s: it cannot be read, and may hold what no store has (%s); mount the "
			 "store with the cairnfs that wrote it, or add --force to lose that",
			 e->path, human_bytes(e->left.bytes, b));
	else
		complain("%s: it holds %s (%s) and %s that the store may not have; mount the "
			 "store to publish them, or add --force to lose them",
			 e->path, count_of(e->left.unpublished_files, "file", a),
			 human_bytes(e->left.unpublished_bytes, b),
			 count_of(e->left.unpublished_changes, "change", c));
	return CAIRN_FAILED;
}

static bool has_mount_at(const char *pid, const char *path)
{
	char table[64];
	struct io_mounts m;
	bool has = false;

	snprintf(table, sizeof(table), "/proc/%.20s/mountinfo", pid);
	if (io_mounts_read(table, &m))
		return false;
	for (size_t i = 0; i < m.n && !has; i++)
		has = !strcmp(m.v[i].point, path);
	io_mounts_free(&m);
	return has;
}

/* The process in whose mount namespace something is mounted on e, which is a bare directory here:
 * rmdir(2) would unmount that. 0: none that can be seen. */
static int mounted_by(const struct entry *e)
{
	CLEANUP_DIR DIR *d = e->is_mounted ? NULL : entries_at(AT_FDCWD, "/proc");
	struct dirent *of;

	while ((of = entries_next(d)))
		if (of->d_name[0] >= '1' && of->d_name[0] <= '9' &&
		    has_mount_at(of->d_name, e->path))
			return atoi(of->d_name);
	return 0;
}

static int remove_entry(struct entry *e, bool force)
{
	CLEANUP_CLOSE int lock = openat(e->base, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	int err = 0, pid = mounted_by(e);

	if (pid) {
		complain("%s: another mount namespace has staging there; remove it in that one: "
			 "nsenter -m -t %d cairn staging remove %s",
			 e->path, pid, e->id);
		return CAIRN_FAILED;
	}
	if (lock < 0 && errno != ENOENT)
		err = -errno;
	else if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB))
		err = -errno;
	if (err == -EWOULDBLOCK) {
		complain("%s: a cairnfs has it; unmount its mount first", e->path);
		return CAIRN_FAILED;
	}
	if (!err) /* nobody changes it any more */
		err = staging_left_read(e->base, e->id, &e->left);
	if (!err && holds(&e->left) && !force)
		return refuse(e);
	if (!err)
		err = remove_dir(e);
	if (err) {
		complain("%s: cannot remove it: %s", e->path, strerror(-err));
		return CAIRN_FAILED;
	}
	print_name(stdout, e->path);
	puts(": removed");
	return CAIRN_OK;
}

/* ---- list ---------------------------------------------------------------------------- */

static const char *state_of(const struct entry *e)
{
	return e->is_served ? "served" : e->store_is_there ? "left" : "store gone";
}

static void show_text(const struct entry *e)
{
	const struct staging_left *l = &e->left;
	char a[32], b[32], n[COUNT_ROOM], m[COUNT_ROOM], when[64] = "?";
	struct tm tm;

	if (localtime_r(&l->since, &tm))
		strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S", &tm);
	print_name(stdout, e->path);
	printf("\n  store        ");
	print_name(stdout, *l->store ? l->store : "-");
	printf("\n  state        %s, since %s\n  memory       %s\n", state_of(e), when,
	       human_bytes(l->bytes, a));
	if (l->unreadable)
		puts("  unpublished  unknown: of another version, or damaged");
	else
		printf("  unpublished  %s, %s, %s\n", count_of(l->unpublished_files, "file", n),
		       human_bytes(l->unpublished_bytes, b),
		       count_of(l->unpublished_changes, "change", m));
}

static void show_json(struct json_out *j, const struct entry *e)
{
	const struct staging_left *l = &e->left;

	json_open(j, NULL, '{');
	json_put_path(j, "path", e->path);
	json_put_string(j, "id", e->id);
	json_put_path(j, "store", *l->store ? l->store : NULL);
	json_put_string(j, "state", state_of(e));
	json_put_i64(j, "since", l->since);
	json_put_u64(j, "bytes", l->bytes);
	json_put_bool(j, "readable", !l->unreadable);
	json_open(j, "unpublished", '{');
	json_put_u64(j, "files", l->unpublished_files);
	json_put_u64(j, "bytes", l->unpublished_bytes);
	json_put_u64(j, "changes", l->unpublished_changes);
	json_close(j, '}');
	json_close(j, '}');
}

/* ---- all ----------------------------------------------------------------------------- */

static void take(struct listing *l, struct entry *e, int err)
{
	l->found++;
	if (err) {
		complain("%s: %s", e->path, strerror(-err));
		l->code = CAIRN_FAILED;
	} else if (l->want) {
		l->code = remove_entry(e, l->force);
	} else if (l->json) {
		show_json(&l->j, e);
	} else {
		show_text(e);
	}
}

static void look_in(struct listing *l, const char *dir, const char *prefix)
{
	CLEANUP_CLOSE int root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct names names = {0};

	if (root < 0 || names_read(root, &names))
		return;
	for (size_t i = 0; i < names.n; i++) {
		const char *id = names.v[i] + strlen(prefix);
		struct entry e;
		struct stat st;

		if (strncmp(names.v[i], prefix, strlen(prefix)) || !is_id(id) ||
		    fstatat(root, names.v[i], &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode) ||
		    (geteuid() && st.st_uid != geteuid()))
			continue;
		int err = entry_open(root, dir, names.v[i], id, &e);
		if (!l->want || !strcmp(l->want, id) || !strcmp(l->want, e.path))
			take(l, &e, err);
		if (e.base >= 0)
			close(e.base);
	}
	names_free(&names);
}

static void look_everywhere(struct listing *l, const char *dir)
{
	const char *xdg = getenv("XDG_RUNTIME_DIR");
	char user[64];

	snprintf(user, sizeof(user), "/run/user/%u", (unsigned)geteuid());
	if (dir) {
		look_in(l, dir, "");
		return;
	}
	look_in(l, "/run/cairnfs", "");
	look_in(l, "/dev/shm", SHARED_PREFIX);
	look_in(l, user, SHARED_PREFIX);
	if (xdg && *xdg == '/' && strcmp(xdg, user))
		look_in(l, xdg, SHARED_PREFIX);
}

static int run(struct listing *l, const char *dir)
{
	if (l->json) {
		json_begin(&l->j, stdout);
		json_open(&l->j, NULL, '[');
	}
	look_everywhere(l, dir);
	if (l->json) {
		json_close(&l->j, ']');
		putchar('\n');
	}
	if (l->want && !l->found) {
		complain("%s: no staging has this ID or path; `cairn staging list`", l->want);
		return CAIRN_USAGE;
	}
	return l->code;
}

int cmd_staging(int argc, char **argv)
{
	static const struct option options[] = {
		{"json", no_argument, NULL, 'j'},
		{"force", no_argument, NULL, 'f'},
		{"dir", required_argument, NULL, 'd'},
		{0},
	};
	struct listing l = {0};
	const char *dir = NULL, *what;
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == 'j')
			l.json = true;
		else if (c == 'f')
			l.force = true;
		else if (c == 'd')
			dir = optarg;
		else
			return complain_option("staging", argv);
	}
	what = optind < argc ? argv[optind++] : "list";
	bool removes = !strcmp(what, "remove");
	if (!removes && strcmp(what, "list"))
		return complain_usage("staging", "%s: list, or remove and its name", what);
	if (argc - optind != (removes ? 1 : 0))
		return complain_usage("staging", removes ? "one ID or path" : "list takes no name");
	if (l.force && !removes)
		return complain_usage("staging", "--force is for remove");
	if (removes && l.json)
		return complain_usage("staging", "--json is for list");
	l.want = removes ? argv[optind] : NULL;
	return run(&l, dir);
}
