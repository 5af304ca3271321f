#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast
# timeout: 120
# The core under what a process inherits: umask, time zone, locale, working directory, closed standard
# descriptors, ignored signals, a clock that was set back.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/core.inc"
need_root

LIB_WRAP=(sh -c 'umask 077; exec "$@"' -)
core "umask 077" "$TMP/umask"
[ "$(stat -c %a "$TMP/umask/a/small")" = 644 ] || die "the daemon's umask is in a file's mode: $(stat -c %a "$TMP/umask/a/small")"

LIB_WRAP=(env TZ=Pacific/Chatham LC_ALL=tr_TR.UTF-8 LANG=tr_TR.UTF-8)
core "another time zone and locale" "$TMP/locale"

LIB_WRAP=(sh -c 'cd /proc; exec "$@"' -)
core "started in /proc" "$TMP/cwd"

LIB_WRAP=(sh -c 'exec "$@" <&- >&- 2>&-' -)
core "no standard descriptors" "$TMP/closed"

LIB_WRAP=(bash -c 'trap "" CHLD; exec "$@"' -)
core "SIGCHLD ignored" "$TMP/chld"

# A clock that is set back: nothing but times may depend on it.
faketime=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null)
if [ -n "$faketime" ]; then
	LIB_WRAP=()
	core "before the step" "$TMP/clock"
	LIB_WRAP=(env LD_PRELOAD="$faketime" FAKETIME=-400d FAKETIME_DONT_FAKE_MONOTONIC=1)
	rm -r "$TMP"/clock/[a-z]*
	core "a clock set back by 400 days" "$TMP/clock"
else
	note "no libfaketime: a clock that was set back was not tried"
fi
