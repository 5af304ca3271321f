/* SPDX-License-Identifier: MIT
 *
 * cairn tier: checkpoints in another directory (docs/SCALE.md).
 */
#include "tier.h"

#include <getopt.h>
#include <string.h>

/* The DIRs, relative to top: as given, or behind top itself. */
static int take_dirs(struct tier_opts *o, char **dir, const char *top)
{
	size_t n = strlen(top);

	o->dirs = dir;
	for (; *dir; dir++, o->n_dirs++) {
		size_t len;

		while (n && top[n - 1] == '/')
			n--;
		if (!strncmp(*dir, top, n) && (*dir)[n] == '/')
			*dir += n;
		while (**dir == '/')
			++*dir;
		len = strlen(*dir);
		while (len && (*dir)[len - 1] == '/')
			(*dir)[--len] = '\0';
		if (!fmt_stays_below(*dir, len))
			return complain_usage("tier", "DIR is a path below %s, without \"..\"",
					      top);
	}
	return CAIRN_OK;
}

static int take_options(int argc, char **argv, struct tier_opts *o)
{
	static const struct option longs[] = {
		{"follow", no_argument, NULL, 'f'},	     {"force", no_argument, NULL, 'F'},
		{"for-mount", required_argument, NULL, 'm'}, {"keep", required_argument, NULL, 'k'},
		{"mount", required_argument, NULL, 'M'},     {"json", no_argument, NULL, 'j'},
		{"latest", no_argument, NULL, 'l'},	     {"quiet", no_argument, NULL, 'q'},
		{"rate", required_argument, NULL, 'r'},	     {0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "jq", longs, NULL)) != -1) {
		switch (c) {
		case 'f': o->follow = true; break;
		case 'F': o->force = true; break;
		case 'm': o->for_mount = optarg; break;
		case 'k': o->keep = strtoull(optarg, NULL, 10); break;
		case 'M': o->mount = optarg; break;
		case 'j': o->json = true; break;
		case 'l': o->latest = true; break;
		case 'q': o->quiet = true; break;
		case 'r':
			if (!parse_bytes(optarg, &o->rate) && o->rate)
				break;
			return complain_usage("tier", "--rate %s: not a size such as 500M or 2G",
					      optarg);
		default: return complain_option("tier", argv);
		}
	}
	return CAIRN_OK;
}

static int push(char **argv, struct tier_opts *o)
{
	int code = take_dirs(o, argv + 3, argv[1]);

	return code	   ? code
	       : o->follow ? tier_follow(argv[1], argv[2], o)
			   : tier_push(argv[1], argv[2], o);
}

int cmd_tier(int argc, char **argv)
{
	struct tier_opts o = {0};
	int code = take_options(argc, argv, &o);
	const char *verb;

	if (code)
		return code;
	argc -= optind;
	argv += optind;
	verb = argc ? argv[0] : "";
	if (o.latest && (strcmp(verb, "fetch") || argc > 3))
		return complain_usage("tier", "--latest is for fetch, without DIR");
	if (o.follow && strcmp(verb, "push"))
		return complain_usage("tier", "--follow is for push");
	if (o.force && strcmp(verb, "rm"))
		return complain_usage("tier", "--force is for rm");
	if (o.keep ? !o.mount || !o.follow : o.mount && strcmp(verb, "serve"))
		return complain_usage("tier", "--keep N and --mount MOUNT are for --follow, both");
	if (!strcmp(verb, "fetch")) {
		if (argc < 3)
			return complain_usage("tier", "fetch from what tier to what store?");
		code = take_dirs(&o, argv + 3, argv[2]);
		return code ? code : tier_fetch(argv[1], argv[2], &o);
	}
	if (!strcmp(verb, "push")) {
		if (argc < 3)
			return complain_usage("tier", "push what store to what tier?");
		return push(argv, &o);
	}
	if (!strcmp(verb, "ls")) {
		if (argc != 2)
			return complain_usage("tier", "ls of what tier?");
		return tier_ls(argv[1], &o);
	}
	if (!strcmp(verb, "verify")) {
		if (argc < 2)
			return complain_usage("tier", "verify what tier?");
		code = take_dirs(&o, argv + 2, argv[1]);
		return code ? code : tier_verify(argv[1], &o);
	}
	if (!strcmp(verb, "rm")) {
		if (argc < 3)
			return complain_usage("tier", "rm from what tier, which checkpoint?");
		code = take_dirs(&o, argv + 2, argv[1]);
		return code ? code : tier_rm(argv[1], &o);
	}
	if (!strcmp(verb, "serve")) {
		if (argc != 3 || !o.for_mount)
			return complain_usage("tier", "serve is for a mount with tier=");
		return tier_serve(argv[1], argv[2], &o);
	}
	return complain_usage("tier", "push, fetch, ls, verify or rm?");
}
