#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# A create is two records, the file and its open. A worker that dies between the two has made the file and
# answered nothing: the next one must not tell its maker, who wants it new (O_EXCL), that it is there.
. "$(dirname "$0")/../lib/lib.sh"
need_root
need_tool "${CC:-cc}"
[ ! -e "$BUILD/sanitizer" ] || skip "a sanitizer wants to be the first library"

# What the worker does between them is to ask the kernel for a backing file.
cat >"$TMP/die.c" <<'END'
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int ioctl(int fd, unsigned long op, ...)
{
	va_list ap;
	va_start(ap, op);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	if ((op & 0xffff) == 0xe501 && getenv("DIE_AT") && !unlink(getenv("DIE_AT")))
		kill(getpid(), SIGKILL);
	return (int)syscall(SYS_ioctl, fd, op, arg);
}
END
"${CC:-cc}" -shared -fPIC -o "$TMP/die.so" "$TMP/die.c" || die "cc"
store=$TMP/store mnt=$TMP/mnt
export DIE_AT=$store/.cairn/now	# the worker opens no file elsewhere
LD_PRELOAD=$TMP/die.so start_mount "$store" "$mnt"
need_passthrough "$mnt"
for i in 1 2 3; do
	: >"$DIE_AT"
	within 60 python3 - "$mnt/f$i" <<'END' || die "create $i"
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(fd, b"mine")
os.close(fd)
try:
    os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    sys.exit("made twice")
except FileExistsError:
    pass
END
	[ ! -e "$DIE_AT" ] || die "nobody died"
	[ "$(status_field "$mnt" restarts)" = $i ] || die "restarts: $(status_field "$mnt" restarts)"
	[ "$(cat "$mnt/f$i")" = mine ] || die "f$i in the mount"
	sleep 2.5	# five deaths in ten seconds would be too many
done
wait_durable "$mnt"
stop_mount "$mnt"
[ "$(cat "$store"/f?)" = "mineminemine" ] || die "the store: $(cat "$store"/f?)"
