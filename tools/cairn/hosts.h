/* SPDX-License-Identifier: MIT
 *
 * What hosts.c and adopt.c share.
 */
#ifndef CAIRN_CLI_HOSTS_H
#define CAIRN_CLI_HOSTS_H

#include "io/store/store.h"

/* It may live though it is silent: local: is the store on a local disk here, too? */
bool hosts_is_hidden(const struct io_host *h, bool local);
/* Why nothing of this host may be touched; NULL: it may. */
const char *hosts_why_not(const struct io_host *h, int64_t now, bool local);
/* Moves its unpublished files to lost+found as HOST.NAME, or removes them, with a line to stdout
 * for each, and takes it for ended. 0; -EWOULDBLOCK: it is served; -EEXIST: lost+found has one of
 * that name; -errno. What was done until then stays so. */
int hosts_end_for(int cairn, const struct io_host *h, bool adopt);

#endif
