/* SPDX-License-Identifier: MIT
 * Which files of a mount are failed. */
#ifndef CAIRN_FAILED_H
#define CAIRN_FAILED_H

#include "tools/cairn/base/cli.h"

/* "PATH: WHY; PATH: WHY; and 2 more", each as it is now. NULL: there is none any more, or they are
 * not shown to this user. *why: the first one's. Both are freed by the caller. */
char *failed_files(const struct location *p, char **why);

#endif
