/* SPDX-License-Identifier: MIT
 *
 * Mappings: readers map checkpoints, and some writers go on writing through a mapping
 * after they closed the file.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "check.h"

static char *map(const char *path, size_t len, int prot, int flags)
{
	int fd = OK(open(path, prot & PROT_WRITE && flags & MAP_SHARED ? O_RDWR : O_RDONLY));
	char *p = mmap(NULL, len, prot, flags, fd, 0);

	if (p == MAP_FAILED)
		FAIL("%s: mmap: %s", path, strerror(errno));
	OK(close(fd));
	return p;
}

static void read_maps(void)
{
	const size_t len = 5 * MIB + 123;

	put("a", len, 1);
	for (int i = 0; i < 2; i++) {		/* just written, and durable */
		char *p = map("a", len, PROT_READ, MAP_PRIVATE);
		char *s = map("a", len, PROT_READ, MAP_SHARED);

		EQ(differs(p, len, 1, 0), -1);
		EQ(differs(s, len, 1, 0), -1);
		for (size_t k = len; k < len + 3000 && k % 4096; k++)
			EQ(s[k], 0);		/* the rest of the last page */
		OK(munmap(p, len));
		OK(munmap(s, len));
		durable("a");
	}
}

/* torch.load(mmap=True): copy on write stays in the process. */
static void private_writes(void)
{
	char *p;

	put("a", MIB, 1);
	p = map("a", MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	memset(p, 0, MIB);
	OK(munmap(p, MIB));
	same("a", MIB, 1);
	durable("a");
	p = map("a", MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE);
	p[77] ^= 1;
	same("a", MIB, 1);
	same(store("a"), MIB, 1);
}

static void while_writer_is_open(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	char *p, *q;

	write_tag(fd, MIB, 1, 0);
	p = map("a", MIB, PROT_READ, MAP_SHARED);
	q = map("a", MIB, PROT_READ, MAP_PRIVATE);
	EQ(differs(p, MIB, 1, 0), -1);
	EQ(differs(q, MIB, 1, 0), -1);
	pwrite_tag(fd, MIB / 2, 2, 0);		/* seen through the shared one */
	EQ(differs(p, MIB / 2, 2, 0), -1);
	EQ(differs(p + MIB / 2, MIB / 2, 1, MIB / 2), -1);
	OK(close(fd));
	EQ(differs(p, MIB / 2, 2, 0), -1);
}

static void shared_write(void)
{
	const size_t len = 3 * MIB + 5;
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	char *p;

	OK(ftruncate(fd, len));
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	fill(p, len, 1, 0);
	same_fd_range("by read", fd, 0, len, 1);
	pwrite_tag(fd, 1000, 1, 0);
	OK(msync(p, len, MS_SYNC));
	OK(munmap(p, len));
	OK(close(fd));
	same("a", len, 1);
	durable("a");
	same(store("a"), len, 1);
}

/* numpy.memmap, torch.from_file(shared=True): map, close, write, unmap. */
static void writes_after_close(void)
{
	const size_t len = 2 * MIB;
	char *p;

	for (int was_durable = 0; was_durable < 2; was_durable++) {
		put("a", len, 1);
		if (was_durable)
			durable("a");
		p = map("a", len, PROT_READ | PROT_WRITE, MAP_SHARED);	/* and closed */
		usleep(20000);
		fill(p, len, 2, 0);
		same("a", len, 2);
		usleep(20000);
		fill(p, len / 2, 3, 0);
		OK(munmap(p, len));
		durable("a");
		for (int i = 0; i < 2; i++) {
			int fd = OK(open(i ? store("a") : "a", O_RDONLY));

			same_fd_range(i ? "store" : "mount", fd, 0, len / 2, 3);
			same_fd_range(i ? "store" : "mount", fd, len / 2, len / 2, 2);
			OK(close(fd));
		}
		OK(unlink("a"));
	}
}

/* A file still mapped for writing is never in the store half done, nor said to be durable. */
static void mapped_is_not_final(void)
{
	const size_t len = MIB;
	char state[32], *p;
	int fd;

	only_on_cairn();
	fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	OK(getxattr("a", "user.cairn.lane", state, sizeof(state)));
	if (!memcmp(state, "relay", 5))
		SKIP("in the relay lane its place in the order is at the munmap");
	OK(ftruncate(fd, len));
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	OK(close(fd));
	put("later", 100, 9);
	for (int i = 0; i < 20; i++) {
		fill(p, len, i, 0);
		usleep(10000);
		TRUE(strcmp(state_of("a", state), "durable"));
		TRUE(!exists(store("a")));
		/* in the relay lane the place is taken at the munmap: docs/DURABILITY.md, Limits */
	if (!getenv("MODE") || strcmp(getenv("MODE"), "relay"))
		TRUE(!exists(store("later")));	/* later names wait behind it */
	}
	OK(munmap(p, len));
	durable(".");
	same(store("a"), len, 19);
	same(store("later"), 100, 9);
}

static void unmapped_by_exit(int unused)
{
	char *p = map("a", MIB, PROT_READ | PROT_WRITE, MAP_SHARED);

	(void)unused;
	fill(p, MIB, 2, 0);
}

static void mapping_ends_with_its_process(void)
{
	put("a", MIB, 1);
	in_process(unmapped_by_exit);
	same("a", MIB, 2);
	durable("a");
	same(store("a"), MIB, 2);
}

/* A mapping of an old version, and then the name is written anew. */
static void overwrite_while_mapped(void)
{
	char *p, *q;

	only_on_cairn();
	put("a", MIB, 1);
	durable("a");
	p = map("a", MIB, PROT_READ, MAP_SHARED);
	q = map("a", MIB, PROT_READ, MAP_PRIVATE);
	EQ(p[0], (char)byte_at(1, 0));
	put("a", 2 * MIB, 2);
	EQ(differs(p, MIB, 1, 0), -1);
	EQ(differs(q, MIB, 1, 0), -1);
	same("a", 2 * MIB, 2);
	durable("a");
	EQ(differs(p, MIB, 1, 0), -1);
	same(store("a"), 2 * MIB, 2);
	OK(munmap(p, MIB));
	same("a", 2 * MIB, 2);
}

static void unlink_while_mapped(void)
{
	char *p;

	put("a", MIB, 1);
	durable("a");
	p = map("a", MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
	OK(unlink("a"));
	EQ(differs(p, MIB, 1, 0), -1);
	fill(p, MIB, 2, 0);
	EQ(differs(p, MIB, 2, 0), -1);
	durable(".");
	TRUE(!exists(store("a")));
	EQ(differs(p, MIB, 2, 0), -1);
	OK(munmap(p, MIB));
}

static void rename_while_mapped(void)
{
	char *p;

	put("a.tmp", MIB, 1);
	p = map("a.tmp", MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
	OK(rename("a.tmp", "a"));
	fill(p, MIB, 2, 0);
	same("a", MIB, 2);
	OK(munmap(p, MIB));
	durable(".");
	same(store("a"), MIB, 2);
	TRUE(!exists(store("a.tmp")));
}

/* While a writable mapping lives, an open for writing meets the same bytes. */
static void write_and_mapping(void)
{
	char *p;
	int fd;

	put("a", MIB, 1);
	p = map("a", MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
	fill(p, 1000, 2, 0);
	fd = OK(open("a", O_RDWR));
	same_fd_range("second writer", fd, 0, 1000, 2);
	pwrite_tag(fd, 1000, 3, 5000);
	EQ(differs(p + 5000, 1000, 3, 5000), -1);
	OK(close(fd));
	fill(p, 500, 4, 0);
	OK(munmap(p, MIB));
	durable("a");
	fd = OK(open(store("a"), O_RDONLY));
	same_fd_range("store", fd, 0, 500, 4);
	same_fd_range("store", fd, 500, 500, 2);
	same_fd_range("store", fd, 5000, 1000, 3);
}

#define BOTH_PAGES 4096

struct both {
	int fd;
	atomic_int go;	/* the page that is written now; both count it up */
};

static void *write_to_pages(void *arg)
{
	struct both *b = arg;

	for (int i = 0; i < BOTH_PAGES; i++) {
		atomic_fetch_add(&b->go, 1);
		while (atomic_load(&b->go) < 2 * i + 2)
			sched_yield();
		if (pwrite(b->fd, "written", 8, i * 4096) != 8)
			FAIL("pwrite: %s", strerror(errno));
	}
	return NULL;
}

/* For each page at once: write(2) of some bytes, and a store of others through a mapping. */
static void write_while_storing(int flags)
{
	int fd = OK(open("a", O_RDWR | O_CREAT | O_TRUNC, 0644));
	struct both b = { .fd = flags == O_RDWR ? fd : OK(open("a", flags)) };
	pthread_t t;
	char *p;

	OK(ftruncate(fd, BOTH_PAGES * 4096));
	p = mmap(NULL, BOTH_PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	TRUE(!pthread_create(&t, NULL, write_to_pages, &b));
	for (int i = 0; i < BOTH_PAGES; i++) {
		atomic_fetch_add(&b.go, 1);
		while (atomic_load(&b.go) < 2 * i + 2)
			sched_yield();
		strcpy(p + i * 4096 + 2048, "stored");
	}
	TRUE(!pthread_join(t, NULL));
	OK(munmap(p, BOTH_PAGES * 4096));
	if (b.fd != fd)
		OK(close(b.fd));
	OK(close(fd));
	fd = OK(open("a", O_RDONLY));
	for (int i = 0; i < BOTH_PAGES; i++) {
		char page[4096];

		EQ(pread(fd, page, 4096, i * 4096), 4096);
		if (strcmp(page, "written") || strcmp(page + 2048, "stored"))
			FAIL("page %d: \"%.7s\" \"%.6s\"", i, page, page + 2048);
	}
	OK(close(fd));
}

static void writes_and_stores_at_once(void)
{
	for (int round = 0; round < 3; round++) {
		write_while_storing(O_RDWR);
		write_while_storing(O_WRONLY);	/* opened when the file is open for both already */
	}
}

/* A second writer of a file that waits for its mapping loses the last name under its hands:
 * the order must not wait for a seal that never comes. */
static void joined_then_unlinked(void)
{
	for (int how = 0; how < 4; how++) {
		char *p;
		int w, r = -1;

		put("a", MIB, 1);
		p = map("a", MIB, PROT_READ | PROT_WRITE, MAP_SHARED);
		w = OK(open("a", O_WRONLY));
		pwrite_tag(w, 1000, 2, 5000);
		if (how == 1)
			OK(rename("a", "b"));
		if (how == 2)
			r = OK(open("a", O_RDONLY));
		if (how == 3) {
			put("c", MIB, 3);
			OK(rename("c", "a"));
		} else {
			OK(unlink(how == 1 ? "b" : "a"));
		}
		fill(p, 1000, 4, 0);
		OK(close(w));
		OK(munmap(p, MIB));
		put("later", 100, 9);
		durable(".");
		same(store("later"), 100, 9);
		if (r >= 0)
			OK(close(r));
		if (how == 3) {
			same(store("a"), MIB, 3);
			OK(unlink("a"));
		}
	}
}

/* fsync, not msync, is what reaches the store. */
static void fsync_of_mapped(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	char *p;

	OK(ftruncate(fd, MIB));
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	fill(p, MIB, 1, 0);
	OK(fsync(fd));
	same(store("a"), MIB, 1);
	fill(p, MIB, 2, 0);
	OK(fsync(fd));
	same(store("a"), MIB, 2);
	fill(p, MIB, 3, 0);
	OK(close(fd));
	OK(munmap(p, MIB));
	same("a", MIB, 3);
	durable("a");
	same(store("a"), MIB, 3);
}

static void growing_mapped(void)
{
	int fd = OK(open("a", O_RDWR | O_CREAT, 0644));
	char *p;

	OK(ftruncate(fd, 4096));
	p = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(p != MAP_FAILED);
	fill(p, 4096, 1, 0);
	OK(ftruncate(fd, 4 * MIB));
	fill(p + 4096, 4 * MIB - 4096, 1, 4096);
	OK(close(fd));
	OK(munmap(p, 4 * MIB));
	same("a", 4 * MIB, 1);
	durable("a");
	same(store("a"), 4 * MIB, 1);
}

static sigjmp_buf back;

static void on_sigbus(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

static void beyond_the_end(void)
{
	struct sigaction sa = { .sa_handler = on_sigbus };
	volatile char *p;

	put("a", 4096, 1);
	p = map("a", 3 * 4096, PROT_READ, MAP_SHARED);
	OK(sigaction(SIGBUS, &sa, NULL));
	if (!sigsetjmp(back, 1)) {
		char c = p[8192];

		FAIL("read %d past the end of the file, want SIGBUS", c);
	}
}

/* A program on the mount can be started: staged, and durable. */
static void exec_from_mount(void)
{
	char buf[65536];
	int in = open("/bin/true", O_RDONLY), fd, status;
	ssize_t n;

	if (in == -1)
		SKIP("no /bin/true");
	fd = OK(creat("prog", 0755));
	while ((n = OK(read(in, buf, sizeof(buf)))))
		write_all(fd, buf, n);
	OK(close(fd));
	for (int i = 0; i < 2; i++) {
		pid_t pid = OK(fork());

		if (!pid) {
			execl("./prog", "true", NULL);
			FAIL("exec: %s", strerror(errno));
		}
		OK(waitpid(pid, &status, 0));
		EQ(status, 0);
		durable("prog");
	}
}

/* safetensors maps a file twice; HF consolidation maps its inputs and writes another. */
static void maps_of_one_file(void)
{
	char *p[8];
	int fd;

	put("in", 2 * MIB, 1);
	for (int i = 0; i < 8; i++) {
		p[i] = map("in", 2 * MIB, PROT_READ, i % 2 ? MAP_SHARED : MAP_PRIVATE);
		if (i == 3)
			durable("in");
	}
	fd = OK(creat("out", 0644));
	for (int i = 0; i < 8; i++)
		write_all(fd, p[i] + i * (MIB / 4), MIB / 4);
	OK(close(fd));
	same("out", 2 * MIB, 1);
	durable("out");
	same(store("out"), 2 * MIB, 1);
}

static bool newer(struct timespec a, struct timespec b)
{
	return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

static void map_and(const char *path, bool read_first, bool write)
{
	int fd = OK(open(path, O_RDWR));
	char *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	TRUE(p != MAP_FAILED);
	if (read_first)
		TRUE(*(volatile char *)p != 'y');
	if (write)
		memset(p, 'y', 100);
	OK(munmap(p, 4096));
	OK(close(fd));
}

/* Of a file in memory; the same that was fsynced; one that the store has, by another name, and that was never opened. */
static void times_of_mapped_writes(void)
{
	static const char *const names[] = { "a", "b", "c" };

	for (int round = 0; round < 2; round++) {
		struct stat before, after;

		put("a", 3 * 4096, 1);
		put("b", 3 * 4096, 1);
		put("for_c", 3 * 4096, 1);
		durable(".");
		if (env.plain)
			put("c", 3 * 4096, 1);
		else
			OK(link(store("for_c"), store("c")));
		usleep(20000);
		for (int i = 0; i < 3; i++) {
			before = stat_of(names[i]);
			map_and(names[i], true, false);
			after = stat_of(names[i]);
			TRUE(!newer(after.st_mtim, before.st_mtim));
			if (i == 1)
				durable(names[i]);
			map_and(names[i], round, true);
			after = stat_of(names[i]);
			if (!newer(after.st_mtim, before.st_mtim) || !newer(after.st_ctim, before.st_ctim))
				FAIL("%s, read before: %d: times are those of before the write", names[i], round);
			durable(names[i]);
			TRUE(!newer(stat_of(names[i]).st_mtim, after.st_mtim));
			TRUE(!newer(after.st_mtim, stat_of(names[i]).st_mtim));
		}
		OK(unlink("c"));
		OK(unlink("for_c"));
	}
}

int main(int argc, char **argv)
{
#define C(name) { #name, name }
	static const struct check table[] = {
		C(read_maps), C(private_writes), C(while_writer_is_open), C(shared_write),
		C(writes_after_close), C(mapped_is_not_final), C(mapping_ends_with_its_process),
		C(overwrite_while_mapped), C(unlink_while_mapped), C(rename_while_mapped),
		C(write_and_mapping), C(writes_and_stores_at_once), C(joined_then_unlinked),
		C(fsync_of_mapped), C(growing_mapped), C(beyond_the_end), C(exec_from_mount), C(maps_of_one_file),
		C(times_of_mapped_writes), { NULL, NULL },
	};

	return check_main(argc, argv, table);
}
