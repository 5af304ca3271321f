/* SPDX-License-Identifier: MIT
 *
 * The subcommands of `cairn`: each gets its own argv (argv[0] is the subcommand's name) and returns
 * the exit code (enum cairn_exit). cmd_tier is in tools/cairn/tier/.
 */
#ifndef CAIRN_COMMANDS_H
#define CAIRN_COMMANDS_H

#include "tools/cairn/base/cli.h"

/* The i-th subcommand, NULL past the last one (main.c). */
const struct command *command_at(size_t i);

int cmd_status(int argc, char **argv);
int cmd_metrics(int argc, char **argv);
int metrics_on_silence(const char *path);
int cmd_ls(int argc, char **argv);
int cmd_staging(int argc, char **argv);
int cmd_tensors(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_latest(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_import(int argc, char **argv);
int cmd_wait(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_retry(int argc, char **argv);
int cmd_commit(int argc, char **argv);
int cmd_hosts(int argc, char **argv);
int cmd_restore_previous(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_timeline(int argc, char **argv);
int cmd_discard(int argc, char **argv);
int cmd_fetch(int argc, char **argv);
int cmd_umount(int argc, char **argv);
int cmd_completion(int argc, char **argv);

#endif
