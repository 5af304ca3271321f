/* SPDX-License-Identifier: MIT
 *
 * cairn: inspects a cairnfs mount or an unmounted store. Read first:
 * the table below names the subcommands; each is one file, <name>.c.
 */
#include "cli.h"

#include <getopt.h>
#include <string.h>

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

static const struct command commands[] = {
	{"status", cmd_status, "[--json] [--watch] [MOUNT]",
	 "show what a mount does: staging, versions by state, errors",
	 "  --json   the daemon's status.json\n"
	 "  --watch  repeat each second, with rates, until interrupted\n"
	 "Without MOUNT: the mount of the working directory, or the only one."},
	{"ls", cmd_ls, "[-l] [--bytes] [--json] [PATH...]", "list files and their states",
	 "  -l       mode, owner, size, state, lane, checksum, time; sums of directories\n"
	 "  --bytes  sizes in bytes\n"
	 "  --json   for programs\n"
	 "States: open, staged, persisting, durable, failed. Works on an unmounted\n"
	 "store, too (state '-': everything in the store is published)."},
	{"tensors", cmd_tensors, "[--bytes] [--json] CKPT",
	 "list a checkpoint's tensors: dtype, shape, grid, file, offset",
	 "  --bytes  sizes in bytes\n"
	 "  --json   for programs\n"
	 "CKPT is a checkpoint's directory, or one .safetensors, .pt, .pth or .ckpt file;\n"
	 "on a mount, in a store, or anywhere. Only metadata and headers are read.\n"
	 "Exit: 0, 1 a file could not be parsed (see stderr), 2 usage."},
	{"check", cmd_check, "[--quick] [-q] CKPT...",
	 "check everything that can be checked of a checkpoint",
	 "  --quick  structure only: files, extents, headers, shapes; no checksums\n"
	 "  -q       no progress\n"
	 "One line for each finding, with file and offset.\n"
	 "Exit: 0 complete and nothing bad, 1 bad or not complete, 2 usage."},
	{"diff", cmd_diff, "[-v] [--json] CKPT CKPT",
	 "list tensors added, removed, reshaped or changed between two",
	 "  -v      also those that are the same\n"
	 "  --json  for programs\n"
	 "Exit: 0 no difference, 1 some, or the comparison was not possible, 2 usage."},
	{"latest", cmd_latest, "[-v] DIR",
	 "print the newest checkpoint below DIR that is complete and durable",
	 "  -v  for newer ones, print why they do not count\n"
	 "Exit: 0 printed, 1 there is none, 2 usage."},
	{"rm", cmd_rm, "[--keep-last N] [--keep-every K] [--dry-run] [--json] DIR",
	 "remove old checkpoints from DIR",
	 "  --keep-last N   keep the newest N that are complete and durable\n"
	 "  --keep-every K  keep steps that are multiples of K\n"
	 "  --dry-run       print what would be removed, remove nothing\n"
	 "  --json	  for programs\n"
	 "Always kept: the newest safe one, newer ones, and what is being written, has no\n"
	 "step, or is no checkpoint.\n"
	 "Exit: 0 done, 1 none is safe, or one could not be removed, 2 usage."},
	{"export", cmd_export, "[--format safetensors|torch|dcp] [-q] CKPT OUT",
	 "write the tensors of a checkpoint to one file, or a DCP checkpoint",
	 "  --format  safetensors (default); torch: for torch.load(); dcp: OUT is a\n"
	 "            directory for torch.distributed.checkpoint, created or empty\n"
	 "  -q        no progress\n"
	 "OUT appears, or is replaced, once it is whole and on stable storage. What cannot\n"
	 "be exported is refused, with the tensor's name and the reason.\n"
	 "Exit: 0 written, 1 refused or failed, 2 usage."},
	{"import", cmd_import, "[-q] FILE OUT",
	 "make a DCP checkpoint from a torch.save or safetensors file",
	 "  -q  no progress\n"
	 "FILE may also be a directory of safetensors files and their index. OUT is a\n"
	 "directory, created or empty; its .metadata appears once it is whole. Names are\n"
	 "those of DCP: the keys of nested dicts, joined with dots. Items that DCP cannot\n"
	 "store are refused by name.\n"
	 "Exit: 0 written, 1 refused or failed, 2 usage."},
	{"wait", cmd_wait, "[--timeout TIME] [-q] PATH...",
	 "wait until everything below each PATH is durable",
	 "  --timeout TIME  give up after this time: 90, 90s, 5m, 2h\n"
	 "  -q              no progress\n"
	 "What waits for files of other nodes for longer than commit_wait has failed.\n"
	 "Exit: 0 durable, 1 failed (the reason is printed), 2 usage, 3 timeout."},
	{"verify", cmd_verify, "[-v] [-q] [--json] PATH...",
	 "read files from the store's disk and compare checksums",
	 "  -v      one line for every file, not only for bad ones\n"
	 "  -q      no progress\n"
	 "  --json  for programs\n"
	 "PATH may be on a mount or in a store. Exit: 0 no bad file, 1 bad files, 2 usage."},
	{"retry", cmd_retry, "[MOUNT]", "retry publication after the store failed and was repaired",
	 ""},
	{"commit", cmd_commit, "--force DIR",
	 "publish a .metadata that waits for files of other nodes",
	 "Only a .metadata that waits for files of other nodes (`cairn status`). The\n"
	 "checkpoint is incomplete in the store until they come.\n"
	 "Exit: 0 requested, 1 refused or nothing waits there, 2 usage."},
	{"discard", cmd_discard, "PATH...",
	 "discard versions whose close failed; their bytes are lost",
	 "Only files in state failed. The previous version, if any, is in force again;\n"
	 "otherwise the file is removed.\n"
	 "Exit: 0 discarded, 1 one could not be discarded, 2 usage."},
	{"umount", cmd_umount, "[--timeout TIME] [-q] MOUNTPOINT",
	 "wait until everything is durable, then unmount",
	 "  --timeout TIME  give up after this time (90, 90s, 5m, 2h); the mount stays\n"
	 "  -q              no progress\n"
	 "A .metadata that waits for files of other nodes is not waited for: it stays in\n"
	 "staging for the next start, with the changes behind it.\n"
	 "Exit: 0 unmounted, 1 failed or busy, 2 usage, 3 timeout, 4 unmounted, and\n"
	 "something stays in staging."},
	{"completion", cmd_completion, "bash|zsh|fish", "print the completion script of a shell",
	 "make install puts them where the shells look.\n"
	 "In bash: . <(cairn completion bash)"},
	{"version", cmd_version, "", "print the version", ""},
	{"help", cmd_help, "[SUBCOMMAND]", "print this, or the help of one subcommand", ""},
};

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
	printf("usage: cairn %s%s%s\n%s\n%s%s", c->name, *c->args ? " " : "", c->args, c->what,
	       c->more, *c->more ? "\n" : "");
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
	return finish(c->run(argc - 1, argv + 1));
}
