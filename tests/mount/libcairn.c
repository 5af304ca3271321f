/* SPDX-License-Identifier: MIT
 *
 * A trainer on libcairn, for tests/mount/libcairn.sh and tests/crash/libcairn_kill.sh.
 *
 *	libcairn steps DIR STEPS SHARDS BYTES	STEPS checkpoints DIR/step-N of SHARDS shards, durable
 *						one after the other; from device memory where there is
 *						a driver. Prints the counts.
 *	libcairn over FILE COUNT BYTES		COUNT versions of one file, larger and smaller
 *	libcairn read DIR STEPS SHARDS BYTES	compares what steps wrote
 *	libcairn kept FILE BYTES		a reader maps each version before it is durable
 *	libcairn hold DIR BYTES			makes shards without end, until it is killed
 *	libcairn mount DIR			cairn_stage_mount
 *	libcairn train DIR BYTES		saves steps without end, until it is killed, from the one
 *						after DIR/newest on: the shards of DIR/slot-N, then newest
 *	libcairn prefix DIR BYTES		whether DIR is what any number of its commits leave
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/libcairn/cairn.h"
#include "tools/libcairn/cuda_dl.h"

#define LIMIT_MS 600000	/* the case ends before */

static struct cuda_dl cu;
static bool gpu;

static void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, ": %s\n", cairn_error());
	exit(1);
}

