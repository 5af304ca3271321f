/* SPDX-License-Identifier: MIT
 *
 * cairn-bench: measures directories against each other. Read first; the whole life
 * of a run is in main(). `make bench` calls it through tools/bench/run.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bench.h"
#include "io/number.h"

static const struct command {
	const char *name;
	int (*run)(struct bench *b);
	uint64_t size;
	unsigned count;
} commands[] = {
	{"write", bench_cmd_write, 1u << 30, 0},      {"read", bench_cmd_read, 1u << 30, 0},
	{"small", bench_cmd_small, 4096, 10000},      {"create", bench_cmd_create, 65536, 2000},
	{"latency", bench_cmd_latency, 32u << 20, 0},
};

static const char usage[] =
	"usage: cairn-bench COMMAND [options] [LABEL=]DIR...\n"
	"\n"
	"Measures one or more directories in turn, round by round, and compares each with the\n"
	"last. A directory may be anywhere: on a cairnfs, a tmpfs, a disk. What is written is\n"
	"removed again.\n"
	"\n"
	"  write    checkpoints: write()+close(), close to durable, daemon CPU\n"
	"  read     files read whole; a DIR gets one written first, a FILE is only read\n"
	"  small    many small files closed, then all durable\n"
	"  create   create + write + close + unlink\n"
	"  latency  4 ranks keep saving; every call is timed; may kill the cairnfs worker "
	"meanwhile\n"
	"\n"
	"  -s SIZE  of a file (write, read 1G; small 4K; create 64K; latency 32M)\n"
	"  -b SIZE  of one write or read (4M)          --source SIZE  memory written from (4M)\n"
	"  -n N     rounds (5), latency: steps         -c N   files a round (small, create)\n"
	"  -r N     ranks writing at once (write 1, latency 4)\n"
	"  --idle S     pause before each round; plain directories are then warmed again\n"
	"  --first      each step's directory has a new name: no expected size (write)\n"
	"  --between C  shell command run after each round\n"
	"  --pace MS    a step begins every MS (latency, 250)\n"
	"  --kill N     kill the worker N times (latency), --every MS apart (2800)\n"
	"  --json, --tsv  figures for programs\n"
	"\n"
	"A LABEL ending in +fsync: fsync before each close (write). One ending in +cp: the files\n"
	"come by `cp -r`, and a plain directory is then synced with `sync` (small).\n";

enum {
	OPT_SOURCE = 256,
	OPT_IDLE,
	OPT_FIRST,
	OPT_BETWEEN,
	OPT_PACE,
	OPT_KILL,
	OPT_EVERY,
	OPT_JSON,
	OPT_TSV
};

static const struct option options[] = {
	{"source", required_argument, NULL, OPT_SOURCE},
	{"idle", required_argument, NULL, OPT_IDLE},
	{"first", no_argument, NULL, OPT_FIRST},
	{"between", required_argument, NULL, OPT_BETWEEN},
	{"pace", required_argument, NULL, OPT_PACE},
	{"kill", required_argument, NULL, OPT_KILL},
	{"every", required_argument, NULL, OPT_EVERY},
	{"json", no_argument, NULL, OPT_JSON},
	{"tsv", no_argument, NULL, OPT_TSV},
	{"help", no_argument, NULL, 'h'},
	{NULL, 0, NULL, 0},
};

static int parse_size(const char *s, uint64_t *out)
{
	return number_next_size(&s, out) && !*s && *out ? 0 : -EINVAL;
}

static int parse_count(const char *s, unsigned *out)
{
	uint64_t v;
	int err = parse_size(s, &v);

	if (err || v > 100 * 1000 * 1000)
		return -EINVAL;
	*out = (unsigned)v;
	return 0;
}

static int parse_option(struct bench *b, int opt)
{
	switch (opt) {
	case 's': return parse_size(optarg, &b->size);
	case 'b': return parse_size(optarg, &b->block);
	case 'n': return parse_count(optarg, &b->rounds);
	case 'c': return parse_count(optarg, &b->count);
	case 'r': return parse_count(optarg, &b->ranks);
	case OPT_SOURCE: return parse_size(optarg, &b->source);
	case OPT_IDLE: return parse_count(optarg, &b->idle_s);
	case OPT_PACE: return parse_count(optarg, &b->pace_ms);
	case OPT_KILL: return parse_count(optarg, &b->kills);
	case OPT_EVERY: return parse_count(optarg, &b->every_ms);
	case OPT_FIRST: b->first = true; return 0;
	case OPT_BETWEEN: b->between = optarg; return 0;
	case OPT_JSON: b->json = true; return 0;
	case OPT_TSV: b->tsv = true; return 0;
	}
	return -EINVAL;
}

static bool ends_in(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);

	return n >= m && !strcmp(s + n - m, end);
}

static int parse_place(struct bench *b, const char *arg)
{
	struct bench_place *p = &b->place[b->n_places];
	const char *eq = strchr(arg, '='), *whole = arg;
	int n = eq ? (int)(eq - arg) : (int)strlen(arg);

	if (b->n_places == BENCH_MAX_PLACES)
		return -E2BIG;
	if (n >= BENCH_LABEL) { /* the end of a long name is more distinctive */
		arg += n - (BENCH_LABEL - 1);
		n = BENCH_LABEL - 1;
	}
	snprintf(p->label, sizeof(p->label), "%.*s", n, arg);
	p->path = eq ? eq + 1 : whole;
	p->fsync = ends_in(p->label, "+fsync");
	p->cp = ends_in(p->label, "+cp");
	b->n_places++;
	return 0;
}

