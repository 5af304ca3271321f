/* SPDX-License-Identifier: MIT
 *
 * cairn: inspects a cairnfs mount or an unmounted store. Read first:
 * the table below names the subcommands; each is one file, <name>.c.
 */
#include "commands.h"
#include "tools/cairn/tier/tier.h"

#include <getopt.h>
#include <string.h>

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

/* without --timeout, in seconds */
#define ANSWERS_IN(s) LIMIT_SILENCE, s, NULL
#define ENDS_IN(s) LIMIT_WHOLE, s, NULL
#define WAITS(s) LIMIT_DEADLINE, s, NULL
#define NO_MOUNT LIMIT_NONE, 0, NULL

static const struct command commands[] = {
	{"status", cmd_status, "[--json] [--watch] [--timeout TIME] [MOUNT]",
	 "show what a mount does: staging, versions by state, errors",
	 "  --json   the daemon's status.json\n"
	 "  --watch  repeat each second, with rates, until interrupted\n"
	 "Without MOUNT: the mount of the working directory, or the only one.",
	 ENDS_IN(10)},
	{"metrics", cmd_metrics, "[--timeout TIME] [MOUNT]",
	 "print a mount's metrics for Prometheus, and whether it answers",
	 "The last one is cairnfs_up: 0 if the mount does not answer or is dead.\n"
	 "Exit: 0 printed, 2 usage.",
	 LIMIT_WHOLE, 5, metrics_on_silence},
	{"ls", cmd_ls, "[-l] [--bytes] [--json] [--timeout TIME] [PATH...]",
	 "list files and their states",
	 "  -l       mode, owner, size, state, lane, checksum, time; sums of directories\n"
	 "  --bytes  sizes in bytes\n"
	 "  --json   for programs\n"
	 "States: open, staged, persisting, durable, failed. Works on an unmounted\n"
	 "store, too (state '-': everything in the store is published).",
	 ANSWERS_IN(60)},
	{"tensors", cmd_tensors, "[--bytes] [--json] [--timeout TIME] CKPT",
	 "list a checkpoint's tensors: dtype, shape, grid, file, offset",
	 "  --bytes  sizes in bytes\n"
	 "  --json   for programs\n"
	 "CKPT is a checkpoint's directory, or one .safetensors, .pt, .pth or .ckpt file;\n"
	 "on a mount, in a store, or anywhere. Only metadata and headers are read.\n"
	 "Exit: 0, 1 a file could not be parsed (see stderr), 2 usage.",
	 ANSWERS_IN(60)},
	{"check", cmd_check, "[--quick] [-q] [--timeout TIME] CKPT...",
	 "check everything that can be checked of a checkpoint",
	 "  --quick  structure only: files, extents, headers, shapes; no checksums\n"
	 "  -q       no progress\n"
	 "One line for each finding, with file and offset.\n"
	 "Exit: 0 complete and nothing bad, 1 bad or not complete, 2 usage.",
	 ANSWERS_IN(60)},
	{"diff", cmd_diff, "[-v] [--json] [--timeout TIME] CKPT CKPT",
	 "list tensors added, removed, reshaped or changed between two",
	 "  -v      also those that are the same\n"
	 "  --json  for programs\n"
	 "Exit: 0 no difference, 1 some, or the comparison was not possible, 2 usage.",
	 ANSWERS_IN(60)},
	{"latest", cmd_latest, "[-v] [--tier] [--timeout TIME] DIR",
	 "print the newest checkpoint below DIR that is complete and durable",
	 "  --tier  only those that are in the mount's tier\n"
	 "  -v  for newer ones, print why they do not count\n"
	 "Exit: 0 printed, 1 there is none, 2 usage.",
	 ANSWERS_IN(60)},
	{"fetch", cmd_fetch, "[--latest] [--json] [-q] [--timeout TIME] PATH...",
	 "copy checkpoints of a mount's tier into its store",
	 "  --latest        the newest below PATH, a directory of the mount\n"
	 "  --json          for programs\n"
	 "  --timeout TIME  give up after this time: 90, 90s, 5m, 2h; the mount goes on\n"
	 "  -q              no progress\n"
	 "PATH is a checkpoint's path on the mount, where it is not yet, or below\n"
	 "MOUNT/.cairn/tier. Opening a file of it there does the same.\n"
	 "Exit: 0 all is in the store, 1 failed (the reason is printed), 2 usage,\n"
	 "3 timeout.",
	 WAITS(300)},
	{"rm", cmd_rm, "[--keep-last N] [--keep-every K] [--dry-run] [--json] [--timeout TIME] DIR",
	 "remove old checkpoints from DIR",
	 "  --keep-last N   keep the newest N that are complete and durable\n"
	 "  --keep-every K  keep steps that are multiples of K\n"
	 "  --dry-run       print what would be removed, remove nothing\n"
	 "  --json	  for programs\n"
	 "Always kept: the newest safe one, newer ones, and what is being written, has no\n"
	 "step, or is no checkpoint.\n"
	 "Exit: 0 done, 1 none is safe, or one could not be removed, 2 usage.",
	 ANSWERS_IN(60)},
	{"export", cmd_export, "[--format safetensors|torch|dcp] [-q] [--timeout TIME] CKPT OUT",
	 "write the tensors of a checkpoint to one file, or a DCP checkpoint",
	 "  --format  safetensors (default); torch: for torch.load(); dcp: OUT is a\n"
	 "            directory for torch.distributed.checkpoint, created or empty\n"
	 "  -q        no progress\n"
	 "OUT appears, or is replaced, once it is whole and on stable storage. What cannot\n"
	 "be exported is refused, with the tensor's name and the reason.\n"
	 "Exit: 0 written, 1 refused or failed, 2 usage.",
	 ANSWERS_IN(60)},
	{"import", cmd_import, "[-q] [--timeout TIME] FILE OUT",
	 "make a DCP checkpoint from a torch.save or safetensors file",
	 "  -q  no progress\n"
	 "FILE may also be a directory of safetensors files and their index. OUT is a\n"
	 "directory, created or empty; its .metadata appears once it is whole. Names are\n"
	 "those of DCP: the keys of nested dicts, joined with dots. Items that DCP cannot\n"
	 "store are refused by name.\n"
	 "Exit: 0 written, 1 refused or failed, 2 usage.",
	 ANSWERS_IN(60)},
	{"wait", cmd_wait, "[--tier] [--timeout TIME] [-q] PATH...",
	 "wait until everything below each PATH is durable",
	 "  --tier          and what is complete is in the mount's tier\n"
	 "  --timeout TIME  give up after this time: 90, 90s, 5m, 2h\n"
	 "  -q              no progress\n"
	 "What waits for files of other nodes for longer than commit_wait has failed.\n"
	 "Exit: 0 durable, 1 failed (the reason is printed), 2 usage, 3 timeout.",
	 WAITS(300)},
	{"timeline", cmd_timeline, "[--json] [--html FILE] [--timeout TIME] DIR",
	 "show when checkpoints were saved, and what each save waited for",
	 "  --json       for programs\n"
	 "  --html FILE  write one page with a bar for each file; \"-\" is stdout\n"
	 "On a mount (root, and the user who mounted it) or in a store.\n"
	 "Exit: 0 printed, 1 nothing is recorded, 2 usage.",
	 ANSWERS_IN(60)},
	{"top", cmd_top, "[--once] [--json] [--timeout TIME] [MOUNT]",
	 "show what is not durable, by checkpoint and rank, each second",
	 "  --once  only once\n"
	 "  --json  once, for programs\n"
	 "Root, and the user who mounted it. Without MOUNT: as `cairn status`.\n"
	 "Exit: 0 printed, 1 failed, 2 usage.",
	 ENDS_IN(10)},
	{"verify", cmd_verify, "[-v] [-q] [--json] [--timeout TIME] PATH...",
	 "read files from the store's disk and compare checksums",
	 "  -v      one line for every file, not only for bad ones\n"
	 "  -q      no progress\n"
	 "  --json  for programs\n"
	 "PATH may be on a mount or in a store. Exit: 0 no bad file, 1 bad files, 2 usage.",
	 ANSWERS_IN(60)},
	{"retry", cmd_retry, "[--timeout TIME] [MOUNT]",
	 "retry publication after the store failed and was repaired", "", ENDS_IN(10)},
	{"commit", cmd_commit, "--force [--timeout TIME] DIR",
	 "publish a .metadata that waits for files of other nodes",
	 "Only a .metadata that waits for files of other nodes (`cairn status`). The\n"
	 "checkpoint is incomplete in the store until they come.\n"
	 "Exit: 0 requested, 1 refused or nothing waits there, 2 usage.",
	 ENDS_IN(10)},
	{"hosts", cmd_hosts, "[--json] [--force] [--timeout TIME] [adopt|discard] PATH...",
	 "list the hosts that serve a store, and what each left in it",
	 "  --json             for programs\n"
	 "  adopt PATH HOST    move what HOST did not publish to the store's lost+found\n"
	 "  discard PATH HOST  remove it\n"
	 "  --force            needed for both: HOST cannot publish it any more\n"
	 "PATH is a store, or on a mount of it. A host is silent when it said nothing for\n"
	 "a minute and did not unmount: its machine, network or cairnfs is dead.\n"
	 "Exit: 0 none is silent, or done, 1 one is, refused or failed, 2 usage.",
	 ANSWERS_IN(60)},
	{"restore-previous", cmd_restore_previous, "[--list] [--json] [--discard] DIR",
	 "put a checkpoint back that was being overwritten in place",
	 "  --list     list what the store DIR keeps, with its size and age\n"
	 "  --json     of --list: for programs\n"
	 "  --discard  remove what is kept of DIR; DIR may be STORE/.cairn/previous/KEY\n"
	 "Only in an unmounted store, but for --list. While DIR was overwritten, its files\n"
	 "were kept; they replace those of the new checkpoint, which is not complete. Run\n"
	 "again, it continues.\n"
	 "Exit: 0 done, or nothing is kept of DIR and it has a .metadata,\n"
	 "1 refused or failed (the reason is printed), 2 usage.",
	 NO_MOUNT},
	{"discard", cmd_discard, "[--timeout TIME] PATH...",
	 "discard versions whose close failed; their bytes are lost",
	 "Only files in state failed. The previous version, if any, is in force again;\n"
	 "otherwise the file is removed.\n"
	 "Exit: 0 discarded, 1 one could not be discarded, 2 usage.",
	 ENDS_IN(10)},
	{"tier", cmd_tier,
	 "[--json] [--latest] [--follow] [--force] [--for-mount HOST] [--keep N] "
	 "[--mount MOUNT] [--rate SIZE] [-q] [--timeout TIME] "
	 "push|fetch|ls|verify|rm|serve ARG...",
	 "copy checkpoints to another directory, and check the copies",
	 "  push STORE TIER [DIR...]  copy what is complete and durable and not there yet\n"
	 "  fetch TIER STORE [DIR...] copy back what is not in STORE, verified\n"
	 "  ls TIER                   list the checkpoints in TIER\n"
	 "  verify TIER [DIR...]      read the copies and compare checksums\n"
	 "  rm TIER DIR...            remove these checkpoints from TIER\n"
	 "  serve STORE TIER          what a mount with tier= runs to read from it\n"
	 "  --json                    for programs\n"
	 "  --latest                  of fetch: only the newest one that is not damaged\n"
	 "  --force                   of rm: also the newest of its directory\n"
	 "  --follow                  of push: also what becomes complete, until it ends\n"
	 "  --keep N, --mount MOUNT   of --follow: keep the newest N of each directory of\n"
	 "                            MOUNT, of those that are in the tier, verified\n"
	 "  --rate SIZE               of push: at most so many bytes a second\n"
	 "  -q                        no progress\n"
	 "STORE: a mount, a store or any directory. TIER: an existing directory elsewhere.\n"
	 "DIR: only this checkpoint, or (not of rm) those below it; a path in STORE or\n"
	 "TIER.\n"
	 "Exit: 0 all is there and good, 1 something failed or is bad, 2 usage.",
	 ANSWERS_IN(60)},
	{"staging", cmd_staging, "[--json] [--dir DIR] [--force] list|remove [NAME]",
	 "list, or remove, what is staged on this machine, of all stores",
	 "  list         memory, unpublished files, whether the store is there\n"
	 "  remove NAME  NAME is the store's ID or the directory's path, as listed\n"
	 "  --dir DIR    look in this staging_dir= instead of the usual places\n"
	 "  --force      also if it holds what the store may not have: that is lost\n"
	 "  --json       for programs\n"
	 "Exit: 0 listed or removed, 1 refused or failed, 2 usage.",
	 NO_MOUNT},
	{"umount", cmd_umount, "[--tier] [--timeout TIME] [-q] MOUNTPOINT",
	 "wait until everything is durable, then unmount",
	 "  --tier          wait until what is complete is in the tier, too\n"
	 "  --timeout TIME  give up after this time (90, 90s, 5m, 2h); the mount stays\n"
	 "  -q              no progress\n"
	 "A .metadata that waits for files of other nodes is not waited for: it stays in\n"
	 "staging for the next start, with the changes behind it.\n"
	 "Exit: 0 unmounted, 1 failed or busy, or the store refused something, 2 usage,\n"
	 "3 timeout, 4 unmounted, and something stays in staging.",
	 WAITS(300)},
	{"completion", cmd_completion, "bash|zsh|fish", "print the completion script of a shell",
	 "make install puts them where the shells look.\n"
	 "In bash: . <(cairn completion bash)",
	 NO_MOUNT},
	{"version", cmd_version, "", "print the version", "", NO_MOUNT},
	{"help", cmd_help, "[SUBCOMMAND]", "print this, or the help of one subcommand", "",
	 NO_MOUNT},
};

