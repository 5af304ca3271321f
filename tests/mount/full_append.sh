#!/bin/bash
# SPDX-License-Identifier: MIT
# modes: fast relay posix
# timeout: 120
#
# A program appends to a log whose store gets full: its writes fail, and some of its closes. When there is space again,
# the log goes on, and is durable, with all that was accepted and nothing else.
. "$(dirname "$0")/../lib/lib.sh"
. "$(dirname "$0")/healthy.inc"
need_root
need_tool python3

# appender LOG WANT TIMES BYTES [all]: opens, appends, closes, so many times. WANT gets what was accepted, also of a
# close that failed: that version is tried again. Prints how many writes and closes failed; `all`: none may.
cat >"$TMP/appender" <<'E2'
import errno, os, sys
log, want, times, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
writes = closes = 0
with open(want, "ab") as accepted:
    for i in range(times):
        line = (b"%09d\n" % i * (size // 10 + 1))[:size]
        fd = os.open(log, os.O_WRONLY | os.O_APPEND)
        try:
            accepted.write(line[:os.write(fd, line)])
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            writes += 1
        try:
            os.close(fd)
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
            closes += 1
        if writes + closes and sys.argv[5:]:
            sys.exit("append %d: %d writes failed, %d closes" % (i, writes, closes))
print(writes, closes)
E2
appender() { python3 "$TMP/appender" "$mnt/$log" "$TMP/want" "$@"; }
worker_is_new() { [ "$(worker_pid "$mnt")" != "$1" ]; }

disk=$TMP/disk store=$TMP/disk/store mnt=$TMP/mnt
make_disk disk ext4 256M
start_mount "$store" "$mnt" staging=64M
for round in 1 2; do
	log=log.$round	# a new one: of an older one the daemon knows how large it will be
	head -c $((10 << 20)) /dev/urandom >"$TMP/want"
	cp "$TMP/want" "$mnt/$log" || die "the log"
	wait_durable "$mnt" 60
	leave_mib "$disk" 12
	failed=$(appender 8 $((1 << 20))) || die "round $round: the appender"
	more=$(appender 20 100) || die "round $round: the appender"
	note "round $round: writes and closes that failed: $failed of 8 large ones, $more of 20 small ones"
	[ "${failed% *}" -gt 0 ] || die "round $round: no write failed"
	cmp "$TMP/want" "$mnt/$log" || die "round $round: the mount has other bytes than what was accepted"
	if [ $round = 2 ]; then
		pid=$(worker_pid "$mnt")
		kill -KILL "$pid"
		retry 30 worker_is_new "$pid" || die "no new worker"
	fi
	rm "$disk/filler"
	wait_freed "$disk"
	appender 3 100 all || die "round $round: there is space"
	[ "$(state "$mnt/$log")" != failed ] || die "round $round: failed although there is space"
	wait_durable "$mnt" 60
	[ "$(state "$mnt/$log")" = durable ] || die "round $round: state $(state "$mnt/$log")"
	cmp "$TMP/want" "$store/$log" || die "round $round: the store has other bytes than what was accepted"
	rm "$mnt/$log"
	wait_durable "$mnt" 60
done
if [ "$(status_field "$mnt" halted)" != null ]; then die "halted"; fi
stop_mount "$mnt"
