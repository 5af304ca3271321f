/* SPDX-License-Identifier: MIT
 *
 * A trainer that commits buffers, and what its tree must look like after any of its calls.
 *
 *	lender client DIR ACKS SEED STEPS
 *		makes buffers, saves STEPS checkpoints from them below DIR; after each call that
 *		returned it counts one up in ACKS (a file). Exit 1 with a line when a call fails.
 *	lender check DIR ACKS SEED [STEPS]
 *		DIR holds the tree after n calls, for n = the count or one more; with STEPS, after all
 *	lender kills MNT DIR STORE SEED COUNT
 *		COUNT times: a client in DIR, killed by SIGKILL at a seeded instant; then no buffer
 *		is left, the mount and, once durable, the store hold what they must, and with the tree
 *		removed staging holds what it held before
 *
 * A checkpoint goes to one of three directories, over the one that was there: the marker
 * `done` is removed, each shard is linked to a new name and renamed into place, `done` is made.
 */
#include <dirent.h>
#include <sys/mman.h>

#include "../mount/check.h"

#define SLOTS 3
#define RANKS 2
#define LEN_MAX (1500 * KIB)
#define PER_STEP (2 + 2 * RANKS)

static size_t len_of(uint64_t seed, uint64_t step, int rank)
{
	uint64_t w = word_at(seed * 977 + step, (uint64_t)rank);

	return w % 16 ? 1 + w % LEN_MAX : w / 16 % 5000;	/* some small */
}

static uint64_t tag_of(uint64_t seed, uint64_t step, int rank)
{
	return seed * 1000003 + step * 8 + (uint64_t)rank;
}

/* ---- the model ----------------------------------------------------------------- */

struct slot {
	bool there, done;
	long shard[RANKS], tmp[RANKS];	/* of which step, -1 = none */
};

static void after(uint64_t n, struct slot s[SLOTS])
{
	for (int i = 0; i < SLOTS; i++) {
		s[i] = (struct slot){0};
		for (int r = 0; r < RANKS; r++)
			s[i].shard[r] = s[i].tmp[r] = -1;
	}
	for (uint64_t op = 0; op < n; op++) {
		long step = (long)(op / PER_STEP);
		int at = (int)(op % PER_STEP), r = (at - 1) / 2;
		struct slot *d = &s[step % SLOTS];

		if (at == 0) {
			d->there = true;
			d->done = false;
		} else if (at == PER_STEP - 1) {
			d->done = true;
		} else if (at % 2) {
			d->tmp[r] = step;
		} else {
			d->shard[r] = step;
			d->tmp[r] = -1;
		}
	}
}

static bool same_file(const char *path, uint64_t seed, long step, int rank)
{
	static char buf[LEN_MAX + 1];
	int fd = open(path, O_RDONLY);
	size_t want = step < 0 ? 0 : len_of(seed, (uint64_t)step, rank), got = 0;
	ssize_t n;

	if (step < 0 || fd < 0) {
		if (fd >= 0)
			close(fd);
		return step < 0 && fd < 0;
	}
	while (got < sizeof(buf) && (n = pread(fd, buf + got, sizeof(buf) - got, (off_t)got)) > 0)
		got += (size_t)n;
	close(fd);
	return got == want && differs(buf, got, tag_of(seed, (uint64_t)step, rank), 0) == -1;
}

