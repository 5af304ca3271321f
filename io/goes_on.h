/* SPDX-License-Identifier: MIT
 * What the daemon and `cairn` say behind a remedy ("free space in its filesystem"), where cairnfs
 * tries again by itself. A mount point may follow. */
#ifndef CAIRN_IO_GOES_ON_H
#define CAIRN_IO_GOES_ON_H

#define GOES_ON "; it goes on by itself then, within a minute, or at once with: cairn retry"

#endif
