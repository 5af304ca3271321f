/* SPDX-License-Identifier: MIT
 *
 * cairn-bench-gpu: from the GPU into staging, and back. `make bench-gpu` calls it through
 * tools/bench/run_gpu.
 *
 * A state dict is one piece of device memory, cut into tensors. A round copies it
 *
 *	limit	with cuMemcpyDtoHAsync into cuMemAllocHost memory: nothing can be faster
 *	cairn	with libcairn, as a trainer would: create, a copy a tensor, commit, durable
 *	load	back to the device with cairn_load
 *
 * interleaved, so that all run under the same conditions. The first two checkpoints map and
 * register memory and are reported separately; figures are medians of the others. If --seconds
 * runs out there are fewer of them, and a state dict for which it does not suffice is left out
 * with a message.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>

#include "io/number.h"
#include "tools/libcairn/priv.h"

#define GiB (1ull << 30)
#define ROUNDS_MAX 64
#define FIRST 2 /* checkpoints that register */
#define SAMPLE (1u << 20)
/* What must hold, from TARGET_FROM on. */
#define TARGET_FROM (8 * GiB)
#define TARGET_LIMIT 0.90
#define TARGET_CPU 0.02

struct options {
	const char *dir;
	unsigned long long size[8];
	unsigned tensors[8];
	unsigned n_sizes, n_tensors, rounds;
	double seconds; /* 0: no limit */
	bool stand_in, probe;
};

struct round {
	double limit, blocked, sealed, durable, cpu, load;
	unsigned long long registrations;
};

struct bench {
	const struct options *o;
	cairn_stage *stage;
	struct cuda_dl cu;
	cudl_stream stream;
	cudl_ptr device;
	void *host;
	unsigned long long size;
	unsigned tensors;
	unsigned rounds; /* that were run of this one */
	double end; /* deadline, or 0 */
	bool fake;
	struct round round[ROUNDS_MAX];
};