static int n_entries(const char *dir)
{
	DIR *d = opendir(dir);
	int n = 0;

	if (!d)
		return -1;
	for (struct dirent *e; (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

static bool tree_is(const char *dir, uint64_t seed, uint64_t n, char *why_not, size_t cap)
{
	struct slot s[SLOTS];
	char path[PATH_MAX];

	after(n, s);
	for (int i = 0; i < SLOTS; i++) {
		int want = s[i].done;

		snprintf(path, sizeof(path), "%s/slot%d", dir, i);
		if (exists(path) != s[i].there) {
			snprintf(why_not, cap, "after %lu: slot%d", (unsigned long)n, i);
			return false;
		}
		for (int r = 0; r < RANKS; r++) {
			want += (s[i].shard[r] >= 0) + (s[i].tmp[r] >= 0);
			snprintf(path, sizeof(path), "%s/slot%d/%d", dir, i, r);
			bool ok = same_file(path, seed, s[i].shard[r], r);
			snprintf(path, sizeof(path), "%s/slot%d/%d.tmp", dir, i, r);
			if (!ok || !same_file(path, seed, s[i].tmp[r], r)) {
				snprintf(why_not, cap, "after %lu: slot%d/%d", (unsigned long)n, i, r);
				return false;
			}
		}
		snprintf(path, sizeof(path), "%s/slot%d", dir, i);
		if (s[i].there && n_entries(path) != want) {
			snprintf(why_not, cap, "after %lu: slot%d has %d names, want %d", (unsigned long)n, i,
				 n_entries(path), want);
			return false;
		}
	}
	return true;
}

static void check_tree(const char *what, const char *dir, uint64_t seed, uint64_t lo, uint64_t hi)
{
	char reason[200] = "";

	for (uint64_t n = hi + 1; n-- > lo;)
		if (tree_is(dir, seed, n, reason, sizeof(reason)))
			return;
	FAIL("%s %s is not the tree after %lu to %lu calls; %s", what, dir, (unsigned long)lo, (unsigned long)hi, reason);
}

/* ---- the client ---------------------------------------------------------------- */

static volatile uint64_t *acks_of(const char *path)
{
	int fd = OK(open(path, O_RDWR | O_CREAT, 0644));

	OK(ftruncate(fd, 4096));
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (p == MAP_FAILED)
		FAIL("mmap: %s", strerror(errno));
	OK(close(fd));
	return p;
}

struct lent {
	int fd;
	char *p, path[PATH_MAX];
};

/* A buffer that is the client's: the same, unless others have its pages. */
static void have(struct lent *b, const char *mnt, int rank)
{
	static unsigned made;
	char s[32] = "";

	for (;;) {
		if (b->fd < 0) {
			snprintf(b->path, sizeof(b->path), "%s/.cairn/buffers/%ld.%d-%d-%u", mnt, LEN_MAX, (int)getpid(),
				 rank, made++);
			b->fd = OK(open(b->path, O_RDWR | O_CREAT | O_EXCL, 0644));
			b->p = mmap(NULL, LEN_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
			if (b->p == MAP_FAILED)
				FAIL("mmap: %s", strerror(errno));
		}
		memset(s, 0, sizeof(s));
		OK(fgetxattr(b->fd, "user.cairn.buffer", s, sizeof(s) - 1));
		if (!strcmp(s, "free"))
			return;
		if (!strcmp(s, "kept")) {
			OK(munmap(b->p, LEN_MAX));
			OK(close(b->fd));
			b->fd = -1;
			continue;
		}
		usleep(500);
	}
}

static void client(const char *mnt, const char *dir, volatile uint64_t *acks, uint64_t seed, uint64_t steps)
{
	struct lent b[RANKS] = {{.fd = -1}, {.fd = -1}};

	OK(chdir(dir));
	for (uint64_t step = 0; step < steps; step++) {
		char name[64], tmp[64], done[80];

		snprintf(name, sizeof(name), "slot%lu", (unsigned long)(step % SLOTS));
		snprintf(done, sizeof(done), "%s/done", name);
		if (step < SLOTS)
			OK(mkdir(name, 0755));
		else
			OK(unlink(done));
		++*acks;
		for (int r = 0; r < RANKS; r++) {
			size_t len = len_of(seed, step, r);

			have(&b[r], mnt, r);
			fill(b[r].p, len, tag_of(seed, step, r), 0);
			memset(b[r].p + len, 0xaa, LEN_MAX - len);
			OK(ftruncate(b[r].fd, (off_t)len));
			snprintf(tmp, sizeof(tmp), "slot%lu/%d.tmp", (unsigned long)(step % SLOTS), r);
			OK(link(b[r].path, tmp));
			++*acks;
			snprintf(name, sizeof(name), "slot%lu/%d", (unsigned long)(step % SLOTS), r);
			OK(rename(tmp, name));
			++*acks;
		}
		OK(symlink("yes", done));
		++*acks;
	}
}

/* ---- clients killed -------------------------------------------------------------- */

static unsigned long long status(const char *mnt, const char *key)
{
	char path[PATH_MAX], text[16384], quoted[64];
	int fd;
	ssize_t n;

	snprintf(path, sizeof(path), "%s/.cairn/status.json", mnt);
	fd = OK(open(path, O_RDONLY));
	n = OK(read(fd, text, sizeof(text) - 1));
	OK(close(fd));
	text[n] = 0;
	snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
	char *at = strstr(text, quoted);
	if (!at)
		FAIL("status.json has no %s", key);
	return strtoull(at + strlen(quoted), NULL, 10);
}

static void until(const char *mnt, const char *key, unsigned long long want)
{
	for (int i = 0; i < 10000 * slow() && status(mnt, key) != want; i++)
		usleep(2000);
	unsigned long long is = status(mnt, key);
	if (is != want)
		FAIL("%s is %llu after %d s, want %llu", key, is, 20 * slow(), want);
}

static void remove_tree(const char *dir)
{
	char path[PATH_MAX];

	for (int i = 0; i < SLOTS; i++) {
		static const char *const names[] = {"done", "0", "1", "0.tmp", "1.tmp"};
		for (unsigned k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
			snprintf(path, sizeof(path), "%s/slot%d/%s", dir, i, names[k]);
			if (unlink(path) && errno != ENOENT)
				FAIL("unlink %s: %s", path, strerror(errno));
		}
		snprintf(path, sizeof(path), "%s/slot%d", dir, i);
		if (rmdir(path) && errno != ENOENT)
			FAIL("rmdir %s: %s", path, strerror(errno));
	}
}

static int kill_one(const char *mnt, const char *dir, const char *in_store, uint64_t seed)
{
	char acks_path[PATH_MAX];
	int ws;

	snprintf(acks_path, sizeof(acks_path), "%s.acks", in_store);
	volatile uint64_t *acks = acks_of(acks_path);
	*acks = 0;
	unsigned long long used = status(mnt, "used_bytes");
	pid_t pid = OK(fork());
	if (!pid) {
		client(mnt, dir, acks, seed, 1000);
		_exit(0);
	}
	usleep((useconds_t)(word_at(seed, 99) % 60000));
	kill(pid, SIGKILL);
	OK(waitpid(pid, &ws, 0));
	if (!WIFSIGNALED(ws))
		_exit(1);	/* it has said why */
	until(mnt, "count", 0);
	uint64_t n = *acks;
	check_tree("the mount", dir, seed, n, n + 1);
	until(mnt, "pending", 0);
	check_tree("the store", in_store, seed, n, n + 1);
	check_tree("the mount, durable,", dir, seed, n, n + 1);
	remove_tree(dir);
	until(mnt, "pending", 0);
	until(mnt, "used_bytes", used);
	munmap((void *)acks, 4096);
	unlink(acks_path);
	return n > 0;
}

int main(int argc, char **argv)
{
	static char mnt[PATH_MAX];

	env.name = "lender";
	if (argc == 6 && !strcmp(argv[1], "client")) {
		snprintf(mnt, sizeof(mnt), "%s/..", argv[2]);	/* DIR is one below the mount */
		client(mnt, argv[2], acks_of(argv[3]), strtoull(argv[4], NULL, 10), strtoull(argv[5], NULL, 10));
		return 0;
	}
	if ((argc == 5 || argc == 6) && !strcmp(argv[1], "check")) {
		uint64_t n = *acks_of(argv[3]), all = argc == 6 ? strtoull(argv[5], NULL, 10) * PER_STEP : 0;

		check_tree("", argv[2], strtoull(argv[4], NULL, 10), all ? all : n, all ? all : n + 1);
		printf("%lu\n", (unsigned long)n);
		return 0;
	}
	if (argc == 7 && !strcmp(argv[1], "kills")) {
		uint64_t seed = strtoull(argv[5], NULL, 10);
		int count = atoi(argv[6]), busy = 0;

		for (int i = 0; i < count; i++) {
			static char name[64];

			snprintf(name, sizeof(name), "seed %lu", (unsigned long)(seed + (uint64_t)i));
			env.name = name;
			busy += kill_one(argv[2], argv[3], argv[4], seed + (uint64_t)i);
		}
		printf("%d of %d clients had saved something\n", busy, count);
		return 0;
	}
	fprintf(stderr, "usage: see the top of lender.c\n");
	return 2;
}