static const struct command *parse(struct bench *b, int argc, char **argv)
{
	const struct command *cmd = NULL;
	int opt;

	for (size_t i = 0; argc > 1 && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(argv[1], commands[i].name))
			cmd = &commands[i];
	if (!cmd)
		return NULL;
	b->size = cmd->size;
	b->count = cmd->count;
	b->ranks = cmd->run == bench_cmd_latency ? 4 : 1;
	optind = 2;
	while ((opt = getopt_long(argc, argv, "s:b:n:c:r:h", options, NULL)) != -1)
		if (parse_option(b, opt))
			return NULL;
	for (; optind < argc; optind++)
		if (parse_place(b, argv[optind]))
			return NULL;
	if (b->ranks > 256 || b->block > 1u << 30 || !b->n_places)
		return NULL;
	b->source = b->source < b->block ? b->block : b->source;
	return cmd;
}

static int open_places(struct bench *b)
{
	struct stat st;
	int err = 0;

	for (unsigned i = 0; i < b->n_places && !err; i++) {
		struct bench_place *p = &b->place[i];

		if (stat(p->path, &st))
			err = -errno;
		else if (S_ISDIR(st.st_mode))
			err = bench_place_open(p);
		if (err)
			fprintf(stderr, "cairn-bench: %s: %s\n", p->path, strerror(-err));
	}
	return err;
}

static void on_signal(int sig)
{
	(void)sig;
	bench_stop = 1;
}

int main(int argc, char **argv)
{
	struct bench b = {.rounds = 5, .block = 4u << 20, .pace_ms = 250, .every_ms = 2800};
	struct sigaction sa = {.sa_handler = on_signal};
	const struct command *cmd = parse(&b, argc, argv);
	int err;

	if (!cmd) {
		fputs(usage, stderr);
		return 2;
	}
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	b.src = bench_source(b.source);
	err = b.src ? open_places(&b) : -errno;
	if (!err) {
		err = cmd->run(&b);
		if (err)
			fprintf(stderr, "cairn-bench: %s: %s\n", cmd->name, strerror(-err));
		else
			bench_report(&b, cmd->name);
	}
	for (unsigned i = 0; i < b.n_places; i++)
		bench_place_close(&b.place[i]);
	bench_report_free(&b);
	return err ? 1 : 0;
}
