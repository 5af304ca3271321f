/* SPDX-License-Identifier: MIT
 *
 * Clock, source memory, places and the waits between two measurements.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>

#include "bench.h"

#define TMPFS_MAGIC 0x01021994
#define FUSE_MAGIC 0x65735546
#define POLL_MS 2
#define SETTLE_S 10
/* the page pool and what is staged come in huge pages, its target does not */
#define ROUNDING (4 << 20)

volatile sig_atomic_t bench_stop;

double bench_now(void)
{
	return (double)monotonic_ns() * 1e-9;
}

char *bench_source(uint64_t len)
{
	uint64_t x = 0x9e3779b97f4a7c15u;
	uint64_t *p;

	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, len, MADV_HUGEPAGE);
	for (uint64_t i = 0; i < len / sizeof(*p); i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p[i] = x;
	}
	return (char *)p;
}

/* ---- status.json ------------------------------------------------------------ */

static int status_read(const struct bench_place *p, char *buf, size_t cap)
{
	CLEANUP_CLOSE int fd = -1;
	char path[PATH_MAX + 32];
	ssize_t n = 0, got;

	snprintf(path, sizeof(path), "%s/.cairn/status.json", p->path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while ((size_t)n < cap - 1) {
		got = read(fd, buf + n, cap - 1 - n);
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		n += got;
	}
	buf[n] = '\0';
	return 0;
}

/* The names used here appear once in status.json. */
static double status_number(const char *json, const char *name)
{
	char key[64];
	const char *at;

	snprintf(key, sizeof(key), "\"%s\"", name);
	at = strstr(json, key);
	if (!at)
		return -1;
	at += strlen(key);
	at += strspn(at, " \t\n:");
	return strtod(at, NULL);
}

int bench_pids(struct bench_place *p)
{
	char json[16384];
	int err = status_read(p, json, sizeof(json));

	if (err)
		return err;
	p->worker = (int)status_number(json, "pid");
	p->keeper = (int)status_number(json, "keeper_pid");
	return p->worker > 0 && p->keeper > 0 ? 0 : -EPROTO;
}

static double cpu_of(int pid)
{
	char path[64], line[1024], *at;
	unsigned long user = 0, sys = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	at = fgets(line, sizeof(line), f);
	fclose(f);
	/* the name in brackets may contain anything; fields count from the last ')' */
	at = at ? strrchr(line, ')') : NULL;
	if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			  &sys) != 2)
		return 0;
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

double bench_cpu(const struct bench_place *p)
{
	return (p->worker ? cpu_of(p->worker) : 0) + (p->keeper ? cpu_of(p->keeper) : 0);
}

/* ---- places ----------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	(void)st;
	(void)at;
	if ((flag == FTW_DP ? rmdir(path) : unlink(path)) && errno != ENOENT)
		return errno;
	return 0;
}

int bench_remove_tree(const char *path)
{
	int err = nftw(path, remove_one, 32, FTW_DEPTH | FTW_PHYS);

	if (err < 0)
		return errno == ENOENT ? 0 : -errno;
	return -err;
}

int bench_place_open(struct bench_place *p)
{
	static unsigned nth; /* the same directory may be given twice */
	struct statfs fs;
	char state[32];
	int n;

	if (statfs(p->path, &fs))
		return -errno;
	p->tmpfs = fs.f_type == TMPFS_MAGIC;
	p->cairn = getxattr(p->path, KEY_STATE, state, sizeof(state)) > 0;
	p->disk = !p->tmpfs && (p->cairn || fs.f_type != FUSE_MAGIC);
	if (p->cairn)
		/* a mount without a status file is still measured, without its CPU */
		bench_pids(p);
	n = snprintf(p->run, sizeof(p->run), "%s/cairn-bench.%d-%u", p->path, getpid(), nth++);
	if (n < 0 || (size_t)n >= sizeof(p->run) - 128) {
		p->run[0] = '\0';
		return -ENAMETOOLONG;
	}
	if (mkdir(p->run, 0755)) {
		p->run[0] = '\0';
		return -errno;
	}
	return 0;
}

void bench_place_close(struct bench_place *p)
{
	if (p->run[0])
		bench_remove_tree(p->run);
	p->run[0] = '\0';
}

/* ---- writing and waiting ------------------------------------------------------ */

int bench_write_all(const struct bench *b, int fd, uint64_t size)
{
	uint64_t off = 0, at, len;
	ssize_t n;

	while (off < size) {
		at = off % b->source;
		len = b->block < size - off ? b->block : size - off;
		if (len > b->source - at)
			len = b->source - at;
		n = write(fd, b->src + at, len);
		if (n < 0)
			return -errno;
		off += (uint64_t)n;
	}
	return 0;
}

static int cairn_durable(const char *path)
{
	char state[32];
	ssize_t n;

	while (!bench_stop) {
		n = getxattr(path, KEY_STATE, state, sizeof(state) - 1);
		if (n < 0)
			return -errno;
		state[n] = '\0';
		if (!strcmp(state, "durable"))
			return 0;
		if (!strcmp(state, "failed"))
			return -EIO;
		sleep_ms(POLL_MS);
	}
	return -EINTR;
}

int bench_durable(const struct bench_place *p, const char *path)
{
	CLEANUP_CLOSE int fd = -1;
	struct stat st;

	if (p->cairn)
		return cairn_durable(path);
	if (p->tmpfs)
		return 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!(S_ISDIR(st.st_mode) ? syncfs(fd) : fsync(fd)))
		return 0;
	if (errno != EOPNOTSUPP)
		return -errno;
	sync(); /* some FUSE filesystems do not pass syncfs on */
	return 0;
}

void bench_settle(const struct bench_place *p)
{
	double end = bench_now() + SETTLE_S;
	char json[16384];

	if (!p->cairn)
		return;
	while (!bench_stop && bench_now() < end) {
		if (status_read(p, json, sizeof(json)))
			return;
		if (status_number(json, "pending") <= 0 &&
		    status_number(json, "pool_bytes") + status_number(json, "used_bytes") +
				    ROUNDING >=
			    status_number(json, "pool_target_bytes"))
			return;
		sleep_ms(20);
	}
}

void bench_barrier_wait(struct bench_barrier *bar, unsigned members)
{
	unsigned round = atomic_load(&bar->round);

	if (atomic_fetch_add(&bar->arrived, 1) + 1 == members) {
		atomic_store(&bar->arrived, 0);
		atomic_fetch_add(&bar->round, 1);
		return;
	}
	while (atomic_load(&bar->round) == round && !bench_stop)
		usleep(100);
}