#define OK(call)                                                                                   \
	do {                                                                                       \
		if ((call) < 0)                                                                    \
			die("line %d: %s", __LINE__, #call);                                       \
	} while (0)

static void notice(void *arg, const char *text)
{
	(void)arg;
	fprintf(stderr, "notice: %s\n", text);
}

static cairn_stage *open_stage(const char *dir)
{
	struct cairn_options o = { .size = sizeof(o), .notice = notice };
	cairn_stage *stage;

	OK(cairn_stage_open(dir, &o, &stage));
	return stage;
}

/* Bytes that tell step and shard at every place. */
static void fill(char *buf, size_t n, unsigned seed)
{
	unsigned long long *p = (unsigned long long *)buf;

	for (size_t i = 0; i < n / 8; i++)
		p[i] = i * 0x9e3779b97f4a7c15ull + seed * 0x2545f4914f6cdd1dull;
	for (size_t i = n / 8 * 8; i < n; i++)
		buf[i] = (char)(seed + i);
}

static void check(const char *buf, const char *want, size_t n, const char *what)
{
	if (memcmp(buf, want, n))
		die("%s: other bytes", what);
}

static void *need(size_t n)
{
	void *p = malloc(n + 8);

	if (!p)
		die("memory");
	return p;
}

/* Device memory with these bytes, or the bytes themselves. */
static const void *to_device(const char *bytes, size_t n)
{
	static cudl_ptr p;
	static size_t have;

	if (!gpu)
		return bytes;
	if (have < n) {
		if (have)
			cu.mem_free(p);
		if (cu.mem_alloc(&p, n))
			die("cuMemAlloc");
		have = n;
	}
	if (cu.copy_htod(p, bytes, n, NULL) || cu.stream_sync(NULL))
		die("cuMemcpyHtoDAsync");
	return (const void *)(uintptr_t)p;
}

static void put(cairn_shard *shard, const char *bytes, size_t n)
{
	const char *src = to_device(bytes, n);
	size_t third = n / 3;

	memset(cairn_shard_data(shard), 0xee, n);
	OK(cairn_shard_copy(shard, third, src + third, n - third, NULL));
	OK(cairn_shard_copy(shard, 0, src, third, NULL));
	OK(cairn_shard_commit(shard, n));
}

static void save(cairn_stage *stage, const char *path, const char *bytes, size_t n)
{
	cairn_shard *shard;

	OK(cairn_shard_create(stage, path, n, 0, &shard));
	put(shard, bytes, n);
}

static void print_stats(cairn_stage *stage, const char *when)
{
	struct cairn_stats st;

	OK(cairn_stage_stats(stage, &st, sizeof(st)));
	printf("%s: mapped %llu registrations %llu own %llu written %llu shards %llu buffers %llu\n", when,
	       (unsigned long long)st.mapped, (unsigned long long)st.registrations,
	       (unsigned long long)st.own, (unsigned long long)st.bytes_written,
	       (unsigned long long)st.shards, (unsigned long long)st.buffers);
}

static cairn_shard *create_nth(cairn_stage *stage, const char *dir, int step, int i, size_t n)
{
	char path[4096];
	cairn_shard *shard;

	snprintf(path, sizeof(path), "%s/step-%d/shard-%d", dir, step, i);
	OK(cairn_shard_create(stage, path, n - (size_t)step, 0, &shard));
	return shard;
}

static void steps(const char *dir, int n_steps, int shards, size_t n)
{
	cairn_stage *stage = open_stage(dir);
	char path[4096], *bytes = need(n);

	for (int step = 0; step < n_steps; step++) {
		snprintf(path, sizeof(path), "%s/step-%d", dir, step);
		if (mkdir(path, 0777))
			die("mkdir");
		cairn_shard *next, *shard = create_nth(stage, dir, step, 0, n);
		for (int i = 0; i < shards; i++) {
			/* one is open all the time: a pause on a slow machine is no new checkpoint */
			next = i + 1 < shards ? create_nth(stage, dir, step, i + 1, n) : NULL;
			fill(bytes, n - (size_t)step, (unsigned)(step * 1000 + i));
			put(shard, bytes, n - (size_t)step);
			shard = next;
		}
		snprintf(path, sizeof(path), "%s/step-%d", dir, step);
		OK(cairn_wait(path, LIMIT_MS));
		if (step == 1)
			print_stats(stage, "two steps");
	}
	print_stats(stage, "all steps");
	OK(cairn_stage_close(stage));
	free(bytes);
}

static void read_back(const char *dir, int n_steps, int shards, size_t n)
{
	cairn_stage *stage = open_stage(dir);
	char path[4096], device[64], *want = need(n), *got = need(n);

	for (int step = 0; step < n_steps; step++)
		for (int i = 0; i < shards; i++) {
			size_t size = n - (size_t)step;

			snprintf(path, sizeof(path), "%s/step-%d/shard-%d", dir, step, i);
			fill(want, size, (unsigned)(step * 1000 + i));
			OK(cairn_load(stage, path, 0, got, size, NULL));
			check(got, want, size, path);
			if (gpu) {
				char *dst = (char *)(uintptr_t)to_device(got, n);

				memset(got, 0, size);
				OK(cairn_load(stage, path, 0, dst, size, NULL));
				if (cu.copy_dtoh(got, (uintptr_t)dst, size, NULL) || cu.stream_sync(NULL))
					die("cuMemcpyDtoHAsync");
				check(got, want, size, path);
			}
			if (cairn_load(stage, path, size, got, 1, NULL) != -ENODATA)
				die("%s: longer than it was written", path);
			OK(cairn_device(path, device, sizeof(device)));
			if (strcmp(device, gpu ? "cuda:0" : "cpu"))
				die("%s: device %s", path, device);
		}
	OK(cairn_stage_close(stage));
	free(want);
	free(got);
}

static void over(const char *file, int count, size_t n)
{
	char dir[4096], *slash, *bytes = need(n), *got = need(n);
	cairn_stage *stage;

	snprintf(dir, sizeof(dir), "%s", file);
	slash = strrchr(dir, '/');
	*slash = '\0';
	stage = open_stage(dir);
	for (int i = 0; i < count; i++) {
		size_t size = n - (size_t)(i * 7919) % (n / 8);	/* shrinks and grows in one buffer */

		fill(bytes, size, (unsigned)i);
		save(stage, file, bytes, size);
		OK(cairn_load(stage, file, 0, got, size, NULL));
		check(got, bytes, size, file);
		if (cairn_load(stage, file, size, got, 1, NULL) != -ENODATA)
			die("%s: longer than version %d", file, i);
		if (i % 3 == 0)
			OK(cairn_wait(file, LIMIT_MS));
	}
	print_stats(stage, "over");
	OK(cairn_stage_close(stage));
	free(bytes);
	free(got);
}

#define VERSIONS 8

/* What a reader mapped stays what it was, whatever memory later versions are made of. */
static void kept(const char *file, size_t n)
{
	char dir[4096], *slash, *bytes = need(n), *map[VERSIONS];
	cairn_stage *stage;

	snprintf(dir, sizeof(dir), "%s", file);
	slash = strrchr(dir, '/');
	*slash = '\0';
	stage = open_stage(dir);
	for (unsigned i = 0; i < VERSIONS; i++) {
		int fd;

		fill(bytes, n, i);
		save(stage, file, bytes, n);
		fd = open(file, O_RDONLY | O_CLOEXEC);
		map[i] = fd < 0 ? MAP_FAILED : mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
		if (map[i] == MAP_FAILED)
			die("open and map %s: %s", file, strerror(errno));
		close(fd);
		if (i % 2)
			OK(cairn_wait(file, LIMIT_MS));
	}
	for (unsigned i = 0; i < VERSIONS; i++) {
		fill(bytes, n, i);
		check(map[i], bytes, n, file);
		munmap(map[i], n);
	}
	OK(cairn_stage_close(stage));
	free(bytes);
}

static void hold(const char *dir, size_t n)
{
	cairn_stage *stage = open_stage(dir);
	char path[4096], *bytes = need(n);

	for (unsigned i = 0;; i++) {
		snprintf(path, sizeof(path), "%s/hold-%u", dir, i % 4);
		fill(bytes, n, i);
		save(stage, path, bytes, n);
		if (i == 3) {
			puts("ready");
			fflush(stdout);
		}
	}
}

/* ---- killed ---- */

#define SLOTS 4
#define SHARDS 2

/* A step's shards tell it in their first bytes, and have a size of their own. */
static unsigned tag(unsigned step, int i)
{
	return step * SHARDS + (unsigned)i + 1;
}

static size_t tag_size(unsigned t, size_t n)
{
	return n - t % 97 * 4096 - t % 13;
}

/* -1: not there. */
static long newest(const char *dir)
{
	char path[4096], text[32] = "";
	long step;
	int fd;

	snprintf(path, sizeof(path), "%s/newest", dir);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (read(fd, text, sizeof(text) - 1) <= 0 || sscanf(text, "%ld.", &step) != 1 || !strchr(text, '.'))
		die("%s: torn: \"%s\"", path, text);
	close(fd);
	return step;
}

static void train(const char *dir, size_t n)
{
	cairn_stage *stage = open_stage(dir);
	char path[4096], text[32], *bytes = need(n);

	for (unsigned step = (unsigned)(newest(dir) + 1);; step++) {
		for (int i = 0; i < SHARDS; i++) {
			size_t size = tag_size(tag(step, i), n);

			snprintf(path, sizeof(path), "%s/slot-%u/shard-%d", dir, step % SLOTS, i);
			fill(bytes, size, tag(step, i));
			save(stage, path, bytes, size);
		}
		snprintf(path, sizeof(path), "%s/newest", dir);
		snprintf(text, sizeof(text), "%u.", step);
		save(stage, path, text, strlen(text));
	}
}

/* Which step's shard stands there, all of it; -1: none. */
static long shard_step(const char *dir, unsigned slot, int i, size_t n, char *want, char *got)
{
	char path[4096];
	unsigned t = 0;
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/slot-%u/shard-%d", dir, slot, i);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) || (size_t)st.st_size > n || read(fd, got, n) != st.st_size)
		die("read %s", path);
	close(fd);
	for (unsigned long long first = 0; first != *(unsigned long long *)got; t++) {
		if (t == 1000000)
			die("%s: bytes of no shard", path);
		first = (t + 1) * 0x2545f4914f6cdd1dull;
	}
	if ((int)((t - 1) % SHARDS) != i || (t - 1) / SHARDS % SLOTS != slot || tag_size(t, n) != (size_t)st.st_size)
		die("%s: %zu bytes, as if of tag %u", path, (size_t)st.st_size, t);
	fill(want, (size_t)st.st_size, t);
	check(got, want, (size_t)st.st_size, path);
	return (t - 1) / SHARDS;
}

/* Step `last` is whole, and so are those before it that still have their slots; of the next one there
 * are the first few shards, the others in its slot are of the step whose slot it was. False: text. */
static bool is_prefix(const char *dir, size_t n, long last, char text[128])
{
	char *want = need(n), *got = need(n);

	*text = '\0';
	for (long step = last + 1; step > last + 1 - SLOTS; step--) {
		bool later = false;

		/* the last one first: a store goes on meanwhile */
		for (int i = SHARDS - 1; i >= 0 && step >= 0; i--) {
			long has = shard_step(dir, (unsigned)(step % SLOTS), i, n, want, got);
			long before = step - SLOTS < 0 ? -1 : step - SLOTS;

			if (has != step && (later || step <= last || has != before))
				snprintf(text, 128, "newest is %ld, shard %d of step %ld is of step %ld", last, i,
					 step, has);
			later |= has == step;
		}
	}
	free(want);
	free(got);
	return !*text;
}

static void prefix(const char *dir, size_t n)
{
	char text[128];
	long last;

	do {
		last = newest(dir);
		if (is_prefix(dir, n, last, text)) {
			printf("newest %ld\n", last);
			return;
		}
	} while (newest(dir) != last);	/* it went on meanwhile */
	die("%s", text);
}

/* A driver that LD_LIBRARY_PATH leads to; device 0 is this trainer's. */
static void open_gpu(void)
{
	cudl_context ctx;
	cudl_device dev;

	gpu = cuda_dl_open(&cu) == 0;
	if (gpu && (cu.device_get(&dev, 0) || cu.primary_retain(&ctx, dev) || cu.ctx_push(ctx)))
		die("no context");
}

int main(int argc, char **argv)
{
	const char *cmd = argc > 2 ? argv[1] : "";

	open_gpu();
	if (!strcmp(cmd, "steps") && argc == 6) {
		steps(argv[2], atoi(argv[3]), atoi(argv[4]), strtoull(argv[5], NULL, 10));
	} else if (!strcmp(cmd, "read") && argc == 6) {
		read_back(argv[2], atoi(argv[3]), atoi(argv[4]), strtoull(argv[5], NULL, 10));
	} else if (!strcmp(cmd, "over") && argc == 5) {
		over(argv[2], atoi(argv[3]), strtoull(argv[4], NULL, 10));
	} else if (!strcmp(cmd, "kept") && argc == 4) {
		kept(argv[2], strtoull(argv[3], NULL, 10));
	} else if (!strcmp(cmd, "hold") && argc == 4) {
		hold(argv[2], strtoull(argv[3], NULL, 10));
	} else if (!strcmp(cmd, "train") && argc == 4) {
		train(argv[2], strtoull(argv[3], NULL, 10));
	} else if (!strcmp(cmd, "prefix") && argc == 4) {
		prefix(argv[2], strtoull(argv[3], NULL, 10));
	} else if (!strcmp(cmd, "mount")) {
		cairn_stage *stage = open_stage(argv[2]);
		const char *mount = cairn_stage_mount(stage);

		puts(mount ? mount : "none");
		OK(cairn_stage_close(stage));
	} else {
		fprintf(stderr, "usage: see the head of libcairn.c\n");
		return 2;
	}
	return 0;
}