static double now(void)
{
	return (double)monotonic_ns() * 1e-9;
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec +
	       (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static int complain(const char *what)
{
	fprintf(stderr, "cairn-bench-gpu: %s: %s\n", what,
		*cairn_error() ? cairn_error() : cuda_dl_error());
	return -EIO;
}

/* Tensor i: [at, at + n). Sizes differ as in a model: each is twice or half its neighbour. */
static void tensor(const struct bench *b, unsigned i, uint64_t *at, uint64_t *n)
{
	uint64_t unit = b->size / (3ull * b->tensors), pair = i / 2;

	*at = pair * 6 * unit + (i % 2 ? 2 * unit : 0);
	*n = i % 2 ? 4 * unit : 2 * unit;
	if (*at + *n > b->size || i == b->tensors - 1)
		*n = b->size - *at;
}

/* ---- one round ---- */

static int run_limit(struct bench *b, struct round *r)
{
	double t = now();

	for (unsigned i = 0; i < b->tensors; i++) {
		uint64_t at, n;

		tensor(b, i, &at, &n);
		if (cuda_dl_copy_from(&b->cu, NULL, (char *)b->host + at,
				      (void *)(uintptr_t)(b->device + at), n, b->stream))
			return complain("limit");
	}
	if (cuda_dl_check(&b->cu, "cuStreamSynchronize", b->cu.stream_sync(b->stream)))
		return complain("limit");
	r->limit = now() - t;
	return 0;
}

static int run_cairn(struct bench *b, const char *path, struct round *r)
{
	struct cairn_stats before, after;
	cairn_shard *shard;
	double t = now(), cpu = cpu_seconds();

	cairn_stage_stats(b->stage, &before, sizeof(before));
	if (cairn_shard_create(b->stage, path, b->size, 0, &shard))
		return complain("create");
	for (unsigned i = 0; i < b->tensors; i++) {
		uint64_t at, n;

		tensor(b, i, &at, &n);
		if (cairn_shard_copy(shard, at, (void *)(uintptr_t)(b->device + at), n,
				     b->stream)) {
			complain("copy");
			cairn_shard_abort(shard);
			return -EIO;
		}
	}
	r->blocked = now() - t;
	if (cairn_shard_commit(shard, b->size))
		return complain("commit");
	r->sealed = now() - t;
	r->cpu = (cpu_seconds() - cpu) / ((double)b->size / GiB);
	if (!b->o->stand_in && cairn_wait(path, -1))
		return complain("wait");
	r->durable = now() - t;
	cairn_stage_stats(b->stage, &after, sizeof(after));
	r->registrations = after.registrations - before.registrations;
	return 0;
}

/* Are the bytes read back those that were saved? Checked at both ends, which are cleared on the
 * device before. */
static int take_samples(struct bench *b, char *buf, bool clear)
{
	static char zero[SAMPLE];

	for (int i = 0; i < 2; i++) {
		cudl_ptr at = b->device + (i ? b->size - SAMPLE : 0);

		if (b->cu.copy_dtoh(buf + i * SAMPLE, at, SAMPLE, NULL) ||
		    b->cu.stream_sync(NULL) ||
		    (clear && (b->cu.copy_htod(at, zero, SAMPLE, NULL) || b->cu.stream_sync(NULL))))
			return complain("sample");
	}
	return 0;
}

static int run_load(struct bench *b, const char *path, struct round *r)
{
	static char was[2 * SAMPLE], is[2 * SAMPLE];
	double t;

	if (take_samples(b, was, true))
		return -EIO;
	t = now();
	if (cairn_load(b->stage, path, 0, (void *)(uintptr_t)b->device, b->size, b->stream) ||
	    b->cu.stream_sync(b->stream))
		return complain("load");
	r->load = now() - t;
	if (take_samples(b, is, false))
		return -EIO;
	if (memcmp(was, is, sizeof(was))) {
		fprintf(stderr, "cairn-bench-gpu: what was loaded is not what was saved\n");
		return -EIO;
	}
	return 0;
}

static int run_round(struct bench *b, unsigned i)
{
	char dir[4096], path[4096 + 8];
	int err;

	snprintf(dir, sizeof(dir), "%s/step-%u", b->o->dir, i);
	snprintf(path, sizeof(path), "%s/model", dir);
	if (mkdir(dir, 0777)) {
		fprintf(stderr, "cairn-bench-gpu: %s: %s\n", dir, strerror(errno));
		return -errno;
	}
	err = run_limit(b, &b->round[i]);
	if (!err)
		err = run_cairn(b, path, &b->round[i]);
	if (!err && !b->o->stand_in)
		err = run_load(b, path, &b->round[i]);
	unlink(path);
	rmdir(dir);
	return err;
}

/* ---- the table ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(const struct bench *b, size_t field, unsigned from, unsigned to)
{
	double v[ROUNDS_MAX];
	unsigned n = 0;

	for (unsigned i = from; i < to; i++)
		memcpy(&v[n++], (const char *)&b->round[i] + field, sizeof(double));
	qsort(v, n, sizeof(*v), by_value);
	return n ? n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2 : 0;
}

#define MEDIAN(b, field) median(b, offsetof(struct round, field), FIRST, (b)->rounds)

/* For a figure that has a target. */
static const char *verdict(const struct bench *b, bool holds)
{
	if (b->size < TARGET_FROM && !b->fake)
		return "";
	return holds ? ": holds" : ": DOES NOT HOLD";
}

static void report(const struct bench *b)
{
	double gb = (double)b->size * 1e-9, limit = MEDIAN(b, limit), sealed = MEDIAN(b, sealed);
	unsigned long long registered = 0;

	for (unsigned i = FIRST; i < b->rounds; i++)
		registered += b->round[i].registrations;
	printf("%.4g GiB in %u tensors, medians of %u checkpoints after %d\n",
	       (double)b->size / GiB, b->tensors, b->rounds - FIRST, FIRST);
	printf("  limit, cuMemAllocHost        %8.2f GB/s\n", gb / limit);
	printf("  device to sealed             %8.2f GB/s  %.2f of the limit (target %.2f%s)\n",
	       gb / sealed, limit / sealed, TARGET_LIMIT,
	       verdict(b, limit / sealed >= TARGET_LIMIT));
	printf("  the first two                %8.3f s, %.3f s\n", b->round[0].sealed,
	       b->round[1].sealed);
	printf("  trainer blocked, copies queued %6.1f ms; until sealed %.1f ms\n",
	       1e3 * MEDIAN(b, blocked), 1e3 * sealed);
	if (!b->o->stand_in) {
		printf("  until durable                %8.3f s\n", MEDIAN(b, durable));
		printf("  load to the device           %8.2f GB/s\n", gb / MEDIAN(b, load));
	}
	printf("  CPU of this process          %8.4f s/GiB (target %.2f%s)\n", MEDIAN(b, cpu),
	       TARGET_CPU, verdict(b, MEDIAN(b, cpu) <= TARGET_CPU));
	printf("  registrations after the second checkpoint: %llu (target 0%s)\n", registered,
	       verdict(b, !registered));
}

/* ---- one state dict ---- */

/* The limit in a container's own cgroup, or none. */
static unsigned long long limit_in(const char *path)
{
	unsigned long long v = ULLONG_MAX;
	FILE *f = fopen(path, "re");

	if (f && fscanf(f, "%llu", &v) != 1) /* "max" */
		v = ULLONG_MAX;
	if (f)
		fclose(f);
	return v;
}

/* /proc/meminfo is the machine's, also in a container. */
static unsigned long long memory_available(void)
{
	unsigned long long kib = 0, v2 = limit_in("/sys/fs/cgroup/memory.max");
	unsigned long long v1 = limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes");
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	v2 = v2 < v1 ? v2 : v1;
	return kib << 10 < v2 ? kib << 10 : v2;
}

/* Random bytes, and the same ones again: the store compares whole files only. */
static int fill_device(struct bench *b)
{
	uint64_t x = 0x9e3779b97f4a7c15ull, *p = b->host, part = 64 << 20;

	part = part < b->size ? part : b->size;
	for (uint64_t i = 0; i < part / 8; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		p[i] = x;
	}
	for (uint64_t at = 0; at < b->size; at += part)
		if (b->cu.copy_htod(b->device + at, b->host,
				    b->size - at < part ? b->size - at : part, b->stream))
			return complain("fill the device");
	return b->cu.stream_sync(b->stream) ? complain("fill the device") : 0;
}

static bool has_space(const struct bench *b)
{
	/* one in cuMemAllocHost, two in staging; a stand-in's come from the same memory */
	unsigned long long need = b->size * 3 + b->size / 8, have = memory_available();
	struct statvfs fs;

	if (have < need) {
		printf("%.4g GiB: left out: it needs %.1f GiB of memory, there are %.1f; -s sets "
		       "smaller ones\n",
		       (double)b->size / GiB, (double)need / GiB, (double)have / GiB);
		return false;
	}
	if (b->o->stand_in || statvfs(b->o->dir, &fs))
		return true;
	have = (unsigned long long)fs.f_bavail * fs.f_frsize;
	if (have < b->size + b->size / 4) {
		printf("%.4g GiB: left out: %s has space for %.1f GiB; CAIRN_BENCH_DIR sets "
		       "another disk\n",
		       (double)b->size / GiB, b->o->dir, (double)have / GiB);
		return false;
	}
	return true;
}

/* 0, or 1: there is not enough memory. */
static int get_memory(struct bench *b)
{
	cudl_result r;

	if (!has_space(b))
		return 1;
	r = b->cu.mem_alloc(&b->device, b->size);
	if (r == CUDL_OUT_OF_MEMORY) {
		printf("%.4g GiB: left out: the device has not enough memory\n",
		       (double)b->size / GiB);
		return 1;
	}
	if (cuda_dl_check(&b->cu, "cuMemAlloc", r))
		return complain("device memory");
	r = b->cu.host_alloc(&b->host, b->size);
	if (r) {
		b->cu.mem_free(b->device);
		printf("%.4g GiB: left out: cuMemAllocHost has not enough memory\n",
		       (double)b->size / GiB);
		return 1;
	}
	return 0;
}

static bool time_is_left(const struct bench *b, double for_seconds)
{
	return !b->end || now() + for_seconds < b->end;
}

/* Until all rounds have run, or the next would not end in time. */
static int run_tensors(struct bench *b)
{
	double longest = 0;
	int err = 0;

	memset(b->round, 0, sizeof(b->round));
	cairn_stage_trim(b->stage); /* so that the first two register again */
	for (b->rounds = 0; b->rounds < b->o->rounds && !err; b->rounds++) {
		double t = now();

		if (!time_is_left(b, longest))
			break;
		err = run_round(b, b->rounds);
		longest = now() - t > longest ? now() - t : longest;
	}
	if (!err && b->rounds > FIRST)
		report(b);
	else if (!err)
		printf("%.4g GiB in %u tensors: left out: no time left; run it by itself: -s %lluM "
		       "-t %u\n",
		       (double)b->size / GiB, b->tensors, b->size >> 20, b->tensors);
	fflush(stdout);
	return err;
}

static int run_size(struct bench *b, unsigned long long size)
{
	int err;

	b->size = size;
	if (!time_is_left(b, 1)) {
		printf("%.4g GiB: left out: no time left; run it by itself: -s %lluM\n",
		       (double)size / GiB, size >> 20);
		return 0;
	}
	err = get_memory(b);
	if (err)
		return err < 0 ? err : 0;
	err = fill_device(b);
	for (unsigned t = 0; t < b->o->n_tensors && !err; t++) {
		b->tensors = b->o->tensors[t];
		err = run_tensors(b);
	}
	b->cu.mem_free(b->device);
	b->cu.host_free(b->host);
	return err;
}

/* ---- set-up ---- */

static void notice(void *arg, const char *text)
{
	(void)arg;
	printf("note: %s\n", text);
}

static int open_gpu(struct bench *b)
{
	cudl_context ctx;
	cudl_device dev;
	char name[128];

	if (cuda_dl_open(&b->cu)) {
		printf("no GPU here (%s): nothing to measure\n", cuda_dl_error());
		return 77;
	}
	if (b->cu.device_get(&dev, 0) || b->cu.primary_retain(&ctx, dev) || b->cu.ctx_push(ctx) ||
	    b->cu.stream_create(&b->stream, CUDL_STREAM_NON_BLOCKING)) {
		complain("device 0");
		return 1;
	}
	if (b->cu.device_name(name, sizeof(name), dev))
		snprintf(name, sizeof(name), "unknown device");
	b->fake = !strncmp(name, "fake ", 5);
	printf("%s%s, driver %d.%d\n", b->fake ? "SELF TEST, not figures of any GPU: " : "", name,
	       b->cu.version / 1000, b->cu.version % 1000 / 10);
	return 0;
}

static int run(const struct options *o)
{
	struct cairn_options so = {.size = sizeof(so), .notice = notice};
	static struct bench b;
	int err;

	b.o = o;
	b.end = o->seconds > 0 ? now() + o->seconds : 0;
	err = open_gpu(&b);
	if (err || o->probe)
		return err;
	err = o->stand_in ? stage_stand_in(o->dir, &so, &b.stage)
			  : cairn_stage_open(o->dir, &so, &b.stage);
	if (err) {
		complain(o->dir);
		return 1;
	}
	if (o->stand_in)
		printf("no FUSE here: plain files of a tmpfs replace the mount's memory, mapped "
		       "and registered the same way; \"sealed\" means copied, nothing becomes "
		       "durable, nothing is loaded\n");
	else
		printf("memory of %s\n",
		       cairn_stage_mount(b.stage)
			       ? "the mount"
			       : "this process: that directory gives none, so commits write");
	for (unsigned i = 0; i < o->n_sizes && !err; i++)
		err = run_size(&b, o->size[i]);
	if (cairn_stage_close(b.stage))
		complain("close");
	b.cu.stream_destroy(b.stream);
	if (b.fake)
		puts("SELF TEST: the figures above are of a fake driver and mean nothing");
	return err ? 1 : 0;
}

static const char usage[] =
	"usage: cairn-bench-gpu [options] DIR\n"
	"  -s SIZE,...   of the state dicts, in this order (8G,1G,32G)\n"
	"  -t N,...      tensors in each (10,2000)\n"
	"  -n N	  checkpoints of each, the first two reported separately (7)\n"
	"  --seconds N   start nothing that would not end in N seconds (0: no limit)\n"
	"  --stand-in    DIR is a tmpfs on a machine without FUSE\n"
	"  --probe       only check for a GPU: exit code 77 if there is none\n";

static int parse_sizes(char *s, struct options *o)
{
	char *save;

	o->n_sizes = 0;
	for (char *w = strtok_r(s, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		const char *end = w;
		uint64_t v;

		if (!number_next_size(&end, &v) || *end || v < 2 * SAMPLE || v > 1ull << 42 ||
		    o->n_sizes == 8)
			return -EINVAL;
		o->size[o->n_sizes++] = v;
	}
	return o->n_sizes ? 0 : -EINVAL;
}

static int parse_tensors(char *s, struct options *o)
{
	char *save;

	o->n_tensors = 0;
	for (char *w = strtok_r(s, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
		uint64_t v = number_or_0(w);

		if (!v || v > 100000 || o->n_tensors == 8)
			return -EINVAL;
		o->tensors[o->n_tensors++] = (unsigned)v;
	}
	return o->n_tensors ? 0 : -EINVAL;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"stand-in", no_argument, NULL, 'S'},
		{"probe", no_argument, NULL, 'P'},
		{"seconds", required_argument, NULL, 'T'},
		{NULL, 0, NULL, 0},
	};
	struct options o = {.size = {8 * GiB, GiB, 32 * GiB},
			    .n_sizes = 3,
			    .tensors = {10, 2000},
			    .n_tensors = 2,
			    .rounds = 7};
	int opt, err = 0;

	while (!err && (opt = getopt_long(argc, argv, "s:t:n:", longs, NULL)) != -1) {
		switch (opt) {
		case 's': err = parse_sizes(optarg, &o); break;
		case 't': err = parse_tensors(optarg, &o); break;
		case 'n': o.rounds = (unsigned)atoi(optarg); break;
		case 'S': o.stand_in = true; break;
		case 'P': o.probe = true; break;
		case 'T': o.seconds = atof(optarg); break;
		default: err = -EINVAL;
		}
	}
	if (err || (!o.probe && optind != argc - 1) || o.rounds <= FIRST || o.rounds > ROUNDS_MAX) {
		fputs(usage, stderr);
		return 2;
	}
	o.dir = argv[optind];
	return run(&o);
}