#define COLUMNS_MAX 80
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

const struct command *command_at(size_t i)
{
	return i < N_COMMANDS ? &commands[i] : NULL;
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < N_COMMANDS; i++)
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	return NULL;
}

static void print_overview(FILE *f)
{
	fputs("usage: cairn SUBCOMMAND [OPTION...] [PATH...]\n\n", f);
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].what);
	fputs("\n`cairn help SUBCOMMAND` says more; the manual is cairn(1).\n", f);
}

static void print_usage(const struct command *c)
{
	int column = printf("usage: cairn %s", c->name);

	for (const char *at = c->args; *at;) {
		int n = (int)strcspn(at, " ");

		/* an option and its value remain on one line */
		if (at[0] == '[' && at[n - 1] != ']')
			n = (int)strcspn(at, "]") + 1;
		if (column + 1 + n > COLUMNS_MAX)
			column = printf("\n            ") - 1;
		column += printf(" %.*s", n, at);
		at += n + (at[n] == ' ');
	}
	putchar('\n');
}

static int cmd_help(int argc, char **argv)
{
	const struct command *c;

	if (argc < 2) {
		print_overview(stdout);
		return CAIRN_OK;
	}
	c = find_command(argv[1]);
	if (!c) {
		complain("no subcommand %s; `cairn help` lists them", argv[1]);
		return CAIRN_USAGE;
	}
	print_usage(c);
	printf("%s\n%s%s", c->what, c->more, *c->more ? "\n" : "");
	if (c->limit == LIMIT_SILENCE)
		printf("--timeout TIME: exit 3 if the mount does not answer for this long\n"
		       "(%.0f s; 0: no limit).\n",
		       c->limit_s);
	else if (c->limit == LIMIT_WHOLE)
		printf("--timeout TIME: when to give up a mount that does not answer\n"
		       "(%.0f s; 0: no limit).\n",
		       c->limit_s);
	return CAIRN_OK;
}

static int cmd_version(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	puts("cairn " CAIRN_VERSION);
	return CAIRN_OK;
}

/* An incomplete report must not pass for a good one. */
static int finish(int code)
{
	if (fflush(stdout) || ferror(stdout)) {
		complain("cannot write the output: %m");
		return code == CAIRN_OK ? CAIRN_FAILED : code;
	}
	return code;
}

static bool asks_help(int argc, char **argv)
{
	for (int i = 2; i < argc && strcmp(argv[i], "--"); i++)
		if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
			return true;
	return false;
}

int main(int argc, char **argv)
{
	const struct command *c;

	if (argc < 2) {
		print_overview(stderr);
		return CAIRN_USAGE;
	}
	if (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))
		return finish(cmd_help(1, argv));
	if (!strcmp(argv[1], "-V") || !strcmp(argv[1], "--version"))
		return finish(cmd_version(1, argv));
	c = find_command(argv[1]);
	if (!c) {
		complain("no subcommand %s; `cairn help` lists them", argv[1]);
		return CAIRN_USAGE;
	}
	if (asks_help(argc, argv))
		return finish(cmd_help(2, (char *[]){argv[0], argv[1], NULL}));
	opterr = 0;
	return finish(watch_run(c, argc - 1, argv + 1));
}
